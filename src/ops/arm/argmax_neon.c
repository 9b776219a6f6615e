/* argmax in F32, 4 lanes a vector. */
#include "ops/arm/lanes_neon.h"

#define KR_ARGMAX_NAME kr_argmax_neon
#include "ops/argmax_lanes.h"
