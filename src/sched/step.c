/* What a worker starts next inside a step.
 *
 * SCMS (static, coarse-grained) walks the worker's static order and waits at every op that is not
 * ready. OFMS (opportunistic, fine-grained; the KARAT paper's section III-E) leaves that order in
 * one case: while the compute rank waits for the experts' combine of one micro-batch, and another
 * micro-batch's attention output has arrived, it runs that one's output projection and router, so
 * that its dispatch travels meanwhile. Both look at local queue heads only. */
#include "sched/port.h"

/* The ops from the arrival of attention to the dispatch. */
static bool leads_to_dispatch(kr_op_kind kind)
{
    return kind == KR_OP_V_UP || kind == KR_OP_O_PROJ || kind == KR_OP_ROUTER;
}

static uint32_t opportunity(const kr_port *port, uint32_t worker, uint32_t waiting)
{
    const uint32_t micro_batches = port->micro_batches(port);

    for (uint32_t m = 0; m < micro_batches; m++) {
        const uint32_t head = port->queue_head(port, worker, m);

        if (m != port->op_micro_batch(port, waiting) && head != KR_NO_OP &&
            port->op_state(port, head) == KR_OP_READY && leads_to_dispatch(port->op_kind(port, head)))
            return head;
    }
    return KR_NO_OP;
}

uint32_t kr_sched_next(const kr_port *port, kr_step_policy policy, uint32_t worker)
{
    const uint32_t next = port->static_next(port, worker);

    if (next == KR_NO_OP || !port->idle(port, worker))
        return KR_NO_OP;
    if (port->op_state(port, next) == KR_OP_READY)
        return next;
    if (policy == KR_POLICY_OFMS && port->waits_for(port, next) == KR_OP_COMBINE)
        return opportunity(port, worker, next);
    return KR_NO_OP;
}

const char *kr_step_policy_name(kr_step_policy policy)
{
    switch (policy) {
    case KR_POLICY_SCMS:
        return "scms";
    case KR_POLICY_OFMS:
        return "ofms";
    }
    return "?";
}
