/* Philox-4x32-10: counter = (index, stream), key = seed, low word first; the first two of the
 * four output words are the draw.
 *
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11. */
#include "base/rng.h"

#include <math.h>

#include "base/check.h"

enum { ROUNDS = 10 };
static const uint32_t multiplier[2] = {0xd2511f53u, 0xcd9e8d57u};
static const uint32_t weyl[2] = {0x9e3779b9u, 0xbb67ae85u};

uint64_t kr_rng_at(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t c[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)multiplier[0] * c[0];
        const uint64_t p1 = (uint64_t)multiplier[1] * c[2];

        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ key[0];
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ key[1];
        c[3] = (uint32_t)p0;
        key[0] += weyl[0];
        key[1] += weyl[1];
    }
    return (uint64_t)c[1] << 32 | c[0];
}

uint64_t kr_rng_below(kr_rng *rng, uint64_t bound)
{
    KR_CHECK(bound > 0);

    /* The high half of draw * bound is the result; low halves under 2^64 mod bound would make
     * some results likelier than others and are drawn again. */
    const uint64_t excess = -bound % bound;
    for (;;) {
        const unsigned __int128 product = (unsigned __int128)kr_rng_next(rng) * bound;
        if ((uint64_t)product >= excess)
            return (uint64_t)(product >> 64);
    }
}

double kr_rng_unit(kr_rng *rng) { return (double)(kr_rng_next(rng) >> 11) * 0x1p-53; }

double kr_rng_normal(kr_rng *rng)
{
    const double radius = sqrt(-2.0 * log(1.0 - kr_rng_unit(rng))); /* 1 - u is never 0 */
    const double pi = 3.14159265358979323846;

    return radius * cos(2.0 * pi * kr_rng_unit(rng));
}
