/* dsa_score: scalar against a float64 oracle; every variant against scalar, on the models' shapes,
 * odd shapes, and rows with NaN, subnormal and extreme codes. */
#include "ops/variants.h"
#include "ops_random.h"

enum { RUN = 128 };

typedef struct {
    uint32_t heads, dim;
    uint64_t tokens;
} shape;

static const shape shapes[] = {
    {64, 128, 128 * 3 + 5}, {32, 128, 257}, {16, 64, 129}, {4, 16, 38},  {1, 2, 1},
    {128, 128, 130},        {48, 96, 131},  {80, 128, 12}, {5, 30, 127}, {64, 128, 0},
};

typedef struct {
    uint8_t *query, *key;
    float *weight, *scale;
    const uint8_t **key_run;
    const float **scale_run;
    kr_dsa_score_args args;
} scan;

static scan make(kr_rng *rng, shape s, int adversarial)
{
    scan x = {test_alloc((size_t)s.heads * s.dim),
              test_alloc(s.tokens * s.dim),
              test_alloc(4 * s.heads),
              test_alloc(4 * s.tokens),
              test_alloc(8 * (s.tokens / RUN + 1)),
              test_alloc(8 * (s.tokens / RUN + 1)),
              {0}};

    test_fill(rng, KR_E4M3, x.query, (size_t)s.heads * s.dim, 20.0f);
    test_fill(rng, KR_E4M3, x.key, s.tokens * s.dim, 100.0f);
    test_fill(rng, KR_F32, x.weight, s.heads, 0.01f);
    for (uint64_t t = 0; t < s.tokens; t++)
        x.scale[t] = ldexpf(1.0f, (int)kr_rng_below(rng, 12) - 10);
    if (adversarial)
        for (uint64_t i = 0; i < s.tokens * s.dim; i += 1 + kr_rng_below(rng, 400))
            x.key[i] = (uint8_t)kr_rng_below(rng, 256); /* NaN, +-0, subnormal, +-448 */
    for (uint64_t r = 0; r * RUN < s.tokens; r++) {
        x.key_run[r] = x.key + r * RUN * s.dim;
        x.scale_run[r] = x.scale + r * RUN;
    }
    x.args = (kr_dsa_score_args){x.query, x.weight, x.key_run, x.scale_run, RUN,
                                 s.heads, s.dim,    s.tokens,  NULL};
    return x;
}

static void drop(scan *x)
{
    free(x->query), free(x->key), free(x->weight), free(x->scale);
    free(x->key_run), free(x->scale_run);
}

/* Score and the sum of absolute terms in float64. */
static double oracle(const scan *x, uint64_t t, double *magnitude)
{
    double sum = 0.0, all = 0.0;

    for (uint32_t h = 0; h < x->args.heads; h++) {
        double dot = 0.0, terms = 0.0;

        for (uint32_t c = 0; c < x->args.dim; c++) {
            const double p = (double)kr_f32_from_e4m3(x->query[(size_t)h * x->args.dim + c]) *
                             (double)kr_f32_from_e4m3(x->key[t * x->args.dim + c]);
            dot += p;
            terms += fabs(p);
        }
        sum += (double)x->weight[h] * (dot < 0.0 ? 0.0 : dot);
        all += fabs((double)x->weight[h]) * terms;
    }
    *magnitude = all * (double)x->scale[t];
    return sum * (double)x->scale[t];
}

static void within_bound_of_float64(void **state)
{
    (void)state;
    kr_rng rng = test_rng("dsa_score oracle");

    for (uint32_t v = 0; kr_dsa_score_variants[v].run != NULL; v++) {
        const kr_dsa_score_variant *variant = &kr_dsa_score_variants[v];

        if (!variant->variant.usable()) {
            print_message("SKIP dsa_score %s\n", variant->variant.name);
            continue;
        }
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int adversarial = 0; adversarial < 2; adversarial++) {
                scan x = make(&rng, shapes[s], adversarial);
                float *score = test_alloc(4 * shapes[s].tokens);

                x.args.score = score;
                variant->run(&x.args);
                for (uint64_t t = 0; t < shapes[s].tokens; t++) {
                    double magnitude;
                    const double want = oracle(&x, t, &magnitude);

                    assert_true(isnan(want) == isnan(score[t]));
                    if (!isnan(want) && fabs((double)score[t] - want) > KR_DSA_SUM_ERROR * magnitude)
                        fail_msg("%s heads %u token %" PRIu64 ": %.9g, oracle %.9g", variant->variant.name,
                                 shapes[s].heads, t, (double)score[t], want);
                }
                free(score);
                drop(&x);
            }
    }
}

static void f32_variants_equal_scalar(void **state)
{
    (void)state;
    kr_rng rng = test_rng("dsa_score variants");

    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int adversarial = 0; adversarial < 2; adversarial++) {
            scan x = make(&rng, shapes[s], adversarial);
            const uint64_t n = shapes[s].tokens;
            float *want = test_alloc(4 * n + 4), *got = test_alloc(4 * n + 4);

            x.args.score = want;
            kr_dsa_score_scalar(&x.args);
            x.args.score = got;
            for (uint32_t v = 0; kr_dsa_score_variants[v].run != NULL; v++) {
                const kr_variant *variant = &kr_dsa_score_variants[v].variant;

                if (!variant->usable() || strcmp(variant->name, "avx512bf16") == 0)
                    continue;
                got[n] = 12345.0f;
                kr_dsa_score_variants[v].run(&x.args);
                assert_same_floats(got, want, n, variant->name);
                assert_true(got[n] == 12345.0f);
            }
            free(want), free(got);
            drop(&x);
        }
}

/* Two heads, one negative weight: 2 * (0.5 * max(0, 4) - 1 * max(0, 1)) by hand. */
static void known_value(void **state)
{
    (void)state;
    const uint8_t query[4] = {kr_e4m3_from_f32(2.0f), 0, kr_e4m3_from_f32(0.5f), 0};
    const uint8_t key[2] = {kr_e4m3_from_f32(2.0f), kr_e4m3_from_f32(-448.0f)};
    const uint8_t *run = key;
    const float weight[2] = {0.5f, -1.0f}, scale = 2.0f, *scales = &scale;
    float score = 0.0f;
    const kr_dsa_score_args a = {query, weight, &run, &scales, RUN, 2, 2, 1, &score};

    for (uint32_t v = 0; kr_dsa_score_variants[v].run != NULL; v++)
        if (kr_dsa_score_variants[v].variant.usable()) {
            kr_dsa_score_variants[v].run(&a);
            assert_true(score == 2.0f);
        }
}

static void table_holds_every_code(void **state)
{
    (void)state;
    for (int c = 0; c < 256; c++) {
        const float want = kr_f32_from_e4m3((uint8_t)c), got = kr_f32_from_bf16(kr_e4m3_bf16[c]);

        assert_true(isnan(want) ? isnan(got) : kr_f32_bits(got) == kr_f32_bits(want));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_value),
        cmocka_unit_test(table_holds_every_code),
        cmocka_unit_test(f32_variants_equal_scalar),
        cmocka_unit_test(within_bound_of_float64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
