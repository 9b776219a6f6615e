/* block_score in F32, 4 tokens a vector. */
#include "ops/arm/lanes_neon.h"

#define KR_BLOCK_SCORE_NAME kr_block_score_neon
#include "ops/block_score_lanes.h"
