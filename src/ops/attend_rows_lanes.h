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
#include "ops/variants.h"

enum {
    GROUP_VECTORS = KR_LANES == 16 ? 4 : 2,
    /* Tokens converted at once. One vector of rows: the block's elements stay in a first-level cache of
     * 32 KB; more: the block's scores do. Whole register tiles either way. */
    TOKEN_BLOCK_ONE = 32,
    TOKEN_BLOCK = 72,
    DIM_BLOCK = 16,
    CHUNK_FLOATS = 4096 /* a query chunk, 16 KB, stays in the first-level cache too */
};

/* One group of rows while it is worked on. */
typedef struct {
    const kr_attend_rows_args *a;
    uint32_t first_row, rows, vectors, width; /* width = vectors * KR_LANES */
    uint32_t block;                           /* tokens converted at once */
    float *query;                             /* [key_dim][width] */
    float *score;                             /* [positions][width] */
    float *acc;                               /* [value_dim][width] */
    float *element;                           /* [TOKEN_BLOCK][max dim] */
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

/* A product to accumulate: out[t][width] += sum over steps of x[step][width] * y[t][step]. */
typedef struct {
    const float *x, *y;
    float *out;
    size_t t_stride, step_stride; /* of y, in elements */
    uint32_t width, steps;
    upcoming *ahead;
} product;

static void convert_rows(const row_group *g, const void *const *rows, uint32_t n, uint32_t dim)
{
    for (uint32_t j = 0; j < n; j++)
        convert_row(g->a->type, rows[j], g->element + (size_t)j * dim, dim);
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
                sum[t][h] = lanes_load(p->out + (size_t)t * p->width + h * KR_LANES);                  \
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

/* Both transposes go in blocks of 16 dims, whose lines then stay in the first-level cache. */
static void load_query(const row_group *g)
{
    const uint32_t dim = g->a->key_dim;

    for (uint32_t first = 0; first < dim; first += DIM_BLOCK)
        for (uint32_t r = 0; r < g->width; r++)
            for (uint32_t c = first; c < dim && c < first + DIM_BLOCK; c++)
                g->query[(size_t)c * g->width + r] = r < g->rows ? g->a->query[g->first_row + r][c] : 0.0f;
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

    memset(g->score, 0, sizeof(float) * g->a->positions * g->width);
    for (uint32_t i = 0; i < g->a->positions; i += g->block) {
        const uint32_t n = g->a->positions - i < g->block ? g->a->positions - i : g->block;

        upcoming ahead = rows_after(g, g->a->key_row, i, n, dim);

        convert_rows(g, g->a->key_row + i, n, dim);
        for (uint32_t c = 0; c < dim; c += chunk) {
            const uint32_t steps = dim - c < chunk ? dim - c : chunk;

            multiply(g,
                     (product){g->query + (size_t)c * g->width, g->element + c,
                               g->score + (size_t)i * g->width, dim, 1, g->width, steps, &ahead},
                     n);
        }
    }
}

/* Rows of the group that do not see position i get -inf there. */
static void mask_position(const row_group *g, uint32_t i)
{
    for (uint32_t r = 0; r < g->rows; r++)
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

static void finish_scores(const row_group *g)
{
    const kr_attend_rows_args *a = g->a;
    const kr_lanes scale = lanes_set(a->scale);
    const bool all = sees_all(g);

    for (uint32_t i = 0; i < a->positions; i++) {
        float *score = g->score + (size_t)i * g->width;

        for (uint32_t r = 0; r < g->width; r += KR_LANES) {
            kr_lanes s = lanes_mul(lanes_load(score + r), scale);

            if (a->bias)
                s = lanes_add(s, lanes_set(a->bias[i]));
            lanes_store(score + r, s);
        }
        if (!all)
            mask_position(g, i);
    }
}

/* Scores to probabilities for one vector of rows: maximum, exp, sum over positions in order. */
static void softmax(const row_group *g, uint32_t vector)
{
    const kr_attend_rows_args *a = g->a;
    float *score = g->score + vector * KR_LANES;
    kr_lanes maximum = lanes_set(-INFINITY), sum = lanes_set(0.0f);

    for (uint32_t i = 0; i < a->positions; i++)
        maximum = lanes_max(lanes_load(score + (size_t)i * g->width), maximum);
    maximum = lanes_add(maximum, lanes_set(0.0f)); /* -0 becomes +0 */
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

    memset(g->acc, 0, sizeof(float) * dim * g->width);
    for (uint32_t i = 0; i < g->a->positions; i += g->block) {
        const uint32_t n = g->a->positions - i < g->block ? g->a->positions - i : g->block;

        upcoming ahead = rows_after(g, g->a->value_row, i, n, dim);

        convert_rows(g, g->a->value_row + i, n, dim);
        multiply(g,
                 (product){g->score + (size_t)i * g->width, g->element, g->acc, 1, dim, g->width, n, &ahead},
                 dim);
    }
}

static void store_rows(const row_group *g)
{
    const uint32_t dim = g->a->value_dim;
    float *out = g->a->accumulator + (size_t)g->first_row * dim;

    for (uint32_t first = 0; first < dim; first += DIM_BLOCK)
        for (uint32_t r = 0; r < g->rows; r++)
            for (uint32_t d = first; d < dim && d < first + DIM_BLOCK; d++)
                out[(size_t)r * dim + d] = g->acc[(size_t)d * g->width + r];
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
        g.element = g.acc + (size_t)a->value_dim * g.width;
        g.maximum = g.element + (size_t)TOKEN_BLOCK * dim;
        g.sum = g.maximum + g.width;
        g.score = g.sum + g.width;
        load_query(&g);
        score_positions(&g);
        finish_scores(&g);
        for (uint32_t v = 0; v < g.vectors; v++)
            softmax(&g, v);
        weigh_values(&g);
        store_rows(&g);
    }
}
