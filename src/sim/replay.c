/* Replay of a recorded run: the policy, asked again with what had arrived, must choose the same.
 *
 * The record is taken as the truth about when ops finished; only the choice at each start of worker
 * 0 is asked again. An op counts as done when the record says that it finished there or that its
 * result arrived. */
#include "base/check.h"
#include "sim/sim.h"

typedef struct {
    const kr_program *program;
    uint8_t *state;    /* [ops] kr_op_state of ops that started or finished; others by their deps */
    uint32_t position; /* in the static order of the compute rank */
    kr_port port;
} replay;

static const replay *world(const kr_port *port) { return port->context; }

static uint32_t blocking_dep(const replay *r, uint32_t op)
{
    const kr_op *it = &r->program->ops[op];

    for (uint32_t d = it->dep_count; d > 0; d--)
        if (r->state[it->dep[d - 1]] != KR_OP_DONE)
            return it->dep[d - 1];
    return KR_NO_OP;
}

static kr_op_state op_state(const kr_port *port, uint32_t op)
{
    const replay *r = world(port);

    if (r->state[op] >= KR_OP_RUNNING)
        return (kr_op_state)r->state[op];
    return blocking_dep(r, op) == KR_NO_OP ? KR_OP_READY : KR_OP_WAITING;
}

static uint32_t queue_head(const kr_port *port, uint32_t worker, uint32_t micro_batch)
{
    const replay *r = world(port);
    const uint32_t *first = r->program->first_of_micro_batch;

    (void)worker;
    for (uint32_t op = first[micro_batch]; op < first[micro_batch + 1]; op++)
        if (r->program->ops[op].resource == KR_ON_COMPUTE && r->state[op] < KR_OP_RUNNING)
            return op;
    return KR_NO_OP;
}

static uint32_t static_next(const kr_port *port, uint32_t worker)
{
    const replay *r = world(port);

    (void)worker;
    for (uint32_t i = r->position; i < r->program->order_count[KR_ON_COMPUTE]; i++)
        if (r->state[r->program->order[KR_ON_COMPUTE][i]] < KR_OP_RUNNING)
            return r->program->order[KR_ON_COMPUTE][i];
    return KR_NO_OP;
}

static kr_op_kind op_kind(const kr_port *port, uint32_t op)
{
    return (kr_op_kind)world(port)->program->ops[op].kind;
}

static uint32_t op_layer(const kr_port *port, uint32_t op) { return world(port)->program->ops[op].layer; }

static uint32_t op_micro_batch(const kr_port *port, uint32_t op)
{
    return world(port)->program->ops[op].micro_batch;
}

static kr_op_kind waits_for(const kr_port *port, uint32_t op)
{
    const uint32_t dep = blocking_dep(world(port), op);

    return op_kind(port, dep == KR_NO_OP ? op : dep);
}

static bool idle(const kr_port *port, uint32_t worker)
{
    (void)port;
    return worker == 0;
}

static uint32_t micro_batches(const kr_port *port) { return world(port)->program->parallel.micro_batches; }

static void new_step(replay *r)
{
    for (uint32_t i = 0; i < r->program->count; i++)
        r->state[i] = KR_OP_WAITING;
    r->position = 0;
}

static kr_status check_start(replay *r, const kr_run_event *e, kr_step_policy policy, kr_err *err)
{
    const uint32_t chosen = kr_sched_next(&r->port, policy, 0);
    const uint32_t *order = r->program->order[KR_ON_COMPUTE];

    if (chosen != e->op)
        return kr_fail(err, KR_E_STALE,
                       "replay: step %u: the run started op %u (%s, layer %u), the policy chooses %d (%s)",
                       e->step, e->op, kr_op_name(op_kind(&r->port, e->op)), op_layer(&r->port, e->op),
                       chosen == KR_NO_OP ? -1 : (int)chosen,
                       chosen == KR_NO_OP ? "wait" : kr_op_name(op_kind(&r->port, chosen)));
    r->state[e->op] = KR_OP_RUNNING;
    while (r->position < r->program->order_count[KR_ON_COMPUTE] &&
           r->state[order[r->position]] >= KR_OP_RUNNING)
        r->position++;
    return KR_OK;
}

static kr_status play(replay *r, const kr_run_header *header, const kr_run_event *events, uint64_t count,
                      uint64_t *decisions, kr_err *err)
{
    uint32_t step = UINT32_MAX;

    for (uint64_t i = 0; i < count; i++) {
        const kr_run_event *e = &events[i];
        kr_status status = KR_OK;

        if (e->op >= r->program->count)
            return kr_fail(err, KR_E_FORMAT, "replay: event %llu names op %u of %u", (unsigned long long)i,
                           e->op, r->program->count);
        if (e->step != step)
            new_step(r);
        step = e->step;
        if (e->what != KR_RUN_STARTED) {
            r->state[e->op] = KR_OP_DONE;
        } else if (e->worker == 0 && r->program->ops[e->op].resource == KR_ON_COMPUTE) {
            status = check_start(r, e, (kr_step_policy)header->policy, err);
            ++*decisions;
        }
        if (status != KR_OK)
            return status;
    }
    return KR_OK;
}

kr_status kr_sim_replay(const kr_program *program, const kr_run_header *header, const kr_run_event *events,
                        uint64_t count, uint64_t *decisions, kr_err *err)
{
    replay r = {.program = program};
    uint64_t checked = 0;
    kr_status status;

    if (header->program_digest != kr_program_digest(program))
        return kr_fail(err, KR_E_CHECKSUM, "replay: the run is of program %016llx, this one is %016llx",
                       (unsigned long long)header->program_digest,
                       (unsigned long long)kr_program_digest(program));
    r.state = kr_alloc(program->count);
    if (r.state == NULL)
        return kr_fail(err, KR_E_MEMORY, "replay: no memory for %u ops", program->count);
    r.port = (kr_port){.context = &r,
                       .queue_head = queue_head,
                       .op_state = op_state,
                       .op_kind = op_kind,
                       .op_layer = op_layer,
                       .op_micro_batch = op_micro_batch,
                       .static_next = static_next,
                       .idle = idle,
                       .waits_for = waits_for,
                       .micro_batches = micro_batches};
    status = play(&r, header, events, count, &checked, err);
    kr_free(r.state);
    if (status == KR_OK)
        *decisions = checked;
    return status;
}
