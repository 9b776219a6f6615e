/* Attention of query rows over one segment of a gathered token list, keys and values as rows.
 *
 * For every query row r and list position i (ascending):
 *   s[r][i] = scale * (sum over c ascending of query[r][c] * key[i][c]) + bias[i]   (one FMA chain)
 *   m[r] = max over visible i of s;  p = exp(s - m);  l[r] = sum over i of mass[i] * p
 *   acc[r][d] = sum over i ascending of p * value[i][d]                          (one FMA chain)
 * A row sees position i only if from[r] <= i < to[r]; with nothing visible m = -inf, l = 0,
 * acc = 0. bias is a method's importance weight as a logarithm (MagicPIG: -ln of the inclusion
 * probability); mass counts a position more than once in the denominator (RetroInfer: the size of
 * a cluster whose value row is already a sum). NULL means 0 and 1.
 *
 * Rows that share a list share the reads of its tokens: the query heads of a KV group, or all
 * heads for MLA, whose value row is the first value_dim elements of its key row.
 *
 * Every variant gives the same bits, whatever the number of rows in a call. exp is kr_exp_f32.
 *
 * Work: 2 * rows * positions * (key_dim + value_dim) FLOPs; every key and value row read once. */
#ifndef KR_OPS_ATTEND_ROWS_H
#define KR_OPS_ATTEND_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "base/num.h"

enum {
    KR_ATTEND_ROWS_MAX = 2048,      /* query rows of one call */
    KR_ATTEND_POSITIONS_MAX = 1024, /* list positions of one call: one segment */
    KR_ATTEND_DIM_MAX = 1024
};

typedef struct {
    const float *const *query;    /* [rows] pointers to [key_dim] */
    const uint32_t *from, *to;    /* [rows] visible positions, to <= positions */
    const void *const *key_row;   /* [positions] pointers to [key_dim] of type */
    const void *const *value_row; /* [positions] pointers to [value_dim] of type */
    const float *bias;            /* [positions] or NULL */
    const float *mass;            /* [positions] or NULL */
    uint32_t rows, positions, key_dim, value_dim;
    kr_dtype type; /* KR_F32, KR_F16 or KR_BF16 */
    float scale;
    void *scratch;        /* kr_attend_rows_scratch_bytes, 64-byte aligned */
    float *maximum, *sum; /* out [rows] */
    float *accumulator;   /* out [rows][value_dim], unnormalised */
} kr_attend_rows_args;

typedef void (*kr_attend_rows_fn)(const kr_attend_rows_args *args);

/* Enough for every variant. */
size_t kr_attend_rows_scratch_bytes(uint32_t rows, uint32_t key_dim, uint32_t value_dim);

#endif
