/* Placement of routed experts on expert-parallel ranks: in order of number, or balanced with one
 * redundant expert a rank (EPLB: replicate the most loaded, pack the largest first). */
#include "sim/route.h"

#include <math.h>
#include <stddef.h>

#include "base/check.h"
#include "base/num.h"

enum { REPLICAS_MAX = 2 * KR_EXPERTS_MAX };

/* One copy of an expert. */
typedef struct {
    double share;
    uint32_t expert;
} replica;

typedef struct {
    double load[KR_EXPERTS_MAX];
    uint32_t used[KR_EXPERTS_MAX];
    uint16_t rank_of[REPLICAS_MAX];
} packing;

uint32_t kr_route_slots(const kr_moe *moe, uint32_t ranks, bool balanced)
{
    return (uint32_t)kr_ceil_div(moe->experts, ranks) + balanced;
}

static kr_status check(const kr_moe *moe, const double *share, uint32_t ranks, kr_err *err)
{
    double sum = 0.0;

    if (ranks == 0 || ranks > moe->experts)
        return kr_fail(err, KR_E_ARG, "sim: %u ranks for %u experts", ranks, moe->experts);
    for (uint32_t i = 0; i < moe->experts; i++) {
        if (!(share[i] >= 0.0 && share[i] <= 1.0))
            return kr_fail(err, KR_E_ARG, "sim: expert %u has share %g, must be 0 to 1", i, share[i]);
        sum += share[i];
    }
    if (fabs(sum - 1.0) > 1e-6)
        return kr_fail(err, KR_E_ARG, "sim: the experts' shares sum to %g, must be 1", sum);
    return KR_OK;
}

/* Gives one more replica to the expert whose replicas are most loaded, as often as there are ranks. */
static uint32_t replicate(const kr_moe *moe, const double *share, uint32_t extra, replica *out)
{
    uint32_t copies[KR_EXPERTS_MAX], n = 0;

    KR_CHECK(moe->experts > 0);
    for (uint32_t i = 0; i < moe->experts; i++)
        copies[i] = 1;
    for (; extra > 0; extra--) {
        uint32_t best = 0;

        for (uint32_t i = 1; i < moe->experts; i++)
            if (share[i] / copies[i] > share[best] / copies[best])
                best = i;
        copies[best]++;
    }
    for (uint32_t i = 0; i < moe->experts; i++)
        for (uint32_t c = 0; c < copies[i]; c++)
            out[n++] = (replica){.share = share[i] / copies[i], .expert = i};
    return n;
}

/* Largest share first; equal shares keep the order of experts. */
static void sort(replica *r, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        const replica moved = r[i];
        uint32_t j = i;

        for (; j > 0 && r[j - 1].share < moved.share; j--)
            r[j] = r[j - 1];
        r[j] = moved;
    }
}

static void pack(const replica *r, uint32_t n, uint32_t ranks, uint32_t slots, packing *p)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t best = UINT32_MAX;

        for (uint32_t k = 0; k < ranks; k++)
            if (p->used[k] < slots && (best == UINT32_MAX || p->load[k] < p->load[best]))
                best = k;
        p->rank_of[i] = (uint16_t)best;
        p->load[best] += r[i].share;
        p->used[best]++;
    }
}

kr_status kr_route_slowest(const kr_moe *moe, const double *share, uint32_t ranks, bool balanced,
                           double *slowest, kr_err *err)
{
    const uint32_t slots = kr_route_slots(moe, ranks, balanced);
    replica r[REPLICAS_MAX];
    packing p = {0};
    uint32_t n, worst = 0, used = 0;
    const kr_status status = check(moe, share, ranks, err);

    if (status != KR_OK)
        return status;
    n = replicate(moe, share, balanced ? ranks : 0, r);
    if (balanced) {
        sort(r, n);
        pack(r, n, ranks, slots, &p);
    }
    for (uint32_t i = 0; i < n && !balanced; i++) {
        p.rank_of[i] = (uint16_t)(i / slots);
        p.load[i / slots] += r[i].share;
    }
    for (uint32_t k = 1; k < ranks; k++)
        if (p.load[k] > p.load[worst])
            worst = k;
    for (uint32_t i = 0; i < n; i++)
        if (p.rank_of[i] == worst)
            slowest[used++] = r[i].share;
    while (used < slots)
        slowest[used++] = 0.0;
    return KR_OK;
}
