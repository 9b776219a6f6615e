/* The definition of the row dot. Read, never tuned: the variants answer to it. */
#include "ops/row_dot.h"

#include <math.h>

#include "ops/variants.h"

enum { CHAINS = 16 };

static float dot(const float *query, const uint8_t *row, kr_dtype type, uint32_t dim)
{
    float chain[CHAINS] = {0};

    for (uint32_t c = 0; c < dim; c++) {
        float x;

        kr_to_f32(type, row + (uint64_t)c * kr_dtype_bytes(type), &x, 1);
        chain[c % CHAINS] = fmaf(query[c], x, chain[c % CHAINS]);
    }
    for (uint32_t half = CHAINS / 2; half > 0; half /= 2)
        for (uint32_t i = 0; i < half; i++)
            chain[i] += chain[i + half];
    return chain[0];
}

void kr_row_dot_scalar(const kr_row_dot_args *a)
{
    const uint64_t stride = a->row_stride * kr_dtype_bytes(a->type);

    for (uint64_t i = 0; i < a->rows; i++)
        for (uint32_t q = 0; q < a->queries; q++)
            a->out[q * a->out_stride + i] = dot(a->query + (uint64_t)q * a->query_stride,
                                                (const uint8_t *)a->row + i * stride, a->type, a->dim);
}
