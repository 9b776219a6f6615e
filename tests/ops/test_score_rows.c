/* row_dot, channel_dot and block_score: scalar against float64, variants against scalar bit for
 * bit (the BF16 dot of block_score within its stated bound), partial tiles, NaN, infinities. */
#include "ops/variants.h"
#include "ops_random.h"

static const kr_dtype types[] = {KR_F32, KR_F16, KR_BF16};

static double element(kr_dtype type, const void *array, size_t i)
{
    float x;

    kr_to_f32(type, (const uint8_t *)array + i * kr_dtype_bytes(type), &x, 1);
    return (double)x;
}

static void row_dot(void **state)
{
    (void)state;
    kr_rng rng = test_rng("row_dot");
    static const uint32_t dims[] = {1, 8, 15, 16, 17, 64, 128, 200}, queries[] = {1, 3, 4, 9};
    enum { ROWS = 37 };

    for (size_t c = 0; c < 3 * 8 * 4; c++) {
        const kr_dtype type = types[c % 3];
        const uint32_t dim = dims[c / 3 % 8], n = queries[c / 24],
                       stride = dim + (uint32_t)kr_rng_below(&rng, 9);
        float *query = test_alloc(4ull * n * stride), *want = test_alloc(4 * n * ROWS),
              *got = test_alloc(4 * n * ROWS);
        void *row = test_alloc((size_t)ROWS * stride * kr_dtype_bytes(type));
        kr_row_dot_args a = {query, n, stride, dim, type, row, ROWS, stride, want, ROWS};

        test_fill(&rng, KR_F32, query, (size_t)n * stride, 1.0f);
        test_fill(&rng, type, row, (size_t)ROWS * stride, 1.0f);
        kr_row_dot_scalar(&a);
        for (uint32_t q = 0; q < n; q++)
            for (uint32_t i = 0; i < ROWS; i++) {
                double dot = 0.0, terms = 0.0;

                for (uint32_t k = 0; k < dim; k++) {
                    const double p = (double)query[q * stride + k] *
                                     element(type, row, (size_t)i * stride + k);
                    dot += p, terms += fabs(p);
                }
                assert_true(fabs((double)want[q * ROWS + i] - dot) <= terms * (dim + 8) * 0x1p-24);
            }
        a.out = got;
        for (uint32_t v = 0; kr_row_dot_variants[v].run != NULL; v++)
            if (kr_row_dot_variants[v].variant.usable()) {
                kr_row_dot_variants[v].run(&a);
                assert_same_floats(got, want, (size_t)n * ROWS, kr_row_dot_variants[v].variant.name);
            } else {
                print_message("SKIP row_dot %s\n", kr_row_dot_variants[v].variant.name);
            }
        free(query), free(want), free(got), free(row);
    }
}

static void channel_dot(void **state)
{
    (void)state;
    kr_rng rng = test_rng("channel_dot");
    static const uint32_t tokens[] = {1, 7, 16, 17, 33, 128}, queries[] = {1, 2, 8, 13};
    enum { DIM = 24, CHANNELS = 5 };

    for (size_t c = 0; c < 3 * 6 * 4; c++) {
        const kr_dtype type = types[c % 3];
        const uint32_t t = tokens[c / 3 % 6], n = queries[c / 18];
        const uint32_t channel[CHANNELS] = {0, 3, 11, 12, DIM - 1};
        float *query = test_alloc(4 * n * CHANNELS), *want = test_alloc(4 * n * t + 4),
              *got = test_alloc(4 * n * t + 4);
        void *key = test_alloc((size_t)DIM * t * kr_dtype_bytes(type));
        kr_channel_dot_args a = {query, channel, n, CHANNELS, type, key, t, t, want, t};

        test_fill(&rng, KR_F32, query, n * CHANNELS, 1.0f);
        test_fill(&rng, type, key, (size_t)DIM * t, 1.0f);
        kr_channel_dot_scalar(&a);
        for (uint32_t q = 0; q < n; q++)
            for (uint32_t i = 0; i < t; i++) {
                double dot = 0.0, terms = 0.0;

                for (uint32_t j = 0; j < CHANNELS; j++) {
                    const double p = (double)query[q * CHANNELS + j] *
                                     element(type, key, (size_t)channel[j] * t + i);
                    dot += p, terms += fabs(p);
                }
                assert_true(fabs((double)want[q * t + i] - dot) <= terms * CHANNELS * 0x1p-24);
            }
        a.score = got;
        for (uint32_t v = 0; kr_channel_dot_variants[v].run != NULL; v++)
            if (kr_channel_dot_variants[v].variant.usable()) {
                got[n * t] = 12345.0f;
                kr_channel_dot_variants[v].run(&a);
                assert_same_floats(got, want, (size_t)n * t, kr_channel_dot_variants[v].variant.name);
                assert_true(got[n * t] == 12345.0f);
            }
        free(query), free(want), free(got), free(key);
    }
}

/* Scores of every variant; want from float64 over the same keys. */
static void block_case(kr_rng *rng, uint32_t heads, uint32_t dim, uint32_t block_tokens, uint64_t tokens,
                       bool adversarial)
{
    const uint64_t blocks = tokens / block_tokens + 2, n = heads * blocks; /* one block past the end */
    const size_t elements = (size_t)block_tokens * dim;
    float *query = test_alloc(4ull * heads * dim), *want = test_alloc(4 * n), *got = test_alloc(4 * n);
    uint16_t *pool = test_alloc(2 * elements * blocks);
    const uint16_t **key = test_alloc(8 * blocks);
    kr_block_score_args a = {query, key, heads, dim, block_tokens, blocks, tokens, want, blocks};

    for (uint32_t i = 0; i < heads * dim; i++) /* BF16 values, so that the BF16 dot is exact in its factors */
        query[i] = kr_f32_from_bf16(kr_bf16_from_f32(test_normal(rng)));
    test_fill(rng, KR_BF16, pool, elements * blocks, 1.0f);
    for (uint64_t b = 0; b < blocks; b++)
        key[b] = pool + (blocks - 1 - b) * elements;
    if (adversarial) {
        pool[kr_rng_below(rng, elements * blocks)] = 0x7fc0; /* NaN */
        pool[kr_rng_below(rng, elements * blocks)] = 0xff80; /* -inf */
    }
    kr_block_score_scalar(&a);
    for (uint64_t b = 0; b < blocks; b++)
        for (uint32_t h = 0; h < heads && !adversarial; h++) {
            double best = -HUGE_VAL, bound = 0.0;

            for (uint32_t t = 0; t < block_tokens && b * block_tokens + t < tokens; t++) {
                double dot = 0.0, terms = 0.0;

                for (uint32_t c = 0; c < dim; c++) {
                    const double p = (double)query[h * dim + c] *
                                     element(KR_BF16, key[b], kr_block_key_at(t, c, dim));
                    dot += p, terms += fabs(p);
                }
                best = fmax(best, dot), bound = fmax(bound, terms * (dim + 2) * 0x1p-24);
            }
            assert_true((double)want[h * blocks + b] == best ||
                        fabs((double)want[h * blocks + b] - best) <= bound);
        }
    a.score = got;
    for (uint32_t v = 0; kr_block_score_variants[v].run != NULL; v++) {
        const kr_variant *variant = &kr_block_score_variants[v].variant;

        if (!variant->usable()) {
            print_message("SKIP block_score %s\n", variant->name);
            continue;
        }
        kr_block_score_variants[v].run(&a);
        if (strcmp(variant->name, "avx512bf16") != 0)
            assert_same_floats(got, want, n, variant->name);
        else
            for (uint64_t i = 0; i < n; i++)
                assert_true(isnan(want[i]) == isnan(got[i]) &&
                            (isnan(want[i]) || want[i] == got[i] ||
                             fabsf(want[i] - got[i]) <= (float)(dim + 2) * 0x1p-23f * 6.0f * (float)dim));
    }
    free(query), free(want), free(got), free(pool), free(key);
}

static void block_score(void **state)
{
    (void)state;
    kr_rng rng = test_rng("block_score");

    for (int adversarial = 0; adversarial < 2; adversarial++) {
        block_case(&rng, 4, 128, 128, 128 * 3, adversarial);     /* MiniMax-M3 */
        block_case(&rng, 4, 128, 128, 128 * 3 - 1, adversarial); /* tail block, pitfall S-23 */
        block_case(&rng, 4, 128, 128, 128 * 3 + 1, adversarial);
        block_case(&rng, 2, 32, 16, 45, adversarial);
        block_case(&rng, 7, 64, 32, 31, adversarial);
        block_case(&rng, 1, 2, 64, 5, adversarial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_dot),
        cmocka_unit_test(channel_dot),
        cmocka_unit_test(block_score),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
