/* dsa_score in F32, 4 heads a vector. */
#include "ops/arm/lanes_neon.h"

#include "ops/dsa_key_lanes.h"

#define KR_DSA_SCORE_NAME kr_dsa_score_neon
#include "ops/dsa_score_lanes.h"
