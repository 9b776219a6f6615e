/* half_dot with AVX2, 8 lanes a vector. */
#include "ops/x86/lanes_avx2.h"

#define KR_HALF_DOT_NAME kr_half_dot_avx2
#include "ops/half_dot_lanes.h"
