/* CMR: Algorithm 1 by hand on small cases, its imbalance bound and its distance from the best
 * partition on random ones; the count baseline moves nobody. */
#include "world.h"

static kr_request_view resident(uint64_t id, uint32_t device, uint64_t tokens)
{
    kr_request_view r = world_request(id, 0);

    r.device = device;
    r.context_tokens = tokens;
    return r;
}

static void by_hand(void **state)
{
    /* Device 0: 9 7 5 4 -> {9,4} {7,5}. Device 1: 3 3 with both micro-batches at two requests: the
     * first goes to 0 (smaller number), the second to 1. Device 2: one request; ties of tokens, and
     * of requests, so to 0. */
    static const uint8_t want[] = {1, 0, 0, 1, 0, 1, 0};
    uint8_t got[7];
    kr_sched_slot scratch[7];
    world w;

    (void)state;
    world_init(&w, 3);
    w.runs = 7;
    w.running[0] = resident(10, 0, 7);
    w.running[1] = resident(11, 0, 4);
    w.running[2] = resident(12, 0, 9);
    w.running[3] = resident(13, 0, 5);
    w.running[4] = resident(14, 1, 3);
    w.running[5] = resident(15, 1, 3);
    w.running[6] = resident(16, 2, 1);
    kr_sched_rebalance(&w.port, got, scratch);
    assert_memory_equal(got, want, sizeof want);
    w.micro_batches = 1;
    kr_sched_rebalance(&w.port, got, scratch);
    for (int i = 0; i < 7; i++)
        assert_int_equal(got[i], 0);
    w.runs = 0;
    kr_sched_rebalance(&w.port, got, scratch);
}

/* Equal tokens on a device: the micro-batch with fewer requests anywhere takes the next. */
static void ties_go_to_the_smaller(void **state)
{
    uint8_t got[3];
    kr_sched_slot scratch[3];
    world w;

    (void)state;
    world_init(&w, 2);
    w.runs = 2;
    w.running[0] = resident(1, 0, 5);
    w.running[1] = resident(2, 1, 5);
    kr_sched_rebalance(&w.port, got, scratch);
    assert_int_equal(got[0], 0);
    assert_int_equal(got[1], 1); /* both empty on device 1, micro-batch 0 has one request */
}

/* Smallest possible largest share of two micro-batches, over all 2^n partitions. */
static uint64_t best_partition(const uint64_t *tokens, uint32_t n)
{
    uint64_t sum = 0, best = UINT64_MAX;

    for (uint32_t i = 0; i < n; i++)
        sum += tokens[i];
    for (uint32_t set = 0; set < 1u << n; set++) {
        uint64_t a = 0;

        for (uint32_t i = 0; i < n; i++)
            a += set >> i & 1 ? tokens[i] : 0;
        a = a > sum - a ? a : sum - a;
        best = a < best ? a : best;
    }
    return best;
}

static void bound_and_distance(void **state)
{
    kr_rng rng = kr_rng_make(20261130, 2);

    (void)state;
    for (int round = 0; round < 400; round++) {
        uint8_t got[WORLD_REQUESTS];
        kr_sched_slot scratch[WORLD_REQUESTS];
        world w;

        world_init(&w, 4);
        w.runs = 1 + (uint32_t)kr_rng_below(&rng, 40);
        for (uint32_t i = 0; i < w.runs; i++) {
            const uint64_t scale = kr_rng_below(&rng, 4) == 0 ? 900000 : 50000;

            w.running[i] = resident(i * 3, (uint32_t)kr_rng_below(&rng, 4), 1 + kr_rng_below(&rng, scale));
        }
        kr_sched_rebalance(&w.port, got, scratch);
        for (uint32_t d = 0; d < 4; d++) {
            uint64_t share[2] = {0}, longest = 0, tokens[WORLD_REQUESTS], larger;
            uint32_t n = 0;

            for (uint32_t i = 0; i < w.runs; i++) {
                if (w.running[i].device != d)
                    continue;
                tokens[n++] = w.running[i].context_tokens;
                share[got[i]] += w.running[i].context_tokens;
                longest = tokens[n - 1] > longest ? tokens[n - 1] : longest;
            }
            larger = share[0] > share[1] ? share[0] : share[1];
            assert_true(2 * larger - share[0] - share[1] <= longest);
            /* Longest-first on two machines is within 7/6 of the best (Graham 1969). */
            if (n <= 14)
                assert_true(6 * larger <= 7 * best_partition(tokens, n));
        }
    }
}

static void equal_contexts_split_evenly(void **state)
{
    uint8_t got[WORLD_REQUESTS];
    kr_sched_slot scratch[WORLD_REQUESTS];

    (void)state;
    for (uint32_t n = 1; n <= WORLD_REQUESTS; n++) {
        uint32_t second = 0;
        world w;

        world_init(&w, 5);
        w.runs = n;
        for (uint32_t i = 0; i < n; i++)
            w.running[i] = resident(i, i % 5, 1000);
        kr_sched_rebalance(&w.port, got, scratch);
        for (uint32_t i = 0; i < n; i++)
            second += got[i];
        assert_true(second == n / 2 || second == (n + 1) / 2);
    }
}

static void count_baseline_keeps_assignments(void **state)
{
    uint8_t got[5];
    world w;

    (void)state;
    world_init(&w, 1);
    w.runs = 5;
    for (uint32_t i = 0; i < 5; i++)
        w.running[i] = resident(i, 0, 1000 * (i + 1));
    w.running[0].micro_batch = 1;
    w.running[1].micro_batch = 1;
    kr_sched_balance_count(&w.port, got);
    /* 0 and 1 stay; 2 and 3 fill micro-batch 0; the fifth is a tie, which the smaller number wins. */
    assert_int_equal(got[0], 1);
    assert_int_equal(got[1], 1);
    assert_int_equal(got[2], 0);
    assert_int_equal(got[3], 0);
    assert_int_equal(got[4], 0);
}

/* Each device is balanced for itself: six of one micro-batch elsewhere do not decide. */
static void count_baseline_is_by_device(void **state)
{
    uint8_t got[8];
    world w;

    (void)state;
    world_init(&w, 2);
    w.runs = 8;
    for (uint32_t i = 0; i < 8; i++)
        w.running[i] = resident(i, i >= 6, 1000);
    for (uint32_t i = 0; i < 6; i++)
        w.running[i].micro_batch = 0;
    kr_sched_balance_count(&w.port, got);
    assert_int_equal(got[6], 1);
    assert_int_equal(got[7], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(ties_go_to_the_smaller),
        cmocka_unit_test(bound_and_distance),
        cmocka_unit_test(equal_contexts_split_evenly),
        cmocka_unit_test(count_baseline_keeps_assignments),
        cmocka_unit_test(count_baseline_is_by_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
