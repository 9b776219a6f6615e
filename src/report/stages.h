/* Sums over spans: where the time went, and how long two tracks worked at the same time. */
#ifndef KR_REPORT_STAGES_H
#define KR_REPORT_STAGES_H

#include <stdint.h>

#include "base/span.h"
#include "base/status.h"

typedef struct {
    uint64_t busy_ns; /* sum of durations */
    uint64_t spans;
} kr_stage_sum;

/* Adds the spans still in the ring to sums[kind], kind < kind_count; others are ignored. */
void kr_stages_add(const kr_spans *spans, kr_stage_sum *sums, uint32_t kind_count);

/* Time covered by at least one span of a, of b, and of both, within the spans still in the rings.
 * KR_E_MEMORY. */
typedef struct {
    uint64_t a_ns, b_ns, both_ns;
} kr_overlap;

kr_status kr_stages_overlap(const kr_spans *a, const kr_spans *b, kr_overlap *out, kr_err *err);

/* Spans still in a ring, oldest first: count and the i-th. */
uint64_t kr_spans_count(const kr_spans *spans);
const kr_span *kr_spans_at(const kr_spans *spans, uint64_t i);

#endif
