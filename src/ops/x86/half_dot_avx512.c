/* half_dot with AVX-512, 16 lanes a vector. */
#include "ops/x86/lanes_avx512.h"

#define KR_HALF_DOT_NAME kr_half_dot_avx512
#include "ops/half_dot_lanes.h"
