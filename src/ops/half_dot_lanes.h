/* Body of the vector variants of half_dot: lane = output. Four vectors of outputs at a time, each
 * weight widened once for as many rows as the registers hold. Included once per ISA after its lanes
 * header, with KR_HALF_DOT_NAME the function to define. */
#include "base/check.h"
#include "ops/half_dot_variants.h"
#include "ops/lanes_load.h"

enum { VECTORS = 4, OUTPUTS = VECTORS * KR_LANES, ROWS_MAX = KR_LANES_REGISTERS / 8 };

/* Outputs [first, first + OUTPUTS) of a panel times rows. */
KR_INLINE void part_of(kr_dtype type, uint32_t rows, const kr_half_dot_args *a, const uint16_t *panel,
                       uint32_t row, uint32_t first, float *out)
{
    const float *x = a->x + (uint64_t)row * a->columns;
    kr_lanes sum[ROWS_MAX][VECTORS];

    KR_UNROLL for (uint32_t r = 0; r < rows; r++) KR_UNROLL for (uint32_t v = 0; v < VECTORS; v++)
        sum[r][v] = lanes_set(0.0f);
    for (uint64_t c = 0; c < a->columns; c++) {
        kr_lanes w[VECTORS];
        KR_UNROLL for (uint32_t v = 0; v < VECTORS; v++)
            w[v] = lanes_load_as(type, panel, c * KR_HALF_OUTPUTS + first + v * KR_LANES);
        KR_UNROLL for (uint32_t r = 0; r < rows; r++) KR_UNROLL for (uint32_t v = 0; v < VECTORS; v++)
            sum[r][v] = lanes_fma(lanes_set(x[r * a->columns + c]), w[v], sum[r][v]);
    }
    KR_UNROLL for (uint32_t r = 0; r < rows; r++) KR_UNROLL for (uint32_t v = 0; v < VECTORS; v++)
        lanes_store(out + r * KR_HALF_OUTPUTS + first + v * KR_LANES, sum[r][v]);
}

KR_INLINE void tile_of(kr_dtype type, const kr_half_dot_args *a, const uint16_t *panel, uint32_t row,
                       uint32_t rows, float *out)
{
    for (uint32_t first = 0; first < KR_HALF_OUTPUTS; first += OUTPUTS)
        for (uint32_t r = 0, count; r < rows; r += count) {
            float *to = out + r * KR_HALF_OUTPUTS;
            count = rows - r >= ROWS_MAX ? ROWS_MAX : rows - r >= 2 ? 2 : 1;
            if (count == ROWS_MAX)
                part_of(type, ROWS_MAX, a, panel, row + r, first, to);
            else if (count == 2)
                part_of(type, 2, a, panel, row + r, first, to);
            else
                part_of(type, 1, a, panel, row + r, first, to);
        }
}

static void tile_f16(const kr_half_dot_args *a, const uint16_t *panel, uint32_t row, uint32_t rows,
                     float *out)
{
    tile_of(KR_F16, a, panel, row, rows, out);
}

static void tile_bf16(const kr_half_dot_args *a, const uint16_t *panel, uint32_t row, uint32_t rows,
                      float *out)
{
    tile_of(KR_BF16, a, panel, row, rows, out);
}

void KR_HALF_DOT_NAME(const kr_half_dot_args *args)
{
    KR_CHECK(args->type == KR_F16 || args->type == KR_BF16);
    kr_half_dot_walk(args, args->type == KR_F16 ? tile_f16 : tile_bf16);
}
