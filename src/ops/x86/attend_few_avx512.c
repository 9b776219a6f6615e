/* attend_rows for few query rows, where a lane a row would leave most lanes empty: lane = token for the
 * scores, lane = dim for the values.
 *
 * Keys are transposed 16 tokens at a time into [dim][BLOCK] F32 in the scratch. Halves are moved in
 * pairs of dims, which takes half the shuffles, and widened afterwards. Values are read where they lie;
 * of BF16 pairs the even and the odd dims make two vectors, which are put in order when the sums are
 * stored. Every dot and every sum is one FMA chain in index order: the bits of the scalar form. */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/check.h"
#include "ops/x86/attend_few.h"
#include "ops/x86/lanes_avx512.h"

#include "ops/lanes_exp.h"
#include "ops/lanes_load.h"

enum {
    TOKENS = 16,
    BLOCK = 64, /* tokens transposed before they are used */
    VECTORS = BLOCK / TOKENS,
    ROWS = 6,         /* of a register tile: 24 sums */
    DIMS = 4,         /* vectors of value dims of a register tile */
    KEYS_AHEAD = 128, /* tokens between a row's prefetch and its use */
    VALUES_AHEAD = 64
};

typedef struct {
    const kr_attend_rows_args *a;
    float *score; /* [rows][KR_ATTEND_POSITIONS_MAX] */
    float *key;   /* [key_dim][BLOCK] */
    float *sum;   /* [rows][stride] weighted sums of values, pairs as even and odd */
    uint32_t stride, value_bytes;
} work;

/* ---- keys ---- */

static __mmask32 first_halves(uint32_t n) { return n >= 32 ? 0xffffffffu : (1u << n) - 1; }
static __mmask16 first_words(uint32_t n) { return (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1); }

/* The low and the high half of 16 words, widened. */
KR_INLINE void widen(kr_dtype type, __m512i pair, __m512 *low, __m512 *high)
{
    if (type == KR_BF16) {
        *low = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
        *high = _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000u)));
    } else {
        *low = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pair));
        *high = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pair, 16)));
    }
}

/* Row number i of the segment, for prefetching: its keys, then its values. */
static const uint8_t *row_ahead(const kr_attend_rows_args *a, uint32_t i)
{
    const uint32_t value = i - a->positions;

    return i < a->positions ? a->key_row[i] : a->value_row[value < a->positions ? value : a->positions - 1];
}

/* Transposes a vector of elements from byte `at` of the rows on, of which `dims` exist: out[dim][BLOCK].
 * type and whole are constants at every call. */
KR_INLINE void transpose_dims(const uint8_t *const row[TOKENS], size_t at, uint32_t dims, const kr_dtype type,
                              const bool whole, const uint8_t *const next[TOKENS], float *out)
{
    const uint32_t halves = type == KR_F32 ? 1 : 2;
    __m512i x[TOKENS];

    KR_UNROLL for (uint32_t t = 0; t < TOKENS; t++)
    {
        x[t] = whole            ? _mm512_loadu_si512(row[t] + at)
               : type == KR_F32 ? _mm512_maskz_loadu_epi32(first_words(dims), row[t] + at)
                                : _mm512_maskz_loadu_epi16(first_halves(dims), row[t] + at);
        KR_PREFETCH(next[t] + at);
    }
    words_transpose(x);
    KR_UNROLL for (uint32_t d = 0; d < 16; d++)
    {
        __m512 low = _mm512_castsi512_ps(x[d]), high;

        if (halves == 2)
            widen(type, x[d], &low, &high);
        if (whole || d * halves < dims)
            _mm512_store_ps(out + (size_t)d * halves * BLOCK, low);
        if (halves == 2 && (whole || d * halves + 1 < dims))
            _mm512_store_ps(out + ((size_t)d * halves + 1) * BLOCK, high);
    }
}

KR_INLINE void transpose_block(const work *w, uint32_t i, const kr_dtype type)
{
    const kr_attend_rows_args *a = w->a;
    const uint32_t element = type == KR_F32 ? 4 : 2, vector = 64 / element;

    for (uint32_t t = 0; t < BLOCK && i + t < a->positions; t += TOKENS) {
        const uint8_t *row[TOKENS], *next[TOKENS];
        uint32_t c = 0;

        for (uint32_t j = 0; j < TOKENS; j++) { /* tokens past the last repeat it */
            row[j] = a->key_row[i + t + j < a->positions ? i + t + j : a->positions - 1];
            next[j] = row_ahead(a, i + t + j + KEYS_AHEAD);
        }
        for (; c + vector <= a->key_dim; c += vector)
            transpose_dims(row, c * element, vector, type, true, next, w->key + (size_t)c * BLOCK + t);
        if (c < a->key_dim)
            transpose_dims(row, c * element, a->key_dim - c, type, false, next,
                           w->key + (size_t)c * BLOCK + t);
    }
}

/* ---- scores ---- */

/* Scores of n rows with one block, scaled and biased. n is a constant at every call. */
KR_INLINE void score_tile(const work *w, uint32_t first, uint32_t i, const uint32_t n)
{
    const kr_attend_rows_args *a = w->a;
    const float *const *query = a->query + first;
    __m512 sum[ROWS][VECTORS];

    KR_UNROLL for (uint32_t r = 0; r < n; r++) KR_UNROLL for (uint32_t v = 0; v < VECTORS; v++)
        sum[r][v] = _mm512_setzero_ps();
    for (uint32_t c = 0; c < a->key_dim; c++) {
        __m512 key[VECTORS];

        KR_UNROLL for (uint32_t v = 0; v < VECTORS; v++)
            key[v] = _mm512_load_ps(w->key + (size_t)c * BLOCK + v * TOKENS);
        KR_UNROLL for (uint32_t r = 0; r < n; r++)
        {
            const __m512 q = _mm512_set1_ps(query[r][c]);

            KR_UNROLL for (uint32_t v = 0; v < VECTORS; v++)
                sum[r][v] = _mm512_fmadd_ps(q, key[v], sum[r][v]);
        }
    }
    KR_UNROLL for (uint32_t v = 0; v < VECTORS; v++)
    {
        const uint32_t at = i + v * TOKENS, left = at < a->positions ? a->positions - at : 0;
        const __m512 bias = a->bias ? _mm512_maskz_loadu_ps(first_words(left), a->bias + at)
                                    : _mm512_setzero_ps();

        KR_UNROLL for (uint32_t r = 0; r < n; r++)
        {
            __m512 s = _mm512_mul_ps(sum[r][v], _mm512_set1_ps(a->scale));

            if (a->bias)
                s = _mm512_add_ps(s, bias);
            _mm512_store_ps(w->score + (size_t)(first + r) * KR_ATTEND_POSITIONS_MAX + at, s);
        }
    }
}

/* ---- softmax ---- */

/* Scores of row r to weights; positions that the row does not see weigh 0. Sets its maximum. */
static void weigh(const work *w, uint32_t r)
{
    const kr_attend_rows_args *a = w->a;
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i from = _mm512_set1_epi32((int)a->from[r]), to = _mm512_set1_epi32((int)a->to[r]);
    float *score = w->score + (size_t)r * KR_ATTEND_POSITIONS_MAX;
    __m512 maximum = _mm512_set1_ps(-INFINITY);

    for (uint32_t i = 0; i < a->positions; i += TOKENS) {
        const __m512i at = _mm512_add_epi32(_mm512_set1_epi32((int)i), lane);
        const __mmask16 seen = _mm512_cmpge_epu32_mask(at, from) & _mm512_cmplt_epu32_mask(at, to);
        const __m512 s = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, _mm512_load_ps(score + i));

        _mm512_store_ps(score + i, s);
        maximum = _mm512_max_ps(s, maximum); /* NaN in s never wins */
    }
    a->maximum[r] = _mm512_reduce_max_ps(maximum) + 0.0f;
    const __m512 shift = _mm512_set1_ps(a->maximum[r] > -FLT_MAX ? a->maximum[r] : -FLT_MAX);

    for (uint32_t i = 0; i < a->positions; i += TOKENS)
        _mm512_store_ps(score + i, lanes_exp(_mm512_sub_ps(_mm512_load_ps(score + i), shift)));
}

/* ---- values ---- */

/* Dims [d, d + 64) of a value row as F32, d among them the first of left; pairs come as even and odd. */
KR_INLINE void load_values(kr_dtype type, const void *row, uint32_t d, uint32_t left, __m512 x[DIMS])
{
    KR_UNROLL for (uint32_t v = 0; v < DIMS; v += 2)
    {
        const uint32_t first = v * 16, rest = left > first ? left - first : 0;
        const uint16_t *half = (const uint16_t *)row + d + first;
        const float *word = (const float *)row + d + first;

        if (type == KR_BF16) {
            const __m512i pairs = _mm512_maskz_loadu_epi16(first_halves(rest), half);

            widen(KR_BF16, pairs, &x[v], &x[v + 1]);
        } else if (type == KR_F16) {
            const __m512i halves = _mm512_maskz_loadu_epi16(first_halves(rest), half);

            x[v] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
            x[v + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
        } else {
            x[v] = _mm512_maskz_loadu_ps(first_words(rest), word);
            x[v + 1] = _mm512_maskz_loadu_ps(first_words(rest > 16 ? rest - 16 : 0), word + 16);
        }
    }
}

/* Adds tokens [begin, end) to the weighted sums of n rows over dims [d, d + 64), in the accumulator; with
 * the first dims go the sums of the weights. n, type and totals are constants at every call. */
KR_INLINE void value_tile(const work *w, uint32_t first, uint32_t d, uint32_t begin, uint32_t end,
                          const uint32_t n, const kr_dtype type, const bool totals)
{
    const kr_attend_rows_args *a = w->a;
    const float *weight = w->score + (size_t)first * KR_ATTEND_POSITIONS_MAX;
    const uint32_t left = a->value_dim - d;
    float *acc = w->sum + (size_t)first * w->stride + d, total[ROWS];
    __m512 sum[ROWS][DIMS];

    KR_UNROLL for (uint32_t r = 0; r < n; r++)
    {
        total[r] = a->sum[first + r];
        KR_UNROLL for (uint32_t v = 0; v < DIMS; v++)
            sum[r][v] = _mm512_load_ps(acc + r * w->stride + v * 16);
    }
    for (uint32_t i = begin; i < end; i++) {
        __m512 x[DIMS];

        load_values(type, a->value_row[i], d, left, x);
        if (totals && first == 0) { /* the first to pass asks for all of a later row */
            const uint8_t *next = row_ahead(a, a->positions + i + VALUES_AHEAD);

            for (uint32_t at = 0; at < w->value_bytes; at += 64)
                KR_PREFETCH(next + at);
        }
        KR_UNROLL for (uint32_t r = 0; r < n; r++)
        {
            const float p = weight[r * KR_ATTEND_POSITIONS_MAX + i];

            if (totals)
                total[r] = a->mass ? fmaf(a->mass[i], p, total[r]) : total[r] + p;
            KR_UNROLL for (uint32_t v = 0; v < DIMS; v++)
                sum[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(p), x[v], sum[r][v]);
        }
    }
    KR_UNROLL for (uint32_t r = 0; r < n; r++)
    {
        if (totals)
            a->sum[first + r] = total[r];
        KR_UNROLL for (uint32_t v = 0; v < DIMS; v++)
            _mm512_store_ps(acc + r * w->stride + v * 16, sum[r][v]);
    }
}

KR_INLINE void all_values(const work *w, uint32_t first, uint32_t begin, uint32_t end, const uint32_t n,
                          const kr_dtype type)
{
    value_tile(w, first, 0, begin, end, n, type, true);
    for (uint32_t d = DIMS * 16; d < w->a->value_dim; d += DIMS * 16)
        value_tile(w, first, d, begin, end, n, type, false);
}

/* The sums of row r, in order. */
static void store_row(const work *w, uint32_t r)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const uint32_t dim = w->a->value_dim;
    const float *sum = w->sum + (size_t)r * w->stride;
    float *out = w->a->accumulator + (size_t)r * dim;

    for (uint32_t d = 0; d < dim; d += 32) {
        __m512 x = _mm512_load_ps(sum + d), y = _mm512_load_ps(sum + d + 16);
        const uint32_t left = dim - d;

        if (w->a->type == KR_BF16) {
            const __m512 even = x;

            x = _mm512_permutex2var_ps(even, low, y);
            y = _mm512_permutex2var_ps(even, high, y);
        }
        _mm512_mask_storeu_ps(out + d, first_words(left), x);
        _mm512_mask_storeu_ps(out + d + 16, first_words(left > 16 ? left - 16 : 0), y);
    }
}

/* ---- whole ---- */

/* The tiles of n rows from `first` on. */
typedef struct {
    void (*score)(const work *w, uint32_t first, uint32_t i);
    void (*values)(const work *w, uint32_t first, uint32_t begin, uint32_t end);
} tile;

#define DEFINE_TILE(N)                                                                               \
    static void score_##N(const work *w, uint32_t first, uint32_t i) { score_tile(w, first, i, N); } \
    static void values_##N(const work *w, uint32_t first, uint32_t begin, uint32_t end)              \
    {                                                                                                \
        if (w->a->type == KR_BF16)                                                                   \
            all_values(w, first, begin, end, N, KR_BF16);                                            \
        else if (w->a->type == KR_F16)                                                               \
            all_values(w, first, begin, end, N, KR_F16);                                             \
        else                                                                                         \
            all_values(w, first, begin, end, N, KR_F32);                                             \
    }

DEFINE_TILE(1)
DEFINE_TILE(2)
DEFINE_TILE(3)
DEFINE_TILE(4)
DEFINE_TILE(5)
DEFINE_TILE(6)

static const tile tiles[ROWS + 1] = {
    {NULL, NULL},        {score_1, values_1}, {score_2, values_2}, {score_3, values_3},
    {score_4, values_4}, {score_5, values_5}, {score_6, values_6},
};

/* Height of the tile at row `first`: as equal as can be. */
static uint32_t height(uint32_t rows, uint32_t first)
{
    const uint32_t left = rows - first, count = (left + ROWS - 1) / ROWS;

    return (left + count - 1) / count;
}

static void score_positions(work *w)
{
    const kr_attend_rows_args *a = w->a;

    for (uint32_t i = 0; i < a->positions; i += BLOCK) {
        if (a->type == KR_BF16)
            transpose_block(w, i, KR_BF16);
        else if (a->type == KR_F16)
            transpose_block(w, i, KR_F16);
        else
            transpose_block(w, i, KR_F32);
        for (uint32_t r = 0; r < a->rows; r += height(a->rows, r))
            tiles[height(a->rows, r)].score(w, r, i);
    }
}

static void weigh_values(work *w)
{
    const kr_attend_rows_args *a = w->a;

    for (uint32_t i = 0; i < a->positions; i += BLOCK) {
        for (uint32_t r = 0; r < a->rows; r += height(a->rows, r))
            tiles[height(a->rows, r)].values(w, r, i, i + BLOCK < a->positions ? i + BLOCK : a->positions);
    }
}

void kr_attend_few_avx512(const kr_attend_rows_args *a)
{
    work w = {.a = a,
              .score = a->scratch,
              .stride = (a->value_dim + 63) / 64 * 64,
              .value_bytes = a->value_dim * kr_dtype_bytes(a->type)};

    KR_CHECK(a->positions <= KR_ATTEND_POSITIONS_MAX && a->rows <= KR_ATTEND_FEW);
    KR_CHECK(a->key_dim <= KR_ATTEND_DIM_MAX && a->value_dim <= KR_ATTEND_DIM_MAX);
    w.key = w.score + (size_t)a->rows * KR_ATTEND_POSITIONS_MAX;
    w.sum = w.key + (size_t)a->key_dim * BLOCK;
    memset(w.sum, 0, sizeof(float) * a->rows * w.stride);
    memset(a->sum, 0, sizeof(float) * a->rows);
    score_positions(&w);
    for (uint32_t r = 0; r < a->rows; r++)
        weigh(&w, r);
    weigh_values(&w);
    for (uint32_t r = 0; r < a->rows; r++)
        store_row(&w, r);
}
