/* Placement and spill over every small pool, admission in arrival order, and a closed queue that
 * always drains: no request waits forever (pitfalls M-01, M-05), no one is overtaken. */
#include "world.h"

static bool has_room(const kr_device_view *d)
{
    return d->up && d->pages_used + d->pages_reserved < d->pages_total;
}

/* All pools of three devices of up to two pages, each up or down, on one or two nodes. */
static void every_small_pool(void **state)
{
    uint32_t pools = 0;

    (void)state;
    for (uint32_t code = 0; code < 24 * 24 * 24; code++, pools++) {
        world w;
        kr_request_view r = world_request(1, 1);
        uint32_t rest = code, best = KR_NO_DEVICE;

        world_init(&w, 3);
        for (uint32_t d = 0; d < 3; d++, rest /= 24) {
            w.device[d].pages_total = 2;
            w.device[d].pages_used = rest % 3;
            w.device[d].pages_reserved = rest / 3 % 2;
            w.device[d].up = rest / 6 % 2;
            w.device[d].node = rest / 12 % 2;
        }
        for (uint32_t d = 0; d < 3; d++)
            if (has_room(&w.device[d]) &&
                (best == KR_NO_DEVICE || w.device[d].pages_used + w.device[d].pages_reserved <
                                             w.device[best].pages_used + w.device[best].pages_reserved))
                best = d;
        assert_int_equal(kr_sched_place(&w.port, &r), best);
        for (uint32_t prefix = 0; prefix < 3; prefix++) {
            r.prefix_device = prefix, r.prefix_tokens = 0;
            assert_int_equal(kr_sched_place(&w.port, &r), best);
            r.prefix_tokens = 128;
            assert_int_equal(kr_sched_place(&w.port, &r), has_room(&w.device[prefix]) ? prefix : best);
        }
        for (uint32_t home = 0; home < 3; home++) {
            const uint32_t spill = kr_sched_spill(&w.port, home);
            bool any = false;

            for (uint32_t d = 0; d < 3; d++) {
                const bool possible = has_room(&w.device[d]) && w.device[d].node == w.device[home].node;

                any |= possible;
                if (possible && spill != KR_NO_DEVICE) {
                    const uint64_t here = w.device[d].pages_used + w.device[d].pages_reserved;
                    const uint64_t there = w.device[spill].pages_used + w.device[spill].pages_reserved;

                    assert_true(there < here || (there == here && spill <= d));
                }
            }
            assert_int_equal(spill != KR_NO_DEVICE, any);
            if (any)
                assert_true(has_room(&w.device[spill]) && w.device[spill].node == w.device[home].node);
        }
    }
    assert_int_equal(pools, 13824);
}

static void refuses_what_can_never_fit(void **state)
{
    world w;
    kr_request_view big = world_request(1, 65 * 128), exact = world_request(2, 64 * 128);
    kr_admission a;

    (void)state;
    world_init(&w, 2);
    w.device[0].pages_total = 64;
    w.device[1].pages_total = 32;
    w.waiting[0] = big, w.waiting[1] = exact, w.waits = 2;
    a = kr_sched_admit(&w.port, &big);
    assert_int_equal(a.verdict, KR_REFUSE);
    assert_int_equal(a.pages_needed, 65);
    assert_int_equal(a.pages_largest, 64);
    /* The one behind it does not wait for it. */
    a = kr_sched_admit(&w.port, &exact);
    assert_int_equal(a.verdict, KR_ADMIT);
    assert_int_equal(a.device, 0);
    /* Growth counts (M-08), and a bound over 2^64 is refused, not wrapped. */
    exact.max_new_tokens = 1;
    assert_int_equal(kr_sched_admit(&w.port, &exact).verdict, KR_REFUSE);
    exact.max_new_tokens = UINT64_MAX;
    assert_int_equal(kr_sched_admit(&w.port, &exact).verdict, KR_REFUSE);
    /* With every device lost there is nothing to judge by yet. */
    w.device[0].up = w.device[1].up = false;
    assert_int_equal(kr_sched_admit(&w.port, &big).verdict, KR_DEFER);
}

static void nobody_overtakes(void **state)
{
    world w;
    kr_request_view first = world_request(7, 40 * 128), second = world_request(3, 1);

    (void)state;
    world_init(&w, 1);
    w.device[0].pages_total = 64, w.device[0].pages_reserved = 30;
    w.waiting[0] = first, w.waiting[1] = second, w.waits = 2;
    assert_int_equal(kr_sched_admit(&w.port, &first).verdict, KR_DEFER);
    assert_int_equal(kr_sched_admit(&w.port, &second).verdict, KR_DEFER); /* it would fit */
    w.device[0].pages_reserved = 24;
    assert_int_equal(kr_sched_admit(&w.port, &first).verdict, KR_ADMIT);
    w.rows_max = 0;
    assert_int_equal(kr_sched_admit(&w.port, &first).verdict, KR_DEFER);
}

/* A next turn stays at home; the pages it holds are not asked for again, the rest may spill. */
static void next_turn_stays_home(void **state)
{
    world w;
    kr_request_view turn = world_request(1, 2 * 128);

    (void)state;
    world_init(&w, 3);
    for (int d = 0; d < 3; d++)
        w.device[d].pages_total = 10;
    w.device[2].node = 1;
    turn.device = 1, turn.context_tokens = 8 * 128;
    w.device[1].pages_used = 8;
    assert_int_equal(kr_sched_admit(&w.port, &turn).device, 1);
    w.device[1].pages_used = 10;
    assert_int_equal(kr_sched_admit(&w.port, &turn).device, 1); /* spills to device 0 */
    w.device[0].pages_used = 9;
    assert_int_equal(kr_sched_admit(&w.port, &turn).verdict, KR_DEFER); /* device 2 is another node */
    w.device[1].up = false, w.device[0].pages_used = 0;
    assert_int_equal(kr_sched_admit(&w.port, &turn).verdict, KR_DEFER);
}

/* Random queues on random pools: requests leave in arrival order, each is admitted or refused, and
 * no device is ever promised more than it has. */
static void queues_drain(void **state)
{
    kr_rng rng = kr_rng_make(20261130, 1);

    (void)state;
    for (int round = 0; round < 500; round++) {
        world w;
        uint64_t pages_of[WORLD_REQUESTS], next_to_admit = 0;
        uint32_t device_of[WORLD_REQUESTS], steps = 0, total = 1 + (uint32_t)kr_rng_below(&rng, 40);

        world_init(&w, 1 + (uint32_t)kr_rng_below(&rng, 4));
        w.rows_max = 1 + (uint32_t)kr_rng_below(&rng, 8);
        for (uint32_t d = 0; d < w.devices; d++)
            w.device[d].pages_total = 1 + kr_rng_below(&rng, 20);
        for (uint32_t i = 0; i < total; i++)
            w.waiting[w.waits++] = world_request(i, 1 + kr_rng_below(&rng, 25 * 128));
        while (w.waits != 0 || w.runs != 0) {
            const kr_admission a = w.waits != 0 ? kr_sched_admit(&w.port, &w.waiting[0])
                                                : (kr_admission){.verdict = KR_DEFER};
            uint32_t out;

            if (steps++ > 1000)
                fail_msg("round %d does not drain", round);
            if (a.verdict != KR_DEFER) {
                assert_int_equal(w.waiting[0].id, next_to_admit++);
                if (a.verdict == KR_ADMIT) {
                    device_of[w.waiting[0].id] = a.device;
                    pages_of[w.waiting[0].id] = a.pages_needed;
                    w.device[a.device].pages_reserved += a.pages_needed;
                    assert_true(w.device[a.device].pages_reserved <= w.device[a.device].pages_total);
                    w.running[w.runs++] = w.waiting[0];
                    assert_true(w.runs <= w.rows_max);
                }
                memmove(w.waiting, w.waiting + 1, --w.waits * sizeof w.waiting[0]);
                continue;
            }
            assert_true(w.runs != 0); /* deferred only while something runs */
            out = (uint32_t)kr_rng_below(&rng, w.runs);
            w.device[device_of[w.running[out].id]].pages_reserved -= pages_of[w.running[out].id];
            memmove(w.running + out, w.running + out + 1, (--w.runs - out) * sizeof w.running[0]);
        }
        assert_int_equal(next_to_admit, total);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_pool), cmocka_unit_test(refuses_what_can_never_fit),
        cmocka_unit_test(nobody_overtakes), cmocka_unit_test(next_turn_stays_home),
        cmocka_unit_test(queues_drain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
