/* The definition of unit bounds and of the score they give. */
#include "ops/page_bounds.h"

#include <math.h>

#include "ops/fold16.h"
#include "ops/variants.h"

enum { TILE = 16 };

/* One body for the 16-bit types and F32: kept elements are copied as they are, compared as F32. */
#define DEFINE_BOUNDS(NAME, TYPE, TO_F32)                                             \
    static void NAME(const kr_page_bounds_args *a)                                    \
    {                                                                                 \
        const TYPE *tile = a->key_tile;                                               \
        TYPE *max = a->bounds, *min = max + a->dim;                                   \
                                                                                      \
        for (uint32_t c = 0; c < a->dim; c++) {                                       \
            const TYPE *key = tile + (uint64_t)c * TILE + a->first;                   \
            TYPE high = a->reset ? key[0] : max[c], low = a->reset ? key[0] : min[c]; \
                                                                                      \
            for (uint32_t t = 0; t < a->count; t++) {                                 \
                const float k = TO_F32(key[t]);                                       \
                                                                                      \
                if (k > TO_F32(high) || isnan(k))                                     \
                    high = key[t];                                                    \
                if (k < TO_F32(low) || isnan(k))                                      \
                    low = key[t];                                                     \
            }                                                                         \
            max[c] = high;                                                            \
            min[c] = low;                                                             \
        }                                                                             \
    }

#define KEEP(x) (x)
DEFINE_BOUNDS(bounds_f32, float, KEEP)
DEFINE_BOUNDS(bounds_f16, uint16_t, kr_f32_from_f16)
DEFINE_BOUNDS(bounds_bf16, uint16_t, kr_f32_from_bf16)

void kr_page_bounds_scalar(const kr_page_bounds_args *a)
{
    if (a->type == KR_F32)
        bounds_f32(a);
    else if (a->type == KR_F16)
        bounds_f16(a);
    else
        bounds_bf16(a);
}

static float unit_score(const kr_page_score_args *a, const float *query, const uint8_t *max)
{
    const uint32_t bytes = kr_dtype_bytes(a->type);
    const uint8_t *min = max + (uint64_t)a->dim * bytes;
    float lane[TILE] = {0.0f};

    for (uint32_t c = 0; c < a->dim; c++) {
        float high, low;

        kr_to_f32(a->type, max + (uint64_t)c * bytes, &high, 1);
        kr_to_f32(a->type, min + (uint64_t)c * bytes, &low, 1);
        high *= query[c];
        low *= query[c];
        /* Not fmaxf, which would drop a NaN: a NaN key has made both bounds NaN. */
        lane[c % TILE] += high > low ? high : low;
    }
    return kr_fold16(lane);
}

void kr_page_score_scalar(const kr_page_score_args *a)
{
    for (uint32_t q = 0; q < a->queries; q++)
        for (uint64_t u = 0; u < a->units; u++)
            a->score[q * a->score_stride + u] = unit_score(a, a->query + (size_t)q * a->query_stride,
                                                           a->bounds[u]);
}
