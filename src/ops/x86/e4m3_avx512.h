/* 64 E4M3 codes to BF16 by two 128-entry byte tables: exact, NaN kept. */
#ifndef KR_OPS_X86_E4M3_AVX512_H
#define KR_OPS_X86_E4M3_AVX512_H

#include <immintrin.h>

#include "ops/dsa_score.h"

/* High and low bytes of kr_e4m3_bf16[0..127]. */
typedef struct {
    __m512i high[2], low[2];
} e4m3_tables;

static inline e4m3_tables e4m3_tables_make(void)
{
    _Alignas(64) uint8_t high[128], low[128];

    for (int i = 0; i < 128; i++) {
        high[i] = (uint8_t)(kr_e4m3_bf16[i] >> 8);
        low[i] = (uint8_t)kr_e4m3_bf16[i];
    }
    return (e4m3_tables){{_mm512_load_si512(high), _mm512_load_si512(high + 64)},
                         {_mm512_load_si512(low), _mm512_load_si512(low + 64)}};
}

/* out[0] gets the BF16 of codes 0..31, out[1] of 32..63. The 8-byte groups are dealt out first so that the
 * in-lane interleaves of low and high bytes give the elements back in sequence. */
static inline void e4m3_to_bf16(const e4m3_tables *t, __m512i codes, __m512i out[2])
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i b = _mm512_permutexvar_epi64(order, codes);
    const __m512i sign = _mm512_and_si512(b, _mm512_set1_epi8((char)0x80));
    const __m512i high = _mm512_or_si512(_mm512_permutex2var_epi8(t->high[0], b, t->high[1]), sign);
    const __m512i low = _mm512_permutex2var_epi8(t->low[0], b, t->low[1]);

    out[0] = _mm512_unpacklo_epi8(low, high);
    out[1] = _mm512_unpackhi_epi8(low, high);
}

#endif
