/* dsa_score in F32, 16 heads a vector. */
#include "base/num.h"
#include "ops/x86/lanes_avx512.h"

#define KR_DSA_SCORE_NAME kr_dsa_score_avx512
#include "ops/dsa_score_lanes.h"
