/* Attention of query rows over one segment of a token list with 16-token key tiles.
 *
 * For every query row r and list position i (ascending):
 *   s[r][i] = scale * sum over c ascending of query[r][c] * key[i][c]          (one FMA chain, F32)
 *   m[r] = max over visible i of s, -0 taken as +0;  p = exp(s - m), exp(s) when m = -inf
 *   l[r] = sum of p in 16 partial sums, one per i mod 16, each ascending, then folded in halves
 *          (lane j += lane j + 8, then + 4, + 2, + 1)
 *   acc[r][d] = sum over i ascending of p * value[i][d]                          (one FMA chain)
 * A row sees list position i only if from[r] <= i < to[r] (causality and sliding windows); tiles
 * in which no row sees a position are never read. With no visible position m = -inf, l = 0,
 * acc = 0. A NaN or +inf score makes l and acc of its row NaN. Partial results of several segments
 * are joined by kr_attend_merge in list order.
 *
 * The result of a row does not depend on how many rows share a call: prefill chunks, batches and
 * single decode rows give the same bits. exp is kr_exp_f32 (attend_exp.h), the same in scalar and
 * vector variants, so variants agree bit for bit.
 *
 * Work: 2 * rows * positions * (key_dim + value_dim) FLOPs; keys and values read once a group of
 * KR_ATTEND_ROW_GROUP rows. */
#ifndef KR_OPS_ATTEND_TILED_H
#define KR_OPS_ATTEND_TILED_H

#include <stdint.h>

#include "base/num.h"

enum { KR_ATTEND_ROW_GROUP = 6 /* rows a variant works on at once: scratch of kr_attend_tiled_args */ };

typedef struct {
    const float *const *query;    /* [rows] pointers to [key_dim] */
    const uint32_t *from, *to;    /* [rows] visible range inside the segment, to <= positions */
    uint32_t rows;                /* query rows that share this KV head */
    const void *const *key_tile;  /* [ceil(positions/16)] tiles, each [key_dim][16] of type */
    const void *const *value_row; /* [ceil(positions/16)] first value row of the tile, [16][value_dim] */
    uint32_t positions;           /* list positions in this segment, <= KR_SEGMENT */
    uint32_t key_dim, value_dim;
    kr_dtype type; /* KR_F32, KR_F16 or KR_BF16, keys and values */
    float scale;
    float *scores;        /* scratch [min(rows, KR_ATTEND_ROW_GROUP)][ceil16(positions)] */
    float *maximum, *sum; /* out [rows] */
    float *accumulator;   /* out [rows][value_dim], unnormalised */
} kr_attend_tiled_args;

typedef void (*kr_attend_tiled_fn)(const kr_attend_tiled_args *args);

/* Joins the partial result of the next segment into a running one: the running triple starts as
 * (-inf, 0, 0). Same order of operations everywhere (multiply, multiply, add: no FMA); finish
 * divides by the sum (0 when nothing was visible). */
void kr_attend_merge(float *maximum, float *sum, float *accumulator, float next_maximum, float next_sum,
                     const float *next_accumulator, uint32_t value_dim);
void kr_attend_finish(float sum, const float *accumulator, float *output, uint32_t value_dim);

#endif
