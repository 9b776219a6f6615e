/* A run that was recorded and read back from a file replays to the same decisions, under either
 * policy; a changed decision, another program and an impossible op are found. */
#include <unistd.h>

#include "tiny.h"

enum { EVENTS_MAX = 1 << 17 };

typedef struct {
    kr_run_event event[EVENTS_MAX];
    uint64_t count, starts;
} recorder;

static recorder recorded;

static void record(void *context, const kr_run_event *event)
{
    recorder *r = context;

    /* Messages are not chosen by a policy: only their arrival belongs into a record. */
    if (event->what == KR_RUN_STARTED && event->worker >= 2)
        return;
    assert_true(r->count < EVENTS_MAX);
    r->event[r->count++] = *event;
    r->starts += event->what == KR_RUN_STARTED && event->worker == 0;
}

/* Twenty steps of a two-micro-batch run with expert parallelism. */
static void simulate(tiny *t, kr_step_policy policy)
{
    static const kr_sim_turn turn[] = {{.context_tokens = 20000, .new_tokens = 500, .output_tokens = 9},
                                       {.context_tokens = 30000, .new_tokens = 900, .output_tokens = 5}};
    const kr_sim_session session = {.id = 1, .turn = turn, .turns = 2};
    const kr_sim_workload workload = {.session = &session, .sessions = 1};
    const kr_device_model compute = tiny_device("compute"), memory = tiny_device("memory");
    const kr_sim_hardware hardware = {
        .compute = &compute, .memory = &memory, .devices = 2, .devices_per_node = 2};
    const kr_sim_options options = {
        .policy = policy, .rebalance = true, .sessions = 6, .seed = 4, .steps_max = 20};
    const kr_sim_watch watch = {.context = &recorded, .event = record};
    const kr_parallel parallel = {.tp = 1,
                                  .ep = 2,
                                  .dp = 2,
                                  .micro_batches = 2,
                                  .activation = KR_BF16,
                                  .dispatch = KR_E4M3,
                                  .combine = KR_BF16};
    kr_rng rng = kr_rng_make(9, 9);
    kr_model model = tiny_model(&rng);
    kr_sim_result result;
    kr_err err;

    model.layers = 4;
    for (uint32_t l = 0; l < 4; l++)
        model.layer[l] = (kr_layer){.ffn = KR_FFN_MOE, .indexed = l > 0, .index_owner = (uint16_t)l};
    tiny_build(t, &model, &parallel);
    recorded.count = recorded.starts = 0;
    assert_int_equal(kr_sim_run(&t->program, &hardware, &workload, &options, &watch, &result, &err), KR_OK);
}

static kr_run_header header_of(const tiny *t, kr_step_policy policy)
{
    return (kr_run_header){.policy = (uint32_t)policy,
                           .workers = 2,
                           .steps = 20,
                           .micro_batches = 2,
                           .program_digest = kr_program_digest(&t->program)};
}

static void same_decisions(void **state)
{
    (void)state;
    for (uint32_t policy = 0; policy < 2; policy++) {
        char path[] = "/tmp/karat-replay-XXXXXX";
        FILE *file = fdopen(mkstemp(path), "w");
        kr_run_event *events;
        kr_run_header header;
        uint64_t count, decisions;
        kr_err err;
        tiny t;

        simulate(&t, (kr_step_policy)policy);
        header = header_of(&t, (kr_step_policy)policy);
        header.workers = 16; /* links and the network are numbered after the workers */
        assert_non_null(file);
        assert_int_equal(kr_run_write(file, &header, recorded.event, recorded.count, &err), KR_OK);
        fclose(file);
        assert_int_equal(kr_run_read(path, &header, &events, &count, EVENTS_MAX, &err), KR_OK);
        unlink(path);
        if (kr_sim_replay(&t.program, &header, events, count, &decisions, &err) != KR_OK)
            fail_msg("%s", err.text);
        assert_int_equal(decisions, recorded.starts);
        assert_int_equal(decisions, 20 * t.program.order_count[KR_ON_COMPUTE]);
        kr_free(events);
        tiny_free(&t);
    }
}

static void differences_are_found(void **state)
{
    kr_run_header header;
    uint64_t decisions = 77, first = UINT64_MAX;
    kr_err err;
    tiny t;

    (void)state;
    simulate(&t, KR_POLICY_OFMS);
    header = header_of(&t, KR_POLICY_SCMS); /* recorded under the other policy */
    assert_int_equal(kr_sim_replay(&t.program, &header, recorded.event, recorded.count, &decisions, &err),
                     KR_E_STALE);
    assert_int_equal(decisions, 77);
    header = header_of(&t, KR_POLICY_OFMS);
    header.program_digest ^= 1;
    assert_int_equal(kr_sim_replay(&t.program, &header, recorded.event, recorded.count, &decisions, &err),
                     KR_E_CHECKSUM);
    header.program_digest ^= 1;
    /* One arrival taken away: what depends on it could not have been started. */
    for (uint64_t i = 0; i < recorded.count && first == UINT64_MAX; i++)
        if (recorded.event[i].what == KR_RUN_ARRIVED &&
            t.program.ops[recorded.event[i].op].kind == KR_OP_COMBINE)
            first = i;
    assert_true(first != UINT64_MAX);
    recorded.event[first].op = t.program.count - 1;
    assert_int_equal(kr_sim_replay(&t.program, &header, recorded.event, recorded.count, &decisions, &err),
                     KR_E_STALE);
    recorded.event[first].op = t.program.count;
    assert_int_equal(kr_sim_replay(&t.program, &header, recorded.event, recorded.count, &decisions, &err),
                     KR_E_FORMAT);
    tiny_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_decisions),
        cmocka_unit_test(differences_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
