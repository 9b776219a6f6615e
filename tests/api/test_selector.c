/* The API gives the bits of the internal path for every method, type, chunking and number of threads;
 * a budget that covers the context is dense; lists are what attention uses; layers share an index. */
#include "karat/kernels.h"
#include "method/native.h"
#include "ops/index_key.h"
#include "tests/api/sequence.h"

enum { HEADS = 4, KV = 2, D = 32, TOKENS = 460, PROMPT = 420 };

static const kr_attention_shape gqa = {.heads = HEADS,
                                       .kv_heads = KV,
                                       .key_dim = D,
                                       .value_dim = D,
                                       .kv_dtype = KR_BF16,
                                       .softmax_scale = 0.17677669f,
                                       .layers = 1};
static const kr_attention_shape mla = {.heads = HEADS,
                                       .kv_heads = 1,
                                       .key_dim = 24,
                                       .value_dim = 16,
                                       .latent = true,
                                       .kv_dtype = KR_BF16,
                                       .softmax_scale = 0.2f,
                                       .layers = 1};

/* One method with options that drop tokens, and ones that cover 460. */
typedef struct {
    const char *name;
    kr_method_config sparse, covering;
    const kr_attention_shape *shape;
    bool indexed; /* has index queries and keys */
} subject;

static const subject subjects[] = {
    {"dense", {.budget = 0}, {.budget = 0}, &gqa, false},
    {"quest", {.budget = 96}, {.budget = 512}, &gqa, false},
    {"streamingllm", {.budget = 60}, {.budget = 600}, &gqa, false},
    {"snapkv", {.budget = 64}, {.budget = 600}, &gqa, false},
    {"h2o", {.budget = 64}, {.budget = 1200}, &gqa, false},
    {"sparq", {.budget = 40, .parameter = {8, 4}}, {.budget = 600, .parameter = {8, 4}}, &gqa, false},
    {"starc", {.budget = 100}, {.budget = 600}, &gqa, false},
    {"retroinfer",
     {.parameter = {4, 20, 128, 100, 200, 4, 64}},
     {.parameter = {4, 20, 128, 100, 200, 4, 2048}},
     &gqa,
     false},
    {"magicpig", {.parameter = {4, 20, 4, 20}}, {.parameter = {4, 20, 4, 500}}, &gqa, false},
    {"lserve", {.budget = 128}, {.budget = 600}, &gqa, false},
    {"moba", {.unit = 64, .budget = 192}, {.unit = 64, .budget = 640}, &gqa, false},
    {"infllm2",
     {.budget = 64, .parameter = {32, 1, 64, 1}},
     {.budget = 640, .parameter = {32, 1, 64, 1}},
     &gqa,
     false},
    {"msa",
     {.unit = 64, .budget = 128, .parameter = {KV, 16}},
     {.unit = 64, .budget = 512, .parameter = {KV, 16}},
     &gqa,
     true},
    {"dsa", {.budget = 50, .parameter = {4, 16}}, {.budget = 500, .parameter = {4, 16}}, &mla, true},
};

enum { SUBJECTS = sizeof subjects / sizeof *subjects };

/* E4M3 codes and BF16 halves below are all finite: bytes with small exponents. */
static void add_index(kr_rng *rng, feed *f, const kr_method_plan *plan, bool fp8)
{
    f->index_query = session_memory(f->tokens * plan->index_query_bytes, 0);
    f->index_key = session_memory(f->tokens * plan->index_key_bytes, 0);
    for (uint64_t t = 0; t < f->tokens; t++) {
        uint8_t *q = f->index_query + t * plan->index_query_bytes,
                *k = f->index_key + t * plan->index_key_bytes;
        float x[16], scale;

        for (uint32_t h = 0; h < 5; h++) {
            for (uint32_t c = 0; c < 16; c++)
                x[c] = (float)kr_rng_normal(rng);
            if (!fp8 && h < KV)
                kr_from_f32(KR_BF16, x, q + (size_t)h * 32, 16);
            else if (!fp8 && h == KV)
                kr_from_f32(KR_BF16, x, k, 16);
            else if (fp8 && h < 4) {
                scale = kr_e4m3_quantise(x, 16, q + h * 16) * (float)kr_rng_normal(rng);
                memcpy(q + 64 + 4 * h, &scale, 4);
            } else if (fp8) {
                scale = kr_e4m3_quantise(x, 16, k);
                memcpy(k + 16, &scale, 4);
            }
        }
    }
}

/* What a run leaves: outputs of all rows, and the lists of every decode step one after the other. */
typedef struct {
    float *output; /* [TOKENS][heads][value_dim] */
    uint32_t *list;
    uint64_t used;
} trail;

enum { TRAIL = (TOKENS - PROMPT) * HEADS * (TOKENS + 1) };

static trail trail_new(void)
{
    return (trail){session_memory(sizeof(float) * TOKENS * HEADS * D, 0xff),
                   session_memory(sizeof(uint32_t) * TRAIL, 0), 0};
}

static void trail_free(trail *t) { free(t->output), free(t->list); }

static void trail_lists(trail *t, uint32_t lists, uint32_t stride, const uint32_t *count,
                        const uint32_t *unit)
{
    for (uint32_t l = 0; l < lists; l++) {
        t->list[t->used++] = count[l];
        memcpy(t->list + t->used, unit + (size_t)l * stride, 4ull * count[l]);
        t->used += count[l];
    }
}

static void run_inside(const subject *x, const kr_method_config *config, const kr_attention_shape *shape,
                       const feed *f, trail *t)
{
    const kr_method *method;
    assert_int_equal(kr_method_find(x->name, &method, NULL), KR_OK);
    session *s = session_open(method, *config, *shape, TOKENS, PROMPT);

    for (uint32_t p = 0; p < PROMPT; p += 100)
        session_run(s, feed_chunk(f, s, p, PROMPT - p < 100 ? PROMPT - p : 100, true, t->output));
    session_end_prefill(s);
    for (uint32_t p = PROMPT; p < TOKENS; p++) {
        session_run(s, feed_chunk(f, s, p, 1, false, t->output));
        if (!s->plan.dense)
            trail_lists(t, s->lists, s->stride, s->selected_count, s->selected);
    }
    session_close(s);
}

typedef struct {
    uint32_t chunk, threads;
    bool given_lists; /* attend over the lists that select gave */
} manner;

static void run_api(const subject *x, const kr_method_config *config, const kr_attention_shape *shape,
                    const feed *f, manner how, trail *t)
{
    karat_selector_options o = options_of(x->name, config, shape, TOKENS);
    karat_selector_plan plan = {.struct_size = sizeof plan};
    static uint32_t count[HEADS], unit[HEADS * TOKENS];
    const size_t out_row = (size_t)shape->heads * shape->value_dim;
    kv_arrays a = kv_of(f, shape);
    karat_selector *selector;
    karat_sequence *q;

    o.threads = how.threads;
    assert_karat(karat_selector_create(&o, &selector, error));
    assert_karat(karat_selector_plan_of(selector, 0, &plan, error));
    assert_karat(karat_sequence_open(selector, 0, &q, error));
    for (uint32_t p = 0, n; p < PROMPT; p += n) {
        n = PROMPT - p < how.chunk ? PROMPT - p : how.chunk;
        const karat_rows rows = rows_of(f, &a, shape, &plan, p, n, true, t->output);
        assert_karat(karat_sequence_append(q, 0, &rows, error));
    }
    assert_karat(karat_sequence_end_prompt(q, error));
    for (uint32_t p = PROMPT; p < TOKENS; p++) {
        const karat_rows rows = rows_of(f, &a, shape, &plan, p, 1, false, NULL);
        karat_lists lists = {
            .struct_size = sizeof lists, .lists = plan.lists, .stride = TOKENS, .count = count, .unit = unit};

        assert_karat(karat_sequence_append(q, 0, &rows, error));
        if (!plan.dense) {
            assert_karat(karat_sequence_select(q, 0, rows.query, rows.index_query, &lists, error));
            assert_int_equal(lists.nan_scores, 0);
            trail_lists(t, plan.lists, TOKENS, count, unit);
        }
        assert_karat(karat_sequence_attend(q, 0, rows.query, rows.index_query,
                                           how.given_lists && !plan.dense ? &lists : NULL,
                                           t->output + p * out_row, error));
    }
    assert_int_equal(karat_sequence_tokens(q, 0), TOKENS);
    karat_sequence_close(q);
    karat_selector_destroy(selector);
    kv_free(&a);
}

static feed feed_of(kr_rng *rng, const subject *x, const kr_attention_shape *shape)
{
    feed f = feed_random(rng, shape, TOKENS);
    const kr_method *method;
    kr_method_plan plan;

    assert_int_equal(kr_method_find(x->name, &method, NULL), KR_OK);
    if (x->indexed && method->plan(&x->sparse, shape, TOKENS, &plan, NULL) == KR_OK)
        add_index(rng, &f, &plan, shape->latent);
    return f;
}

static void every_method_gives_the_internal_bits(void **state)
{
    (void)state;
    kr_rng rng = test_rng("selector");
    static const manner manners[] = {{420, 1, false}, {97, 3, false}};
    static const kr_dtype types[] = {KR_BF16, KR_F32, KR_F16};

    for (int m = 0; m < SUBJECTS; m++)
        for (int k = 0; k < 3; k++) {
            kr_attention_shape shape = *subjects[m].shape;
            shape.kv_dtype = types[k];
            feed f = feed_of(&rng, &subjects[m], &shape);
            const size_t bytes = sizeof(float) * TOKENS * shape.heads * shape.value_dim;
            trail want = trail_new();
            run_inside(&subjects[m], &subjects[m].sparse, &shape, &f, &want);
            for (int i = 0; i < 2; i++) {
                trail got = trail_new();
                run_api(&subjects[m], &subjects[m].sparse, &shape, &f, manners[i], &got);
                if (want.used != got.used || memcmp(want.list, got.list, 4 * want.used) != 0)
                    fail_msg("%s %s: another selection", subjects[m].name, kr_dtype_name(types[k]));
                if (memcmp(want.output, got.output, bytes) != 0)
                    fail_msg("%s %s: other bits in manner %d", subjects[m].name, kr_dtype_name(types[k]), i);
                trail_free(&got);
            }
            trail_free(&want);
            feed_free(&f);
        }
}

static void a_covering_budget_is_dense(void **state)
{
    (void)state;
    kr_rng rng = test_rng("coverage");
    double want[D];

    for (int m = 0; m < SUBJECTS; m++) {
        kr_attention_shape s = *subjects[m].shape;
        s.kv_dtype = KR_F32;
        feed f = feed_of(&rng, &subjects[m], &s);
        trail got = trail_new();
        run_api(&subjects[m], &subjects[m].covering, &s, &f, (manner){100, 2, false}, &got);
        for (uint32_t t = PROMPT - 1; t < TOKENS; t += 13)
            for (uint32_t h = 0; h < HEADS; h++) {
                const float *out = got.output + ((size_t)t * HEADS + h) * s.value_dim;

                for (uint32_t d = 0; d < s.value_dim && s.latent; d++) /* values lie in the key rows */
                    for (uint32_t i = 0; i <= t; i++)
                        f.value[(size_t)i * s.value_dim + d] = f.key[(size_t)i * s.key_dim + d];
                oracle_attend(f.query + ((size_t)t * HEADS + h) * s.key_dim, f.key, f.value, s.kv_heads,
                              s.key_dim, s.value_dim, h / (HEADS / s.kv_heads), NULL, t + 1,
                              (double)s.softmax_scale, want);
                for (uint32_t d = 0; d < s.value_dim; d++)
                    if (!(fabs((double)out[d] - want[d]) <= 1e-5))
                        fail_msg("%s: token %u head %u dim %u: %.8g, dense %.8g", subjects[m].name, t, h, d,
                                 (double)out[d], want[d]);
            }
        trail_free(&got);
        feed_free(&f);
    }
}

/* Methods whose attention is plain: attending over the lists that select gave changes no bit. */
static void given_lists_give_the_same_bits(void **state)
{
    (void)state;
    kr_rng rng = test_rng("lists");
    static const char *const plain[] = {"quest", "streamingllm", "snapkv", "lserve", "moba", "msa", "dsa"};

    for (int m = 0; m < SUBJECTS; m++)
        for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
            if (strcmp(plain[i], subjects[m].name) != 0)
                continue;
            const kr_attention_shape *s = subjects[m].shape;
            feed f = feed_of(&rng, &subjects[m], s);
            trail own = trail_new(), given = trail_new();
            run_api(&subjects[m], &subjects[m].sparse, s, &f, (manner){200, 1, false}, &own);
            run_api(&subjects[m], &subjects[m].sparse, s, &f, (manner){200, 2, true}, &given);
            if (memcmp(own.output, given.output, sizeof(float) * TOKENS * HEADS * s->value_dim) != 0)
                fail_msg("%s: attention over its own lists differs", subjects[m].name);
            trail_free(&own), trail_free(&given);
            feed_free(&f);
        }
}

/* What an engine holds itself: keys and values as [kv_head][token][dim]. */
static void by_head(const kv_arrays *a, uint16_t *key, uint16_t *value)
{
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t h = 0; h < KV; h++) {
            memcpy(key + (h * TOKENS + t) * D, a->key + (t * KV + h) * D * 2, D * 2);
            memcpy(value + (h * TOKENS + t) * D, a->value + (t * KV + h) * D * 2, D * 2);
        }
}

/* The same selection from packed rows with values, and from strided keys alone; the engine's own attention
 * over the second is the bits of the first. */
static void strides_and_own_arrays(void **state)
{
    (void)state;
    kr_rng rng = test_rng("strides");
    const kr_method_config config = {.budget = 60};
    feed f = feed_random(&rng, &gqa, TOKENS);
    kv_arrays a = kv_of(&f, &gqa);
    uint16_t *key = session_memory(a.key_row * TOKENS, 0), *value = session_memory(a.value_row * TOKENS, 0);
    karat_selector_options o = options_of("snapkv", &config, &gqa, TOKENS);
    static uint32_t count[2][HEADS], unit[2][HEADS * TOKENS];
    float out[2][HEADS * D];

    by_head(&a, key, value);
    for (int k = 0; k < 2; k++) {
        karat_selector *selector;
        karat_sequence *q;
        karat_lists lists = {.struct_size = sizeof lists,
                             .lists = HEADS,
                             .stride = TOKENS,
                             .count = count[k],
                             .unit = unit[k]};
        const karat_selector_plan plan = {.struct_size = sizeof plan};

        o.value_dim = k == 0 ? D : 0;
        assert_karat(karat_selector_create(&o, &selector, error));
        assert_karat(karat_sequence_open(selector, 0, &q, error));
        karat_rows rows = rows_of(&f, &a, &gqa, &plan, 0, TOKENS, true, NULL);
        if (k == 1) {
            rows.key = key, rows.key_token_stride = D, rows.key_head_stride = TOKENS * D;
            rows.value = NULL;
        }
        assert_karat(karat_sequence_append(q, 0, &rows, error));
        assert_karat(karat_sequence_end_prompt(q, error));
        assert_karat(karat_sequence_select(q, 0, f.query, NULL, &lists, error));
        const karat_status attended = karat_sequence_attend(q, 0, f.query, NULL, NULL, out[k], NULL);
        assert_int_equal(attended, k == 0 ? KARAT_OK : KARAT_E_UNSUPPORTED);
        karat_selector_destroy(selector); /* closes the sequence */
    }
    assert_memory_equal(count[0], count[1], sizeof count[0]);
    for (uint32_t l = 0; l < HEADS; l++)
        assert_memory_equal(unit[0] + l * TOKENS, unit[1] + l * TOKENS, 4 * count[0][l]);
    const karat_list_attention own = {.struct_size = sizeof own,
                                      .dtype = KARAT_BF16,
                                      .heads = HEADS,
                                      .kv_heads = KV,
                                      .key_dim = D,
                                      .value_dim = D,
                                      .softmax_scale = gqa.softmax_scale,
                                      .lists = HEADS,
                                      .unit_tokens = 1,
                                      .stride = TOKENS,
                                      .tokens = TOKENS,
                                      .key = key,
                                      .key_token_stride = D,
                                      .key_head_stride = TOKENS * D,
                                      .value = value,
                                      .value_token_stride = D,
                                      .value_head_stride = TOKENS * D,
                                      .query = f.query,
                                      .count = count[1],
                                      .unit = unit[1],
                                      .output = out[1]};
    assert_karat(karat_attend_lists(&own, error));
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    kv_free(&a), free(key), free(value);
    feed_free(&f);
}

/* Two layers of dsa: the second attends over the first one's lists. */
static void layers_share_an_index(void **state)
{
    (void)state;
    kr_rng rng = test_rng("shared index");
    const subject *x = &subjects[SUBJECTS - 1];
    static const uint32_t owner[] = {0, 0};
    karat_selector_options o = options_of(x->name, &x->sparse, &mla, TOKENS);
    karat_selector_plan plan[2] = {{.struct_size = sizeof *plan}, {.struct_size = sizeof *plan}};
    uint32_t count, unit[64];
    karat_lists lists = {
        .struct_size = sizeof lists, .lists = 1, .stride = 64, .count = &count, .unit = unit};
    float out[2][HEADS * 16];
    feed f = feed_of(&rng, x, &mla);
    kv_arrays a = kv_of(&f, &mla);
    karat_selector *selector;
    karat_sequence *q;

    o.layers = 2, o.index_owner = owner;
    assert_karat(karat_selector_create(&o, &selector, error));
    assert_karat(karat_sequence_open(selector, 0, &q, error));
    for (uint32_t l = 0; l < 2; l++) {
        assert_karat(karat_selector_plan_of(selector, l, &plan[l], error));
        assert_int_equal(plan[l].index_owner, 0);
        karat_rows rows = rows_of(&f, &a, &mla, &plan[l], 0, PROMPT, true, NULL);
        if (l == 1)
            rows.query = NULL;
        assert_karat(karat_sequence_append(q, l, &rows, error));
    }
    assert_int_equal(plan[1].index_key_bytes, 0);
    assert_karat(karat_sequence_end_prompt(q, error));
    assert_karat(karat_sequence_select(q, 0, NULL, f.index_query, &lists, error));
    assert_int_equal(count, 50);
    assert_int_equal(karat_sequence_select(q, 1, f.query, f.index_query, &lists, NULL), KARAT_E_UNSUPPORTED);
    assert_int_equal(karat_sequence_attend(q, 1, f.query, f.index_query, NULL, out[1], NULL),
                     KARAT_E_UNSUPPORTED);
    assert_karat(karat_sequence_attend(q, 0, f.query, f.index_query, NULL, out[0], error));
    assert_karat(karat_sequence_attend(q, 1, f.query, NULL, &lists, out[1], error));
    assert_memory_equal(out[0], out[1], sizeof out[0]); /* both layers hold the same rows */
    karat_selector_destroy(selector);
    kv_free(&a);
    feed_free(&f);
}

/* prompt, decode, prompt, decode: boundaries are where the calls put them. */
static void second_turns_give_the_internal_bits(void **state)
{
    (void)state;
    kr_rng rng = test_rng("turns");
    static const uint32_t boundary[] = {200, 230, 400, TOKENS};

    for (int m = 0; m < SUBJECTS; m++) {
        const kr_attention_shape *h = subjects[m].shape;
        const kr_method *method;
        feed f = feed_of(&rng, &subjects[m], h);
        kv_arrays a = kv_of(&f, h);
        const karat_selector_options o = options_of(subjects[m].name, &subjects[m].sparse, h, TOKENS);
        karat_selector_plan plan = {.struct_size = sizeof plan};
        const size_t row = (size_t)h->heads * h->value_dim;
        trail want = trail_new(), got = trail_new();
        karat_selector *selector;
        karat_sequence *q;

        assert_int_equal(kr_method_find(subjects[m].name, &method, NULL), KR_OK);
        session *s = session_open(method, subjects[m].sparse, *h, TOKENS, PROMPT);
        assert_karat(karat_selector_create(&o, &selector, error));
        assert_karat(karat_selector_plan_of(selector, 0, &plan, error));
        assert_karat(karat_sequence_open(selector, 0, &q, error));
        for (uint32_t turn = 0, t = 0; turn < 4; turn++)
            for (uint32_t n; t < boundary[turn]; t += n) {
                const bool prompt = turn % 2 == 0;

                n = prompt ? boundary[turn] - t : 1;
                session_run(s, feed_chunk(&f, s, t, n, prompt, want.output));
                const karat_rows rows = rows_of(&f, &a, h, &plan, t, n, prompt, got.output);
                assert_karat(karat_sequence_append(q, 0, &rows, error));
                if (prompt) {
                    session_end_prefill(s);
                    assert_karat(karat_sequence_end_prompt(q, error));
                } else {
                    assert_karat(karat_sequence_attend(q, 0, rows.query, rows.index_query, NULL,
                                                       got.output + t * row, error));
                }
            }
        if (memcmp(want.output, got.output, sizeof(float) * TOKENS * row) != 0)
            fail_msg("%s: other bits", subjects[m].name);
        session_close(s);
        karat_selector_destroy(selector);
        trail_free(&want), trail_free(&got);
        kv_free(&a);
        feed_free(&f);
    }
}

/* Two dense layers below one that selects; all hold the same rows. */
static void layers_are_independent(void **state)
{
    (void)state;
    kr_rng rng = test_rng("layers");
    const subject quest = {"quest", {.budget = 96}, {.budget = 0}, &gqa, false};
    const subject dense = {"dense", {.budget = 0}, {.budget = 0}, &gqa, false};
    feed f = feed_random(&rng, &gqa, TOKENS);
    kv_arrays a = kv_of(&f, &gqa);
    karat_selector_options o = options_of("quest", &quest.sparse, &gqa, TOKENS);
    trail one[] = {trail_new(), trail_new()};
    const size_t last = (size_t)(TOKENS - 1) * HEADS * D;
    float out[HEADS * D];
    karat_selector *selector;
    karat_sequence *q;

    run_inside(&dense, &dense.sparse, &gqa, &f, &one[0]);
    run_inside(&quest, &quest.sparse, &gqa, &f, &one[1]);
    o.layers = 3, o.dense_layers = 2;
    assert_karat(karat_selector_create(&o, &selector, error));
    assert_karat(karat_sequence_open(selector, 0, &q, error));
    for (uint32_t l = 0; l < 3; l++) {
        karat_selector_plan plan = {.struct_size = sizeof plan};

        assert_karat(karat_selector_plan_of(selector, l, &plan, error));
        assert_int_equal(plan.dense, l < 2);
        assert_int_equal(plan.lists, l < 2 ? 0 : HEADS);
        const karat_rows rows = rows_of(&f, &a, &gqa, &plan, 0, PROMPT, true, NULL);
        assert_int_equal(karat_sequence_end_prompt(q, NULL), KARAT_E_ARG); /* not all layers are there */
        assert_karat(karat_sequence_append(q, l, &rows, error));
    }
    assert_karat(karat_sequence_end_prompt(q, error));
    for (uint32_t t = PROMPT; t < TOKENS; t++)
        for (uint32_t l = 0; l < 3; l++) {
            const karat_selector_plan none = {.struct_size = 0};
            const karat_rows rows = rows_of(&f, &a, &gqa, &none, t, 1, false, NULL);

            assert_karat(karat_sequence_append(q, l, &rows, error));
            assert_karat(karat_sequence_attend(q, l, rows.query, NULL, NULL, out, error));
            if (t == TOKENS - 1)
                assert_memory_equal(out, one[l == 2].output + last, sizeof out);
        }
    karat_selector_destroy(selector);
    trail_free(&one[0]), trail_free(&one[1]);
    kv_free(&a);
    feed_free(&f);
}

static void sequences_share_a_pool(void **state)
{
    (void)state;
    kr_rng rng = test_rng("pool");
    const kr_method_config config = {.budget = 96};
    karat_selector_options o = options_of("quest", &config, &gqa, TOKENS);
    karat_selector_plan plan = {.struct_size = sizeof plan};
    feed f = feed_random(&rng, &gqa, TOKENS);
    kv_arrays a = kv_of(&f, &gqa);
    karat_selector *selector;
    karat_sequence *q[4];
    karat_error refusal = {0};

    o.sequences_max = 4;
    assert_karat(karat_selector_create(&o, &selector, error));
    assert_karat(karat_selector_plan_of(selector, 0, &plan, error));
    karat_selector_destroy(selector);
    assert_int_equal(plan.page_tokens, 128);
    assert_int_equal(plan.page_kv_bytes, 128 * KV * 2 * D * 2);
    assert_int_equal(plan.page_index_bytes, KV * 8 * 2 * D * 2);

    o.memory_bytes = 5 * plan.page_bytes; /* one of 460 tokens has 4 of them */
    assert_karat(karat_selector_create(&o, &selector, error));
    assert_karat(karat_sequence_open(selector, 0, &q[0], error));
    assert_int_equal(karat_sequence_open(selector, 0, &q[1], &refusal), KARAT_E_FULL);
    assert_int_equal(refusal.status, KARAT_E_FULL);
    assert_karat(karat_sequence_open(selector, 100, &q[1], error));
    const karat_rows rows = rows_of(&f, &a, &gqa, &plan, 0, 101, true, NULL);
    assert_int_equal(karat_sequence_append(q[1], 0, &rows, &refusal), KARAT_E_LIMIT);
    assert_int_equal(karat_sequence_tokens(q[1], 0), 0);
    assert_karat(karat_sequence_append(q[0], 0, &rows, error));
    assert_karat(karat_sequence_end_prompt(q[0], error));
    assert_karat(karat_sequence_trim(q[0], 50, error));
    assert_int_equal(karat_sequence_tokens(q[0], 0), 50);
    karat_sequence_close(q[0]);
    assert_karat(karat_sequence_open(selector, 0, &q[2], error));
    karat_selector_destroy(selector);
    kv_free(&a);
    feed_free(&f);
}

/* A cut inside a page of Quest's leaves the bounds of the tokens that are left, at once. */
static void a_cut_forgets(void **state)
{
    (void)state;
    kr_rng rng = test_rng("cut");
    const kr_method_config config = {.budget = 96};
    const karat_selector_options o = options_of("quest", &config, &gqa, TOKENS);
    const karat_selector_plan plan = {.struct_size = sizeof plan};
    feed f = feed_random(&rng, &gqa, TOKENS);
    kv_arrays a = kv_of(&f, &gqa);
    uint32_t count[2][HEADS], unit[2][HEADS * TOKENS];
    karat_selector *selector;
    karat_sequence *q;

    memset(unit, 0, sizeof unit);
    for (uint32_t i = 0; i < KV * D; i++) /* a key that would win for every query */
        ((uint16_t *)(void *)a.key)[405 * KV * D + i] = i % 2 ? 0x4700 : 0xc700;
    for (int cut = 0; cut < 2; cut++) {
        karat_lists lists = {.struct_size = sizeof lists,
                             .lists = HEADS,
                             .stride = TOKENS,
                             .count = count[cut],
                             .unit = unit[cut]};
        const karat_rows rows = rows_of(&f, &a, &gqa, &plan, 0, cut ? 450 : 402, true, NULL);

        assert_karat(karat_selector_create(&o, &selector, error));
        assert_karat(karat_sequence_open(selector, 0, &q, error));
        assert_karat(karat_sequence_append(q, 0, &rows, error));
        if (cut)
            assert_karat(karat_sequence_trim(q, 402, error));
        assert_karat(karat_sequence_end_prompt(q, error));
        assert_karat(karat_sequence_select(q, 0, f.query, NULL, &lists, error));
        karat_selector_destroy(selector);
    }
    assert_memory_equal(count[0], count[1], sizeof count[0]);
    assert_memory_equal(unit[0], unit[1], sizeof unit[0]);
    kv_free(&a);
    feed_free(&f);
}

static void methods_are_listed(void **state)
{
    (void)state;
    uint32_t n = 0;

    for (; karat_method_name(n) != NULL; n++) {
        const kr_method *method;

        assert_int_equal(kr_method_find(karat_method_name(n), &method, NULL), KR_OK);
        assert_string_equal(karat_method_summary(n), method->summary);
        assert_string_equal(karat_method_source(n), method->source);
    }
    assert_true(n >= 15);
    assert_null(karat_method_summary(n));
    assert_null(karat_method_source(UINT32_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_method_gives_the_internal_bits),
        cmocka_unit_test(a_covering_budget_is_dense),
        cmocka_unit_test(given_lists_give_the_same_bits),
        cmocka_unit_test(strides_and_own_arrays),
        cmocka_unit_test(layers_share_an_index),
        cmocka_unit_test(second_turns_give_the_internal_bits),
        cmocka_unit_test(layers_are_independent),
        cmocka_unit_test(sequences_share_a_pool),
        cmocka_unit_test(a_cut_forgets),
        cmocka_unit_test(methods_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
