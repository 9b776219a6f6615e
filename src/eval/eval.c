/* The loops of an evaluation: contexts, documents, cells. A cell is one method with one budget. */
#include "eval/eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/log.h"
#include "engine/engine.h"
#include "eval/eval_methods.h"
#include "eval/eval_text.h"

#define TIMEOUT_NS ((uint64_t)600 * 1000000000)

typedef struct {
    const kr_eval_options *options;
    kr_model_file *file;
    const kr_model *model;
    const kr_tokenizer *tokenizer;
    kr_eval_tokens corpus;
    const kr_eval_method *method[KR_EVAL_METHODS_MAX + 1];
    kr_eval_method outside[KR_EVAL_METHODS_MAX]; /* those of them that come from files */
    uint32_t methods;
    uint64_t context; /* of the current round */
    uint32_t passage;
    const uint32_t *tokens; /* of the passage: context + scored + 1 */
    kr_eval_needle needle[KR_EVAL_NEEDLES_MAX];
    kr_eval_record text, needle_text[KR_EVAL_NEEDLES_MAX];
    uint32_t solved[KR_EVAL_NEEDLES_MAX], solved_count; /* needles that dense answers */
    float *logits;                                      /* [vocab] */
    double *nll, *dense_nll;                            /* [tokens] */
    uint64_t *step_ns;                                  /* [tokens] */
    kr_method_config config[KR_LAYERS_MAX];
} evaluation;

/* An engine over an embedded node, with the tap between them. */
typedef struct {
    kr_embedded embedded;
    kr_eval_tap tap;
    kr_engine *engine;
    bool indexes;       /* the method has index queries of its own */
    kr_eval_record own; /* rows of a prompt that this engine prefilled itself */
} rig;

/* ---- engines ---- */

/* Longest session: the document, and what is scored or asked and answered behind it. */
static uint64_t context_max(const evaluation *e)
{
    uint64_t behind = e->options->tokens + 1;
    for (uint32_t i = 0; i < e->options->needles; i++)
        if (e->needle[i].question.count + KR_EVAL_ANSWER_TOKENS > behind)
            behind = e->needle[i].question.count + KR_EVAL_ANSWER_TOKENS;
    return e->context + behind;
}

static kr_engine_config engine_config(evaluation *e, const kr_eval_method *method, uint32_t budget)
{
    kr_method_config one = kr_eval_method_config(method, budget, e->context, e->model);
    one.dense_layers = e->options->dense_layers;
    for (uint32_t l = 0; l < e->model->layers; l++)
        e->config[l] = one;
    return (kr_engine_config){.file = e->file,
                              .methods = e->config,
                              .placement = KR_PLACE_ALL_ON_NODE,
                              .kv_dtype = e->options->kv_dtype,
                              .context_max = context_max(e),
                              .rows_max = e->options->chunk,
                              .sessions_max = 1,
                              .micro_batches = 1,
                              .threads = e->options->threads,
                              .policy = KR_POLICY_SCMS,
                              .timeout_ns = TIMEOUT_NS,
                              .clock = e->options->clock};
}

static void close_rig(rig *r)
{
    kr_engine_destroy(r->engine);
    kr_eval_tap_free(&r->tap);
    kr_eval_record_free(&r->own);
    kr_embedded_stop(&r->embedded);
}

/* On success the caller closes it. */
static kr_status open_rig(evaluation *e, const kr_eval_method *method, uint32_t budget, rig *r, kr_err *err)
{
    kr_engine_config config = engine_config(e, method, budget);
    kr_engine_needs needs;
    *r = (rig){0};
    kr_status status = kr_engine_plan(&config, &needs, err);
    if (status != KR_OK)
        return status;
    const kr_node_config node = {.devices = 1,
                                 .threads_per_device = e->options->threads,
                                 .pool_bytes = needs.session_page_bytes,
                                 .sessions_max = 1,
                                 .clock = e->options->clock};
    status = kr_embedded_start(&r->embedded, &node, true, err);
    kr_eval_tap_init(&r->tap, &r->embedded, e->options->clock, TIMEOUT_NS);
    const kr_engine_node view = {.link = &r->tap.link,
                                 .welcome = r->embedded.welcome,
                                 .drive = kr_embedded_drive,
                                 .drive_context = &r->embedded};
    config.nodes = &view;
    config.node_count = 1;
    if (status == KR_OK)
        status = kr_engine_create(&r->engine, &config, err);
    if (status == KR_OK)
        status = kr_eval_tap_bind(&r->tap, kr_engine_program(r->engine), config.context_max,
                                  config.context_max - e->context, e->options->chunk, err);
    for (uint32_t l = 0; status == KR_OK && l < e->model->layers; l++)
        r->indexes |= kr_engine_program(r->engine)->plan[l].separate_index_query;
    if (status == KR_OK && r->indexes)
        status = kr_eval_record_init(&r->own, kr_engine_program(r->engine), e->context, err);
    if (status != KR_OK)
        close_rig(r);
    return status;
}

static kr_status open_session(rig *r, const kr_eval_tokens *tokens, uint64_t growth, kr_session **session,
                              kr_err *err)
{
    const kr_session_request request = {
        .tokens = tokens->token, .count = tokens->count, .growth = growth, .sampling = {0, 1, 0}};
    return kr_session_open(r->engine, &request, session, err);
}

/* ---- the dense prefill ---- */

/* Runs the first tokens of a session as its prompt, and keeps their rows. */
static kr_status prefill(const evaluation *e, rig *r, kr_session *session, uint64_t tokens,
                         kr_eval_record *record, kr_err *err)
{
    kr_status status = KR_OK;
    r->tap.recording = record;
    for (uint64_t at = 0; at < tokens && status == KR_OK;) {
        const uint64_t left = tokens - at, rows = left < e->options->chunk ? left : e->options->chunk;
        kr_step_item item = {.session = session, .tokens = (uint32_t)rows, .prefill = true};
        status = kr_engine_step(r->engine, &item, 1, err);
        at += rows;
    }
    r->tap.recording = NULL;
    return status;
}

static kr_status record_document(const evaluation *e, rig *r, const kr_eval_tokens *document,
                                 kr_eval_record *record, kr_err *err)
{
    kr_session *session = NULL;
    kr_status status = kr_eval_record_init(record, kr_engine_program(r->engine), document->count, err);
    if (status == KR_OK)
        status = open_session(r, document, 0, &session, err);
    if (status == KR_OK)
        status = prefill(e, r, session, document->count, record, err);
    kr_session_close(session);
    return status;
}

/* Opens a session whose document lies on the node: recorded rows are handed over. They hold no index keys
 * that come from weights, so an engine with such keys runs the document itself. On an error the session is
 * open or NULL. */
static kr_status open_behind(const evaluation *e, rig *r, const kr_eval_tokens *tokens, uint64_t growth,
                             const kr_eval_record *document, kr_session **session, kr_err *err)
{
    r->tap.replay = r->indexes ? NULL : document;
    kr_status status = open_session(r, tokens, growth, session, err);
    if (status != KR_OK || !r->indexes)
        return status;
    status = prefill(e, r, *session, e->context, &r->own, err);
    if (status == KR_OK)
        status = kr_session_end_prefill(*session, err);
    r->tap.replay = &r->own; /* what decode steps are compared with */
    return status;
}

static kr_status record_passage(evaluation *e, kr_err *err)
{
    const kr_eval_tokens text = {(uint32_t *)e->tokens, e->context};
    const uint32_t needles = e->passage == 0 ? e->options->needles : 0;
    rig r;
    kr_status status = open_rig(e, &kr_eval_methods[0], 0, &r, err);
    if (status != KR_OK)
        return status;
    kr_log(KR_LOG_INFO, "eval: context %llu: dense prefill of passage %u of %u and %u passkey prompts",
           (unsigned long long)e->context, e->passage + 1, e->options->passages, needles);
    status = record_document(e, &r, &text, &e->text, err);
    for (uint32_t i = 0; i < needles && status == KR_OK; i++)
        status = record_document(e, &r, &e->needle[i].document, &e->needle_text[i], err);
    close_rig(&r);
    return status;
}

/* ---- perplexity, attention, time ---- */

static double nll_of(const float *logits, uint32_t vocab, uint32_t target)
{
    double largest = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        largest = fmax(largest, (double)logits[i]);
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - largest);
    return largest + log(sum) - (double)logits[target];
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Step i is one of `samples` steps, spread evenly. */
static bool is_sampled(const kr_eval_options *o, uint64_t i)
{
    return (i + 1) * o->samples / o->tokens != i * o->samples / o->tokens;
}

static kr_status score_text(evaluation *e, rig *r, kr_eval_row *row, kr_err *err)
{
    const kr_eval_options *o = e->options;
    const kr_eval_tokens prompt = {(uint32_t *)e->tokens, e->context + 1};
    /* One thread does the work of both sides: its own running time does not see a crowded machine. */
    const kr_clock *clock = o->threads == 1 ? &kr_clock_thread : o->clock;
    kr_session *session = NULL;
    uint64_t timed = 0;
    kr_status status = open_behind(e, r, &prompt, o->tokens - 1, &e->text, &session, err);
    if (status == KR_OK)
        status = kr_session_append(session, e->tokens + prompt.count, o->tokens - 1, err);
    for (uint64_t i = 0; i < o->tokens && status == KR_OK; i++) {
        kr_step_item item = {
            .session = session, .tokens = 1, .want = KR_WANT_LAST_LOGITS, .logits = e->logits};
        r->tap.measure = is_sampled(o, i) ? &row->sums : NULL;
        const uint64_t begin = kr_now_ns(clock);
        status = kr_engine_step(r->engine, &item, 1, err);
        if (r->tap.measure == NULL)
            e->step_ns[timed++] = kr_now_ns(clock) - begin;
        e->nll[i] = nll_of(e->logits, e->model->vocab, e->tokens[e->context + 1 + i]);
    }
    r->tap.measure = NULL;
    kr_session_close(session);
    qsort(e->step_ns, timed, sizeof *e->step_ns, by_value);
    const uint64_t middle = timed / 2;
    row->step_ms += timed != 0 ? (double)e->step_ns[middle] / 1e6 / o->passages : NAN;
    return status;
}

static void add_text(const evaluation *e, kr_eval_row *row)
{
    for (uint64_t i = 0; i < e->options->tokens; i++) {
        const double difference = e->nll[i] - e->dense_nll[i];
        row->nll += e->nll[i];
        row->nll_difference += difference;
        row->nll_difference_square += difference * difference;
    }
}

static void sum_up_text(const evaluation *e, kr_eval_row *row)
{
    const double n = (double)e->options->tokens * e->options->passages;
    row->nll /= n;
    row->perplexity = exp(row->nll);
    row->nll_difference /= n;
    const double square = row->nll_difference_square / n - row->nll_difference * row->nll_difference;
    row->nll_difference_error = n > 1 ? sqrt(fmax(square, 0) / (n - 1)) : NAN;
}

/* Sums become means; the row's own are over layers that select, or over all when none does. */
static void sum_up_attention(const rig *r, kr_eval_row *row)
{
    const kr_program *p = kr_engine_program(r->engine);
    const uint32_t heads = row->sums.heads;
    bool any = false;
    double cells = 0;
    for (uint32_t l = 0; l < row->sums.layers; l++)
        any |= row->selects[l] = !p->plan[l].dense && p->method[l]->lists != NULL;
    for (uint32_t i = 0; i < row->sums.layers * heads; i++) {
        kr_eval_head *h = &row->sums.sum[i];
        h->recall /= (double)row->sums.steps;
        h->error /= (double)row->sums.steps;
        h->attended /= (double)row->sums.steps;
        if (any && !row->selects[i / heads])
            continue;
        row->attention.recall += h->recall;
        row->attention.error += h->error;
        row->attention.attended += h->attended;
        cells++;
    }
    row->attention.recall /= cells;
    row->attention.error /= cells;
    row->attention.attended /= cells;
}

/* ---- passkeys ---- */

static kr_status ask_needle(evaluation *e, rig *r, uint32_t i, bool *found, kr_err *err)
{
    const kr_eval_needle *needle = &e->needle[i];
    const kr_eval_tokens *question = &needle->question;
    const uint64_t count = e->context + question->count;
    kr_eval_tokens prompt = {kr_alloc(count * sizeof(uint32_t)), count};
    uint32_t answer[KR_EVAL_ANSWER_TOKENS];
    kr_session *session = NULL;
    if (prompt.token == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for %llu tokens", (unsigned long long)count);
    memcpy(prompt.token, needle->document.token, e->context * sizeof(uint32_t));
    memcpy(prompt.token + e->context, question->token, question->count * sizeof(uint32_t));
    kr_status status = open_behind(e, r, &prompt, KR_EVAL_ANSWER_TOKENS, &e->needle_text[i], &session, err);
    for (uint64_t step = 1; step < question->count + KR_EVAL_ANSWER_TOKENS && status == KR_OK; step++) {
        kr_step_item item = {.session = session,
                             .tokens = 1,
                             .want = step < question->count ? KR_WANT_NOTHING : KR_WANT_TOKEN};
        status = kr_engine_step(r->engine, &item, 1, err);
        if (step >= question->count)
            answer[step - question->count] = item.token;
    }
    kr_session_close(session);
    kr_free(prompt.token);
    if (status == KR_OK)
        *found = kr_eval_needle_found(e->tokenizer, needle, answer, KR_EVAL_ANSWER_TOKENS) != 0;
    return status;
}

/* Dense is asked everything and decides what the others are asked. */
static kr_status ask_needles(evaluation *e, rig *r, bool is_dense, kr_eval_row *row, kr_err *err)
{
    const uint32_t count = is_dense ? e->options->needles : e->solved_count;
    kr_status status = KR_OK;
    if (is_dense)
        e->solved_count = 0;
    for (uint32_t n = 0; n < count && status == KR_OK; n++) {
        const uint32_t i = is_dense ? n : e->solved[n];
        bool found = false;
        status = ask_needle(e, r, i, &found, err);
        row->needles_found += found;
        if (!is_dense)
            continue;
        if (found)
            e->solved[e->solved_count++] = i;
        else
            kr_eval_record_free(&e->needle_text[i]);
    }
    row->needles_judged = count;
    return status;
}

/* ---- cells ---- */

static kr_status make_row(const evaluation *e, const kr_eval_method *method, uint32_t budget,
                          kr_eval_row *row, kr_err *err)
{
    const uint32_t layers = e->model->layers, heads = e->model->heads;
    *row = (kr_eval_row){.method = method->name,
                         .context = e->context,
                         .budget = budget,
                         .sums = {.layers = layers, .heads = heads},
                         .selects = kr_alloc(layers * sizeof(bool))};
    row->sums.sum = kr_alloc((uint64_t)layers * heads * sizeof *row->sums.sum);
    return row->selects != NULL && row->sums.sum != NULL ? KR_OK
                                                         : kr_fail(err, KR_E_MEMORY, "eval: no memory");
}

static void log_row(const kr_eval_row *row)
{
    kr_log(KR_LOG_INFO,
           "eval: context %llu %s %u: recall %.4f, output error %.4f, perplexity %.4f (%+.4f nats), "
           "passkeys %u/%u, %.1f ms a step",
           (unsigned long long)row->context, row->method, row->budget, row->attention.recall,
           row->attention.error, row->perplexity, row->nll_difference, row->needles_found,
           row->needles_judged, row->step_ms);
}

/* Adds the current passage to the row; the first makes the row, the last completes it. */
static kr_status run_cell(evaluation *e, const kr_eval_method *method, uint32_t budget, kr_eval_row *row,
                          kr_err *err)
{
    const bool is_dense = method == &kr_eval_methods[0];
    rig r;
    kr_status status = e->passage == 0 ? make_row(e, method, budget, row, err) : KR_OK;
    if (status == KR_OK)
        status = open_rig(e, method, budget, &r, err);
    if (status != KR_OK)
        return status;
    status = score_text(e, &r, row, err);
    if (status == KR_OK && is_dense)
        memcpy(e->dense_nll, e->nll, e->options->tokens * sizeof *e->nll);
    if (status == KR_OK)
        add_text(e, row);
    if (status == KR_OK && e->passage == 0)
        status = ask_needles(e, &r, is_dense, row, err);
    if (status == KR_OK && e->passage + 1 < e->options->passages)
        kr_log(KR_LOG_INFO, "eval: context %llu %s %u: passage %u of %u", (unsigned long long)row->context,
               row->method, row->budget, e->passage + 1, e->options->passages);
    if (status == KR_OK && e->passage + 1 == e->options->passages) {
        sum_up_text(e, row);
        sum_up_attention(&r, row);
        log_row(row);
    }
    close_rig(&r);
    return status;
}

/* Calls visit for every cell of the context; stops at a failure. */
static kr_status each_cell(evaluation *e, kr_eval_result *result,
                           kr_status (*visit)(evaluation *e, const kr_eval_method *method, uint32_t budget,
                                              kr_eval_row *row, kr_err *err),
                           kr_err *err)
{
    kr_status status = KR_OK;
    for (uint32_t m = 0; m < e->methods && status == KR_OK; m++) {
        const uint32_t budgets = e->method[m]->has_budget ? e->options->budget_count : 1;
        for (uint32_t b = 0; b < budgets && status == KR_OK; b++)
            status = visit(e, e->method[m], e->method[m]->has_budget ? e->options->budgets[b] : 0,
                           result != NULL ? &result->row[result->rows++] : NULL, err);
    }
    return status;
}

static kr_status check_cell(evaluation *e, const kr_eval_method *method, uint32_t budget, kr_eval_row *row,
                            kr_err *err)
{
    const kr_engine_config config = engine_config(e, method, budget);
    kr_engine_needs needs;
    (void)row;
    return kr_engine_plan(&config, &needs, err);
}

/* ---- contexts ---- */

static uint64_t passage_tokens(const evaluation *e) { return e->context + e->options->tokens + 1; }

/* Passages are spread evenly over the text, the first at its start, the last at its end. */
static void begin_passage(evaluation *e, uint32_t passage)
{
    const uint32_t last = e->options->passages - 1;
    const uint64_t room = e->corpus.count - passage_tokens(e);
    e->passage = passage;
    e->tokens = e->corpus.token + (last == 0 ? 0 : room / last * passage);
}

static kr_status run_context(evaluation *e, kr_eval_result *result, kr_err *err)
{
    const uint32_t first = result->rows;
    kr_status status = KR_OK;
    for (uint32_t p = 0; p < e->options->passages && status == KR_OK; p++) {
        begin_passage(e, p);
        result->rows = first;
        status = record_passage(e, err);
        if (status == KR_OK)
            status = each_cell(e, result, run_cell, err);
        kr_eval_record_free(&e->text);
    }
    return status;
}

static void free_documents(evaluation *e)
{
    kr_eval_record_free(&e->text);
    for (uint32_t i = 0; i < KR_EVAL_NEEDLES_MAX; i++) {
        kr_eval_record_free(&e->needle_text[i]);
        kr_eval_needle_free(&e->needle[i]);
    }
}

static kr_status begin_context(evaluation *e, uint64_t context, kr_err *err)
{
    const uint32_t needles = e->options->needles;
    kr_status status = KR_OK;
    e->context = context / KR_PAGE_TOKENS * KR_PAGE_TOKENS;
    if (e->context == 0 || passage_tokens(e) > e->corpus.count / e->options->passages)
        return kr_fail(err, KR_E_LIMIT,
                       "context %llu and %llu scored tokens, %u times: the text has %llu tokens, a page %d",
                       (unsigned long long)context, (unsigned long long)e->options->tokens,
                       e->options->passages, (unsigned long long)e->corpus.count, KR_PAGE_TOKENS);
    for (uint32_t i = 0; i < needles && status == KR_OK; i++)
        status = kr_eval_needle_make(e->tokenizer, &e->corpus, e->context, i, (i + 0.5) / needles,
                                     &e->needle[i], err);
    if (status == KR_OK && context_max(e) > e->model->context)
        return kr_fail(err, KR_E_LIMIT,
                       "context %llu and what follows it make %llu tokens; the model was made for %u",
                       (unsigned long long)context, (unsigned long long)context_max(e), e->model->context);
    return status;
}

/* Every refusal comes here, before the first forward pass. */
static kr_status check_all(evaluation *e, kr_err *err)
{
    kr_status status = KR_OK;
    for (uint32_t c = 0; c < e->options->context_count && status == KR_OK; c++) {
        status = begin_context(e, e->options->contexts[c], err);
        if (status == KR_OK)
            status = each_cell(e, NULL, check_cell, err);
        free_documents(e);
    }
    return status;
}

static kr_status choose_methods(evaluation *e, kr_err *err)
{
    const kr_eval_options *o = e->options;
    e->method[e->methods++] = &kr_eval_methods[0];
    for (uint32_t i = 1; o->method_count == 0 && i < kr_eval_method_count; i++)
        if (kr_eval_method_is_default(&kr_eval_methods[i], e->model))
            e->method[e->methods++] = &kr_eval_methods[i];
    for (uint32_t i = 0; i < o->method_count; i++) {
        const kr_eval_method *method;
        const kr_status status = kr_eval_method_find(o->methods[i], &e->outside[i], &method, err);
        if (status != KR_OK)
            return status;
        for (uint32_t m = 1; m < e->methods; m++)
            if (strcmp(e->method[m]->name, method->name) == 0)
                return kr_fail(err, KR_E_ARG, "method %s is asked for twice", method->name);
        if (method != &kr_eval_methods[0])
            e->method[e->methods++] = method;
    }
    return KR_OK;
}

static kr_status prepare(evaluation *e, kr_eval_result *result, kr_err *err)
{
    const kr_eval_options *o = e->options;
    kr_status status = kr_model_file_open(o->model_path, &e->file, err);
    if (status != KR_OK)
        return status;
    e->model = kr_model_file_model(e->file);
    e->tokenizer = kr_model_file_tokenizer(e->file);
    status = choose_methods(e, err);
    if (status == KR_OK)
        status = kr_eval_corpus(e->tokenizer, o->text_path, &e->corpus, err);
    if (status == KR_OK)
        status = check_all(e, err);
    if (status != KR_OK)
        return status;
    e->logits = kr_alloc(e->model->vocab * sizeof *e->logits);
    e->nll = kr_alloc(o->tokens * sizeof *e->nll);
    e->dense_nll = kr_alloc(o->tokens * sizeof *e->dense_nll);
    e->step_ns = kr_alloc(o->tokens * sizeof *e->step_ns);
    result->row = kr_alloc((uint64_t)o->context_count * e->methods * (o->budget_count + 1) *
                           sizeof *result->row);
    if (e->logits == NULL || e->nll == NULL || e->dense_nll == NULL || e->step_ns == NULL ||
        result->row == NULL)
        return kr_fail(err, KR_E_MEMORY, "eval: no memory");
    result->layers = e->model->layers;
    result->heads = e->model->heads;
    memcpy(result->model, e->model->name, sizeof result->model);
    return KR_OK;
}

kr_status kr_eval_run(const kr_eval_options *options, kr_eval_result *out, kr_err *err)
{
    kr_eval_result result = {.options = *options};
    evaluation *e = kr_alloc(sizeof *e);
    if (e == NULL)
        return kr_fail(err, KR_E_MEMORY, "eval: no memory");
    e->options = options;
    kr_status status = prepare(e, &result, err);
    for (uint32_t c = 0; c < options->context_count && status == KR_OK; c++) {
        status = begin_context(e, options->contexts[c], err);
        if (status == KR_OK)
            status = run_context(e, &result, err);
        free_documents(e);
    }
    kr_model_file_close(e->file);
    kr_free(e->corpus.token);
    kr_free(e->logits);
    kr_free(e->nll);
    kr_free(e->dense_nll);
    kr_free(e->step_ns);
    kr_free(e);
    if (status == KR_OK)
        *out = result;
    else
        kr_eval_free(&result);
    return status;
}

void kr_eval_free(kr_eval_result *result)
{
    for (uint32_t i = 0; i < result->rows; i++) {
        kr_free(result->row[i].sums.sum);
        kr_free(result->row[i].selects);
    }
    kr_free(result->row);
    *result = (kr_eval_result){0};
}
