/* DSA: token selection by the lightning indexer of DeepSeek-V3.2, and its reuse by following layers
 * (GLM-5.2's IndexShare).
 *
 * Source: deepseek-ai/DeepSeek-V3.2-Exp inference/model.py; index keys are E4M3 with one F32 scale
 * per key. On the wire a row carries the E4M3 queries of all index heads, one F32 weight a head
 * (query scale folded in), the key and its scale. */
#include <string.h>

#include "method/attend_list.h"
#include "method/cost.h"
#include "method/native.h"

static kr_status check(const kr_method_config *config, const kr_attention_shape *shape, kr_err *err)
{
    const uint32_t heads = config->parameter[KR_NATIVE_HEADS], dim = config->parameter[KR_NATIVE_DIM];

    if (!shape->latent)
        return kr_fail(err, KR_E_UNSUPPORTED, "dsa: layer %u is not MLA", shape->layer);
    if (heads == 0 || heads > KR_DSA_HEADS_MAX || dim == 0 || dim > KR_DSA_DIM_MAX || dim % 2 != 0)
        return kr_fail(err, KR_E_SHAPE, "dsa: %u index heads of %u, must be 1..%d of an even 2..%d", heads,
                       dim, KR_DSA_HEADS_MAX, KR_DSA_DIM_MAX);
    if (config->budget == 0 || config->budget > KR_TOPK_MAX)
        return kr_fail(err, KR_E_LIMIT, "dsa: budget %u, must be 1..%d tokens", config->budget, KR_TOPK_MAX);
    if (config->parameter[KR_NATIVE_OWNER] > shape->layer)
        return kr_fail(err, KR_E_SHAPE, "dsa: layer %u would use the index of a later layer %u", shape->layer,
                       config->parameter[KR_NATIVE_OWNER]);
    return KR_OK;
}

/* Score: 2 FLOPs a multiply-add, and per head a rectifier, a weight and an addition; the scores are
 * written once and read once by Select. */
static void price_index(const kr_method_config *config, kr_method_plan *plan)
{
    const uint64_t heads = config->parameter[KR_NATIVE_HEADS], dim = config->parameter[KR_NATIVE_DIM];
    const bool paper = config->parameter[KR_NATIVE_PAPER] != 0;
    const uint64_t scale = paper ? 0 : sizeof(float);

    plan->separate_index_query = true;
    plan->index_query_bytes = (uint32_t)(heads * (dim + sizeof(float)));
    plan->index_key_bytes = (uint32_t)(dim + scale);
    plan->page_index_bytes = (uint32_t)(KR_PAGE_TOKENS * (dim + scale));
    plan->cost[KR_STAGE_APPEND].fixed.write_bytes += dim + scale;
    plan->cost[KR_STAGE_SCORE].per_context_token = (kr_work){
        .flops = heads * (2 * dim + (paper ? 0 : 3)),
        .read_bytes = dim + scale,
    };
    if (paper)
        return;
    plan->cost[KR_STAGE_SCORE].per_unit.write_bytes = sizeof(float);
    plan->cost[KR_STAGE_SELECT].per_unit = (kr_work){.flops = 1, .read_bytes = sizeof(float)};
    plan->cost[KR_STAGE_SELECT].fixed.write_bytes = config->budget * sizeof(uint32_t);
}

static kr_status plan_dsa(const kr_method_config *config, const kr_attention_shape *shape,
                          uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    const kr_status status = check(config, shape, err);
    kr_method_plan p = {
        .keys = KR_KEYS_ROWS,
        .granularity = KR_UNIT_TOKEN,
        .unit_tokens = 1,
        .priced_only = config->parameter[KR_NATIVE_PAPER] != 0,
        .owns_index = config->parameter[KR_NATIVE_OWNER] == shape->layer,
        .index_owner = (uint16_t)config->parameter[KR_NATIVE_OWNER],
        .selected_max = config->budget,
    };

    (void)context_max;
    if (status != KR_OK)
        return status;
    p.cost[KR_STAGE_APPEND].fixed = kr_append_row_work(shape);
    p.cost[KR_STAGE_ATTEND].per_attended_token = kr_attend_token_work(shape);
    if (config->parameter[KR_NATIVE_PAPER] != 0)
        p.cost[KR_STAGE_ATTEND].per_attended_token.flops = 4 * (uint64_t)shape->heads * shape->value_dim;
    if (p.owns_index)
        price_index(config, &p);
    *plan = p;
    return KR_OK;
}

static uint32_t lists(const kr_method_config *config, const kr_attention_shape *shape)
{
    (void)config;
    (void)shape;
    return 1;
}

/* ---- stages ----
 *
 * Page index of an owning layer: [KR_PAGE_TOKENS][dim] E4M3 keys, then [KR_PAGE_TOKENS] F32 scales.
 * Workspace of a decode row: partial results of Attend, then one F32 score a token. Prefill rows
 * score into their thread's scratch: every query row has its own list. A second turn appends keys
 * like the first: nothing depends on where prefill ends. */

enum { SCORE_PAGES = 64 /* pages one Score part covers: 1 MiB of keys at 128 dims */ };

static uint32_t index_heads(const kr_job *job) { return job->config->parameter[KR_NATIVE_HEADS]; }
static uint32_t index_dim(const kr_job *job) { return job->config->parameter[KR_NATIVE_DIM]; }

static float *scales_of(const kr_job *job, uint64_t page)
{
    return (float *)((uint8_t *)kr_view_index(job->view, page) + (size_t)KR_PAGE_TOKENS * index_dim(job));
}

static uint32_t append_parts(const kr_job *job) { return job->plan->owns_index && job->index_key != NULL; }

static void append_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    const uint32_t dim = index_dim(job);

    (void)part;
    (void)scratch;
    for (uint32_t r = 0; r < job->queries; r++) {
        const uint8_t *row = (const uint8_t *)job->index_key + (size_t)r * job->plan->index_key_bytes;
        const uint64_t token = job->first_position + r, in_page = token % KR_PAGE_TOKENS;

        memcpy((uint8_t *)kr_view_index(job->view, token / KR_PAGE_TOKENS) + in_page * dim, row, dim);
        memcpy(scales_of(job, token / KR_PAGE_TOKENS) + in_page, row + dim, sizeof(float));
    }
}

/* Scores of the tokens of pages [page, page + SCORE_PAGES) that query row sees. */
static void score_pages(const kr_job *job, uint32_t query, uint64_t page, float *score)
{
    const uint32_t heads = index_heads(job), dim = index_dim(job);
    const uint8_t *row = (const uint8_t *)job->index_query + (size_t)query * job->plan->index_query_bytes;
    const uint64_t left = kr_job_visible(job, query) - page * KR_PAGE_TOKENS,
                   most = SCORE_PAGES * KR_PAGE_TOKENS;
    const uint64_t tokens = left < most ? left : most;
    const uint8_t *key[SCORE_PAGES];
    const float *scale[SCORE_PAGES];
    float weight[KR_DSA_HEADS_MAX];

    memcpy(weight, row + (size_t)heads * dim, heads * sizeof(float));
    for (uint64_t p = 0; p * KR_PAGE_TOKENS < tokens; p++) {
        key[p] = kr_view_index(job->view, page + p);
        scale[p] = scales_of(job, page + p);
    }
    job->ops->dsa_score(&(kr_dsa_score_args){
        .query = row,
        .weight = weight,
        .key = key,
        .scale = scale,
        .run_tokens = KR_PAGE_TOKENS,
        .heads = heads,
        .dim = dim,
        .tokens = tokens,
        .score = score + page * KR_PAGE_TOKENS,
    });
}

static bool selects(const kr_job *job) { return job->plan->owns_index && job->index_query != NULL; }
/* Few enough tokens: all are taken, unscored. */
static bool takes_all(const kr_job *job, uint32_t query)
{
    return kr_job_visible(job, query) <= job->config->budget;
}

static float *decode_scores(const kr_job *job) { return kr_attend_list_behind(job, &kr_list_tokens); }

static uint32_t score_parts(const kr_job *job)
{
    if (!selects(job) || job->is_prefill || takes_all(job, 0))
        return 0;
    return (uint32_t)kr_ceil_div(kr_job_visible(job, 0), SCORE_PAGES * KR_PAGE_TOKENS);
}

static void score_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    (void)scratch;
    score_pages(job, 0, (uint64_t)part * SCORE_PAGES, decode_scores(job));
}

static uint32_t select_parts(const kr_job *job) { return selects(job) ? job->queries : 0; }

static void select_run(const kr_job *job, uint32_t query, kr_scratch scratch)
{
    const kr_list_ref ref = {job, 1, 0, query, query};
    const uint64_t visible = kr_job_visible(job, query);
    uint32_t *selected = kr_list_selected(&ref);
    float *score = decode_scores(job);
    uint8_t *topk = scratch.memory;
    uint64_t nan = 0;

    if (takes_all(job, query)) {
        for (uint32_t i = 0; i < visible; i++)
            selected[i] = i;
        *kr_list_count(&ref) = (uint32_t)visible;
        return;
    }
    if (job->is_prefill) {
        score = scratch.memory;
        topk += kr_align_up(visible * sizeof(float), 64);
        for (uint64_t page = 0; page * KR_PAGE_TOKENS < visible; page += SCORE_PAGES)
            score_pages(job, query, page, score);
    }
    *kr_list_count(&ref) = job->ops->select_topk(&(kr_select_topk_args){
        .score = score,
        .n = visible,
        .k = job->config->budget,
        .position = selected,
        .scratch = topk,
        .nan_count = &nan,
    });
    kr_count_nan(job, nan);
}

static uint32_t attend_parts(const kr_job *job) { return kr_attend_list_parts(job, &kr_list_tokens, 1); }
static void attend_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    kr_attend_list_run(job, &kr_list_tokens, 1, part, scratch);
}
static uint32_t merge_parts(const kr_job *job) { return kr_merge_list_parts(job, 1); }
static void merge_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    (void)scratch;
    kr_merge_list_run(job, &kr_list_tokens, 1, part);
}

static size_t workspace_bytes(const kr_method_plan *plan, const kr_method_config *config,
                              const kr_attention_shape *shape, uint32_t queries, uint64_t context_max)
{
    (void)config;
    (void)queries;
    return kr_attend_list_workspace(shape, kr_segments(plan->selected_max)) +
           (size_t)context_max * sizeof(float);
}

static size_t scratch_bytes(const kr_method_plan *plan, const kr_attention_shape *shape, uint64_t context_max)
{
    const size_t attend = kr_attend_list_scratch(shape, 1);
    const size_t select = kr_align_up(context_max * sizeof(float), 64) +
                          kr_select_scratch_bytes(context_max, plan->selected_max);

    return attend > select ? attend : select;
}

const kr_method kr_method_dsa = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .name = "dsa",
    .summary = "token selection by the model's lightning indexer, own or shared",
    .source = "deepseek-ai/DeepSeek-V3.2-Exp; THUDM GLM-5.2 (index sharing)",
    .plan = plan_dsa,
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
