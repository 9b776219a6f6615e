/* attend_rows, 4 query rows a vector. */
#include "ops/arm/lanes_neon.h"

#define KR_ATTEND_ROWS_NAME kr_attend_rows_neon
#include "ops/attend_rows_lanes.h"
