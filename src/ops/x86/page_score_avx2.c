/* page_score with 8 lanes. */
#include "ops/x86/lanes_avx2.h"

#define KR_PAGE_SCORE_NAME kr_page_score_avx2
#include "ops/page_score_lanes.h"
