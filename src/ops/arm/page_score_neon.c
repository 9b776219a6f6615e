/* page_score, 4 lanes a vector. */
#include "ops/arm/lanes_neon.h"

#define KR_PAGE_SCORE_NAME kr_page_score_neon
#include "ops/page_score_lanes.h"
