/* Scenarios and studies: iso-power, conversion of traces, the largest number of sessions, and what a
 * point that cannot be says. Runs from the root of the tree, for data/. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/study.h"
#include "plan/timeline.h"
#include "workload/generate.h"

static kr_scenario_options options_of(kr_system system, uint32_t gpus, uint32_t devices)
{
    return (kr_scenario_options){.data = "data",
                                 .model = "minimax-m3",
                                 .system = system,
                                 .method = "native",
                                 .gpus = gpus,
                                 .devices = devices,
                                 .ep = 16,
                                 .tp = 1,
                                 .micro_batches = 2,
                                 .factors = KR_PLAN_NO_FACTORS};
}

static kr_plan_workload small_workload(void)
{
    kr_plan_workload w;
    kr_trace trace;
    kr_err err;

    assert_int_equal(kr_trace_generate(&trace, kr_trace_recipe_find("swe-pro"), 100, 5, &err), KR_OK);
    assert_int_equal(kr_plan_workload_of(&trace, &(kr_plan_load){0}, &w, &err), KR_OK);
    kr_trace_free(&trace);
    return w;
}

static void iso_power(void **state)
{
    uint32_t gpus = 16;
    (void)state;

    assert_int_equal(kr_system_devices_for(KR_SYSTEM_KARAT, 44800, &gpus), 192);
    assert_int_equal(kr_system_devices_for(KR_SYSTEM_SPNM, 44800, &gpus), 224);
    gpus = 32;
    assert_int_equal(kr_system_devices_for(KR_SYSTEM_KARAT, 44800, &gpus), 128);
    assert_int_equal(kr_system_devices_for(KR_SYSTEM_GPU_ONLY, 44800, &gpus), 0);
    assert_int_equal(gpus, 64);
    assert_int_equal(kr_system_devices_for(KR_SYSTEM_DUPLEX, 44800, &gpus), 0);
    assert_int_equal(gpus, 48);
}

static void nearest_power(void **state)
{
    uint32_t gpus, devices;
    (void)state;

    /* 48 H200s and 3 nodes of 32 AttAcc devices take 45.12 kW; no other pair is nearer to 44.8. */
    kr_system_nearest(KR_SYSTEM_ATTACC, 44800, &gpus, &devices);
    assert_int_equal(gpus, 48);
    assert_int_equal(devices, 96);
    kr_system_nearest(KR_SYSTEM_SPNM, 44800, &gpus, &devices);
    assert_int_equal(gpus, 16);
    assert_int_equal(devices, 224);
    kr_system_nearest(KR_SYSTEM_GPU_ONLY, 44800, &gpus, &devices);
    assert_int_equal(gpus, 64);
    assert_int_equal(devices, 0);
}

/* A node of eight keeps its share of an exchange off the network. What then crosses it, at 50 GB/s a
 * GPU, is within a tenth of DeepEP's measured slopes (data/devices/h200.json) for 2, 4 and 8 nodes. */
static void exchanges_stay_inside_a_node(void **state)
{
    static const uint32_t ranks[] = {16, 32, 64};
    kr_device_model h200;
    kr_err err;

    (void)state;
    assert_int_equal(kr_device_model_load("data/devices/h200.json", &h200, &err), KR_OK);
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        const double crossing = 8.0 * 7168 * (1.0 - 8.0 / ranks[i]) / h200.link_bytes_per_s;
        kr_device_job job = {.op = KR_OP_DISPATCH, .model = "DeepSeek-V3.2", .ranks = ranks[i], .rows = 1000};
        const uint64_t many = kr_device_op_time(&h200, &job).ns;

        job.rows = 500;
        const double slope = (double)(many - kr_device_op_time(&h200, &job).ns) / 500 * 1e-9;

        if (fabs(crossing / slope - 1) > 0.11)
            fail_msg("%u ranks: %.3g s a row by bytes, %.3g measured", ranks[i], crossing, slope);
    }
    kr_plan_workload w = small_workload();
    uint64_t busy[2];

    for (int flat = 0; flat < 2; flat++) {
        kr_scenario_options o = options_of(KR_SYSTEM_KARAT, 16, 64);
        const kr_study_options study = {.rebalance = true, .steps_max = 5, .seeds = 1, .seed = 1};
        kr_study_result r;
        kr_scenario s;

        o.all_to_all_by_bytes = true;
        o.flat_network = flat == 1;
        assert_int_equal(kr_scenario_init(&s, &o, w.context_max, &err), KR_OK);
        assert_int_equal(kr_study_run(&s, &w, &study, 200, &r, &err), KR_OK);
        busy[flat] = (uint64_t)(r.first.busy[KR_ON_A2A] * (double)r.first.measured_ns);
        kr_scenario_free(&s);
    }
    /* Half of what 16 ranks exchange, and the latency. */
    assert_true(busy[0] > busy[1] / 2 && busy[0] < busy[1] * 6 / 10);
    kr_plan_workload_free(&w);
}

/* What a session is promised: more at once, fewer sessions. A promise of the turn alone can overdraw. */
static void promises(void **state)
{
    static const kr_promise promise[] = {KR_PROMISE_TURN, KR_PROMISE_REST, KR_PROMISE_SESSION};
    const kr_scenario_options o = options_of(KR_SYSTEM_KARAT, 16, 32);
    kr_plan_workload w = small_workload();
    uint64_t held[3];
    kr_scenario s;
    kr_err err;

    (void)state;
    assert_int_equal(kr_scenario_init(&s, &o, w.context_max, &err), KR_OK);
    for (int i = 0; i < 3; i++) {
        const kr_sim_options rule = {
            .rebalance = true, .promise = promise[i], .sessions = 3000, .seed = 1, .steps_max = 20};
        kr_sim_result r;

        assert_int_equal(kr_sim_run(&s.program, &s.hardware, &w.view, &rule, NULL, &r, &err), KR_OK);
        held[i] = r.admitted - r.finished;
        assert_true(i == 0 || r.overdrawn == 0);
    }
    assert_true(held[0] > held[1] && held[1] >= held[2]);
    kr_scenario_free(&s);
    kr_plan_workload_free(&w);
}

/* Contexts cut to what a model can hold: nothing is longer, what was shorter is as it was. */
static void contexts_are_cut(void **state)
{
    static const uint64_t LIMIT = 50000;
    kr_plan_workload w = small_workload(), cut;
    uint64_t shortened = 0;
    kr_err err;

    (void)state;
    assert_int_equal(kr_plan_workload_cut(&w, LIMIT, &cut, &err), KR_OK);
    assert_int_equal(cut.view.sessions, w.view.sessions);
    for (uint32_t s = 0; s < w.view.sessions; s++)
        for (uint32_t t = 0; t < w.session[s].turns; t++) {
            const kr_sim_turn *a = &w.session[s].turn[t], *b = &cut.session[s].turn[t];

            assert_true(b->context_tokens + b->output_tokens <= LIMIT && b->new_tokens <= b->context_tokens);
            if (a->context_tokens + a->output_tokens <= LIMIT)
                assert_memory_equal(a, b, sizeof *a);
            else
                shortened++;
        }
    assert_true(shortened > 0 && cut.context_max == LIMIT);
    kr_plan_workload_free(&cut);
    kr_plan_workload_free(&w);
}

/* Eight devices that share out a session's heads are one of eight times the size; MLA has no heads to
 * share out. */
static void spread_heads(void **state)
{
    kr_scenario_options o = options_of(KR_SYSTEM_KARAT, 16, 64);
    kr_scenario s;
    kr_err err;

    (void)state;
    o.spread = 4;
    assert_int_equal(kr_scenario_init(&s, &o, 1 << 18, &err), KR_OK);
    assert_int_equal(s.hardware.devices, 16);
    assert_true(s.memory.memory_bytes == 4 * 512e9 && s.tdp_w == 16 * 700 + 64 * 175);
    kr_scenario_free(&s);
    o.model = "deepseek-v3.2";
    assert_int_equal(kr_scenario_init(&s, &o, 1 << 18, &err), KR_E_ARG);
}

static void turns_without_output_are_left_out(void **state)
{
    kr_trace_turn turn[] = {{.input_tokens = 10, .output_tokens = 0},
                            {.input_tokens = 30, .output_tokens = 5, .cached_tokens = 12, .think_us = 7},
                            {.input_tokens = 9, .output_tokens = 0}};
    kr_trace_session session[] = {{.id = "a", .parent = KR_TRACE_NO_PARENT, .turns = 2},
                                  {.id = "b", .parent = KR_TRACE_NO_PARENT, .first_turn = 2, .turns = 1}};
    const kr_trace trace = {.session = session, .sessions = 2, .turn = turn, .turns = 3};
    kr_plan_workload w;
    kr_err err;
    (void)state;

    assert_int_equal(kr_plan_workload_of(&trace, &(kr_plan_load){.think = KR_THINK_TRACE}, &w, &err), KR_OK);
    assert_int_equal(w.view.sessions, 1);
    assert_int_equal(w.session[0].turns, 1);
    assert_int_equal(w.turn[0].new_tokens, 18);
    assert_int_equal(w.turn[0].think_ns, 7000);
    assert_int_equal(w.dropped_turns, 2);
    assert_int_equal(w.context_max, 35);
    kr_plan_workload_free(&w);
}

static void largest_number_of_sessions(void **state)
{
    const kr_scenario_options options = options_of(KR_SYSTEM_KARAT, 16, 32);
    kr_study_options study = {.policy = KR_POLICY_OFMS,
                              .rebalance = true,
                              .paper_window = true,
                              .seed = 3,
                              .seeds = 2,
                              .slo_s = 0.06};
    kr_plan_workload w = small_workload();
    kr_study_result r, more, again;
    kr_scenario s;
    kr_err err;
    (void)state;

    if (kr_scenario_init(&s, &options, w.context_max, &err) != KR_OK)
        fail_msg("%s", err.text);
    assert_true(s.tdp_w == 16 * 700.0 + 32 * 175.0);
    if (kr_study_find_max(&s, &w, &study, &r, &err) != KR_OK)
        fail_msg("%s", err.text);
    assert_true((double)r.first.tbt_p99_ns * 1e-9 <= study.slo_s);
    assert_non_null(strstr(r.bound, "P99"));
    study.seeds = 1;
    assert_int_equal(kr_study_run(&s, &w, &study, r.sessions * 103 / 100, &more, &err), KR_OK);
    assert_true((double)more.first.tbt_p99_ns * 1e-9 > study.slo_s);
    assert_int_equal(kr_study_run(&s, &w, &study, r.sessions, &again, &err), KR_OK);
    assert_true(again.first.digest == r.first.digest);
    kr_scenario_free(&s);
    kr_plan_workload_free(&w);
}

static void points_that_cannot_be(void **state)
{
    kr_scenario_options options = options_of(KR_SYSTEM_GPU_ONLY, 8, 0);
    const kr_study_options study = {.paper_window = true, .seed = 1, .seeds = 1, .slo_s = 0.1};
    kr_plan_workload w = small_workload();
    kr_study_result r;
    kr_scenario s;
    kr_err err;
    (void)state;

    options.model = "glm-5.2"; /* 1.5 TB of weights on eight GPUs */
    options.ep = 8;
    assert_int_equal(kr_scenario_init(&s, &options, w.context_max, &err), KR_OK);
    assert_int_equal(kr_study_find_max(&s, &w, &study, &r, &err), KR_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "weights"));
    kr_scenario_free(&s);
    options.system = KR_SYSTEM_KARAT;
    assert_int_equal(kr_scenario_init(&s, &options, w.context_max, &err), KR_E_ARG); /* no devices */
    options.tp = 3;
    assert_int_equal(kr_scenario_init(&s, &options, w.context_max, &err), KR_E_ARG);
    kr_plan_workload_free(&w);
}

static void timeline_is_json_with_every_track(void **state)
{
    const kr_scenario_options options = options_of(KR_SYSTEM_KARAT, 16, 32);
    const kr_study_options study = {.policy = KR_POLICY_OFMS, .seed = 1, .seeds = 1, .steps_max = 1};
    kr_plan_workload w = small_workload();
    size_t bytes = 0;
    char *text = NULL;
    FILE *out = open_memstream(&text, &bytes);
    kr_scenario s;
    kr_err err;
    (void)state;

    assert_int_equal(kr_scenario_init(&s, &options, w.context_max, &err), KR_OK);
    assert_int_equal(kr_timeline_write(&s, &w, &study, 64, 1, out, &err), KR_OK);
    fclose(out);
    for (const char *const *name =
             (const char *const[]){"slowest rank", "slowest device", "its link", "network", "\"score\"",
                                   "\"dispatch\"", "\"return_out\"", NULL};
         *name != NULL; name++)
        if (strstr(text, *name) == NULL)
            fail_msg("no %s in the timeline", *name);
    free(text);
    kr_scenario_free(&s);
    kr_plan_workload_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(iso_power),
        cmocka_unit_test(contexts_are_cut),
        cmocka_unit_test(nearest_power),
        cmocka_unit_test(exchanges_stay_inside_a_node),
        cmocka_unit_test(promises),
        cmocka_unit_test(spread_heads),
        cmocka_unit_test(turns_without_output_are_left_out),
        cmocka_unit_test(largest_number_of_sessions),
        cmocka_unit_test(points_that_cannot_be),
        cmocka_unit_test(timeline_is_json_with_every_track),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
