/* row_dot in F32, 8 lanes a vector. */
#include "ops/x86/lanes_avx2.h"

#define KR_ROW_DOT_NAME kr_row_dot_avx2
#include "ops/row_dot_lanes.h"
