/* The GPU-FPGA pair of the memory-pipeline paper: its rules for running on the GPU alone, and how its gain
 * goes with the batch (Table 4's shape). Runs from the root of the tree, for data/. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/pair.h"

static void fallback_rules(void **state)
{
    (void)state;
    assert_false(kr_pair_falls_back("DSA", 1000000, 1));
    assert_true(kr_pair_falls_back("DSA", 1000001, 1));
    assert_true(kr_pair_falls_back("LServe", 1048576, 32));
    assert_false(kr_pair_falls_back("Seer top-k", 1048576, 32));
    assert_false(kr_pair_falls_back("MemAgent", 10000, 2));
    assert_true(kr_pair_falls_back("MemAgent", 10000, 3));
}

static kr_pair_tables *run(kr_pair_change change, uint32_t *count)
{
    static const kr_reproduce_options options = {.data = "data", .threads = 1};
    kr_claim *claims = malloc(KR_CLAIMS_MAX * sizeof *claims);
    kr_pair_tables *t = malloc(sizeof *t);
    kr_err err;

    if (kr_pair_run(&options, change, claims, count, t, &err) != KR_OK)
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < *count; i++)
        assert_true(claims[i].values + claims[i].lost > 0);
    free(claims);
    return t;
}

static double step_gain(const kr_pair_point *p) { return p->gpu_s / p->pair_s; }

/* With the GPU kernels that the paper measured: the scan is of each request's own keys, the dense part
 * shares its weights, so the gain grows with the batch. Longer contexts gain more while keys lie on chip.
 * MemAgent decodes in turn on the FPGA: the gain falls with the batch and crosses 1. */
static void gain_by_batch(void **state)
{
    uint32_t count;
    kr_pair_tables *t = run(KR_PAIR_ALL_OF_THEM, &count);
    (void)state;

    for (int m = 0; m < KR_PAIR_METHODS; m++)
        for (int b = 1; b < KR_PAIR_BATCHES; b++)
            assert_true(step_gain(&t->sparse[m][1][b]) >= step_gain(&t->sparse[m][1][b - 1]) * 0.999);
    for (int b = 1; b < KR_PAIR_BATCHES; b++)
        assert_true(t->agent_speedup[b] <= t->agent_speedup[b - 1]);
    assert_true(t->agent_speedup[0] > 1.5 && t->agent_speedup[KR_PAIR_BATCHES - 1] < 1);
    free(t);
}

/* On rooflines alone the GPU's faster memory wins wherever keys are many, and no request gains from a
 * device with a third of the bandwidth: what falls back is never slower than the GPU. */
static void steps_add_up(void **state)
{
    uint32_t count;
    kr_pair_tables *t = run(KR_PAIR_AS_TAKEN, &count);
    (void)state;

    assert_true(count > 25);
    for (int m = 0; m < KR_PAIR_METHODS; m++)
        for (int c = 0; c < KR_PAIR_CONTEXTS; c++) {
            const kr_pair_point *p = &t->sparse[m][c][0];

            assert_true(p->gpu_scan_s > 0 && p->gpu_scan_s < p->gpu_s);
            assert_true(p->pair_scan_s > 0 && p->link_s > 0 && p->pair_scan_s + p->link_s < p->pair_s);
            assert_true(p->memory_share > 0 && p->memory_share < 1);
            assert_true(!p->falls_back || kr_pair_step_s(p) == p->gpu_s);
            /* A longer context is never faster. */
            assert_true(c == 0 || p->gpu_s >= t->sparse[m][c - 1][0].gpu_s);
        }
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fallback_rules),
        cmocka_unit_test(gain_by_batch),
        cmocka_unit_test(steps_add_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
