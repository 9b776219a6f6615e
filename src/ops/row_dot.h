/* Dots of a few queries with many contiguous rows: centroids, chunk means, gate keys, hyperplanes,
 * keys of a page.
 *
 *   out[q][i] = query[q] . row[i]
 *
 * Summed in 16 interleaved FMA chains (element c in chain c mod 16), then by halves: 8, 4, 2, 1;
 * every variant gives the same bits. Work: 2 * queries * rows * dim FLOPs, each row read once for
 * up to 4 queries. */
#ifndef KR_OPS_ROW_DOT_H
#define KR_OPS_ROW_DOT_H

#include <stdint.h>

#include "base/num.h"

typedef struct {
    const float *query; /* [queries][query_stride], the first dim elements count */
    uint32_t queries, query_stride, dim;
    kr_dtype type;   /* of rows: KR_F32, KR_F16 or KR_BF16 */
    const void *row; /* [rows][row_stride] elements of type */
    uint64_t rows, row_stride;
    float *out; /* [queries][out_stride] */
    uint64_t out_stride;
} kr_row_dot_args;

typedef void (*kr_row_dot_fn)(const kr_row_dot_args *args);

#endif
