/* The adapter between karat_method_table and the method table, and the list of those loaded.
 *
 * Record body of a layer that selects: a header that repeats the plan, which end_prefill is not told,
 * then state [kv_heads][state_bytes rounded up to 64]. It is there only for methods with state or an end
 * of the prompt, so that the pages of all others can be shared. Page index: [kv_head][unit][unit_bytes]. */
#include "method/outside.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "karat/method.h"
#include "method/attend_list.h"

_Static_assert(KARAT_PAGE_TOKENS == KR_PAGE_TOKENS && KARAT_METHOD_TOPK_MAX == KR_TOPK_MAX,
               "one number each");

typedef struct {
    kr_method method;
    const karat_method_table *table;
} loaded;

static loaded outside[KR_METHODS_OUTSIDE_MAX];
static uint32_t outside_count;

/* At the start of a record body. */
typedef struct {
    karat_method_plan plan;
    uint64_t reserved[4];
} header;

_Static_assert(sizeof(header) % 64 == 0, "state stays aligned");

const kr_method *kr_method_outside(uint32_t index)
{
    return index < outside_count ? &outside[index].method : NULL;
}

static const karat_method_table *table_named(const kr_method_config *config)
{
    for (uint32_t i = 0; i < outside_count; i++)
        if (strncmp(outside[i].method.name, config->name, sizeof config->name) == 0)
            return outside[i].table;
    KR_CHECK(!"the method was found by this name");
    return NULL;
}

/* ---- karat's structs as the method's ---- */

static karat_method_shape shape_of(const kr_attention_shape *s)
{
    return (karat_method_shape){.heads = s->heads,
                                .kv_heads = s->kv_heads,
                                .key_dim = s->key_dim,
                                .value_dim = s->value_dim,
                                .dtype = (karat_dtype)s->kv_dtype,
                                .softmax_scale = s->softmax_scale,
                                .layer = s->layer,
                                .layers = s->layers};
}

static karat_method_options options_of(const kr_method_config *c)
{
    karat_method_options o = {
        .budget = c->budget, .unit = c->unit, .mode = c->mode, .threshold = c->threshold, .seed = c->seed};

    memcpy(o.parameter, c->parameter, sizeof o.parameter);
    return o;
}

/* The method's answer, out of the plan it became. */
static karat_method_plan plan_of(const kr_method_plan *p, const kr_attention_shape *s)
{
    const uint64_t units = (uint64_t)s->kv_heads * (KR_PAGE_TOKENS / p->unit_tokens);
    const uint64_t body = p->record_body_bytes;

    return (karat_method_plan){.unit_tokens = p->unit_tokens,
                               .unit_bytes = (uint32_t)(p->page_index_bytes / units),
                               .state_bytes = body != 0 ? (body - sizeof(header)) / s->kv_heads : 0,
                               .tokens_max = p->selected_max,
                               .unit_flops = p->cost[KR_STAGE_SELECT].per_unit.flops};
}

/* ---- tools ---- */

/* What a call's `inside` points at. */
typedef struct {
    const kr_ops *ops;
    void *topk_scratch;
    uint64_t units; /* that it is sized for */
    uint64_t nan;
} workshop;

static uint32_t tool_topk(const karat_method_call *call, const float *score, uint64_t n, uint32_t k,
                          uint32_t *position)
{
    workshop *w = call->inside;

    KR_CHECK(k <= KR_TOPK_MAX && n <= w->units);
    if (n == 0 || k == 0)
        return 0;
    return w->ops->select_topk(&(kr_select_topk_args){.score = score,
                                                      .n = n,
                                                      .k = k,
                                                      .position = position,
                                                      .scratch = w->topk_scratch,
                                                      .nan_count = &w->nan});
}

static void tool_dot(const karat_method_call *call, const float *query, uint32_t queries, karat_dtype dtype,
                     const void *row, uint64_t rows, uint32_t dim, float *out, uint64_t out_stride)
{
    const workshop *w = call->inside;

    w->ops->row_dot(&(kr_row_dot_args){.query = query,
                                       .queries = queries,
                                       .query_stride = dim,
                                       .dim = dim,
                                       .type = (kr_dtype)dtype,
                                       .row = row,
                                       .rows = rows,
                                       .row_stride = dim,
                                       .out = out,
                                       .out_stride = out_stride});
}

static void tool_to_f32(karat_dtype dtype, const void *source, float *target, size_t n)
{
    kr_to_f32((kr_dtype)dtype, source, target, n);
}

static void tool_from_f32(karat_dtype dtype, const float *source, void *target, size_t n)
{
    kr_from_f32((kr_dtype)dtype, source, target, n);
}

static const karat_method_tools tools = {tool_topk, tool_dot, tool_to_f32, tool_from_f32};

/* ---- the plan ---- */

#define MEMORY_MAX ((uint64_t)1 << 40) /* bytes of a head's state, and of a call's scratch */

static kr_status check_plan(const char *name, const karat_method_plan *p, const kr_attention_shape *shape,
                            kr_err *err)
{
    const uint32_t unit = p->unit_tokens;
    const uint64_t index_max = UINT32_MAX / KR_PAGE_TOKENS / shape->kv_heads;

    if (unit == 0 || unit > KR_PAGE_TOKENS || (unit & (unit - 1)) != 0)
        return kr_fail(err, KR_E_SHAPE, "%s: units of %u tokens; a power of two from 1 to %d", name, unit,
                       KR_PAGE_TOKENS);
    if (p->unit_bytes > index_max || p->state_bytes > MEMORY_MAX)
        return kr_fail(err, KR_E_LIMIT, "%s: index of %u bytes a unit, state of %llu; at most %llu and %llu",
                       name, p->unit_bytes, (unsigned long long)p->state_bytes, (unsigned long long)index_max,
                       (unsigned long long)MEMORY_MAX);
    if (p->tokens_max % unit != 0 || p->tokens_max > KR_CONTEXT_MAX)
        return kr_fail(err, KR_E_LIMIT, "%s: lists of %llu tokens; whole units of %u, at most %d", name,
                       (unsigned long long)p->tokens_max, unit, KR_CONTEXT_MAX);
    return KR_OK;
}

static kr_status ask_plan(const karat_method_table *t, const kr_method_config *config,
                          const kr_attention_shape *shape, uint64_t context_max, karat_method_plan *answer,
                          kr_err *err)
{
    const karat_method_shape s = shape_of(shape);
    const karat_method_options o = options_of(config);
    karat_error error = {.status = KARAT_E_UNSUPPORTED};

    *answer = (karat_method_plan){0};
    const karat_status status = t->plan(&s, &o, context_max, answer, &error);
    if (status == KARAT_OK)
        return check_plan(t->name, answer, shape, err);
    error.text[sizeof error.text - 1] = '\0';
    for (char *c = error.text; *c != '\0'; c++)
        *c = (unsigned char)*c < ' ' ? ' ' : *c; /* one line stays one */
    return kr_fail(err, status < 0 ? (kr_status)status : KR_E_INTERNAL, "%s: layer %u: %.200s", t->name,
                   shape->layer, error.text[0] != '\0' ? error.text : kr_status_text((kr_status)status));
}

/* Bytes of scratch that the method wants for itself. */
static uint64_t own_scratch(const kr_method_plan *p, const kr_attention_shape *shape, uint64_t context_max)
{
    const karat_method_table *t = p->outside;
    const karat_method_shape s = shape_of(shape);
    const karat_method_plan answer = plan_of(p, shape);

    return t->scratch_bytes != NULL ? t->scratch_bytes(&s, &answer, context_max) : 0;
}

static kr_status plan(const kr_method_config *config, const kr_attention_shape *shape, uint64_t context_max,
                      kr_method_plan *out, kr_err *err)
{
    const karat_method_table *t = table_named(config);
    karat_method_plan answer;
    kr_method_plan p;
    kr_status status = kr_list_plan(t->name, config, shape, 0, &p, err);

    if (status == KR_OK && !p.dense)
        status = ask_plan(t, config, shape, context_max, &answer, err);
    if (status != KR_OK)
        return status;
    if (!p.dense) {
        const uint64_t whole = kr_align_up(context_max, answer.unit_tokens);
        const uint64_t units = (uint64_t)shape->kv_heads * (KR_PAGE_TOKENS / answer.unit_tokens);

        p.outside = t;
        p.granularity = answer.unit_tokens == 1 ? KR_UNIT_TOKEN : KR_UNIT_BLOCK;
        p.unit_tokens = answer.unit_tokens;
        p.page_index_bytes = (uint32_t)(units * answer.unit_bytes);
        if (answer.state_bytes != 0 || t->end_prompt != NULL)
            p.record_body_bytes = sizeof(header) + shape->kv_heads * kr_align_up(answer.state_bytes, 64);
        p.selected_max = (uint32_t)(answer.tokens_max != 0 ? answer.tokens_max : whole);
        p.cost[KR_STAGE_SELECT].per_unit = (kr_work){
            .flops = answer.unit_flops,
            .read_bytes = (uint64_t)shape->kv_heads * answer.unit_bytes,
        };
        const uint64_t scratch = own_scratch(&p, shape, context_max);
        if (scratch > MEMORY_MAX)
            return kr_fail(err, KR_E_LIMIT, "%s: scratch of %llu bytes a call; at most %llu", t->name,
                           (unsigned long long)scratch, (unsigned long long)MEMORY_MAX);
    }
    *out = p;
    return KR_OK;
}

static uint32_t lists_of(const karat_method_table *t, const kr_attention_shape *shape)
{
    return t->lists == KARAT_LIST_FOR_ALL    ? 1
           : t->lists == KARAT_LIST_PER_HEAD ? shape->heads
                                             : shape->kv_heads;
}

static uint32_t lists(const kr_method_config *config, const kr_attention_shape *shape)
{
    return lists_of(table_named(config), shape);
}

static size_t topk_bytes(uint64_t tokens, uint32_t unit_tokens)
{
    return kr_align_up(kr_select_scratch_bytes(kr_ceil_div(tokens, unit_tokens), KR_TOPK_MAX), 64);
}

/* Scratch of a call: that of top-k, then the method's. */
static size_t scratch_bytes(const kr_method_plan *p, const kr_attention_shape *shape, uint64_t context_max)
{
    const size_t attend = kr_attend_list_scratch(shape, 1);

    if (p->outside == NULL)
        return attend;
    const size_t own = kr_align_up(own_scratch(p, shape, context_max), 64);
    const size_t select = topk_bytes(context_max, p->unit_tokens) + own;
    return attend > select ? attend : select;
}

static size_t workspace_bytes(const kr_method_plan *p, const kr_method_config *config,
                              const kr_attention_shape *shape, uint32_t queries, uint64_t context_max)
{
    (void)p;
    (void)config;
    (void)queries;
    /* A prompt row alone attends to everything. */
    return kr_attend_list_workspace(shape, kr_segments(context_max));
}

/* ---- calls ---- */

/* Everything a call shows, in one place that outlives it. */
typedef struct {
    karat_method_shape shape;
    karat_method_options options;
    karat_method_plan plan;
    workshop inside;
    karat_method_call call;
} frame;

static void fill(frame *f, const kr_view *view, const kr_method_config *config,
                 const karat_method_plan *answer, const kr_ops *ops, kr_scratch scratch)
{
    const kr_layout *layout = view->layout;
    const size_t topk = topk_bytes(view->tokens, answer->unit_tokens);

    f->shape = shape_of(view->shape);
    f->options = options_of(config);
    f->plan = *answer;
    f->inside = (workshop){
        .ops = ops, .topk_scratch = scratch.memory, .units = kr_ceil_div(view->tokens, answer->unit_tokens)};
    f->call = (karat_method_call){
        .shape = &f->shape,
        .options = &f->options,
        .plan = &f->plan,
        .tools = &tools,
        .tokens = view->tokens,
        .scratch = (uint8_t *)scratch.memory + topk,
        .seed = view->record->seed,
        .pages = view->pages,
        .key_offset = layout->block_offset + layout->key_offset,
        .value_offset = layout->block_offset + layout->value_offset,
        .index_offset = layout->block_offset + layout->index_offset,
        .state_stride = kr_align_up(answer->state_bytes, 64),
        .state = (uint8_t *)kr_view_record_body(view) + sizeof(header),
        .inside = &f->inside,
    };
}

static uint32_t append_parts(const kr_job *job)
{
    const karat_method_table *t = job->plan->outside;

    return t != NULL && (t->append != NULL || t->end_prompt != NULL) ? job->view->shape->kv_heads : 0;
}

static void append_run(const kr_job *job, uint32_t kv_head, kr_scratch scratch)
{
    const karat_method_table *t = job->plan->outside;
    const karat_method_plan answer = plan_of(job->plan, job->view->shape);
    frame f;

    if (kv_head == 0 && job->plan->record_body_bytes != 0)
        ((header *)kr_view_record_body(job->view))->plan = answer;
    if (t->append == NULL)
        return;
    fill(&f, job->view, job->config, &answer, job->ops, scratch);
    f.call.first = job->first_position;
    f.call.query = t->needs_queries != 0 ? job->query : NULL;
    t->append(&f.call, kv_head);
}

static kr_status end_prefill(const kr_view *view, const kr_method_config *config, const kr_ops *ops,
                             kr_scratch scratch, kr_err *err)
{
    const karat_method_table *t = table_named(config);
    frame f;

    (void)err;
    if (t->end_prompt == NULL || view->record->body_bytes == 0)
        return KR_OK;
    fill(&f, view, config, &((const header *)kr_view_record_body(view))->plan, ops, scratch);
    for (uint32_t h = 0; h < view->shape->kv_heads; h++)
        t->end_prompt(&f.call, h);
    return KR_OK;
}

static uint32_t select_parts(const kr_job *job)
{
    return kr_job_is_dense(job) ? 0 : lists_of(job->plan->outside, job->view->shape);
}

/* Ascending, each unit once, none that does not exist. The scratch of top-k has a bit for each unit. */
static uint32_t tidy(uint32_t *unit, uint32_t count, uint64_t units, uint64_t *bits)
{
    memset(bits, 0, kr_list_bits_bytes(units));
    for (uint32_t i = 0; i < count; i++)
        if (unit[i] < units)
            kr_list_set_bit(bits, unit[i]);
    return kr_list_of_bits(bits, units, unit);
}

static void select_run(const kr_job *job, uint32_t list, kr_scratch scratch)
{
    const karat_method_table *t = job->plan->outside;
    const kr_list_ref ref = {job, lists_of(t, job->view->shape), list, 0, 0};
    const karat_method_plan answer = plan_of(job->plan, job->view->shape);
    const uint64_t visible = kr_job_visible(job, 0);
    frame f;

    fill(&f, job->view, job->config, &answer, job->ops, scratch);
    f.call.first = visible;
    f.call.query = job->query;
    const uint32_t count = t->select(&f.call, list, kr_list_selected(&ref));
    KR_CHECK(count <= job->selected_stride);
    *kr_list_count(&ref) = tidy(kr_list_selected(&ref), count, kr_ceil_div(visible, answer.unit_tokens),
                                scratch.memory);
    kr_count_nan(job, f.inside.nan);
}

static const kr_list_source *source_of(const kr_job *job)
{
    return kr_job_is_dense(job) ? &kr_list_dense : &kr_list_units;
}

static uint32_t attend_lists(const kr_job *job)
{
    const karat_method_table *t = job->plan->outside;

    return t != NULL ? lists_of(t, job->view->shape) : job->view->shape->kv_heads;
}
static uint32_t attend_parts(const kr_job *job)
{
    return kr_attend_list_parts(job, source_of(job), attend_lists(job));
}
static void attend_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    kr_attend_list_run(job, source_of(job), attend_lists(job), part, scratch);
}
static uint32_t merge_parts(const kr_job *job) { return kr_merge_list_parts(job, attend_lists(job)); }
static void merge_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    (void)scratch;
    kr_merge_list_run(job, source_of(job), attend_lists(job), part);
}

/* ---- loading ---- */

bool kr_method_is_file(const char *name)
{
    const size_t n = strlen(name);
    return strchr(name, '/') != NULL || (n > 3 && strcmp(name + n - 3, ".so") == 0);
}

static kr_status check_table(const char *path, const karat_method_table *t, kr_err *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-_";
    const kr_method *other;

    if (t->abi != KARAT_METHOD_ABI)
        return kr_fail(err, KR_E_VERSION, "%.150s: method ABI %u; this karat takes %d: compile it again",
                       path, t->abi, KARAT_METHOD_ABI);
    if (t->name == NULL || t->summary == NULL || t->plan == NULL || t->select == NULL ||
        (unsigned)t->lists > KARAT_LIST_FOR_ALL)
        return kr_fail(err, KR_E_FORMAT, "%.150s: karat_method lacks a name, summary, lists, plan or select",
                       path);
    const size_t n = strlen(t->name);
    if (n == 0 || n > 15 || strspn(t->name, letters) != n)
        return kr_fail(err, KR_E_FORMAT, "%.120s: method name \"%.20s\"; 1 to 15 of a-z, 0-9, '-' and '_'",
                       path, t->name);
    if (strcmp(t->name, "native") == 0 || kr_method_find(t->name, &other, NULL) == KR_OK)
        return kr_fail(err, KR_E_EXISTS, "%.150s: there is a method \"%s\" already", path, t->name);
    return KR_OK;
}

static void enter(loaded *l, const karat_method_table *t)
{
    *l = (loaded){
        .table = t,
        .method =
            {
                .abi = KR_METHOD_ABI,
                .modes = UINT32_MAX, /* its own business */
                .version = t->version,
                .name = t->name,
                .summary = t->summary,
                .source = t->source != NULL ? t->source : "outside karat's tree",
                .plan = plan,
                .workspace_bytes = workspace_bytes,
                .lists = lists,
                .scratch_bytes = scratch_bytes,
                .end_prefill = end_prefill,
                .watches_prompt = t->needs_queries != 0,
                .stage =
                    {
                        [KR_STAGE_APPEND] = {.parts = append_parts, .run = append_run},
                        [KR_STAGE_SELECT] = {.parts = select_parts, .run = select_run},
                        [KR_STAGE_ATTEND] = {.parts = attend_parts, .run = attend_run},
                        [KR_STAGE_MERGE] = {.parts = merge_parts, .run = merge_run},
                    },
            },
    };
}

kr_status kr_method_load(const char *path, const kr_method **method, kr_err *err)
{
    char file[4096];
    const int length = snprintf(file, sizeof file, "%s%s", strchr(path, '/') != NULL ? "" : "./", path);

    if (length < 0 || (size_t)length >= sizeof file)
        return kr_fail(err, KR_E_LIMIT, "method file: a name of more than %zu bytes", sizeof file - 3);
    void *object = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (object == NULL)
        return kr_fail(err, KR_E_NOT_FOUND, "cannot load a method: %.220s", dlerror());
    const karat_method_table *t = dlsym(object, "karat_method");
    kr_status status = KR_OK;
    if (t == NULL)
        status = kr_fail(err, KR_E_NOT_FOUND, "%.150s has no symbol karat_method: it is no method of karat",
                         file);
    for (uint32_t i = 0; i < outside_count && t != NULL; i++)
        if (outside[i].table == t) {
            *method = &outside[i].method;
            (void)dlclose(object); /* one reference is enough */
            return KR_OK;
        }
    if (status == KR_OK)
        status = check_table(file, t, err);
    if (status == KR_OK && outside_count == KR_METHODS_OUTSIDE_MAX)
        status = kr_fail(err, KR_E_LIMIT, "%.150s: %d methods are loaded already", file,
                         KR_METHODS_OUTSIDE_MAX);
    if (status != KR_OK) {
        (void)dlclose(object);
        return status;
    }
    enter(&outside[outside_count], t);
    *method = &outside[outside_count++].method;
    return KR_OK;
}

kr_status kr_method_open(const char *name, const kr_method **method, kr_err *err)
{
    return kr_method_is_file(name) ? kr_method_load(name, method, err) : kr_method_find(name, method, err);
}
