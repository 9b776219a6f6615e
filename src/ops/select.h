/* Exact top-k under a total order: score descending, then position ascending.
 *
 * NaN never wins and is counted; -0 equals +0; when fewer than k candidates are not NaN all of
 * them are taken. Output positions are ascending. Any k from 1 to KR_TOPK_MAX, n up to 2^31. */
#ifndef KR_OPS_SELECT_H
#define KR_OPS_SELECT_H

#include <stdint.h>

typedef struct {
    const float *score; /* [n] */
    uint64_t n;
    uint32_t k;
    uint32_t *position;  /* out [min(k, n)], ascending */
    void *scratch;       /* kr_select_scratch_bytes(n, k), 64-byte aligned */
    uint64_t *nan_count; /* added to */
} kr_select_topk_args;

/* Returns the number of positions written. */
typedef uint32_t (*kr_select_topk_fn)(const kr_select_topk_args *args);

/* Enough for every variant, whatever the scores. */
uint64_t kr_select_scratch_bytes(uint64_t n, uint32_t k);

#endif
