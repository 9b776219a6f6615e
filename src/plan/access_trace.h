/* The addresses that one decoding session reads on its memory device, for a DRAM simulator: the text form of
 * Ramulator 2's LoadStoreTrace, a line "LD 0xADDRESS" for each access.
 *
 * One token of one session in one layer, the first that owns an index; layers are alike. Pages lie where
 * the store puts them when a session has the pool to itself: page after page, each with the blocks of all
 * layers, keys, values and index inside a block as in method/view.h. Score reads the index areas of all
 * pages in order; then Attend gathers the rows of the selected tokens in ascending order. Which tokens are
 * selected depends on data: here they are drawn, one stream per seed, as scattered as they can be. */
#ifndef KR_PLAN_ACCESS_TRACE_H
#define KR_PLAN_ACCESS_TRACE_H

#include <stdio.h>

#include "plan/scenario.h"

typedef struct {
    uint32_t layer;
    uint64_t score_bytes, gather_bytes; /* that the lines cover */
    uint64_t lines;
} kr_access_sums;

/* access_bytes: of one line, a power of two. KR_E_ARG; KR_E_UNSUPPORTED: no layer owns an index in its
 * pages; KR_E_MEMORY, KR_E_IO. */
kr_status kr_access_trace_write(const kr_scenario *scenario, uint64_t context_tokens, uint32_t access_bytes,
                                uint64_t seed, FILE *out, kr_access_sums *sums, kr_err *err);

#endif
