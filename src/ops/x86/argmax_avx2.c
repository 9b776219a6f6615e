/* argmax in F32, 8 lanes a vector. */
#include "ops/x86/lanes_avx2.h"

#define KR_ARGMAX_NAME kr_argmax_avx2
#include "ops/argmax_lanes.h"
