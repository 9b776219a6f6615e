/* Body of the vector variants of attend_tiled. Included once per ISA after its lanes header, with
 * KR_ATTEND_TILED_NAME the function to define.
 *
 * Lane = token in the scores (a tile is one or two vectors), lane = dim in the values. Rows are
 * worked in groups of KR_ATTEND_ROW_GROUP that share the conversion of keys and values; a block of
 * rows x tiles (or rows x dims) keeps its sums in registers. Rows of a group may see different
 * ranges: the range common to all is worked together, the ragged ends row by row, so that no row
 * ever multiplies a value it does not see. Prefetches run a fixed distance ahead inside the loops:
 * issued in bursts they would stall on the line-fill buffers. */
#include <math.h>
#include <string.h>

#include "ops/attend_tiled.h"
#include "ops/lanes_exp.h"
#include "ops/lanes_load.h"
#include "ops/variants.h"

enum {
    TILE = 16,
    H = TILE / KR_LANES, /* vectors of a tile */
    /* Rows x vectors of one register block; what is left holds keys, values and a broadcast. */
    BLOCK_ROWS = KR_LANES_REGISTERS == 32 ? 6 : 2,
    BLOCK_TILES = 4 / H,
    BLOCK_VECTORS = 4,
    VALUE_AHEAD = 64 /* tokens of prefetch distance */
};

_Static_assert(KR_ATTEND_ROW_GROUP % (int)BLOCK_ROWS == 0, "a row group is whole blocks");

/* Raw dots of rows x tiles into score[row][tile * TILE ..]. next = tiles to prefetch, or NULL. */
KR_INLINE void dot_block(const kr_attend_tiled_args *a, const float *const *query, float *score,
                         size_t stride, uint32_t tile, const void *const *next, const uint32_t rows,
                         const uint32_t tiles, const kr_dtype type)
{
    kr_lanes sum[BLOCK_ROWS][BLOCK_TILES * H];
    const size_t bytes = type == KR_F32 ? 4 : 2;

    KR_UNROLL for (uint32_t r = 0; r < rows; r++) KR_UNROLL for (uint32_t v = 0; v < tiles * H; v++)
        sum[r][v] = lanes_set(0.0f);
    for (uint32_t c = 0; c < a->key_dim; c++) {
        kr_lanes key[BLOCK_TILES * H];

        if (next != NULL && c * TILE * bytes % 64 == 0)
            KR_UNROLL for (uint32_t t = 0; t < tiles; t++)
                KR_PREFETCH((const char *)next[t] + c * TILE * bytes);
        KR_UNROLL for (uint32_t v = 0; v < tiles * H; v++)
            key[v] = lanes_load_as(type, a->key_tile[tile + v / H], (size_t)c * TILE + v % H * KR_LANES);
        KR_UNROLL for (uint32_t r = 0; r < rows; r++)
        {
            const kr_lanes q = lanes_set(query[r][c]);

            KR_UNROLL for (uint32_t v = 0; v < tiles * H; v++) sum[r][v] = lanes_fma(q, key[v], sum[r][v]);
        }
    }
    KR_UNROLL for (uint32_t r = 0; r < rows; r++) KR_UNROLL for (uint32_t v = 0; v < tiles * H; v++)
        lanes_store(score + r * stride + (size_t)tile * TILE + v * KR_LANES, sum[r][v]);
}

/* All tiles of [tile, end) for a block of rows. */
KR_INLINE void dot_rows(const kr_attend_tiled_args *a, const float *const *query, float *score, size_t stride,
                        uint32_t tile, uint32_t end, const uint32_t rows, const kr_dtype type)
{
    for (; tile + BLOCK_TILES <= end; tile += BLOCK_TILES)
        dot_block(a, query, score, stride, tile,
                  tile + 2 * BLOCK_TILES <= end ? a->key_tile + tile + BLOCK_TILES : NULL, rows, BLOCK_TILES,
                  type);
    for (; tile < end; tile++)
        dot_block(a, query, score, stride, tile, NULL, rows, 1, type);
}

/* acc[row][dim .. dim + vectors * KR_LANES) += p[row][i] * value[i], i ascending over [from, to). */
KR_INLINE void value_block(const kr_attend_tiled_args *a, const float *p, size_t stride, float *acc,
                           uint32_t dim, uint32_t from, uint32_t to, const uint32_t rows,
                           const uint32_t vectors, const kr_dtype type)
{
    kr_lanes sum[BLOCK_ROWS][BLOCK_VECTORS];
    const size_t bytes = type == KR_F32 ? 4 : 2;

    KR_UNROLL for (uint32_t r = 0; r < rows; r++) KR_UNROLL for (uint32_t v = 0; v < vectors; v++)
        sum[r][v] = lanes_load(acc + (size_t)r * a->value_dim + dim + v * KR_LANES);
    for (uint32_t i = from; i < to; i++) {
        const size_t first = (size_t)(i % TILE) * a->value_dim + dim;
        const void *value = a->value_row[i / TILE];
        kr_lanes x[BLOCK_VECTORS];

        if (i + VALUE_AHEAD < to) {
            const char *ahead = (const char *)a->value_row[i / TILE + VALUE_AHEAD / TILE] + first * bytes;
            KR_UNROLL for (uint32_t b = 0; b < vectors * KR_LANES * bytes; b += 64) KR_PREFETCH(ahead + b);
        }
        KR_UNROLL for (uint32_t v = 0; v < vectors; v++)
            x[v] = lanes_load_as(type, value, first + v * KR_LANES);
        KR_UNROLL for (uint32_t r = 0; r < rows; r++)
        {
            const kr_lanes w = lanes_set(p[r * stride + i]);

            KR_UNROLL for (uint32_t v = 0; v < vectors; v++) sum[r][v] = lanes_fma(w, x[v], sum[r][v]);
        }
    }
    KR_UNROLL for (uint32_t r = 0; r < rows; r++) KR_UNROLL for (uint32_t v = 0; v < vectors; v++)
        lanes_store(acc + (size_t)r * a->value_dim + dim + v * KR_LANES, sum[r][v]);
}

KR_INLINE void value_rows(const kr_attend_tiled_args *a, const float *p, size_t stride, float *acc,
                          uint32_t from, uint32_t to, const uint32_t rows, const kr_dtype type)
{
    uint32_t d = 0;

    for (; d + BLOCK_VECTORS * KR_LANES <= a->value_dim; d += BLOCK_VECTORS * KR_LANES)
        value_block(a, p, stride, acc, d, from, to, rows, BLOCK_VECTORS, type);
    for (; d + KR_LANES <= a->value_dim; d += KR_LANES)
        value_block(a, p, stride, acc, d, from, to, rows, 1, type);
    for (; d < a->value_dim; d++)
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t i = from; i < to; i++)
                acc[(size_t)r * a->value_dim + d] = fmaf(
                    p[r * stride + i],
                    lanes_load_one(type, a->value_row[i / TILE], (size_t)(i % TILE) * a->value_dim + d),
                    acc[(size_t)r * a->value_dim + d]);
}

/* Constant numbers of rows, so that the register blocks unroll. */
#define BY_ROWS(FN, ROWS, TYPE, ...)                   \
    switch (ROWS) {                                    \
    case 1:                                            \
        FN(__VA_ARGS__, 1, TYPE);                      \
        break;                                         \
    case 2:                                            \
        FN(__VA_ARGS__, 2, TYPE);                      \
        break;                                         \
    case 3:                                            \
        FN(__VA_ARGS__, BLOCK_ROWS > 2 ? 3 : 1, TYPE); \
        break;                                         \
    case 4:                                            \
        FN(__VA_ARGS__, BLOCK_ROWS > 2 ? 4 : 1, TYPE); \
        break;                                         \
    case 5:                                            \
        FN(__VA_ARGS__, BLOCK_ROWS > 2 ? 5 : 1, TYPE); \
        break;                                         \
    default:                                           \
        FN(__VA_ARGS__, BLOCK_ROWS, TYPE);             \
        break;                                         \
    }

#define DEFINE_TYPE(NAME, TYPE)                                                                        \
    static void dot_##NAME(const kr_attend_tiled_args *a, const float *const *query, float *score,     \
                           size_t stride, uint32_t tile, uint32_t end, uint32_t rows)                  \
    {                                                                                                  \
        BY_ROWS(dot_rows, rows, TYPE, a, query, score, stride, tile, end)                              \
    }                                                                                                  \
    static void value_##NAME(const kr_attend_tiled_args *a, const float *p, size_t stride, float *acc, \
                             uint32_t from, uint32_t to, uint32_t rows)                                \
    {                                                                                                  \
        BY_ROWS(value_rows, rows, TYPE, a, p, stride, acc, from, to)                                   \
    }

DEFINE_TYPE(f32, KR_F32)
DEFINE_TYPE(f16, KR_F16)
DEFINE_TYPE(bf16, KR_BF16)

typedef struct {
    void (*dot)(const kr_attend_tiled_args *a, const float *const *query, float *score, size_t stride,
                uint32_t tile, uint32_t end, uint32_t rows);
    void (*value)(const kr_attend_tiled_args *a, const float *p, size_t stride, float *acc, uint32_t from,
                  uint32_t to, uint32_t rows);
} typed;

static const typed by_type[] = {
    [KR_F32] = {dot_f32, value_f32},
    [KR_F16] = {dot_f16, value_f16},
    [KR_BF16] = {dot_bf16, value_bf16},
};

/* Scale, mask, maximum, exp and sum of one row; score becomes p, 0 where invisible. */
static void softmax_row(const kr_attend_tiled_args *a, uint32_t r, float *score)
{
    const uint32_t first = a->from[r] / TILE, end = (a->to[r] + TILE - 1) / TILE;
    const kr_lanes scale = lanes_set(a->scale);
    kr_lanes maximum = lanes_set(-INFINITY), sum[H], shift;
    float lane[TILE], m = -INFINITY;

    for (uint32_t i = first * TILE; i < end * TILE; i += KR_LANES) {
        kr_lanes x = lanes_mul(lanes_load(score + i), scale);

        if (i < a->from[r] || i + KR_LANES > a->to[r]) {
            lanes_store(lane, x);
            for (uint32_t j = 0; j < KR_LANES; j++)
                if (i + j < a->from[r] || i + j >= a->to[r])
                    lane[j] = -INFINITY;
            x = lanes_load(lane);
        }
        lanes_store(score + i, x);
        maximum = lanes_max(x, maximum);
    }
    lanes_store(lane, maximum);
    for (uint32_t j = 0; j < KR_LANES; j++)
        m = lane[j] > m ? lane[j] : m;
    m += 0.0f; /* -0 becomes +0 */
    shift = lanes_set(m == -INFINITY ? 0.0f : m);
    for (uint32_t h = 0; h < H; h++)
        sum[h] = lanes_set(0.0f);
    for (uint32_t i = first * TILE; i < end * TILE; i += TILE)
        KR_UNROLL for (uint32_t h = 0; h < H; h++)
        {
            const kr_lanes p = lanes_exp(lanes_sub(lanes_load(score + i + h * KR_LANES), shift));

            lanes_store(score + i + h * KR_LANES, p);
            sum[h] = lanes_add(sum[h], p);
        }
    a->maximum[r] = m;
    a->sum[r] = lanes_sum16(sum);
}

/* Rows [row, row + rows) of at most one group. */
static void attend_group(const kr_attend_tiled_args *a, uint32_t row, uint32_t rows, size_t stride)
{
    const typed *t = &by_type[a->type];
    float *acc = a->accumulator + (size_t)row * a->value_dim;
    uint32_t low = UINT32_MAX, high = 0, common_from = 0, common_to = UINT32_MAX;

    memset(acc, 0, sizeof *acc * rows * a->value_dim);
    for (uint32_t r = row; r < row + rows; r++) {
        if (a->from[r] >= a->to[r]) { /* sees nothing: softmax_row writes (-inf, 0) */
            common_to = 0;
            continue;
        }
        low = a->from[r] < low ? a->from[r] : low;
        high = a->to[r] > high ? a->to[r] : high;
        common_from = a->from[r] > common_from ? a->from[r] : common_from;
        common_to = a->to[r] < common_to ? a->to[r] : common_to;
    }
    if (low < high)
        for (uint32_t r = 0; r < rows; r += BLOCK_ROWS)
            t->dot(a, a->query + row + r, a->scores + r * stride, stride, low / TILE,
                   (high + TILE - 1) / TILE, rows - r < BLOCK_ROWS ? rows - r : BLOCK_ROWS);
    for (uint32_t r = 0; r < rows; r++)
        softmax_row(a, row + r, a->scores + r * stride);
    for (uint32_t r = 0; r < rows; r++) {
        const uint32_t to = common_from < common_to ? common_from : a->to[row + r];
        t->value(a, a->scores + r * stride, stride, acc + (size_t)r * a->value_dim, a->from[row + r], to, 1);
    }
    if (common_from >= common_to)
        return;
    for (uint32_t r = 0; r < rows; r += BLOCK_ROWS)
        t->value(a, a->scores + r * stride, stride, acc + (size_t)r * a->value_dim, common_from, common_to,
                 rows - r < BLOCK_ROWS ? rows - r : BLOCK_ROWS);
    for (uint32_t r = 0; r < rows; r++)
        t->value(a, a->scores + r * stride, stride, acc + (size_t)r * a->value_dim, common_to, a->to[row + r],
                 1);
}

void KR_ATTEND_TILED_NAME(const kr_attend_tiled_args *a)
{
    const size_t stride = (size_t)(a->positions + TILE - 1) / TILE * TILE;

    for (uint32_t r = 0; r < a->rows; r += KR_ATTEND_ROW_GROUP)
        attend_group(a, r, a->rows - r < KR_ATTEND_ROW_GROUP ? a->rows - r : KR_ATTEND_ROW_GROUP, stride);
}
