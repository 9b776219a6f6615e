/* attend_rows, 8 query rows a vector. */
#include "ops/x86/lanes_avx2.h"

#define KR_ATTEND_ROWS_NAME kr_attend_rows_avx2
#include "ops/attend_rows_lanes.h"
