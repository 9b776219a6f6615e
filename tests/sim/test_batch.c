/* A fixed batch on a machine whose times are known: with one micro-batch the step is a sum, with two
 * the longer side; contexts grow; only those who sleep are woken. */
#include <math.h>

#include "sim/batch.h"
#include "tests/sim/tiny.h"

enum {
    LAYERS = 3,
    QKV = 9000,
    O_PROJ = 2000,
    FFN = 8000,
    EMBED = 500,
    HEAD = 4000,
    SAMPLE = 300,
    APPEND = 600
};
enum {
    ATTEND = 1000,
    ATTENDED = 2,
    COMPUTE = LAYERS * (QKV + O_PROJ + FFN) + EMBED + HEAD + SAMPLE
}; /* ns */

/* Constant times of the compute side; attend takes a part for each attended token. */
static kr_machine_mode machine(void)
{
    static const struct {
        kr_op_kind op;
        int ns;
    } ops[] = {{KR_OP_EMBED, EMBED}, {KR_OP_QKV, QKV},   {KR_OP_O_PROJ, O_PROJ},
               {KR_OP_FFN, FFN},     {KR_OP_HEAD, HEAD}, {KR_OP_SAMPLE, SAMPLE}};
    kr_machine_mode m = {
        .compute = tiny_device("compute"), .memory = tiny_device("memory"), .remainder = 1.0};

    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        m.compute.curve[m.compute.curves++] = (kr_device_curve){.op = ops[i].op, .start_s = ops[i].ns * 1e-9};
    m.memory.curve[m.memory.curves++] = (kr_device_curve){.op = KR_OP_APPEND, .start_s = APPEND * 1e-9};
    m.memory.curve[m.memory.curves++] = (kr_device_curve){
        .op = KR_OP_ATTEND, .method = "dense", .start_s = ATTEND * 1e-9, .per_attended_s = ATTENDED * 1e-9};
    /* A nanosecond for each message, which is what takes a link at all. */
    m.compute.link_bytes_per_s = m.memory.link_bytes_per_s = 1e15;
    m.memory.link_latency_s = 0.0;
    return m;
}

typedef struct {
    kr_model model;
    kr_arena arena;
    kr_program program;
} rig;

static void build(rig *r, uint32_t micro_batches)
{
    const kr_parallel parallel = {.tp = 1,
                                  .ep = 1,
                                  .dp = 1,
                                  .micro_batches = micro_batches,
                                  .placement = KR_PLACE_ALL_ON_NODE,
                                  .activation = KR_F32,
                                  .dispatch = KR_F32,
                                  .combine = KR_F32};
    kr_method_config configs[LAYERS] = {{.name = "dense"}, {.name = "dense"}, {.name = "dense"}};
    kr_err err;

    r->model = tiny_base_model(LAYERS);
    r->model.indexer = KR_INDEXER_NONE;
    r->model.index_heads = r->model.index_dim = r->model.index_topk = r->model.index_block = 0;
    for (uint32_t l = 0; l < LAYERS; l++)
        r->model.layer[l] = (kr_layer){.ffn = KR_FFN_DENSE, .index_owner = (uint16_t)l};
    r->model.moe = (kr_moe){0};
    if (kr_model_check(&r->model, &err) != KR_OK || kr_arena_init(&r->arena, 1 << 20, &err) != KR_OK ||
        kr_program_build(&r->program, &r->arena, &r->model, configs, &parallel, 1 << 20, &err) != KR_OK)
        fail_msg("%s", err.text);
}

static kr_sim_batch_result run(const kr_program *program, const kr_machine_mode *m, const kr_sim_row *row,
                               uint32_t rows, uint32_t steps)
{
    const kr_sim_batch batch = {.row = row, .rows = rows, .steps = steps, .policy = KR_POLICY_SCMS};
    kr_sim_batch_result result;
    kr_err err;

    if (kr_sim_machine_run(program, m, &batch, &result, &err) != KR_OK)
        fail_msg("%s", err.text);
    return result;
}

static void one_micro_batch_is_a_sum(void **state)
{
    enum { STEPS = 5 };
    const kr_machine_mode m = machine();
    const kr_sim_row row[] = {{100, 0}, {1000, 0}};
    uint64_t want = 0;
    rig r;

    (void)state;
    build(&r, 1);
    for (uint64_t s = 0; s < STEPS; s++)
        want += COMPUTE + LAYERS * (APPEND + ATTEND + ATTENDED * (100 + 1000 + 2 * (s + 1)));
    const kr_sim_batch_result got = run(&r.program, &m, row, 2, STEPS);
    assert_int_equal(got.elapsed_ns, want);
    assert_true(fabs(got.step_s - (double)want * 1e-9 / STEPS) < 1e-12);
    assert_true(got.both == 0.0 && fabs(got.busy[0] + got.busy[1] - 1.0) < 1e-9);
    assert_true(got.provenance[KR_MEASURED] == 1.0);
    kr_machine_mode longer = m;
    longer.remainder = 1.25;
    assert_int_equal(run(&r.program, &longer, row, 2, STEPS).elapsed_ns, want + want / 4);
    kr_arena_free(&r.arena);
}

static void a_sleeper_is_woken_for_every_message(void **state)
{
    kr_machine_mode m = machine();
    const kr_sim_row row = {100, 0};
    rig r;

    (void)state;
    build(&r, 1);
    const uint64_t before = run(&r.program, &m, &row, 1, 1).elapsed_ns;
    m.signal_s = 3e-6;
    m.memory.link_latency_s = 5e-6;
    /* Bytes that take a nanosecond, so that the latency counts. */
    m.compute.link_bytes_per_s = m.memory.link_bytes_per_s = 5e11;
    const kr_sim_batch_result got = run(&r.program, &m, &row, 1, 1);
    assert_true(got.asleep[0] == 1.0 && got.asleep[1] == 1.0);
    assert_in_range(got.elapsed_ns, before + LAYERS * 2 * (3000 + 5000),
                    before + LAYERS * 2 * (3000 + 5000 + 2));
    kr_arena_free(&r.arena);
}

/* The device's work fits under the other micro-batch's blocks: the compute side never waits. */
static void two_micro_batches_take_the_longer_side(void **state)
{
    kr_machine_mode m = machine();
    const kr_sim_row row[] = {{1000, 0}, {1000, 1}};
    const double device = LAYERS * (APPEND + ATTEND + ATTENDED * 1001.0);
    rig r;

    (void)state;
    build(&r, 2);
    kr_sim_batch_result got = run(&r.program, &m, row, 2, 1);
    assert_int_equal(got.elapsed_ns, 2 * COMPUTE);
    assert_true(fabs(got.both - 2 * device / (2.0 * COMPUTE)) < 1e-6);

    /* The device sleeps before each message, the compute side never: it pays for every wake-up. */
    m.signal_s = 2e-6;
    got = run(&r.program, &m, row, 2, 1);
    assert_true(got.asleep[0] == 0.0 && got.asleep[1] == 1.0);
    assert_int_equal(got.elapsed_ns, 2 * (COMPUTE + LAYERS * 2000));
    kr_arena_free(&r.arena);
}

static void an_empty_micro_batch_takes_no_time(void **state)
{
    const kr_machine_mode m = machine();
    const kr_sim_row row = {100, 1};
    rig one, two;

    (void)state;
    build(&one, 1);
    build(&two, 2);
    const kr_sim_row first = {100, 0};
    assert_int_equal(run(&two.program, &m, &row, 1, 3).elapsed_ns,
                     run(&one.program, &m, &first, 1, 3).elapsed_ns);
    kr_arena_free(&one.arena);
    kr_arena_free(&two.arena);
}

static void what_makes_no_sense_is_refused(void **state)
{
    const kr_machine_mode m = machine();
    const kr_sim_row row = {100, 1};
    kr_sim_batch batch = {.row = &row, .rows = 1, .steps = 1};
    kr_sim_batch_result result;
    kr_err err;
    rig r;

    (void)state;
    build(&r, 1);
    assert_int_equal(kr_sim_machine_run(&r.program, &m, &batch, &result, &err), KR_E_ARG);
    assert_non_null(strstr(err.text, "micro-batch 1 of 1"));
    batch.steps = 0;
    assert_int_equal(kr_sim_machine_run(&r.program, &m, &batch, &result, &err), KR_E_ARG);
    kr_arena_free(&r.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_micro_batch_is_a_sum),
        cmocka_unit_test(a_sleeper_is_woken_for_every_message),
        cmocka_unit_test(two_micro_batches_take_the_longer_side),
        cmocka_unit_test(an_empty_micro_batch_takes_no_time),
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
