/* The definition of quant_dot, and its chooser. */
#include "ops/quant_dot.h"

#include <math.h>
#include <stdatomic.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/num.h"
#include "ops/cpu.h"
#include "ops/quant_dot_variants.h"
#include "ops/quant_dot_walk.h"

static uint16_t load_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static int32_t stored_number(kr_weight_type type, const uint8_t *plane, uint32_t output, uint32_t column)
{
    const uint32_t bytes = kr_panel_plane_bytes(type), group = column / 4, at = 4 * output + column % 4;
    const uint8_t *high = plane + 4 * KR_PANEL_VECTOR;

    if (bytes == 8 * KR_PANEL_VECTOR)
        return plane[group * KR_PANEL_VECTOR + at];
    int32_t u = (plane[group % 4 * KR_PANEL_VECTOR + at] >> (group < 4 ? 0 : 4)) & 15;
    if (bytes == 5 * KR_PANEL_VECTOR)
        u |= ((high[at] >> group) & 1) << 4;
    else if (bytes == 6 * KR_PANEL_VECTOR)
        u |= ((high[group / 4 * KR_PANEL_VECTOR + at] >> 2 * (group % 4)) & 3) << 4;
    return u;
}

typedef struct {
    float scale[2]; /* of the first and second 16 columns; equal but for Q6_K */
    float minimum;
} block_scales;

static block_scales read_scales(kr_weight_type type, const uint8_t *panel, uint64_t block, uint32_t output)
{
    const uint8_t *half = panel + kr_panel_scale_offset(type, block) + output * sizeof(uint16_t);
    const float d = kr_f32_from_f16(load_u16(half));
    block_scales s = {{d, d}, 0.0f};

    if (kr_quant_has_minimum(type))
        s.minimum = kr_f32_from_f16(load_u16(half + KR_PANEL_OUTPUTS * sizeof(uint16_t)));
    if (kr_quant_has_parts(type)) {
        const uint8_t *part = panel + kr_panel_part_offset(type, block) + output;
        if (type == KR_W_Q6_K) {
            s.scale[0] = d * (float)(int8_t)part[0];
            s.scale[1] = d * (float)(int8_t)part[KR_PANEL_OUTPUTS];
        } else {
            s.scale[0] = s.scale[1] = d * (float)part[0];
            s.minimum = -(s.minimum * (float)part[KR_PANEL_OUTPUTS]);
        }
    }
    return s;
}

static float dot_output(const kr_quant_dot_args *a, const uint8_t *panel, uint32_t row, uint32_t output)
{
    const kr_weight_type type = a->type;
    const uint64_t blocks = a->columns / KR_QUANT_BLOCK;
    float sum = 0.0f;

    for (uint64_t b = 0; b < blocks; b++) {
        const int8_t *q = a->q + (uint64_t)row * a->columns + b * KR_QUANT_BLOCK;
        const kr_quant_meta *meta = &a->meta[row * blocks + b];
        const block_scales s = read_scales(type, panel, b, output);
        const uint8_t *plane = panel + kr_panel_plane_offset(type, b);
        int32_t n[2] = {0, 0};

        for (uint32_t c = 0; c < KR_QUANT_BLOCK; c++)
            n[c / 16] += (stored_number(type, plane, output, c) - kr_quant_offset(type)) * q[c];
        if (type == KR_W_Q6_K) {
            sum = fmaf(s.scale[0] * meta->scale, (float)n[0], sum);
            sum = fmaf(s.scale[1] * meta->scale, (float)n[1], sum);
        } else {
            sum = fmaf(s.scale[0] * meta->scale, (float)(n[0] + n[1]), sum);
        }
        if (kr_quant_has_minimum(type))
            sum = fmaf(s.minimum, meta->scaled_sum, sum);
    }
    return sum;
}

static void tile_scalar(const kr_quant_dot_args *a, const uint8_t *panel, uint32_t row, uint32_t rows,
                        float *sum)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t o = 0; o < KR_PANEL_OUTPUTS; o++)
            sum[r * KR_PANEL_OUTPUTS + o] = dot_output(a, panel, row + r, o);
}

static void quant_dot_scalar(const kr_quant_dot_args *args)
{
    KR_CHECK(kr_weight_is_quantised(args->type));
    kr_quant_dot_walk(args, tile_scalar);
}

const kr_quant_dot_variant kr_quant_dot_variants[] = {
#if defined(__x86_64__)
    {"avx512", kr_cpu_avx512, kr_quant_dot_avx512},
    {"avx2", kr_cpu_avx2, kr_quant_dot_avx2},
#endif
    {"scalar", kr_cpu_always, quant_dot_scalar},
};
const uint32_t kr_quant_dot_variant_count = sizeof kr_quant_dot_variants / sizeof kr_quant_dot_variants[0];

enum { PROBE_COLUMNS = 256, PROBE_ROWS = 4, PROBE_REPEATS = 20 };

/* Best of a few runs of one Q4_K panel: in cache, so what is timed is the arithmetic. */
static uint64_t probe_ns(kr_quant_dot_fn run)
{
    static const uint8_t panel[PROBE_COLUMNS / 256 * 2368];
    static const int8_t q[PROBE_ROWS * PROBE_COLUMNS];
    static const kr_quant_meta meta[PROBE_ROWS * PROBE_COLUMNS / KR_QUANT_BLOCK];
    float out[PROBE_ROWS * KR_PANEL_OUTPUTS];
    const kr_quant_dot_args args = {
        .type = KR_W_Q4_K,
        .panels = panel,
        .columns = PROBE_COLUMNS,
        .outputs = KR_PANEL_OUTPUTS,
        .panels_count = 1,
        .q = q,
        .meta = meta,
        .rows = PROBE_ROWS,
        .out = out,
        .out_stride = KR_PANEL_OUTPUTS,
    };
    uint64_t best = UINT64_MAX;

    KR_CHECK(kr_panel_bytes(KR_W_Q4_K, PROBE_COLUMNS) == sizeof panel);
    for (int i = 0; i < PROBE_REPEATS; i++) {
        const uint64_t from = kr_now_ns(&kr_clock_system);
        run(&args);
        const uint64_t ns = kr_now_ns(&kr_clock_system) - from;
        best = ns < best ? ns : best;
    }
    return best;
}

kr_quant_dot_fn kr_quant_dot_choose(const char **name)
{
    /* Racing first calls may choose differently and store twice, which is harmless: every
     * variant gives the same bits. */
    static _Atomic(const kr_quant_dot_variant *) chosen;
    const kr_quant_dot_variant *best = atomic_load_explicit(&chosen, memory_order_relaxed);

    if (best == NULL) {
        const kr_quant_dot_variant *last = &kr_quant_dot_variants[kr_quant_dot_variant_count - 1];
        uint64_t best_ns = probe_ns(last->run);
        best = last;
        for (const kr_quant_dot_variant *v = kr_quant_dot_variants; v < last; v++) {
            const uint64_t ns = v->usable() ? probe_ns(v->run) : UINT64_MAX;
            if (ns < best_ns) {
                best = v;
                best_ns = ns;
            }
        }
        atomic_store_explicit(&chosen, best, memory_order_relaxed);
    }
    if (name != NULL)
        *name = best->name;
    return best->run;
}
