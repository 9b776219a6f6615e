/* row_dot in F32, 16 lanes a vector. */
#include "ops/x86/lanes_avx512.h"

#define KR_ROW_DOT_NAME kr_row_dot_avx512
#include "ops/row_dot_lanes.h"
