/* The definition of half_dot, its packing and its chooser. */
#include "ops/half_dot.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/num.h"
#include "ops/cpu.h"
#include "ops/half_dot_variants.h"

void kr_half_pack(const uint8_t *rows, uint32_t outputs, uint64_t columns, uint16_t *panel)
{
    KR_CHECK(outputs <= KR_HALF_OUTPUTS);
    memset(panel, 0, kr_half_panel_bytes(columns));
    for (uint32_t o = 0; o < outputs; o++)
        for (uint64_t c = 0; c < columns; c++)
            memcpy(&panel[c * KR_HALF_OUTPUTS + o], rows + (o * columns + c) * sizeof *panel, sizeof *panel);
}

static void tile_scalar(const kr_half_dot_args *a, const uint16_t *panel, uint32_t row, uint32_t rows,
                        float *sum)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t o = 0; o < KR_HALF_OUTPUTS; o++) {
            const float *x = a->x + (uint64_t)(row + r) * a->columns;
            float s = 0.0f;
            for (uint64_t c = 0; c < a->columns; c++) {
                const uint16_t w = panel[c * KR_HALF_OUTPUTS + o];
                s = fmaf(x[c], a->type == KR_F16 ? kr_f32_from_f16(w) : kr_f32_from_bf16(w), s);
            }
            sum[r * KR_HALF_OUTPUTS + o] = s;
        }
}

static void half_dot_scalar(const kr_half_dot_args *args)
{
    KR_CHECK(args->type == KR_F16 || args->type == KR_BF16);
    kr_half_dot_walk(args, tile_scalar);
}

const kr_half_dot_variant kr_half_dot_variants[] = {
#if defined(__x86_64__)
    {"avx512", kr_cpu_avx512, kr_half_dot_avx512},
    {"avx2", kr_cpu_avx2, kr_half_dot_avx2},
#endif
    {"scalar", kr_cpu_always, half_dot_scalar},
};
const uint32_t kr_half_dot_variant_count = sizeof kr_half_dot_variants / sizeof kr_half_dot_variants[0];

kr_half_dot_fn kr_half_dot_choose(const char **name)
{
    uint32_t i = 0;

    while (i + 1 < kr_half_dot_variant_count && !kr_half_dot_variants[i].usable())
        i++;
    if (name != NULL)
        *name = kr_half_dot_variants[i].name;
    return kr_half_dot_variants[i].run;
}
