/* kr_rope_frequencies gives the tables of Hugging Face transformers (fixtures/rope.txt, made by
 * fixtures/make_rope.py). The reference computes in F32: its exponent and power lose up to
 * ln(theta) * 2^-24 + a few ulp, which the blends of llama3 and yarn at most double: 4e-6. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "model/model.h"

static const double tolerance = 4e-6;

static kr_rope_scaling scaling_of(const char *name)
{
    static const char *const names[] = {"default", "linear", "llama3", "yarn"};

    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0)
            return (kr_rope_scaling)i;
    fail_msg("unknown scaling %s", name);
    return KR_ROPE_PLAIN;
}

static void agrees_with_transformers(void **state)
{
    FILE *file = fopen("tests/fixtures/rope.txt", "r");
    char name[64], kind[32];
    int cases = 0;
    kr_rope r = {0};
    double want_factor;

    (void)state;
    assert_non_null(file);
    while (fscanf(file, "%63s %31s %lf %u %lf %lf %lf %lf %lf %lf %lf %u %lf", name, kind, &r.theta, &r.dims,
                  &r.factor, &r.low_freq, &r.high_freq, &r.beta_fast, &r.beta_slow, &r.mscale,
                  &r.mscale_all_dim, &r.original_context, &want_factor) == 13) {
        float got[KR_HEAD_DIM_MAX / 2];

        r.scaling = scaling_of(kind);
        assert_true(fabs(kr_rope_frequencies(&r, got) - want_factor) < 1e-12);
        for (uint32_t i = 0; i < r.dims / 2; i++) {
            double want;

            assert_int_equal(fscanf(file, "%la", &want), 1);
            if (fabs(got[i] - want) > tolerance * want)
                fail_msg("%s: frequency %u is %.9g, transformers has %.9g", name, i, (double)got[i], want);
        }
        cases++;
    }
    fclose(file);
    assert_int_equal(cases, 9);
}

/* DeepSeek-V3.2: pairs up to 10 stay, from 23 on they are divided by 40, the cache of one token at
 * position 0 turns nothing; and the softmax scale holds mscale twice. */
static void deepseek_ramp(void **state)
{
    const kr_rope r = {.scaling = KR_ROPE_YARN,
                       .dims = 64,
                       .theta = 1e4,
                       .factor = 40.0,
                       .beta_fast = 32.0,
                       .beta_slow = 1.0,
                       .mscale = 1.0,
                       .mscale_all_dim = 1.0,
                       .original_context = 4096};
    const kr_rope plain = {.dims = 64, .theta = 1e4};
    float scaled[32], base[32];

    (void)state;
    assert_true(kr_rope_frequencies(&r, scaled) == 1.0);
    assert_true(kr_rope_frequencies(&plain, base) == 1.0);
    for (int i = 0; i <= 10; i++)
        assert_true(scaled[i] == base[i]);
    for (int i = 11; i < 23; i++)
        assert_true(scaled[i] < base[i] && scaled[i] > base[i] / 40.0f);
    for (int i = 23; i < 32; i++)
        assert_true(fabsf(scaled[i] * 40.0f - base[i]) <= 1e-6f * base[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_transformers),
        cmocka_unit_test(deepseek_ramp),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
