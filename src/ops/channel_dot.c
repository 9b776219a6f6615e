/* The definition of the channel dot. Read, never tuned: the variants answer to it. */
#include "ops/channel_dot.h"

#include <math.h>

#include "base/check.h"
#include "ops/variants.h"

void kr_channel_dot_scalar(const kr_channel_dot_args *a)
{
    const uint32_t bytes = kr_dtype_bytes(a->type);

    KR_CHECK(a->queries <= KR_CHANNEL_QUERIES_MAX && a->channels <= KR_CHANNELS_MAX);
    for (uint32_t q = 0; q < a->queries; q++)
        for (uint32_t t = 0; t < a->tokens; t++) {
            float sum = 0.0f;

            for (uint32_t j = 0; j < a->channels; j++) {
                float x;

                kr_to_f32(a->type, (const uint8_t *)a->key + (a->channel[j] * a->key_stride + t) * bytes, &x,
                          1);
                sum = fmaf(a->query[(size_t)q * a->channels + j], x, sum);
            }
            a->score[q * a->score_stride + t] = sum;
        }
}
