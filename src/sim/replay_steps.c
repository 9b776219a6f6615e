/* Steps of a recorded run in virtual time, with the durations that the record itself gives: what is
 * left between simulated and recorded steps is what the simulator's picture of a step lacks.
 *
 * A compute op lasts from its start to the next one's when nothing arrived in between (sends and the
 * policy's question are part of it), else to its own end. What a device does for a message is seen from
 * outside: from when it was sent, or the device's previous answer if that came later, to the answer. It
 * is given to the op before the return; the device's others and links take no time. */
#include <string.h>

#include "base/arena.h"
#include "sim/step.h"

enum { NONE = UINT32_MAX };

typedef struct {
    const kr_program *program;
    kr_step *step;
    kr_step_times times;
    uint64_t *done; /* [ops] of the running step */
    uint64_t begin, last_end, device_free;
    uint32_t number, started, ended; /* step; running compute op; compute ops that ended */
    uint32_t before;                 /* compute op that ended last, until something arrives; NONE */
    uint64_t before_start;
} player;

static size_t slot(const player *p, uint32_t op)
{
    return (size_t)p->program->ops[op].micro_batch * p->program->count + op;
}

static void begin_step(player *p, const kr_run_event *e)
{
    const size_t bytes = (size_t)p->program->count * p->program->parallel.micro_batches * sizeof(uint64_t);

    memset(p->times.compute, 0, bytes);
    memset(p->times.device, 0, bytes);
    p->number = e->step;
    p->begin = p->last_end = p->device_free = e->time_ns;
    p->ended = 0;
    p->started = p->before = NONE;
}

/* The compute op whose result the message of a return op answers. */
static uint32_t source_of(const kr_program *program, uint32_t op)
{
    while (program->ops[op].resource != KR_ON_COMPUTE)
        op = program->ops[op].dep[0];
    return op;
}

static void on_arrival(player *p, const kr_run_event *e)
{
    const uint32_t device_op = p->program->ops[e->op].dep[0];
    const uint64_t sent = p->done[source_of(p->program, e->op)];
    const uint64_t from = sent > p->device_free ? sent : p->device_free;

    p->times.device[slot(p, device_op)] = e->time_ns > from ? e->time_ns - from : 0;
    p->device_free = e->time_ns;
    p->before = NONE;
}

static void on_start(player *p, const kr_run_event *e)
{
    if (p->before != NONE)
        p->times.compute[slot(p, p->before)] = e->time_ns - p->before_start;
    p->started = e->op;
    p->before_start = e->time_ns;
}

static kr_status on_event(player *p, const kr_run_event *e, kr_err *err)
{
    const bool compute = p->program->ops[e->op].resource == KR_ON_COMPUTE;

    if (e->what == KR_RUN_ARRIVED && p->program->ops[e->op].dep_count != 0 && !compute) {
        on_arrival(p, e);
    } else if (e->what == KR_RUN_STARTED && compute) {
        on_start(p, e);
    } else if (e->what == KR_RUN_DONE && compute) {
        if (p->started != e->op)
            return kr_fail(err, KR_E_FORMAT, "replay: step %u: op %u ends, but %d runs", e->step, e->op,
                           p->started == NONE ? -1 : (int)p->started);
        p->times.compute[slot(p, e->op)] = e->time_ns - p->before_start;
        p->done[e->op] = p->last_end = e->time_ns;
        p->before = e->op;
        p->ended++;
    }
    return KR_OK;
}

static void end_step(player *p, uint32_t policy, const kr_sim_replay_visitor *visitor)
{
    kr_step_sums sums = {0};

    if (p->ended != p->program->order_count[KR_ON_COMPUTE])
        return; /* cut off by the recording's limit */
    visitor->step(visitor->context, p->number, p->last_end - p->begin,
                  kr_step_run(p->step, &p->times, (kr_step_policy)policy, 0, p->number, NULL, &sums));
}

static kr_status prepare(player *p, uint32_t *price, kr_err *err)
{
    const uint32_t ops = p->program->count;
    const size_t bytes = (size_t)ops * p->program->parallel.micro_batches * sizeof(uint64_t);
    const kr_step_shape shape = {.cells = 1, .ranks = 1, .devices = 1};

    for (uint32_t i = 0; i < ops; i++)
        price[i] = i;
    p->done = kr_alloc(ops * sizeof *p->done);
    p->times = (kr_step_times){.price = price,
                               .prices = ops,
                               .compute = kr_alloc(bytes),
                               .device = kr_alloc(bytes),
                               .link = kr_alloc(bytes),
                               .all_to_all = kr_alloc(bytes)};
    if (p->done == NULL || p->times.compute == NULL || p->times.device == NULL || p->times.link == NULL ||
        p->times.all_to_all == NULL)
        return kr_fail(err, KR_E_MEMORY, "replay: no memory for the times of %u ops", ops);
    return kr_step_create(&p->step, p->program, &shape, err);
}

kr_status kr_sim_replay_steps(const kr_program *program, const kr_run_header *header,
                              const kr_run_event *events, uint64_t count,
                              const kr_sim_replay_visitor *visitor, kr_err *err)
{
    player p = {.program = program};
    uint32_t *price = kr_alloc(program->count * sizeof *price);
    kr_status status = price == NULL ? kr_fail(err, KR_E_MEMORY, "replay: no memory")
                                     : prepare(&p, price, err);

    for (uint64_t i = 0; i < count && status == KR_OK; i++) {
        if (events[i].op >= program->count)
            status = kr_fail(err, KR_E_FORMAT, "replay: event %llu names op %u of %u", (unsigned long long)i,
                             events[i].op, program->count);
        if (status == KR_OK && (i == 0 || events[i].step != p.number)) {
            if (i != 0)
                end_step(&p, header->policy, visitor);
            begin_step(&p, &events[i]);
        }
        if (status == KR_OK)
            status = on_event(&p, &events[i], err);
    }
    if (status == KR_OK && count != 0)
        end_step(&p, header->policy, visitor);
    kr_step_destroy(p.step);
    kr_free(p.done);
    kr_free(p.times.compute);
    kr_free(p.times.device);
    kr_free(p.times.link);
    kr_free(p.times.all_to_all);
    kr_free(price);
    return status;
}
