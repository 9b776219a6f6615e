/* Quantised weights: blocks expand to the values gguf-py gives, bit for bit; every variant of the
 * dot returns the scalar's bits whatever rows and panels a call covers, also on extreme scales;
 * and the scalar is within its rounding bound of the same sum in double. */
#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "base/arena.h"
#include "base/num.h"
#include "ops/quant_dot_variants.h"
#include "ops/row_ops.h"
#include "tests/test.h"

#define KR_TYPE_ENTRY(type) type,
static const kr_weight_type types[] = {KR_QUANTISED_LIST(KR_TYPE_ENTRY)};
enum { TYPES = sizeof types / sizeof types[0], ROWS = 13, COLUMNS_MAX = 1536, OUTPUTS_MAX = 40 };

static bool same_float(float a, float b)
{
    return kr_f32_bits(a) == kr_f32_bits(b) || (isnan(a) && isnan(b));
}

static void expands_as_gguf_py(void **state)
{
    (void)state;
    for (int t = 0; t < TYPES; t++) {
        const kr_weight_type_info *info = kr_weight_type_of(types[t]);
        char path[64];
        uint32_t head[2];
        snprintf(path, sizeof path, "tests/fixtures/quant/%s.bin", info->name);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        assert_int_equal(fread(head, sizeof head, 1, f), 1);
        assert_int_equal(head[1], kr_weight_row_bytes(types[t], head[0]));
        uint8_t *blocks = kr_alloc(head[1]);
        float *want = kr_alloc(head[0] * sizeof *want), *got = kr_alloc(head[0] * sizeof *got);
        assert_int_equal(fread(blocks, 1, head[1], f), head[1]);
        assert_int_equal(fread(want, sizeof *want, head[0], f), head[0]);
        fclose(f);

        kr_dequantise(types[t], blocks, got, head[0]);
        for (uint32_t i = 0; i < head[0]; i++)
            if (!same_float(got[i], want[i]))
                fail_msg("%s weight %u: %a, gguf-py has %a", info->name, i, (double)got[i], (double)want[i]);
        kr_free(blocks);
        kr_free(want);
        kr_free(got);
    }
}

/* A matrix, its panels and rows of activations. */
typedef struct {
    kr_weight_type type;
    uint32_t columns, outputs;
    uint64_t row_bytes;
    uint8_t *matrix, *panels;
    int8_t *q;
    kr_quant_meta *meta;
} problem;

/* Places of the F16 scales inside a block. */
static void set_scale(kr_weight_type type, uint8_t *block, int which, uint16_t half)
{
    const uint32_t at = type == KR_W_Q6_K ? 208 : 2 * (uint32_t)which;
    if (which == 0 || kr_quant_has_minimum(type))
        memcpy(block + at, &half, sizeof half);
}

static uint16_t draw_scale(kr_rng *rng, bool extreme)
{
    static const uint16_t special[] = {0, 0x8000, 1, 0x83ff, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00};
    if (extreme && kr_rng_below(rng, 2) == 0)
        return special[kr_rng_below(rng, sizeof special / sizeof special[0])];
    return kr_f16_from_f32((float)kr_rng_normal(rng) * 0.02f);
}

static void make_problem(problem *p, kr_rng *rng, kr_weight_type type, uint32_t columns, uint32_t outputs,
                         bool extreme)
{
    const kr_weight_type_info *info = kr_weight_type_of(type);
    const uint32_t panels = (uint32_t)kr_ceil_div(outputs, KR_PANEL_OUTPUTS);

    *p = (problem){.type = type,
                   .columns = columns,
                   .outputs = outputs,
                   .row_bytes = kr_weight_row_bytes(type, columns)};
    p->matrix = kr_alloc(p->row_bytes * outputs);
    p->panels = kr_alloc(panels * kr_panel_bytes(type, columns));
    p->q = kr_alloc((size_t)ROWS * columns);
    p->meta = kr_alloc((size_t)ROWS * columns / KR_QUANT_BLOCK * sizeof *p->meta);

    for (uint64_t i = 0; i < p->row_bytes * outputs; i++)
        p->matrix[i] = (uint8_t)(kr_rng_below(rng, 4) == 0 ? 0xff * kr_rng_below(rng, 2)
                                                           : kr_rng_below(rng, 256));
    for (uint64_t i = 0; i < p->row_bytes * outputs; i += info->block_bytes) {
        set_scale(type, p->matrix + i, 0, draw_scale(rng, extreme));
        set_scale(type, p->matrix + i, 1, draw_scale(rng, extreme));
    }
    for (uint32_t k = 0; k < panels; k++) {
        const uint32_t left = outputs - k * KR_PANEL_OUTPUTS;
        kr_panel_pack(type, p->matrix + k * KR_PANEL_OUTPUTS * p->row_bytes, p->row_bytes,
                      left < KR_PANEL_OUTPUTS ? left : KR_PANEL_OUTPUTS, columns,
                      p->panels + k * kr_panel_bytes(type, columns));
    }
    for (uint32_t r = 0; r < ROWS; r++) {
        float x[COLUMNS_MAX];
        for (uint32_t c = 0; c < columns; c++) {
            /* Rows 0 and 1: every number at an end of its range, the largest integer sums. */
            const float big = r == 0 ? 1.0f : kr_rng_below(rng, 2) ? 1.0f : -1.0f;
            x[c] = r < 2 ? big : (float)kr_rng_normal(rng);
        }
        kr_row_ops_choose()->quantise(x, columns, p->q + (size_t)r * columns,
                                      p->meta + (size_t)r * columns / KR_QUANT_BLOCK);
    }
}

static void drop_problem(problem *p)
{
    kr_free(p->matrix);
    kr_free(p->panels);
    kr_free(p->q);
    kr_free(p->meta);
}

static kr_quant_dot_args args_of(const problem *p, uint32_t row, uint32_t rows, float *out)
{
    return (kr_quant_dot_args){
        .type = p->type,
        .panels = p->panels,
        .columns = p->columns,
        .outputs = p->outputs,
        .panels_count = (uint32_t)kr_ceil_div(p->outputs, KR_PANEL_OUTPUTS),
        .q = p->q + (size_t)row * p->columns,
        .meta = p->meta + (size_t)row * p->columns / KR_QUANT_BLOCK,
        .rows = rows,
        .out = out,
        .out_stride = OUTPUTS_MAX + 1,
    };
}

enum { OUT = ROWS * (OUTPUTS_MAX + 1) };

static void compare(const problem *p, const float *want, const float *got, const char *what)
{
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t o = 0; o < OUTPUTS_MAX + 1; o++) {
            const uint32_t at = r * (OUTPUTS_MAX + 1) + o;
            if (!same_float(want[at], got[at]))
                fail_msg("%s %s, %u columns, row %u output %u of %u: %a, scalar %a",
                         kr_weight_type_of(p->type)->name, what, p->columns, r, o, p->outputs,
                         (double)got[at], (double)want[at]);
        }
}

/* Rows together, in twos and one by one; panels together and one by one; nothing past outputs. */
static void variant_agrees(const problem *p, const kr_quant_dot_variant *v, const float *want)
{
    for (uint32_t step = 1; step <= ROWS; step = step == 1 ? 2 : step == 2 ? ROWS : ROWS + 1) {
        float got[OUT];
        for (int i = 0; i < OUT; i++)
            got[i] = 7.0f;
        for (uint32_t row = 0; row < ROWS; row += step) {
            const uint32_t rows = ROWS - row < step ? ROWS - row : step;
            kr_quant_dot_args a = args_of(p, row, rows, got + row * (OUTPUTS_MAX + 1));
            if (step == 2) {
                const uint32_t all = a.panels_count;
                a.panels_count = 1;
                for (a.first_panel = 0; a.first_panel < all; a.first_panel++)
                    v->run(&a);
            } else {
                v->run(&a);
            }
        }
        compare(p, want, got, v->name);
    }
}

static void within_bound_of_double(const problem *p, const float *got)
{
    const uint32_t blocks = p->columns / KR_QUANT_BLOCK;

    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t o = 0; o < p->outputs; o++) {
            double sum = 0.0, magnitude = 0.0;
            for (uint32_t b = 0; b < blocks; b++) {
                const kr_quant_meta *m = &p->meta[(size_t)r * blocks + b];
                kr_quant_block block;
                kr_quant_block_read(p->type, p->matrix + o * p->row_bytes, b, &block);
                const double d = (double)kr_f32_from_f16(block.d), dm = (double)kr_f32_from_f16(block.m);
                for (uint32_t c = 0; c < KR_QUANT_BLOCK; c++) {
                    const double x = (double)m->scale * p->q[(size_t)r * p->columns + b * KR_QUANT_BLOCK + c];
                    double scale = d, minimum = 0.0;
                    if (p->type == KR_W_Q6_K)
                        scale = d * (int8_t)block.part[c / 16];
                    else if (kr_quant_has_parts(p->type))
                        scale = d * block.part[0], minimum = -dm * block.part[1];
                    else if (kr_quant_has_minimum(p->type))
                        minimum = dm;
                    const double w = scale * (block.q[c] - kr_quant_offset(p->type)), plus = minimum * x;
                    sum += w * x + plus;
                    magnitude += fabs(w * x) + fabs(plus);
                }
            }
            /* At most 2 fused steps a block, each rounding a partial sum no larger than the sum of
             * magnitudes, and 3 roundings in the factors of each term. */
            const double bound = (2.0 * blocks + 3.0) * (double)FLT_EPSILON / 2 * magnitude + 1e-30;
            const double error = fabs((double)got[r * (OUTPUTS_MAX + 1) + o] - sum);
            if (!(error <= bound))
                fail_msg("%s row %u output %u: off by %g, bound %g", kr_weight_type_of(p->type)->name, r, o,
                         error, bound);
        }
}

static void dots_agree(void **state)
{
    static const uint32_t shape[][2] = {{256, 1}, {512, 40}, {1536, 33}, {32, 16}, {576, 40}};
    kr_rng rng = test_rng("dots_agree");
    (void)state;

    for (int t = 0; t < TYPES; t++)
        for (size_t s = 0; s < sizeof shape / sizeof shape[0]; s++)
            for (int extreme = 0; extreme < 2; extreme++) {
                problem p;
                float want[OUT];
                if (shape[s][0] % kr_weight_type_of(types[t])->block_elements != 0)
                    continue;
                make_problem(&p, &rng, types[t], shape[s][0], shape[s][1], extreme);
                for (int i = 0; i < OUT; i++)
                    want[i] = 7.0f;
                kr_quant_dot_args a = args_of(&p, 0, ROWS, want);
                kr_quant_dot_variants[kr_quant_dot_variant_count - 1].run(&a);
                if (!extreme)
                    within_bound_of_double(&p, want);
                for (uint32_t v = 0; v < kr_quant_dot_variant_count; v++) {
                    if (kr_quant_dot_variants[v].usable())
                        variant_agrees(&p, &kr_quant_dot_variants[v], want);
                    else if (t == 0 && s == 0)
                        print_message("SKIP %s: not usable here\n", kr_quant_dot_variants[v].name);
                }
                drop_problem(&p);
            }
}

static void chooser_names_a_usable_variant(void **state)
{
    const char *name = NULL;
    const kr_quant_dot_fn run = kr_quant_dot_choose(&name);
    (void)state;

    for (uint32_t v = 0; v < kr_quant_dot_variant_count; v++)
        if (kr_quant_dot_variants[v].run == run) {
            assert_true(kr_quant_dot_variants[v].usable());
            assert_string_equal(kr_quant_dot_variants[v].name, name);
            assert_ptr_equal(kr_quant_dot_choose(NULL), run);
            return;
        }
    fail_msg("the chosen function is not in the list");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expands_as_gguf_py),
        cmocka_unit_test(dots_agree),
        cmocka_unit_test(chooser_names_a_usable_variant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
