/* select_topk: every variant returns exactly the set that a full sort under (score descending,
 * position ascending) gives, ascending, with NaN left out and counted; shapes that defeat sampling
 * and threshold guesses included. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "base/rng.h"
#include "ops/variants.h"

enum { N_MAX = 70000, K_MAX = 8192, KINDS = 13 };

static float score[N_MAX];
static uint32_t order[N_MAX], want[K_MAX], got[K_MAX + 1];

static int by_total_order(const void *a, const void *b)
{
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

    if (score[i] != score[j])
        return score[i] > score[j] ? -1 : 1;
    return i < j ? -1 : i > j;
}

static int by_number(const void *a, const void *b)
{
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    return i < j ? -1 : i > j;
}

static uint32_t oracle(uint32_t n, uint32_t k, uint64_t *nan)
{
    uint32_t m = 0;

    *nan = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(score[i]))
            ++*nan;
        else
            order[m++] = i;
    }
    qsort(order, m, sizeof *order, by_total_order);
    m = m < k ? m : k;
    memcpy(want, order, m * sizeof *want);
    qsort(want, m, sizeof *want, by_number);
    return m;
}

static float draw(kr_rng *rng, uint32_t kind, uint32_t i, uint32_t n)
{
    static const float odd[] = {0.0f, -0.0f, INFINITY, -INFINITY, 1e-45f, -1e-45f, 3e38f, -3e38f};
    const float x = (float)kr_rng_normal(rng);

    switch (kind) {
    case 0:
        return x;
    case 1:
        return 1.0f; /* all equal */
    case 2:
        return (float)i; /* ascending */
    case 3:
        return (float)(n - i);
    case 4:
        return (float)kr_rng_below(rng, 8); /* few values */
    case 5:
        return kr_rng_below(rng, 3) == 0 ? NAN : x;
    case 6:
        return NAN;
    case 7:
        return odd[kr_rng_below(rng, 8)];
    case 8:
        return -INFINITY;
    case 9:
        return i % 16 == 0 ? x + 100.0f : x; /* in step with a strided sample */
    case 10:
        return i % 17 == 5 ? 50.0f : -1e30f; /* low scores, a step of its own */
    case 11:
        return i < n / 2 ? 0.0f : -0.0f;
    default:
        return i < 3000 ? 9.0f + (float)(i % 3) : 1.0f; /* ties at the threshold */
    }
}

static void equals_sort(void **state)
{
    static const uint32_t lengths[] = {1, 2, 15, 16, 17, 100, 511, 4096, 4097, 5000, 20000, N_MAX};
    static const uint32_t ks[] = {1, 2, 3, 16, 64, 100, 2048, 8192};
    void *scratch = NULL;
    kr_rng rng = kr_rng_make(5, 0);

    (void)state;
    printf("seed 5\n");
    for (uint32_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (uint32_t kind = 0; kind < KINDS; kind++) {
            const uint32_t n = lengths[l];

            for (uint32_t i = 0; i < n; i++)
                score[i] = draw(&rng, kind, i, n);
            for (uint32_t j = 0; j < sizeof ks / sizeof *ks; j++) {
                uint64_t want_nan;
                const uint32_t m = oracle(n, ks[j], &want_nan);

                scratch = aligned_alloc(64, kr_select_scratch_bytes(n, ks[j]));
                assert_non_null(scratch);
                for (const kr_select_topk_variant *v = kr_select_topk_variants; v->run; v++) {
                    uint64_t nan = 1000;
                    kr_select_topk_args a = {score, n, ks[j], got, scratch, &nan};

                    if (!v->variant.usable())
                        continue;
                    got[m] = 0xabcdef01u;
                    if (v->run(&a) != m || memcmp(got, want, m * sizeof *got) != 0 || got[m] != 0xabcdef01u ||
                        nan != 1000 + want_nan)
                        fail_msg("%s n %u k %u kind %u", v->variant.name, n, ks[j], kind);
                }
                free(scratch);
            }
        }
}

/* Pitfall S-13: 10,000 equal scores, k = 2048 gives 0..2047. S-14: padding cannot win. */
static void ties_and_low_scores(void **state)
{
    void *scratch = aligned_alloc(64, kr_select_scratch_bytes(10000, 2048));

    (void)state;
    assert_non_null(scratch);
    for (const kr_select_topk_variant *v = kr_select_topk_variants; v->run; v++) {
        uint64_t nan = 0;

        if (!v->variant.usable()) {
            printf("SKIP %s\n", v->variant.name);
            continue;
        }
        for (uint32_t i = 0; i < 10000; i++)
            score[i] = -7.5f;
        assert_int_equal(v->run(&(kr_select_topk_args){score, 10000, 2048, got, scratch, &nan}), 2048);
        for (uint32_t i = 0; i < 2048; i++)
            assert_int_equal(got[i], i);
        for (uint32_t i = 0; i < 128; i++)
            score[i] = i < 100 ? -1e30f : 0.0f; /* what lies past n */
        assert_int_equal(v->run(&(kr_select_topk_args){score, 100, 128, got, scratch, &nan}), 100);
        assert_int_equal(got[99], 99);
        assert_int_equal(nan, 0);
    }
    free(scratch);
}

/* The only scores above the rest lie where the AVX-512 form takes its sample, too few of them for k: its
 * guess is too high. Then the same places are low, so that the guess lets all others pass. */
static void misleading_sample(void **state)
{
    enum { N = 65536, K = 64, SAMPLE = 1024, STRETCH = N / SAMPLE };
    kr_rng rng = kr_rng_make(6, 0);

    (void)state;
    for (int low = 0; low < 2; low++) {
        void *scratch = aligned_alloc(64, kr_select_scratch_bytes(N, K));
        uint64_t want_nan;

        assert_non_null(scratch);
        for (uint32_t i = 0; i < N; i++)
            score[i] = (float)kr_rng_normal(&rng);
        for (uint32_t i = 0; i < (low ? SAMPLE : 40); i++)
            score[i * STRETCH + (uint32_t)((uint64_t)(i * 2654435761u) * STRETCH >> 32)] = low ? -9.0f : 9.0f;
        const uint32_t m = oracle(N, K, &want_nan);

        for (const kr_select_topk_variant *v = kr_select_topk_variants; v->run; v++) {
            uint64_t nan = 0;

            if (!v->variant.usable())
                continue;
            assert_int_equal(v->run(&(kr_select_topk_args){score, N, K, got, scratch, &nan}), m);
            assert_memory_equal(got, want, m * sizeof *got);
        }
        free(scratch);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_sort),
        cmocka_unit_test(ties_and_low_scores),
        cmocka_unit_test(misleading_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
