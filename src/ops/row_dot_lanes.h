/* Body of the vector variants of row_dot: lane = chain. Included once per ISA after its lanes header,
 * with KR_ROW_DOT_NAME the function to define. */
#include "ops/lanes_load.h"
#include "ops/row_dot.h"
#include "ops/variants.h"

/* A tile is up to TILE sums of rows with queries: all in registers, and on AVX-512 folded together. */
enum {
    CHAINS = 16,
    VECTORS = CHAINS / KR_LANES,
    TILE = KR_LANES == 16 ? 16 : 8,
    QUERIES = KR_LANES == 16 ? 8 : 4,
    AHEAD = 2048
};

/* out[q][r] = the 16 chains of sum[q * rows + r], folded by halves. */
KR_INLINE void store_sums(kr_lanes sum[TILE][VECTORS], const uint32_t n, const uint32_t rows, float *out,
                          uint64_t stride)
{
#if KR_LANES == 16
    if (n * rows > 2) {
        float folded[TILE];

        lanes_store(folded, lanes_fold16(&sum[0][0]));
        KR_UNROLL for (uint32_t q = 0; q < n; q++)
            __builtin_memcpy(out + q * stride, folded + q * rows, sizeof(float) * rows);
        return;
    }
#endif
    KR_UNROLL for (uint32_t q = 0; q < n; q++) KR_UNROLL for (uint32_t r = 0; r < rows; r++)
        out[q * stride + r] = lanes_sum16(sum[q * rows + r]);
}

/* Sums of n queries with rows rows, n * rows <= TILE, over the first `whole` elements; queries are loaded
 * once for all rows. n, rows and type are constants at every call. */
KR_INLINE void dots(const kr_row_dot_args *a, const float *query, const uint8_t *row, uint32_t whole,
                    kr_lanes sum[TILE][VECTORS], const uint32_t n, const uint32_t rows, const kr_dtype type)
{
    const size_t stride = a->row_stride * kr_dtype_bytes(type);

    KR_UNROLL for (uint32_t i = 0; i < TILE; i++) KR_UNROLL for (uint32_t v = 0; v < VECTORS; v++)
        sum[i][v] = lanes_set(0.0f);
    for (uint32_t c = 0; c < whole; c += CHAINS)
        KR_UNROLL for (uint32_t v = 0; v < VECTORS; v++)
        {
            kr_lanes x[TILE];

            KR_UNROLL for (uint32_t r = 0; r < rows; r++)
            {
                x[r] = lanes_load_as(type, row + r * stride, c + v * KR_LANES);
                __builtin_prefetch(row + r * stride + c * kr_dtype_bytes(type) + AHEAD);
            }
            KR_UNROLL for (uint32_t q = 0; q < n; q++)
            {
                const kr_lanes y = lanes_load(query + (size_t)q * a->query_stride + c + v * KR_LANES);

                KR_UNROLL for (uint32_t r = 0; r < rows; r++)
                    sum[q * rows + r][v] = lanes_fma(y, x[r], sum[q * rows + r][v]);
            }
        }
}

/* One dot of any length: elements past dim are 0 * 0 from padded copies. */
KR_INLINE float dot_with_rest(const kr_row_dot_args *a, const float *query, const uint8_t *row,
                              const kr_dtype type)
{
    const uint32_t whole = a->dim / CHAINS * CHAINS, rest = a->dim - whole;
    float x[CHAINS] = {0}, y[CHAINS] = {0};
    kr_lanes sum[TILE][VECTORS];

    dots(a, query, row, whole, sum, 1, 1, type);
    kr_to_f32(type, row + (size_t)whole * kr_dtype_bytes(type), x, rest);
    for (uint32_t c = 0; c < rest; c++)
        y[c] = query[whole + c];
    KR_UNROLL for (uint32_t v = 0; v < VECTORS; v++)
        sum[0][v] = lanes_fma(lanes_load(y + v * KR_LANES), lanes_load(x + v * KR_LANES), sum[0][v]);
    return lanes_sum16(sum[0]);
}

/* All rows for queries [q, q + n), `rows` at a time. */
KR_INLINE void all_rows(const kr_row_dot_args *a, uint32_t q, const uint32_t n, const uint32_t rows,
                        const kr_dtype type)
{
    const float *query = a->query + (size_t)q * a->query_stride;
    const uint8_t *row = a->row;
    float *out = a->out + q * a->out_stride;
    const size_t stride = a->row_stride * kr_dtype_bytes(type);
    kr_lanes sum[TILE][VECTORS];
    uint64_t i = 0;

    for (; i + rows <= a->rows; i += rows) {
        dots(a, query, row + i * stride, a->dim, sum, n, rows, type);
        store_sums(sum, n, rows, out + i, a->out_stride);
    }
    for (; i < a->rows; i++) {
        dots(a, query, row + i * stride, a->dim, sum, n, 1, type);
        store_sums(sum, n, 1, out + i, a->out_stride);
    }
}

static void ragged_rows(const kr_row_dot_args *a, const kr_dtype type)
{
    const size_t stride = a->row_stride * kr_dtype_bytes(type);

    for (uint64_t i = 0; i < a->rows; i++)
        for (uint32_t q = 0; q < a->queries; q++)
            a->out[q * a->out_stride + i] = dot_with_rest(a, a->query + (size_t)q * a->query_stride,
                                                          (const uint8_t *)a->row + i * stride, type);
}

KR_INLINE void all_queries(const kr_row_dot_args *a, const kr_dtype type)
{
    uint32_t q = 0;

    for (; q + QUERIES <= a->queries; q += QUERIES)
        all_rows(a, q, QUERIES, TILE / QUERIES, type);
    for (; q + 4 <= a->queries && QUERIES > 4; q += 4)
        all_rows(a, q, 4, TILE / 4, type);
    if (q + 3 == a->queries) {
        all_rows(a, q, 3, TILE / 4, type);
        return;
    }
    for (; q + 2 <= a->queries; q += 2)
        all_rows(a, q, 2, TILE / 2, type);
    for (; q < a->queries; q++)
        all_rows(a, q, 1, TILE, type);
}

void KR_ROW_DOT_NAME(const kr_row_dot_args *a)
{
    if (a->dim % CHAINS != 0)
        ragged_rows(a, a->type);
    else if (a->type == KR_BF16)
        all_queries(a, KR_BF16);
    else if (a->type == KR_F16)
        all_queries(a, KR_F16);
    else
        all_queries(a, KR_F32);
}
