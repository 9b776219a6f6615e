/* Body of the F32 vector variants of dsa_score: lane = index head, so no key is transposed and any
 * token-major layout works. Included once per ISA after its lanes header, with KR_DSA_SCORE_NAME
 * the function to define, and a loader of keys: type key_tables, make_tables() and
 * load_key(tables, out[dim], codes[dim], dim). */
#include <stdbool.h>
#include <string.h>

#include "base/check.h"
#include "ops/dsa_score.h"
#include "ops/variants.h"

enum {
    CHAINS = KR_DSA_LANES / KR_LANES, /* vectors that hold the 16 head chains */
    TOKENS_MAX = 12,
    TOKENS_AHEAD = 24 /* whose key is fetched while a token is converted; past a run's end for nothing */
};

/* One scan, prepared: heads padded to 16 with query and weight 0. */
typedef struct {
    uint32_t dim, vectors, width;                                /* width = vectors * KR_LANES */
    _Alignas(64) float query[KR_DSA_DIM_MAX * KR_DSA_HEADS_MAX]; /* [dim][width] */
    _Alignas(64) float weight[KR_DSA_HEADS_MAX];
    _Alignas(64) float key[TOKENS_MAX * KR_DSA_DIM_MAX]; /* [tokens of a tile][dim] */
    kr_lanes chain[TOKENS_MAX][CHAINS];
} scan;

/* Dots of H vectors of heads with T keys, then ReLU, weight and sum into the tokens' chains. */
#define DEFINE_TILE(H, T)                                                                              \
    static void tile_##H##_##T(scan *s, uint32_t vector)                                               \
    {                                                                                                  \
        const float *q = s->query + vector * KR_LANES;                                                 \
        kr_lanes sum[T][H];                                                                            \
                                                                                                       \
        _Pragma("GCC unroll 16") for (int t = 0; t < T; t++)                                           \
            _Pragma("GCC unroll 16") for (int h = 0; h < H; h++) sum[t][h] = lanes_set(0.0f);          \
        for (uint32_t c = 0; c < s->dim; c++, q += s->width) {                                         \
            kr_lanes qv[H];                                                                            \
                                                                                                       \
            _Pragma("GCC unroll 16") for (int h = 0; h < H; h++) qv[h] = lanes_load(q + h * KR_LANES); \
            _Pragma("GCC unroll 16") for (int t = 0; t < T; t++)                                       \
            {                                                                                          \
                const kr_lanes k = lanes_set(s->key[(uint32_t)t * KR_DSA_DIM_MAX + c]);                \
                                                                                                       \
                _Pragma("GCC unroll 16") for (int h = 0; h < H; h++)                                   \
                    sum[t][h] = lanes_fma(qv[h], k, sum[t][h]);                                        \
            }                                                                                          \
        }                                                                                              \
        _Pragma("GCC unroll 16") for (int t = 0; t < T; t++)                                           \
            _Pragma("GCC unroll 4") for (uint32_t k = 0; k < (CHAINS < H ? CHAINS : H); k++)           \
        {                                                                                              \
            kr_lanes chain = vector < CHAINS ? lanes_set(0.0f) : s->chain[t][(vector + k) % CHAINS];   \
                                                                                                       \
            _Pragma("GCC unroll 4") for (uint32_t h = k; h < H; h += CHAINS) chain = lanes_fma(        \
                lanes_load(s->weight + (vector + h) * KR_LANES), lanes_relu(sum[t][h]), chain);        \
            s->chain[t][(vector + k) % CHAINS] = chain;                                                \
        }                                                                                              \
    }

#if KR_LANES == 16
DEFINE_TILE(4, 6)
DEFINE_TILE(2, 12)
DEFINE_TILE(1, 12)
#else
DEFINE_TILE(2, 6)
#endif

/* Runs every head over the tile's keys and returns nothing: the chains hold the result. */
static void score_tile(scan *s, bool twelve)
{
#if KR_LANES == 16
    uint32_t v = 0;

    if (!twelve)
        for (; v + 4 <= s->vectors; v += 4)
            tile_4_6(s, v);
    for (; v + 2 <= s->vectors; v += 2)
        tile_2_12(s, v);
    for (; v < s->vectors; v++)
        tile_1_12(s, v);
#else
    (void)twelve;
    for (uint32_t v = 0; v < s->vectors; v += 2)
        tile_2_6(s, v);
#endif
}

static void prepare(scan *s, const kr_dsa_score_args *a)
{
    s->dim = a->dim;
    s->width = (a->heads + KR_DSA_LANES - 1) / KR_DSA_LANES * KR_DSA_LANES;
    s->vectors = s->width / KR_LANES;
    for (uint32_t h = 0; h < s->width; h++) {
        s->weight[h] = h < a->heads ? a->weight[h] : 0.0f;
        for (uint32_t c = 0; c < a->dim; c++)
            s->query[c * s->width + h] = h < a->heads ? kr_f32_from_bf16(
                                                            kr_e4m3_bf16[a->query[(size_t)h * a->dim + c]])
                                                      : 0.0f;
    }
    memset(s->key, 0, sizeof s->key);
}

void KR_DSA_SCORE_NAME(const kr_dsa_score_args *a)
{
    const key_tables tables = make_tables();
    scan s;

    KR_CHECK(a->heads <= KR_DSA_HEADS_MAX && a->dim <= KR_DSA_DIM_MAX && a->dim % 2 == 0);
    prepare(&s, a);
    /* With fewer than 4 vectors of heads, or a remainder, 12 tokens fill the registers. */
    const bool twelve = KR_LANES == 16 && s.vectors % 4 != 0;
    const uint32_t step = twelve ? 12 : 6;

    for (uint64_t t = 0, run = 0, at = 0; t < a->tokens; t += step) {
        const uint32_t n = a->tokens - t < step ? (uint32_t)(a->tokens - t) : step;
        float scale[TOKENS_MAX];

        for (uint32_t j = 0; j < n; j++) {
            const uint8_t *key = a->key[run] + at * a->dim;

            for (uint32_t c = 0; c < a->dim; c += 64)
                __builtin_prefetch(key + (size_t)TOKENS_AHEAD * a->dim + c);
            load_key(&tables, s.key + j * KR_DSA_DIM_MAX, key, a->dim);
            scale[j] = a->scale[run][at];
            if (++at == a->run_tokens) {
                run++;
                at = 0;
            }
        }
        score_tile(&s, twelve);
        for (uint32_t j = 0; j < n; j++)
            a->score[t + j] = lanes_sum16(s.chain[j]) * scale[j];
    }
}
