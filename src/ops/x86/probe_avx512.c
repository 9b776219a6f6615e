/* F32 multiply-adds and INT8 dots of 16 lanes. */
#include <immintrin.h>

#include "ops/probe.h"

#define KR_PROBE_NAME kr_probe_f32_avx512
#define KR_PROBE_VECTOR __m512
#define KR_PROBE_START(i) _mm512_set1_ps((float)(i))
#define KR_PROBE_STEP(sum) _mm512_fmadd_ps(sum, _mm512_set1_ps(0.999f), _mm512_set1_ps(0.001f))
#define KR_PROBE_VALUE(sum) _mm512_cvtss_f32(sum)
#define KR_PROBE_OPS 32
#include "ops/probe_chains.h"

#define KR_PROBE_NAME kr_probe_i8_avx512
#define KR_PROBE_VECTOR __m512i
#define KR_PROBE_START(i) _mm512_set1_epi32(i)
#define KR_PROBE_STEP(sum) _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(3), _mm512_set1_epi8(5))
#define KR_PROBE_VALUE(sum) (float)_mm512_cvtsi512_si32(sum)
#define KR_PROBE_OPS 128
#include "ops/probe_chains.h"
