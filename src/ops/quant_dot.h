/* Rows of activations times a quantised matrix, straight from its blocks.
 *
 * Activations are rounded to 8 bits per block of 32 columns first (kr_quantise_row in row_ops.h),
 * so products are integers and exact within a block. For row r and output o, over blocks b
 * ascending, with u the unsigned stored number, w = scale*(u - offset) + minimum, and the row's
 * q, scale and scaled_sum as in kr_quant_meta:
 *
 *   n   = sum over the block of (u - offset) * q                         (exact, 32-bit)
 *   acc = fma(w_scale * row_scale, n, acc)                               (F32)
 *   acc = fma(w_minimum, scaled_sum, acc)                                (types with a minimum)
 *
 * Q6_K has two scales a block: its first step is done for each 16 columns in turn. Scales of K
 * types are d * s and -(dmin * t), rounded to F32. Every variant returns the same bits, whatever
 * rows and panels a call covers.
 *
 * Work of one row: 2*outputs*columns integer operations, the panels' bytes read once a call. */
#ifndef KR_OPS_QUANT_DOT_H
#define KR_OPS_QUANT_DOT_H

#include "ops/quant_panel.h"

/* Scale and sums of 32 activations x ~ scale * q. */
typedef struct {
    float scale;
    float scaled_sum;  /* scale * sum, rounded to F32 */
    int32_t sum;       /* of the 32 numbers q */
    int32_t sum_first; /* of the first 16 */
} kr_quant_meta;

typedef struct {
    kr_weight_type type;
    const uint8_t *panels;              /* the matrix: kr_panel_bytes(type, columns) each */
    uint32_t columns;                   /* a multiple of the type's block */
    uint32_t outputs;                   /* of the matrix; the last panel may be padded */
    uint32_t first_panel, panels_count; /* computed by this call */
    const int8_t *q;                    /* [rows][columns] */
    const kr_quant_meta *meta;          /* [rows][columns / 32] */
    uint32_t rows;
    float *out; /* [rows] rows, out_stride floats apart; column = output number */
    uint64_t out_stride;
} kr_quant_dot_args;

typedef void (*kr_quant_dot_fn)(const kr_quant_dot_args *args);

/* The fastest usable variant, chosen by a timing of some ten microseconds at the first call. */
kr_quant_dot_fn kr_quant_dot_choose(const char **name);

#endif
