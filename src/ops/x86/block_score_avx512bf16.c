/* block_score with the BF16 dot product: lane = token, a pair of dims a step, keys used as stored. */
#include <immintrin.h>
#include <math.h>

#include "base/check.h"
#include "base/num.h"
#include "ops/block_score.h"
#include "ops/variants.h"

enum { HEADS = 4, AHEAD = 2048 };

/* Adds one pair of dims of 16 tokens to chain k of each head. */
static inline __attribute__((always_inline)) void add_pair(const uint32_t *query, uint32_t pairs, int H,
                                                           const uint16_t *at, __m512 chain[HEADS][2],
                                                           uint32_t k)
{
    const __m512bh key = (__m512bh)_mm512_loadu_si512(at);

    __builtin_prefetch((const uint8_t *)at + AHEAD);
#pragma GCC unroll 8
    for (int h = 0; h < H; h++) {
        const __m512i q = _mm512_set1_epi32((int)query[(size_t)h * pairs]);

        chain[h][k] = _mm512_dpbf16_ps(chain[h][k], key, (__m512bh)q);
    }
}

/* Dots of H heads with a tile's 16 tokens. Even and odd pairs go to chains of their own: 8 chains hide
 * the latency of the dot with one stream of keys, which is what the hardware prefetcher likes. */
static inline __attribute__((always_inline)) void tile_dots(const uint32_t *query, uint32_t pairs, int H,
                                                            const uint16_t *tile, __m512 sum[HEADS])
{
    __m512 chain[HEADS][2];

#pragma GCC unroll 8
    for (int h = 0; h < H; h++)
        chain[h][0] = chain[h][1] = _mm512_setzero_ps();
    for (uint32_t c = 0; c < pairs / 2; c++)
#pragma GCC unroll 2
        for (uint32_t k = 0; k < 2; k++, tile += 2 * KR_BLOCK_TILE)
            add_pair(query + 2 * c + k, pairs, H, tile, chain, k);
    if (pairs % 2 != 0)
        add_pair(query + pairs - 1, pairs, H, tile, chain, 0);
#pragma GCC unroll 8
    for (int h = 0; h < H; h++)
        sum[h] = _mm512_add_ps(chain[h][0], chain[h][1]);
}

static inline __attribute__((always_inline)) void block_heads(const kr_block_score_args *a,
                                                              const uint32_t *query, uint64_t b,
                                                              uint32_t first, int H)
{
    const uint64_t start = b * a->block_tokens, left = a->tokens > start ? a->tokens - start : 0;
    const uint32_t tokens = left < a->block_tokens ? (uint32_t)left : a->block_tokens;
    __m512 largest[HEADS];
    __mmask16 nan[HEADS] = {0};

    for (int h = 0; h < H; h++)
        largest[h] = _mm512_set1_ps(-INFINITY);
    for (uint32_t t = 0; t < tokens; t += KR_BLOCK_TILE) {
        const __mmask16 visible = tokens - t >= 16 ? 0xffff : (__mmask16)((1u << (tokens - t)) - 1);
        __m512 sum[HEADS];

        tile_dots(query, a->dim / 2, H, a->key[b] + (size_t)t * a->dim, sum);
        for (int h = 0; h < H; h++) {
            largest[h] = _mm512_mask_max_ps(largest[h], visible, sum[h], largest[h]);
            nan[h] |= _mm512_mask_cmp_ps_mask(visible, sum[h], sum[h], _CMP_UNORD_Q);
        }
    }
    for (int h = 0; h < H; h++)
        a->score[(first + (uint32_t)h) * a->score_stride + b] = nan[h] ? NAN
                                                                       : _mm512_reduce_max_ps(largest[h]);
}

void kr_block_score_avx512bf16(const kr_block_score_args *a)
{
    uint32_t query[KR_BLOCK_HEADS_MAX * KR_BLOCK_DIM_MAX / 2]; /* [heads][dim/2] pairs of BF16 */
    const uint32_t pairs = a->dim / 2;

    KR_CHECK(a->heads <= KR_BLOCK_HEADS_MAX && a->dim <= KR_BLOCK_DIM_MAX && a->dim % 2 == 0);
    KR_CHECK(a->block_tokens % KR_BLOCK_TILE == 0);
    for (size_t i = 0; i < (size_t)a->heads * pairs; i++)
        query[i] = kr_bf16_from_f32(a->query[2 * i]) | (uint32_t)kr_bf16_from_f32(a->query[2 * i + 1]) << 16;
    for (uint64_t b = 0; b < a->blocks; b++) {
        uint32_t h = 0;

        for (; h + HEADS <= a->heads; h += HEADS)
            block_heads(a, query + (size_t)h * pairs, b, h, HEADS);
        for (; h < a->heads; h++)
            block_heads(a, query + (size_t)h * pairs, b, h, 1);
    }
}
