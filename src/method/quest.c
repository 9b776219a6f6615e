/* Quest: per (KV head, page) the elementwise max and min of the keys; a page's score is an upper
 * bound of q.k over it; each query head attends to its own best pages.
 *
 * Source: mit-han-lab/Quest. evaluation/quest_attention.py is mode KR_QUEST_EVAL (default): k =
 * min(max(3, budget / page), pages), the newest page competes. quest/utils/controller.py is mode
 * KR_QUEST_KERNEL: the newest page is left out of the scoring and always attended, with
 * budget / page - 1 of the others; everything when budget / page pages suffice. Defaults: page (unit)
 * 16 tokens, budget 1024, first 2 layers dense, prefill dense. Layers with a sliding window stay
 * dense: the window bounds their cost already.
 *
 * Page index of a cache page: [kv_head][unit][2][key_dim] of the KV type, max first. */
#include "method/quest.h"

#include "method/cost.h"
#include "method/tiled.h"

enum {
    UNIT_DEFAULT = 16,
    BUDGET_DEFAULT = 1024,
    DENSE_LAYERS_DEFAULT = 2,
    EVAL_UNITS_MIN = 3,
    SCORE_PAGES = 8
};

static uint32_t unit_of(const kr_method_config *c) { return c->unit != 0 ? c->unit : UNIT_DEFAULT; }
static uint32_t mode_of(const kr_method_config *c) { return c->mode != 0 ? c->mode : KR_QUEST_EVAL; }

/* Pages a query head attends to when there are enough. */
static uint32_t units_kept(const kr_method_config *c)
{
    const uint32_t units = (c->budget != 0 ? c->budget : BUDGET_DEFAULT) / unit_of(c);

    if (mode_of(c) == KR_QUEST_EVAL)
        return units > EVAL_UNITS_MIN ? units : EVAL_UNITS_MIN;
    return units;
}

static kr_status check(const kr_method_config *c, const kr_attention_shape *s, kr_err *err)
{
    const uint32_t unit = unit_of(c), budget = c->budget != 0 ? c->budget : BUDGET_DEFAULT;

    if (s->latent)
        return kr_fail(err, KR_E_UNSUPPORTED, "quest: layer %u is MLA; its keys have no per-head bounds",
                       s->layer);
    if (s->kv_heads == 0 || s->heads % s->kv_heads != 0)
        return kr_fail(err, KR_E_SHAPE, "quest: %u heads do not divide into %u KV heads", s->heads,
                       s->kv_heads);
    if (unit < 4 || unit > KR_PAGE_TOKENS || (unit & (unit - 1)) != 0)
        return kr_fail(err, KR_E_SHAPE, "quest: pages of %u tokens; must be a power of two from 4 to %d",
                       unit, KR_PAGE_TOKENS);
    if (c->mode > KR_QUEST_KERNEL)
        return kr_fail(err, KR_E_UNSUPPORTED, "quest: mode %u; there are 1 (eval) and 2 (kernel)", c->mode);
    if (budget < unit || units_kept(c) > KR_TOPK_MAX)
        return kr_fail(err, KR_E_LIMIT, "quest: budget %u; must be %u to %u tokens", budget, unit,
                       unit * (uint32_t)KR_TOPK_MAX);
    return KR_OK;
}

static void price(const kr_method_config *c, const kr_attention_shape *s, kr_method_plan *p)
{
    const uint64_t element = kr_dtype_bytes(s->kv_dtype), channels = 2 * (uint64_t)s->kv_heads * s->key_dim,
                   bounds = channels * element;

    /* Every new key is compared with both bounds, which are read and written. */
    p->cost[KR_STAGE_APPEND].fixed.flops += channels;
    p->cost[KR_STAGE_APPEND].fixed.read_bytes += bounds;
    p->cost[KR_STAGE_APPEND].fixed.write_bytes += bounds;
    /* Two products, a maximum and an addition a channel and query head; bounds read once. */
    p->cost[KR_STAGE_SCORE].per_unit = (kr_work){
        .flops = 4 * (uint64_t)s->heads * s->key_dim,
        .read_bytes = bounds,
        .write_bytes = s->heads * sizeof(float),
    };
    p->cost[KR_STAGE_SELECT].per_unit = (kr_work){.flops = s->heads, .read_bytes = s->heads * sizeof(float)};
    p->cost[KR_STAGE_SELECT].fixed.write_bytes = (uint64_t)s->heads * units_kept(c) * sizeof(uint32_t);
    /* Each query head reads its own pages: nothing is shared inside a group. */
    p->cost[KR_STAGE_ATTEND].per_attended_token.read_bytes = s->heads *
                                                             ((uint64_t)s->key_dim + s->value_dim) * element;
}

static kr_status plan_quest(const kr_method_config *config, const kr_attention_shape *shape,
                            uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    const uint32_t dense_layers = config->dense_layers == UINT32_MAX ? (uint32_t)DENSE_LAYERS_DEFAULT
                                                                     : config->dense_layers;
    const kr_status status = check(config, shape, err);
    kr_method_plan p = {
        .keys = KR_KEYS_TILED,
        .granularity = KR_UNIT_PAGE,
        .unit_tokens = unit_of(config),
        .dense = shape->layer < dense_layers || shape->window != 0,
        .owns_index = true,
        .index_owner = (uint16_t)shape->layer,
    };

    (void)context_max;
    if (status != KR_OK)
        return status;
    p.cost[KR_STAGE_APPEND].fixed = kr_append_row_work(shape);
    p.cost[KR_STAGE_ATTEND].per_attended_token = kr_attend_token_work(shape);
    if (!p.dense) {
        p.page_index_bytes = (uint32_t)(2ull * shape->kv_heads * (KR_PAGE_TOKENS / p.unit_tokens) *
                                        shape->key_dim * kr_dtype_bytes(shape->kv_dtype));
        p.selected_max = units_kept(config) * p.unit_tokens;
        price(config, shape, &p);
    }
    *plan = p;
    return KR_OK;
}

/* ---- what a job needs ---- */

static bool attends_densely(const kr_job *job) { return job->plan->dense || job->is_prefill; }

static uint64_t units_in(const kr_job *job) { return kr_ceil_div(job->view->tokens, job->plan->unit_tokens); }

/* Enough budget for every page: nothing to score. */
static bool covers(const kr_job *job) { return units_in(job) <= units_kept(job->config); }

/* Units that compete for a place: all, or all but the newest. */
static uint64_t units_scored(const kr_job *job)
{
    return units_in(job) - (mode_of(job->config) == KR_QUEST_KERNEL);
}

/* Workspace of a decode row: scores [heads][units rounded up to 16], then the partials. */
static uint64_t score_stride(uint64_t tokens, uint32_t unit)
{
    return kr_align_up(kr_ceil_div(tokens, unit), 16);
}

static float *scores_of(const kr_job *job, uint32_t head)
{
    return (float *)job->workspace + head * score_stride(job->view->tokens, job->plan->unit_tokens);
}

static void *partials_of(const kr_job *job) { return scores_of(job, job->view->shape->heads); }

static size_t workspace_bytes(const kr_method_plan *plan, const kr_method_config *config,
                              const kr_attention_shape *shape, uint32_t queries, uint64_t context_max)
{
    (void)config;
    if (queries != 1)
        return 0;
    if (plan->dense)
        return kr_tiled_partial_bytes(shape, context_max);
    /* A prefill row of one token attends densely, so the partials must do for the whole context. */
    return sizeof(float) * shape->heads * score_stride(context_max, plan->unit_tokens) +
           kr_tiled_partial_bytes(shape, context_max);
}

static uint32_t lists(const kr_method_config *config, const kr_attention_shape *shape)
{
    (void)config;
    return shape->heads;
}

static size_t scratch_bytes(const kr_method_plan *plan, const kr_attention_shape *shape, uint64_t context_max)
{
    const size_t attend = kr_tiled_scratch_bytes(shape);
    const size_t pointers = sizeof(void *) * SCORE_PAGES * (KR_PAGE_TOKENS / plan->unit_tokens);
    size_t most = attend > pointers ? attend : pointers;

    if (!plan->dense) {
        const size_t select = kr_select_scratch_bytes(kr_ceil_div(context_max, plan->unit_tokens),
                                                      plan->selected_max / plan->unit_tokens);
        most = most > select ? most : select;
    }
    return most;
}

static uint8_t *bounds_of(const kr_view *v, uint32_t unit_tokens, uint32_t kv_head, uint64_t token)
{
    const uint64_t units = KR_PAGE_TOKENS / unit_tokens;
    const uint64_t unit = kv_head * units + token % KR_PAGE_TOKENS / unit_tokens;

    return (uint8_t *)kr_view_index(v, token / KR_PAGE_TOKENS) +
           unit * 2 * v->shape->key_dim * kr_dtype_bytes(v->shape->kv_dtype);
}

/* ---- append: one part a cache page that gets tokens ---- */

static uint32_t append_parts(const kr_job *job)
{
    if (job->plan->dense)
        return 0;
    return (uint32_t)((job->first_position + job->queries - 1) / KR_PAGE_TOKENS -
                      job->first_position / KR_PAGE_TOKENS + 1);
}

static uint32_t append_device(const kr_job *job, uint32_t part)
{
    return job->view->page_device[job->first_position / KR_PAGE_TOKENS + part];
}

/* Extends the bounds of one KV head by tokens [token, end), all of one tile and one unit. */
static void extend_bounds(const kr_job *job, uint32_t kv_head, uint64_t token, uint64_t end)
{
    const kr_attention_shape *s = job->view->shape;

    job->ops->page_bounds_append(&(kr_page_bounds_args){
        .key_tile = kr_view_key_tile(job->view, kv_head, token),
        .first = (uint32_t)(token % KR_TILE_TOKENS),
        .count = (uint32_t)(end - token),
        .reset = token % job->plan->unit_tokens == 0,
        .dim = s->key_dim,
        .type = s->kv_dtype,
        .bounds = bounds_of(job->view, job->plan->unit_tokens, kv_head, token),
    });
}

static void append_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    const uint32_t unit = job->plan->unit_tokens, step = unit < KR_TILE_TOKENS ? unit : KR_TILE_TOKENS;
    const uint64_t page_first = (job->first_position / KR_PAGE_TOKENS + part) * KR_PAGE_TOKENS;
    const uint64_t begin = job->first_position > page_first ? job->first_position : page_first;
    const uint64_t last = job->first_position + job->queries, page_end = page_first + KR_PAGE_TOKENS;
    const uint64_t end = last < page_end ? last : page_end;

    (void)scratch;
    for (uint32_t h = 0; h < job->view->shape->kv_heads; h++)
        for (uint64_t t = begin, next; t < end; t = next) {
            next = (t / step + 1) * step;
            next = next < end ? next : end;
            extend_bounds(job, h, t, next);
        }
}

/* ---- score: one part a KV head and SCORE_PAGES cache pages ---- */

static uint32_t score_parts(const kr_job *job)
{
    if (attends_densely(job) || covers(job))
        return 0;
    return job->view->shape->kv_heads *
           (uint32_t)kr_ceil_div(units_scored(job) * job->plan->unit_tokens, SCORE_PAGES * KR_PAGE_TOKENS);
}

static uint32_t score_device(const kr_job *job, uint32_t part)
{
    const kr_view *v = job->view;
    const uint64_t first = (uint64_t)(part / v->shape->kv_heads) * SCORE_PAGES;

    for (uint64_t p = first; p < first + SCORE_PAGES && p < v->page_count; p++)
        if (v->page_device[p] != v->page_device[first])
            return v->home;
    return v->page_device[first];
}

static void score_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    const kr_attention_shape *s = job->view->shape;
    const uint32_t unit = job->plan->unit_tokens, kv_head = part % s->kv_heads,
                   group = s->heads / s->kv_heads;
    const uint64_t most = SCORE_PAGES * KR_PAGE_TOKENS / unit, first = part / s->kv_heads * most;
    const uint64_t left = units_scored(job) - first, units = left < most ? left : most;
    const void **bounds = scratch.memory;

    for (uint64_t u = 0; u < units; u++)
        bounds[u] = bounds_of(job->view, unit, kv_head, (first + u) * unit);
    job->ops->page_score(&(kr_page_score_args){
        .query = job->query + (size_t)kv_head * group * s->key_dim,
        .bounds = bounds,
        .units = units,
        .dim = s->key_dim,
        .type = s->kv_dtype,
        .score = scores_of(job, kv_head * group) + first,
        .queries = group,
        .query_stride = s->key_dim,
        .score_stride = score_stride(job->view->tokens, unit),
    });
}

/* ---- select: one part a query head ---- */

static uint32_t select_parts(const kr_job *job) { return attends_densely(job) ? 0 : job->view->shape->heads; }

static void select_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    const uint64_t units = units_in(job);
    uint32_t *selected = job->selected + (size_t)part * job->selected_stride, count = 0;
    uint64_t nan = 0;

    if (covers(job)) {
        for (; count < units; count++)
            selected[count] = count;
    } else {
        const bool newest = mode_of(job->config) == KR_QUEST_KERNEL;

        if (units_kept(job->config) > newest)
            count = job->ops->select_topk(&(kr_select_topk_args){
                .score = scores_of(job, part),
                .n = units_scored(job),
                .k = units_kept(job->config) - newest,
                .position = selected,
                .scratch = scratch.memory,
                .nan_count = &nan,
            });
        if (newest)
            selected[count++] = (uint32_t)(units - 1);
        if (nan != 0)
            __atomic_fetch_add(job->nan_count, nan, __ATOMIC_RELAXED);
    }
    job->selected_count[part] = count;
}

/* ---- attend and merge ---- */

static kr_unit_list list_of(const kr_job *job, uint32_t head)
{
    return (kr_unit_list){job->selected + (size_t)head * job->selected_stride, job->selected_count[head],
                          job->plan->unit_tokens};
}

/* Segments of the longest list possible: lists are cut to the same number of parts. */
static uint32_t list_segments(const kr_job *job)
{
    const uint64_t most = job->plan->selected_max < job->view->tokens ? job->plan->selected_max
                                                                      : job->view->tokens;
    return kr_segments(most);
}

static uint32_t attend_parts(const kr_job *job)
{
    return attends_densely(job) ? kr_tiled_dense_parts(job) : job->view->shape->heads * list_segments(job);
}

/* A list that NaN scores left short may have fewer segments than parts. */
static bool has_segment(const kr_job *job, uint32_t head, uint32_t segment)
{
    return segment < kr_segments(kr_unit_list_positions(job->view, list_of(job, head)));
}

static uint32_t attend_device(const kr_job *job, uint32_t part)
{
    const uint32_t head = part % job->view->shape->heads, segment = part / job->view->shape->heads;

    if (attends_densely(job))
        return kr_tiled_dense_device(job, part);
    return has_segment(job, head, segment) ? kr_tiled_list_device(job->view, list_of(job, head), segment)
                                           : job->view->home;
}

static void attend_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    const uint32_t head = part % job->view->shape->heads, segment = part / job->view->shape->heads;

    if (attends_densely(job))
        kr_tiled_dense_run(job, part, job->plan->dense ? job->workspace : partials_of(job), scratch);
    else if (has_segment(job, head, segment))
        kr_tiled_list_run(job, list_of(job, head), head, segment, partials_of(job), scratch);
}

static uint32_t merge_parts(const kr_job *job) { return job->queries == 1; }

static void merge_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    void *partials = job->plan->dense ? job->workspace : partials_of(job);

    (void)part;
    (void)scratch;
    for (uint32_t h = 0; h < job->view->shape->heads; h++)
        kr_tiled_merge(job, h,
                       attends_densely(job) ? kr_tiled_dense_segments(job)
                                            : kr_segments(kr_unit_list_positions(job->view, list_of(job, h))),
                       partials);
}

const kr_method kr_method_quest = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .modes = KR_QUEST_KERNEL,
    .name = "quest",
    .summary = "each query head attends to the pages with the largest bound of q.k",
    .source = "mit-han-lab/Quest (ICML 2024)",
    .plan = plan_quest,
    .workspace_bytes = workspace_bytes,
    .lists = lists,
    .scratch_bytes = scratch_bytes,
    .stage =
        {
            [KR_STAGE_APPEND] = {append_parts, append_run, append_device},
            [KR_STAGE_SCORE] = {score_parts, score_run, score_device},
            [KR_STAGE_SELECT] = {select_parts, select_run, NULL},
            [KR_STAGE_ATTEND] = {attend_parts, attend_run, attend_device},
            [KR_STAGE_MERGE] = {merge_parts, merge_run, NULL},
        },
};
