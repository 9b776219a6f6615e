/* Body of the vector variants of channel_dot: lane = token. Included once per ISA after its lanes
 * header, with KR_CHANNEL_DOT_NAME the function to define. */
#include "base/check.h"
#include "base/num.h"
#include "ops/channel_dot.h"
#include "ops/variants.h"

enum { QUERIES = 8 }; /* sums held at once; the keys of a token group come from cache for the next 8 */

static inline kr_lanes load_lanes(kr_dtype type, const uint8_t *at)
{
    if (type == KR_BF16)
        return lanes_from_bf16((const uint16_t *)at);
    if (type == KR_F16)
        return lanes_from_f16((const uint16_t *)at);
    return lanes_load((const float *)at);
}

/* Tokens [t, t + KR_LANES) of up to 8 queries; key(j) gives the vector of channel number j. */
static void score_group(const kr_channel_dot_args *a, uint32_t first, uint32_t n, uint32_t t)
{
    const uint32_t bytes = kr_dtype_bytes(a->type), left = a->tokens - t;
    kr_lanes sum[QUERIES];

    for (uint32_t q = 0; q < n; q++)
        sum[q] = lanes_set(0.0f);
    for (uint32_t j = 0; j < a->channels; j++) {
        const uint8_t *at = (const uint8_t *)a->key + (a->channel[j] * a->key_stride + t) * bytes;
        float tail[KR_LANES] = {0};
        kr_lanes x;

        if (left >= KR_LANES) {
            x = load_lanes(a->type, at);
        } else {
            kr_to_f32(a->type, at, tail, left);
            x = lanes_load(tail);
        }
        for (uint32_t q = 0; q < n; q++)
            sum[q] = lanes_fma(lanes_set(a->query[(uint64_t)(first + q) * a->channels + j]), x, sum[q]);
    }
    for (uint32_t q = 0; q < n; q++) {
        float *out = a->score + (first + q) * a->score_stride + t;
        float lane[KR_LANES];

        if (left >= KR_LANES) {
            lanes_store(out, sum[q]);
            continue;
        }
        lanes_store(lane, sum[q]);
        for (uint32_t i = 0; i < left; i++)
            out[i] = lane[i];
    }
}

void KR_CHANNEL_DOT_NAME(const kr_channel_dot_args *a)
{
    KR_CHECK(a->queries <= KR_CHANNEL_QUERIES_MAX && a->channels <= KR_CHANNELS_MAX);
    for (uint32_t q = 0; q < a->queries; q += QUERIES)
        for (uint32_t t = 0; t < a->tokens; t += KR_LANES)
            score_group(a, q, a->queries - q < QUERIES ? a->queries - q : QUERIES, t);
}
