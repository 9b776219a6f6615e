/* Philox-4x32-10 against the published vectors; the derived draws have the stated range,
 * moments and independence of order. */
#include <math.h>

#include "tests/test.h"

/* Random123, examples/kat_vectors, "philox4x32 10": counter, key -> output. */
static void known_answers(void **state)
{
    (void)state;
    assert_true(kr_rng_at(0, 0, 0) == 0xe169c58d6627e8d5u);
    assert_true(kr_rng_at(UINT64_MAX, UINT64_MAX, UINT64_MAX) == 0x41c83b0e408f276du);
    assert_true(kr_rng_at(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u) ==
                0x94fdccebd16cfe09u);
}

static void draws_do_not_depend_on_order(void **state)
{
    kr_rng rng = kr_rng_make(7, 3);
    (void)state;

    for (uint64_t i = 0; i < 100; i++)
        assert_true(kr_rng_next(&rng) == kr_rng_at(7, 3, i));
    assert_true(kr_rng_at(7, 3, 0) != kr_rng_at(7, 4, 0));
    assert_true(kr_rng_at(7, 3, 0) != kr_rng_at(8, 3, 0));
}

/* Each of 6 outcomes: 60,000 draws, standard deviation 91; 5 of them either way. */
static void below_is_uniform_and_in_range(void **state)
{
    kr_rng rng = test_rng("rng");
    uint32_t count[6] = {0};
    (void)state;

    for (int i = 0; i < 60000; i++) {
        const uint64_t draw = kr_rng_below(&rng, 6);
        assert_true(draw < 6);
        count[draw]++;
    }
    for (int i = 0; i < 6; i++)
        assert_in_range(count[i], 10000 - 457, 10000 + 457);
    for (int i = 0; i < 100; i++)
        assert_int_equal(kr_rng_below(&rng, 1), 0);
}

/* A bound of 3 * 2^62 rejects a quarter of all raw draws; without rejection the first third of
 * the range would come up half as often again. */
static void below_has_no_bias_for_large_bounds(void **state)
{
    kr_rng rng = test_rng("rng");
    const uint64_t third = 1ull << 62;
    uint32_t count[3] = {0};
    (void)state;

    for (int i = 0; i < 30000; i++)
        count[kr_rng_below(&rng, 3 * third) / third]++;
    assert_true(rng.index > 36000); /* the rejections happened: 40,000 expected */
    for (int i = 0; i < 3; i++)
        assert_in_range(count[i], 10000 - 410, 10000 + 410); /* 5 standard deviations */
}

static void unit_and_normal_have_their_moments(void **state)
{
    kr_rng rng = test_rng("rng");
    const int n = 100000;
    double unit = 0, mean = 0, square = 0, fourth = 0;
    (void)state;

    for (int i = 0; i < n; i++) {
        const double u = kr_rng_unit(&rng), z = kr_rng_normal(&rng);
        assert_true(u >= 0 && u < 1 && isfinite(z));
        unit += u / n;
        mean += z / n;
        square += z * z / n;
        fourth += z * z * z * z / n;
    }
    /* Bounds are 5 standard errors: sqrt(1/12/n), 1/sqrt(n), sqrt(2/n), sqrt(96/n). */
    assert_true(fabs(unit - 0.5) < 0.0046);
    assert_true(fabs(mean) < 0.0159);
    assert_true(fabs(square - 1) < 0.0224);
    assert_true(fabs(fourth - 3) < 0.155);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(draws_do_not_depend_on_order),
        cmocka_unit_test(below_is_uniform_and_in_range),
        cmocka_unit_test(below_has_no_bias_for_large_bounds),
        cmocka_unit_test(unit_and_normal_have_their_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
