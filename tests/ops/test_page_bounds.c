/* page_bounds and page_score: bounds are the elementwise max and min of the keys whatever the
 * chunking; the score bounds every q.k of the unit from above; variants give the scalar bits; a NaN
 * key makes the score NaN. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "base/rng.h"
#include "ops/variants.h"

enum { TILE = 16, DIM = 136, UNITS = 37, QUERIES = 9, STRIDE = UNITS + 3 };

static _Alignas(64) uint8_t tile[TILE * DIM * 4], bounds[UNITS][2 * DIM * 4], again[2 * DIM * 4];
static float key[TILE][DIM], query[DIM];

static void store_tile(kr_rng *rng, kr_dtype type, uint32_t dim)
{
    for (uint32_t t = 0; t < TILE; t++)
        for (uint32_t c = 0; c < dim; c++) {
            uint8_t *at = tile + (c * TILE + t) * kr_dtype_bytes(type);
            const float x = (float)kr_rng_normal(rng);
            kr_from_f32(type, &x, at, 1);
            kr_to_f32(type, at, &key[t][c], 1);
        }
}

static void bounds_hold(void **state)
{
    kr_rng rng = kr_rng_make(3, 0);

    (void)state;
    printf("seed 3\n");
    for (uint32_t n = 0; n < 120; n++) {
        const kr_dtype type = (kr_dtype)(n % 3);
        const uint32_t dim = n % 2 ? 64 : 8 + (uint32_t)kr_rng_below(&rng, DIM - 8),
                       bytes = kr_dtype_bytes(type);
        const uint32_t first = (uint32_t)kr_rng_below(&rng, 15),
                       count = 1 + (uint32_t)kr_rng_below(&rng, 15 - first);
        const void *one = bounds[0];
        float score;

        store_tile(&rng, type, dim);
        for (const kr_page_bounds_variant *v = kr_page_bounds_variants; v->run; v++) {
            kr_page_bounds_args a = {tile, first, count, true, dim, type, bounds[0]};

            if (!v->variant.usable())
                continue;
            memset(bounds[0], 0xff, sizeof bounds[0]);
            v->run(&a);
            for (uint32_t c = 0; c < dim; c++) {
                float high = -INFINITY, low = INFINITY, stored[2];
                for (uint32_t t = first; t < first + count; t++) {
                    high = fmaxf(high, key[t][c]);
                    low = fminf(low, key[t][c]);
                }
                kr_to_f32(type, bounds[0] + c * bytes, &stored[0], 1);
                kr_to_f32(type, bounds[0] + (dim + c) * bytes, &stored[1], 1);
                assert_true(stored[0] == high && stored[1] == low);
            }
            for (uint32_t t = first; t < first + count; t++) { /* token by token */
                a = (kr_page_bounds_args){tile, t, 1, t == first, dim, type, again};
                v->run(&a);
            }
            assert_memory_equal(again, bounds[0], 2 * dim * bytes);
        }
        for (uint32_t c = 0; c < dim; c++)
            query[c] = (float)kr_rng_normal(&rng);
        kr_page_score_scalar(&(kr_page_score_args){query, &one, 1, dim, type, &score, 1, dim, 1});
        for (uint32_t t = first; t < first + count; t++) {
            double dot = 0, magnitude = 0;
            for (uint32_t c = 0; c < dim; c++) {
                dot += (double)query[c] * (double)key[t][c];
                magnitude += fabs((double)query[c]) * 5;
            }
            assert_true((double)score >= dot - magnitude * dim * 0x1p-24);
        }
    }
}

/* Units with random keys, every fifth with a bad one behind its first when bad. */
static void store_units(kr_rng *rng, kr_dtype type, uint32_t dim, uint32_t units, float bad)
{
    for (uint32_t u = 0; u < units; u++) {
        store_tile(rng, type, dim);
        if (bad != 0.0f && u % 5 == 0)
            kr_from_f32(type, &bad, (uint8_t *)tile + u % TILE * kr_dtype_bytes(type), 1);
        kr_page_bounds_scalar(&(kr_page_bounds_args){tile, 0, TILE, true, dim, type, bounds[u]});
    }
}

static void variants_agree(void **state)
{
    static const uint32_t dims[] = {128, 64, 16, 80};
    static float many[QUERIES * DIM], want[QUERIES * STRIDE], got[QUERIES * STRIDE];
    const void *unit[UNITS];
    kr_rng rng = kr_rng_make(4, 0);

    (void)state;
    for (uint32_t u = 0; u < UNITS; u++)
        unit[u] = bounds[u];
    for (uint32_t n = 0; n < 120; n++) {
        const kr_dtype type = (kr_dtype)(n % 3);
        const uint32_t dim = n % 5 ? dims[n % 4] : 1 + (uint32_t)kr_rng_below(&rng, DIM),
                       units = 1 + (uint32_t)kr_rng_below(&rng, UNITS), queries = 1 + n % QUERIES;
        const float bad = n < 60 ? 0.0f : n % 4 == 0 ? NAN : n % 4 == 1 ? INFINITY : 1e-40f;
        kr_page_score_args a = {many, unit, units, dim, type, want, queries, dim, STRIDE};

        store_units(&rng, type, dim, units, bad);
        for (uint32_t i = 0; i < queries * dim; i++)
            many[i] = i % 7 == 0 ? 0.0f : (float)kr_rng_normal(&rng) * (n > 110 ? 1e30f : 1.0f);
        for (uint32_t q = 0; q < queries; q++)
            many[q * dim] = 1.0f;
        kr_page_score_scalar(&a);
        for (uint32_t q = 0; q < queries && isnan(bad); q++)
            for (uint32_t u = 0; u < units; u++)
                assert_true(isnan(want[q * STRIDE + u]) == (u % 5 == 0));
        a.score = got;
        for (const kr_page_score_variant *v = kr_page_score_variants; v->run; v++) {
            if (!v->variant.usable())
                continue;
            memset(got, 0xa5, sizeof got);
            v->run(&a);
            for (uint32_t i = 0; i < queries * STRIDE; i++) {
                const bool outside = i % STRIDE >= units;
                const uint32_t expected = outside ? 0xa5a5a5a5u : kr_f32_bits(want[i]);

                if (kr_f32_bits(got[i]) != expected && (outside || !isnan(got[i]) || !isnan(want[i])))
                    fail_msg("%s case %u query %u unit %u: %a %a", v->variant.name, n, i / STRIDE, i % STRIDE,
                             (double)got[i], (double)want[i]);
            }
        }
    }
    for (const kr_page_score_variant *v = kr_page_score_variants; v->run; v++)
        printf("%s%s\n", v->variant.usable() ? "tested " : "SKIP ", v->variant.name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_hold),
        cmocka_unit_test(variants_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
