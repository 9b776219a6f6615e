/* LServe: physical pages chosen by the bounds of their logical pages, streaming heads, reuse.
 *
 * Retrieval heads, decode: a logical page of 16 keys scores sum_c max(q_c M_c, q_c m_c) with its
 * elementwise bounds M, m; a physical page of 64 scores as its best logical page; per query head the
 * best min(max(3, budget / 64), pages) - 1 pages of those before the newest, and the newest. A context
 * within the budget is attended whole. The choice is made anew only at positions divisible by
 * `interval`, which divides the page, so a new page always meets a new choice.
 * Streaming heads (all query heads of the KV heads named by a mask): `sink` first and `local` newest tokens.
 *
 * budget defaults to 4096, unit (physical page) to 64. parameter: [0] logical page 16, [1] interval 4,
 * [2], [3] mask of streaming KV heads (bits 0..31, 32..63), [4] sink 128, [5] local 256.
 * Prefill attends densely; the reference limits its streaming heads there too. State: bounds in the
 * page index, and the current choice of each head in the record; it goes on through a second turn.
 * Source: mit-han-lab/omniserve (LServe, MLSys 2025). */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "method/attend_list.h"
#include "method/training_free.h"

enum {
    BUDGET_DEFAULT = 4096,
    UNIT_DEFAULT = 64,
    LOGICAL_DEFAULT = 16,
    INTERVAL_DEFAULT = 4,
    PAGES_LEAST = 3,
    SCORE_PAGES = 64
};

static uint32_t or_default(uint32_t value, uint32_t fallback) { return value != 0 ? value : fallback; }
static uint32_t budget_of(const kr_method_config *c) { return or_default(c->budget, BUDGET_DEFAULT); }
static uint32_t unit_of(const kr_method_config *c) { return or_default(c->unit, UNIT_DEFAULT); }
static uint32_t logical_of(const kr_method_config *c) { return or_default(c->parameter[0], LOGICAL_DEFAULT); }
static uint32_t interval_of(const kr_method_config *c)
{
    return or_default(c->parameter[1], INTERVAL_DEFAULT);
}
static uint32_t sink_of(const kr_method_config *c) { return or_default(c->parameter[4], 128); }
static uint32_t local_of(const kr_method_config *c) { return or_default(c->parameter[5], 256); }
static uint32_t lists_of(const kr_attention_shape *shape) { return shape->heads; }

static bool is_streaming(const kr_method_config *c, uint32_t kv_head)
{
    return kv_head < 64 && (c->parameter[2 + kv_head / 32] >> kv_head % 32 & 1) != 0;
}

static uint32_t pages_kept(const kr_method_config *c)
{
    const uint32_t pages = budget_of(c) / unit_of(c);

    return pages > PAGES_LEAST ? pages : PAGES_LEAST;
}

static kr_status plan_lserve(const kr_method_config *config, const kr_attention_shape *shape,
                             uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    kr_method_plan p;
    const kr_status status = kr_list_plan("lserve", config, shape, 0, &p, err);
    const uint32_t unit = unit_of(config), logical = logical_of(config);
    const uint64_t element = kr_dtype_bytes(shape->kv_dtype);

    (void)context_max;
    if (status != KR_OK)
        return status;
    if (logical > KR_TILE_TOKENS || unit % logical != 0 || KR_PAGE_TOKENS % unit != 0 ||
        KR_TILE_TOKENS % logical != 0)
        return kr_fail(err, KR_E_SHAPE,
                       "lserve: pages of %u in logical pages of %u; a logical page divides %d, a page "
                       "is whole logical pages and divides %d",
                       unit, logical, KR_TILE_TOKENS, KR_PAGE_TOKENS);
    if (unit % interval_of(config) != 0)
        return kr_fail(err, KR_E_SHAPE, "lserve: interval %u must divide the page of %u", interval_of(config),
                       unit);
    if (pages_kept(config) > KR_TOPK_MAX)
        return kr_fail(err, KR_E_LIMIT, "lserve: budget %u, must be at most %u", budget_of(config),
                       KR_TOPK_MAX * unit);
    if (!p.dense) {
        const uint32_t streaming = sink_of(config) + local_of(config), most = pages_kept(config) * unit;

        p.granularity = KR_UNIT_PAGE;
        p.page_index_bytes = (uint32_t)(shape->kv_heads * (KR_PAGE_TOKENS / logical) * 2 * shape->key_dim *
                                        element);
        p.record_body_bytes = sizeof(uint32_t) * shape->heads * (1 + (uint64_t)pages_kept(config));
        p.selected_max = most > budget_of(config) ? most : budget_of(config);
        p.selected_max = p.selected_max > streaming ? p.selected_max : streaming;
        /* Two products, a maximum and an addition a channel, once in `interval` steps. */
        p.cost[KR_STAGE_SCORE].per_context_token = (kr_work){
            .flops = 4 * (uint64_t)shape->heads * shape->key_dim / logical / interval_of(config),
            .read_bytes = 2 * shape->kv_heads * shape->key_dim * element / logical / interval_of(config),
        };
    }
    *plan = p;
    return KR_OK;
}

/* ---- append: bounds of the logical pages, [kv_head][logical page][2][key_dim] ---- */

static uint8_t *bounds_of(const kr_job *job, uint32_t kv_head, uint64_t token)
{
    const kr_attention_shape *s = job->view->shape;
    const uint64_t logical = logical_of(job->config),
                   page = kv_head * (KR_PAGE_TOKENS / logical) + token % KR_PAGE_TOKENS / logical;

    return (uint8_t *)kr_view_index(job->view, token / KR_PAGE_TOKENS) +
           page * 2 * s->key_dim * kr_dtype_bytes(s->kv_dtype);
}

static uint32_t append_parts(const kr_job *job) { return job->plan->dense ? 0 : job->view->shape->kv_heads; }

/* The op takes keys as a tile: each new row becomes column 0 of one. */
static void append_run(const kr_job *job, uint32_t kv_head, kr_scratch scratch)
{
    const kr_attention_shape *s = job->view->shape;
    const size_t element = kr_dtype_bytes(s->kv_dtype);
    uint8_t *tile = scratch.memory;

    for (uint64_t t = job->first_position; t < job->first_position + job->queries; t++) {
        const uint8_t *key = kr_view_key_row(job->view, kv_head, t);

        for (uint32_t c = 0; c < s->key_dim; c++)
            memcpy(tile + c * KR_TILE_TOKENS * element, key + c * element, element);
        job->ops->page_bounds_append(&(kr_page_bounds_args){
            .key_tile = tile,
            .first = 0,
            .count = 1,
            .reset = t % logical_of(job->config) == 0,
            .dim = s->key_dim,
            .type = s->kv_dtype,
            .bounds = bounds_of(job, kv_head, t),
        });
    }
}

/* ---- score and select ----
 * Workspace of a decode row behind the partial results: logical scores [heads][logical pages]. Record:
 * per head a count and the chosen physical pages; count 0 = no choice yet. */

static uint32_t *choice_of(const kr_job *job, uint32_t head)
{
    return (uint32_t *)kr_view_record_body(job->view) + (size_t)head * (1 + pages_kept(job->config));
}

static uint64_t logical_pages(const kr_job *job)
{
    return kr_ceil_div(kr_job_visible(job, 0), logical_of(job->config));
}

static float *scores_of(const kr_job *job, uint32_t head)
{
    return (float *)kr_attend_list_behind(job, &kr_list_tokens) + head * logical_pages(job);
}

static bool takes_all(const kr_job *job) { return kr_job_visible(job, 0) <= budget_of(job->config); }

/* A head chooses at its interval and when it has no choice yet. */
static bool head_chooses(const kr_job *job, uint32_t head)
{
    return job->first_position % interval_of(job->config) == 0 || choice_of(job, head)[0] == 0;
}

/* All retrieval heads choose together. */
static bool chooses(const kr_job *job)
{
    const kr_attention_shape *s = job->view->shape;

    for (uint32_t g = 0; g < s->kv_heads; g++)
        if (!is_streaming(job->config, g))
            return head_chooses(job, g * (s->heads / s->kv_heads));
    return false;
}

static uint32_t score_parts(const kr_job *job)
{
    if (kr_job_is_dense(job) || takes_all(job) || !chooses(job))
        return 0;
    return job->view->shape->kv_heads *
           (uint32_t)kr_ceil_div(kr_job_visible(job, 0), SCORE_PAGES * KR_PAGE_TOKENS);
}

static void score_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    const kr_attention_shape *s = job->view->shape;
    const uint32_t kv_head = part % s->kv_heads, group = s->heads / s->kv_heads,
                   logical = logical_of(job->config);
    const uint64_t most = SCORE_PAGES * KR_PAGE_TOKENS / logical, first = part / s->kv_heads * most;
    const uint64_t left = logical_pages(job) - first, units = left < most ? left : most;
    const void **bounds = scratch.memory;

    if (is_streaming(job->config, kv_head))
        return;
    for (uint64_t u = 0; u < units; u++)
        bounds[u] = bounds_of(job, kv_head, (first + u) * logical);
    job->ops->page_score(&(kr_page_score_args){
        .query = job->query + (size_t)kv_head * group * s->key_dim,
        .bounds = bounds,
        .units = units,
        .dim = s->key_dim,
        .type = s->kv_dtype,
        .score = scores_of(job, kv_head * group) + first,
        .queries = group,
        .query_stride = s->key_dim,
        .score_stride = logical_pages(job),
    });
}

/* Physical scores over the logical ones, in place; the newest page is left out. */
static void choose_pages(const kr_job *job, uint32_t head, void *scratch)
{
    const uint32_t ratio = unit_of(job->config) / logical_of(job->config);
    const uint64_t pages = kr_ceil_div(kr_job_visible(job, 0), unit_of(job->config));
    const uint32_t kept = pages_kept(job->config) < pages ? pages_kept(job->config) : (uint32_t)pages;
    uint32_t *choice = choice_of(job, head);
    float *score = scores_of(job, head);
    uint64_t nan = 0;

    for (uint64_t p = 0; p + 1 < pages; p++) {
        float best = score[p * ratio];

        for (uint32_t l = 1; l < ratio; l++)
            best = best > score[p * ratio + l] || isnan(best) ? best : score[p * ratio + l];
        score[p] = best;
    }
    choice[0] = kept < 2 ? 0
                         : job->ops->select_topk(&(kr_select_topk_args){
                               .score = score,
                               .n = pages - 1,
                               .k = kept - 1,
                               .position = choice + 1,
                               .scratch = scratch,
                               .nan_count = &nan,
                           });
    choice[++choice[0]] = (uint32_t)(pages - 1);
    kr_count_nan(job, nan);
}

static uint32_t select_parts(const kr_job *job) { return kr_job_is_dense(job) ? 0 : job->view->shape->heads; }

static void select_run(const kr_job *job, uint32_t head, kr_scratch scratch)
{
    const kr_list_ref ref = {job, job->view->shape->heads, head, 0, 0};
    const uint64_t visible = kr_job_visible(job, 0), unit = unit_of(job->config);
    const uint32_t sink = sink_of(job->config), local = local_of(job->config), *choice = choice_of(job, head);
    const bool streaming = is_streaming(job->config, kr_list_kv_head(&ref));
    uint32_t *selected = kr_list_selected(&ref), count = 0;

    if (!streaming && !takes_all(job)) {
        if (head_chooses(job, head))
            choose_pages(job, head, scratch.memory);
        for (uint32_t i = 1; i <= choice[0]; i++)
            for (uint64_t t = choice[i] * unit; t < (choice[i] + 1) * unit && t < visible; t++)
                selected[count++] = (uint32_t)t;
    } else {
        for (uint64_t t = 0; t < visible; t++) {
            if (streaming && t == sink && visible - t > local)
                t = visible - local;
            selected[count++] = (uint32_t)t;
        }
    }
    *kr_list_count(&ref) = count;
}

static const kr_list_source *source_of(const kr_job *job)
{
    return kr_job_is_dense(job) ? &kr_list_dense : &kr_list_tokens;
}

KR_LIST_STAGES(source_of, lists_of)

static size_t workspace_bytes(const kr_method_plan *plan, const kr_method_config *config,
                              const kr_attention_shape *shape, uint32_t queries, uint64_t context_max)
{
    (void)queries;
    if (plan->dense)
        return kr_attend_list_workspace(shape, kr_segments(context_max));
    return kr_attend_list_workspace(shape, kr_segments(plan->selected_max)) +
           sizeof(float) * shape->heads * kr_ceil_div(context_max, logical_of(config));
}

static size_t scratch_bytes(const kr_method_plan *plan, const kr_attention_shape *shape, uint64_t context_max)
{
    const size_t select = kr_select_scratch_bytes(context_max, KR_TOPK_MAX);
    const size_t score = sizeof(void *) * SCORE_PAGES * KR_PAGE_TOKENS;
    const size_t most = select > score ? select : score;

    return kr_list_scratch(plan, shape, lists_of(shape), most);
}

/* The next decode step chooses anew. */
static kr_status end_prefill(const kr_view *view, const kr_method_config *config, const kr_ops *ops,
                             kr_scratch scratch, kr_err *err)
{
    (void)ops;
    (void)scratch;
    (void)err;
    for (uint32_t h = 0; h < view->shape->heads && view->record->body_bytes != 0; h++)
        ((uint32_t *)kr_view_record_body(view))[(size_t)h * (1 + pages_kept(config))] = 0;
    return KR_OK;
}

const kr_method kr_method_lserve = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .name = "lserve",
    .summary = "pages by the bounds of their logical pages; streaming heads; choices reused",
    .source = "mit-han-lab/omniserve (LServe, MLSys 2025)",
    .plan = plan_lserve,
    .workspace_bytes = workspace_bytes,
    .lists = lists,
    .scratch_bytes = scratch_bytes,
    .end_prefill = end_prefill,
    .stage =
        {
            [KR_STAGE_APPEND] = {.parts = append_parts, .run = append_run},
            [KR_STAGE_SCORE] = {.parts = score_parts, .run = score_run},
            [KR_STAGE_SELECT] = {.parts = select_parts, .run = select_run},
            [KR_STAGE_ATTEND] = {.parts = attend_parts, .run = attend_run},
            [KR_STAGE_MERGE] = {.parts = merge_parts, .run = merge_run},
        },
};
