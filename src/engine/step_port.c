/* The scheduling policy's view of a running step: one worker, the compute rank (worker 0). Devices
 * serve their queues in order by themselves. */
#include "base/check.h"
#include "engine/inside.h"

static const kr_engine *world(const kr_port *port) { return port->context; }

static bool is_done(const kr_engine *engine, uint32_t op)
{
    const kr_op *it = &engine->program.ops[op];
    const kr_micro_batch *batch = &engine->batch[it->micro_batch];
    return op < (it->resource == KR_ON_COMPUTE ? batch->head : batch->away);
}

/* The last thing an op depends on that has not finished; KR_NO_OP when all have. */
static uint32_t blocking_dep(const kr_engine *engine, uint32_t op)
{
    const kr_op *it = &engine->program.ops[op];
    for (uint32_t i = it->dep_count; i-- > 0;)
        if (!is_done(engine, it->dep[i]))
            return it->dep[i];
    return KR_NO_OP;
}

bool kr_step_ready(const kr_engine *engine, uint32_t op) { return blocking_dep(engine, op) == KR_NO_OP; }

static uint32_t queue_head(const kr_port *port, uint32_t worker, uint32_t mb)
{
    const kr_engine *engine = world(port);
    KR_CHECK(worker == 0 && mb < engine->config.micro_batches);
    for (uint32_t op = engine->batch[mb].head; op < engine->program.first_of_micro_batch[mb + 1]; op++)
        if (engine->program.ops[op].resource == KR_ON_COMPUTE)
            return op;
    return KR_NO_OP;
}

static kr_op_state op_state(const kr_port *port, uint32_t op)
{
    if (is_done(world(port), op))
        return KR_OP_DONE;
    return kr_step_ready(world(port), op) ? KR_OP_READY : KR_OP_WAITING;
}

static kr_op_kind op_kind(const kr_port *port, uint32_t op)
{
    return (kr_op_kind)world(port)->program.ops[op].kind;
}

static uint32_t op_layer(const kr_port *port, uint32_t op) { return world(port)->program.ops[op].layer; }

static uint32_t op_micro_batch(const kr_port *port, uint32_t op)
{
    return world(port)->program.ops[op].micro_batch;
}

static uint32_t static_next(const kr_port *port, uint32_t worker)
{
    const kr_engine *engine = world(port);
    KR_CHECK(worker == 0);
    for (uint32_t i = engine->order_position; i < engine->program.order_count[KR_ON_COMPUTE]; i++)
        if (!is_done(engine, engine->program.order[KR_ON_COMPUTE][i]))
            return engine->program.order[KR_ON_COMPUTE][i];
    return KR_NO_OP;
}

static bool idle(const kr_port *port, uint32_t worker)
{
    (void)port;
    return worker == 0; /* the policy is asked between ops, on the thread that runs them */
}

static kr_op_kind waits_for(const kr_port *port, uint32_t op)
{
    const uint32_t dep = blocking_dep(world(port), op);
    return op_kind(port, dep == KR_NO_OP ? op : dep);
}

static uint32_t micro_batches(const kr_port *port) { return world(port)->config.micro_batches; }

kr_port kr_step_port(kr_engine *engine)
{
    return (kr_port){
        .context = engine,
        .micro_batches = micro_batches,
        .queue_head = queue_head,
        .op_state = op_state,
        .op_kind = op_kind,
        .op_layer = op_layer,
        .op_micro_batch = op_micro_batch,
        .static_next = static_next,
        .idle = idle,
        .waits_for = waits_for,
    };
}
