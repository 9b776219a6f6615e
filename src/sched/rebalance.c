/* Which micro-batch each running request belongs to.
 *
 * CMR (the KARAT paper's Algorithm 1): every micro-batch is emptied, and each device's requests are
 * dealt out in order of decreasing context, each to the micro-batch with the fewest context tokens
 * on that device. Ties, which the paper leaves open past |m|: the micro-batch with fewer requests
 * over all devices, then the smaller number; among equal contexts the smaller request id first.
 *
 * Bound: on each device two micro-batches differ by at most the device's longest context. */
#include "base/check.h"
#include "sched/port.h"

enum { MICRO_BATCHES_MAX = UINT8_MAX + 1, CONTEXT_BITS = 40, DEVICE_BITS = 24 };

static const uint64_t CONTEXT_MAX = (UINT64_C(1) << CONTEXT_BITS) - 1;

/* Device ascending, context descending, id ascending. */
static bool comes_before(const kr_sched_slot *a, const kr_sched_slot *b)
{
    return a->place != b->place ? a->place < b->place : a->id < b->id;
}

/* Restores the heap (last in order at the root) below root in slot[0, count). */
static void sift(kr_sched_slot *slot, uint32_t root, uint32_t count)
{
    const kr_sched_slot moved = slot[root];

    for (uint32_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && comes_before(&slot[child], &slot[child + 1]))
            child++;
        if (!comes_before(&moved, &slot[child]))
            break;
        slot[root] = slot[child];
    }
    slot[root] = moved;
}

/* Heap sort: in place, no recursion, the same on every machine. */
static void sort(kr_sched_slot *slot, uint32_t count)
{
    for (uint32_t i = count / 2; i > 0; i--)
        sift(slot, i - 1, count);
    for (uint32_t end = count; end > 1; end--) {
        const kr_sched_slot last = slot[0];

        slot[0] = slot[end - 1];
        slot[end - 1] = last;
        sift(slot, 0, end - 1);
    }
}

void kr_sched_rebalance(const kr_port *port, uint8_t *micro_batch, kr_sched_slot *scratch)
{
    const uint32_t count = port->running_count(port), micro_batches = port->micro_batches(port);
    uint64_t tokens[MICRO_BATCHES_MAX] = {0};   /* on the device being dealt */
    uint32_t requests[MICRO_BATCHES_MAX] = {0}; /* over all devices */
    uint32_t device = KR_NO_DEVICE;

    KR_CHECK(micro_batches >= 1 && micro_batches <= MICRO_BATCHES_MAX);
    for (uint32_t i = 0; i < count; i++) {
        const kr_request_view r = port->running(port, i);

        KR_CHECK(r.context_tokens <= CONTEXT_MAX && r.device < 1u << DEVICE_BITS);
        scratch[i] = (kr_sched_slot){.place = (uint64_t)r.device << CONTEXT_BITS |
                                              (CONTEXT_MAX - r.context_tokens),
                                     .id = r.id,
                                     .index = i};
    }
    if (micro_batches > 1) /* else the order decides nothing */
        sort(scratch, count);
    for (uint32_t i = 0; i < count; i++) {
        const kr_sched_slot *r = &scratch[i];
        const uint32_t on = (uint32_t)(r->place >> CONTEXT_BITS);
        uint32_t best = 0;

        if (on != device)
            for (uint32_t m = 0; m < micro_batches; m++)
                tokens[m] = 0;
        device = on;
        for (uint32_t m = 1; m < micro_batches; m++)
            if (tokens[m] < tokens[best] || (tokens[m] == tokens[best] && requests[m] < requests[best]))
                best = m;
        micro_batch[r->index] = (uint8_t)best;
        tokens[best] += CONTEXT_MAX - (r->place & CONTEXT_MAX);
        requests[best]++;
    }
}

/* Requests by micro-batch: on one device (those numbered from `placed` on as the port has them, earlier
 * ones as they were just placed), and over all. */
static void count_requests(const kr_port *port, const uint8_t *micro_batch, uint32_t placed, uint32_t device,
                           uint32_t *on_device, uint32_t *over_all)
{
    const uint32_t count = port->running_count(port), micro_batches = port->micro_batches(port);

    for (uint32_t m = 0; m < micro_batches; m++)
        on_device[m] = over_all[m] = 0;
    for (uint32_t i = 0; i < count; i++) {
        const kr_request_view r = port->running(port, i);
        const uint32_t m = i < placed ? micro_batch[i] : r.micro_batch;

        if (m >= micro_batches)
            continue;
        over_all[m]++;
        on_device[m] += r.device == device;
    }
}

void kr_sched_balance_count(const kr_port *port, uint8_t *micro_batch)
{
    const uint32_t count = port->running_count(port), micro_batches = port->micro_batches(port);
    uint32_t on_device[MICRO_BATCHES_MAX] = {0}, over_all[MICRO_BATCHES_MAX] = {0};

    KR_CHECK(micro_batches >= 1 && micro_batches <= MICRO_BATCHES_MAX);
    for (uint32_t i = 0; i < count; i++) {
        const kr_request_view r = port->running(port, i);
        uint32_t best = 0;

        if (r.micro_batch < micro_batches) {
            micro_batch[i] = (uint8_t)r.micro_batch;
            continue;
        }
        count_requests(port, micro_batch, i, r.device, on_device, over_all);
        for (uint32_t m = 1; m < micro_batches; m++)
            if (on_device[m] < on_device[best] ||
                (on_device[m] == on_device[best] && over_all[m] < over_all[best]))
                best = m;
        micro_batch[i] = (uint8_t)best;
    }
}
