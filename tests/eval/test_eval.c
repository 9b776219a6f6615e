/* karat eval on the tiny model: known answers, invariances, and one step's recall recomputed from what
 * passes on an ordinary engine's link, with code of its own. */
#include <math.h>

#include "eval/eval.h"
#include "eval/eval_methods.h"
#include "eval/eval_text.h"
#include "node/embedded.h"
#include "tests/engine/rig.h"

enum { CONTEXT = 256, TOKENS = 12, SAMPLES = 4 };

static const char *const text_path = "LICENSE";

static kr_eval_options options_of(const char *method)
{
    return (kr_eval_options){.model_path = RIG_TINY,
                             .text_path = text_path,
                             .methods = {method},
                             .method_count = 1,
                             .budgets = {48, 64, 128, 512},
                             .budget_count = 4,
                             .contexts = {CONTEXT},
                             .context_count = 1,
                             .passages = 1,
                             .tokens = TOKENS,
                             .samples = SAMPLES,
                             .threads = 1,
                             .chunk = 64,
                             .kv_dtype = KR_BF16,
                             .clock = &kr_clock_system};
}

static kr_eval_result evaluate(const kr_eval_options *options)
{
    kr_eval_result result;
    kr_err err = {0};
    rig_ok(kr_eval_run(options, &result, &err), &err);
    return result;
}

static void dense_is_its_own_measure(void **state)
{
    (void)state;
    const kr_eval_options o = options_of("quest");
    kr_eval_result r = evaluate(&o);
    assert_int_equal(r.rows, 5);
    assert_string_equal(r.row[0].method, "dense");
    assert_true(r.row[0].attention.recall == 1.0);
    assert_true(r.row[0].nll_difference == 0.0);
    assert_true(r.row[0].attention.error < 1e-5);
    assert_int_equal(r.row[0].sums.steps, SAMPLES);
    /* Steps 2, 5, 8 and 11 see 259, 262, 265 and 268 tokens. */
    assert_true(r.row[0].attention.attended == 263.5);
    kr_eval_free(&r);
}

/* Methods with tensors of their own, and models that hold them. */
static const struct {
    const char *method, *model;
} learned[] = {{"seer", "tests/fixtures/learned/seer"},
               {"dsa", "tests/fixtures/learned/glm"},
               {"msa", "tests/fixtures/learned/minimax"}};

/* Attention is within 1e-5 of dense. What that does to the logits is more in models with BF16 weights,
 * where a product's inputs are rounded to BF16 and may fall on another side. */
static void covering_budget_is_dense(void **state)
{
    (void)state;
    for (uint32_t m = 1; m < kr_eval_method_count; m++) {
        kr_eval_options o = options_of(kr_eval_methods[m].name);
        if (!kr_eval_methods[m].has_budget)
            continue;
        double allowed = 1e-4;
        for (size_t i = 0; i < sizeof learned / sizeof learned[0]; i++)
            if (strcmp(kr_eval_methods[m].name, learned[i].method) == 0) {
                o.model_path = learned[i].model;
                allowed = 1e-2;
            }
        o.budgets[0] = 512;
        o.budget_count = 1;
        kr_eval_result r = evaluate(&o);
        const kr_eval_row *covered = &r.row[r.rows - 1];
        assert_int_equal(covered->budget, 512);
        if (covered->attention.recall != 1.0 || covered->attention.error > 1e-5 ||
            fabs(covered->nll_difference) > allowed)
            fail_msg("%s: recall %g, error %g, difference %g", covered->method, covered->attention.recall,
                     covered->attention.error, covered->nll_difference);
        kr_eval_free(&r);
    }
}

/* Same kernels over the same list: not a bit differs. */
/* Without names, the model's own method is measured, beside those that can run on it. */
static void the_models_own_method_is_a_default(void **state)
{
    (void)state;
    kr_eval_options o = options_of(NULL);
    o.method_count = 0;
    o.model_path = "tests/fixtures/learned/deepseek";
    o.budgets[0] = 64;
    o.budget_count = 1;
    kr_eval_result r = evaluate(&o);
    assert_int_equal(r.rows, 2);
    assert_string_equal(r.row[1].method, "dsa");
    assert_true(r.row[1].attention.attended == 64);
    assert_true(r.row[1].attention.recall < 1);
    kr_eval_free(&r);
}

static void covering_quest_is_dense_exactly(void **state)
{
    (void)state;
    kr_eval_options o = options_of("quest");
    o.dense_layers = 0;
    kr_eval_result r = evaluate(&o);
    assert_true(r.row[4].attention.recall == 1.0);
    assert_true(r.row[4].nll == r.row[0].nll);
    assert_true(r.row[4].nll_difference == 0.0);
    assert_true(r.row[1].nll != r.row[0].nll);
    kr_eval_free(&r);
}

static void recall_grows_with_budget(void **state)
{
    static const char *const methods[] = {"quest", "sparq", "starc", "snapkv", "h2o", "streamingllm"};
    (void)state;
    for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
        kr_eval_options o = options_of(methods[m]);
        kr_eval_result r = evaluate(&o);
        for (uint32_t i = 2; i < r.rows; i++) {
            assert_true(r.row[i].attention.recall > r.row[i - 1].attention.recall);
            assert_true(r.row[i].attention.attended > r.row[i - 1].attention.attended);
        }
        assert_true(r.row[1].attention.recall > 0 && r.row[1].attention.error > 0.01);
        kr_eval_free(&r);
    }
}

/* Every figure but times. */
static void assert_equal_rows(const kr_eval_result *a, const kr_eval_result *b)
{
    assert_int_equal(a->rows, b->rows);
    for (uint32_t i = 0; i < a->rows; i++) {
        const kr_eval_row *x = &a->row[i], *y = &b->row[i];
        assert_true(x->nll == y->nll && x->nll_difference == y->nll_difference);
        assert_memory_equal(&x->attention, &y->attention, sizeof x->attention);
        assert_memory_equal(x->sums.sum, y->sums.sum, sizeof *x->sums.sum * x->sums.layers * x->sums.heads);
        assert_int_equal(x->needles_found, y->needles_found);
    }
}

static void same_at_any_threads_and_chunk(void **state)
{
    (void)state;
    kr_eval_options o = options_of(NULL);
    o.method_count = 0;
    o.budgets[0] = 192;
    o.budget_count = 2;
    o.needles = 1;
    kr_eval_result one = evaluate(&o);
    o.threads = 2;
    o.chunk = 100;
    kr_eval_result two = evaluate(&o);
    assert_equal_rows(&one, &two);
    kr_eval_free(&one);
    kr_eval_free(&two);
    for (size_t i = 0; i < sizeof learned / sizeof learned[0]; i++) {
        o = options_of(learned[i].method);
        o.model_path = learned[i].model;
        o.budgets[0] = 48;
        o.budget_count = 1;
        o.needles = 1;
        one = evaluate(&o);
        o.threads = 2;
        o.chunk = 100;
        two = evaluate(&o);
        assert_equal_rows(&one, &two);
        kr_eval_free(&one);
        kr_eval_free(&two);
    }
}

/* ---- the same without a replay ---- */

typedef struct {
    const uint32_t *token;
    uint64_t first;
    double nll;
    uint32_t vocab, count;
} scores;

static void add_score(void *context, uint64_t position, const float *logits)
{
    scores *s = context;
    double sum = 0;
    if (position < s->first)
        return;
    for (uint32_t i = 0; i < s->vocab; i++)
        sum += exp((double)logits[i]);
    s->nll += log(sum) - (double)logits[s->token[position + 1]];
    s->count++;
}

/* A link that keeps the query and all keys of layer 1. */
typedef struct {
    kr_link link;
    kr_link *inner;
    uint64_t tokens;
    float query[64];
    uint16_t key[(CONTEXT + TOKENS + 1) * 32]; /* [token][kv_heads 2][16], BF16 */
} watch;

static uint8_t flat[1 << 20];

static kr_status watch_send(kr_link *link, kr_msg_header header, const kr_piece *pieces, uint32_t count,
                            uint64_t deadline_ns, kr_err *err)
{
    watch *w = (watch *)link;
    size_t n = 0;
    for (uint32_t i = 0; i < count && header.kind == KR_MSG_ATTEND && header.layer == 1; i++) {
        memcpy(flat + n, pieces[i].data, pieces[i].bytes);
        n += pieces[i].bytes;
    }
    if (n != 0) {
        const uint32_t tokens = ((const kr_msg_row *)(const void *)flat)->tokens;
        memcpy(w->query, flat + 32 + (tokens - 1) * sizeof w->query, sizeof w->query);
        memcpy(w->key + w->tokens * 32, flat + 32 + tokens * sizeof w->query, (size_t)tokens * 64);
        w->tokens += tokens;
    }
    return w->inner->send(w->inner, header, pieces, count, deadline_ns, err);
}

static kr_status watch_receive(kr_link *link, kr_message *message, uint64_t deadline_ns, kr_err *err)
{
    watch *w = (watch *)link;
    return w->inner->receive(w->inner, message, deadline_ns, err);
}

static void watch_release(kr_link *link, kr_message *message)
{
    watch *w = (watch *)link;
    w->inner->release(w->inner, message);
}

static const char *watch_describe(const kr_link *link) { return link != NULL ? "watched" : ""; }

/* Units of layer 1 at the last position, by query head. */
typedef struct {
    uint64_t position;
    uint32_t units[4], unit[4][64];
} picks;

static void keep_picks(void *context, const kr_selection *s)
{
    picks *p = context;
    if (s->layer != 1 || s->position != p->position)
        return;
    assert_true(s->list < 4 && s->units <= 64);
    p->units[s->list] = s->units;
    memcpy(p->unit[s->list], s->unit, s->units * sizeof *s->unit);
}

static double recall_by_hand(const watch *w, const picks *p, uint32_t head)
{
    double all = 0, held = 0;
    for (uint64_t t = 0; t < w->tokens; t++) {
        double dot = 0, weight;
        for (uint32_t d = 0; d < 16; d++)
            dot += (double)w->query[head * 16 + d] *
                   (double)kr_f32_from_bf16(w->key[t * 32 + head / 2 * 16 + d]);
        weight = exp(dot / 4);
        all += weight;
        for (uint32_t u = 0; u < p->units[head]; u++)
            held += p->unit[head][u] == t / 16 ? weight : 0;
    }
    return held / all;
}

/* Quest with budget 64 through kr_force: prefill, then TOKENS decode steps. */
static void run_plain(const kr_eval_tokens *corpus, watch *w, picks *p, scores *s)
{
    static kr_method_config methods[KR_LAYERS_MAX];
    static float scratch[64 * 512];
    kr_embedded embedded;
    kr_engine *engine;
    kr_err err = {0};
    kr_model_file *file = rig_open(RIG_TINY);
    const kr_node_config node = {.devices = 1,
                                 .threads_per_device = 1,
                                 .pool_bytes = 8 << 20,
                                 .sessions_max = 1,
                                 .clock = &kr_clock_system};
    rig_ok(kr_embedded_start(&embedded, &node, true, &err), &err);
    w->link = (kr_link){
        .send = watch_send, .receive = watch_receive, .release = watch_release, .describe = watch_describe};
    w->inner = embedded.client;
    const kr_engine_node view = {&w->link, embedded.welcome, kr_embedded_drive, &embedded};
    kr_engine_config config = rig_config(file, &view, methods);
    config.kv_dtype = KR_BF16;
    config.on_selection = keep_picks;
    config.context = p;
    for (uint32_t l = 0; l < 2; l++)
        methods[l] = (kr_method_config){.name = "quest", .budget = 64};
    rig_ok(kr_engine_create(&engine, &config, &err), &err);
    s->vocab = kr_engine_model(engine)->vocab;
    kr_session *session = rig_session(engine, corpus->token, CONTEXT, TOKENS);
    rig_ok(kr_force(engine, session, 64, scratch, add_score, s, &err), &err);
    rig_ok(kr_session_append(session, corpus->token + CONTEXT, TOKENS, &err), &err);
    rig_ok(kr_force(engine, session, 0, scratch, add_score, s, &err), &err);
    kr_engine_destroy(engine);
    kr_embedded_stop(&embedded);
    kr_model_file_close(file);
}

static void agrees_with_a_plain_run(void **state)
{
    (void)state;
    static watch w;
    static picks p = {.position = CONTEXT + TOKENS - 1};
    kr_err err = {0};
    kr_eval_tokens corpus;
    kr_eval_options o = options_of("quest");
    o.budgets[0] = 64;
    o.budget_count = 1;
    o.samples = 1; /* the last step */
    o.dense_layers = 0;
    kr_model_file *file = rig_open(RIG_TINY);
    rig_ok(kr_eval_corpus(kr_model_file_tokenizer(file), text_path, &corpus, &err), &err);
    kr_eval_result r = evaluate(&o);
    scores s = {.token = corpus.token, .first = CONTEXT};
    run_plain(&corpus, &w, &p, &s);
    assert_int_equal(s.count, TOKENS);
    assert_int_equal(w.tokens, CONTEXT + TOKENS);
    assert_true(fabs(s.nll / TOKENS - r.row[1].nll) < 1e-9);
    for (uint32_t h = 0; h < 4; h++) {
        const double mine = recall_by_hand(&w, &p, h), theirs = r.row[1].sums.sum[4 + h].recall;
        assert_int_equal(p.units[h], 4);
        assert_true(mine > 0 && mine < 1);
        if (fabs(mine - theirs) > 1e-6)
            fail_msg("head %u: recall %.9f, eval says %.9f", h, mine, theirs);
    }
    kr_eval_free(&r);
    kr_free(corpus.token);
    kr_model_file_close(file);
}

/* The first passage is the text's start, the last its end; a row is the mean of both. */
static void passages_are_averaged(void **state)
{
    (void)state;
    static watch w;
    static picks p;
    kr_err err = {0};
    kr_eval_tokens corpus;
    double nll = 0;
    kr_eval_options o = options_of("quest");
    o.budgets[0] = 64;
    o.budget_count = 1;
    o.dense_layers = 0;
    o.passages = 2;
    kr_model_file *file = rig_open(RIG_TINY);
    rig_ok(kr_eval_corpus(kr_model_file_tokenizer(file), text_path, &corpus, &err), &err);
    kr_eval_result r = evaluate(&o);
    for (uint32_t passage = 0; passage < 2; passage++) {
        const uint64_t at = passage * (corpus.count - (CONTEXT + TOKENS + 1));
        const kr_eval_tokens text = {corpus.token + at, corpus.count - at};
        scores s = {.token = text.token, .first = CONTEXT};
        w = (watch){0};
        p = (picks){.position = CONTEXT + TOKENS - 1};
        run_plain(&text, &w, &p, &s);
        nll += s.nll / TOKENS / 2;
    }
    assert_true(fabs(nll - r.row[1].nll) < 1e-9);
    assert_int_equal(r.row[1].sums.steps, 2 * SAMPLES);
    kr_eval_free(&r);
    o.passages = (uint32_t)(corpus.count / (CONTEXT + TOKENS + 1)) + 1;
    assert_int_equal(kr_eval_run(&o, &r, &err), KR_E_LIMIT);
    kr_free(corpus.token);
    kr_model_file_close(file);
}

/* ---- passkeys, refusals, reports ---- */

static void passkeys_are_planted(void **state)
{
    (void)state;
    kr_err err = {0};
    kr_eval_tokens corpus;
    kr_model_file *file = rig_open(RIG_TINY);
    const kr_tokenizer *tokenizer = kr_model_file_tokenizer(file);
    rig_ok(kr_eval_corpus(tokenizer, text_path, &corpus, &err), &err);
    for (uint32_t i = 0; i < 3; i++) {
        kr_eval_needle needle;
        rig_ok(kr_eval_needle_make(tokenizer, &corpus, CONTEXT, i, i / 2.0, &needle, &err), &err);
        char text[4096];
        size_t n = 0;
        assert_int_equal(needle.document.count, CONTEXT);
        for (uint64_t t = 0; t < CONTEXT; t++)
            n += kr_detokenize(tokenizer, needle.document.token[t], true, text + n, sizeof text - 1 - n);
        text[n] = '\0';
        const char *at = strstr(text, needle.passkey);
        assert_non_null(at);
        assert_true(i != 0 || at - text < 64);
        assert_true(i != 2 || at - text > (long)n - 96);
        uint32_t said[KR_EVAL_ANSWER_TOKENS];
        size_t count = 0;
        rig_ok(kr_tokenize(tokenizer, needle.passkey, 5, 0, said, KR_EVAL_ANSWER_TOKENS, &count, &err), &err);
        assert_true(kr_eval_needle_found(tokenizer, &needle, said, (uint32_t)count));
        assert_false(kr_eval_needle_found(tokenizer, &needle, said, (uint32_t)count - 1));
        kr_eval_needle_free(&needle);
    }
    kr_free(corpus.token);
    kr_model_file_close(file);
}

static void expect_refusal(const kr_eval_options *o, kr_status status, const char *says)
{
    kr_eval_result result;
    kr_err err = {0};
    assert_int_equal(kr_eval_run(o, &result, &err), status);
    if (strstr(err.text, says) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.text, says);
}

static void refuses_before_it_runs(void **state)
{
    (void)state;
    kr_eval_options o = options_of("seer");
    expect_refusal(&o, KR_E_NOT_FOUND, "attngate_linear_q.weight");
    o = options_of("dsa");
    expect_refusal(&o, KR_E_NOT_FOUND, "indexer.wq_b.weight");
    o = options_of("qest");
    expect_refusal(&o, KR_E_NOT_FOUND, "quest");
    o = options_of("quest");
    o.methods[1] = "quest";
    o.method_count = 2;
    expect_refusal(&o, KR_E_ARG, "twice");
    o = options_of("quest");
    o.text_path = ".clang-format";
    o.tokens = 1 << 20;
    expect_refusal(&o, KR_E_LIMIT, "the text has");
    o = options_of("quest");
    o.contexts[0] = 512;
    expect_refusal(&o, KR_E_LIMIT, "made for 512");
    o = options_of("quest");
    o.budgets[0] = 8;
    expect_refusal(&o, KR_E_LIMIT, "budget 8");
    o = options_of("quest");
    o.text_path = "tests/no-such-text";
    expect_refusal(&o, KR_E_IO, "no-such-text");
}

/* Tags are balanced, and nothing is fetched from elsewhere. */
static void assert_valid_page(const char *html)
{
    static const char *const pairs[] = {"html", "head", "body", "table", "svg", "tr",
                                        "td",   "th",   "text", "g",     "p"};
    assert_int_equal(strncmp(html, "<!doctype html>", 15), 0);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char open[16], close[16];
        int opened = 0, closed = 0;
        const size_t n = (size_t)snprintf(open, sizeof open, "<%s", pairs[i]);
        snprintf(close, sizeof close, "</%s>", pairs[i]);
        for (const char *at = html; (at = strstr(at, open)) != NULL; at++)
            opened += at[n] == '>' || at[n] == ' ' || at[n] == '\n';
        for (const char *at = html; (at = strstr(at, close)) != NULL; at++)
            closed++;
        if (opened != closed)
            fail_msg("%d of <%s> and %d of </%s>", opened, pairs[i], closed, pairs[i]);
    }
    assert_null(strstr(html, "<script"));
    assert_null(strstr(html, "src="));
    assert_null(strstr(html, "href="));
    assert_null(strstr(html, "url("));
    assert_null(strstr(html, "@import"));
}

static void reports_say_what_was_measured(void **state)
{
    (void)state;
    char *html = NULL, *text = NULL;
    size_t bytes;
    json_t *root;
    kr_err err = {0};
    kr_eval_options o = options_of("sparq");
    o.methods[1] = "magicpig";
    o.method_count = 2;
    kr_eval_result r = evaluate(&o);
    FILE *out = open_memstream(&html, &bytes);
    rig_ok(kr_eval_html(&r, "karat eval <model>", out, &err), &err);
    fclose(out);
    assert_valid_page(html);
    assert_non_null(strstr(html, "Recall against budget"));
    assert_non_null(strstr(html, "karat eval &lt;model&gt;"));
    out = open_memstream(&text, &bytes);
    rig_ok(kr_eval_print(&r, out, &err), &err);
    fclose(out);
    assert_non_null(strstr(text, "magicpig: it samples"));
    rig_ok(kr_eval_json(&r, &root, &err), &err);
    const json_t *rows = json_object_get(root, "rows"), *row = json_array_get(rows, 1);
    assert_int_equal(json_array_size(rows), 6);
    assert_string_equal(json_string_value(json_object_get(row, "method")), "sparq");
    assert_true(json_real_value(json_object_get(row, "recall")) == r.row[1].attention.recall);
    assert_int_equal(json_array_size(json_object_get(row, "recall_by_layer_and_head")), 2);
    json_decref(root);
    free(html);
    free(text);
    kr_eval_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_is_its_own_measure),
        cmocka_unit_test(covering_budget_is_dense),
        cmocka_unit_test(the_models_own_method_is_a_default),
        cmocka_unit_test(covering_quest_is_dense_exactly),
        cmocka_unit_test(recall_grows_with_budget),
        cmocka_unit_test(same_at_any_threads_and_chunk),
        cmocka_unit_test(agrees_with_a_plain_run),
        cmocka_unit_test(passages_are_averaged),
        cmocka_unit_test(passkeys_are_planted),
        cmocka_unit_test(refuses_before_it_runs),
        cmocka_unit_test(reports_say_what_was_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
