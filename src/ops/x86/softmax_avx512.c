/* softmax in F32, 16 lanes a vector. */
#include "ops/x86/lanes_avx512.h"

#define KR_SOFTMAX_NAME kr_softmax_avx512
#include "ops/softmax_lanes.h"
