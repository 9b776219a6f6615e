/* dsa_score in F32, 16 heads a vector. Keys go through BF16, which is exact and takes half the
 * instructions of arithmetic on each vector of 16. */
#include "base/num.h"
#include "ops/x86/e4m3_avx512.h"
#include "ops/x86/lanes_avx512.h"

typedef e4m3_tables key_tables;

static inline key_tables make_tables(void) { return e4m3_tables_make(); }

static inline void store_f32(float *out, __m512i bf16)
{
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(bf16));
    const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(bf16, 1));

    _mm512_storeu_ps(out, _mm512_castsi512_ps(_mm512_slli_epi32(low, 16)));
    _mm512_storeu_ps(out + 16, _mm512_castsi512_ps(_mm512_slli_epi32(high, 16)));
}

/* out has room for dim rounded up to 64. */
static inline void load_key(const key_tables *tables, float *out, const uint8_t *key, uint32_t dim)
{
    for (uint32_t c = 0; c < dim; c += 64) {
        const __mmask64 there = dim - c >= 64 ? ~0ull : (1ull << (dim - c)) - 1;
        __m512i half[2];

        e4m3_to_bf16(tables, _mm512_maskz_loadu_epi8(there, key + c), half);
        store_f32(out + c, half[0]);
        store_f32(out + c + 32, half[1]);
    }
}

#define KR_DSA_SCORE_NAME kr_dsa_score_avx512
#include "ops/dsa_score_lanes.h"
