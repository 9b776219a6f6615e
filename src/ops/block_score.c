/* The definition of the block score. Read, never tuned: the variants answer to it. */
#include "ops/block_score.h"

#include <math.h>

#include "base/check.h"
#include "base/num.h"
#include "ops/variants.h"

static float token_dot(const kr_block_score_args *a, const float *query, const uint16_t *block,
                       uint32_t token)
{
    float sum = 0.0f;

    for (uint32_t c = 0; c < a->dim; c++)
        sum = fmaf(query[c], kr_f32_from_bf16(block[kr_block_key_at(token, c, a->dim)]), sum);
    return sum;
}

void kr_block_score_scalar(const kr_block_score_args *a)
{
    KR_CHECK(a->heads <= KR_BLOCK_HEADS_MAX && a->dim <= KR_BLOCK_DIM_MAX && a->dim % 2 == 0);
    KR_CHECK(a->block_tokens % KR_BLOCK_TILE == 0);
    for (uint64_t b = 0; b < a->blocks; b++) {
        const uint64_t first = b * a->block_tokens, left = a->tokens > first ? a->tokens - first : 0;
        const uint32_t n = left < a->block_tokens ? (uint32_t)left : a->block_tokens;

        for (uint32_t h = 0; h < a->heads; h++) {
            float best = -INFINITY;

            for (uint32_t t = 0; t < n; t++) {
                const float s = token_dot(a, a->query + (size_t)h * a->dim, a->key[b], t);

                best = best > s || isnan(best) ? best : s; /* a NaN, once met, stays */
            }
            a->score[h * a->score_stride + b] = best;
        }
    }
}
