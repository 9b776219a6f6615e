/* SparQ: approximate scores from the r largest query channels, exact attention over the best k
 * tokens, and the mean value for the weight of the rest.
 *
 * Decode: channels i1 = the r with the largest sum over the group of |q_c|; a_h = q_h[i1].K[i1] /
 * sqrt(d * |q_h[i1]|_1 / |q_h|_1); s_h = softmax(a_h). The group takes the current token, its
 * local_k predecessors, and the largest sums over heads of a_h, k + 1 in all. With alpha_h the sum
 * of s_h over the taken tokens, y_h = alpha_h * attention over them + (1 - alpha_h) * mean(V).
 * budget = k (default 128); parameter[0] = r (default 32), [1] = local_k (default 16).
 *
 * State: keys a second time, channel-major per page, so that channels are read contiguously; the
 * running mean of values in the index record (mean += (v - mean) / n, F32, in token order). Both grow
 * token by token, whatever the chunking, and a second turn goes on. Prefill attends densely.
 * Source: graphcore-research/llm-inference-research, methods/ann_attention.py (ICML 2024). */
#include <math.h>
#include <string.h>

#include "method/attend_list.h"
#include "method/cost.h"
#include "method/training_free.h"

enum { K_DEFAULT = 128, RANK_DEFAULT = 32, LOCAL_DEFAULT = 16, SCORE_PAGES = 64 };

static uint32_t or_default(uint32_t value, uint32_t fallback) { return value != 0 ? value : fallback; }
static uint32_t kept(const kr_method_config *c) { return or_default(c->budget, K_DEFAULT) + 1; }
static uint32_t rank_of(const kr_method_config *c) { return or_default(c->parameter[0], RANK_DEFAULT); }
static uint32_t local_of(const kr_method_config *c) { return or_default(c->parameter[1], LOCAL_DEFAULT); }
static uint32_t lists_of(const kr_attention_shape *shape) { return shape->kv_heads; }
static uint32_t group_of(const kr_attention_shape *shape) { return shape->heads / shape->kv_heads; }

static kr_status plan_sparq(const kr_method_config *config, const kr_attention_shape *shape,
                            uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    kr_method_plan p;
    const kr_status status = kr_list_plan("sparq", config, shape, 0, &p, err);
    const uint64_t element = kr_dtype_bytes(shape->kv_dtype), rank = rank_of(config);

    (void)context_max;
    if (status != KR_OK)
        return status;
    if (rank > shape->key_dim || rank > KR_CHANNELS_MAX || group_of(shape) > KR_CHANNEL_QUERIES_MAX)
        return kr_fail(err, KR_E_LIMIT, "sparq: rank %u, must be at most the head width %u", rank_of(config),
                       shape->key_dim);
    if (kept(config) > KR_TOPK_MAX || local_of(config) + 1 > kept(config))
        return kr_fail(err, KR_E_LIMIT, "sparq: budget %u, must be from its %u local tokens to %d",
                       kept(config) - 1, local_of(config), KR_TOPK_MAX - 1);
    if (!p.dense) {
        p.page_index_bytes = (uint32_t)(shape->kv_heads * shape->key_dim * KR_PAGE_TOKENS * element);
        p.record_body_bytes = sizeof(float) * shape->kv_heads * shape->value_dim;
        p.selected_max = kept(config);
        p.cost[KR_STAGE_APPEND].fixed.write_bytes += shape->kv_heads * shape->key_dim * element;
        p.cost[KR_STAGE_SCORE].per_context_token = (kr_work){
            .flops = 2 * rank * shape->heads,
            .read_bytes = rank * shape->kv_heads * element,
            .write_bytes = shape->heads * sizeof(float),
        };
        p.cost[KR_STAGE_SELECT].per_context_token = (kr_work){
            .flops = 4 * (uint64_t)shape->heads,
            .read_bytes = 2 * shape->heads * sizeof(float),
        };
    }
    *plan = p;
    return KR_OK;
}

/* ---- append ---- */

static uint8_t *channel_major(const kr_job *job, uint32_t kv_head, uint64_t page)
{
    const kr_attention_shape *s = job->view->shape;

    return (uint8_t *)kr_view_index(job->view, page) +
           (size_t)kv_head * s->key_dim * KR_PAGE_TOKENS * kr_dtype_bytes(s->kv_dtype);
}

static float *mean_value(const kr_job *job, uint32_t kv_head)
{
    return (float *)kr_view_record_body(job->view) + (size_t)kv_head * job->view->shape->value_dim;
}

static uint32_t append_parts(const kr_job *job) { return job->plan->dense ? 0 : job->view->shape->kv_heads; }

static void append_run(const kr_job *job, uint32_t kv_head, kr_scratch scratch)
{
    const kr_attention_shape *s = job->view->shape;
    const size_t element = kr_dtype_bytes(s->kv_dtype);
    float *mean = mean_value(job, kv_head), value[KR_ATTEND_DIM_MAX];

    (void)scratch;
    for (uint64_t t = job->first_position; t < job->first_position + job->queries; t++) {
        const uint8_t *key = kr_view_key_row(job->view, kv_head, t);
        uint8_t *out = channel_major(job, kv_head, t / KR_PAGE_TOKENS) + t % KR_PAGE_TOKENS * element;

        for (uint32_t c = 0; c < s->key_dim; c++)
            memcpy(out + c * KR_PAGE_TOKENS * element, key + c * element, element);
        kr_to_f32(s->kv_dtype, kr_view_value_row(job->view, kv_head, t), value, s->value_dim);
        for (uint32_t d = 0; d < s->value_dim; d++)
            mean[d] += (value[d] - mean[d]) / (float)(t + 1);
    }
}

/* ---- score ----
 * Workspace of a decode row behind the partial results: alpha [heads], group sums [kv_heads][tokens],
 * scores [heads][tokens]. */

static float *alpha_of(const kr_job *job) { return kr_attend_list_behind(job, &kr_list_tokens); }
static float *sums_of(const kr_job *job, uint32_t kv_head)
{
    return alpha_of(job) + job->view->shape->heads + kv_head * kr_job_visible(job, 0);
}
static float *scores_of(const kr_job *job, uint32_t head)
{
    return sums_of(job, job->view->shape->kv_heads) + head * kr_job_visible(job, 0);
}

/* The rank channels with the largest sum of |q| over the group, ascending; lower channels win ties. */
static void pick_channels(const kr_job *job, uint32_t kv_head, uint32_t *channel)
{
    const kr_attention_shape *s = job->view->shape;
    float size[KR_ATTEND_DIM_MAX];
    bool taken[KR_ATTEND_DIM_MAX] = {false};

    for (uint32_t c = 0; c < s->key_dim; c++) {
        size[c] = 0.0f;
        for (uint32_t h = kv_head * group_of(s); h < (kv_head + 1) * group_of(s); h++)
            size[c] += fabsf(job->query[(size_t)h * s->key_dim + c]);
    }
    for (uint32_t j = 0; j < rank_of(job->config); j++) {
        uint32_t best = UINT32_MAX;

        for (uint32_t c = 0; c < s->key_dim; c++)
            if (!taken[c] && (best == UINT32_MAX || size[c] > size[best]))
                best = c;
        taken[best] = true;
    }
    for (uint32_t c = 0; c < s->key_dim; c++)
        if (taken[c])
            *channel++ = c;
}

/* Query of head on the picked channels, divided by its scale. */
static void pick_query(const kr_job *job, uint32_t head, const uint32_t *channel, float *out)
{
    const kr_attention_shape *s = job->view->shape;
    const float *query = job->query + (size_t)head * s->key_dim;
    float all = 0.0f, picked = 0.0f;

    for (uint32_t c = 0; c < s->key_dim; c++)
        all += fabsf(query[c]);
    for (uint32_t j = 0; j < rank_of(job->config); j++)
        picked += fabsf(query[channel[j]]);
    const float scale = sqrtf((float)s->key_dim * (all > 0.0f ? picked / all : 1.0f));

    for (uint32_t j = 0; j < rank_of(job->config); j++)
        out[j] = scale > 0.0f ? query[channel[j]] / scale : 0.0f;
}

static uint32_t score_parts(const kr_job *job)
{
    if (kr_job_is_dense(job))
        return 0;
    return lists_of(job->view->shape) *
           (uint32_t)kr_ceil_div(kr_job_visible(job, 0), SCORE_PAGES * KR_PAGE_TOKENS);
}

static void score_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    const kr_attention_shape *s = job->view->shape;
    const uint32_t kv_head = part % s->kv_heads, first_head = kv_head * group_of(s),
                   rank = rank_of(job->config);
    const uint64_t tokens = kr_job_visible(job, 0), first = (uint64_t)(part / s->kv_heads) * SCORE_PAGES;
    uint32_t channel[KR_CHANNELS_MAX];
    float *query = scratch.memory;

    pick_channels(job, kv_head, channel);
    for (uint32_t h = 0; h < group_of(s); h++)
        pick_query(job, first_head + h, channel, query + (size_t)h * rank);
    for (uint64_t page = first; page < first + SCORE_PAGES && page * KR_PAGE_TOKENS < tokens; page++) {
        const uint64_t left = tokens - page * KR_PAGE_TOKENS;

        job->ops->channel_dot(&(kr_channel_dot_args){
            .query = query,
            .channel = channel,
            .queries = group_of(s),
            .channels = rank,
            .type = s->kv_dtype,
            .key = channel_major(job, kv_head, page),
            .key_stride = KR_PAGE_TOKENS,
            .tokens = left < KR_PAGE_TOKENS ? (uint32_t)left : KR_PAGE_TOKENS,
            .score = scores_of(job, first_head) + page * KR_PAGE_TOKENS,
            .score_stride = tokens,
        });
    }
}

/* ---- select ---- */

static uint32_t select_parts(const kr_job *job)
{
    return kr_job_is_dense(job) ? 0 : job->view->shape->kv_heads;
}

/* Share of head's approximate softmax that falls on the taken tokens; uses its scores up. */
static float taken_share(const kr_job *job, uint32_t head, const uint32_t *taken, uint32_t count)
{
    float *score = scores_of(job, head), share = 0.0f;

    job->ops->softmax(
        &(kr_softmax_args){.score = score, .n = kr_job_visible(job, 0), .scale = 1.0f, .out = score});
    for (uint32_t i = 0; i < count; i++)
        share += score[taken[i]];
    return share;
}

static void select_run(const kr_job *job, uint32_t kv_head, kr_scratch scratch)
{
    const kr_attention_shape *s = job->view->shape;
    const kr_list_ref ref = {job, s->kv_heads, kv_head, 0, 0};
    const uint64_t tokens = kr_job_visible(job, 0), local = local_of(job->config) + 1;
    float *sum = sums_of(job, kv_head);
    uint64_t nan = 0;

    memset(sum, 0, sizeof *sum * tokens);
    for (uint32_t h = 0; h < group_of(s); h++) {
        const float *score = scores_of(job, kv_head * group_of(s) + h);

        for (uint64_t t = 0; t < tokens; t++)
            sum[t] += score[t];
    }
    for (uint64_t t = tokens > local ? tokens - local : 0; t < tokens; t++)
        sum[t] = INFINITY;
    *kr_list_count(&ref) = job->ops->select_topk(&(kr_select_topk_args){
        .score = sum,
        .n = tokens,
        .k = kept(job->config),
        .position = kr_list_selected(&ref),
        .scratch = scratch.memory,
        .nan_count = &nan,
    });
    kr_count_nan(job, nan);
    for (uint32_t h = kv_head * group_of(s); h < (kv_head + 1) * group_of(s); h++)
        alpha_of(job)[h] = taken_share(job, h, kr_list_selected(&ref), *kr_list_count(&ref));
}

/* ---- attend ---- */

static uint32_t own_segments(const kr_list_ref *ref) { return kr_list_tokens.segments(ref); }
static uint32_t own_segments_max(const kr_job *job) { return kr_list_tokens.segments_max(job); }
static void own_fill(const kr_list_ref *ref, uint32_t segment, kr_list_segment *out)
{
    kr_list_tokens.fill(ref, segment, out);
}

static void add_mean_value(const kr_job *job, uint32_t query, uint32_t head, float *output)
{
    const float alpha = alpha_of(job)[head], *mean = mean_value(job, head / group_of(job->view->shape));

    (void)query;
    for (uint32_t d = 0; d < job->view->shape->value_dim; d++)
        output[d] = alpha * output[d] + (1.0f - alpha) * mean[d];
}

static const kr_list_source own = {own_segments, own_segments_max, own_fill, add_mean_value};

static const kr_list_source *source_of(const kr_job *job)
{
    return kr_job_is_dense(job) ? &kr_list_dense : &own;
}

KR_LIST_STAGES(source_of, lists_of)

static size_t workspace_bytes(const kr_method_plan *plan, const kr_method_config *config,
                              const kr_attention_shape *shape, uint32_t queries, uint64_t context_max)
{
    (void)config;
    (void)queries;
    if (plan->dense)
        return kr_attend_list_workspace(shape, kr_segments(context_max));
    return kr_attend_list_workspace(shape, kr_segments(plan->selected_max)) +
           sizeof(float) * (shape->heads + (shape->heads + (uint64_t)shape->kv_heads) * context_max);
}

static size_t scratch_bytes(const kr_method_plan *plan, const kr_attention_shape *shape, uint64_t context_max)
{
    const size_t attend = kr_attend_list_scratch(shape, lists_of(shape));
    const size_t select = kr_select_scratch_bytes(context_max, plan->selected_max + !plan->selected_max);
    const size_t score = sizeof(float) * group_of(shape) * KR_CHANNELS_MAX;
    const size_t most = attend > select ? attend : select;

    return most > score ? most : score;
}

const kr_method kr_method_sparq = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .name = "sparq",
    .summary = "scores from the largest query channels; the rest of the weight goes to the mean value",
    .source = "graphcore-research/llm-inference-research (SparQ, ICML 2024)",
    .plan = plan_sparq,
    .workspace_bytes = workspace_bytes,
    .lists = lists,
    .scratch_bytes = scratch_bytes,
    .stage =
        {
            [KR_STAGE_APPEND] = {.parts = append_parts, .run = append_run},
            [KR_STAGE_SCORE] = {.parts = score_parts, .run = score_run},
            [KR_STAGE_SELECT] = {.parts = select_parts, .run = select_run},
            [KR_STAGE_ATTEND] = {.parts = attend_parts, .run = attend_run},
            [KR_STAGE_MERGE] = {.parts = merge_parts, .run = merge_run},
        },
};
