/* attend_tiled with 8 lanes: a tile is two vectors. */
#include "ops/x86/lanes_avx2.h"

#define KR_ATTEND_TILED_NAME kr_attend_tiled_avx2
#include "ops/attend_tiled_lanes.h"
