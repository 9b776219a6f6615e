/* How the variants of select share out their scratch. */
#ifndef KR_OPS_SELECT_SCRATCH_H
#define KR_OPS_SELECT_SCRATCH_H

#include <stdint.h>

enum {
    KR_SELECT_BINS = 2048,   /* scalar: one histogram of 11 key bits */
    KR_SELECT_SAMPLE = 1024, /* vector: scores sampled to guess the threshold; each may cost a cache miss */
};

/* Vector: candidates kept above a guessed threshold. The guess aims at k plus a few standard
 * deviations of the sampling error, far below this; more means that the guess was bad. */
static inline uint64_t kr_select_capacity(uint64_t n, uint32_t k)
{
    const uint64_t most = 4 * (uint64_t)k + n / 16 + 4096;
    return (n < most ? n : most) + 512; /* room is looked at once in so many scores */
}

#endif
