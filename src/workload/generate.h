/* Synthetic traces that have the published statistics of traces one cannot have.
 *
 * From the KARAT paper's Table VII alone: turns, mean context, largest context, new and generated tokens
 * a turn. What the table leaves open is chosen here and stated in generate.c: lognormal lengths, the
 * spread of turns, contexts that grow turn by turn. A result on such a trace is a result on a synthetic
 * trace, and format says so (KR_TRACE_SYNTHETIC). */
#ifndef KR_WORKLOAD_GENERATE_H
#define KR_WORKLOAD_GENERATE_H

#include "workload/trace.h"

typedef struct {
    const char *name;
    double turns;           /* median of a session */
    double session_context; /* mean over sessions of the mean input of its turns */
    double peak;            /* largest input that is drawn */
    double prefill, decode; /* medians of a turn */
    double reuse;           /* published; not an input, but what comes out is compared with it */
} kr_trace_recipe;

/* "swe-pro", "swe-chat", "kvct-like"; NULL for another name. */
const kr_trace_recipe *kr_trace_recipe_find(const char *name);

/* The same (recipe, sessions, seed) gives the same trace. KR_E_ARG, KR_E_MEMORY. */
kr_status kr_trace_generate(kr_trace *trace, const kr_trace_recipe *recipe, uint32_t sessions, uint64_t seed,
                            kr_err *err);

#endif
