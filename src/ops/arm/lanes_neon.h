/* The few vector operations that the bodies in ops/..._lanes.h are written in: 4 lanes of F32. */
#ifndef KR_OPS_ARM_LANES_NEON_H
#define KR_OPS_ARM_LANES_NEON_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>

/* Macros, since bodies choose register tiles with #if. */
#define KR_LANES 4
#define KR_LANES_REGISTERS 32
typedef float32x4_t kr_lanes;

static inline kr_lanes lanes_load(const float *p) { return vld1q_f32(p); }
static inline void lanes_store(float *p, kr_lanes x) { vst1q_f32(p, x); }
static inline kr_lanes lanes_set(float x) { return vdupq_n_f32(x); }
static inline kr_lanes lanes_fma(kr_lanes a, kr_lanes b, kr_lanes c) { return vfmaq_f32(c, a, b); }
static inline kr_lanes lanes_add(kr_lanes a, kr_lanes b) { return vaddq_f32(a, b); }
static inline kr_lanes lanes_sub(kr_lanes a, kr_lanes b) { return vsubq_f32(a, b); }
static inline kr_lanes lanes_mul(kr_lanes a, kr_lanes b) { return vmulq_f32(a, b); }
/* a > b ? a : b, so that a NaN in a never wins. */
static inline kr_lanes lanes_max(kr_lanes a, kr_lanes b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
/* Whether any lane of a equals b's. */
static inline bool lanes_any_equal(kr_lanes a, kr_lanes b) { return vmaxvq_u32(vceqq_f32(a, b)) != 0; }
/* x < limit ? 0 : y, lane by lane; y where x is NaN. */
static inline kr_lanes lanes_zero_below(kr_lanes x, kr_lanes limit, kr_lanes y)
{
    return vbslq_f32(vcltq_f32(x, limit), vdupq_n_f32(0.0f), y);
}
/* 2^n from the bits of a float whose low mantissa bits hold n. */
static inline kr_lanes lanes_scale_of(kr_lanes t)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vaddq_u32(vreinterpretq_u32_f32(t), vdupq_n_u32(127)), 23));
}
static inline kr_lanes lanes_from_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
static inline kr_lanes lanes_from_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

/* 4 E4M3 codes. Exponent and mantissa bits, moved to F32's place, give the value times 2^-120,
 * subnormals included; the product is exact. */
static inline kr_lanes lanes_from_e4m3(const uint8_t *p)
{
    const uint32x4_t b = {p[0], p[1], p[2], p[3]};
    const uint32x4_t low = vandq_u32(b, vdupq_n_u32(0x7f)), sign = vshlq_n_u32(vshrq_n_u32(b, 7), 31);
    const float32x4_t x = vmulq_f32(vreinterpretq_f32_u32(vshlq_n_u32(low, 20)), vdupq_n_f32(0x1p120f));

    return vbslq_f32(vceqq_u32(low, vdupq_n_u32(0x7f)), vdupq_n_f32(__builtin_nanf("")),
                     vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(x), sign)));
}
/* x < 0 ? 0 : x; NaN stays. */
static inline kr_lanes lanes_relu(kr_lanes x)
{
    return vbslq_f32(vcltq_f32(x, vdupq_n_f32(0.0f)), vdupq_n_f32(0.0f), x);
}
/* Sums 16 chains by halves: chain[i] holds chains 4 i to 4 i + 3. */
static inline float lanes_sum16(const kr_lanes *chain)
{
    const float32x4_t four = vaddq_f32(vaddq_f32(chain[0], chain[2]), vaddq_f32(chain[1], chain[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));

    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
/* x[i] lane j becomes x[j] lane i. */
static inline void lanes_transpose(kr_lanes x[4])
{
    const float32x4x2_t a = vzipq_f32(x[0], x[2]), b = vzipq_f32(x[1], x[3]);
    const float32x4x2_t low = vzipq_f32(a.val[0], b.val[0]), high = vzipq_f32(a.val[1], b.val[1]);

    x[0] = low.val[0], x[1] = low.val[1], x[2] = high.val[0], x[3] = high.val[1];
}
/* 4 words of two BF16 each: the low halves and the high halves. */
static inline void lanes_from_bf16_pairs(const uint16_t *p, kr_lanes *low, kr_lanes *high)
{
    const uint32x4_t w = vreinterpretq_u32_u16(vld1q_u16(p));

    *low = vreinterpretq_f32_u32(vshlq_n_u32(w, 16));
    *high = vreinterpretq_f32_u32(vandq_u32(w, vdupq_n_u32(0xffff0000u)));
}
/* x where x is NaN, else y. */
static inline kr_lanes lanes_nan_or(kr_lanes x, kr_lanes y) { return vbslq_f32(vceqq_f32(x, x), y, x); }

#endif
