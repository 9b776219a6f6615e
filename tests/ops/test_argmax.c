/* argmax: the definition by hand, variants against it on random, tied and bad rows of every length. */
#include "ops/variants.h"
#include "ops_random.h"

enum { N_MAX = 200 };

static void variants_agree(const float *score, uint64_t n, uint64_t want)
{
    assert_int_equal(kr_argmax_scalar(score, n), want);
    for (uint32_t v = 0; kr_argmax_variants[v].run != NULL; v++)
        if (!kr_argmax_variants[v].variant.usable())
            print_message("SKIP argmax %s\n", kr_argmax_variants[v].variant.name);
        else if (kr_argmax_variants[v].run(score, n) != want)
            fail_msg("%s: %u scores: %u, expected %u", kr_argmax_variants[v].variant.name, (uint32_t)n,
                     (uint32_t)kr_argmax_variants[v].run(score, n), (uint32_t)want);
}

static void finds_the_first_largest(void **state)
{
    (void)state;
    kr_rng rng = test_rng("argmax");
    float score[N_MAX];

    for (uint32_t n = 1; n <= N_MAX; n++) {
        const uint32_t at = (uint32_t)kr_rng_below(&rng, n), other = (uint32_t)kr_rng_below(&rng, n);
        const uint32_t first = at < other ? at : other, bad = (uint32_t)kr_rng_below(&rng, n);

        for (uint32_t i = 0; i < n; i++) /* a few values, all below 9 */
            score[i] = (float)kr_rng_below(&rng, 8) - 4.0f;
        score[at] = score[other] = 9.0f;
        variants_agree(score, n, first);
        if (bad != first) {
            score[bad] = NAN;
            variants_agree(score, n, first);
        }
        score[at] = INFINITY, score[other] = -INFINITY;
        if (at != other)
            variants_agree(score, n, at);
        for (uint32_t i = 0; i < n; i++)
            score[i] = i % 2 ? -INFINITY : NAN;
        variants_agree(score, n, 0);
        score[n - 1] = -0.0f, score[0] = 0.0f;
        variants_agree(score, n, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(finds_the_first_largest)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
