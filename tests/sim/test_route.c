/* Expert placement: hand-computed loads, and properties of balancing on random shares. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/rng.h"
#include "sim/route.h"

static double sum(const double *x, uint32_t n)
{
    double s = 0.0;

    for (uint32_t i = 0; i < n; i++)
        s += x[i];
    return s;
}

static void by_hand(void **state)
{
    const kr_moe moe = {.experts = 4, .active = 1};
    const double share[] = {0.1, 0.2, 0.6, 0.1};
    const double over[] = {0.1, 0.2, 0.6, 0.2}, below[] = {0.1, -0.2, 1.0, 0.1};
    double slowest[3];
    kr_err err;

    (void)state;
    /* In order: {0.1, 0.2} and {0.6, 0.1}. */
    assert_int_equal(kr_route_slowest(&moe, share, 2, false, slowest, &err), KR_OK);
    assert_true(slowest[0] == 0.6 && slowest[1] == 0.1);
    /* Balanced, two redundant: the third expert gets both, 0.2 each. Largest first: 0.2 0.2 0.2 0.2
     * 0.1 0.1 onto two ranks of three slots: 0.2 0.2 0.1 each. */
    assert_int_equal(kr_route_slots(&moe, 2, true), 3);
    assert_int_equal(kr_route_slowest(&moe, share, 2, true, slowest, &err), KR_OK);
    assert_true(fabs(sum(slowest, 3) - 0.5) < 1e-12);
    assert_int_equal(kr_route_slowest(&moe, over, 2, true, slowest, &err), KR_E_ARG);
    assert_int_equal(kr_route_slowest(&moe, below, 2, true, slowest, &err), KR_E_ARG);
    assert_int_equal(kr_route_slowest(&moe, share, 5, true, slowest, &err), KR_E_ARG);
}

static void balancing_helps(void **state)
{
    kr_rng rng = kr_rng_make(20261130, 6);

    (void)state;
    for (int round = 0; round < 200; round++) {
        const uint32_t ranks = 1 + (uint32_t)kr_rng_below(&rng, 16);
        const kr_moe moe = {.experts = ranks * (1 + (uint32_t)kr_rng_below(&rng, 8)), .active = 1};
        double share[128], total = 0.0, plain[129], balanced[129];
        kr_err err;

        for (uint32_t i = 0; i < moe.experts; i++)
            total += share[i] = pow(kr_rng_unit(&rng), 4.0);
        for (uint32_t i = 0; i < moe.experts; i++)
            share[i] /= total;
        assert_int_equal(kr_route_slowest(&moe, share, ranks, false, plain, &err), KR_OK);
        assert_int_equal(kr_route_slowest(&moe, share, ranks, true, balanced, &err), KR_OK);
        /* No rank can have less than the mean; the packing is never worse than the plain order by
         * more than rounding. */
        assert_true(sum(balanced, kr_route_slots(&moe, ranks, true)) >= 1.0 / ranks - 1e-9);
        assert_true(sum(balanced, kr_route_slots(&moe, ranks, true)) <=
                    sum(plain, kr_route_slots(&moe, ranks, false)) + 1e-9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(balancing_helps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
