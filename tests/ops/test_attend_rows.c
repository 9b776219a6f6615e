/* attend_rows: scalar against a float64 oracle; every variant gives scalar's bits, for any number
 * of rows in a call, with masks, bias, mass, -inf and NaN rows. */
#include <float.h>

#include "ops/attend_exp.h"
#include "ops/variants.h"
#include "ops_random.h"

typedef struct {
    uint32_t rows, positions, key_dim, value_dim;
    kr_dtype type;
    bool latent, weighted, masked;
    float size; /* of queries: large ones make the softmax peaked */
} shape;

static const shape shapes[] = {
    {128, 200, 576, 512, KR_BF16, true, false, false, 0.1f},  /* DeepSeek-V3.2, MLA */
    {64, 97, 576, 512, KR_BF16, true, false, false, 0.1f},    /* GLM */
    {16, 1024, 128, 128, KR_BF16, false, false, false, 1.0f}, /* MiniMax-M3 group */
    {8, 300, 128, 128, KR_F16, false, false, true, 1.0f},     /* LLaMA-3-70B group */
    {1, 131, 64, 64, KR_F32, false, true, false, 3.0f},
    {3, 1, 64, 64, KR_BF16, false, true, true, 1.0f},
    {40, 65, 33, 17, KR_F32, false, true, true, 2.0f},
    {100, 12, 96, 40, KR_F16, false, false, true, 1.0f},
    {9, 0, 16, 16, KR_F32, false, false, false, 1.0f},
    {1, 1000, 128, 128, KR_BF16, false, false, true, 1.0f}, /* few rows: every tile height, ragged dims */
    {2, 17, 80, 96, KR_BF16, false, true, false, 1.0f},
    {4, 64, 64, 64, KR_BF16, false, false, false, 1.0f},
    {5, 70, 33, 50, KR_F16, false, true, true, 1.0f},
    {6, 129, 64, 130, KR_F32, false, false, true, 1.0f},
    {7, 66, 1, 1, KR_BF16, false, true, true, 1.0f},
    {11, 200, 97, 33, KR_BF16, false, true, true, 1.0f},
    {12, 65, 40, 65, KR_F16, false, false, true, 1.0f},
    {10, 31, 576, 512, KR_BF16, true, true, true, 0.1f},
};

typedef struct {
    float *query, *bias, *mass;
    uint8_t *key, *value;
    const float **query_row;
    const void **key_row, **value_row;
    uint32_t *from, *to;
    kr_attend_rows_args args;
} call;

static call make(kr_rng *rng, shape s)
{
    const size_t e = kr_dtype_bytes(s.type);
    call x = {.query = test_alloc(4ull * s.rows * s.key_dim),
              .bias = test_alloc(4 * s.positions),
              .mass = test_alloc(4 * s.positions),
              .key = test_alloc(e * s.positions * s.key_dim),
              .value = test_alloc(e * s.positions * s.value_dim),
              .query_row = test_alloc(8 * s.rows),
              .key_row = test_alloc(8 * s.positions),
              .value_row = test_alloc(8 * s.positions),
              .from = test_alloc(4 * s.rows),
              .to = test_alloc(4 * s.rows)};

    test_fill(rng, KR_F32, x.query, (size_t)s.rows * s.key_dim, s.size);
    test_fill(rng, s.type, x.key, (size_t)s.positions * s.key_dim, 1.0f);
    test_fill(rng, s.type, x.value, (size_t)s.positions * s.value_dim, 1.0f);
    for (uint32_t r = 0; r < s.rows; r++) {
        x.query_row[r] = x.query + (size_t)r * s.key_dim;
        x.from[r] = s.masked ? (uint32_t)kr_rng_below(rng, s.positions + 1) : 0;
        x.to[r] = s.masked ? x.from[r] + (uint32_t)kr_rng_below(rng, s.positions - x.from[r] + 1)
                           : s.positions;
    }
    for (uint32_t i = 0; i < s.positions; i++) {
        const uint32_t j = (i * 7 + 3) % s.positions == 0 ? 0 : i; /* any order of rows is legal */

        x.key_row[i] = x.key + e * j * s.key_dim;
        x.value_row[i] = s.latent ? x.key_row[i] : x.value + e * j * s.value_dim;
        x.bias[i] = 3.0f * test_normal(rng);
        x.mass[i] = (float)(1 + kr_rng_below(rng, 20));
    }
    x.args = (kr_attend_rows_args){x.query_row,
                                   x.from,
                                   x.to,
                                   x.key_row,
                                   x.value_row,
                                   s.weighted ? x.bias : NULL,
                                   s.weighted ? x.mass : NULL,
                                   s.rows,
                                   s.positions,
                                   s.key_dim,
                                   s.value_dim,
                                   s.type,
                                   1.0f / sqrtf((float)s.key_dim),
                                   test_alloc(kr_attend_rows_scratch_bytes(s.rows, s.key_dim, s.value_dim)),
                                   test_alloc(4 * s.rows),
                                   test_alloc(4 * s.rows),
                                   test_alloc(4ull * s.rows * s.value_dim)};
    return x;
}

static void drop(call *x)
{
    free(x->query), free(x->bias), free(x->mass), free(x->key), free(x->value), free(x->query_row);
    free(x->key_row), free(x->value_row), free(x->from), free(x->to);
    free(x->args.scratch), free(x->args.maximum), free(x->args.sum), free(x->args.accumulator);
}

/* The softmax of row r in float64; out[value_dim] normalised. Returns the largest |value|. */
static double oracle(const call *x, uint32_t r, double *out)
{
    const kr_attend_rows_args *a = &x->args;
    float key[KR_ATTEND_DIM_MAX];
    double s[KR_ATTEND_POSITIONS_MAX], m = -HUGE_VAL, l = 0.0, largest = 0.0;

    for (uint32_t i = a->from[r]; i < a->to[r]; i++) {
        double dot = 0.0;

        kr_to_f32(a->type, a->key_row[i], key, a->key_dim);
        for (uint32_t c = 0; c < a->key_dim; c++)
            dot += (double)a->query[r][c] * (double)key[c];
        s[i] = dot * (double)a->scale + (a->bias ? (double)a->bias[i] : 0.0);
        m = fmax(m, s[i]);
    }
    memset(out, 0, sizeof(double) * a->value_dim);
    for (uint32_t i = a->from[r]; i < a->to[r]; i++) {
        const double p = exp(s[i] - m);

        kr_to_f32(a->type, a->value_row[i], key, a->value_dim);
        l += p * (a->mass ? (double)a->mass[i] : 1.0);
        for (uint32_t d = 0; d < a->value_dim; d++) {
            out[d] += p * (double)key[d];
            largest = fmax(largest, fabs((double)key[d]));
        }
    }
    for (uint32_t d = 0; d < a->value_dim; d++)
        out[d] = l > 0.0 ? out[d] / l : 0.0;
    return largest;
}

static void scalar_within_bound_of_float64(void **state)
{
    (void)state;
    kr_rng rng = test_rng("attend_rows oracle");
    double want[KR_ATTEND_DIM_MAX];

    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        call x = make(&rng, shapes[s]);

        kr_attend_rows_scalar(&x.args);
        for (uint32_t r = 0; r < shapes[s].rows; r++) {
            const double largest = oracle(&x, r, want);

            for (uint32_t d = 0; d < shapes[s].value_dim; d++) {
                const double l = (double)x.args.sum[r];
                const double got = l > 0.0 ? (double)x.args.accumulator[r * shapes[s].value_dim + d] / l
                                           : 0.0;

                /* Scores of a few units, so their rounding reaches p with a factor of about 10. */
                if (fabs(got - want[d]) > 2e-5 * (largest + 1e-30))
                    fail_msg("shape %zu row %u dim %u: %.9g, oracle %.9g", s, r, d, got, want[d]);
            }
        }
        drop(&x);
    }
}

static void assert_equal_scalar(call *x, shape s)
{
    const size_t n = (size_t)s.rows * s.value_dim;
    float *out[2][3];

    for (int k = 0; k < 2; k++) {
        out[k][0] = test_alloc(4 * s.rows);
        out[k][1] = test_alloc(4 * s.rows);
        out[k][2] = test_alloc(4 * n);
    }
    kr_attend_rows_args a = x->args;
    a.maximum = out[0][0], a.sum = out[0][1], a.accumulator = out[0][2];
    kr_attend_rows_scalar(&a);
    a.maximum = out[1][0], a.sum = out[1][1], a.accumulator = out[1][2];
    for (uint32_t v = 0; kr_attend_rows_variants[v].run != NULL; v++) {
        const kr_variant *variant = &kr_attend_rows_variants[v].variant;

        if (!variant->usable()) {
            print_message("SKIP attend_rows %s\n", variant->name);
            continue;
        }
        kr_attend_rows_variants[v].run(&a);
        assert_same_floats(out[1][0], out[0][0], s.rows, variant->name);
        assert_same_floats(out[1][1], out[0][1], s.rows, variant->name);
        assert_same_floats(out[1][2], out[0][2], n, variant->name);
    }
    for (int k = 0; k < 6; k++)
        free(out[k / 3][k % 3]);
}

static void variants_equal_scalar(void **state)
{
    (void)state;
    kr_rng rng = test_rng("attend_rows variants");

    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        call x = make(&rng, shapes[s]);

        assert_equal_scalar(&x, shapes[s]);
        if (shapes[s].type == KR_F32 && shapes[s].positions > 20) {
            /* -inf scores everywhere in a row, a NaN key, an infinite query element. */
            float *key = (float *)x.key;

            key[3] = NAN;
            key[5 * shapes[s].key_dim] = INFINITY;
            x.query[1] = shapes[s].rows > 1 ? -INFINITY : 0.0f;
            assert_equal_scalar(&x, shapes[s]);
        }
        drop(&x);
    }
}

/* A row alone gives the bits it gave among others. */
static void rows_are_independent(void **state)
{
    (void)state;
    kr_rng rng = test_rng("attend_rows rows");
    call x = make(&rng, shapes[6]);
    const shape s = shapes[6];
    float *one = test_alloc(4 * s.value_dim), maximum, sum;

    for (uint32_t v = 0; kr_attend_rows_variants[v].run != NULL; v++) {
        if (!kr_attend_rows_variants[v].variant.usable())
            continue;
        kr_attend_rows_variants[v].run(&x.args);
        for (uint32_t r = 0; r < s.rows; r++) {
            kr_attend_rows_args a = x.args;

            a.query += r, a.from += r, a.to += r, a.rows = 1;
            a.maximum = &maximum, a.sum = &sum, a.accumulator = one;
            a.scratch = test_alloc(kr_attend_rows_scratch_bytes(1, s.key_dim, s.value_dim));
            kr_attend_rows_variants[v].run(&a);
            assert_same_floats(one, x.args.accumulator + (size_t)r * s.value_dim, s.value_dim, "row alone");
            assert_same_floats(&sum, x.args.sum + r, 1, "sum of row alone");
            free(a.scratch);
        }
    }
    free(one);
    drop(&x);
}

static void exp_is_accurate(void **state)
{
    (void)state;
    for (double x = 0.0; x >= -87.0; x -= 0.00137) {
        const double want = exp((double)(float)x), got = (double)kr_exp_f32((float)x);

        if (fabs(got - want) > 1.2e-7 * want)
            fail_msg("exp(%.9g) = %.9g, want %.9g", x, got, want);
    }
    assert_true(kr_exp_f32(0.0f) == 1.0f);
    assert_true(kr_exp_f32(-INFINITY) == 0.0f);
    assert_true(kr_exp_f32(-200.0f) == 0.0f);
    assert_true(isnan(kr_exp_f32(NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_accurate),
        cmocka_unit_test(scalar_within_bound_of_float64),
        cmocka_unit_test(variants_equal_scalar),
        cmocka_unit_test(rows_are_independent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
