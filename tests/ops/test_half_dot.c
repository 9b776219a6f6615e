/* half_dot: every variant returns the scalar's bits whatever rows and panels a call covers, and the
 * scalar is within its rounding bound of the sum in double; F16 and BF16, subnormals and infinities
 * among the weights. */
#include <float.h>
#include <math.h>

#include "base/arena.h"
#include "ops/half_dot_variants.h"
#include "tests/test.h"

enum { ROWS = 11, COLUMNS_MAX = 200, OUTPUTS_MAX = 150, STRIDE = OUTPUTS_MAX + 3 };

static uint16_t matrix[OUTPUTS_MAX * COLUMNS_MAX];
static float x[ROWS * COLUMNS_MAX], want[ROWS * STRIDE], got[ROWS * STRIDE];

static double value_of(kr_dtype type, uint16_t bits)
{
    return (double)(type == KR_F16 ? kr_f32_from_f16(bits) : kr_f32_from_bf16(bits));
}

static void check_bound(kr_dtype type, uint32_t columns, uint32_t outputs)
{
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t o = 0; o < outputs; o++) {
            double sum = 0.0, magnitude = 0.0;
            for (uint32_t c = 0; c < columns; c++) {
                const double term = (double)x[r * columns + c] * value_of(type, matrix[o * columns + c]);
                sum += term;
                magnitude += fabs(term);
            }
            const double error = fabs((double)want[r * STRIDE + o] - sum);
            if (isfinite(magnitude) && !(error <= columns * (double)FLT_EPSILON / 2 * magnitude + 1e-40))
                fail_msg("row %u output %u: off by %g of %g", r, o, error, magnitude);
        }
}

static void compare(const char *name, uint32_t step)
{
    for (uint32_t i = 0; i < ROWS * STRIDE; i++)
        if (kr_f32_bits(got[i]) != kr_f32_bits(want[i]) && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s by %u rows: row %u output %u: %a, scalar %a", name, step, i / STRIDE, i % STRIDE,
                     (double)got[i], (double)want[i]);
}

static void fill(kr_rng *rng, kr_dtype type, uint32_t columns, uint32_t outputs)
{
    for (uint32_t i = 0; i < outputs * columns; i++) {
        const float w = (float)kr_rng_normal(rng);
        matrix[i] = type == KR_F16 ? kr_f16_from_f32(w) : kr_bf16_from_f32(w);
        if (kr_rng_below(rng, 16) == 0)
            matrix[i] = (uint16_t)kr_rng_below(rng, 3) * 0x8001u; /* zero and the smallest subnormals */
    }
    matrix[outputs / 2 * columns] = type == KR_F16 ? 0x7c00 : 0x7f80; /* one infinite output */
    for (uint32_t i = 0; i < ROWS * columns; i++)
        x[i] = (float)kr_rng_normal(rng);
}

static void variants_agree(void **state)
{
    static const uint32_t shape[][2] = {{1, 1}, {64, 64}, {200, 150}, {33, 65}, {96, 31}};
    kr_rng rng = test_rng("variants_agree");
    (void)state;

    for (size_t s = 0; s < 2 * sizeof shape / sizeof shape[0]; s++) {
        const kr_dtype type = s % 2 ? KR_BF16 : KR_F16;
        const uint32_t columns = shape[s / 2][0], outputs = shape[s / 2][1];
        const uint32_t panels = (uint32_t)kr_ceil_div(outputs, KR_HALF_OUTPUTS);
        fill(&rng, type, columns, outputs);
        uint16_t *packed = aligned_alloc(64, panels * kr_half_panel_bytes(columns));
        for (uint32_t p = 0; p < panels; p++)
            kr_half_pack((const uint8_t *)(matrix + p * KR_HALF_OUTPUTS * columns),
                         p + 1 < panels ? KR_HALF_OUTPUTS : outputs - p * KR_HALF_OUTPUTS, columns,
                         packed + p * columns * KR_HALF_OUTPUTS);
        kr_half_dot_args a = {.type = type,
                              .panels = packed,
                              .columns = columns,
                              .outputs = outputs,
                              .panels_count = panels,
                              .x = x,
                              .rows = ROWS,
                              .out = want,
                              .out_stride = STRIDE};
        for (uint32_t i = 0; i < ROWS * STRIDE; i++)
            want[i] = 7.0f;
        kr_half_dot_variants[kr_half_dot_variant_count - 1].run(&a);
        check_bound(type, columns, outputs);
        for (uint32_t v = 0; v < kr_half_dot_variant_count; v++) {
            if (!kr_half_dot_variants[v].usable()) {
                print_message("SKIP %s: not usable here\n", kr_half_dot_variants[v].name);
                continue;
            }
            for (uint32_t step = 1; step <= ROWS; step += 5) {
                for (uint32_t i = 0; i < ROWS * STRIDE; i++)
                    got[i] = 7.0f;
                for (uint32_t row = 0; row < ROWS; row += step)
                    for (a.first_panel = 0; a.first_panel < panels; a.first_panel++) {
                        a.panels_count = 1;
                        a.x = x + row * columns;
                        a.out = got + row * STRIDE;
                        a.rows = ROWS - row < step ? ROWS - row : step;
                        kr_half_dot_variants[v].run(&a);
                    }
                compare(kr_half_dot_variants[v].name, step);
            }
        }
        free(packed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(variants_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
