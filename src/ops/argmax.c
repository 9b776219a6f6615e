/* The definition of argmax. Read, never tuned: the variants answer to it. */
#include "ops/argmax.h"

#include <math.h>

#include "ops/variants.h"

uint64_t kr_argmax_scalar(const float *score, uint64_t n)
{
    float largest = -INFINITY;
    uint64_t at = 0;

    for (uint64_t i = 0; i < n; i++)
        if (score[i] > largest) {
            largest = score[i];
            at = i;
        }
    return at;
}
