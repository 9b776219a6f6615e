/* The order in which a call of quant_dot visits tiles, shared by its variants: blocks of rows whose
 * activations stay in a core's cache, in them panels, in them groups of up to 8 rows. The order
 * has no influence on a result. An including file supplies the tile function. */
#ifndef KR_OPS_QUANT_DOT_WALK_H
#define KR_OPS_QUANT_DOT_WALK_H

#include "ops/quant_dot.h"

enum { KR_DOT_ROWS = 8, KR_DOT_CACHE_BYTES = 256 * 1024 };

/* One panel times rows [row, row + rows), rows in {1, 2, 4, 8}; writes sum[rows][16]. */
typedef void (*kr_quant_tile_fn)(const kr_quant_dot_args *args, const uint8_t *panel, uint32_t row,
                                 uint32_t rows, float *sum);

static inline uint32_t kr_dot_tile_rows(uint32_t left)
{
    return left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

static inline void kr_quant_dot_walk(const kr_quant_dot_args *a, kr_quant_tile_fn tile)
{
    const uint64_t bytes = kr_panel_bytes(a->type, a->columns);
    const uint32_t fit = KR_DOT_CACHE_BYTES / a->columns;
    const uint32_t block = fit <= KR_DOT_ROWS ? KR_DOT_ROWS : fit;

    for (uint32_t from = 0; from < a->rows; from += block) {
        const uint32_t to = a->rows - from < block ? a->rows : from + block;
        for (uint32_t p = a->first_panel; p < a->first_panel + a->panels_count; p++) {
            const uint32_t first = p * KR_PANEL_OUTPUTS;
            const uint32_t outputs = a->outputs - first < KR_PANEL_OUTPUTS ? a->outputs - first
                                                                           : KR_PANEL_OUTPUTS;
            for (uint32_t row = from, rows; row < to; row += rows) {
                _Alignas(64) float sum[KR_DOT_ROWS * KR_PANEL_OUTPUTS];
                rows = kr_dot_tile_rows(to - row);
                tile(a, a->panels + p * bytes, row, rows, sum);
                for (uint32_t r = 0; r < rows; r++) {
                    float *out = a->out + (row + r) * a->out_stride + first;
                    for (uint32_t o = 0; o < outputs; o++)
                        out[o] = sum[r * KR_PANEL_OUTPUTS + o];
                }
            }
        }
    }
}

#endif
