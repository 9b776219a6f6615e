/* The few vector operations that the bodies in ops/..._lanes.h are written in: 8 lanes of F32. */
#ifndef KR_OPS_X86_LANES_AVX2_H
#define KR_OPS_X86_LANES_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

/* Macros, since bodies choose register tiles with #if. */
#define KR_LANES 8
#define KR_LANES_REGISTERS 16
typedef __m256 kr_lanes;

static inline kr_lanes lanes_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void lanes_store(float *p, kr_lanes x) { _mm256_storeu_ps(p, x); }
static inline kr_lanes lanes_set(float x) { return _mm256_set1_ps(x); }
static inline kr_lanes lanes_fma(kr_lanes a, kr_lanes b, kr_lanes c) { return _mm256_fmadd_ps(a, b, c); }
static inline kr_lanes lanes_add(kr_lanes a, kr_lanes b) { return _mm256_add_ps(a, b); }
static inline kr_lanes lanes_sub(kr_lanes a, kr_lanes b) { return _mm256_sub_ps(a, b); }
static inline kr_lanes lanes_mul(kr_lanes a, kr_lanes b) { return _mm256_mul_ps(a, b); }
/* a > b ? a : b, so that a NaN in a never wins. */
static inline kr_lanes lanes_max(kr_lanes a, kr_lanes b) { return _mm256_max_ps(a, b); }
/* Whether any lane of a equals b's. */
static inline bool lanes_any_equal(kr_lanes a, kr_lanes b)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)) != 0;
}
/* x < limit ? 0 : y, lane by lane; y where x is NaN. */
static inline kr_lanes lanes_zero_below(kr_lanes x, kr_lanes limit, kr_lanes y)
{
    return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_NLT_UQ), y);
}
/* 2^n from the bits of a float whose low mantissa bits hold n. */
static inline kr_lanes lanes_scale_of(kr_lanes t)
{
    const __m256i n = _mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(n, 23));
}
static inline kr_lanes lanes_from_bf16(const uint16_t *p)
{
    const __m128i h = _mm_loadu_si128((const __m128i *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
static inline kr_lanes lanes_from_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* 8 E4M3 codes. Exponent and mantissa bits, moved to F32's place, give the value times 2^-120,
 * subnormals included; the product is exact. */
static inline kr_lanes lanes_from_e4m3(const uint8_t *p)
{
    const __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    const __m256i low = _mm256_and_si256(b, _mm256_set1_epi32(0x7f));
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(b, _mm256_set1_epi32(0x80)), 24);
    const __m256i nan = _mm256_cmpeq_epi32(low, _mm256_set1_epi32(0x7f));
    const __m256 x = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(low, 20)), _mm256_set1_ps(0x1p120f));
    return _mm256_or_ps(x, _mm256_castsi256_ps(_mm256_or_si256(sign, nan)));
}
/* x < 0 ? 0 : x; NaN stays. */
static inline kr_lanes lanes_relu(kr_lanes x) { return _mm256_max_ps(_mm256_setzero_ps(), x); }
/* Sums 16 chains by halves: a holds chains 0..7, b chains 8..15. */
static inline float lanes_sum16(const kr_lanes *chain)
{
    const __m256 eight = _mm256_add_ps(chain[0], chain[1]);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
/* x[i] lane j becomes x[j] lane i. */
static inline __attribute__((always_inline)) void lanes_transpose(kr_lanes x[8])
{
    __m256 y[8];

    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    {
        const int at = i / 2 * 4 + i % 2 * 2; /* rows 0 1, 2 3, 4 5, 6 7 */

        y[at] = _mm256_unpacklo_ps(x[at], x[at + 1]);
        y[at + 1] = _mm256_unpackhi_ps(x[at], x[at + 1]);
    }
    _Pragma("GCC unroll 2") for (int i = 0; i < 8; i += 4) _Pragma("GCC unroll 2") for (int j = 0; j < 2; j++)
    {
        x[i + 2 * j] = _mm256_shuffle_ps(y[i + j], y[i + j + 2], 0x44);
        x[i + 2 * j + 1] = _mm256_shuffle_ps(y[i + j], y[i + j + 2], 0xee);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    {
        y[i] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
        y[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) x[i] = y[i];
}
/* 8 words of two BF16 each: the low halves and the high halves. */
static inline void lanes_from_bf16_pairs(const uint16_t *p, kr_lanes *low, kr_lanes *high)
{
    const __m256i w = _mm256_loadu_si256((const __m256i *)p);
    *low = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
    *high = _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32((int)0xffff0000u)));
}
/* x where x is NaN, else y. */
static inline kr_lanes lanes_nan_or(kr_lanes x, kr_lanes y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

#endif
