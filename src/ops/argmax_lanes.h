/* Body of the vector variants of argmax: the largest, then its first place. Included once per ISA after
 * its lanes header, with KR_ARGMAX_NAME the function to define. */
#include <math.h>

#include "ops/argmax.h"
#include "ops/variants.h"

enum { VECTORS = 4, BLOCK = VECTORS * KR_LANES };

static float largest_of(const float *score, uint64_t n)
{
    kr_lanes most[VECTORS];
    float lane[KR_LANES], largest = -INFINITY;
    uint64_t i = 0;

    for (uint32_t v = 0; v < VECTORS; v++)
        most[v] = lanes_set(-INFINITY);
    for (; i + BLOCK <= n; i += BLOCK)
        for (uint32_t v = 0; v < VECTORS; v++)
            most[v] = lanes_max(lanes_load(score + i + v * KR_LANES), most[v]);
    for (; i < n; i++)
        largest = score[i] > largest ? score[i] : largest;
    lanes_store(lane, lanes_max(lanes_max(most[0], most[1]), lanes_max(most[2], most[3])));
    for (uint32_t l = 0; l < KR_LANES; l++)
        largest = lane[l] > largest ? lane[l] : largest;
    return largest;
}

uint64_t KR_ARGMAX_NAME(const float *score, uint64_t n)
{
    const float largest = largest_of(score, n);
    const kr_lanes wanted = lanes_set(largest);
    uint64_t i = 0;

    if (largest == -INFINITY)
        return 0;
    while (i + KR_LANES <= n && !lanes_any_equal(lanes_load(score + i), wanted))
        i += KR_LANES;
    while (score[i] != largest)
        i++;
    return i;
}
