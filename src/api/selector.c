/* Selectors: options to a store's geometry, memory for the calls, plans. */
#include "api/inside.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "method/attend_list.h"
#include "method/native.h"
#include "method/outside.h"
#include "method/tiled.h"

enum {
    OPTIONS_BYTES = 136, /* of the structs in the first version of ABI 0 */
    PLAN_BYTES = 72,
    SELECTED_AIM = 64 << 20, /* bytes of selections of a chunk of prompt rows, when one row needs less */
};

_Static_assert(sizeof(karat_selector_options) >= OPTIONS_BYTES, "grows at its end");
_Static_assert(sizeof(karat_selector_plan) >= PLAN_BYTES, "grows at its end");

/* ---- methods ---- */

const char *karat_method_name(uint32_t index)
{
    const kr_method *m = kr_method_at(index);
    return m != NULL ? m->name : NULL;
}

const char *karat_method_summary(uint32_t index)
{
    const kr_method *m = kr_method_at(index);
    return m != NULL ? m->summary : NULL;
}

const char *karat_method_source(uint32_t index)
{
    const kr_method *m = kr_method_at(index);
    return m != NULL ? m->source : NULL;
}

karat_status karat_method_load(const char *path, const char **name, karat_error *error)
{
    const kr_method *method;
    kr_err err = {0};
    kr_status status = path != NULL ? kr_method_load(path, &method, &err)
                                    : kr_fail(&err, KR_E_ARG, "path is null");

    if (status == KR_OK && name != NULL)
        *name = method->name;
    return kr_api_end(status, &err, error);
}

/* ---- options ---- */

static kr_status check_shape(const karat_selector_options *o, kr_err *err)
{
    if (o->dtype != KARAT_F32 && o->dtype != KARAT_F16 && o->dtype != KARAT_BF16)
        return kr_fail(err, KR_E_UNSUPPORTED, "dtype %d; keys and values are F32, F16 or BF16",
                       (int)o->dtype);
    if (o->heads < 1 || o->heads > KR_HEADS_MAX || o->kv_heads < 1 || o->heads % o->kv_heads != 0)
        return kr_fail(err, KR_E_SHAPE, "%u heads over %u kv_heads; 1 to %d heads, a multiple of kv_heads",
                       o->heads, o->kv_heads, KR_HEADS_MAX);
    if (o->key_dim < 1 || o->key_dim > KR_ATTEND_DIM_MAX || o->value_dim > KR_ATTEND_DIM_MAX)
        return kr_fail(err, KR_E_SHAPE, "key_dim %u, value_dim %u; at most %d, key_dim at least 1",
                       o->key_dim, o->value_dim, KR_ATTEND_DIM_MAX);
    if (o->latent > 1 ||
        (o->latent == 1 && (o->kv_heads != 1 || o->value_dim < 1 || o->value_dim > o->key_dim)))
        return kr_fail(err, KR_E_SHAPE,
                       "latent %u with %u kv_heads, value_dim %u of key_dim %u; MLA has one KV head, whose "
                       "row begins with the value",
                       o->latent, o->kv_heads, o->value_dim, o->key_dim);
    if (!(o->softmax_scale >= 0.0f) || !isfinite(o->softmax_scale) || !isfinite(o->threshold))
        return kr_fail(err, KR_E_ARG, "softmax_scale %g, threshold %g; both finite, the scale not negative",
                       (double)o->softmax_scale, (double)o->threshold);
    return KR_OK;
}

static kr_status check_options(karat_selector_options *o, kr_err *err)
{
    enum { SEQUENCES_MAX = 1 << 20 };

    o->layers = o->layers != 0 ? o->layers : 1;
    o->threads = o->threads != 0 ? o->threads : 1;
    o->sequences_max = o->sequences_max != 0 ? o->sequences_max : 1;
    if (o->method == NULL)
        return kr_fail(err, KR_E_ARG, "method is null; \"dense\" attends to everything");
    if (o->layers > KR_LAYERS_MAX || o->threads > KR_TEAM_THREADS_MAX || o->sequences_max > SEQUENCES_MAX)
        return kr_fail(err, KR_E_LIMIT, "%u layers, %u threads, %u sequences; at most %d, %d, %d", o->layers,
                       o->threads, o->sequences_max, KR_LAYERS_MAX, KR_TEAM_THREADS_MAX, SEQUENCES_MAX);
    if (o->tokens_max < 1 || o->tokens_max > KR_CONTEXT_MAX)
        return kr_fail(err, KR_E_LIMIT, "tokens_max %llu; must be 1 to %d", (unsigned long long)o->tokens_max,
                       KR_CONTEXT_MAX);
    for (uint32_t l = 0; o->index_owner != NULL && l < o->layers; l++)
        if (o->index_owner[l] > l)
            return kr_fail(err, KR_E_ARG, "index_owner of layer %u is %u; itself or an earlier one", l,
                           o->index_owner[l]);
    return check_shape(o, err);
}

static kr_status make_geometry(const karat_selector_options *o, kr_geometry *g, kr_err *err)
{
    const kr_method *method;
    kr_method_config config = {.budget = o->budget,
                               .dense_layers = o->dense_layers,
                               .unit = o->unit,
                               .mode = o->mode,
                               .threshold = o->threshold,
                               .seed = o->seed};
    kr_status status = kr_method_find(o->method, &method, err);

    if (status != KR_OK)
        return status;
    if (method->stage[KR_STAGE_ATTEND].run == NULL || method->workspace_bytes == NULL)
        return kr_fail(err, KR_E_UNSUPPORTED, "method %s can be priced, but not run", method->name);
    const bool shares = method == &kr_method_dsa || method == &kr_method_msa;
    for (uint32_t l = 0; o->index_owner != NULL && !shares && l < o->layers; l++)
        if (o->index_owner[l] != l)
            return kr_fail(err, KR_E_UNSUPPORTED,
                           "index_owner of layer %u: each layer of %s has its own index", l, method->name);
    KR_CHECK(strlen(method->name) < sizeof config.name);
    memcpy(config.name, method->name, strlen(method->name));
    memcpy(config.parameter, o->parameter, sizeof config.parameter);
    *g = (kr_geometry){
        .layers = o->layers, .groups = 1, .context_max = o->tokens_max, .tokens_max = KR_API_CHUNK};
    for (uint32_t l = 0; l < o->layers; l++) {
        g->method[l] = method;
        g->config[l] = config;
        /* A plan sees one layer: an indexer's owner reaches it as a parameter. */
        if (shares)
            g->config[l].parameter[KR_NATIVE_OWNER] = o->index_owner != NULL ? o->index_owner[l] : l;
        g->shape[l] = (kr_attention_shape){
            .heads = o->heads,
            .kv_heads = o->kv_heads,
            .key_dim = o->key_dim,
            .value_dim = o->value_dim != 0 ? o->value_dim : 1, /* stays 0 and is never read out */
            .latent = o->latent == 1,
            .kv_dtype = (kr_dtype)o->dtype,
            .softmax_scale = o->softmax_scale > 0.0f ? o->softmax_scale : 1.0f / sqrtf((float)o->key_dim),
            .layer = l,
            .layers = o->layers,
        };
    }
    return kr_geometry_complete(g, err);
}

/* ---- memory ---- */

uint32_t kr_api_lists(const karat_selector *s, uint32_t layer)
{
    const kr_geometry *g = &s->store.geometry;
    const kr_method *m = g->method[layer];

    return g->plan[layer].dense || m->lists == NULL ? 0 : m->lists(&g->config[layer], &g->shape[layer]);
}

uint32_t kr_api_stride(const kr_geometry *g, uint32_t layer)
{
    const kr_method_plan *p = &g->plan[layer];
    const uint64_t most = p->selected_max != 0 && p->selected_max < g->context_max ? p->selected_max
                                                                                   : g->context_max;

    return p->dense ? 0 : (uint32_t)kr_ceil_div(most, p->unit_tokens);
}

/* Bytes of a job's workspace and of a thread's scratch in a layer; plain attention over given lists
 * needs its own. */
static void job_needs(const kr_geometry *g, uint32_t l, size_t *workspace, size_t *scratch)
{
    const kr_method *m = g->method[l];
    const kr_attention_shape *shape = &g->shape[l];
    const bool tiled = g->plan[l].keys == KR_KEYS_TILED;
    const size_t needs[] = {
        m->workspace_bytes(&g->plan[l], &g->config[l], shape, 1, g->context_max),
        m->workspace_bytes(&g->plan[l], &g->config[l], shape, KR_API_CHUNK, g->context_max),
        tiled ? kr_tiled_partial_bytes(shape, g->context_max)
              : kr_attend_list_workspace(shape, kr_segments(g->context_max)),
    };
    const size_t threads[] = {
        m->scratch_bytes != NULL ? m->scratch_bytes(&g->plan[l], shape, g->context_max) : 0,
        tiled ? kr_tiled_scratch_bytes(shape) : kr_attend_list_scratch(shape, 1),
    };

    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++)
        *workspace = needs[i] > *workspace ? needs[i] : *workspace;
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++)
        *scratch = threads[i] > *scratch ? threads[i] : *scratch;
}

static kr_status make_memory(karat_selector *s, kr_err *err)
{
    const kr_geometry *g = &s->store.geometry;
    const kr_attention_shape *shape = &g->shape[0];
    const size_t threads = kr_team_threads(s->team), row = shape->kv_heads * kr_dtype_bytes(shape->kv_dtype);
    size_t workspace = 64, scratch = 64, selected = 0, lists = 0;

    for (uint32_t l = 0; l < g->layers; l++) {
        const size_t n = kr_api_lists(s, l), units = n * kr_api_stride(g, l);

        job_needs(g, l, &workspace, &scratch);
        lists = n > lists ? n : lists;
        selected = units > selected ? units : selected;
    }
    s->chunk = KR_API_CHUNK;
    while (s->chunk > 1 && 4 * selected * s->chunk > SELECTED_AIM)
        s->chunk /= 2;
    s->scratch_bytes = kr_align_up(scratch, 4096);
    const size_t bytes[] = {workspace,
                            s->scratch_bytes * threads,
                            4 * selected * s->chunk,
                            4 * lists * s->chunk,
                            row * shape->key_dim * s->chunk,
                            row * shape->value_dim * s->chunk,
                            4ull * shape->heads * shape->value_dim * s->chunk};
    void *at[sizeof bytes / sizeof bytes[0]];
    size_t all = 0;
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++)
        all += kr_align_up(bytes[i], 4096);
    const kr_status status = kr_arena_init(&s->memory, all, err);
    if (status != KR_OK)
        return status;
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++)
        KR_CHECK((at[i] = kr_arena_take(&s->memory, kr_align_up(bytes[i], 4096))) != NULL);
    s->workspace = at[0], s->scratch = at[1], s->selected = at[2], s->count = at[3];
    s->key = at[4], s->value = at[5], s->output = at[6];
    return KR_OK;
}

typedef struct {
    const karat_selector *selector;
    const kr_stage *stage;
    const kr_job *job;
} stage_run;

static void run_part(void *context, uint32_t part, uint32_t worker)
{
    const stage_run *r = context;
    const size_t bytes = r->selector->scratch_bytes;

    r->stage->run(r->job, part, (kr_scratch){r->selector->scratch + worker * bytes, bytes});
}

void kr_api_run(karat_selector *s, const kr_stage *stage, const kr_job *job)
{
    stage_run run = {s, stage, job};

    if (stage->run != NULL)
        kr_team_run(s->team, run_part, &run, stage->parts(job));
}

/* ---- life ---- */

/* Bytes of the pool; refused beyond the machine's memory, before tables for its pages are made. */
static kr_status pool_bytes(const karat_selector_options *o, const kr_geometry *g, uint64_t *bytes,
                            kr_err *err)
{
    const uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t pages = kr_ceil_div(o->tokens_max, KR_PAGE_TOKENS) * o->sequences_max;
    uint64_t pool = o->memory_bytes;

    if (pool == 0 && !kr_mul_u64(pages, g->page_bytes[0], &pool))
        pool = UINT64_MAX;
    if (pool > machine)
        return kr_fail(
            err, KR_E_MEMORY,
            "%u sequences of %llu tokens, memory_bytes %llu: a pool of %.1f GiB; this machine has %.1f",
            o->sequences_max, (unsigned long long)o->tokens_max, (unsigned long long)o->memory_bytes,
            (double)pool / (1 << 30), (double)machine / (1 << 30));
    *bytes = pool;
    return KR_OK;
}

static kr_status make_store(karat_selector *s, const karat_selector_options *o, kr_err *err)
{
    kr_geometry *g = kr_alloc(sizeof *g);
    kr_store_config config = {.devices = 1, .sessions_max = o->sequences_max, .lazy = true};

    if (g == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a selector's layers");
    kr_status status = make_geometry(o, g, err);
    if (status == KR_OK)
        status = pool_bytes(o, g, &config.pool_bytes, err);
    if (status == KR_OK)
        status = kr_store_init(&s->store, g, &config, err);
    kr_free(g);
    return status;
}

static kr_status create(const karat_selector_options *given, karat_selector **out, kr_err *err)
{
    karat_selector_options o;
    kr_status status = kr_api_struct(given, &o, sizeof o, OPTIONS_BYTES, "karat_selector_options", err);

    if (status == KR_OK && out == NULL)
        status = kr_fail(err, KR_E_ARG, "selector is null");
    if (status == KR_OK)
        status = check_options(&o, err);
    if (status != KR_OK)
        return status;
    karat_selector *s = kr_alloc(sizeof *s);
    if (s == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a selector");
    status = make_store(s, &o, err);
    if (status != KR_OK) {
        kr_free(s);
        return status;
    }
    s->ops = kr_api_ops();
    s->has_values = o.value_dim != 0;
    s->seed = o.seed;
    status = kr_team_create(&s->team, o.threads, NULL, err);
    if (status == KR_OK)
        status = make_memory(s, err);
    if (status != KR_OK) {
        karat_selector_destroy(s);
        return status;
    }
    *out = s;
    return KR_OK;
}

karat_status karat_selector_create(const karat_selector_options *options, karat_selector **selector,
                                   karat_error *error)
{
    kr_err err = {0};
    return kr_api_end(create(options, selector, &err), &err, error);
}

void karat_selector_destroy(karat_selector *s)
{
    if (s == NULL)
        return;
    while (s->sequences != NULL)
        karat_sequence_close(s->sequences);
    kr_team_destroy(s->team);
    kr_arena_free(&s->memory);
    kr_store_free(&s->store);
    kr_free(s);
}

static kr_status plan_of(const karat_selector *s, uint32_t layer, karat_selector_plan *out, kr_err *err)
{
    karat_selector_plan seen;
    kr_status status = kr_api_struct(out, &seen, sizeof seen, PLAN_BYTES, "karat_selector_plan", err);

    if (status == KR_OK && s == NULL)
        status = kr_fail(err, KR_E_ARG, "selector is null");
    if (status == KR_OK && layer >= s->store.geometry.layers)
        status = kr_fail(err, KR_E_ARG, "layer %u of %u", layer, s->store.geometry.layers);
    if (status != KR_OK)
        return status;
    const kr_geometry *g = &s->store.geometry;
    const kr_method_plan *p = &g->plan[layer];
    const karat_selector_plan plan = {
        .struct_size = seen.struct_size,
        .dense = p->dense,
        .lists = kr_api_lists(s, layer),
        .unit_tokens = p->unit_tokens,
        .units_max = kr_api_stride(g, layer),
        .index_owner = p->index_owner,
        .index_query_bytes = p->index_query_bytes,
        .index_key_bytes = p->index_key_bytes,
        .needs_queries = !p->dense && g->method[layer]->watches_prompt,
        .page_tokens = KR_PAGE_TOKENS,
        .page_bytes = g->page_bytes[0],
        .page_kv_bytes = g->layout[layer].index_offset,
        .page_index_bytes = p->page_index_bytes,
        .record_bytes = p->record_body_bytes,
    };
    memcpy(out, &plan, seen.struct_size < sizeof plan ? seen.struct_size : sizeof plan);
    return KR_OK;
}

karat_status karat_selector_plan_of(const karat_selector *selector, uint32_t layer, karat_selector_plan *plan,
                                    karat_error *error)
{
    kr_err err = {0};
    return kr_api_end(plan_of(selector, layer, plan, &err), &err, error);
}
