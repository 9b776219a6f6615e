/* Warm-up cut and stationarity on series whose answer is known: constant, a start-up that fades, a
 * trend; and the confidence interval covers the mean as often as it says. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "sim/steady.h"

enum { STEPS = 2000 };

static uint64_t end_ns[STEPS];
static uint32_t tokens[STEPS];

/* Steps of 1 ms with the given mean number of tokens. */
static void fill(double (*mean)(int step), double noise, kr_rng *rng)
{
    for (int i = 0; i < STEPS; i++) {
        end_ns[i] = 1000000ull * (uint64_t)(i + 1);
        tokens[i] = (uint32_t)(mean(i) + noise * kr_rng_normal(rng) + 0.5);
    }
}

static double constant(int step)
{
    (void)step;
    return 1000.0;
}

static double fading(int step) { return 1000.0 - 600.0 * exp(-step / 60.0); }

static double rising(int step) { return 1000.0 + 0.2 * step; }

static void known_series(void **state)
{
    kr_rng rng = kr_rng_make(1, 7);
    kr_steady s;
    uint64_t cut;

    (void)state;
    fill(constant, 0.0, &rng);
    assert_int_equal(kr_steady_cut(end_ns, tokens, STEPS, 0), 0);
    s = kr_steady_mean(end_ns, tokens, STEPS, 0, 0);
    assert_true(s.stationary && fabs(s.mean - 1e6) < 1.0 && s.half_width < 1.0);
    assert_int_equal(kr_steady_cut(end_ns, tokens, KR_STEADY_STEPS_MIN - 1, 0), 0);
    assert_false(kr_steady_mean(end_ns, tokens, KR_STEADY_STEPS_MIN - 1, 0, 0).stationary);
    fill(fading, 10.0, &rng);
    cut = kr_steady_cut(end_ns, tokens, STEPS, 0);
    s = kr_steady_mean(end_ns, tokens, STEPS, 0, cut);
    assert_true(cut >= 120 && cut <= 600);
    assert_true(s.stationary && fabs(s.mean - 1e6) < 2000.0);
    fill(rising, 10.0, &rng);
    cut = kr_steady_cut(end_ns, tokens, STEPS, 0);
    assert_false(kr_steady_mean(end_ns, tokens, STEPS, 0, cut).stationary);
}

/* 400 runs: 95 % of the intervals hold the true mean, give or take three standard deviations. */
static void interval_covers(void **state)
{
    kr_rng rng = kr_rng_make(2, 7);
    int covered = 0, stationary = 0;

    (void)state;
    for (int run = 0; run < 400; run++) {
        kr_steady s;

        fill(constant, 50.0, &rng);
        s = kr_steady_mean(end_ns, tokens, STEPS, 0, 0);
        covered += fabs(s.mean - 1e6) <= s.half_width;
        stationary += s.stationary;
    }
    assert_in_range(covered, 367, 393);
    assert_true(stationary >= 390);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_series),
        cmocka_unit_test(interval_covers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
