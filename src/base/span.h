/* Timed spans of what ran where; the engine, the node and the simulator record the same kind.
 *
 * A fixed ring per track; recording never allocates and drops the oldest. report/ writes them as
 * a Chrome trace and sums them by stage. */
#ifndef KR_BASE_SPAN_H
#define KR_BASE_SPAN_H

#include <stdint.h>

#include "base/status.h"

typedef struct {
    uint64_t begin_ns, end_ns;
    uint32_t op;   /* op id in the step program, or UINT32_MAX */
    uint16_t kind; /* kr_op_kind */
    uint16_t layer;
    uint16_t micro_batch;
    uint16_t track; /* worker: compute rank, device, link */
    uint32_t step;
} kr_span;

typedef struct {
    kr_span *ring;     /* [capacity] */
    uint32_t capacity; /* power of two; 0 = recording off */
    uint64_t written;  /* spans recorded so far; the newest is ring[(written-1) & (capacity-1)] */
} kr_spans;

static inline void kr_span_add(kr_spans *spans, kr_span span)
{
    if (spans->capacity != 0)
        spans->ring[spans->written++ & (spans->capacity - 1)] = span;
}

#endif
