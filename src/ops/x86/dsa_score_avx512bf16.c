/* dsa_score with the BF16 dot product: lane = index head, two dims a step. Keys become BF16,
 * exactly, and stay in token order. */
#include <string.h>

#include "base/check.h"
#include "ops/dsa_score.h"
#include "ops/variants.h"
#include "ops/x86/e4m3_avx512.h"

enum { LANES = 16, TOKENS_MAX = 12, TOKENS_AHEAD = 24, PAIRS_MAX = KR_DSA_DIM_MAX / 2 };

/* One scan, prepared: heads padded to 16 with query and weight 0; pairs of dims in 32 bits. */
typedef struct {
    uint32_t pairs, vectors, width;
    _Alignas(64) uint32_t query[PAIRS_MAX * KR_DSA_HEADS_MAX]; /* [pair][width] */
    _Alignas(64) float weight[KR_DSA_HEADS_MAX];
    _Alignas(64) uint32_t key[TOKENS_MAX * PAIRS_MAX]; /* [tokens of a tile][PAIRS_MAX] */
    __m512 chain[TOKENS_MAX];
    e4m3_tables tables;
} scan;

#define DEFINE_TILE(H, T)                                                                                  \
    static void tile_##H##_##T(scan *s, uint32_t vector)                                                   \
    {                                                                                                      \
        const uint32_t *q = s->query + vector * LANES;                                                     \
        __m512 sum[T][H];                                                                                  \
                                                                                                           \
        _Pragma("GCC unroll 16") for (int t = 0; t < T; t++)                                               \
            _Pragma("GCC unroll 16") for (int h = 0; h < H; h++) sum[t][h] = _mm512_setzero_ps();          \
        for (uint32_t c = 0; c < s->pairs; c++, q += s->width) {                                           \
            __m512i qv[H];                                                                                 \
                                                                                                           \
            _Pragma("GCC unroll 16") for (int h = 0; h < H; h++) qv[h] = _mm512_load_si512(q + h * LANES); \
            _Pragma("GCC unroll 16") for (int t = 0; t < T; t++)                                           \
            {                                                                                              \
                const __m512i k = _mm512_set1_epi32((int)s->key[(uint32_t)t * PAIRS_MAX + c]);             \
                                                                                                           \
                _Pragma("GCC unroll 16") for (int h = 0; h < H; h++)                                       \
                    sum[t][h] = _mm512_dpbf16_ps(sum[t][h], (__m512bh)qv[h], (__m512bh)k);                 \
            }                                                                                              \
        }                                                                                                  \
        _Pragma("GCC unroll 16") for (int h = 0; h < H; h++)                                               \
        {                                                                                                  \
            const __m512 w = _mm512_load_ps(s->weight + (vector + (uint32_t)h) * LANES);                   \
                                                                                                           \
            _Pragma("GCC unroll 16") for (int t = 0; t < T; t++) s->chain[t] = _mm512_fmadd_ps(            \
                w, _mm512_max_ps(_mm512_setzero_ps(), sum[t][h]), s->chain[t]);                            \
        }                                                                                                  \
    }

DEFINE_TILE(4, 6)
DEFINE_TILE(2, 12)
DEFINE_TILE(1, 12)

static void prepare(scan *s, const kr_dsa_score_args *a)
{
    s->pairs = a->dim / 2;
    s->width = (a->heads + LANES - 1) / LANES * LANES;
    s->vectors = s->width / LANES;
    for (uint32_t h = 0; h < s->width; h++) {
        s->weight[h] = h < a->heads ? a->weight[h] : 0.0f;
        for (uint32_t c = 0; c < s->pairs; c++) {
            const uint8_t *q = a->query + (size_t)h * a->dim + 2 * c;

            s->query[c * s->width + h] = h < a->heads ? (uint32_t)kr_e4m3_bf16[q[0]] |
                                                            (uint32_t)kr_e4m3_bf16[q[1]] << 16
                                                      : 0;
        }
    }
    s->tables = e4m3_tables_make();
    memset(s->key, 0, sizeof s->key);
}

static void load_key(const scan *s, uint32_t *out, const uint8_t *key, uint32_t dim)
{
    for (uint32_t c = 0; c < dim; c += 64) {
        const __mmask64 there = dim - c >= 64 ? ~0ull : (1ull << (dim - c)) - 1;
        __m512i half[2];

        e4m3_to_bf16(&s->tables, _mm512_maskz_loadu_epi8(there, key + c), half);
        _mm512_store_si512(out + c / 2, half[0]);
        _mm512_store_si512(out + c / 2 + 16, half[1]);
    }
}

static void score_tile(scan *s, bool twelve)
{
    uint32_t v = 0;

    memset(s->chain, 0, sizeof s->chain);
    if (!twelve)
        for (; v + 4 <= s->vectors; v += 4)
            tile_4_6(s, v);
    for (; v + 2 <= s->vectors; v += 2)
        tile_2_12(s, v);
    for (; v < s->vectors; v++)
        tile_1_12(s, v);
}

static float sum16(__m512 chain)
{
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(chain), _mm512_extractf32x8_ps(chain, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

void kr_dsa_score_avx512bf16(const kr_dsa_score_args *a)
{
    scan s;

    KR_CHECK(a->heads <= KR_DSA_HEADS_MAX && a->dim <= KR_DSA_DIM_MAX && a->dim % 2 == 0);
    prepare(&s, a);
    /* With fewer than 4 vectors of heads, or a remainder, 12 tokens fill the registers. */
    const bool twelve = s.vectors % 4 != 0;
    const uint32_t step = twelve ? 12 : 6;

    for (uint64_t t = 0, run = 0, at = 0; t < a->tokens; t += step) {
        const uint32_t n = a->tokens - t < step ? (uint32_t)(a->tokens - t) : step;
        float scale[TOKENS_MAX];

        for (uint32_t j = 0; j < n; j++) {
            const uint8_t *key = a->key[run] + at * a->dim;

            for (uint32_t c = 0; c < a->dim; c += 64)
                __builtin_prefetch(key + (size_t)TOKENS_AHEAD * a->dim + c);
            load_key(&s, s.key + j * PAIRS_MAX, key, a->dim);
            scale[j] = a->scale[run][at];
            if (++at == a->run_tokens) {
                run++;
                at = 0;
            }
        }
        score_tile(&s, twelve);
        for (uint32_t j = 0; j < n; j++)
            a->score[t + j] = sum16(s.chain[j]) * scale[j];
    }
}
