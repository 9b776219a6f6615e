/* block_score in F32, 8 lanes a vector. */
#include "ops/x86/lanes_avx2.h"

#define KR_BLOCK_SCORE_NAME kr_block_score_avx2
#include "ops/block_score_lanes.h"
