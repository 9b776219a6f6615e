/* kr_exp_f32 on vectors, bit for bit. Included after an ISA's lanes header. */
#ifndef KR_OPS_LANES_EXP_H
#define KR_OPS_LANES_EXP_H

#include "ops/attend_exp.h"

static inline kr_lanes lanes_exp(kr_lanes x)
{
    const kr_lanes shift = lanes_set(KR_EXP_SHIFT), one = lanes_set(1.0f);
    const kr_lanes t = lanes_fma(x, lanes_set(KR_EXP_LOG2E), shift);
    const kr_lanes n = lanes_sub(t, shift);
    const kr_lanes r = lanes_fma(n, lanes_set(-KR_EXP_LN2_LO), lanes_fma(n, lanes_set(-KR_EXP_LN2_HI), x));
    kr_lanes p = lanes_fma(lanes_set(KR_EXP_C7), r, lanes_set(KR_EXP_C6));

    p = lanes_fma(p, r, lanes_set(KR_EXP_C5));
    p = lanes_fma(p, r, lanes_set(KR_EXP_C4));
    p = lanes_fma(p, r, lanes_set(KR_EXP_C3));
    p = lanes_fma(p, r, lanes_set(KR_EXP_C2));
    p = lanes_fma(p, r, one);
    p = lanes_fma(p, r, one);
    return lanes_zero_below(x, lanes_set(KR_EXP_LOWEST), lanes_mul(p, lanes_scale_of(t)));
}

#endif
