/* attend_tiled with 16 lanes: a tile is one vector. */
#include "ops/x86/lanes_avx512.h"

#define KR_ATTEND_TILED_NAME kr_attend_tiled_avx512
#include "ops/attend_tiled_lanes.h"
