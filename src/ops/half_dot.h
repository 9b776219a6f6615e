/* Rows of F32 activations times a matrix of F16 or BF16 weights, which stay two bytes in memory.
 *
 *   out[r][o] = sum over columns c ascending of x[r][c] * w[o][c]     (one FMA chain, F32)
 *
 * Weights are widened exactly, so this is the F32 product of the stored values. Panels of 64
 * outputs: [columns][64] of the type, a missing output of the last panel is zero. Every variant
 * returns the same bits, whatever rows and panels a call covers.
 *
 * Work of one row: 2*outputs*columns operations, the panels' bytes read once a call. */
#ifndef KR_OPS_HALF_DOT_H
#define KR_OPS_HALF_DOT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/num.h"

enum { KR_HALF_OUTPUTS = 64 };

typedef struct {
    kr_dtype type;          /* KR_F16 or KR_BF16 */
    const uint16_t *panels; /* the matrix: kr_half_panel_bytes(columns) each */
    uint32_t columns, outputs;
    uint32_t first_panel, panels_count; /* computed by this call */
    const float *x;                     /* [rows][columns] */
    uint32_t rows;
    float *out; /* [rows] rows, out_stride floats apart; column = output number */
    uint64_t out_stride;
} kr_half_dot_args;

typedef void (*kr_half_dot_fn)(const kr_half_dot_args *args);

static inline uint64_t kr_half_panel_bytes(uint64_t columns)
{
    return columns * KR_HALF_OUTPUTS * sizeof(uint16_t);
}

/* Packs matrix rows [outputs][columns] of two-byte weights (outputs <= 64) into a panel. */
void kr_half_pack(const uint8_t *rows, uint32_t outputs, uint64_t columns, uint16_t *panel);

/* The best usable variant and its name (may be NULL). */
kr_half_dot_fn kr_half_dot_choose(const char **name);

#endif
