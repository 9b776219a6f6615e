/* Steps of a fixed batch, and the settling of a measured machine. */
#include "sim/batch.h"

#include <string.h>

#include "base/arena.h"
#include "sim/price.h"

enum { COMPUTE, DEVICE, SIDES, ROUNDS = 8 };

/* Sums over events: when which side worked, and whom messages found asleep. Worker 0 is the compute
 * rank, 1 the device, 2 the link. */
typedef struct {
    const kr_program *program;
    const kr_sim_watch *next;
    uint64_t last_ns, busy_ns[SIDES], both_ns, messages[SIDES], woken[SIDES];
    bool busy[SIDES];
} observer;

static void observe(void *context, const kr_run_event *event)
{
    observer *o = context;

    if (o->next != NULL && o->next->event != NULL)
        o->next->event(o->next->context, event);
    if (event->what == KR_RUN_STARTED && event->worker >= SIDES)
        return; /* says when a link takes a message: may lie ahead */
    const uint64_t passed = event->time_ns - o->last_ns;
    for (int s = 0; s < SIDES; s++)
        o->busy_ns[s] += o->busy[s] ? passed : 0;
    o->both_ns += o->busy[COMPUTE] && o->busy[DEVICE] ? passed : 0;
    o->last_ns = event->time_ns;
    if (event->worker < SIDES) {
        o->busy[event->worker] = event->what == KR_RUN_STARTED;
        return;
    }
    const uint16_t kind = o->program->ops[event->op].kind;
    const int receiver = kind == KR_OP_RETURN_OUT || kind == KR_OP_RETURN_INDICES ? COMPUTE : DEVICE;
    o->messages[receiver]++;
    o->woken[receiver] += !o->busy[receiver];
}

typedef struct {
    kr_pricer pricer;
    kr_step *step;
    kr_step_times times;
    kr_place_load rank[KR_MICRO_BATCHES_MAX], device[KR_MICRO_BATCHES_MAX];
    uint64_t provenance_ns[KR_PROVENANCE_COUNT];
} run;

static kr_status check(const kr_program *program, const kr_sim_batch *batch, kr_err *err)
{
    if (batch->rows == 0 || batch->steps == 0)
        return kr_fail(err, KR_E_ARG, "sim: a batch needs at least one row and one step");
    if (program->parallel.placement != KR_PLACE_ALL_ON_NODE || program->parallel.dp != 1)
        return kr_fail(err, KR_E_ARG, "sim: a batch on one machine needs placement %s and one rank",
                       kr_placement_name(KR_PLACE_ALL_ON_NODE));
    for (uint32_t i = 0; i < batch->rows; i++)
        if (batch->row[i].micro_batch >= program->parallel.micro_batches)
            return kr_fail(err, KR_E_ARG, "sim: row %u is in micro-batch %u of %u", i,
                           batch->row[i].micro_batch, program->parallel.micro_batches);
    return KR_OK;
}

static kr_status prepare(run *r, const kr_program *program, const kr_sim_hardware *hardware, kr_err *err)
{
    static const kr_sim_options options;
    const kr_step_shape shape = {.cells = 1, .ranks = 1, .devices = 1};
    kr_status status = kr_pricer_init(&r->pricer, program, hardware, &options, 1, 1, err);

    if (status == KR_OK)
        status = kr_step_create(&r->step, program, &shape, err);
    if (status != KR_OK)
        return status;
    const size_t bytes = sizeof(uint64_t) * program->parallel.micro_batches * r->pricer.prices;
    r->times.compute = kr_alloc(bytes);
    r->times.device = kr_alloc(bytes);
    r->times.link = kr_alloc(bytes);
    r->times.all_to_all = kr_alloc(bytes);
    if (r->times.compute == NULL || r->times.device == NULL || r->times.link == NULL ||
        r->times.all_to_all == NULL)
        return kr_fail(err, KR_E_MEMORY, "sim: no memory for the times of a step");
    return KR_OK;
}

static void release(run *r)
{
    kr_pricer_free(&r->pricer);
    kr_step_destroy(r->step);
    kr_free(r->times.compute);
    kr_free(r->times.device);
    kr_free(r->times.link);
    kr_free(r->times.all_to_all);
}

/* The token being made counts as context. */
static void load(run *r, const kr_sim_batch *batch, uint32_t step)
{
    memset(r->rank, 0, sizeof r->rank);
    memset(r->device, 0, sizeof r->device);
    for (uint32_t i = 0; i < batch->rows; i++) {
        const kr_sim_row *row = &batch->row[i];
        const uint64_t context = row->context_tokens + step + 1;

        kr_pricer_add(&r->pricer, &r->rank[row->micro_batch], context);
        kr_pricer_add(&r->pricer, &r->device[row->micro_batch], context);
    }
}

static void summarise(const run *r, const observer *o, uint64_t elapsed_ns, uint32_t steps,
                      kr_sim_batch_result *result)
{
    const double elapsed = (double)elapsed_ns;
    double provenance = 0.0;

    *result = (kr_sim_batch_result){.elapsed_ns = elapsed_ns, .step_s = elapsed * 1e-9 / steps};
    for (int s = 0; s < SIDES; s++) {
        result->busy[s] = elapsed > 0.0 ? (double)o->busy_ns[s] / elapsed : 0.0;
        result->asleep[s] = o->messages[s] != 0 ? (double)o->woken[s] / (double)o->messages[s] : 0.0;
    }
    result->both = elapsed > 0.0 ? (double)o->both_ns / elapsed : 0.0;
    for (int p = 0; p < KR_PROVENANCE_COUNT; p++)
        provenance += (double)r->provenance_ns[p];
    for (int p = 0; p < KR_PROVENANCE_COUNT && provenance > 0.0; p++)
        result->provenance[p] = (double)r->provenance_ns[p] / provenance;
}

kr_status kr_sim_batch_run(const kr_program *program, const kr_device_model *compute,
                           const kr_device_model *memory, const kr_sim_batch *batch,
                           const kr_sim_watch *watch, kr_sim_batch_result *result, kr_err *err)
{
    const kr_sim_hardware hardware = {
        .compute = compute, .memory = memory, .devices = 1, .devices_per_node = 1};
    observer o = {.program = program, .next = watch};
    const kr_sim_watch own = {.context = &o, .event = observe};
    kr_step_sums sums = {0};
    uint64_t now_ns = 0;
    run r = {0};
    kr_status status = check(program, batch, err);

    if (status != KR_OK)
        return status;
    status = prepare(&r, program, &hardware, err);
    for (uint32_t s = 0; s < batch->steps && status == KR_OK; s++) {
        load(&r, batch, s);
        kr_pricer_fill(&r.pricer, r.rank, r.device, false, &r.times, r.provenance_ns);
        now_ns = kr_step_run(r.step, &r.times, batch->policy, now_ns, s, &own, &sums);
    }
    if (status == KR_OK)
        summarise(&r, &o, now_ns, batch->steps, result);
    release(&r);
    return status;
}

/* ---- a measured machine ---- */

/* The ops of the side that send wake whom they send to. */
static void lengthen(kr_device_model *side, const kr_device_model *measured, kr_op_kind sends,
                     double signal_s)
{
    for (uint32_t i = 0; i < side->curves; i++)
        side->curve[i].start_s = measured->curve[i].start_s + (side->curve[i].op == sends ? signal_s : 0.0);
}

kr_status kr_sim_machine_run(const kr_program *program, const kr_machine_mode *mode,
                             const kr_sim_batch *batch, kr_sim_batch_result *result, kr_err *err)
{
    kr_device_model *side = kr_alloc(SIDES * sizeof *side);
    kr_sim_batch_result seen = {0};
    kr_status status = KR_OK;

    if (side == NULL)
        return kr_fail(err, KR_E_MEMORY, "sim: no memory for two devices");
    side[COMPUTE] = mode->compute;
    side[DEVICE] = mode->memory;
    for (int round = 0; round < ROUNDS && status == KR_OK; round++) {
        lengthen(&side[COMPUTE], &mode->compute, KR_OP_QKV, mode->signal_s * seen.asleep[DEVICE]);
        lengthen(&side[DEVICE], &mode->memory, KR_OP_ATTEND, mode->signal_s * seen.asleep[COMPUTE]);
        status = kr_sim_batch_run(program, &side[COMPUTE], &side[DEVICE], batch, NULL, &seen, err);
    }
    kr_free(side);
    if (status != KR_OK)
        return status;
    seen.step_s *= mode->remainder;
    seen.elapsed_ns = (uint64_t)((double)seen.elapsed_ns * mode->remainder + 0.5);
    *result = seen;
    return KR_OK;
}
