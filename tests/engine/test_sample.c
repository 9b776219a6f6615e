/* Sampling: greedy ties and NaN, top-p against a sorted definition, frequencies against softmax,
 * and that a draw depends on seed and position alone. */
#include <math.h>
#include <stdbool.h>

#include "engine/sample.h"
#include "tests/test.h"

enum { VOCAB = 97 };

static uint32_t draw(kr_sampling sampling, const float *logits, uint32_t vocab, uint64_t position)
{
    kr_candidate scratch[VOCAB];
    uint32_t token;
    assert_int_equal(kr_sample(&sampling, logits, vocab, position, scratch, &token, NULL), KR_OK);
    return token;
}

static void greedy_ties_and_nan(void **state)
{
    (void)state;
    const float tie[] = {1, 3, 3, 2};
    const float nan_first[] = {NAN, -INFINITY, -2, NAN};
    const float none[] = {NAN, NAN};
    const float infinite[] = {0, INFINITY, INFINITY};
    kr_sampling greedy = {.top_p = 1};
    kr_candidate scratch[2];
    kr_err err = {0};
    uint32_t token = 77;
    assert_int_equal(draw(greedy, tie, 4, 0), 1);
    assert_int_equal(draw(greedy, nan_first, 4, 0), 2);
    assert_int_equal(kr_sample(&greedy, none, 2, 9, scratch, &token, &err), KR_E_INTERNAL);
    assert_int_equal(token, 77);
    assert_non_null(strstr(err.text, "9"));
    greedy.temperature = 1;
    assert_int_equal(draw(greedy, infinite, 3, 0), 1);
}

static void parameters_are_checked(void **state)
{
    (void)state;
    const kr_sampling bad[] = {{-1, 1, 0}, {NAN, 1, 0}, {101, 1, 0}, {1, 0, 0}, {1, 1.5f, 0}, {1, NAN, 0}};
    const kr_sampling good = {0.8f, 0.95f, 1};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(kr_sampling_check(&bad[i], NULL), KR_E_ARG);
    assert_int_equal(kr_sampling_check(&good, NULL), KR_OK);
}

/* The nucleus by its definition: sort, add up, cut. */
static void nucleus(const float *logits, float temperature, float top_p, bool inside[VOCAB])
{
    double weight[VOCAB], total = 0, sum = 0;
    for (uint32_t i = 0; i < VOCAB; i++)
        total += weight[i] = exp((double)logits[i] / (double)temperature);
    memset(inside, 0, VOCAB * sizeof *inside);
    while (sum < (double)top_p * total * (1 - 1e-12)) {
        uint32_t best = VOCAB;
        for (uint32_t i = 0; i < VOCAB; i++)
            if (!inside[i] && (best == VOCAB || weight[i] > weight[best]))
                best = i;
        inside[best] = true;
        sum += weight[best];
    }
}

static void top_p_cuts_the_tail(void **state)
{
    (void)state;
    kr_rng rng = test_rng("top_p");
    for (uint32_t round = 0; round < 20; round++) {
        float logits[VOCAB];
        bool inside[VOCAB], seen[VOCAB] = {false};
        uint32_t members = 0, met = 0;
        for (uint32_t i = 0; i < VOCAB; i++)
            logits[i] = (float)(2 * kr_rng_normal(&rng));
        const kr_sampling sampling = {0.9f, 0.6f, round};
        nucleus(logits, sampling.temperature, sampling.top_p, inside);
        for (uint64_t position = 0; position < 2000; position++) {
            const uint32_t token = draw(sampling, logits, VOCAB, position);
            assert_true(inside[token]);
            seen[token] = true;
        }
        for (uint32_t i = 0; i < VOCAB; i++) {
            members += inside[i];
            met += seen[i];
        }
        /* The rarest member has at least (1 - p) / VOCAB of the weight; most are met in 2,000 draws. */
        assert_true(met * 10 >= members * 8);
    }
}

static void frequencies_follow_softmax(void **state)
{
    (void)state;
    const float logits[] = {0, 1, 2, -1};
    const double total = exp(0.0) + exp(0.5) + exp(1.0) + exp(-0.5);
    uint32_t count[4] = {0};
    enum { DRAWS = 40000 };
    for (uint64_t position = 0; position < DRAWS; position++)
        count[draw((kr_sampling){2, 1, 42}, logits, 4, position)]++;
    for (uint32_t i = 0; i < 4; i++) {
        const double p = exp((double)logits[i] / 2) / total;
        const double sigma = sqrt(p * (1 - p) / DRAWS);
        assert_true(fabs(count[i] / (double)DRAWS - p) < 5 * sigma);
    }
}

static void draws_are_keyed_by_seed_and_position(void **state)
{
    (void)state;
    float logits[VOCAB] = {0};
    uint32_t differ_seed = 0, differ_position = 0;
    for (uint64_t position = 0; position < 64; position++) {
        const uint32_t token = draw((kr_sampling){1, 1, 5}, logits, VOCAB, position);
        assert_int_equal(token, draw((kr_sampling){1, 1, 5}, logits, VOCAB, position));
        differ_seed += token != draw((kr_sampling){1, 1, 6}, logits, VOCAB, position);
        differ_position += token != draw((kr_sampling){1, 1, 5}, logits, VOCAB, position + 1);
    }
    assert_true(differ_seed > 48 && differ_position > 48);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_ties_and_nan),
        cmocka_unit_test(parameters_are_checked),
        cmocka_unit_test(top_p_cuts_the_tail),
        cmocka_unit_test(frequencies_follow_softmax),
        cmocka_unit_test(draws_are_keyed_by_seed_and_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
