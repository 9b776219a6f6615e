/* The probe chooses usable variants that give the scalar bits, stays near its budget, and says what
 * it took; binding names CPUs that exist. */
#include <sched.h>

#include "base/clock.h"
#include "device/bind.h"
#include "device/device.h"
#include "ops/variants.h"
#include "tests/test.h"

static void chooses_usable_variants(void **state)
{
    kr_cpu_probe probe;
    kr_ops ops;
    bool listed = false;

    (void)state;
    const uint64_t begin = kr_now_ns(&kr_clock_system);
    kr_cpu_choose(30, &ops, &probe);
    const uint64_t taken = kr_now_ns(&kr_clock_system) - begin;
    printf(
        "%s, %u cores: FMA %.1f, BF16 dot %.1f, FP16 %.1f, I8 dot %.1f G/s, read %.1f GB/s, in %.1f ms\n%s\n",
        probe.cpu, probe.cores, probe.f32_fma_flops / 1e9, probe.bf16_dot_flops / 1e9,
        probe.fp16_fma_flops / 1e9, probe.int8_dot_ops / 1e9, probe.read_bytes_per_s / 1e9,
        (double)taken / 1e6, probe.chosen);
    for (const kr_attend_tiled_variant *v = kr_attend_tiled_variants; v->run; v++)
        listed |= v->run == ops.attend_tiled && v->variant.usable();
    assert_true(listed);
    assert_non_null(strstr(probe.chosen, "attend_tiled "));
    assert_non_null(strstr(probe.chosen, "channel_dot "));
    assert_null(strstr(probe.chosen, "bf16")); /* approximate: never the probe's choice */
    assert_true(probe.f32_fma_flops > 1e8);
    assert_true(probe.cores >= 1 && probe.cpu[0] != 0);
    assert_true(taken < 3000000000u); /* the budget is a target; a crowded machine must not hang here */
}

static void no_budget_still_chooses(void **state)
{
    kr_cpu_probe probe;
    kr_ops ops;

    (void)state;
    kr_cpu_choose(0, &ops, &probe);
    assert_true(ops.attend_tiled != NULL && ops.page_score != NULL && ops.select_topk != NULL &&
                ops.row_dot != NULL);
    assert_true(probe.read_bytes_per_s == 0);
}

static void binding_names_real_cpus(void **state)
{
    uint32_t cpus[12];
    cpu_set_t set;
    kr_err err;

    (void)state;
    assert_int_equal(kr_bind_cpus(3, 4, cpus, &err), KR_OK);
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    for (uint32_t i = 0; i < 12; i++)
        assert_true(CPU_ISSET(cpus[i], &set));
    if (CPU_COUNT(&set) >= 2)
        assert_true(cpus[0] != cpus[1]);
    void *memory = aligned_alloc(4096, 8192);
    kr_bind_memory(memory, 8192, cpus[0]);
    memset(memory, 1, 8192);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chooses_usable_variants),
        cmocka_unit_test(no_budget_still_chooses),
        cmocka_unit_test(binding_names_real_cpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
