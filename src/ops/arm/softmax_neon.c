/* softmax in F32, 4 lanes a vector. */
#include "ops/arm/lanes_neon.h"

#define KR_SOFTMAX_NAME kr_softmax_neon
#include "ops/softmax_lanes.h"
