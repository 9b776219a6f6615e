/* attend_tiled: every variant gives the scalar form's bits on random and adversarial input; a row
 * gives the same bits alone and in company; the scalar form is within a derived bound of float64;
 * values that a row does not see never reach it; segments merged in order equal one long softmax. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "base/rng.h"
#include "ops/ops.h"
#include "ops/variants.h"

enum { ROWS = 14, POSITIONS = 1024, DIM = 128, TILE = 16, TILES = POSITIONS / TILE };

typedef enum { PLAIN, HUGE_SCORES, DENORMAL, TIES, SPARSE_NAN, OVERFLOW_SCORES, KINDS } kind;

static float query[ROWS][DIM], key[POSITIONS][DIM], value[POSITIONS][DIM];
static _Alignas(64) uint8_t key_bytes[POSITIONS * DIM * 4], value_bytes[POSITIONS * DIM * 4];
static const float *query_row[ROWS];
static const void *tile[TILES], *rows_of[TILES];
static uint32_t from[ROWS], to[ROWS];
static float scores[KR_ATTEND_ROW_GROUP * POSITIONS];

typedef struct {
    float maximum[ROWS], sum[ROWS], acc[ROWS][DIM];
} result;

static float draw(kr_rng *rng, kind k)
{
    const float x = (float)kr_rng_normal(rng);

    if (k == HUGE_SCORES)
        return x * 300.0f;
    if (k == DENORMAL)
        return x * 1e-39f;
    if (k == TIES)
        return 0.5f;
    if (k == SPARSE_NAN && kr_rng_below(rng, 4000) == 0)
        return NAN;
    if (k == OVERFLOW_SCORES)
        return x * 3e37f;
    return x;
}

/* Stores key and value in their layouts, rounded to type; key and value become what was stored. */
static void fill(kr_rng *rng, kr_dtype type, uint32_t key_dim, uint32_t value_dim, uint32_t positions, kind k)
{
    const uint32_t bytes = kr_dtype_bytes(type);

    for (uint32_t r = 0; r < ROWS; r++) {
        query_row[r] = query[r];
        for (uint32_t c = 0; c < key_dim; c++)
            query[r][c] = draw(rng, k == SPARSE_NAN ? PLAIN : k);
    }
    memset(key_bytes, 0x7f, sizeof key_bytes); /* NaN in F32, F16 and BF16 past the end */
    memset(value_bytes, 0x7f, sizeof value_bytes);
    for (uint32_t i = 0; i < positions; i++) {
        for (uint32_t c = 0; c < key_dim; c++) {
            uint8_t *at = key_bytes + ((uint64_t)(i / TILE) * TILE * key_dim + c * TILE + i % TILE) * bytes;
            const float x = draw(rng, k);
            kr_from_f32(type, &x, at, 1);
            kr_to_f32(type, at, &key[i][c], 1);
        }
        for (uint32_t d = 0; d < value_dim; d++) {
            uint8_t *at = value_bytes + ((uint64_t)i * value_dim + d) * bytes;
            const float x = draw(rng, k == OVERFLOW_SCORES || k == HUGE_SCORES ? PLAIN : k);
            kr_from_f32(type, &x, at, 1);
            kr_to_f32(type, at, &value[i][d], 1);
        }
    }
    for (uint32_t t = 0; t < TILES; t++) {
        tile[t] = key_bytes + (uint64_t)t * TILE * key_dim * bytes;
        rows_of[t] = value_bytes + (uint64_t)t * TILE * value_dim * bytes;
    }
}

static void ranges(kr_rng *rng, uint32_t positions)
{
    const uint64_t shape = kr_rng_below(rng, 4);

    for (uint32_t r = 0; r < ROWS; r++) {
        from[r] = 0;
        to[r] = positions;
        if (shape == 1) /* causal */
            to[r] = positions > ROWS - 1 - r ? positions - (ROWS - 1 - r) : 0;
        if (shape == 2) { /* anything, some empty */
            from[r] = (uint32_t)kr_rng_below(rng, positions);
            to[r] = from[r] + (uint32_t)kr_rng_below(rng, positions - from[r] + 1);
        }
        if (shape == 3 && positions > 40) { /* window */
            from[r] = positions - 40 + r;
            to[r] = positions - ROWS + r;
        }
    }
}

static kr_attend_tiled_args arguments(kr_dtype type, uint32_t rows, uint32_t positions, uint32_t key_dim,
                                      uint32_t value_dim, result *out)
{
    return (kr_attend_tiled_args){
        .query = query_row,
        .from = from,
        .to = to,
        .rows = rows,
        .key_tile = tile,
        .value_row = rows_of,
        .positions = positions,
        .key_dim = key_dim,
        .value_dim = value_dim,
        .type = type,
        .scale = 1.0f / sqrtf((float)key_dim),
        .scores = scores,
        .maximum = out->maximum,
        .sum = out->sum,
        .accumulator = &out->acc[0][0],
    };
}

static bool same(float a, float b) { return kr_f32_bits(a) == kr_f32_bits(b) || (isnan(a) && isnan(b)); }

static void assert_same(const char *what, const result *a, const result *b, uint32_t rows, uint32_t value_dim)
{
    const float *x = &a->acc[0][0], *y = &b->acc[0][0];

    for (uint32_t r = 0; r < rows; r++) {
        if (!same(a->maximum[r], b->maximum[r]) || !same(a->sum[r], b->sum[r]))
            fail_msg("%s row %u: max %a %a sum %a %a", what, r, (double)a->maximum[r], (double)b->maximum[r],
                     (double)a->sum[r], (double)b->sum[r]);
        for (uint32_t d = 0; d < value_dim; d++)
            if (!same(x[r * value_dim + d], y[r * value_dim + d]))
                fail_msg("%s row %u dim %u: %a %a", what, r, d, (double)x[r * value_dim + d],
                         (double)y[r * value_dim + d]);
    }
}

/* Each dot errs by at most (dim + 2) eps sum |q k|, so a weight p / l by a factor of at most
 * exp(2 that) (1 + 2 eps of exp + n eps of the sums); the output by that times max |v|. */
static void assert_close(const result *got, uint32_t r, uint32_t key_dim, uint32_t value_dim)
{
    static double s[POSITIONS];
    const double eps = 0x1p-24, scale = (double)(1.0f / sqrtf((float)key_dim));
    double m = -INFINITY, l = 0, worst = 0, largest = 0;

    for (uint32_t i = from[r]; i < to[r]; i++) {
        double dot = 0, magnitude = 0;
        for (uint32_t c = 0; c < key_dim; c++) {
            dot += (double)query[r][c] * (double)key[i][c];
            magnitude += fabs((double)query[r][c] * (double)key[i][c]);
        }
        s[i] = dot * scale;
        m = fmax(m, s[i]);
        worst = fmax(worst, (key_dim + 2) * eps * magnitude * scale);
    }
    for (uint32_t i = from[r]; i < to[r]; i++) {
        l += s[i] = exp(s[i] - m);
        for (uint32_t d = 0; d < value_dim; d++)
            largest = fmax(largest, fabs((double)value[i][d]));
    }
    const double bound = (expm1(2 * worst) + (2.0 * (to[r] - from[r]) + 8) * eps) * largest * 2;
    for (uint32_t d = 0; d < value_dim; d++) {
        double want = 0;
        float out;
        for (uint32_t i = from[r]; i < to[r]; i++)
            want += s[i] * (double)value[i][d];
        kr_attend_finish(got->sum[r], &got->acc[0][0] + (uint64_t)r * value_dim + d, &out, 1);
        want = l > 0 ? want / l : 0;
        if (!(fabs((double)out - want) <= bound))
            fail_msg("row %u dim %u: %g, float64 %g, bound %g", r, d, (double)out, want, bound);
    }
}

static void variants_agree(void **state)
{
    static const uint32_t dims[][2] = {{64, 64}, {128, 128}, {8, 8}, {80, 80}, {20, 36}, {96, 128}};
    static const uint32_t lengths[] = {1, 15, 16, 17, 100, 128, 129, 400};
    static result want, got;
    const uint64_t seed = 20240611;
    kr_rng rng = kr_rng_make(seed, 0);

    (void)state;
    printf("seed %llu\n", (unsigned long long)seed);
    for (uint32_t n = 0; n < 700; n++) {
        const kr_dtype type = (kr_dtype)(n % 3);
        const uint32_t *dim = dims[kr_rng_below(&rng, 6)],
                       positions = n % 50 == 0 ? 1024 : lengths[kr_rng_below(&rng, 8)];
        const uint32_t rows = 1 + (uint32_t)kr_rng_below(&rng, ROWS);
        const kind k = (kind)(n / 3 % KINDS);
        kr_attend_tiled_args a;

        fill(&rng, type, dim[0], dim[1], positions, k);
        ranges(&rng, positions);
        a = arguments(type, rows, positions, dim[0], dim[1], &want);
        kr_attend_tiled_scalar(&a);
        if (k == PLAIN || k == DENORMAL || k == TIES)
            for (uint32_t r = 0; r < rows; r++)
                assert_close(&want, r, dim[0], dim[1]);
        for (const kr_attend_tiled_variant *v = kr_attend_tiled_variants; v->run; v++) {
            if (!v->variant.usable())
                continue;
            a = arguments(type, rows, positions, dim[0], dim[1], &got);
            memset(&got, 0xff, sizeof got);
            v->run(&a);
            assert_same(v->variant.name, &want, &got, rows, dim[1]);
        }
    }
    for (const kr_attend_tiled_variant *v = kr_attend_tiled_variants; v->run; v++)
        printf("%s%s\n", v->variant.usable() ? "tested " : "SKIP ", v->variant.name);
}

static void company_changes_nothing(void **state)
{
    static result all, one;
    kr_rng rng = kr_rng_make(7, 1);

    (void)state;
    for (const kr_attend_tiled_variant *v = kr_attend_tiled_variants; v->run; v++)
        for (uint32_t n = 0; v->variant.usable() && n < 24; n++) {
            const kr_dtype type = (kr_dtype)(n % 3);
            const uint32_t positions = 1 + (uint32_t)kr_rng_below(&rng, 200);
            kr_attend_tiled_args a;

            fill(&rng, type, 64, 64, positions, n % 2 ? PLAIN : SPARSE_NAN);
            ranges(&rng, positions);
            a = arguments(type, ROWS, positions, 64, 64, &all);
            v->run(&a);
            for (uint32_t r = 0; r < ROWS; r++) {
                static result expected;
                a = arguments(type, 1, positions, 64, 64, &one);
                a.query += r;
                a.from += r;
                a.to += r;
                v->run(&a);
                expected.maximum[0] = all.maximum[r];
                expected.sum[0] = all.sum[r];
                memcpy(expected.acc, &all.acc[0][0] + (uint64_t)r * 64, 64 * sizeof(float));
                assert_same(v->variant.name, &expected, &one, 1, 64);
            }
        }
}

/* A row next to rows that see an infinite value must not become NaN through 0 * inf. */
static void unseen_values_do_not_leak(void **state)
{
    static result got;
    kr_rng rng = kr_rng_make(9, 2);

    (void)state;
    for (const kr_attend_tiled_variant *v = kr_attend_tiled_variants; v->run; v++) {
        kr_attend_tiled_args a;
        float *last = (float *)value_bytes + 32 * 64;

        if (!v->variant.usable())
            continue;
        fill(&rng, KR_F32, 64, 64, 33, PLAIN);
        for (uint32_t d = 0; d < 64; d++)
            last[d] = INFINITY;
        for (uint32_t r = 0; r < ROWS; r++) {
            from[r] = 0;
            to[r] = r % 2 ? 33 : 32;
        }
        a = arguments(KR_F32, ROWS, 33, 64, 64, &got);
        v->run(&a);
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t d = 0; d < 64; d++)
                assert_true(isfinite((&got.acc[0][0])[r * 64 + d]) == (r % 2 == 0));
    }
}

static void segments_merge_to_one_softmax(void **state)
{
    static result part, whole;
    float m = -INFINITY, l = 0, acc[64] = {0}, out[64], want[64];
    kr_rng rng = kr_rng_make(11, 3);
    kr_attend_tiled_args a;

    (void)state;
    fill(&rng, KR_BF16, 64, 64, 1024, PLAIN);
    from[0] = 0;
    to[0] = 1024;
    a = arguments(KR_BF16, 1, 1024, 64, 64, &whole);
    kr_attend_tiled_scalar(&a);
    kr_attend_finish(whole.sum[0], whole.acc[0], want, 64);
    for (uint32_t s = 0; s < 4; s++) { /* the third part sees nothing */
        from[0] = s == 2 ? 5 : 0;
        to[0] = s == 2 ? 5 : s == 3 ? 512 : 256;
        a = arguments(KR_BF16, 1, to[0], 64, 64, &part);
        const uint32_t first = s == 3 ? 32 : s * 16;
        a.key_tile = tile + first;
        a.value_row = rows_of + first;
        kr_attend_tiled_scalar(&a);
        kr_attend_merge(&m, &l, acc, part.maximum[0], part.sum[0], part.acc[0], 64);
    }
    kr_attend_finish(l, acc, out, 64);
    for (uint32_t d = 0; d < 64; d++)
        assert_true(fabsf(out[d] - want[d]) <= 1e-6f);
    kr_attend_finish(0.0f, acc, out, 64);
    for (uint32_t d = 0; d < 64; d++)
        assert_true(out[d] == 0.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variants_agree),
        cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(unseen_values_do_not_leak),
        cmocka_unit_test(segments_merge_to_one_softmax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
