/* Quest on hand-made pages: the golden vector of both selection rules (page of 4 tokens), every
 * page edge against dense, NaN keys, and what a plan refuses. */
#include "method/quest.h"

#include "method/dense.h"
#include "session.h"

enum { TOKENS = 12 * KR_PAGE_TOKENS };

/* A session that holds all but the newest token of f, stored in chunks of a prompt that attended to
 * nothing. Its parts run backwards: their order must not matter. */
static session *open_with(const kr_method *method, kr_method_config config, kr_attention_shape shape,
                          const feed *f, uint32_t chunk_tokens)
{
    session *s = session_open(method, config, shape, TOKENS, 1);

    s->reverse = true;
    for (uint64_t t = 0, n; t + 1 < f->tokens; t += n) {
        n = f->tokens - 1 - t < chunk_tokens ? f->tokens - 1 - t : chunk_tokens;
        const kr_job job = session_begin(s, feed_chunk(f, s, t, (uint32_t)n, true, NULL));

        session_stage(s, &job, KR_STAGE_APPEND);
    }
    return s;
}

/* The newest token's step. */
static void step(session *s, const feed *f, float *output)
{
    chunk c = feed_chunk(f, s, f->tokens - 1, 1, false, NULL);

    c.output = output;
    session_run(s, c);
}

static void golden(uint32_t mode, const uint32_t want[4], const double out[8])
{
    static const double scores[] = {3.2448, 1.6608, -.0352, 1.5068, 2.9288,
                                    .3712,  1.1144, 3.2568, 1.6376, -.7772};
    const kr_attention_shape shape = {.heads = 1,
                                      .kv_heads = 1,
                                      .key_dim = 8,
                                      .value_dim = 8,
                                      .kv_dtype = KR_F32,
                                      .softmax_scale = 1.0f / sqrtf(8.0f),
                                      .layers = 1};
    const kr_method_config config = {.name = "quest", .budget = 16, .unit = 4, .mode = mode};
    float query[38 * 8], key[38 * 8], value[38 * 8], output[8];
    const feed f = {.tokens = 38, .query = query, .key = key, .value = value};

    golden_fill(query + 37 * 8, 8, 1);
    golden_fill(key, 38 * 8, 2);
    golden_fill(value, 38 * 8, 3);
    session *s = open_with(&kr_method_quest, config, shape, &f, 5);

    step(s, &f, output);
    for (uint32_t u = 0; u < (mode == KR_QUEST_KERNEL ? 9 : 10); u++)
        assert_true(fabs((double)((float *)s->workspace)[u] - scores[u]) < 1e-5);
    assert_int_equal(s->selected_count[0], 4);
    assert_memory_equal(s->selected, want, 4 * sizeof *want);
    assert_golden(output, out, 8, "quest");
    session_close(s);
}

static void golden_vectors(void **state)
{
    static const uint32_t eval[] = {0, 1, 4, 7}, kernel[] = {0, 4, 7, 9};
    static const double eval_out[] = {-.334791, .206126,  -.284499, -.341458,
                                      .455072,  -.444089, -.134696, .389135};
    static const double kernel_out[] = {-.376655, .224047,  -.407999, -.256349,
                                        .477815,  -.585879, -.100987, .390847};

    (void)state;
    golden(KR_QUEST_EVAL, eval, eval_out);
    golden(KR_QUEST_KERNEL, kernel, kernel_out);
}

static void equals_dense_when_covering(void **state)
{
    static const uint32_t lengths[] = {1,   2,   15,  16,  17,  31,   32,   33,   127,
                                       128, 129, 255, 256, 257, 1023, 1024, 1025, 1100};
    static const uint32_t units[] = {4, 8, 16, 32, 64, 128};
    const kr_attention_shape shape = {.heads = 4,
                                      .kv_heads = 2,
                                      .key_dim = 24,
                                      .value_dim = 24,
                                      .kv_dtype = KR_BF16,
                                      .softmax_scale = 0.2f,
                                      .layers = 1};
    kr_rng rng = test_rng("equals_dense_when_covering");
    float got[4 * 24], want[4 * 24];

    (void)state;
    for (uint32_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        const uint32_t n = lengths[l];
        feed f = feed_random(&rng, &shape, n);
        session *dense = open_with(&kr_method_dense, (kr_method_config){.name = "dense"}, shape, &f, n);

        step(dense, &f, want);
        session_close(dense);
        for (uint32_t u = 0; u < sizeof units / sizeof *units; u++)
            for (uint32_t mode = 1; mode <= 2; mode++) {
                const uint32_t budget = (n + units[u] - 1) / units[u] * units[u];
                const kr_method_config config = {
                    .name = "quest", .budget = budget, .unit = units[u], .mode = mode};
                session *quest = open_with(&kr_method_quest, config, shape, &f, 7);

                step(quest, &f, got);
                if (memcmp(got, want, sizeof got) != 0)
                    fail_msg("%u tokens, page %u, mode %u", n, units[u], mode);
                session_close(quest);
            }
        feed_free(&f);
    }
}

/* Score of page p for one head in float64, straight from the stored keys. */
static double page_score(const session *s, uint32_t head, uint32_t p, const float *query)
{
    const uint32_t dim = s->shape.key_dim, group = s->shape.heads / s->shape.kv_heads;
    double score = 0.0;

    for (uint32_t c = 0; c < dim; c++) {
        double high = -HUGE_VAL, low = HUGE_VAL;

        for (uint32_t t = 16 * p; t < s->view.tokens && t < 16 * p + 16; t++) {
            const uint8_t *tile = kr_view_key_tile(&s->view, head / group, t);
            float k;

            kr_to_f32(KR_F16, tile + (c * 16 + t % 16) * 2, &k, 1);
            high = fmax(high, (double)k);
            low = fmin(low, (double)k);
        }
        score += fmax((double)query[c] * high, (double)query[c] * low);
    }
    return score;
}

/* Below coverage: exactly the best pages under (score, then position), the newest always with kernel. */
static void selects_the_best_pages(void **state)
{
    const kr_attention_shape shape = {.heads = 4,
                                      .kv_heads = 2,
                                      .key_dim = 32,
                                      .value_dim = 32,
                                      .kv_dtype = KR_F16,
                                      .softmax_scale = 0.2f,
                                      .layers = 1};
    kr_rng rng = test_rng("selects_the_best_pages");
    float output[4 * 32];

    (void)state;
    for (uint32_t n = 300; n < 1300; n += 111)
        for (uint32_t mode = 1; mode <= 2; mode++) {
            const kr_method_config config = {.name = "quest", .budget = 128, .mode = mode};
            feed f = feed_random(&rng, &shape, n);
            session *s = open_with(&kr_method_quest, config, shape, &f, 50);
            const uint32_t pages = (n + 15) / 16, scored = pages - (mode == 2);

            step(s, &f, output);
            for (uint32_t h = 0; h < 4; h++) {
                const uint32_t *list = s->selected + h * s->stride;
                const float *query = f.query + ((size_t)(n - 1) * 4 + h) * 32;
                double worst_taken = HUGE_VAL, best_left = -HUGE_VAL;
                bool taken[100] = {false};

                assert_int_equal(s->selected_count[h], 8);
                for (uint32_t i = 0; i < 8; i++) {
                    assert_true(list[i] < pages && !taken[list[i]] && (i == 0 || list[i] > list[i - 1]));
                    taken[list[i]] = true;
                }
                assert_true(mode == 1 || taken[pages - 1]);
                for (uint32_t p = 0; p < scored; p++) {
                    const double score = page_score(s, h, p, query);

                    *(taken[p] ? &worst_taken : &best_left) = taken[p] ? fmin(worst_taken, score)
                                                                       : fmax(best_left, score);
                }
                assert_true(worst_taken >= best_left - 1e-4);
            }
            session_close(s);
            feed_free(&f);
        }
}

static void nan_keys_never_win(void **state)
{
    const kr_attention_shape shape = {.heads = 2,
                                      .kv_heads = 1,
                                      .key_dim = 32,
                                      .value_dim = 32,
                                      .kv_dtype = KR_BF16,
                                      .softmax_scale = 0.2f,
                                      .layers = 1};
    kr_rng rng = test_rng("nan_keys_never_win");
    feed f = feed_random(&rng, &shape, 400);
    float output[2 * 32];

    (void)state;
    for (uint32_t d = 0; d < 32; d++)
        f.key[100 * 32 + d] = d == 3 ? NAN : 100.0f;
    session *s = open_with(&kr_method_quest, (kr_method_config){.name = "quest", .budget = 64}, shape, &f,
                           400);

    step(s, &f, output);
    assert_int_equal(s->nan_count, 2); /* one page, two heads */
    for (uint32_t h = 0; h < 2; h++) {
        assert_int_equal(s->selected_count[h], 4);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_not_equal(s->selected[h * s->stride + i], 100 / 16);
    }
    for (uint32_t i = 0; i < 64; i++)
        assert_true(isfinite(output[i]));
    session_close(s);
    feed_free(&f);
}

static void plans(void **state)
{
    kr_attention_shape shape = {.heads = 9,
                                .kv_heads = 3,
                                .key_dim = 64,
                                .value_dim = 64,
                                .kv_dtype = KR_BF16,
                                .softmax_scale = 0.125f,
                                .layers = 30};
    kr_method_config config = {.name = "quest", .dense_layers = UINT32_MAX};
    const kr_method *method;
    kr_method_plan plan;
    kr_err err;

    (void)state;
    assert_int_equal(kr_method_find("quest", &method, &err), KR_OK);
    for (uint32_t l = 0; l < 4; l++) { /* default: the first two layers dense, budget 1024, page 16 */
        shape.layer = l;
        assert_int_equal(method->plan(&config, &shape, 8192, &plan, &err), KR_OK);
        assert_int_equal(plan.dense, l < 2);
        assert_int_equal(plan.selected_max, l < 2 ? 0 : 1024);
        assert_int_equal(plan.page_index_bytes, l < 2 ? 0 : 2 * 3 * 8 * 64 * 2); /* 1/16 of K and V */
    }
    shape.window = 512;
    assert_int_equal(method->plan(&config, &shape, 8192, &plan, &err), KR_OK);
    assert_true(plan.dense);
    shape.window = 0;
    config.unit = 24;
    assert_int_equal(method->plan(&config, &shape, 8192, &plan, &err), KR_E_SHAPE);
    config.unit = 0;
    config.mode = 3;
    assert_int_equal(method->plan(&config, &shape, 8192, &plan, &err), KR_E_UNSUPPORTED);
    config.mode = 0;
    config.budget = 8;
    assert_int_equal(method->plan(&config, &shape, 8192, &plan, &err), KR_E_LIMIT);
    config.budget = 16; /* one page asked for; the eval rule takes at least three */
    assert_int_equal(method->plan(&config, &shape, 8192, &plan, &err), KR_OK);
    assert_int_equal(plan.selected_max, 48);
    shape.latent = true;
    assert_int_equal(method->plan(&config, &shape, 8192, &plan, &err), KR_E_UNSUPPORTED);
    assert_int_equal(kr_method_find("qest", &method, &err), KR_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "did you mean \"quest\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_vectors),
        cmocka_unit_test(equals_dense_when_covering),
        cmocka_unit_test(selects_the_best_pages),
        cmocka_unit_test(nan_keys_never_win),
        cmocka_unit_test(plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
