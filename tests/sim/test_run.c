/* The closed loop: conservation and ordering on random configurations, equal results for equal
 * inputs, folded against expanded, capacity, edge cases, and ingest as the queue M/D/1.
 *
 * KR_TEST_LONG=1 in the environment runs 10,000 random configurations instead of 500. */
#include <math.h>

#include "tiny.h"

enum { SESSIONS_MAX = 64, TURNS_MAX = 8 };

typedef struct {
    kr_sim_turn turn[SESSIONS_MAX][TURNS_MAX];
    kr_sim_session session[SESSIONS_MAX];
    kr_sim_workload view;
} workload;

static void random_workload(workload *w, kr_rng *rng, uint64_t context_max)
{
    const uint32_t sessions = 1 + (uint32_t)kr_rng_below(rng, SESSIONS_MAX);

    for (uint32_t s = 0; s < sessions; s++) {
        const uint32_t turns = 1 + (uint32_t)kr_rng_below(rng, TURNS_MAX);

        for (uint32_t t = 0; t < turns; t++) {
            const uint64_t context = kr_rng_below(rng, context_max);

            w->turn[s][t] = (kr_sim_turn){
                .context_tokens = context,
                .new_tokens = kr_rng_below(rng, context + 1),
                .output_tokens = 1 + kr_rng_below(rng, 20),
                .think_ns = kr_rng_below(rng, 2) ? 0 : kr_rng_below(rng, 1u << 22),
            };
        }
        /* Trace ids may use all 64 bits. */
        w->session[s] = (kr_sim_session){.id = UINT64_MAX - s, .turn = w->turn[s], .turns = turns};
    }
    w->view = (kr_sim_workload){.session = w->session, .sessions = sessions};
}

typedef struct {
    uint64_t tokens, steps, last_end, *length, capacity;
    uint32_t *rows;
} seen;

static void see_step(void *context, const kr_sim_step_view *v)
{
    seen *s = context;

    assert_true(v->begin_ns >= s->last_end && v->end_ns >= v->begin_ns && v->rows > 0);
    assert_int_equal(v->step, s->steps);
    s->last_end = v->end_ns;
    s->tokens += v->rows;
    if (s->steps < s->capacity) {
        s->length[s->steps] = v->end_ns - v->begin_ns;
        s->rows[s->steps] = v->rows;
    }
    s->steps++;
}

static kr_sim_options random_options(kr_rng *rng)
{
    return (kr_sim_options){
        .policy = (kr_step_policy)kr_rng_below(rng, 2),
        .rebalance = kr_rng_below(rng, 2),
        .expanded = kr_rng_below(rng, 2),
        .sessions = 1 + (uint32_t)kr_rng_below(rng, 40),
        .rows_max = kr_rng_below(rng, 3) ? 0 : 1 + (uint32_t)kr_rng_below(rng, 10),
        .first_turns = kr_rng_below(rng, 2),
        .seed = kr_rng_next(rng),
        .steps_max = 1 + kr_rng_below(rng, 60),
        .warmup_percent = (uint32_t)kr_rng_below(rng, 60),
    };
}

static void check_result(const kr_sim_result *r, const kr_sim_options *o, const seen *s)
{
    double share;

    assert_int_equal(r->steps, s->steps);
    assert_int_equal(r->tokens, s->tokens);
    assert_int_equal(r->elapsed_ns, s->last_end);
    assert_true(r->measured_steps >= 1 && r->measured_steps <= r->steps);
    assert_true(r->tbt_p50_ns <= r->tbt_p90_ns && r->tbt_p90_ns <= r->tbt_p99_ns);
    assert_true(r->tbt_p99_ns <= r->tbt_max_ns);
    assert_true(r->admitted >= r->finished && r->admitted - r->finished <= o->sessions);
    assert_int_equal(r->in_flight, o->sessions);
    for (int k = 0; k < KR_RESOURCE_COUNT; k++)
        assert_true(r->busy[k] >= 0.0 && r->busy[k] <= 1.0000001 && r->stall[k] >= 0.0);
    share = r->busy[KR_ON_COMPUTE] + r->stall[KR_ON_DEVICE] + r->stall[KR_ON_LINK] + r->stall[KR_ON_A2A];
    assert_true(share <= 1.0000001);
    share = 0.0;
    for (int k = 0; k < KR_PROVENANCE_COUNT; k++)
        share += r->provenance[k];
    assert_true(share == 0.0 || fabs(share - 1.0) < 1e-9);
}

/* No stuck run, no negative time, no lost session, and the same bytes again; expanded never later
 * than folded under SCMS, whose order is fixed, so that longer ops can only make it longer. */
static void random_configurations(void **state)
{
    const uint64_t seed = 20261130;
    const uint32_t rounds = getenv("KR_TEST_LONG") != NULL ? 10000 : 500;
    kr_rng rng = kr_rng_make(seed, 5);
    static workload w;
    uint32_t completed = 0, too_small = 0;

    (void)state;
    print_message("seed %llu, %u configurations\n", (unsigned long long)seed, rounds);
    for (uint32_t round = 0; round < rounds; round++) {
        const uint32_t ranks = 1 + (uint32_t)kr_rng_below(&rng, 6);
        const uint32_t devices = 1 + (uint32_t)kr_rng_below(&rng, 6);
        const kr_model model = tiny_model(&rng);
        const kr_parallel parallel = tiny_parallel(&rng, ranks);
        const bool remote = parallel.placement != KR_PLACE_ALL_ON_COMPUTE;
        kr_device_model compute = tiny_device("compute"), memory = tiny_device("memory");
        kr_sim_options options = random_options(&rng);
        kr_sim_hardware hardware = {.compute = &compute,
                                    .memory = remote ? &memory : NULL,
                                    .devices = devices,
                                    .devices_per_node = 1 + (uint32_t)kr_rng_below(&rng, 3)};
        seen first = {0}, second = {0};
        kr_sim_watch watch = {.context = &first, .step = see_step};
        kr_sim_result a, b;
        kr_status status;
        kr_err err;
        tiny t;

        if (kr_rng_below(&rng, 4) == 0)
            memory.link_latency_s = memory.fixed_s = compute.fixed_s = 0.0;
        if (kr_rng_below(&rng, 8) == 0)
            memory.fixed_s = 3.0;       /* an op of three seconds */
        if (kr_rng_below(&rng, 3) == 0) /* a pool that some sessions, or all, do not fit */
            memory.memory_bytes = compute.memory_bytes = 1e6 * (1 + (double)kr_rng_below(&rng, 10));
        if (kr_rng_below(&rng, 3) == 0)
            memory.can[KR_OP_SELECT] = memory.can[KR_OP_SCORE] = false;
        tiny_build(&t, &model, &parallel);
        random_workload(&w, &rng, kr_rng_below(&rng, 2) ? 2000 : 50000);
        status = kr_sim_run(&t.program, &hardware, &w.view, &options, &watch, &a, &err);
        if (status == KR_OK) {
            completed++;
            check_result(&a, &options, &first);
            watch.context = &second;
            assert_int_equal(kr_sim_run(&t.program, &hardware, &w.view, &options, &watch, &b, &err), KR_OK);
            assert_memory_equal(&a, &b, sizeof a);
            if (options.policy == KR_POLICY_SCMS && options.steps_max == 1) {
                options.expanded = true;
                assert_int_equal(kr_sim_run(&t.program, &hardware, &w.view, &options, NULL, &a, &err), KR_OK);
                options.expanded = false;
                assert_int_equal(kr_sim_run(&t.program, &hardware, &w.view, &options, NULL, &b, &err), KR_OK);
                assert_true(a.elapsed_ns <= b.elapsed_ns);
            }
        } else {
            if (status != KR_E_LIMIT && status != KR_E_UNSUPPORTED)
                fail_msg("round %u: %s", round, err.text);
            too_small++;
        }
        tiny_free(&t);
    }
    print_message("%u ran, %u had memory for nothing\n", completed, too_small);
    assert_true(completed > rounds / 2 && too_small > 0);
}

/* ---- one fixed system for the rest ---- */

typedef struct {
    tiny t;
    kr_device_model compute, memory;
    kr_sim_hardware hardware;
    kr_sim_options options;
} system_under_test;

static void build_placed(system_under_test *s, kr_placement placement, uint32_t ranks, uint32_t devices,
                         uint32_t micro_batches)
{
    kr_rng rng = kr_rng_make(9, 9);
    kr_model model = tiny_model(&rng);
    const kr_parallel parallel = {.tp = 1,
                                  .ep = 2,
                                  .dp = ranks,
                                  .micro_batches = micro_batches,
                                  .placement = placement,
                                  .activation = KR_BF16,
                                  .dispatch = KR_E4M3,
                                  .combine = KR_BF16};

    model.layers = 3;
    for (uint32_t l = 0; l < 3; l++)
        model.layer[l] = (kr_layer){.ffn = KR_FFN_MOE, .indexed = l != 0, .index_owner = (uint16_t)l};
    tiny_build(&s->t, &model, &parallel);
    s->compute = tiny_device("compute");
    s->memory = tiny_device("memory");
    s->hardware = (kr_sim_hardware){
        .compute = &s->compute, .memory = &s->memory, .devices = devices, .devices_per_node = devices};
    s->options = (kr_sim_options){
        .policy = KR_POLICY_OFMS, .rebalance = true, .sessions = 8, .seed = 1, .steps_max = 50};
}

static void build_system(system_under_test *s, uint32_t ranks, uint32_t devices, uint32_t micro_batches)
{
    build_placed(s, KR_PLACE_ALL_ON_NODE, ranks, devices, micro_batches);
}

static kr_status run(system_under_test *s, const kr_sim_workload *w, const kr_sim_watch *watch,
                     kr_sim_result *result, kr_err *err)
{
    return kr_sim_run(&s->t.program, &s->hardware, w, &s->options, watch, result, err);
}

/* With the same load everywhere the folded run is the expanded one. */
static void folded_equals_expanded(void **state)
{
    static const uint32_t shapes[][2] = {{1, 1}, {2, 2}, {2, 6}, {4, 2}, {6, 4}};
    const kr_sim_turn turn = {.context_tokens = 5000, .new_tokens = 5000, .output_tokens = 1000};
    const kr_sim_session session = {.id = 1, .turn = &turn, .turns = 1};
    const kr_sim_workload w = {.session = &session, .sessions = 1};

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (uint32_t policy = 0; policy < 2; policy++) {
            system_under_test s;
            kr_sim_result folded, expanded;
            kr_err err;

            build_system(&s, shapes[i][0], shapes[i][1], 2);
            s.options.policy = (kr_step_policy)policy;
            s.options.sessions = 4 * shapes[i][0] * shapes[i][1];
            assert_int_equal(run(&s, &w, NULL, &folded, &err), KR_OK);
            s.options.expanded = true;
            assert_int_equal(run(&s, &w, NULL, &expanded, &err), KR_OK);
            assert_int_equal(folded.elapsed_ns, expanded.elapsed_ns);
            assert_int_equal(folded.digest, expanded.digest);
            for (int k = 0; k < KR_RESOURCE_COUNT; k++)
                if (fabs(folded.busy[k] - expanded.busy[k]) > 1e-6)
                    fail_msg("%u ranks, %u devices: busy[%d] %.9f folded, %.9f expanded", shapes[i][0],
                             shapes[i][1], k, folded.busy[k], expanded.busy[k]);
            tiny_free(&s.t);
        }
    }
}

static void seeds_and_percentiles(void **state)
{
    static workload w;
    static uint64_t length[500];
    static uint32_t rows[500];
    kr_rng rng = kr_rng_make(3, 3);
    seen s = {.length = length, .rows = rows, .capacity = 500};
    const kr_sim_watch watch = {.context = &s, .step = see_step};
    system_under_test sut;
    kr_sim_result r, other;
    uint64_t below = 0, upto = 0;
    kr_err err;

    (void)state;
    random_workload(&w, &rng, 50000);
    build_system(&sut, 2, 4, 2);
    sut.options.steps_max = 500;
    sut.options.sessions = 20;
    assert_int_equal(run(&sut, &w.view, &watch, &r, &err), KR_OK);
    for (int i = 0; i < 500; i++) {
        below += length[i] < r.tbt_p99_ns ? rows[i] : 0;
        upto += length[i] <= r.tbt_p99_ns ? rows[i] : 0;
    }
    assert_true(below * 100 < r.tokens * 99 && upto * 100 >= r.tokens * 99);
    assert_true(fabs(r.tokens_per_s - (double)r.tokens * 1e9 / (double)r.elapsed_ns) < 1e-6 * r.tokens_per_s);
    assert_true(r.tdp_w == 600.0);
    sut.options.seed = 2;
    assert_int_equal(run(&sut, &w.view, NULL, &other, &err), KR_OK);
    assert_true(other.digest != r.digest);
    tiny_free(&sut.t);
}

/* Pools of exactly two sessions a device: never more decode at once, the others wait their turn. */
static void capacity_bounds_the_batch(void **state)
{
    const kr_sim_turn turn = {.context_tokens = 1270, .new_tokens = 1270, .output_tokens = 10};
    const kr_sim_session session = {.id = 1, .turn = &turn, .turns = 1};
    const kr_sim_workload w = {.session = &session, .sessions = 1};
    kr_memory_plan plan;
    system_under_test s;
    kr_sim_result r;
    kr_err err;

    (void)state;
    build_system(&s, 2, 3, 2);
    assert_int_equal(kr_program_memory(&s.t.program, 1 << 20, 1, &plan, &err), KR_OK);
    s.memory.memory_bytes = 20.5 * (double)plan.page_bytes[0]; /* a session takes 10 pages */
    s.options.sessions = 30;
    s.options.steps_max = 200;
    assert_int_equal(run(&s, &w, NULL, &r, &err), KR_OK);
    assert_true(r.rows_mean <= 6.0 && r.rows_mean > 3.0);
    assert_int_equal(r.waiting_max, 30);
    assert_true(r.finished >= 30);
    s.memory.memory_bytes = 9.5 * (double)plan.page_bytes[0];
    assert_int_equal(run(&s, &w, NULL, &r, &err), KR_E_LIMIT);
    assert_non_null(strstr(err.text, "needs 10 pages, the largest device has 9"));
    s.compute.memory_bytes = 1000.0;
    assert_int_equal(run(&s, &w, NULL, &r, &err), KR_E_UNSUPPORTED);
    tiny_free(&s.t);
}

/* Shares that are all equal change nothing; a hot expert makes steps longer, balancing less so. */
static void skewed_experts(void **state)
{
    const kr_sim_turn turn = {.context_tokens = 500, .new_tokens = 500, .output_tokens = 1000};
    const kr_sim_session session = {.id = 1, .turn = &turn, .turns = 1};
    const kr_sim_workload w = {.session = &session, .sessions = 1};
    double even[8], hot[8] = {0.44, 0.08, 0.08, 0.08, 0.08, 0.08, 0.08, 0.08};
    kr_sim_result uniform, equal, skewed, balanced;
    system_under_test s;
    kr_err err;

    (void)state;
    build_system(&s, 2, 2, 2);
    s.options.sessions = 512;
    s.compute.fixed_s = 0.0;
    for (int i = 0; i < 8; i++)
        even[i] = 0.125;
    assert_int_equal(run(&s, &w, NULL, &uniform, &err), KR_OK);
    s.options.expert_share = even;
    assert_int_equal(run(&s, &w, NULL, &equal, &err), KR_OK);
    assert_int_equal(equal.digest, uniform.digest);
    s.options.expert_share = hot;
    assert_int_equal(run(&s, &w, NULL, &skewed, &err), KR_OK);
    s.options.balance_experts = true;
    assert_int_equal(run(&s, &w, NULL, &balanced, &err), KR_OK);
    assert_true(skewed.elapsed_ns > balanced.elapsed_ns && balanced.elapsed_ns >= uniform.elapsed_ns);
    hot[0] = 0.5;
    assert_int_equal(run(&s, &w, NULL, &skewed, &err), KR_E_ARG);
    tiny_free(&s.t);
}

/* HiSparse: more sessions than the accelerator holds, each step longer by what is missed. */
static void host_tier(void **state)
{
    const kr_sim_turn turn = {.context_tokens = 12700, .new_tokens = 12700, .output_tokens = 100};
    const kr_sim_session session = {.id = 1, .turn = &turn, .turns = 1};
    const kr_sim_workload w = {.session = &session, .sessions = 1};
    kr_sim_result without, hit, miss;
    kr_memory_plan plan;
    system_under_test s;
    kr_err err;

    (void)state;
    build_system(&s, 2, 2, 1);
    s.hardware.host_bytes = 1e9, s.hardware.host_bytes_per_s = 1e9;
    assert_int_equal(run(&s, &w, NULL, &hit, &err), KR_E_ARG); /* has memory devices */
    tiny_free(&s.t);
    build_placed(&s, KR_PLACE_ALL_ON_COMPUTE, 2, 2, 1);
    s.hardware.memory = NULL;
    assert_int_equal(kr_program_memory(&s.t.program, 1 << 20, 1, &plan, &err), KR_OK);
    s.compute.memory_bytes = (double)plan.weight_bytes + 210.0 * (double)plan.page_bytes[0];
    s.options.sessions = 16;
    s.options.steps_max = 90; /* before the first session ends */
    assert_int_equal(run(&s, &w, NULL, &without, &err), KR_OK);
    assert_true(without.rows_mean <= 4.0); /* two sessions of 100 pages a rank */
    s.hardware.host_bytes = 1e9, s.hardware.host_bytes_per_s = 1e9;
    assert_int_equal(run(&s, &w, NULL, &hit, &err), KR_OK);
    assert_true(hit.rows_mean == 16.0);
    s.hardware.host_miss_share = 0.05;
    assert_int_equal(run(&s, &w, NULL, &miss, &err), KR_OK);
    assert_true(miss.tbt_p50_ns > hit.tbt_p50_ns);
    tiny_free(&s.t);
}

static void refused_options(void **state)
{
    const kr_sim_turn turn = {.context_tokens = 10, .new_tokens = 10, .output_tokens = 1};
    kr_sim_turn empty = turn, grown = turn;
    kr_sim_session session = {.id = 1, .turn = &turn, .turns = 1};
    kr_sim_workload w = {.session = &session, .sessions = 1};
    system_under_test s;
    kr_sim_result r;
    kr_err err;

    (void)state;
    build_system(&s, 1, 1, 1);
    s.options.sessions = 1;
    assert_int_equal(run(&s, &w, NULL, &r, &err), KR_OK);
    s.options.steps_max = 0;
    assert_int_equal(run(&s, &w, NULL, &r, &err), KR_E_ARG);
    s.options.steps_max = 1, s.options.sessions = 0;
    assert_int_equal(run(&s, &w, NULL, &r, &err), KR_E_ARG);
    s.options.sessions = 1, s.hardware.memory = NULL;
    assert_int_equal(run(&s, &w, NULL, &r, &err), KR_E_ARG);
    s.hardware.memory = &s.memory, w.sessions = 0;
    assert_int_equal(run(&s, &w, NULL, &r, &err), KR_E_ARG);
    w.sessions = 1, session.turn = &empty, empty.output_tokens = 0;
    assert_int_equal(run(&s, &w, NULL, &r, &err), KR_E_ARG);
    session.turn = &grown, grown.new_tokens = 11;
    assert_int_equal(run(&s, &w, NULL, &r, &err), KR_E_ARG);
    tiny_free(&s.t);
}

/* Many sessions that think for exponentially distributed times and each bring the same number of
 * tokens: arrivals at the device's ingest are Poisson, service is constant, so that the mean wait
 * is that of M/D/1, rho * s / (2 * (1 - rho)), here within 4 % (a finite population waits less). */
static void ingest_is_m_d_1(void **state)
{
    enum { TEMPLATES = 1500, TURNS = 200, SESSIONS = 1500 };
    static kr_sim_turn turn[TEMPLATES][TURNS];
    static kr_sim_session session[TEMPLATES];
    const kr_sim_workload w = {.session = session, .sessions = TEMPLATES};

    (void)state;
    for (int load = 5; load <= 8; load++) {
        kr_rng rng = kr_rng_make(11, (uint64_t)load);
        const double service_ns = 1e6, think_ns = SESSIONS * service_ns * 10 / load;
        kr_memory_plan plan;
        system_under_test s;
        kr_sim_result r;
        double rho, want, got;
        kr_err err;

        build_system(&s, 1, 1, 1);
        assert_int_equal(kr_program_memory(&s.t.program, 1 << 20, 1, &plan, &err), KR_OK);
        for (int i = 0; i < TEMPLATES; i++) {
            for (int t = 0; t < TURNS; t++)
                turn[i][t] = (kr_sim_turn){.context_tokens = 100,
                                           .new_tokens = 100,
                                           .output_tokens = 1,
                                           .think_ns = (uint64_t)(-log(1.0 - kr_rng_unit(&rng)) * think_ns)};
            session[i] = (kr_sim_session){.id = (uint64_t)i, .turn = turn[i], .turns = TURNS};
        }
        s.memory.link_bytes_per_s = 100.0 * (double)(plan.kv_token_bytes + plan.index_token_bytes) / 1e-3;
        s.compute.link_bytes_per_s = 1e15, s.compute.link_latency_s = s.memory.link_latency_s = 0.0;
        s.compute.fixed_s = s.memory.fixed_s = 1e-9;
        s.memory.memory_bytes = 1e12;
        s.options.sessions = SESSIONS;
        s.options.steps_max = 120000;
        assert_int_equal(run(&s, &w, NULL, &r, &err), KR_OK);
        rho = (double)r.ingests * service_ns / (double)r.elapsed_ns;
        want = rho * service_ns / (2.0 * (1.0 - rho));
        got = (double)r.ingest_wait_ns / (double)r.ingests;
        print_message("load %.3f: mean wait %.0f ns, M/D/1 %.0f ns\n", rho, got, want);
        assert_true(fabs(rho - load / 10.0) < 0.05);
        assert_true(fabs(got / want - 1.0) < 0.04);
        tiny_free(&s.t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_configurations), cmocka_unit_test(folded_equals_expanded),
        cmocka_unit_test(seeds_and_percentiles), cmocka_unit_test(capacity_bounds_the_batch),
        cmocka_unit_test(skewed_experts),        cmocka_unit_test(host_tier),
        cmocka_unit_test(refused_options),       cmocka_unit_test(ingest_is_m_d_1),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
