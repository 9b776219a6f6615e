/* Sums over the spans still in a ring. */
#include "report/stages.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/arena.h"

uint64_t kr_spans_count(const kr_spans *spans)
{
    return spans->written < spans->capacity ? spans->written : spans->capacity;
}

const kr_span *kr_spans_at(const kr_spans *spans, uint64_t i)
{
    const uint64_t first = spans->written - kr_spans_count(spans);
    return &spans->ring[(first + i) & (spans->capacity - 1)];
}

void kr_stages_add(const kr_spans *spans, kr_stage_sum *sums, uint32_t kind_count)
{
    for (uint64_t i = 0; i < kr_spans_count(spans); i++) {
        const kr_span *s = kr_spans_at(spans, i);
        if (s->kind >= kind_count)
            continue;
        sums[s->kind].busy_ns += s->end_ns - s->begin_ns;
        sums[s->kind].spans++;
    }
}

/* Where a track's number of open spans changes. */
typedef struct {
    uint64_t time_ns;
    int32_t change; /* +1 begin, -1 end */
    uint32_t side;  /* 0 a, 1 b */
} edge;

static int by_time(const void *left, const void *right)
{
    const edge *a = left, *b = right;
    return a->time_ns < b->time_ns ? -1 : a->time_ns > b->time_ns;
}

static uint64_t add_edges(const kr_spans *spans, uint32_t side, edge *edges)
{
    const uint64_t count = kr_spans_count(spans);

    for (uint64_t i = 0; i < count; i++) {
        const kr_span *s = kr_spans_at(spans, i);
        edges[2 * i] = (edge){s->begin_ns, 1, side};
        edges[2 * i + 1] = (edge){s->end_ns, -1, side};
    }
    return 2 * count;
}

kr_status kr_stages_overlap(const kr_spans *a, const kr_spans *b, kr_overlap *out, kr_err *err)
{
    const uint64_t spans = kr_spans_count(a) + kr_spans_count(b);
    edge *edges = kr_alloc(2 * spans * sizeof *edges);

    if (edges == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory to compare %llu spans", (unsigned long long)spans);
    uint64_t count = add_edges(a, 0, edges);
    count += add_edges(b, 1, edges + count);
    qsort(edges, count, sizeof *edges, by_time);

    kr_overlap sum = {0};
    int64_t open[2] = {0, 0};
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t passed = i > 0 ? edges[i].time_ns - edges[i - 1].time_ns : 0;
        sum.a_ns += open[0] > 0 ? passed : 0;
        sum.b_ns += open[1] > 0 ? passed : 0;
        sum.both_ns += open[0] > 0 && open[1] > 0 ? passed : 0;
        open[edges[i].side] += edges[i].change;
    }
    kr_free(edges);
    *out = sum;
    return KR_OK;
}
