/* The only random numbers: counter-based, keyed by (seed, stream), so that any draw can be
 * computed without the draws before it and streams never influence each other.
 *
 * Philox-4x32-10 (Salmon et al., SC'11). The same (seed, stream, index) gives the same bits on
 * every machine and thread count. */
#ifndef KR_BASE_RNG_H
#define KR_BASE_RNG_H

#include <stdint.h>

typedef struct {
    uint64_t seed, stream, index; /* index of the next 64-bit draw */
} kr_rng;

static inline kr_rng kr_rng_make(uint64_t seed, uint64_t stream) { return (kr_rng){seed, stream, 0}; }

/* The index-th 64-bit draw of a stream. */
uint64_t kr_rng_at(uint64_t seed, uint64_t stream, uint64_t index);
static inline uint64_t kr_rng_next(kr_rng *rng) { return kr_rng_at(rng->seed, rng->stream, rng->index++); }
/* Uniform in [0, bound), bound > 0, without modulo bias (rejection). */
uint64_t kr_rng_below(kr_rng *rng, uint64_t bound);
/* Uniform in [0, 1) with 53 bits; standard normal (Box-Muller, one value a call). */
double kr_rng_unit(kr_rng *rng);
double kr_rng_normal(kr_rng *rng);

#endif
