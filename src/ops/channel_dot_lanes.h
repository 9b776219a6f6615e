/* Body of the vector variants of channel_dot: lane = token. Included once per ISA after its lanes
 * header, with KR_CHANNEL_DOT_NAME the function to define. */
#include <math.h>

#include "base/check.h"
#include "ops/channel_dot.h"
#include "ops/lanes_load.h"
#include "ops/variants.h"

enum { QUERIES = KR_LANES == 16 ? 8 : 4, VECTORS = 2 };

/* Tokens [t, t + vectors * KR_LANES) of n queries. n, vectors and type are constants at every call. */
KR_INLINE void dot_block(const kr_channel_dot_args *a, uint32_t first, uint32_t t, const uint32_t n,
                         const uint32_t vectors, const kr_dtype type)
{
    const float *query = a->query + (size_t)first * a->channels;
    /* The channel's next tokens: channels are scattered, so no hardware prefetcher finds them all. */
    const size_t rest = a->tokens - t, step = vectors * KR_LANES, ahead = rest > step ? step : 0;
    kr_lanes sum[QUERIES][VECTORS];

    KR_UNROLL for (uint32_t q = 0; q < n; q++) KR_UNROLL for (uint32_t v = 0; v < vectors; v++)
        sum[q][v] = lanes_set(0.0f);
    for (uint32_t j = 0; j < a->channels; j++) {
        const size_t at = a->channel[j] * a->key_stride + t;
        kr_lanes x[VECTORS];

        KR_PREFETCH((const uint8_t *)a->key + (at + ahead) * kr_dtype_bytes(type));
        KR_UNROLL for (uint32_t v = 0; v < vectors; v++)
            x[v] = lanes_load_as(type, a->key, at + v * KR_LANES);
        KR_UNROLL for (uint32_t q = 0; q < n; q++)
        {
            const kr_lanes y = lanes_set(query[(size_t)q * a->channels + j]);

            KR_UNROLL for (uint32_t v = 0; v < vectors; v++) sum[q][v] = lanes_fma(y, x[v], sum[q][v]);
        }
    }
    KR_UNROLL for (uint32_t q = 0; q < n; q++) KR_UNROLL for (uint32_t v = 0; v < vectors; v++)
        lanes_store(a->score + (first + q) * a->score_stride + t + v * KR_LANES, sum[q][v]);
}

static void dot_one(const kr_channel_dot_args *a, uint32_t q, uint32_t t)
{
    float sum = 0.0f;

    for (uint32_t j = 0; j < a->channels; j++)
        sum = fmaf(a->query[(size_t)q * a->channels + j],
                   lanes_load_one(a->type, a->key, a->channel[j] * a->key_stride + t), sum);
    a->score[q * a->score_stride + t] = sum;
}

KR_INLINE void dot_queries(const kr_channel_dot_args *a, uint32_t first, const uint32_t n,
                           const kr_dtype type)
{
    uint32_t t = 0;

    for (; t + VECTORS * KR_LANES <= a->tokens; t += VECTORS * KR_LANES)
        dot_block(a, first, t, n, VECTORS, type);
    for (; t + KR_LANES <= a->tokens; t += KR_LANES)
        dot_block(a, first, t, n, 1, type);
    for (; t < a->tokens; t++)
        for (uint32_t q = 0; q < n; q++)
            dot_one(a, first + q, t);
}

KR_INLINE void all_queries(const kr_channel_dot_args *a, const kr_dtype type)
{
    uint32_t q = 0;

    for (; q + QUERIES <= a->queries; q += QUERIES)
        dot_queries(a, q, QUERIES, type);
    for (; q < a->queries; q++)
        dot_queries(a, q, 1, type);
}

void KR_CHANNEL_DOT_NAME(const kr_channel_dot_args *a)
{
    KR_CHECK(a->queries <= KR_CHANNEL_QUERIES_MAX && a->channels <= KR_CHANNELS_MAX);
    if (a->type == KR_BF16)
        all_queries(a, KR_BF16);
    else if (a->type == KR_F16)
        all_queries(a, KR_F16);
    else
        all_queries(a, KR_F32);
}
