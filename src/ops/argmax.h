/* Place of the largest of a row of scores: the nearest centroid by inner product.
 *
 * Ties go to the lowest place, NaN never wins, -0 equals +0; without a number above -inf it is 0. */
#ifndef KR_OPS_ARGMAX_H
#define KR_OPS_ARGMAX_H

#include <stdint.h>

/* score [n], n >= 1. */
typedef uint64_t (*kr_argmax_fn)(const float *score, uint64_t n);

#endif
