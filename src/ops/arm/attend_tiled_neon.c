/* attend_tiled, 4 lanes a vector. */
#include "ops/arm/lanes_neon.h"

#define KR_ATTEND_TILED_NAME kr_attend_tiled_neon
#include "ops/attend_tiled_lanes.h"
