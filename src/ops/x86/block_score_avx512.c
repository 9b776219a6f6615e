/* block_score in F32, 16 lanes a vector. */
#include "ops/x86/lanes_avx512.h"

#define KR_BLOCK_SCORE_NAME kr_block_score_avx512
#include "ops/block_score_lanes.h"
