/* The definition of attention over gathered rows. Read, never tuned: the variants answer to it. */
#include "ops/attend_rows.h"

#include <float.h>
#include <math.h>

#include "base/check.h"
#include "ops/attend_exp.h"
#include "ops/variants.h"

enum { ROW_GROUP = 64, TOKEN_BLOCK = 72 };

/* The vector variants work on groups of up to 64 rows: transposed query and accumulator (or accumulators
 * padded to 64 dims), scores of one segment, and one block of tokens in F32. The scalar form needs the
 * scores of one row and one converted row, which is less. */
size_t kr_attend_rows_scratch_bytes(uint32_t rows, uint32_t key_dim, uint32_t value_dim)
{
    const size_t group = rows < ROW_GROUP ? (rows + 15) / 16 * 16 : ROW_GROUP;
    const size_t dim = key_dim > value_dim ? key_dim : value_dim;

    return sizeof(float) * (group * (key_dim + value_dim + KR_ATTEND_POSITIONS_MAX) +
                            TOKEN_BLOCK * (dim + 31) + 20 * ROW_GROUP) +
           1024;
}

static void attend_row(const kr_attend_rows_args *a, uint32_t r, float *score, float *element)
{
    float *acc = a->accumulator + (size_t)r * a->value_dim;
    float maximum = -INFINITY, sum = 0.0f;

    for (uint32_t i = a->from[r]; i < a->to[r]; i++) {
        float dot = 0.0f;

        kr_to_f32(a->type, a->key_row[i], element, a->key_dim);
        for (uint32_t c = 0; c < a->key_dim; c++)
            dot = fmaf(a->query[r][c], element[c], dot);
        score[i] = dot * a->scale;
        if (a->bias)
            score[i] += a->bias[i];
        maximum = score[i] > maximum ? score[i] : maximum;
    }
    maximum += 0.0f; /* -0 becomes +0 */
    /* A row of -inf scores has maximum -inf; a finite shift keeps -inf - (-inf) out. */
    const float shift = maximum > -FLT_MAX ? maximum : -FLT_MAX;

    for (uint32_t d = 0; d < a->value_dim; d++)
        acc[d] = 0.0f;
    for (uint32_t i = a->from[r]; i < a->to[r]; i++) {
        const float p = kr_exp_f32(score[i] - shift);

        sum = a->mass ? fmaf(a->mass[i], p, sum) : sum + p;
        kr_to_f32(a->type, a->value_row[i], element, a->value_dim);
        for (uint32_t d = 0; d < a->value_dim; d++)
            acc[d] = fmaf(p, element[d], acc[d]);
    }
    a->maximum[r] = maximum;
    a->sum[r] = sum;
}

void kr_attend_rows_scalar(const kr_attend_rows_args *a)
{
    float *score = a->scratch, *element = score + KR_ATTEND_POSITIONS_MAX;

    KR_CHECK(a->positions <= KR_ATTEND_POSITIONS_MAX && a->rows <= KR_ATTEND_ROWS_MAX);
    KR_CHECK(a->key_dim <= KR_ATTEND_DIM_MAX && a->value_dim <= KR_ATTEND_DIM_MAX);
    for (uint32_t r = 0; r < a->rows; r++)
        attend_row(a, r, score, element);
}
