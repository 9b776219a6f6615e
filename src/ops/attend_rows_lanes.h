/* Body of the vector variants of attend_rows: lane = query row. Included once per ISA after its
 * lanes header, with KR_ATTEND_ROWS_NAME the function to define.
 *
 * Rows are worked in groups of up to 4 vectors; a group's transposed query, scores and accumulator
 * stay in the second-level cache. Tokens are worked in blocks converted to F32 once a pass. Every
 * (row, token) dot and every (row, dim) sum is one FMA chain in index order, carried through memory
 * between chunks, so the bits are those of the scalar form. Both products are one tile kernel. */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/check.h"
#include "ops/attend_ahead.h"
#include "ops/attend_rows.h"
#include "ops/lanes_exp.h"
#include "ops/lanes_load.h"
#include "ops/variants.h"

enum {
    GROUP_VECTORS = KR_LANES == 16 ? 4 : 2,
    /* Tokens converted at once. One vector of rows: the block's elements stay in a first-level cache of
     * 32 KB; more: the block's scores do. Whole register tiles either way. */
    TOKEN_BLOCK_ONE = 32,
    TOKEN_BLOCK = 72,
    CHUNK_FLOATS = 4096 /* a query chunk, 16 KB, stays in the first-level cache too */
};

/* One group of rows while it is worked on. */
typedef struct {
    const kr_attend_rows_args *a;
    uint32_t first_row, rows, vectors, width; /* width = vectors * KR_LANES */
    uint32_t block;                           /* tokens converted at once */
    uint32_t stride;                          /* of their rows: not a multiple of a page of the cache */
    float *query;                             /* [key_dim][width] */
    float *score;                             /* [positions][width] */
    float *acc;                               /* [value_dim][width] */
    float *element;                           /* [TOKEN_BLOCK][stride] */
    float *maximum, *sum;                     /* [width] */
} row_group;

static void convert_row(kr_dtype type, const void *row, float *out, uint32_t dim)
{
    const uint16_t *half = row;
    uint32_t c = 0;

    if (type == KR_BF16)
        for (; c + KR_LANES <= dim; c += KR_LANES)
            lanes_store(out + c, lanes_from_bf16(half + c));
    else if (type == KR_F16)
        for (; c + KR_LANES <= dim; c += KR_LANES)
            lanes_store(out + c, lanes_from_f16(half + c));
    if (c < dim)
        kr_to_f32(type, (const uint8_t *)row + (size_t)c * kr_dtype_bytes(type), out + c, dim - c);
}

/* A product to accumulate: out[t][width] += sum over steps of x[step][width] * y[t][step]; fresh: out
 * starts at 0. */
typedef struct {
    const float *x, *y;
    float *out;
    size_t t_stride, step_stride; /* of y, in elements */
    uint32_t width, steps;
    bool fresh;
    upcoming *ahead;
} product;

static void convert_rows(const row_group *g, const void *const *rows, uint32_t n, uint32_t dim)
{
    for (uint32_t j = 0; j < n; j++)
        convert_row(g->a->type, rows[j], g->element + (size_t)j * g->stride, dim);
}

/* H vectors of rows times T columns, all partial sums in registers. */
#define DEFINE_TILE(H, T)                                                                              \
    static void tile_##H##_##T(const product *p)                                                       \
    {                                                                                                  \
        const float *x = p->x, *y = p->y;                                                              \
        kr_lanes sum[T][H];                                                                            \
                                                                                                       \
        _Pragma("GCC unroll 16") for (int t = 0; t < T; t++)                                           \
            _Pragma("GCC unroll 16") for (int h = 0; h < H; h++)                                       \
                sum[t][h] = p->fresh ? lanes_set(0.0f)                                                 \
                                     : lanes_load(p->out + (size_t)t * p->width + h * KR_LANES);       \
        for (uint32_t s = 0; s < p->steps; s++, x += p->width, y += p->step_stride) {                  \
            if (s % 2 == 0)                                                                            \
                fetch_line(p->ahead);                                                                  \
            kr_lanes xv[H];                                                                            \
                                                                                                       \
            _Pragma("GCC unroll 16") for (int h = 0; h < H; h++) xv[h] = lanes_load(x + h * KR_LANES); \
            _Pragma("GCC unroll 16") for (int t = 0; t < T; t++)                                       \
            {                                                                                          \
                const kr_lanes yv = lanes_set(y[(size_t)t * p->t_stride]);                             \
                                                                                                       \
                _Pragma("GCC unroll 16") for (int h = 0; h < H; h++)                                   \
                    sum[t][h] = lanes_fma(xv[h], yv, sum[t][h]);                                       \
            }                                                                                          \
        }                                                                                              \
        _Pragma("GCC unroll 16") for (int t = 0; t < T; t++)                                           \
            _Pragma("GCC unroll 16") for (int h = 0; h < H; h++)                                       \
                lanes_store(p->out + (size_t)t * p->width + h * KR_LANES, sum[t][h]);                  \
    }

DEFINE_TILE(1, 1)
DEFINE_TILE(2, 6)
DEFINE_TILE(2, 1)
#if KR_LANES == 16
DEFINE_TILE(1, 16)
DEFINE_TILE(3, 8)
DEFINE_TILE(3, 1)
DEFINE_TILE(4, 6)
DEFINE_TILE(4, 1)
#else
DEFINE_TILE(1, 8)
#endif

/* Wide and narrow tile for each number of vectors; 8 partial sums or more hide the FMA latency. */
static const struct {
    uint32_t columns;
    void (*wide)(const product *), (*narrow)(const product *);
} tiles[] = {
#if KR_LANES == 16
    {16, tile_1_16, tile_1_1},
    {6, tile_2_6, tile_2_1},
    {8, tile_3_8, tile_3_1},
    {6, tile_4_6, tile_4_1},
#else
    {8, tile_1_8, tile_1_1},
    {6, tile_2_6, tile_2_1},
#endif
};

static void multiply(const row_group *g, product p, uint32_t columns)
{
    const uint32_t wide = tiles[g->vectors - 1].columns;

    for (; columns >= wide; columns -= wide) {
        tiles[g->vectors - 1].wide(&p);
        p.y += wide * p.t_stride;
        p.out += (size_t)wide * p.width;
    }
    for (; columns > 0; columns--) {
        tiles[g->vectors - 1].narrow(&p);
        p.y += p.t_stride;
        p.out += p.width;
    }
}

/* Queries as [key_dim][width]; rows that are missing are 0. */
static void load_query(const row_group *g)
{
    const uint32_t dim = g->a->key_dim, whole = dim / KR_LANES * KR_LANES;
    const float *const *query = g->a->query + g->first_row;

    for (uint32_t first = 0; first < g->width; first += KR_LANES) {
        for (uint32_t c = 0; c < whole; c += KR_LANES) {
            kr_lanes x[KR_LANES];

            KR_UNROLL for (uint32_t r = 0; r < KR_LANES; r++)
                x[r] = first + r < g->rows ? lanes_load(query[first + r] + c) : lanes_set(0.0f);
            lanes_transpose(x);
            KR_UNROLL for (uint32_t r = 0; r < KR_LANES; r++)
                lanes_store(g->query + (size_t)(c + r) * g->width + first, x[r]);
        }
        for (uint32_t c = whole; c < dim; c++)
            for (uint32_t r = first; r < first + KR_LANES; r++)
                g->query[(size_t)c * g->width + r] = r < g->rows ? query[r][c] : 0.0f;
    }
}

/* The block after [i, i + n): its keys; after the last block of keys, the first values. */
static upcoming rows_after(const row_group *g, const void *const *rows, uint32_t i, uint32_t n, uint32_t dim)
{
    const kr_attend_rows_args *a = g->a;
    const size_t element = kr_dtype_bytes(a->type);
    const uint32_t next = i + n, left = a->positions - next;

    if (left == 0 && rows == a->key_row && a->value_row[0] != a->key_row[0])
        return (upcoming){a->value_row, a->value_row + n, 0, a->value_dim * element};
    return (upcoming){rows + next, rows + next + (left < g->block ? left : g->block), 0, dim * element};
}

/* Scores of all positions, unscaled. */
static void score_positions(const row_group *g)
{
    const uint32_t dim = g->a->key_dim, chunk = CHUNK_FLOATS / g->width;

    for (uint32_t i = 0; i < g->a->positions; i += g->block) {
        const uint32_t n = g->a->positions - i < g->block ? g->a->positions - i : g->block;

        upcoming ahead = rows_after(g, g->a->key_row, i, n, dim);

        convert_rows(g, g->a->key_row + i, n, dim);
        for (uint32_t c = 0; c < dim; c += chunk) {
            const uint32_t steps = dim - c < chunk ? dim - c : chunk;

            multiply(g,
                     (product){g->query + (size_t)c * g->width, g->element + c,
                               g->score + (size_t)i * g->width, g->stride, 1, g->width, steps, c == 0,
                               &ahead},
                     n);
        }
    }
}

/* Rows of a vector that do not see position i get -inf there. */
static void mask_position(const row_group *g, uint32_t i, uint32_t vector)
{
    const uint32_t first = vector * KR_LANES;

    for (uint32_t r = first; r < g->rows && r < first + KR_LANES; r++)
        if (i < g->a->from[g->first_row + r] || i >= g->a->to[g->first_row + r])
            g->score[(size_t)i * g->width + r] = -INFINITY;
}

static bool sees_all(const row_group *g)
{
    for (uint32_t r = 0; r < g->rows; r++)
        if (g->a->from[g->first_row + r] != 0 || g->a->to[g->first_row + r] != g->a->positions)
            return false;
    return true;
}

/* Scaled and biased, in place, for one vector of rows. */
static inline kr_lanes finish_score(const row_group *g, uint32_t i, uint32_t vector)
{
    const kr_attend_rows_args *a = g->a;
    float *score = g->score + (size_t)i * g->width + vector * KR_LANES;
    kr_lanes s = lanes_mul(lanes_load(score), lanes_set(a->scale));

    if (a->bias)
        s = lanes_add(s, lanes_set(a->bias[i]));
    lanes_store(score, s);
    return s;
}

/* The largest score of each row of a vector, after finishing all of them. */
static kr_lanes finish_scores(const row_group *g, uint32_t vector, bool all_seen)
{
    kr_lanes maximum = lanes_set(-INFINITY);

    for (uint32_t i = 0; i < g->a->positions; i++) {
        kr_lanes s = finish_score(g, i, vector);

        if (!all_seen) {
            mask_position(g, i, vector);
            s = lanes_load(g->score + (size_t)i * g->width + vector * KR_LANES);
        }
        maximum = lanes_max(s, maximum);
    }
    return lanes_add(maximum, lanes_set(0.0f)); /* -0 becomes +0 */
}

/* Scores to probabilities for one vector of rows: maximum, exp, sum over positions in order. */
static void softmax(const row_group *g, uint32_t vector, bool all_seen)
{
    const kr_attend_rows_args *a = g->a;
    float *score = g->score + vector * KR_LANES;
    kr_lanes maximum = finish_scores(g, vector, all_seen), sum = lanes_set(0.0f);

    lanes_store(g->maximum + vector * KR_LANES, maximum);
    maximum = lanes_max(maximum, lanes_set(-FLT_MAX));
    for (uint32_t i = 0; i < a->positions; i++) {
        const kr_lanes p = lanes_exp(lanes_sub(lanes_load(score + (size_t)i * g->width), maximum));

        lanes_store(score + (size_t)i * g->width, p);
        sum = a->mass ? lanes_fma(lanes_set(a->mass[i]), p, sum) : lanes_add(sum, p);
    }
    lanes_store(g->sum + vector * KR_LANES, sum);
}

static void weigh_values(const row_group *g)
{
    const uint32_t dim = g->a->value_dim;

    if (g->a->positions == 0)
        memset(g->acc, 0, sizeof(float) * dim * g->width);
    for (uint32_t i = 0; i < g->a->positions; i += g->block) {
        const uint32_t n = g->a->positions - i < g->block ? g->a->positions - i : g->block;

        upcoming ahead = rows_after(g, g->a->value_row, i, n, dim);

        convert_rows(g, g->a->value_row + i, n, dim);
        multiply(g,
                 (product){g->score + (size_t)i * g->width, g->element, g->acc, 1, g->stride, g->width, n,
                           i == 0, &ahead},
                 dim);
    }
}

static void store_rows(const row_group *g)
{
    const uint32_t dim = g->a->value_dim, whole = dim / KR_LANES * KR_LANES;
    float *out = g->a->accumulator + (size_t)g->first_row * dim;

    for (uint32_t first = 0; first < g->rows; first += KR_LANES) {
        const uint32_t rows = g->rows - first < KR_LANES ? g->rows - first : KR_LANES;

        for (uint32_t d = 0; d < whole; d += KR_LANES) {
            kr_lanes x[KR_LANES];

            KR_UNROLL for (uint32_t r = 0; r < KR_LANES; r++)
                x[r] = lanes_load(g->acc + (size_t)(d + r) * g->width + first);
            lanes_transpose(x);
            KR_UNROLL for (uint32_t r = 0; r < KR_LANES; r++) if (r < rows)
                lanes_store(out + (size_t)(first + r) * dim + d, x[r]);
        }
        for (uint32_t r = first; r < first + rows; r++)
            for (uint32_t d = whole; d < dim; d++)
                out[(size_t)r * dim + d] = g->acc[(size_t)d * g->width + r];
    }
    for (uint32_t r = 0; r < g->rows; r++) {
        g->a->maximum[g->first_row + r] = g->maximum[r];
        g->a->sum[g->first_row + r] = g->sum[r];
    }
}

void KR_ATTEND_ROWS_NAME(const kr_attend_rows_args *a)
{
    const uint32_t dim = a->key_dim > a->value_dim ? a->key_dim : a->value_dim;

    KR_CHECK(a->positions <= KR_ATTEND_POSITIONS_MAX && a->rows <= KR_ATTEND_ROWS_MAX);
    KR_CHECK(a->key_dim <= KR_ATTEND_DIM_MAX && a->value_dim <= KR_ATTEND_DIM_MAX);
    for (uint32_t r = 0; r < a->rows; r += GROUP_VECTORS * KR_LANES) {
        row_group g = {.a = a, .first_row = r, .rows = a->rows - r};

        if (g.rows > GROUP_VECTORS * KR_LANES)
            g.rows = GROUP_VECTORS * KR_LANES;
        g.vectors = (g.rows + KR_LANES - 1) / KR_LANES;
        g.width = g.vectors * KR_LANES;
        g.block = g.vectors == 1 ? TOKEN_BLOCK_ONE : TOKEN_BLOCK;
        g.query = a->scratch;
        g.acc = g.query + (size_t)a->key_dim * g.width;
        g.stride = (dim + 15) / 16 * 16 + 16;
        g.element = g.acc + (size_t)a->value_dim * g.width;
        g.maximum = g.element + (size_t)TOKEN_BLOCK * g.stride;
        g.sum = g.maximum + g.width;
        g.score = g.sum + g.width;
        load_query(&g);
        score_positions(&g);
        for (uint32_t v = 0; v < g.vectors; v++)
            softmax(&g, v, sees_all(&g));
        weigh_values(&g);
        store_rows(&g);
    }
}
