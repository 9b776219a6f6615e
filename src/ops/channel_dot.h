/* Dots over a few channels of channel-major keys: SparQ's approximate scores.
 *
 *   score[q][t] = sum over j of query[q][j] * key[channel[j]][t]       (one FMA chain over j)
 *
 * Every variant gives the same bits. Work: 2 * queries * tokens * channels FLOPs and
 * tokens * channels elements read. */
#ifndef KR_OPS_CHANNEL_DOT_H
#define KR_OPS_CHANNEL_DOT_H

#include <stdint.h>

#include "base/num.h"

enum { KR_CHANNEL_QUERIES_MAX = 64, KR_CHANNELS_MAX = 256 };

typedef struct {
    const float *query;      /* [queries][channels] */
    const uint32_t *channel; /* [channels] channel numbers */
    uint32_t queries, channels;
    kr_dtype type;   /* of keys: KR_F32, KR_F16 or KR_BF16 */
    const void *key; /* [.][key_stride] elements of type, channel-major */
    uint64_t key_stride;
    uint32_t tokens;
    float *score; /* [queries][score_stride] */
    uint64_t score_stride;
} kr_channel_dot_args;

typedef void (*kr_channel_dot_fn)(const kr_channel_dot_args *args);

#endif
