/* F16 multiply-adds of 32 lanes. */
#include <immintrin.h>

#include "ops/probe.h"

#define KR_PROBE_NAME kr_probe_f16_avx512
#define KR_PROBE_VECTOR __m512h
#define KR_PROBE_START(i) _mm512_set1_ph((_Float16)(i))
#define KR_PROBE_STEP(sum) _mm512_fmadd_ph(sum, _mm512_set1_ph((_Float16)0.5), _mm512_set1_ph((_Float16)0.25))
#define KR_PROBE_VALUE(sum) (float)_mm512_cvtsh_h(sum)
#define KR_PROBE_OPS 64
#include "ops/probe_chains.h"
