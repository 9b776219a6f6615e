/* F32 multiply-adds of 8 lanes. */
#include <immintrin.h>

#include "ops/probe.h"

#define KR_PROBE_NAME kr_probe_f32_avx2
#define KR_PROBE_VECTOR __m256
#define KR_PROBE_START(i) _mm256_set1_ps((float)(i))
#define KR_PROBE_STEP(sum) _mm256_fmadd_ps(sum, _mm256_set1_ps(0.999f), _mm256_set1_ps(0.001f))
#define KR_PROBE_VALUE(sum) _mm256_cvtss_f32(sum)
#define KR_PROBE_OPS 16
#include "ops/probe_chains.h"
