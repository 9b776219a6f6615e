/* The one order in which 16 partial sums become one: lane j += lane j + 8, then + 4, + 2, + 1. */
#ifndef KR_OPS_FOLD16_H
#define KR_OPS_FOLD16_H

#include <stdint.h>

static inline float kr_fold16(float lane[16])
{
    for (uint32_t half = 8; half > 0; half /= 2)
        for (uint32_t j = 0; j < half; j++)
            lane[j] += lane[j + half];
    return lane[0];
}

#endif
