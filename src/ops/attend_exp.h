/* exp for softmax: one polynomial, the same bits in the scalar definition and in every variant.
 *
 * For x <= 0 (the score minus the maximum). x < -87 gives +0, NaN gives NaN. With n the integer
 * nearest to x * log2(e) and r = x - n * ln 2 in two steps, exp(x) = 2^n * P(r), P the Taylor
 * polynomial of degree 7 by Horner with FMA: its remainder is below 6e-9 for |r| <= 0.35, so the
 * relative error is about one unit in the last place of F32. */
#ifndef KR_OPS_ATTEND_EXP_H
#define KR_OPS_ATTEND_EXP_H

#include <math.h>

#include "base/num.h"

#define KR_EXP_LOWEST -87.0f
#define KR_EXP_LOG2E 0x1.715476p+0f
/* Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low mantissa bits. */
#define KR_EXP_SHIFT 0x1.8p+23f
/* ln 2 = HI + LO; HI has 11 trailing zero bits, so n * HI is exact for |n| < 2^11. */
#define KR_EXP_LN2_HI 0x1.62e000p-1f
#define KR_EXP_LN2_LO 0x1.0bfbe8p-15f
/* 1/7!, 1/6!, ..., 1/2! */
#define KR_EXP_C7 0x1.a01a02p-13f
#define KR_EXP_C6 0x1.6c16c2p-10f
#define KR_EXP_C5 0x1.111112p-7f
#define KR_EXP_C4 0x1.555556p-5f
#define KR_EXP_C3 0x1.555556p-3f
#define KR_EXP_C2 0x1p-1f

static inline float kr_exp_f32(float x)
{
    const float t = fmaf(x, KR_EXP_LOG2E, KR_EXP_SHIFT);
    const float n = t - KR_EXP_SHIFT;
    const float r = fmaf(n, -KR_EXP_LN2_LO, fmaf(n, -KR_EXP_LN2_HI, x));
    float p = fmaf(KR_EXP_C7, r, KR_EXP_C6);

    p = fmaf(p, r, KR_EXP_C5);
    p = fmaf(p, r, KR_EXP_C4);
    p = fmaf(p, r, KR_EXP_C3);
    p = fmaf(p, r, KR_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* The shifted integer's bits, moved to the exponent field, scale by 2^n. */
    const uint32_t scale = (kr_f32_bits(t) + 127u) << 23;
    const float y = p * kr_f32_from_bits(scale);

    return x < KR_EXP_LOWEST ? 0.0f : y;
}

#endif
