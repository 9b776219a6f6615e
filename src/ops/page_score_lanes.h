/* Body of the vector variants of page_score: lane = dim mod 16. Included once per ISA after its
 * lanes header, with KR_PAGE_SCORE_NAME the function to define. */
#include "ops/lanes_load.h"
#include "ops/page_bounds.h"
#include "ops/variants.h"

enum { TILE = 16, H = TILE / KR_LANES, UNITS_AHEAD = 24 };

KR_INLINE void score_units(const kr_page_score_args *a, const kr_dtype type)
{
    const size_t bytes = type == KR_F32 ? 4 : 2;

    for (uint64_t u = 0; u < a->units; u++) {
        const void *bounds = a->bounds[u];
        kr_lanes sum[H];
        float lane[TILE];
        uint32_t c = 0;

        for (size_t b = 0; u + UNITS_AHEAD < a->units && b < 2 * a->dim * bytes; b += 64)
            KR_PREFETCH((const char *)a->bounds[u + UNITS_AHEAD] + b);
        KR_UNROLL for (uint32_t h = 0; h < H; h++) sum[h] = lanes_set(0.0f);
        for (; c + TILE <= a->dim; c += TILE)
            KR_UNROLL for (uint32_t h = 0; h < H; h++)
            {
                const kr_lanes q = lanes_load(a->query + c + h * KR_LANES);
                const kr_lanes high = lanes_mul(lanes_load_as(type, bounds, c + h * KR_LANES), q);
                const kr_lanes low = lanes_mul(lanes_load_as(type, bounds, a->dim + c + h * KR_LANES), q);

                sum[h] = lanes_add(sum[h], lanes_max(high, low));
            }
        if (c < a->dim) {
            for (uint32_t h = 0; h < H; h++)
                lanes_store(lane + h * KR_LANES, sum[h]);
            for (; c < a->dim; c++) {
                const float high = lanes_load_one(type, bounds, c) * a->query[c];
                const float low = lanes_load_one(type, bounds, a->dim + c) * a->query[c];

                lane[c % TILE] += high > low ? high : low;
            }
            for (uint32_t h = 0; h < H; h++)
                sum[h] = lanes_load(lane + h * KR_LANES);
        }
        a->score[u] = lanes_sum16(sum);
    }
}

void KR_PAGE_SCORE_NAME(const kr_page_score_args *a)
{
    if (a->type == KR_F32)
        score_units(a, KR_F32);
    else if (a->type == KR_F16)
        score_units(a, KR_F16);
    else
        score_units(a, KR_BF16);
}
