/* softmax in F32, 8 lanes a vector. */
#include "ops/x86/lanes_avx2.h"

#define KR_SOFTMAX_NAME kr_softmax_avx2
#include "ops/softmax_lanes.h"
