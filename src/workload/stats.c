/* Statistics of a trace. */
#include "workload/stats.h"

#include <math.h>
#include <stdlib.h>

#include "base/arena.h"

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double quantile(const double *sorted, uint64_t count, double q)
{
    const double at = q * (double)(count - 1);
    const uint64_t below = (uint64_t)at;

    if (below + 1 >= count)
        return sorted[count - 1];
    return sorted[below] + (at - (double)below) * (sorted[below + 1] - sorted[below]);
}

kr_spread kr_spread_of(double *values, uint64_t count)
{
    kr_spread s = {.count = count};
    double sum = 0.0;

    if (count == 0)
        return s;
    qsort(values, count, sizeof *values, ascending);
    for (uint64_t i = 0; i < count; i++)
        sum += values[i];
    s.mean = sum / (double)count;
    s.min = values[0];
    s.p10 = quantile(values, count, 0.10);
    s.p50 = quantile(values, count, 0.50);
    s.p90 = quantile(values, count, 0.90);
    s.p99 = quantile(values, count, 0.99);
    s.max = values[count - 1];
    return s;
}

enum { TURNS, CONTEXT, SESSION_CONTEXT, PEAK, FIRST, LENGTH, CACHED, DECODE, THINK, API, SERIES };

typedef struct {
    double *value[SERIES];
    uint64_t count[SERIES];
    double reuse_length, reuse_cached, cached, context_by_decode;
    uint64_t shrinking, later;
} sums;

static void add(sums *s, int series, double value) { s->value[series][s->count[series]++] = value; }

/* One session; returns its input tokens. */
static void add_session(sums *s, const kr_trace *trace, const kr_trace_session *session,
                        kr_trace_stats *stats)
{
    double input = 0.0, peak = 0.0, length = 0.0, cached = 0.0;
    const kr_trace_turn *turn = &trace->turn[session->first_turn];

    for (uint32_t t = 0; t < session->turns; t++, turn++) {
        const double in = (double)turn->input_tokens, out = (double)turn->output_tokens;

        input += in;
        peak = in > peak ? in : peak;
        cached += (double)turn->cached_tokens;
        add(s, CONTEXT, in);
        add(s, DECODE, out);
        s->context_by_decode += in * out;
        stats->output_tokens += out;
        stats->without_output += turn->output_tokens == 0;
        if (turn->think_us != KR_TRACE_NONE)
            add(s, THINK, (double)turn->think_us * 1e-6);
        if (turn->api_us != KR_TRACE_NONE)
            add(s, API, (double)turn->api_us * 1e-6);
        if (t == 0)
            continue;
        const double before = (double)turn[-1].input_tokens;
        length += before < in ? before : in;
        s->shrinking += before > in;
        s->later++;
        add(s, LENGTH, in - before);
        add(s, CACHED, in - (double)turn->cached_tokens);
    }
    add(s, TURNS, session->turns);
    add(s, SESSION_CONTEXT, input / session->turns);
    add(s, PEAK, peak);
    add(s, FIRST, (double)trace->turn[session->first_turn].input_tokens);
    if (input > 0.0) {
        s->reuse_length += length / input;
        s->reuse_cached += cached / input;
    }
    s->cached += cached;
    stats->input_tokens += input;
}

static void finish(sums *s, kr_trace_stats *stats)
{
    kr_spread *out[SERIES] = {
        &stats->turns_per_session, &stats->context,        &stats->session_context, &stats->peak,
        &stats->first_context,     &stats->prefill_length, &stats->prefill_cached,  &stats->decode,
        &stats->think_s,           &stats->api_s,
    };

    for (int i = 0; i < SERIES; i++)
        *out[i] = kr_spread_of(s->value[i], s->count[i]);
    if (stats->sessions > 0) {
        stats->reuse_length_session = s->reuse_length / stats->sessions;
        stats->reuse_cached_session = s->reuse_cached / stats->sessions;
    }
    if (stats->input_tokens > 0.0)
        stats->reuse_cached_tokens = s->cached / stats->input_tokens;
    if (stats->output_tokens > 0.0)
        stats->context_by_decode = s->context_by_decode / stats->output_tokens;
    if (s->later > 0)
        stats->shrinking = (double)s->shrinking / (double)s->later;
}

kr_status kr_trace_stats_of(const kr_trace *trace, kr_trace_stats *stats, kr_err *err)
{
    kr_trace_stats result = {0};
    sums s = {0};
    bool memory = true;

    for (int i = 0; i < SERIES; i++) {
        s.value[i] = kr_alloc((trace->turns + 1) * sizeof(double));
        memory = memory && s.value[i] != NULL;
    }
    for (uint32_t i = 0; memory && i < trace->sessions; i++) {
        if (trace->session[i].parent != KR_TRACE_NO_PARENT) {
            result.agent_sessions++;
            result.agent_turns += trace->session[i].turns;
            continue;
        }
        result.sessions++;
        result.turns += trace->session[i].turns;
        add_session(&s, trace, &trace->session[i], &result);
    }
    if (memory)
        finish(&s, &result);
    for (int i = 0; i < SERIES; i++)
        kr_free(s.value[i]);
    if (!memory)
        return kr_fail(err, KR_E_MEMORY, "trace: no memory for the statistics of %u turns", trace->turns);
    *stats = result;
    return KR_OK;
}
