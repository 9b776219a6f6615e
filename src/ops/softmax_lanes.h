/* Body of the vector variants of softmax: lane = chain. Included once per ISA after its lanes header,
 * with KR_SOFTMAX_NAME the function to define. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "ops/lanes_exp.h"
#include "ops/softmax.h"
#include "ops/variants.h"

enum { CHAINS = 16, VECTORS = CHAINS / KR_LANES };

/* The last, partial group of 16 scores; missing ones are -inf, whose weight is 0. */
static void load_rest(const kr_softmax_args *a, uint64_t whole, float rest[CHAINS])
{
    for (uint32_t i = 0; i < CHAINS; i++)
        rest[i] = whole + i < a->n ? a->score[whole + i] : -INFINITY;
}

static float largest(const kr_softmax_args *a, uint64_t whole, const float rest[CHAINS])
{
    kr_lanes most[VECTORS];
    float lane[CHAINS], maximum = -FLT_MAX;

    for (uint32_t v = 0; v < VECTORS; v++)
        most[v] = lanes_max(lanes_load(rest + v * KR_LANES), lanes_set(-FLT_MAX));
    for (uint64_t i = 0; i < whole; i += CHAINS)
        for (uint32_t v = 0; v < VECTORS; v++)
            most[v] = lanes_max(lanes_load(a->score + i + v * KR_LANES), most[v]);
    for (uint32_t v = 0; v < VECTORS; v++)
        lanes_store(lane + v * KR_LANES, most[v]);
    for (uint32_t i = 0; i < CHAINS; i++)
        maximum = lane[i] > maximum ? lane[i] : maximum;
    return maximum;
}

static inline kr_lanes weigh(const kr_softmax_args *a, const float *score, kr_lanes maximum)
{
    return lanes_exp(lanes_mul(lanes_sub(lanes_load(score), maximum), lanes_set(a->scale)));
}

/* Turns scores into weights, the rest's too; returns their sum. */
static float weigh_all(const kr_softmax_args *a, uint64_t whole, float maximum, float rest[CHAINS])
{
    const kr_lanes m = lanes_set(maximum);
    kr_lanes chain[VECTORS];

    for (uint32_t v = 0; v < VECTORS; v++)
        chain[v] = lanes_set(0.0f);
    for (uint64_t i = 0; i < whole; i += CHAINS)
        for (uint32_t v = 0; v < VECTORS; v++) {
            const kr_lanes w = weigh(a, a->score + i + v * KR_LANES, m);

            lanes_store(a->score + i + v * KR_LANES, w);
            chain[v] = lanes_add(chain[v], w);
        }
    for (uint32_t v = 0; v < VECTORS; v++) {
        const kr_lanes w = weigh(a, rest + v * KR_LANES, m);

        lanes_store(rest + v * KR_LANES, w);
        chain[v] = lanes_add(chain[v], w);
    }
    return lanes_sum16(chain);
}

void KR_SOFTMAX_NAME(const kr_softmax_args *a)
{
    const uint64_t whole = a->n / CHAINS * CHAINS;
    float rest[CHAINS];

    load_rest(a, whole, rest);
    const float total = weigh_all(a, whole, largest(a, whole, rest), rest);
    const float inverse = total == 0.0f ? 0.0f : 1.0f / total;

    for (uint64_t i = 0; i < whole; i += KR_LANES) {
        const kr_lanes share = lanes_mul(lanes_load(a->score + i), lanes_set(inverse));

        lanes_store(a->out + i, a->add ? lanes_add(lanes_load(a->out + i), share) : share);
    }
    for (uint64_t i = whole; i < a->n; i++) {
        const float share = rest[i - whole] * inverse;

        a->score[i] = rest[i - whole];
        a->out[i] = a->add ? a->out[i] + share : share;
    }
}
