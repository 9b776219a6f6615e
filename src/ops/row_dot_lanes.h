/* Body of the vector variants of row_dot: lane = chain. Included once per ISA after its lanes header,
 * with KR_ROW_DOT_NAME the function to define. */
#include "ops/lanes_load.h"
#include "ops/row_dot.h"
#include "ops/variants.h"

enum { CHAINS = 16, VECTORS = CHAINS / KR_LANES, QUERIES = KR_LANES == 16 ? 8 : 4, ROWS = 2, AHEAD = 2048 };

/* Sums of n queries with rows rows; queries are loaded once for all rows. Elements past dim are 0 * 0
 * from padded copies. n, rows and type are constants at every call. */
KR_INLINE void dots(const kr_row_dot_args *a, const float *query, const uint8_t *row, float *out,
                    const uint32_t n, const uint32_t rows, const kr_dtype type)
{
    const uint32_t whole = a->dim / CHAINS * CHAINS, rest = a->dim - whole;
    const size_t stride = a->row_stride * kr_dtype_bytes(type);
    kr_lanes sum[ROWS][QUERIES][VECTORS];

    KR_UNROLL for (uint32_t r = 0; r < rows; r++) KR_UNROLL for (uint32_t q = 0; q < n; q++)
        KR_UNROLL for (uint32_t v = 0; v < VECTORS; v++) sum[r][q][v] = lanes_set(0.0f);
    for (uint32_t c = 0; c < whole; c += CHAINS)
        KR_UNROLL for (uint32_t v = 0; v < VECTORS; v++)
        {
            kr_lanes x[ROWS];

            KR_UNROLL for (uint32_t r = 0; r < rows; r++)
            {
                x[r] = lanes_load_as(type, row + r * stride, c + v * KR_LANES);
                __builtin_prefetch(row + r * stride + c * kr_dtype_bytes(type) + AHEAD);
            }
            KR_UNROLL for (uint32_t q = 0; q < n; q++)
            {
                const kr_lanes y = lanes_load(query + (size_t)q * a->query_stride + c + v * KR_LANES);

                KR_UNROLL for (uint32_t r = 0; r < rows; r++) sum[r][q][v] = lanes_fma(y, x[r], sum[r][q][v]);
            }
        }
    for (uint32_t r = 0; rest > 0 && r < rows; r++) {
        float x[CHAINS] = {0};

        kr_to_f32(type, row + r * stride + (size_t)whole * kr_dtype_bytes(type), x, rest);
        for (uint32_t q = 0; q < n; q++) {
            float y[CHAINS] = {0};

            for (uint32_t c = 0; c < rest; c++)
                y[c] = query[(size_t)q * a->query_stride + whole + c];
            for (uint32_t v = 0; v < VECTORS; v++)
                sum[r][q][v] = lanes_fma(lanes_load(y + v * KR_LANES), lanes_load(x + v * KR_LANES),
                                         sum[r][q][v]);
        }
    }
    KR_UNROLL for (uint32_t r = 0; r < rows; r++) KR_UNROLL for (uint32_t q = 0; q < n; q++)
        out[q * a->out_stride + r] = lanes_sum16(sum[r][q]);
}

/* All rows for queries [q, q + n). */
KR_INLINE void all_rows(const kr_row_dot_args *a, uint32_t q, const uint32_t n, const kr_dtype type)
{
    const float *query = a->query + (size_t)q * a->query_stride;
    const uint8_t *row = a->row;
    float *out = a->out + q * a->out_stride;
    const size_t stride = a->row_stride * kr_dtype_bytes(type);
    uint64_t i = 0;

    for (; i + ROWS <= a->rows; i += ROWS)
        dots(a, query, row + i * stride, out + i, n, ROWS, type);
    for (; i < a->rows; i++)
        dots(a, query, row + i * stride, out + i, n, 1, type);
}

KR_INLINE void all_queries(const kr_row_dot_args *a, const kr_dtype type)
{
    uint32_t q = 0;

    for (; q + QUERIES <= a->queries; q += QUERIES)
        all_rows(a, q, QUERIES, type);
    for (; q + 2 <= a->queries; q += 2)
        all_rows(a, q, 2, type);
    for (; q < a->queries; q++)
        all_rows(a, q, 1, type);
}

void KR_ROW_DOT_NAME(const kr_row_dot_args *a)
{
    if (a->type == KR_BF16)
        all_queries(a, KR_BF16);
    else if (a->type == KR_F16)
        all_queries(a, KR_F16);
    else
        all_queries(a, KR_F32);
}
