/* Energy of a step: equal to the sum over ops and requests taken one by one, the idle power by the
 * clock, and absent where a device does not state its energy. */
#include <math.h>

#include "tiny.h"

static const uint64_t CONTEXT = 1000;

static kr_device_model powered(const char *name, double scale)
{
    kr_device_model d = tiny_device(name);

    d.memory_j_per_byte = 1e-10 * scale;
    d.bf16_j_per_flop = 3e-12 * scale;
    d.link_j_per_byte = 7e-11 * scale;
    d.idle_w = 5 * scale;
    return d;
}

/* One rank, one device, one request: every op once, with what the program says it does. */
static double one_by_one(const tiny *t, const kr_device_model *compute, const kr_device_model *memory)
{
    double joules = 0.0;

    for (uint32_t i = 0; i < t->program.count; i++) {
        const kr_op *op = &t->program.ops[i];
        const uint32_t layer = op->layer < t->model.layers ? op->layer : 0;
        kr_load load = kr_row_load(&t->program.plan[layer], CONTEXT + 1);
        kr_work w;

        if (op->micro_batch != 0)
            continue; /* one request: the others are empty */
        if (op->kind == KR_OP_EXPERTS)
            load.experts = load.expert_rows = t->model.moe.active;
        w = kr_op_work(&t->program, op, &load);
        if (op->resource == KR_ON_COMPUTE || op->resource == KR_ON_DEVICE) {
            const kr_device_model *d = op->resource == KR_ON_COMPUTE ? compute : memory;

            joules += d->bf16_j_per_flop * (double)w.flops +
                      d->memory_j_per_byte * (double)(w.read_bytes + w.write_bytes);
        } else {
            const kr_device_model *d = op->resource == KR_ON_A2A ? compute : memory;

            joules += d->link_j_per_byte * (double)w.move_bytes;
        }
    }
    return joules;
}

static kr_sim_result run_once(const tiny *t, const kr_sim_hardware *h)
{
    const kr_sim_turn turn = {.context_tokens = CONTEXT, .output_tokens = 100};
    const kr_sim_session session = {.turn = &turn, .turns = 1};
    const kr_sim_workload w = {&session, 1};
    const kr_sim_options o = {.sessions = 1, .first_turns = true, .steps_max = 1};
    kr_sim_result r;
    kr_err err;

    if (kr_sim_run(&t->program, h, &w, &o, NULL, &r, &err) != KR_OK)
        fail_msg("%s", err.text);
    return r;
}

static void sums_over_ops(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 60; n++) {
        kr_rng rng = kr_rng_make(n, 1);
        const kr_model model = tiny_model(&rng);
        kr_parallel parallel = tiny_parallel(&rng, 1);
        const kr_device_model compute = powered("c", 1), memory = powered("m", 0.1);
        kr_sim_hardware h = {.compute = &compute, .devices = 1, .devices_per_node = 1};
        double watts = 0.0, seconds, idle;
        kr_sim_result r;
        tiny t;

        parallel.ep = 1; /* all experts on the rank: exactly the active ones are touched */
        tiny_build(&t, &model, &parallel);
        if (parallel.placement != KR_PLACE_ALL_ON_COMPUTE)
            h.memory = &memory;
        r = run_once(&t, &h);
        seconds = (double)r.elapsed_ns * 1e-9;
        for (int k = 0; k < KR_POWER_PARTS; k++)
            watts += r.watts[k];
        idle = compute.idle_w + (h.memory != NULL ? memory.idle_w : 0.0);
        if (fabs((watts - idle) * seconds / one_by_one(&t, &compute, &memory) - 1.0) > 1e-9)
            fail_msg("seed %u: %.9g J, one by one %.9g J", n, (watts - idle) * seconds,
                     one_by_one(&t, &compute, &memory));
        assert_true(fabs(r.joules_per_token * r.tokens_per_s / watts - 1.0) < 1e-12);
        tiny_free(&t);
    }
}

static void unknown_is_zero(void **state)
{
    kr_rng rng = kr_rng_make(1, 1);
    const kr_model model = tiny_model(&rng);
    const kr_parallel parallel = {.tp = 1, .ep = 1, .dp = 1, .micro_batches = 1, .activation = KR_BF16};
    const kr_device_model compute = powered("c", 1), memory = tiny_device("m");
    const kr_sim_hardware h = {.compute = &compute, .memory = &memory, .devices = 1, .devices_per_node = 1};
    kr_sim_result r;
    tiny t;

    (void)state;
    tiny_build(&t, &model, &parallel);
    r = run_once(&t, &h);
    assert_true(r.joules_per_token == 0.0 && r.watts[KR_POWER_COMPUTE_IDLE] == 0.0);
    tiny_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_over_ops), cmocka_unit_test(unknown_is_zero)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
