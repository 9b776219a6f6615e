/* Sequences: storing rows, the prompt's end, selection and attention of a query at the newest token. */
#include <string.h>

#include "api/inside.h"
#include "base/check.h"

enum { ROWS_BYTES = 96, LISTS_BYTES = 40 /* of the structs in the first version of ABI 0 */ };

_Static_assert(sizeof(karat_rows) >= ROWS_BYTES, "grows at its end");
_Static_assert(sizeof(karat_lists) >= LISTS_BYTES, "grows at its end");

/* ---- life ---- */

static uint32_t only_device(void *context, uint64_t tokens_max, uint32_t prefix_device,
                            uint64_t prefix_tokens)
{
    (void)context;
    (void)tokens_max;
    (void)prefix_device;
    (void)prefix_tokens;
    return 0;
}

static uint32_t no_spill(void *context, uint32_t home)
{
    (void)context;
    (void)home;
    return UINT32_MAX;
}

static const kr_store_policy policy = {.place = only_device, .spill = no_spill};

static kr_status open_sequence(karat_selector *s, uint64_t tokens_max, karat_sequence **out, kr_err *err)
{
    if (s == NULL || out == NULL)
        return kr_fail(err, KR_E_ARG, "%s is null", s == NULL ? "selector" : "sequence");
    const kr_open_request request = {
        .tokens_max = tokens_max != 0 ? tokens_max : s->store.geometry.context_max, .seed = s->seed};
    karat_sequence *q = kr_alloc(sizeof *q);
    if (q == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a sequence");
    const kr_status status = kr_store_open(&s->store, &request, &policy, &q->session, err);
    if (status != KR_OK) {
        kr_free(q);
        return status;
    }
    q->selector = s;
    q->in_prompt = true;
    q->next = s->sequences;
    s->sequences = q;
    *out = q;
    return KR_OK;
}

karat_status karat_sequence_open(karat_selector *selector, uint64_t tokens_max, karat_sequence **sequence,
                                 karat_error *error)
{
    kr_err err = {0};
    return kr_api_end(open_sequence(selector, tokens_max, sequence, &err), &err, error);
}

void karat_sequence_close(karat_sequence *q)
{
    if (q == NULL)
        return;
    karat_sequence **at = &q->selector->sequences;
    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    kr_store_close(&q->selector->store, q->session);
    kr_free(q);
}

uint64_t karat_sequence_tokens(const karat_sequence *q, uint32_t layer)
{
    return q != NULL && layer < q->selector->store.geometry.layers ? q->session->tokens[layer] : 0;
}

static kr_status check_layer(const karat_sequence *q, uint32_t layer, kr_err *err)
{
    if (q == NULL)
        return kr_fail(err, KR_E_ARG, "sequence is null");
    if (layer >= q->selector->store.geometry.layers)
        return kr_fail(err, KR_E_ARG, "layer %u of %u", layer, q->selector->store.geometry.layers);
    return KR_OK;
}

/* ---- append ---- */

static kr_status check_queries(const karat_sequence *q, uint32_t layer, const karat_rows *r, kr_err *err)
{
    const kr_geometry *g = &q->selector->store.geometry;
    const kr_method_plan *p = &g->plan[layer];
    const char *name = g->method[layer]->name;

    if (r->output != NULL && (r->prompt == 0 || r->query == NULL || !q->selector->has_values))
        return kr_fail(err, KR_E_ARG,
                       "rows: output needs prompt rows, their query, and a selector with values");
    if (p->index_key_bytes != 0 && r->index_key == NULL)
        return kr_fail(err, KR_E_ARG, "rows: %s indexes keys of its own: give index_key, %u bytes a row",
                       name, p->index_key_bytes);
    if (r->prompt == 0)
        return KR_OK;
    if (!p->dense && g->method[layer]->watches_prompt && r->query == NULL)
        return kr_fail(err, KR_E_ARG, "rows: %s chooses by what the prompt's queries attend to: give query",
                       name);
    if (r->query != NULL && p->separate_index_query && r->index_query == NULL)
        return kr_fail(err, KR_E_ARG,
                       "rows: %s selects for prompt rows too: give index_query, %u bytes a row", name,
                       p->index_query_bytes);
    if (r->query != NULL && !p->owns_index)
        return kr_fail(err, KR_E_UNSUPPORTED,
                       "rows: layer %u uses the lists of layer %u; attend over them for prompt rows yourself",
                       layer, p->index_owner);
    return KR_OK;
}

static kr_status check_rows(const karat_sequence *q, uint32_t layer, karat_rows *r, kr_err *err)
{
    const kr_geometry *g = &q->selector->store.geometry;
    const kr_attention_shape *s = &g->shape[layer];
    const bool values = q->selector->has_values && !s->latent;
    const uint64_t left = q->session->tokens_max - q->session->tokens[layer];
    kr_status status;

    if (r->count == 0 || r->key == NULL || r->prompt > 1)
        return kr_fail(err, KR_E_ARG, "rows: count %llu, key %p, prompt %u; at least one row, and 0 or 1",
                       (unsigned long long)r->count, r->key, r->prompt);
    if (r->count > left)
        return kr_fail(err, KR_E_LIMIT,
                       "rows: %llu of them; the sequence of at most %llu tokens has room for %llu",
                       (unsigned long long)r->count, (unsigned long long)q->session->tokens_max,
                       (unsigned long long)left);
    if (values != (r->value != NULL))
        return kr_fail(err, KR_E_ARG, "rows: value %s", values ? "is null" : "is given, but none are kept");
    if (q->in_prompt && r->prompt == 0)
        return kr_fail(err, KR_E_ARG,
                       "rows: generated ones, but the prompt was not ended; call "
                       "karat_sequence_end_prompt");
    status = kr_api_strides("key", r->count, s->kv_heads, s->key_dim, &r->key_token_stride,
                            &r->key_head_stride, err);
    if (status == KR_OK && values)
        status = kr_api_strides("value", r->count, s->kv_heads, s->value_dim, &r->value_token_stride,
                                &r->value_head_stride, err);
    return status == KR_OK ? check_queries(q, layer, r, err) : status;
}

/* Rows [first, first + n) as the store takes them: [n][kv_heads][dim]. */
static void pack(const void *source, uint64_t token_stride, uint64_t head_stride, uint64_t first, uint32_t n,
                 uint32_t heads, size_t element, uint32_t dim, uint8_t *target)
{
    const uint8_t *bytes = source;

    for (uint32_t t = 0; t < n; t++)
        for (uint32_t h = 0; h < heads; h++, target += dim * element)
            memcpy(target, bytes + ((first + t) * token_stride + h * head_stride) * element, dim * element);
}

static void store_rows(karat_sequence *q, uint32_t layer, const karat_rows *r, uint64_t first, uint32_t n)
{
    karat_selector *s = q->selector;
    const kr_attention_shape *shape = &s->store.geometry.shape[layer];
    const size_t element = kr_dtype_bytes(shape->kv_dtype);
    const uint64_t position = q->session->tokens[layer];

    pack(r->key, r->key_token_stride, r->key_head_stride, first, n, shape->kv_heads, element, shape->key_dim,
         s->key);
    if (r->value != NULL)
        pack(r->value, r->value_token_stride, r->value_head_stride, first, n, shape->kv_heads, element,
             shape->value_dim, s->value);
    for (uint64_t page = position / KR_PAGE_TOKENS; page * KR_PAGE_TOKENS < position + n; page++)
        kr_kv_session_write(&s->store, q->session, layer, position, n, page, s->key, s->value);
}

/* A job of the sequence; its caller adds rows. */
static kr_job job_of(karat_sequence *q, uint32_t layer, const kr_view *view, uint64_t *nan_count)
{
    karat_selector *s = q->selector;
    const kr_geometry *g = &s->store.geometry;

    return (kr_job){
        .view = view,
        .plan = &g->plan[layer],
        .config = &g->config[layer],
        .ops = s->ops,
        .workspace = s->workspace,
        .selected = s->selected,
        .selected_count = s->count,
        .selected_stride = kr_api_stride(g, layer),
        .nan_count = nan_count,
    };
}

static const void *row_at(const void *base, uint64_t row, uint64_t bytes)
{
    return base != NULL ? (const uint8_t *)base + row * bytes : NULL;
}

/* Stores and indexes rows [first, first + n); prompt rows with queries go through every stage. */
static void append_chunk(karat_sequence *q, uint32_t layer, const karat_rows *r, uint64_t first, uint32_t n)
{
    karat_selector *s = q->selector;
    const kr_geometry *g = &s->store.geometry;
    const kr_attention_shape *shape = &g->shape[layer];
    const uint64_t position = q->session->tokens[layer];
    const uint64_t query_bytes = 4ull * shape->heads * shape->key_dim,
                   row = (uint64_t)shape->heads * shape->value_dim;
    const bool attends = r->prompt != 0 && r->query != NULL;
    uint64_t nan_count = 0;

    store_rows(q, layer, r, first, n);
    const kr_view view = kr_kv_session_view(&s->store, q->session, layer, position + n);
    kr_job job = job_of(q, layer, &view, &nan_count);
    job.first_position = position;
    job.queries = n;
    job.is_prefill = r->prompt != 0;
    job.query = row_at(r->query, first, query_bytes);
    job.index_key = row_at(r->index_key, first, job.plan->index_key_bytes);
    job.index_query = attends ? row_at(r->index_query, first, job.plan->index_query_bytes) : NULL;
    job.output = r->output != NULL ? r->output + first * row : s->output;
    for (int k = KR_STAGE_APPEND; k <= (attends ? KR_STAGE_MERGE : KR_STAGE_APPEND); k++)
        kr_api_run(s, &g->method[layer]->stage[k], &job);
    q->session->tokens[layer] = position + n;
    kr_kv_session_record(&s->store, q->session, layer)->tokens_covered = position + n;
}

static kr_status append(karat_sequence *q, uint32_t layer, const karat_rows *given, kr_err *err)
{
    karat_rows r;
    kr_status status = kr_api_struct(given, &r, sizeof r, ROWS_BYTES, "karat_rows", err);

    if (status == KR_OK)
        status = check_layer(q, layer, err);
    if (status == KR_OK)
        status = check_rows(q, layer, &r, err);
    if (status != KR_OK)
        return status;
    const uint64_t position = q->session->tokens[layer];
    status = kr_store_grow(&q->selector->store, q->session, layer, position, (uint32_t)r.count, err);
    if (status == KR_OK)
        status = kr_kv_session_boundary(q->session, position, r.prompt != 0, err);
    if (status != KR_OK)
        return status;
    q->in_prompt = r.prompt != 0;
    /* A generated row's index may depend on what the row before it has left. */
    for (uint64_t done = 0, n; done < r.count; done += n) {
        n = r.prompt != 0 ? q->selector->chunk : 1;
        n = n < r.count - done ? n : r.count - done;
        append_chunk(q, layer, &r, done, (uint32_t)n);
    }
    return KR_OK;
}

karat_status karat_sequence_append(karat_sequence *sequence, uint32_t layer, const karat_rows *rows,
                                   karat_error *error)
{
    kr_err err = {0};
    return kr_api_end(append(sequence, layer, rows, &err), &err, error);
}

/* ---- the prompt's end, cutting ---- */

static kr_status end_prompt(karat_sequence *q, kr_err *err)
{
    kr_status status = check_layer(q, 0, err);

    if (status != KR_OK)
        return status;
    karat_selector *s = q->selector;
    const kr_geometry *g = &s->store.geometry;
    if (q->session->tokens[0] == 0)
        return kr_fail(err, KR_E_ARG, "end of a prompt: no tokens were appended");
    for (uint32_t l = 0; l < g->layers; l++)
        if (q->session->tokens[l] != q->session->tokens[0])
            return kr_fail(err, KR_E_ARG, "end of a prompt: layer %u has %llu tokens, layer 0 %llu", l,
                           (unsigned long long)q->session->tokens[l],
                           (unsigned long long)q->session->tokens[0]);
    for (uint32_t l = 0; l < g->layers && status == KR_OK && q->in_prompt; l++) {
        const kr_view view = kr_kv_session_view(&s->store, q->session, l, q->session->tokens[l]);
        if (g->method[l]->end_prefill != NULL && !g->plan[l].dense)
            status = g->method[l]->end_prefill(&view, &g->config[l], s->ops,
                                               (kr_scratch){s->scratch, s->scratch_bytes}, err);
    }
    q->in_prompt = q->in_prompt && status != KR_OK;
    return status;
}

karat_status karat_sequence_end_prompt(karat_sequence *sequence, karat_error *error)
{
    kr_err err = {0};
    return kr_api_end(end_prompt(sequence, &err), &err, error);
}

/* A cut inside a unit leaves an index that knows of lost tokens: it is made anew from the keys that are
 * left. An index of keys that came with the rows has one entry a token and loses nothing. */
static void index_anew(karat_sequence *q, uint32_t layer)
{
    karat_selector *s = q->selector;
    const kr_geometry *g = &s->store.geometry;
    kr_record_header *record = kr_kv_session_record(&s->store, q->session, layer);
    const uint64_t covered = record->tokens_covered, tokens = q->session->tokens[layer];
    uint64_t nan_count = 0;

    if (covered >= tokens || g->plan[layer].index_key_bytes != 0)
        return;
    const kr_view view = kr_kv_session_view(&s->store, q->session, layer, tokens);
    kr_job job = job_of(q, layer, &view, &nan_count);
    job.first_position = covered;
    job.queries = (uint32_t)(tokens - covered);
    kr_api_run(s, &g->method[layer]->stage[KR_STAGE_APPEND], &job);
    record->tokens_covered = tokens;
}

karat_status karat_sequence_trim(karat_sequence *q, uint64_t tokens, karat_error *error)
{
    kr_err err = {0};
    kr_status status = check_layer(q, 0, &err);

    if (status == KR_OK)
        status = kr_store_trim(&q->selector->store, q->session, tokens, &err);
    for (uint32_t l = 0; status == KR_OK && l < q->selector->store.geometry.layers; l++)
        index_anew(q, l);
    if (status == KR_OK && tokens == 0)
        q->in_prompt = true;
    return kr_api_end(status, &err, error);
}

/* ---- one query at the newest token ---- */

static kr_status check_query(const karat_sequence *q, uint32_t layer, const float *query,
                             const void *index_query, bool selects, kr_err *err)
{
    kr_status status = check_layer(q, layer, err);

    if (status != KR_OK)
        return status;
    const kr_geometry *g = &q->selector->store.geometry;
    const kr_method_plan *p = &g->plan[layer];
    if (q->in_prompt)
        return kr_fail(err, KR_E_ARG, "the prompt was not ended; call karat_sequence_end_prompt");
    if (q->session->tokens[layer] == 0)
        return kr_fail(err, KR_E_ARG, "layer %u has no tokens", layer);
    if (selects && !p->owns_index)
        return kr_fail(err, KR_E_UNSUPPORTED, "layer %u uses the selection of layer %u: pass its lists",
                       layer, p->index_owner);
    if (selects && p->separate_index_query && index_query == NULL)
        return kr_fail(err, KR_E_ARG, "index_query is null; %s selects by it, %u bytes",
                       g->method[layer]->name, p->index_query_bytes);
    if (query == NULL && !(selects && p->separate_index_query))
        return kr_fail(err, KR_E_ARG, "query is null");
    return KR_OK;
}

static void run_stages(karat_sequence *q, uint32_t layer, const kr_job *job, kr_stage_kind from,
                       kr_stage_kind to)
{
    for (int k = from; k <= (int)to; k++)
        kr_api_run(q->selector, &q->selector->store.geometry.method[layer]->stage[k], job);
}

static kr_job query_job(karat_sequence *q, uint32_t layer, const float *query, const void *index_query,
                        const kr_view *view, uint64_t *nan_count)
{
    kr_job job = job_of(q, layer, view, nan_count);

    job.first_position = view->tokens - 1;
    job.queries = 1;
    job.query = query;
    job.index_query = job.plan->separate_index_query ? index_query : NULL;
    return job;
}

static kr_status check_lists(const karat_sequence *q, uint32_t layer, const karat_lists *given,
                             karat_lists *own, kr_err *err)
{
    kr_status status = kr_api_struct(given, own, sizeof *own, LISTS_BYTES, "karat_lists", err);
    const uint32_t lists = status == KR_OK ? kr_api_lists(q->selector, layer) : 0;

    if (status != KR_OK)
        return status;
    if (lists == 0)
        return kr_fail(err, KR_E_UNSUPPORTED, "layer %u stays dense: it has no lists", layer);
    if (own->count == NULL || own->unit == NULL || own->reserved != 0)
        return kr_fail(err, KR_E_ARG, "karat_lists: count or unit is null, or reserved is not 0");
    if (own->lists != lists)
        return kr_fail(err, KR_E_ARG, "karat_lists: %u lists; layer %u has %u", own->lists, layer, lists);
    return KR_OK;
}

static kr_status select_units(karat_sequence *q, uint32_t layer, const float *query, const void *index_query,
                              karat_lists *given, kr_err *err)
{
    karat_lists own;
    uint64_t nan_count = 0;
    kr_status status = check_query(q, layer, query, index_query, true, err);

    if (status == KR_OK)
        status = check_lists(q, layer, given, &own, err);
    if (status != KR_OK)
        return status;
    karat_selector *s = q->selector;
    const kr_view view = kr_kv_session_view(&s->store, q->session, layer, q->session->tokens[layer]);
    const kr_job job = query_job(q, layer, query, index_query, &view, &nan_count);
    run_stages(q, layer, &job, KR_STAGE_SCORE, KR_STAGE_SELECT);
    for (uint32_t l = 0; l < own.lists; l++)
        if (s->count[l] > own.stride)
            return kr_fail(err, KR_E_LIMIT, "karat_lists: stride %u; list %u has %u units", own.stride, l,
                           s->count[l]);
    memcpy(own.count, s->count, 4ull * own.lists);
    for (uint32_t l = 0; l < own.lists; l++)
        memcpy(own.unit + (uint64_t)l * own.stride, s->selected + (uint64_t)l * job.selected_stride,
               4ull * s->count[l]);
    given->nan_scores = nan_count;
    return KR_OK;
}

karat_status karat_sequence_select(karat_sequence *sequence, uint32_t layer, const float *query,
                                   const void *index_query, karat_lists *lists, karat_error *error)
{
    kr_err err = {0};
    return kr_api_end(select_units(sequence, layer, query, index_query, lists, &err), &err, error);
}

/* Plain attention over lists that the caller gives. */
static kr_status attend_lists(karat_sequence *q, uint32_t layer, kr_job job, const karat_lists *given,
                              kr_err *err)
{
    karat_lists own;
    kr_status status = check_lists(q, layer, given, &own, err);

    if (status == KR_OK)
        status = kr_api_units(own.count, own.unit, own.lists, own.stride,
                              kr_ceil_div(job.view->tokens, job.plan->unit_tokens), err);
    if (status != KR_OK)
        return status;
    job.selected = own.unit;
    job.selected_count = own.count;
    job.selected_stride = own.stride;
    kr_api_attend(q->selector, &job, own.lists);
    return KR_OK;
}

static kr_status attend(karat_sequence *q, uint32_t layer, const float *query, const void *index_query,
                        const karat_lists *lists, float *output, kr_err *err)
{
    kr_status status = check_query(q, layer, query, index_query, lists == NULL, err);
    uint64_t nan_count = 0;

    if (status == KR_OK && (output == NULL || query == NULL))
        status = kr_fail(err, KR_E_ARG, "%s is null", output == NULL ? "output" : "query");
    if (status == KR_OK && !q->selector->has_values)
        status = kr_fail(err, KR_E_UNSUPPORTED,
                         "the selector holds no values (value_dim 0): it only selects");
    if (status != KR_OK)
        return status;
    const kr_view view = kr_kv_session_view(&q->selector->store, q->session, layer,
                                            q->session->tokens[layer]);
    kr_job job = query_job(q, layer, query, index_query, &view, &nan_count);
    job.output = output;
    if (lists != NULL)
        return attend_lists(q, layer, job, lists, err);
    run_stages(q, layer, &job, KR_STAGE_SCORE, KR_STAGE_MERGE);
    return KR_OK;
}

karat_status karat_sequence_attend(karat_sequence *sequence, uint32_t layer, const float *query,
                                   const void *index_query, const karat_lists *lists, float *output,
                                   karat_error *error)
{
    kr_err err = {0};
    return kr_api_end(attend(sequence, layer, query, index_query, lists, output, &err), &err, error);
}
