/* argmax in F32, 16 lanes a vector. */
#include "ops/x86/lanes_avx512.h"

#define KR_ARGMAX_NAME kr_argmax_avx512
#include "ops/argmax_lanes.h"
