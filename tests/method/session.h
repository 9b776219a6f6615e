/* One session in one layer, as a memory node would keep it, for tests of methods: pages, index
 * record, workspace and scratch sized by the method's own answers and filled with garbage, stages
 * run part by part in a chosen order. */
#ifndef TESTS_METHOD_SESSION_H
#define TESTS_METHOD_SESSION_H

#include <math.h>

#include "base/num.h"
#include "base/team.h"
#include "method/layout.h"
#include "method/method.h"
#include "tests/test.h"

typedef struct {
    const kr_method *method;
    kr_method_config config;
    kr_attention_shape shape;
    kr_method_plan plan;
    kr_layout layout;
    kr_view view;
    const kr_ops *ops;
    uint8_t **pages;
    uint8_t *page_device;
    kr_record_header *record;
    kr_boundary boundaries[64];
    void *workspace;
    kr_scratch scratch;
    size_t workspace_bytes;
    uint32_t lists, rows_max, *selected, *selected_count, stride;
    uint64_t capacity, page_bytes, nan_count, step;
    bool reverse;  /* run a stage's parts from the last to the first */
    kr_team *team; /* or on these threads; NULL: on the caller's */
} session;

static inline void *session_memory(size_t bytes, int fill)
{
    void *p = aligned_alloc(64, kr_align_up(bytes + 1, 64));

    assert_non_null(p);
    memset(p, fill, kr_align_up(bytes + 1, 64));
    return p;
}

/* Opens; the test fails when the plan is refused. rows_max: largest chunk. */
static inline session *session_open(const kr_method *method, kr_method_config config,
                                    kr_attention_shape shape, uint64_t capacity, uint32_t rows_max)
{
    session *s = session_memory(sizeof *s, 0);
    const uint8_t group = 0;
    kr_err err = {0};
    const uint64_t pages = kr_ceil_div(capacity, KR_PAGE_TOKENS);

    s->method = method, s->config = config, s->shape = shape, s->capacity = capacity, s->rows_max = rows_max;
    s->ops = &kr_ops_scalar;
    if (method->plan(&config, &shape, capacity, &s->plan, &err) != KR_OK)
        fail_msg("plan: %s", err.text);
    assert_int_equal(kr_layout_page(&shape, &s->plan, &group, 1, 0, &s->layout, &s->page_bytes, &err), KR_OK);
    s->pages = session_memory(pages * sizeof *s->pages, 0);
    s->page_device = session_memory(pages, 0);
    for (uint64_t p = 0; p < pages; p++)
        s->pages[p] = session_memory(s->page_bytes, 0xff); /* reads of what was never written are NaN */
    s->record = session_memory(sizeof *s->record + s->plan.record_body_bytes, 0);
    s->record->body_bytes = s->plan.record_body_bytes;
    s->record->seed = 7;
    s->lists = method->lists ? method->lists(&config, &shape) : 1;
    s->stride = s->plan.selected_max != 0 ? s->plan.selected_max : (uint32_t)capacity;
    s->selected = session_memory(4ull * rows_max * s->lists * s->stride, 0xff);
    s->selected_count = session_memory(4ull * rows_max * s->lists, 0xff);
    s->workspace_bytes = method->workspace_bytes(&s->plan, &config, &shape, rows_max, capacity);
    if (method->workspace_bytes(&s->plan, &config, &shape, 1, capacity) > s->workspace_bytes)
        s->workspace_bytes = method->workspace_bytes(&s->plan, &config, &shape, 1, capacity);
    s->workspace = session_memory(s->workspace_bytes, 0);
    s->scratch.bytes = method->scratch_bytes(&s->plan, &shape, capacity);
    s->scratch.memory = session_memory(s->scratch.bytes, 0xff);
    s->view = (kr_view){.shape = &s->shape,
                        .layout = &s->layout,
                        .pages = s->pages,
                        .page_device = s->page_device,
                        .record = s->record,
                        .boundaries = s->boundaries};
    return s;
}

static inline void session_close(session *s)
{
    for (uint64_t p = 0; p < kr_ceil_div(s->capacity, KR_PAGE_TOKENS); p++)
        free(s->pages[p]);
    free(s->pages), free(s->page_device), free(s->record), free(s->selected), free(s->selected_count);
    free(s->workspace), free(s->scratch.memory), free(s);
}

/* Stores token rows as the node does: [kv_heads][key_dim] keys, [kv_heads][value_dim] values. */
static inline void session_store(session *s, const float *key, const float *value, uint32_t n)
{
    const kr_attention_shape *h = &s->shape;
    const size_t element = kr_dtype_bytes(h->kv_dtype);

    assert_true(s->view.tokens + n <= s->capacity);
    for (uint32_t i = 0; i < n; i++, s->view.tokens++) {
        s->view.page_count = s->view.tokens / KR_PAGE_TOKENS + 1;
        for (uint32_t g = 0; g < h->kv_heads; g++) {
            const float *k = key + ((size_t)i * h->kv_heads + g) * h->key_dim;
            const bool tiled = s->plan.keys == KR_KEYS_TILED;
            uint8_t *at = (uint8_t *)(uintptr_t)(tiled ? kr_view_key_tile(&s->view, g, s->view.tokens)
                                                       : kr_view_key_row(&s->view, g, s->view.tokens));

            for (uint32_t c = 0; c < h->key_dim; c++)
                kr_from_f32(h->kv_dtype, k + c,
                            at + (tiled ? c * KR_TILE_TOKENS + s->view.tokens % KR_TILE_TOKENS : c) * element,
                            1);
            if (!h->latent)
                kr_from_f32(h->kv_dtype, value + ((size_t)i * h->kv_heads + g) * h->value_dim,
                            (void *)(uintptr_t)kr_view_value_row(&s->view, g, s->view.tokens), h->value_dim);
        }
    }
}

typedef struct {
    const kr_stage *stage;
    const kr_job *job;
    kr_scratch scratch[4]; /* one a worker */
} session_parts;

static inline void session_part(void *context, uint32_t part, uint32_t worker)
{
    const session_parts *p = context;

    p->stage->run(p->job, part, p->scratch[worker]);
}

static inline void session_stage(session *s, const kr_job *job, kr_stage_kind kind)
{
    session_parts p = {.stage = &s->method->stage[kind], .job = job};

    if (p.stage->run == NULL)
        return;
    const uint32_t parts = p.stage->parts(job), workers = s->team ? kr_team_threads(s->team) : 0;
    for (uint32_t w = 0; w < workers; w++)
        p.scratch[w] = (kr_scratch){session_memory(s->scratch.bytes, 0xff), s->scratch.bytes};
    if (workers > 0)
        kr_team_run(s->team, session_part, &p, parts);
    for (uint32_t w = 0; w < workers; w++)
        free(p.scratch[w].memory);
    for (uint32_t i = 0; workers == 0 && i < parts; i++)
        p.stage->run(job, s->reverse ? parts - 1 - i : i, s->scratch);
}

/* New tokens of a session: one decode token or a prefill chunk. */
typedef struct {
    uint32_t n;
    bool is_prefill;
    const float *query, *key, *value;
    const void *index_query, *index_key;
    float *output; /* [n][heads][value_dim] */
} chunk;

/* Stores the chunk and gives the job that its stages run on. */
static inline kr_job session_begin(session *s, chunk c)
{
    const uint64_t first = s->view.tokens;
    kr_view *v = &s->view;

    if (v->boundary_count == 0 || s->boundaries[v->boundary_count - 1].is_prefill != c.is_prefill) {
        assert_true(v->boundary_count < 64);
        s->boundaries[v->boundary_count++] = (kr_boundary){first, c.is_prefill, 0};
    }
    session_store(s, c.key, c.value, c.n);
    return (kr_job){
        .view = &s->view,
        .plan = &s->plan,
        .config = &s->config,
        .ops = s->ops,
        .first_position = first,
        .queries = c.n,
        .is_prefill = c.is_prefill,
        .query = c.query,
        .index_query = c.index_query,
        .index_key = c.index_key,
        .workspace = s->workspace,
        .selected = s->selected,
        .selected_count = s->selected_count,
        .selected_stride = s->stride,
        .output = c.output,
        .nan_count = &s->nan_count,
        .step = s->step,
    };
}

static inline void session_run(session *s, chunk c)
{
    const kr_job job = session_begin(s, c);

    for (int k = 0; k < KR_STAGES; k++)
        session_stage(s, &job, (kr_stage_kind)k);
    s->step += !c.is_prefill;
    s->record->tokens_covered = s->view.tokens;
}

static inline void session_end_prefill(session *s)
{
    kr_err err = {0};

    if (s->method->end_prefill &&
        s->method->end_prefill(&s->view, &s->config, s->ops, s->scratch, &err) != KR_OK)
        fail_msg("end_prefill: %s", err.text);
}

/* Inputs of a whole run, all F32: [tokens][heads or kv_heads][dim]. */
typedef struct {
    uint64_t tokens;
    float *query, *key, *value;
    uint8_t *index_query, *index_key; /* rows of the plan's sizes, or NULL */
} feed;

static inline chunk feed_chunk(const feed *f, const session *s, uint64_t first, uint32_t n, bool prefill,
                               float *output)
{
    const kr_attention_shape *h = &s->shape;

    return (chunk){n,
                   prefill,
                   f->query + first * h->heads * h->key_dim,
                   f->key + first * h->kv_heads * h->key_dim,
                   f->value + first * h->kv_heads * h->value_dim,
                   f->index_query ? f->index_query + first * s->plan.index_query_bytes : NULL,
                   f->index_key ? f->index_key + first * s->plan.index_key_bytes : NULL,
                   output ? output + first * h->heads * h->value_dim : NULL};
}

/* Prefills [0, prompt) in chunks and decodes the rest; output [tokens][heads][value_dim]. */
static inline void feed_run(session *s, const feed *f, uint64_t prompt, uint32_t chunk_tokens, float *output)
{
    for (uint64_t t = 0; t < prompt; t += chunk_tokens)
        session_run(s, feed_chunk(f, s, t, (uint32_t)(prompt - t < chunk_tokens ? prompt - t : chunk_tokens),
                                  true, output));
    session_end_prefill(s);
    for (uint64_t t = prompt; t < f->tokens; t++)
        session_run(s, feed_chunk(f, s, t, 1, false, output));
}

static inline feed feed_random(kr_rng *rng, const kr_attention_shape *h, uint64_t tokens)
{
    feed f = {tokens,
              session_memory(4 * tokens * h->heads * h->key_dim, 0),
              session_memory(4 * tokens * h->kv_heads * h->key_dim, 0),
              session_memory(4 * tokens * h->kv_heads * h->value_dim, 0),
              NULL,
              NULL};

    for (uint64_t i = 0; i < tokens * h->heads * h->key_dim; i++)
        f.query[i] = (float)kr_rng_normal(rng);
    for (uint64_t i = 0; i < tokens * h->kv_heads * h->key_dim; i++)
        f.key[i] = (float)kr_rng_normal(rng);
    for (uint64_t i = 0; i < tokens * h->kv_heads * h->value_dim; i++)
        f.value[i] = (float)kr_rng_normal(rng);
    return f;
}

static inline void feed_free(feed *f)
{
    free(f->query), free(f->key), free(f->value), free(f->index_query), free(f->index_key);
}

/* The closed-form generator of the golden vectors: element i of an array with number s. */
static inline float golden_at(uint32_t i, uint32_t s)
{
    return (float)((int)((37 * i + 11 * s + i * i % 13) % 101) - 50) / 50.0f;
}

static inline void golden_fill(float *out, uint32_t n, uint32_t s)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = golden_at(i, s);
}

/* Within half a unit of the sixth decimal, and F32 rounding. */
static inline void assert_golden(const float *got, const double *want, uint32_t n, const char *what)
{
    for (uint32_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) < 2e-6))
            fail_msg("%s: element %u is %.7g, expected %.7g", what, i, (double)got[i], want[i]);
}

/* Attention of one head in float64 over a list of tokens (NULL: the first count). */
static inline void oracle_attend(const float *query, const float *key, const float *value, uint32_t kv_heads,
                                 uint32_t key_dim, uint32_t value_dim, uint32_t kv_head,
                                 const uint32_t *token, uint32_t count, double scale, double *out)
{
    double m = -HUGE_VAL, l = 0.0, *s = session_memory(sizeof(double) * (count + 1), 0);

    for (uint32_t i = 0; i < count; i++) {
        const float *k = key + ((size_t)(token ? token[i] : i) * kv_heads + kv_head) * key_dim;

        for (uint32_t c = 0; c < key_dim; c++)
            s[i] += (double)query[c] * (double)k[c];
        s[i] *= scale;
        m = fmax(m, s[i]);
    }
    memset(out, 0, sizeof(double) * value_dim);
    for (uint32_t i = 0; i < count; i++) {
        const float *v = value + ((size_t)(token ? token[i] : i) * kv_heads + kv_head) * value_dim;

        l += exp(s[i] - m);
        for (uint32_t d = 0; d < value_dim; d++)
            out[d] += exp(s[i] - m) * (double)v[d];
    }
    for (uint32_t d = 0; d < value_dim; d++)
        out[d] = l > 0.0 ? out[d] / l : 0.0;
    free(s);
}

#endif
