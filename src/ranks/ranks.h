/* Processes that share out numbered work: the ranks of an MPI job, or this process alone (NULL).
 *
 * Every rank runs the same program on the same inputs, fills its own items (item i belongs to rank
 * i % count), and then has all of them; so results, and with them all output, are the same bytes at any
 * number of ranks. Ranks meet in the same order everywhere; one that fails says so at the next meeting,
 * and then all end. */
#ifndef KR_RANKS_RANKS_H
#define KR_RANKS_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct kr_ranks {
    uint32_t rank, count;
    /* Meets all ranks; items [count_of_items], bytes each, plain data without pointers. KR_E_LOST: another
     * rank has failed. */
    kr_status (*share)(const struct kr_ranks *ranks, void *items, uint64_t bytes, uint32_t count_of_items,
                       kr_err *err);
} kr_ranks;

static inline bool kr_ranks_owns(const kr_ranks *ranks, uint32_t item)
{
    return ranks == NULL || item % ranks->count == ranks->rank;
}

/* Only one rank writes results. */
static inline bool kr_ranks_speaks(const kr_ranks *ranks) { return ranks == NULL || ranks->rank == 0; }

#endif
