/* dsa_score in F32, 8 heads a vector. */
#include "ops/x86/lanes_avx2.h"

#include "ops/dsa_key_lanes.h"

#define KR_DSA_SCORE_NAME kr_dsa_score_avx2
#include "ops/dsa_score_lanes.h"
