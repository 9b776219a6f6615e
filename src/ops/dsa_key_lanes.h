/* Loader of E4M3 keys for dsa_score_lanes.h by arithmetic, for any ISA. Included after its lanes header. */
#ifndef KR_OPS_DSA_KEY_LANES_H
#define KR_OPS_DSA_KEY_LANES_H

#include "base/num.h"
#include "ops/dsa_score.h"

typedef struct {
    uint8_t unused;
} key_tables;

static inline key_tables make_tables(void) { return (key_tables){0}; }

static inline void load_key(const key_tables *tables, float *out, const uint8_t *key, uint32_t dim)
{
    uint32_t c = 0;

    (void)tables;
    for (; c + KR_LANES <= dim; c += KR_LANES)
        lanes_store(out + c, lanes_from_e4m3(key + c));
    for (; c < dim; c++)
        out[c] = kr_f32_from_bf16(kr_e4m3_bf16[key[c]]);
}

#endif
