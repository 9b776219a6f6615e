/* The few vector operations that the bodies in ops/..._lanes.h are written in: 16 lanes of F32. */
#ifndef KR_OPS_X86_LANES_AVX512_H
#define KR_OPS_X86_LANES_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

/* Macros, since bodies choose register tiles with #if. */
#define KR_LANES 16
#define KR_LANES_REGISTERS 32
typedef __m512 kr_lanes;

static inline kr_lanes lanes_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void lanes_store(float *p, kr_lanes x) { _mm512_storeu_ps(p, x); }
static inline kr_lanes lanes_set(float x) { return _mm512_set1_ps(x); }
static inline kr_lanes lanes_fma(kr_lanes a, kr_lanes b, kr_lanes c) { return _mm512_fmadd_ps(a, b, c); }
static inline kr_lanes lanes_add(kr_lanes a, kr_lanes b) { return _mm512_add_ps(a, b); }
static inline kr_lanes lanes_sub(kr_lanes a, kr_lanes b) { return _mm512_sub_ps(a, b); }
static inline kr_lanes lanes_mul(kr_lanes a, kr_lanes b) { return _mm512_mul_ps(a, b); }
/* a > b ? a : b, so that a NaN in a never wins. */
static inline kr_lanes lanes_max(kr_lanes a, kr_lanes b) { return _mm512_max_ps(a, b); }
/* Whether any lane of a equals b's. */
static inline bool lanes_any_equal(kr_lanes a, kr_lanes b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ) != 0;
}
/* x < limit ? 0 : y, lane by lane; y where x is NaN. */
static inline kr_lanes lanes_zero_below(kr_lanes x, kr_lanes limit, kr_lanes y)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), y);
}
/* 2^n from the bits of a float whose low mantissa bits hold n. */
static inline kr_lanes lanes_scale_of(kr_lanes t)
{
    const __m512i n = _mm512_add_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(n, 23));
}
static inline kr_lanes lanes_from_bf16(const uint16_t *p)
{
    const __m256i h = _mm256_loadu_si256((const __m256i *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
static inline kr_lanes lanes_from_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* x < 0 ? 0 : x; NaN stays. */
static inline kr_lanes lanes_relu(kr_lanes x) { return _mm512_max_ps(_mm512_setzero_ps(), x); }
/* Sums 16 chains by halves. */
static inline float lanes_sum16(const kr_lanes *chain)
{
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(*chain), _mm512_extractf32x8_ps(*chain, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
/* Lane i of the result = lanes_sum16(x + i), for 16 vectors at once: each step adds the halves, in
 * lanes_sum16's order, of two vectors into one. */
static inline __attribute__((always_inline)) kr_lanes lanes_fold16(const kr_lanes x[16])
{
    __m512 eight[8], four[4], two[2];

    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) eight[i] = _mm512_add_ps(
        _mm512_shuffle_f32x4(x[i], x[i + 8], 0x44), _mm512_shuffle_f32x4(x[i], x[i + 8], 0xee));
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
        four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(eight[i], eight[i + 4], 0x88),
                                _mm512_shuffle_f32x4(eight[i], eight[i + 4], 0xdd));
    _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++) two[i] = _mm512_add_ps(
        _mm512_shuffle_ps(four[i], four[i + 2], 0x44), _mm512_shuffle_ps(four[i], four[i + 2], 0xee));
    return _mm512_permutexvar_ps(
        _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15),
        _mm512_add_ps(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xdd)));
}
/* x[i] lane j becomes x[j] lane i. */
static inline __attribute__((always_inline)) void words_transpose(__m512i x[16])
{
    __m512i y[16];

    _Pragma("GCC unroll 8") for (int i = 0; i < 16; i += 2)
    {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)
    {
        const int at = i / 2 * 4 + i % 2;

        x[i / 2 * 4 + i % 2 * 2] = _mm512_unpacklo_epi64(y[at], y[at + 2]);
        x[i / 2 * 4 + i % 2 * 2 + 1] = _mm512_unpackhi_epi64(y[at], y[at + 2]);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4;
                                 i++) /* x[4 k + i]: column 4 q + i of rows 4 k.. in quarter q */
    {
        const __m512i low = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
        const __m512i low_odd = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
        const __m512i high = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
        const __m512i high_odd = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);

        y[i] = _mm512_shuffle_i32x4(low, high, 0x88);
        y[i + 4] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
        y[i + 8] = _mm512_shuffle_i32x4(low, high, 0xdd);
        y[i + 12] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
    }
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) x[i] = y[i];
}

static inline __attribute__((always_inline)) void lanes_transpose(kr_lanes x[16])
{
    __m512i word[16];

    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) word[i] = _mm512_castps_si512(x[i]);
    words_transpose(word);
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) x[i] = _mm512_castsi512_ps(word[i]);
}
/* 16 words of two BF16 each: the low halves and the high halves. */
static inline void lanes_from_bf16_pairs(const uint16_t *p, kr_lanes *low, kr_lanes *high)
{
    const __m512i w = _mm512_loadu_si512(p);
    *low = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
    *high = _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000u)));
}
/* x where x is NaN, else y. */
static inline kr_lanes lanes_nan_or(kr_lanes x, kr_lanes y)
{
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

#endif
