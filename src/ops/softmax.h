/* Softmax of one row of scores, or its addition to running sums: the weights that methods rank by.
 *
 *   w[i] = exp((score[i] - m) * scale), m the largest score;  share[i] = w[i] * (1 / sum of w)
 *
 * The sum goes over 16 interleaved chains (element i in chain i mod 16), then by halves: 8, 4, 2, 1;
 * exp is kr_exp_f32; every variant gives the same bits. NaN is never m and makes every share NaN; when
 * no score is above -inf every share is 0. */
#ifndef KR_OPS_SOFTMAX_H
#define KR_OPS_SOFTMAX_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    float *score; /* [n], used up: holds w afterwards, or the shares when out is score */
    uint64_t n;
    float scale;
    bool add;   /* out[i] += share[i]; else out[i] = share[i] */
    float *out; /* [n]; may be score when add is false */
} kr_softmax_args;

typedef void (*kr_softmax_fn)(const kr_softmax_args *args);

#endif
