/* What a trace is like: turns, contexts, prefill and decode lengths, reuse.
 *
 * Over sessions that no session spawned; sub-agents are counted beside them. Quantiles interpolate
 * linearly between order statistics. */
#ifndef KR_WORKLOAD_STATS_H
#define KR_WORKLOAD_STATS_H

#include "workload/trace.h"

typedef struct {
    uint64_t count;
    double mean, min, p10, p50, p90, p99, max;
} kr_spread;

typedef struct {
    uint32_t sessions, turns, agent_sessions, agent_turns;
    kr_spread turns_per_session;
    kr_spread context;         /* input tokens, over turns */
    kr_spread session_context; /* mean of a session's inputs, over sessions: expected context of a
                                    random turn of a random session */
    kr_spread peak;            /* largest input, over sessions */
    kr_spread first_context;   /* input of the first turn, over sessions */
    kr_spread prefill_length;  /* input less the previous turn's, over later turns; may be negative */
    kr_spread prefill_cached;  /* input less cached tokens, over later turns */
    kr_spread decode;          /* output tokens, over turns */
    kr_spread think_s, api_s;  /* of turns that state them */
    double input_tokens, output_tokens;
    double context_by_decode;    /* mean context of a decoded token */
    double reuse_length_session; /* sum(min(previous, input)) / sum(input), mean over sessions */
    double reuse_cached_session; /* cached / input of a session, mean over sessions */
    double reuse_cached_tokens;  /* cached / input over all */
    double shrinking;            /* share of later turns shorter than their predecessor */
    uint64_t without_output;     /* turns that decode nothing */
} kr_trace_stats;

/* KR_E_MEMORY. */
kr_status kr_trace_stats_of(const kr_trace *trace, kr_trace_stats *stats, kr_err *err);

/* Sorts values [count] and sums them up; count 0 gives zeros. */
kr_spread kr_spread_of(double *values, uint64_t count);

#endif
