/* Quest on hand-made pages: the golden vector of both selection rules (page of 4 tokens), every
 * page edge against dense, NaN keys, and what a plan refuses. */
#include <math.h>

#include "base/arena.h"
#include "method/dense.h"
#include "method/layout.h"
#include "method/quest.h"
#include "ops/variants.h"
#include "tests/test.h"

enum { PAGES_MAX = 12, HEADS_MAX = 8, DIM_MAX = 64 };

/* One session in one layer, as a store would hold it. */
typedef struct {
    kr_attention_shape shape;
    kr_method_config config;
    kr_method_plan plan;
    kr_layout layout;
    const kr_method *method;
    uint8_t *page[PAGES_MAX];
    uint8_t device[PAGES_MAX];
    kr_record_header record;
    kr_view view;
    uint64_t nan;
    uint32_t selected[HEADS_MAX * 4096], count[HEADS_MAX];
    float output[HEADS_MAX * DIM_MAX];
    void *workspace, *scratch;
    size_t scratch_bytes;
} session;

static void make(session *s, const char *method, kr_attention_shape shape, kr_method_config config)
{
    const uint8_t group = 0;
    uint64_t page_bytes;
    kr_err err = {0};

    memset(s, 0, sizeof *s);
    s->shape = shape;
    s->config = config;
    assert_int_equal(kr_method_find(method, &s->method, &err), KR_OK);
    if (s->method->plan(&s->config, &s->shape, PAGES_MAX * KR_PAGE_TOKENS, &s->plan, &err) != KR_OK)
        fail_msg("plan: %s", err.text);
    assert_int_equal(kr_layout_page(&s->shape, &s->plan, &group, 1, 0, &s->layout, &page_bytes, &err), KR_OK);
    for (uint32_t p = 0; p < PAGES_MAX; p++) {
        s->page[p] = aligned_alloc(64, page_bytes);
        memset(s->page[p], 0xff, page_bytes); /* NaN wherever nothing was written (pitfall S-16) */
    }
    s->view = (kr_view){.shape = &s->shape,
                        .layout = &s->layout,
                        .pages = s->page,
                        .page_device = s->device,
                        .page_count = PAGES_MAX,
                        .record = &s->record};
    s->workspace = aligned_alloc(64, kr_align_up(s->method->workspace_bytes(&s->plan, &s->config, &s->shape,
                                                                            1, PAGES_MAX * KR_PAGE_TOKENS),
                                                 64));
    s->scratch_bytes = kr_align_up(s->method->scratch_bytes(&s->plan, &s->shape, PAGES_MAX * KR_PAGE_TOKENS),
                                   64);
    s->scratch = aligned_alloc(64, s->scratch_bytes);
}

static void drop(session *s)
{
    for (uint32_t p = 0; p < PAGES_MAX; p++)
        free(s->page[p]);
    free(s->workspace);
    free(s->scratch);
}

static void put(session *s, uint64_t token, uint32_t kv_head, const float *key, const float *value)
{
    const uint32_t bytes = kr_dtype_bytes(s->shape.kv_dtype);
    uint8_t *tile = (uint8_t *)(uintptr_t)kr_view_key_tile(&s->view, kv_head, token);

    for (uint32_t c = 0; c < s->shape.key_dim; c++)
        kr_from_f32(s->shape.kv_dtype, &key[c], tile + (c * KR_TILE_TOKENS + token % KR_TILE_TOKENS) * bytes,
                    1);
    kr_from_f32(s->shape.kv_dtype, value, (void *)(uintptr_t)kr_view_value_row(&s->view, kv_head, token),
                s->shape.value_dim);
}

static void run(session *s, kr_job *job, kr_stage_kind first, kr_stage_kind last)
{
    job->view = &s->view;
    for (uint32_t k = first; k <= last; k++) {
        const kr_stage *stage = &s->method->stage[k];
        /* Backwards: the order of parts must not matter. */
        for (uint32_t part = stage->run != NULL ? stage->parts(job) : 0; part-- > 0;)
            stage->run(job, part, (kr_scratch){s->scratch, s->scratch_bytes});
    }
}

static kr_job job_of(session *s, uint64_t first, uint32_t queries, bool prefill, const float *query)
{
    s->view.tokens = first + queries;
    return (kr_job){.plan = &s->plan,
                    .config = &s->config,
                    .ops = &kr_ops_scalar,
                    .first_position = first,
                    .queries = queries,
                    .is_prefill = prefill,
                    .query = query,
                    .workspace = s->workspace,
                    .selected = s->selected,
                    .selected_count = s->count,
                    .selected_stride = 4096,
                    .output = s->output,
                    .nan_count = &s->nan};
}

/* Index of tokens [from, to), in chunks of chunk. */
static void append(session *s, uint64_t from, uint64_t to, uint32_t chunk)
{
    while (from < to) {
        const uint32_t n = to - from < chunk ? (uint32_t)(to - from) : chunk;
        kr_job job = job_of(s, from, n, true, NULL);

        run(s, &job, KR_STAGE_APPEND, KR_STAGE_APPEND);
        from += n;
    }
}

/* The generator of spec vectors: ((37 i + 11 s + (i*i mod 13)) mod 101 - 50) / 50. */
static float gen(uint32_t i, uint32_t s)
{
    return ((float)((37 * i + 11 * s + i * i % 13) % 101) - 50.0f) / 50.0f;
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
    static session s;
    float query[8], key[8], value[8];

    make(&s, "quest", shape, config);
    for (uint32_t i = 0; i < 8; i++)
        query[i] = gen(i, 1);
    for (uint32_t t = 0; t < 38; t++) {
        for (uint32_t i = 0; i < 8; i++) {
            key[i] = gen(t * 8 + i, 2);
            value[i] = gen(t * 8 + i, 3);
        }
        put(&s, t, 0, key, value);
    }
    append(&s, 0, 38, 5);
    kr_job job = job_of(&s, 37, 1, false, query);
    run(&s, &job, KR_STAGE_SCORE, KR_STAGE_MERGE);
    for (uint32_t u = 0; u < (mode == KR_QUEST_KERNEL ? 9 : 10); u++)
        assert_true(fabs((double)((float *)s.workspace)[u] - scores[u]) < 1e-5);
    assert_int_equal(s.count[0], 4);
    assert_memory_equal(s.selected, want, 4 * sizeof *want);
    for (uint32_t d = 0; d < 8; d++)
        assert_true(fabs((double)s.output[d] - out[d]) < 2e-6);
    drop(&s);
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

/* Fills both sessions with the same tokens and gives a query. */
static void fill(session *a, session *b, kr_rng *rng, uint64_t tokens, float *query)
{
    float key[DIM_MAX], value[DIM_MAX];

    for (uint64_t t = 0; t < tokens; t++)
        for (uint32_t h = 0; h < a->shape.kv_heads; h++) {
            for (uint32_t d = 0; d < DIM_MAX; d++) {
                key[d] = (float)kr_rng_normal(rng);
                value[d] = (float)kr_rng_normal(rng);
            }
            put(a, t, h, key, value);
            put(b, t, h, key, value);
        }
    for (uint32_t i = 0; i < a->shape.heads * a->shape.key_dim; i++)
        query[i] = (float)kr_rng_normal(rng);
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
    static session quest, dense;
    kr_rng rng = test_rng("equals_dense_when_covering");
    float query[4 * 24];

    (void)state;
    for (uint32_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (uint32_t u = 0; u < sizeof units / sizeof *units; u++)
            for (uint32_t mode = 1; mode <= 2; mode++) {
                const uint32_t n = lengths[l], budget = (n + units[u] - 1) / units[u] * units[u];
                const kr_method_config config = {
                    .name = "quest", .budget = budget, .unit = units[u], .mode = mode};

                make(&quest, "quest", shape, config);
                make(&dense, "dense", shape, (kr_method_config){.name = "dense"});
                fill(&quest, &dense, &rng, n, query);
                append(&quest, 0, n, 7);
                kr_job q = job_of(&quest, n - 1, 1, false, query), d = job_of(&dense, n - 1, 1, false, query);
                run(&quest, &q, KR_STAGE_SCORE, KR_STAGE_MERGE);
                run(&dense, &d, KR_STAGE_SCORE, KR_STAGE_MERGE);
                if (memcmp(quest.output, dense.output, sizeof(float) * 4 * 24) != 0)
                    fail_msg("%u tokens, page %u, mode %u", n, units[u], mode);
                drop(&quest);
                drop(&dense);
            }
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
    static session s, other;
    kr_rng rng = test_rng("selects_the_best_pages");
    float query[4 * 32];

    (void)state;
    for (uint32_t n = 300; n < 1300; n += 111)
        for (uint32_t mode = 1; mode <= 2; mode++) {
            make(&s, "quest", shape, (kr_method_config){.name = "quest", .budget = 128, .mode = mode});
            make(&other, "dense", shape, (kr_method_config){.name = "dense"});
            fill(&s, &other, &rng, n, query);
            append(&s, 0, n, 50);
            kr_job job = job_of(&s, n - 1, 1, false, query);
            run(&s, &job, KR_STAGE_SCORE, KR_STAGE_SELECT);
            const uint32_t pages = (n + 15) / 16, scored = pages - (mode == 2);
            for (uint32_t h = 0; h < 4; h++) {
                const uint32_t *list = s.selected + h * 4096;
                double score[100], worst_taken = INFINITY, best_left = -INFINITY;
                bool taken[100] = {false};

                for (uint32_t p = 0; p < pages; p++) { /* straight from the keys, in float64 */
                    score[p] = 0;
                    for (uint32_t c = 0; c < 32; c++) {
                        double high = -INFINITY, low = INFINITY;
                        for (uint32_t t = 16 * p; t < n && t < 16 * p + 16; t++) {
                            float k;
                            const uint8_t *tile = kr_view_key_tile(&s.view, h / 2, t);
                            kr_to_f32(KR_F16, tile + (c * 16 + t % 16) * 2, &k, 1);
                            high = fmax(high, (double)k);
                            low = fmin(low, (double)k);
                        }
                        score[p] += fmax((double)query[h * 32 + c] * high, (double)query[h * 32 + c] * low);
                    }
                }
                assert_int_equal(s.count[h], 8);
                for (uint32_t i = 0; i < 8; i++) {
                    assert_true(list[i] < pages && !taken[list[i]] && (i == 0 || list[i] > list[i - 1]));
                    taken[list[i]] = true;
                }
                assert_true(mode == 1 || taken[pages - 1]);
                for (uint32_t p = 0; p < scored; p++)
                    *(taken[p] ? &worst_taken : &best_left) = taken[p] ? fmin(worst_taken, score[p])
                                                                       : fmax(best_left, score[p]);
                assert_true(worst_taken >= best_left - 1e-4);
            }
            drop(&s);
            drop(&other);
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
    static session s, other;
    kr_rng rng = test_rng("nan_keys_never_win");
    float query[2 * 32], key[DIM_MAX], value[DIM_MAX] = {0};

    (void)state;
    make(&s, "quest", shape, (kr_method_config){.name = "quest", .budget = 64});
    make(&other, "dense", shape, (kr_method_config){.name = "dense"});
    fill(&s, &other, &rng, 400, query);
    for (uint32_t d = 0; d < DIM_MAX; d++)
        key[d] = d == 3 ? NAN : 100.0f;
    put(&s, 100, 0, key, value);
    append(&s, 0, 400, 400);
    kr_job job = job_of(&s, 399, 1, false, query);
    run(&s, &job, KR_STAGE_SCORE, KR_STAGE_MERGE);
    assert_int_equal(s.nan, 2); /* one page, two heads */
    for (uint32_t h = 0; h < 2; h++) {
        assert_int_equal(s.count[h], 4);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_not_equal(s.selected[h * 4096 + i], 100 / 16);
    }
    for (uint32_t i = 0; i < 64; i++)
        assert_true(isfinite(s.output[i]));
    drop(&s);
    drop(&other);
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
