/* Implementations of half_dot.h, best first, and the walk over tiles they share. */
#ifndef KR_OPS_HALF_DOT_VARIANTS_H
#define KR_OPS_HALF_DOT_VARIANTS_H

#include "ops/half_dot.h"

typedef struct {
    const char *name;
    bool (*usable)(void);
    kr_half_dot_fn run;
} kr_half_dot_variant;

extern const kr_half_dot_variant kr_half_dot_variants[];
extern const uint32_t kr_half_dot_variant_count; /* the last one is scalar */

#if defined(__x86_64__)
void kr_half_dot_avx2(const kr_half_dot_args *args);
void kr_half_dot_avx512(const kr_half_dot_args *args);
#endif

enum { KR_HALF_ROWS = 4 };

/* One panel times rows [row, row + rows), rows in {1, 2, 4}; writes sum[rows][64]. */
typedef void (*kr_half_tile_fn)(const kr_half_dot_args *args, const uint16_t *panel, uint32_t row,
                                uint32_t rows, float *sum);

/* Panels, in them groups of rows: a panel is read from memory once, its rows come from cache. */
static inline void kr_half_dot_walk(const kr_half_dot_args *a, kr_half_tile_fn tile)
{
    for (uint32_t p = a->first_panel; p < a->first_panel + a->panels_count; p++) {
        const uint32_t first = p * KR_HALF_OUTPUTS, left = a->outputs - first;
        const uint32_t outputs = left < KR_HALF_OUTPUTS ? left : KR_HALF_OUTPUTS;
        const uint16_t *panel = a->panels + (uint64_t)p * a->columns * KR_HALF_OUTPUTS;
        for (uint32_t row = 0, rows; row < a->rows; row += rows) {
            _Alignas(64) float sum[KR_HALF_ROWS * KR_HALF_OUTPUTS];
            rows = a->rows - row >= 4 ? 4 : a->rows - row >= 2 ? 2 : 1;
            tile(a, panel, row, rows, sum);
            for (uint32_t r = 0; r < rows; r++) {
                float *out = a->out + (row + r) * a->out_stride + first;
                for (uint32_t o = 0; o < outputs; o++)
                    out[o] = sum[r * KR_HALF_OUTPUTS + o];
            }
        }
    }
}

#endif
