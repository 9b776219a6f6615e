/* The plain kernels: top-k against a sort, scores against their scalar definitions, refusals. */
#include "karat/kernels.h"

#include <math.h>

#include "base/num.h"
#include "ops/dsa_score.h"
#include "ops/ops.h"
#include "tests/test.h"

typedef struct {
    float score;
    uint32_t position;
} entry;

static int by_order(const void *a, const void *b)
{
    const entry *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->position < y->position ? -1 : x->position > y->position;
}

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void topk_is_a_sort(void **state)
{
    (void)state;
    enum { N = 3000 };
    kr_rng rng = test_rng("topk");
    static float score[N];
    static entry sorted[N];
    static uint32_t want[N], got[N];
    _Alignas(64) static uint8_t scratch[1 << 20];

    assert_true(karat_topk_scratch_bytes(N, N) <= sizeof scratch);
    for (int round = 0; round < 60; round++) {
        const uint32_t n = 1 + (uint32_t)(kr_rng_next(&rng) % N), k = 1 + (uint32_t)(kr_rng_next(&rng) % N);
        uint32_t live = 0, count = 0;
        uint64_t nan = 99;

        for (uint32_t i = 0; i < n; i++) {
            const uint64_t kind = kr_rng_next(&rng) % (round % 3 == 0 ? 4 : 40);

            score[i] = kind == 0   ? NAN
                       : kind == 1 ? -INFINITY
                       : kind == 2 ? 0.25f
                                   : (float)kr_rng_normal(&rng);
            if (!isnan(score[i]))
                sorted[live++] = (entry){score[i], i};
        }
        qsort(sorted, live, sizeof *sorted, by_order);
        const uint32_t taken = k < live ? k : live;
        for (uint32_t i = 0; i < taken; i++)
            want[i] = sorted[i].position;
        qsort(want, taken, sizeof *want, by_number);
        assert_int_equal(karat_topk(score, n, k, got, &count, &nan, round % 2 ? scratch : NULL, NULL),
                         KARAT_OK);
        assert_int_equal(count, taken);
        assert_int_equal(nan, n - live);
        assert_memory_equal(got, want, 4 * taken);
    }
}

static void topk_refuses(void **state)
{
    (void)state;
    _Alignas(64) uint8_t scratch[65536];
    float score[4] = {1, 2, 3, 4};
    uint32_t position[4], count = 77;
    karat_error error = {0};

    assert_int_equal(karat_topk(NULL, 4, 1, position, &count, NULL, NULL, &error), KARAT_E_ARG);
    assert_string_equal(error.text, "score is null");
    assert_int_equal(karat_topk(score, 4, 1, NULL, &count, NULL, NULL, &error), KARAT_E_ARG);
    assert_int_equal(karat_topk(score, 4, 1, position, NULL, NULL, NULL, &error), KARAT_E_ARG);
    assert_int_equal(karat_topk(score, 0, 1, position, &count, NULL, NULL, &error), KARAT_E_LIMIT);
    assert_int_equal(karat_topk(score, ((uint64_t)1 << 31) + 1, 1, position, &count, NULL, NULL, &error),
                     KARAT_E_LIMIT);
    assert_int_equal(karat_topk(score, 4, 0, position, &count, NULL, NULL, &error), KARAT_E_LIMIT);
    assert_int_equal(karat_topk(score, 4, KARAT_TOPK_MAX + 1, position, &count, NULL, NULL, NULL),
                     KARAT_E_LIMIT);
    assert_int_equal(karat_topk(score, 4, 1, position, &count, NULL, scratch + 4, &error), KARAT_E_ARG);
    assert_int_equal(count, 77);
    assert_int_equal(karat_topk(score, 4, KARAT_TOPK_MAX, position, &count, NULL, NULL, &error), KARAT_OK);
    assert_int_equal(count, 4);
}

static void dsa_scores_are_the_definition(void **state)
{
    (void)state;
    enum { HEADS = 7, DIM = 32, RUN = 64, TOKENS = 150, RUNS = 3 };
    kr_rng rng = test_rng("dsa");
    static uint8_t query[HEADS * DIM], key[RUNS][RUN * DIM];
    static float weight[HEADS], scale[RUNS][RUN], got[TOKENS], want[TOKENS], x[DIM];
    const uint8_t *keys[RUNS];
    const float *scales[RUNS];

    for (uint32_t h = 0; h < HEADS; h++) {
        for (uint32_t c = 0; c < DIM; c++)
            x[c] = (float)kr_rng_normal(&rng);
        weight[h] = karat_quantise_e4m3(x, DIM, query + h * DIM);
        for (uint32_t c = 0; c < DIM; c++) /* half a unit of E4M3's 3 bits, or of its smallest step */
            assert_true(fabsf(kr_f32_from_e4m3(query[h * DIM + c]) * weight[h] - x[c]) <=
                        fabsf(x[c]) / 16 + weight[h] / 1024);
    }
    for (uint32_t t = 0; t < RUNS * RUN; t++) {
        for (uint32_t c = 0; c < DIM; c++)
            x[c] = (float)kr_rng_normal(&rng);
        scale[t / RUN][t % RUN] = karat_quantise_e4m3(x, DIM, key[t / RUN] + t % RUN * DIM);
    }
    for (uint32_t r = 0; r < RUNS; r++)
        keys[r] = key[r], scales[r] = scale[r];
    karat_dsa_scores a = {.struct_size = sizeof a,
                          .heads = HEADS,
                          .dim = DIM,
                          .run_tokens = RUN,
                          .tokens = TOKENS,
                          .query = query,
                          .weight = weight,
                          .key = keys,
                          .scale = scales,
                          .score = got};
    assert_int_equal(karat_score_dsa(&a, NULL), KARAT_OK);
    kr_ops_scalar.dsa_score(&(kr_dsa_score_args){query, weight, keys, scales, RUN, HEADS, DIM, TOKENS, want});
    assert_memory_equal(got, want, sizeof got);

    static const struct {
        uint32_t heads, dim, run;
        uint64_t tokens;
    } wrong[] = {{0, DIM, RUN, 9},    {129, DIM, RUN, 9},   {HEADS, 0, RUN, 9},
                 {HEADS, 31, RUN, 9}, {HEADS, 130, RUN, 9}, {HEADS, DIM, 0, 9},
                 {HEADS, DIM, 63, 9}, {HEADS, DIM, RUN, 0}, {HEADS, DIM, RUN, UINT64_MAX}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        karat_error error = {0};
        a.heads = wrong[i].heads, a.dim = wrong[i].dim, a.run_tokens = wrong[i].run,
        a.tokens = wrong[i].tokens;
        assert_true(karat_score_dsa(&a, &error) < 0);
        assert_true(strlen(error.text) > 0);
    }
    a.heads = HEADS, a.dim = DIM, a.run_tokens = RUN, a.tokens = TOKENS, keys[2] = NULL;
    assert_int_equal(karat_score_dsa(&a, NULL), KARAT_E_ARG);
    a.struct_size = 8;
    assert_int_equal(karat_score_dsa(&a, NULL), KARAT_E_ARG);
    assert_int_equal(karat_score_dsa(NULL, NULL), KARAT_E_ARG);
    assert_true(karat_quantise_e4m3(NULL, 4, query) == 0.0f && karat_quantise_e4m3(x, 4, NULL) == 0.0f);
}

static void block_scores_are_the_best_dots(void **state)
{
    (void)state;
    enum { HEADS = 3, DIM = 16, BLOCK = 32, TOKENS = 150, BLOCKS = 5 };
    kr_rng rng = test_rng("blocks");
    static uint16_t key[BLOCKS][BLOCK * DIM];
    static float query[HEADS * DIM], plain[TOKENS][DIM], got[HEADS][8];
    const uint16_t *keys[BLOCKS];

    for (uint32_t i = 0; i < HEADS * DIM; i++)
        query[i] = (float)kr_rng_normal(&rng);
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t c = 0; c < DIM; c++) {
            uint16_t half;
            const float x = (float)kr_rng_normal(&rng);

            kr_from_f32(KR_BF16, &x, &half, 1);
            kr_to_f32(KR_BF16, &half, &plain[t][c], 1);
            key[t / BLOCK][karat_block_key_at(t % BLOCK, c, DIM)] = half;
        }
    for (uint32_t b = 0; b < BLOCKS; b++)
        keys[b] = key[b];
    karat_block_scores a = {.struct_size = sizeof a,
                            .heads = HEADS,
                            .dim = DIM,
                            .block_tokens = BLOCK,
                            .tokens = TOKENS,
                            .query = query,
                            .key = keys,
                            .score = got[0],
                            .score_stride = 8};
    assert_int_equal(karat_score_blocks(&a, NULL), KARAT_OK);
    for (uint32_t h = 0; h < HEADS; h++)
        for (uint32_t b = 0; b < BLOCKS; b++) {
            double best = -HUGE_VAL;

            for (uint32_t t = b * BLOCK; t < (b + 1) * BLOCK && t < TOKENS; t++) {
                double dot = 0;

                for (uint32_t c = 0; c < DIM; c++)
                    dot += (double)query[h * DIM + c] * (double)plain[t][c];
                best = fmax(best, dot);
            }
            assert_true(fabs((double)got[h][b] - best) < 1e-5);
        }
    a.score_stride = BLOCKS - 1;
    assert_int_equal(karat_score_blocks(&a, NULL), KARAT_E_ARG);
    a.score_stride = 8, a.block_tokens = 24;
    assert_int_equal(karat_score_blocks(&a, NULL), KARAT_E_LIMIT);
    a.block_tokens = BLOCK, a.heads = 65;
    assert_int_equal(karat_score_blocks(&a, NULL), KARAT_E_SHAPE);
    a.heads = HEADS, a.key = NULL;
    assert_int_equal(karat_score_blocks(&a, NULL), KARAT_E_ARG);
}

static karat_list_attention attention_of(const float *key, const float *value, const float *query,
                                         float *output)
{
    return (karat_list_attention){.struct_size = sizeof(karat_list_attention),
                                  .dtype = KARAT_F32,
                                  .heads = 2,
                                  .kv_heads = 1,
                                  .key_dim = 3,
                                  .value_dim = 2,
                                  .lists = 1,
                                  .unit_tokens = 4,
                                  .stride = 3,
                                  .tokens = 10,
                                  .key = key,
                                  .value = value,
                                  .query = query,
                                  .output = output};
}

static void attention_over_lists(void **state)
{
    (void)state;
    kr_rng rng = test_rng("attention");
    static float key[30], value[20], query[6], output[4];
    static const uint32_t count[] = {2}, unit[] = {0, 2, 9};
    karat_list_attention a = attention_of(key, value, query, output);
    karat_error error = {0};

    for (int i = 0; i < 30; i++)
        key[i] = (float)kr_rng_normal(&rng), value[i % 20] = (float)kr_rng_normal(&rng), query[i % 6] = 1.5f;
    for (int listed = 0; listed < 2; listed++) {
        a.count = listed ? count : NULL, a.unit = unit;
        assert_int_equal(karat_attend_lists(&a, NULL), KARAT_OK);
        double sum = 0, want[2] = {0, 0};
        for (uint32_t t = 0; t < 10; t++) {
            const double p = exp(
                1.5 * ((double)key[3 * t] + (double)key[3 * t + 1] + (double)key[3 * t + 2]) / sqrt(3.0));

            if (listed && t >= 4 && t < 8)
                continue;
            sum += p;
            want[0] += p * (double)value[2 * t], want[1] += p * (double)value[2 * t + 1];
        }
        for (int i = 0; i < 4; i++)
            assert_true(fabs((double)output[i] - want[i % 2] / sum) < 1e-5);
    }
    static const uint32_t none[] = {0};
    a.count = none;
    assert_int_equal(karat_attend_lists(&a, NULL), KARAT_OK);
    assert_true(output[0] == 0.0f && output[3] == 0.0f);

    static const uint32_t three[] = {3}, four[] = {4}, twice[] = {1, 1, 2};
    a.count = three; /* unit 9 lies behind token 10 */
    assert_int_equal(karat_attend_lists(&a, &error), KARAT_E_ARG);
    assert_non_null(strstr(error.text, "unit 9"));
    a.unit = twice;
    assert_int_equal(karat_attend_lists(&a, NULL), KARAT_E_ARG);
    a.count = four;
    assert_int_equal(karat_attend_lists(&a, NULL), KARAT_E_ARG);
}

static void attention_refuses(void **state)
{
    (void)state;
    static float key[30], value[20], query[6], output[4];
    const karat_list_attention good = attention_of(key, value, query, output);

#define REFUSES(change)                                  \
    do {                                                 \
        karat_list_attention a = good;                   \
        karat_error error = {0};                         \
        change;                                          \
        assert_true(karat_attend_lists(&a, &error) < 0); \
        assert_true(strlen(error.text) > 0);             \
    } while (0)
    REFUSES(a.struct_size = 0);
    REFUSES(a.struct_size = UINT32_MAX);
    REFUSES(a.dtype = KARAT_E4M3);
    REFUSES(a.dtype = (karat_dtype)99);
    REFUSES(a.heads = 0);
    REFUSES(a.heads = 513);
    REFUSES(a.kv_heads = 0);
    REFUSES(a.kv_heads = 3);
    REFUSES(a.lists = 0);
    REFUSES(a.lists = 3);
    REFUSES(a.key_dim = 0);
    REFUSES(a.key_dim = 1025);
    REFUSES(a.value_dim = 0);
    REFUSES(a.value_dim = UINT32_MAX);
    REFUSES(a.softmax_scale = NAN);
    REFUSES(a.softmax_scale = -1);
    REFUSES(a.unit_tokens = 0);
    REFUSES(a.unit_tokens = 129);
    REFUSES(a.tokens = 0);
    REFUSES(a.tokens = UINT64_MAX);
    REFUSES(a.key_token_stride = UINT64_MAX);
    REFUSES(a.key_token_stride = UINT64_MAX / 2);
    REFUSES(a.key_token_stride = 1);
    REFUSES(a.value_token_stride = (uint64_t)1 << 60);
    REFUSES(a.key = NULL);
    REFUSES(a.value = NULL);
    REFUSES(a.query = NULL);
    REFUSES(a.output = NULL);
    REFUSES(a.count = (const uint32_t *)key);
    assert_int_equal(karat_attend_lists(NULL, NULL), KARAT_E_ARG);
    assert_int_equal(karat_attend_lists(&good, NULL), KARAT_OK);
}

static void the_variants_are_named(void **state)
{
    (void)state;
    assert_non_null(strstr(karat_kernels(), "select_topk"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(topk_is_a_sort),
        cmocka_unit_test(topk_refuses),
        cmocka_unit_test(dsa_scores_are_the_definition),
        cmocka_unit_test(block_scores_are_the_best_dots),
        cmocka_unit_test(attention_over_lists),
        cmocka_unit_test(attention_refuses),
        cmocka_unit_test(the_variants_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
