/* Body of the vector variants of row_dot: lane = chain. Included once per ISA after its lanes header,
 * with KR_ROW_DOT_NAME the function to define. */
#include "base/num.h"
#include "ops/row_dot.h"
#include "ops/variants.h"

enum { CHAINS = 16, VECTORS = CHAINS / KR_LANES, QUERIES = 4 };

static inline kr_lanes load_lanes(kr_dtype type, const uint8_t *row, uint32_t c)
{
    if (type == KR_BF16)
        return lanes_from_bf16((const uint16_t *)row + c);
    if (type == KR_F16)
        return lanes_from_f16((const uint16_t *)row + c);
    return lanes_load((const float *)row + c);
}

/* Rows of dim not a multiple of 16 end in a padded copy: the missing products are 0 * 0. */
static void dot_queries(const kr_row_dot_args *a, uint32_t q, uint32_t n, const uint8_t *row, uint64_t i)
{
    kr_lanes sum[QUERIES][VECTORS];
    float tail_row[CHAINS] = {0}, tail_query[QUERIES][CHAINS] = {{0}};
    const uint32_t whole = a->dim / CHAINS * CHAINS, rest = a->dim - whole;

    for (uint32_t k = 0; k < n; k++)
        for (int v = 0; v < VECTORS; v++)
            sum[k][v] = lanes_set(0.0f);
    for (uint32_t c = 0; c < whole; c += CHAINS)
        for (int v = 0; v < VECTORS; v++) {
            const kr_lanes x = load_lanes(a->type, row, c + (uint32_t)v * KR_LANES);

            for (uint32_t k = 0; k < n; k++)
                sum[k][v] = lanes_fma(
                    lanes_load(a->query + (uint64_t)(q + k) * a->query_stride + c + (uint32_t)v * KR_LANES), x,
                    sum[k][v]);
        }
    if (rest > 0) {
        kr_to_f32(a->type, row + (uint64_t)whole * kr_dtype_bytes(a->type), tail_row, rest);
        for (uint32_t k = 0; k < n; k++) {
            for (uint32_t c = 0; c < rest; c++)
                tail_query[k][c] = a->query[(uint64_t)(q + k) * a->query_stride + whole + c];
            for (int v = 0; v < VECTORS; v++)
                sum[k][v] = lanes_fma(lanes_load(tail_query[k] + v * KR_LANES),
                                      lanes_load(tail_row + v * KR_LANES), sum[k][v]);
        }
    }
    for (uint32_t k = 0; k < n; k++)
        a->out[(q + k) * a->out_stride + i] = lanes_sum16(sum[k]);
}

void KR_ROW_DOT_NAME(const kr_row_dot_args *a)
{
    const uint64_t stride = a->row_stride * kr_dtype_bytes(a->type);

    for (uint64_t i = 0; i < a->rows; i++) {
        const uint8_t *row = (const uint8_t *)a->row + i * stride;
        uint32_t q = 0;

        for (; q + QUERIES <= a->queries; q += QUERIES)
            dot_queries(a, q, QUERIES, row, i);
        if (q < a->queries)
            dot_queries(a, q, a->queries - q, row, i);
    }
}
