/* Per-unit elementwise bounds of keys and the score they give: Quest (mit-han-lab/Quest).
 *
 *   bounds: max[c], min[c] over the keys of a unit
 *   score(unit) = sum over c of max(q[c] * max[c], q[c] * min[c])   >= max over the unit of q.k
 *
 * Bounds are kept in the KV type: the max or min of values of a type is one of them, so nothing is
 * rounded. A key that is NaN makes its bound and so the score NaN, which never wins a selection.
 * The score is summed in F32 in 16 partial sums, one per c mod 16, each in index order (multiply,
 * multiply, max, add), then folded in halves (lane j += lane j + 8, then + 4, + 2, + 1).
 * Layout of one unit's bounds: [2][dim], max first. */
#ifndef KR_OPS_PAGE_BOUNDS_H
#define KR_OPS_PAGE_BOUNDS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/num.h"

typedef struct {
    const void *key_tile;  /* [dim][16] of type; holds one unit, or part of one, or several */
    uint32_t first, count; /* tokens [first, first+count) of the tile are new; count >= 1 */
    bool reset;            /* token first begins a unit: bounds start from it */
    uint32_t dim;
    kr_dtype type;
    void *bounds; /* in/out [2][dim] of type */
} kr_page_bounds_args;

typedef void (*kr_page_bounds_fn)(const kr_page_bounds_args *args);

typedef struct {
    const float *query;        /* [queries][query_stride], the first dim elements count */
    const void *const *bounds; /* [units] pointers to [2][dim] of type */
    uint64_t units;
    uint32_t dim;
    kr_dtype type;
    float *score; /* out [queries][score_stride] */
    uint32_t queries, query_stride;
    uint64_t score_stride;
} kr_page_score_args;

typedef void (*kr_page_score_fn)(const kr_page_score_args *args);

#endif
