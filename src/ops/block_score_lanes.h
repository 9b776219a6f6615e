/* Body of the F32 vector variants of block_score: lane = token. Included once per ISA after its
 * lanes header, with KR_BLOCK_SCORE_NAME the function to define. */
#include <math.h>

#include "base/check.h"
#include "base/num.h"
#include "ops/block_score.h"
#include "ops/lanes_load.h"
#include "ops/variants.h"

enum {
    HEADS = 4,
    PARTS = KR_BLOCK_TILE / KR_LANES,
    AHEAD = 12288 /* bytes to prefetch ahead inside a block and into the next of a contiguous pool */
};

/* Dots of H heads with the 16 tokens of one tile. H is a constant at every call. */
KR_INLINE void tile_dots(const kr_block_score_args *a, uint32_t first, const int H, const uint16_t *tile,
                         kr_lanes sum[HEADS][PARTS])
{
    KR_UNROLL for (int h = 0; h < H; h++) KR_UNROLL for (int p = 0; p < PARTS; p++)
        sum[h][p] = lanes_set(0.0f);
    for (uint32_t c = 0; c < a->dim; c += 2, tile += 2 * KR_BLOCK_TILE) {
        const float *q = a->query + (size_t)first * a->dim + c;
        kr_lanes even[PARTS], odd[PARTS];

        KR_PREFETCH((const uint8_t *)tile + AHEAD);
        KR_UNROLL for (int p = 0; p < PARTS; p++)
            lanes_from_bf16_pairs(tile + p * 2 * KR_LANES, &even[p], &odd[p]);
        KR_UNROLL for (int h = 0; h < H; h++)
        {
            const kr_lanes x = lanes_set(q[(size_t)h * a->dim]), y = lanes_set(q[(size_t)h * a->dim + 1]);

            KR_UNROLL for (int p = 0; p < PARTS; p++)
                sum[h][p] = lanes_fma(y, odd[p], lanes_fma(x, even[p], sum[h][p]));
        }
    }
}

/* Largest lane so far and NaN so far, of one head. */
typedef struct {
    kr_lanes largest, nan;
} extreme;

static void add_part(extreme *e, kr_lanes dots, uint32_t visible)
{
    float lane[KR_LANES];

    if (visible < KR_LANES) {
        lanes_store(lane, dots);
        for (uint32_t i = visible; i < KR_LANES; i++)
            lane[i] = -INFINITY;
        dots = lanes_load(lane);
    }
    e->largest = lanes_max(dots, e->largest);
    e->nan = lanes_nan_or(dots, e->nan);
}

static float result_of(const extreme *e)
{
    float largest[KR_LANES], nan[KR_LANES], best = -INFINITY;

    lanes_store(largest, e->largest);
    lanes_store(nan, e->nan);
    for (int i = 0; i < KR_LANES; i++) {
        if (isnan(nan[i]))
            return nan[i];
        best = largest[i] > best ? largest[i] : best;
    }
    return best;
}

KR_INLINE void block_heads(const kr_block_score_args *a, uint64_t b, uint32_t first, const int H)
{
    const uint64_t start = b * a->block_tokens, left = a->tokens > start ? a->tokens - start : 0;
    const uint32_t tokens = left < a->block_tokens ? (uint32_t)left : a->block_tokens;
    extreme e[HEADS];

    for (int h = 0; h < H; h++)
        e[h] = (extreme){lanes_set(-INFINITY), lanes_set(0.0f)};
    for (uint32_t t = 0; t < tokens; t += KR_BLOCK_TILE) {
        kr_lanes sum[HEADS][PARTS];

        tile_dots(a, first, H, a->key[b] + (size_t)t * a->dim, sum);
        KR_UNROLL for (int h = 0; h < H; h++)
            KR_UNROLL for (int p = 0; p < PARTS; p++) if (t + (uint32_t)p * KR_LANES < tokens)
                add_part(&e[h], sum[h][p], tokens - t - (uint32_t)p * KR_LANES);
    }
    for (int h = 0; h < H; h++)
        a->score[(first + (uint32_t)h) * a->score_stride + b] = result_of(&e[h]);
}

void KR_BLOCK_SCORE_NAME(const kr_block_score_args *a)
{
    KR_CHECK(a->heads <= KR_BLOCK_HEADS_MAX && a->dim <= KR_BLOCK_DIM_MAX && a->dim % 2 == 0);
    KR_CHECK(a->block_tokens % KR_BLOCK_TILE == 0);
    for (uint64_t b = 0; b < a->blocks; b++) {
        uint32_t h = 0;

        for (; h + HEADS <= a->heads; h += HEADS)
            block_heads(a, b, h, HEADS);
        for (; h < a->heads; h++)
            block_heads(a, b, h, 1);
    }
}
