/* The definition of attention over key tiles, and the joining of segments. The scalar form is only
 * ever read: the variants in x86/ answer to it bit for bit. */
#include "ops/attend_tiled.h"

#include <math.h>

#include "ops/attend_exp.h"
#include "ops/fold16.h"
#include "ops/variants.h"

enum { TILE = 16 };

static float element(kr_dtype type, const void *array, uint64_t i)
{
    if (type == KR_F32)
        return ((const float *)array)[i];
    if (type == KR_F16)
        return kr_f32_from_f16(((const uint16_t *)array)[i]);
    return kr_f32_from_bf16(((const uint16_t *)array)[i]);
}

static void attend_row(const kr_attend_tiled_args *a, uint32_t r)
{
    float *p = a->scores, *acc = a->accumulator + (uint64_t)r * a->value_dim;
    float lane[TILE] = {0.0f}, maximum = -INFINITY;

    for (uint32_t i = a->from[r]; i < a->to[r]; i++) {
        float dot = 0.0f;

        for (uint32_t c = 0; c < a->key_dim; c++)
            dot = fmaf(a->query[r][c], element(a->type, a->key_tile[i / TILE], (uint64_t)c * TILE + i % TILE),
                       dot);
        p[i] = dot * a->scale;
        maximum = p[i] > maximum ? p[i] : maximum;
    }
    maximum += 0.0f; /* -0 becomes +0 */
    for (uint32_t d = 0; d < a->value_dim; d++)
        acc[d] = 0.0f;
    for (uint32_t i = a->from[r]; i < a->to[r]; i++) {
        p[i] = kr_exp_f32(p[i] - (maximum == -INFINITY ? 0.0f : maximum));
        lane[i % TILE] += p[i];
        for (uint32_t d = 0; d < a->value_dim; d++)
            acc[d] = fmaf(p[i],
                          element(a->type, a->value_row[i / TILE], (uint64_t)(i % TILE) * a->value_dim + d),
                          acc[d]);
    }
    a->maximum[r] = maximum;
    a->sum[r] = kr_fold16(lane);
}

void kr_attend_tiled_scalar(const kr_attend_tiled_args *a)
{
    for (uint32_t r = 0; r < a->rows; r++)
        attend_row(a, r);
}

void kr_attend_merge(float *maximum, float *sum, float *accumulator, float next_maximum, float next_sum,
                     const float *next_accumulator, uint32_t value_dim)
{
    const float larger = next_maximum > *maximum ? next_maximum : *maximum;
    const float shift = larger == -INFINITY ? 0.0f : larger;
    const float scale = kr_exp_f32(*maximum - shift), next_scale = kr_exp_f32(next_maximum - shift);

    for (uint32_t d = 0; d < value_dim; d++)
        accumulator[d] = accumulator[d] * scale + next_accumulator[d] * next_scale;
    *sum = *sum * scale + next_sum * next_scale;
    *maximum = larger;
}

void kr_attend_finish(float sum, const float *accumulator, float *output, uint32_t value_dim)
{
    if (sum == 0.0f) {
        for (uint32_t d = 0; d < value_dim; d++)
            output[d] = 0.0f;
        return;
    }
    for (uint32_t d = 0; d < value_dim; d++)
        output[d] = accumulator[d] / sum;
}
