/* Row operations: every variant returns the same bits; values agree with the formulas in double;
 * rounding to 8 bits keeps its promises on zeros, tiny values, infinities and NaN. */
#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "base/num.h"
#include "ops/row_ops.h"
#include "tests/test.h"

enum { N_MAX = 1100 };
static const uint32_t lengths[] = {1, 2, 15, 16, 17, 64, 576, 1099};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static const kr_row_ops *reference(void) { return kr_row_ops_variants[kr_row_ops_variant_count - 1]; }

static const kr_row_ops *usable(uint32_t v)
{
    const kr_row_ops *ops = kr_row_ops_variants[v];
    return ops->usable() ? ops : NULL;
}

static void fill(kr_rng *rng, float *x, uint32_t n, float scale)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)kr_rng_normal(rng) * scale;
}

static void skips(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < kr_row_ops_variant_count; v++)
        if (usable(v) == NULL)
            print_message("SKIP %s: not usable here\n", kr_row_ops_variants[v]->name);
    assert_true(kr_row_ops_choose()->usable());
}

static void norm(void **state)
{
    float x[N_MAX], w[N_MAX], want[N_MAX], got[N_MAX];
    kr_rng rng = test_rng("norm");
    (void)state;

    for (int l = 0; l < LENGTHS; l++) {
        const uint32_t n = lengths[l];
        const float eps = l % 2 ? 1e-5f : 1e-6f;
        double squares = 0.0;
        fill(&rng, x, n, l == 3 ? 1e-4f : 3.0f);
        fill(&rng, w, n, 1.0f);
        reference()->rms_norm(x, w, eps, want, n);
        for (uint32_t i = 0; i < n; i++)
            squares += (double)x[i] * (double)x[i];
        for (uint32_t i = 0; i < n; i++) {
            const double exact = (double)x[i] / sqrt(squares / n + (double)eps) * (double)w[i];
            /* Lane sums of up to n/16 roundings, halved by the root, and 3 products. */
            assert_true(fabs((double)want[i] - exact) <=
                        (n / 32.0 + 4.0) * (double)FLT_EPSILON / 2 * fabs(exact));
        }
        for (uint32_t v = 0; v < kr_row_ops_variant_count; v++) {
            if (usable(v) == NULL)
                continue;
            memcpy(got, x, sizeof got);
            usable(v)->rms_norm(got, w, eps, got, n); /* in place */
            assert_memory_equal(got, want, n * sizeof *got);
        }
    }
}

static double silu(double x) { return x / (1.0 + exp(-x)); }

static double gelu(double x) { return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x))); }

static void gate_agrees(const float *gate, const float *up, uint32_t n, bool is_gelu)
{
    float want[N_MAX], got[N_MAX];

    (is_gelu ? reference()->gelu_mul : reference()->silu_mul)(gate, up, want, n);
    for (uint32_t i = 0; i < n; i++) {
        const double a = is_gelu ? gelu((double)gate[i]) : silu((double)gate[i]);
        const double exact = a * (double)up[i];
        /* tanh form cancels for large negative x: there the formula itself is the error. */
        const double slack = is_gelu && gate[i] < -3.0f ? 1e-14 * fabs((double)gate[i] * (double)up[i])
                                                        : 1e-37;
        const double steep = 1.0 + fabs((double)gate[i]) *
                                       (is_gelu ? 4.0 * (double)gate[i] * (double)gate[i] : 1.0);
        if (!(fabs((double)want[i] - exact) <= 4e-7 * (gate[i] < 0 ? steep : 1.0) * fabs(exact) + slack))
            fail_msg("%s(%g) * %g = %g, exact %g", is_gelu ? "gelu" : "silu", (double)gate[i], (double)up[i],
                     (double)want[i], exact);
    }
    for (uint32_t v = 0; v < kr_row_ops_variant_count; v++) {
        if (usable(v) == NULL)
            continue;
        memcpy(got, gate, sizeof got);
        (is_gelu ? usable(v)->gelu_mul : usable(v)->silu_mul)(got, up, got, n); /* in place */
        assert_memory_equal(got, want, n * sizeof *got);
    }
}

static double clamp(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

/* MiniMax-M3's gate: to 1e-6 of the formula in double, steep ends included, and the same bits everywhere. */
static void swiglu_oai_agrees(const float *gate, const float *up, uint32_t n)
{
    float want[N_MAX], got[N_MAX];

    reference()->swiglu_oai(gate, up, want, n);
    for (uint32_t i = 0; i < n; i++) {
        const double g = clamp((double)gate[i], -INFINITY, 7.0), u = clamp((double)up[i], -7.0, 7.0) + 1.0;
        const double exact = g / (1.0 + exp(-1.702 * g)) * u;
        /* u + 1 in F32 cancels near -1; far below 0 the exponent's own rounding shows. */
        const double slack = (1e-6 * (1.0 + fabs(g)) * fabs(exact)) + 1.2e-7 * fabs(g) + 1e-37;
        if (!(fabs((double)want[i] - exact) <= slack))
            fail_msg("swiglu_oai(%g, %g) = %g, exact %g", (double)gate[i], (double)up[i], (double)want[i],
                     exact);
    }
    for (uint32_t v = 0; v < kr_row_ops_variant_count; v++) {
        if (usable(v) == NULL)
            continue;
        memcpy(got, gate, sizeof got);
        usable(v)->swiglu_oai(got, up, got, n); /* in place */
        assert_memory_equal(got, want, n * sizeof *got);
    }
}

static void clamped_gates(void **state)
{
    float gate[N_MAX] = {0}, up[N_MAX];
    kr_rng rng = test_rng("clamped gates");
    (void)state;

    for (int l = 0; l < LENGTHS; l++) {
        fill(&rng, gate, lengths[l], 5.0f);
        fill(&rng, up, lengths[l], 5.0f);
        gate[0] = 9.0f;
        up[0] = -9.0f;
        swiglu_oai_agrees(gate, up, lengths[l]);
    }
}

static void gates(void **state)
{
    float gate[N_MAX] = {0}, up[N_MAX];
    kr_rng rng = test_rng("gates");
    (void)state;

    for (int l = 0; l < LENGTHS; l++) {
        fill(&rng, gate, lengths[l], l == 5 ? 30.0f : 2.0f);
        fill(&rng, up, lengths[l], 1.0f);
        gate[0] = 0.0f;
        gate_agrees(gate, up, lengths[l], false);
        for (uint32_t i = 0; i < lengths[l]; i++)
            gate[i] = gate[i] < -5.0f ? -5.0f : gate[i];
        gate_agrees(gate, up, lengths[l], true);
    }

    const float ends[] = {-3e38f, -1000.0f, 1000.0f, 3e37f, INFINITY, NAN}, ones[] = {1, 1, 1, 1, 1, 1};
    float y[6];
    reference()->silu_mul(ends, ones, y, 6);
    assert_true(fabsf(y[0]) < 4.0f && fabsf(y[1]) < 1e-30f); /* exp is held at e^88 */
    assert_true(y[2] == 1000.0f && y[3] == 3e37f && isinf(y[4]) && isnan(y[5]));
    reference()->gelu_mul(ends + 1, ones, y, 2);
    assert_true(fabsf(y[0]) < 1e-30f && y[1] == 1000.0f);
}

static void rope(void **state)
{
    static const uint32_t dims[] = {2, 16, 32, 64, 128, 80};
    static const uint64_t position[] = {0, 1, 77, 8191, 1000000};
    float x[128], y[128], got[128], table[256], inv_freq[64];
    kr_rng rng = test_rng("rope");
    (void)state;

    for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++)
        for (size_t p = 0; p < sizeof position / sizeof position[0]; p++)
            for (int interleaved = 0; interleaved < 2; interleaved++) {
                const uint32_t n = dims[d];
                for (uint32_t i = 0; i < n / 2; i++)
                    inv_freq[i] = (float)pow(1e4, -2.0 * i / n);
                fill(&rng, x, n, 1.0f);
                kr_rope_table(position[p], inv_freq, n, 1.25, interleaved, table);
                memcpy(y, x, sizeof y);
                reference()->rope(y, table, n, interleaved);
                for (uint32_t i = 0; i < n / 2; i++) {
                    const uint32_t a = interleaved ? 2 * i : i, b = interleaved ? a + 1 : i + n / 2;
                    const double angle = (double)position[p] * (double)inv_freq[i];
                    const double re = 1.25 * ((double)x[a] * cos(angle) - (double)x[b] * sin(angle));
                    const double im = 1.25 * ((double)x[b] * cos(angle) + (double)x[a] * sin(angle));
                    assert_true(fabs((double)y[a] - re) < 2e-6 && fabs((double)y[b] - im) < 2e-6);
                }
                for (uint32_t v = 0; v < kr_row_ops_variant_count; v++) {
                    if (usable(v) == NULL)
                        continue;
                    memcpy(got, x, sizeof got);
                    usable(v)->rope(got, table, n, interleaved);
                    assert_memory_equal(got, y, n * sizeof *got);
                }
            }
}

static void check_block(const float *x, const int8_t *q, const kr_quant_meta *m)
{
    int32_t sum = 0, first = 0;
    bool finite = true;
    float maximum = 0.0f;

    for (int i = 0; i < KR_QUANT_BLOCK; i++) {
        sum += q[i];
        first += i < 16 ? q[i] : 0;
        finite = finite && isfinite(x[i]);
        maximum = fabsf(x[i]) > maximum ? fabsf(x[i]) : maximum;
    }
    assert_int_equal(m->sum, sum);
    assert_int_equal(m->sum_first, first);
    if (!finite) {
        assert_true(isnan(m->scale) && isnan(m->scaled_sum));
        return;
    }
    assert_true(m->scaled_sum == m->scale * (float)sum);
    for (int i = 0; i < KR_QUANT_BLOCK; i++) {
        const double error = fabs((double)x[i] - (double)m->scale * q[i]);
        assert_true(q[i] >= -127);
        /* Half a step, and the roundings of scale and quotient. */
        assert_true(error <= (maximum < 0x1p-118f ? 0x1p-118 : 0.50001 * (double)m->scale));
        if (fabsf(x[i]) == maximum && maximum >= 0x1p-118f)
            assert_int_equal(q[i], x[i] < 0 ? -127 : 127);
    }
}

static void quantise(void **state)
{
    enum { BLOCKS = 64, N = BLOCKS * KR_QUANT_BLOCK };
    static float x[N];
    static int8_t want[N], got[N];
    kr_quant_meta want_meta[BLOCKS], got_meta[BLOCKS];
    kr_rng rng = test_rng("quantise");
    (void)state;

    for (int b = 0; b < BLOCKS; b++)
        fill(&rng, x + b * KR_QUANT_BLOCK, KR_QUANT_BLOCK, ldexpf(1.0f, (b - 32) * 4));
    memset(x, 0, 32 * sizeof *x);
    x[32 + 5] = INFINITY;
    x[64 + 31] = NAN;
    for (int i = 0; i < 32; i++) {
        x[96 + i] = (float)i + 0.5f; /* ties, since the largest is 127 */
        x[128 + i] = i % 2 ? 3e38f : -3e38f;
        x[160 + i] = 0x1p-140f;
    }
    x[96] = 127.0f;
    reference()->quantise(x, N, want, want_meta);
    for (int b = 0; b < BLOCKS; b++)
        check_block(x + b * KR_QUANT_BLOCK, want + b * KR_QUANT_BLOCK, &want_meta[b]);
    assert_int_equal(want[96 + 1], 2); /* 1.5 to even */
    assert_int_equal(want[96 + 2], 2); /* 2.5 to even */
    for (uint32_t v = 0; v < kr_row_ops_variant_count; v++) {
        if (usable(v) == NULL)
            continue;
        usable(v)->quantise(x, N, got, got_meta);
        assert_memory_equal(got, want, sizeof got);
        for (int b = 0; b < BLOCKS; b++) /* NaN bits may differ, nothing else */
            if (isnan(want_meta[b].scale))
                assert_true(isnan(got_meta[b].scale));
            else
                assert_memory_equal(&got_meta[b], &want_meta[b], sizeof got_meta[b]);
    }
}

static void bf16_and_add(void **state)
{
    float x[N_MAX], y[N_MAX], sum[N_MAX];
    uint16_t bits[N_MAX];
    kr_rng rng = test_rng("bf16_and_add");
    (void)state;

    for (uint32_t i = 0; i < N_MAX; i++)
        x[i] = kr_f32_from_bits((uint32_t)kr_rng_next(&rng)); /* any pattern, NaN and infinity too */
    fill(&rng, y, N_MAX, 1.0f);
    x[0] = NAN;
    x[1] = 3.4e38f;
    for (uint32_t v = 0; v < kr_row_ops_variant_count; v++) {
        if (usable(v) == NULL)
            continue;
        usable(v)->to_bf16(x, N_MAX - 3, bits);
        for (uint32_t i = 0; i < N_MAX - 3; i++)
            assert_int_equal(bits[i], kr_bf16_from_f32(x[i]));
        memcpy(sum, y, sizeof sum);
        usable(v)->add(sum, y, N_MAX - 5);
        for (uint32_t i = 0; i < N_MAX; i++)
            assert_true(sum[i] == (i < N_MAX - 5 ? y[i] + y[i] : y[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(skips),         cmocka_unit_test(norm), cmocka_unit_test(gates),
        cmocka_unit_test(clamped_gates), cmocka_unit_test(rope), cmocka_unit_test(quantise),
        cmocka_unit_test(bf16_and_add),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
