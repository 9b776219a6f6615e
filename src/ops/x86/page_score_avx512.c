/* page_score with 16 lanes. */
#include "ops/x86/lanes_avx512.h"

#define KR_PAGE_SCORE_NAME kr_page_score_avx512
#include "ops/page_score_lanes.h"
