/* row_dot in F32, 4 lanes a vector. */
#include "ops/arm/lanes_neon.h"

#define KR_ROW_DOT_NAME kr_row_dot_neon
#include "ops/row_dot_lanes.h"
