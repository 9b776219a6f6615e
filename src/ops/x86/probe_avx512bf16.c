/* BF16 dots of 16 lanes. */
#include <immintrin.h>

#include "ops/probe.h"

#define ONES (__m512bh) _mm512_set1_epi32(0x3f803f80)
#define KR_PROBE_NAME kr_probe_bf16_avx512
#define KR_PROBE_VECTOR __m512
#define KR_PROBE_START(i) _mm512_set1_ps((float)(i))
#define KR_PROBE_STEP(sum) _mm512_dpbf16_ps(sum, ONES, ONES)
#define KR_PROBE_VALUE(sum) _mm512_cvtss_f32(sum)
#define KR_PROBE_OPS 64
#include "ops/probe_chains.h"
