/* Operations on single rows of activations: norm, rotary embedding, gated activation, rounding to
 * 8 bits and to BF16. No row knows of another, so results can't depend on batch or threads.
 *
 * Written once over vectors of 16 lanes (row_ops_body.h) and compiled for each instruction set;
 * no operation is contracted or reordered, so every variant returns the same bits. Arrays may
 * have any alignment and length; x and y may be the same array, other overlap is not allowed. */
#ifndef KR_OPS_ROW_OPS_H
#define KR_OPS_ROW_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/quant_dot.h"

typedef struct {
    const char *name;
    bool (*usable)(void);

    /* y[i] = x[i] * s * weight[i], s = 1 / sqrt(mean of squares + eps). Squares are summed in F32
     * by i modulo 16, the 16 sums in double. */
    void (*rms_norm)(const float *x, const float *weight, float eps, float *y, uint32_t n);

    /* Rotates x[dims] by a table of kr_rope_table. */
    void (*rope)(float *x, const float *table, uint32_t dims, bool interleaved);

    /* y[i] = silu(gate[i]) * up[i], and gelu_tanh(gate[i]) * up[i]. exp is a polynomial with a
     * relative error below 2e-7; both agree with the formula to 1e-6 relative. */
    void (*silu_mul)(const float *gate, const float *up, float *y, uint32_t n);
    void (*gelu_mul)(const float *gate, const float *up, float *y, uint32_t n);

    /* MiniMax-M3's: y[i] = (u + 1) * g * sigmoid(1.702 g), g = min(gate[i], 7), u = up[i] held in [-7, 7]. */
    void (*swiglu_oai)(const float *gate, const float *up, float *y, uint32_t n);

    /* x[n] -> q[n], meta[n / 32]; n is a multiple of 32. In a block, scale = max |x| / 127 and
     * q = x / scale rounded to nearest even; a block with max |x| below 2^-118 becomes zero and
     * one with an infinity or NaN gets a NaN scale, so that no bad value turns into a good one. */
    void (*quantise)(const float *x, uint32_t n, int8_t *q, kr_quant_meta *meta);

    void (*to_bf16)(const float *x, uint32_t n, uint16_t *y); /* as kr_bf16_from_f32 */
    void (*add)(float *y, const float *x, uint32_t n);        /* y += x */
} kr_row_ops;

extern const kr_row_ops *const kr_row_ops_variants[]; /* best first; the last runs on any CPU */
extern const uint32_t kr_row_ops_variant_count;

/* The first usable variant. */
const kr_row_ops *kr_row_ops_choose(void);

/* Angles of one position: table[0..dims) factors of an element itself, table[dims..2*dims) of its
 * partner, which is element i +- dims/2, or i ^ 1 when interleaved. Angles are position * inv_freq
 * in double, exact enough for any 64-bit position that fits one; factor multiplies both. */
void kr_rope_table(uint64_t position, const float *inv_freq, uint32_t dims, double factor, bool interleaved,
                   float *table);

#endif
