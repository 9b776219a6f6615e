/* InfLLM-v2: blocks ranked through mean keys of overlapping windows, with initial blocks and a local
 * window always attended.
 *
 * A compressed key is the mean of `kernel` keys, one every kernel / 2 tokens as soon as its kernel is
 * complete. Decode, per KV head: softmax over compressed keys of q.k / sqrt d, summed over the group; a
 * block scores as the best compressed key that overlaps it; the best budget / unit blocks besides the
 * `init` first blocks and those that touch the newest `window` tokens, which come for free. A context
 * below `dense` tokens is attended whole.
 * unit = block (64), budget = 64 blocks; parameter: [0] kernel 32, [1] init 1, [2] window 2048, [3] dense
 * 8192. Prefill attends densely here; the reference is sparse there too.
 *
 * State, in the page index: compressed keys in the KV type, written when their last token arrives,
 * whatever the chunking; a second turn goes on.
 * Source: OpenBMB/infllmv2_cuda_impl; MiniCPM4. */
#include <math.h>
#include <string.h>

#include "method/attend_list.h"
#include "method/trained.h"

enum { UNIT_DEFAULT = 64, BLOCKS_DEFAULT = 64, KERNEL_DEFAULT = 32 };

static uint32_t or_default(uint32_t value, uint32_t fallback) { return value != 0 ? value : fallback; }
static uint32_t unit_of(const kr_method_config *c) { return or_default(c->unit, UNIT_DEFAULT); }
static uint32_t budget_of(const kr_method_config *c)
{
    return or_default(c->budget, BLOCKS_DEFAULT * unit_of(c));
}
static uint32_t kernel_of(const kr_method_config *c) { return or_default(c->parameter[0], KERNEL_DEFAULT); }
static uint32_t stride_of(const kr_method_config *c) { return kernel_of(c) / 2; }
static uint32_t init_of(const kr_method_config *c) { return or_default(c->parameter[1], 1); }
static uint32_t window_of(const kr_method_config *c) { return or_default(c->parameter[2], 2048); }
static uint32_t dense_of(const kr_method_config *c) { return or_default(c->parameter[3], 8192); }
static uint32_t lists_of(const kr_attention_shape *shape) { return shape->kv_heads; }

static kr_status plan_infllm2(const kr_method_config *config, const kr_attention_shape *shape,
                              uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    kr_method_plan p;
    const kr_status status = kr_list_plan("infllm2", config, shape, 0, &p, err);
    const uint32_t unit = unit_of(config), kernel = kernel_of(config);
    const uint64_t element = kr_dtype_bytes(shape->kv_dtype);

    (void)context_max;
    if (status != KR_OK)
        return status;
    if (kernel % 2 != 0 || unit % kernel != 0 || KR_PAGE_TOKENS % unit != 0)
        return kr_fail(err, KR_E_SHAPE,
                       "infllm2: kernel %u must be even and divide the block of %u, which divides %d", kernel,
                       unit, KR_PAGE_TOKENS);
    if (budget_of(config) < unit || budget_of(config) % unit != 0 || budget_of(config) / unit > KR_TOPK_MAX)
        return kr_fail(err, KR_E_LIMIT, "infllm2: budget %u, must be 1..%d whole blocks of %u",
                       budget_of(config), KR_TOPK_MAX, unit);
    if (!p.dense) {
        const uint64_t most = budget_of(config) + (uint64_t)init_of(config) * unit + window_of(config) +
                              2 * unit;

        p.granularity = KR_UNIT_BLOCK;
        p.unit_tokens = unit;
        p.page_index_bytes = (uint32_t)(shape->kv_heads * (KR_PAGE_TOKENS / stride_of(config)) *
                                        shape->key_dim * element);
        p.selected_max = (uint32_t)(most > dense_of(config) ? most : dense_of(config));
        p.cost[KR_STAGE_SCORE].per_context_token = (kr_work){
            .flops = 2 * (uint64_t)shape->heads * shape->key_dim / stride_of(config),
            .read_bytes = shape->kv_heads * shape->key_dim * element / stride_of(config),
        };
    }
    *plan = p;
    return KR_OK;
}

/* Compressed key number j (tokens [j * stride, j * stride + kernel)) lies in the page of its first token. */
static uint8_t *entry_of(const kr_job *job, uint32_t kv_head, uint64_t j)
{
    const kr_attention_shape *s = job->view->shape;
    const uint64_t a_page = KR_PAGE_TOKENS / stride_of(job->config);

    return (uint8_t *)kr_view_index(job->view, j / a_page) +
           (kv_head * a_page + j % a_page) * s->key_dim * kr_dtype_bytes(s->kv_dtype);
}

static uint32_t append_parts(const kr_job *job) { return job->plan->dense ? 0 : job->view->shape->kv_heads; }

static void append_run(const kr_job *job, uint32_t kv_head, kr_scratch scratch)
{
    const kr_attention_shape *s = job->view->shape;
    const uint32_t kernel = kernel_of(job->config), stride = stride_of(job->config);
    float key[KR_ATTEND_DIM_MAX], mean[KR_ATTEND_DIM_MAX];

    (void)scratch;
    for (uint64_t end = job->first_position + 1; end <= job->first_position + job->queries; end++) {
        if (end < kernel || (end - kernel) % stride != 0)
            continue;
        memset(mean, 0, sizeof mean);
        for (uint64_t t = end - kernel; t < end; t++) {
            kr_to_f32(s->kv_dtype, kr_view_key_row(job->view, kv_head, t), key, s->key_dim);
            for (uint32_t d = 0; d < s->key_dim; d++)
                mean[d] += key[d] / (float)kernel;
        }
        kr_from_f32(s->kv_dtype, mean, entry_of(job, kv_head, (end - kernel) / stride), s->key_dim);
    }
}

/* ---- score and select ----
 * Workspace of a decode row behind the partial results: scores [heads][entries], rank [kv_heads][blocks]. */

static uint64_t entries_of(const kr_job *job)
{
    const uint64_t visible = kr_job_visible(job, 0), kernel = kernel_of(job->config);

    return visible < kernel ? 0 : (visible - kernel) / stride_of(job->config) + 1;
}

static uint64_t blocks_of(const kr_job *job)
{
    return kr_ceil_div(kr_job_visible(job, 0), job->plan->unit_tokens);
}

static float *scores_of(const kr_job *job, uint32_t head)
{
    return (float *)kr_attend_list_behind(job, &kr_list_units) + head * entries_of(job);
}

static float *rank_of(const kr_job *job, uint32_t kv_head)
{
    return scores_of(job, job->view->shape->heads) + kv_head * blocks_of(job);
}

static bool takes_all(const kr_job *job) { return kr_job_visible(job, 0) < dense_of(job->config); }

static uint32_t score_parts(const kr_job *job)
{
    return kr_job_is_dense(job) || takes_all(job) ? 0 : job->view->shape->kv_heads;
}

static void score_run(const kr_job *job, uint32_t kv_head, kr_scratch scratch)
{
    const kr_attention_shape *s = job->view->shape;
    const uint32_t group = s->heads / s->kv_heads, first = kv_head * group, stride = stride_of(job->config);
    const uint64_t entries = entries_of(job), a_page = KR_PAGE_TOKENS / stride,
                   a_block = job->plan->unit_tokens / stride;
    float *sum = scores_of(job, first), *rank = rank_of(job, kv_head);

    (void)scratch;
    for (uint64_t j = 0; j < entries; j += a_page)
        job->ops->row_dot(&(kr_row_dot_args){
            .query = job->query + (size_t)first * s->key_dim,
            .queries = group,
            .query_stride = s->key_dim,
            .dim = s->key_dim,
            .type = s->kv_dtype,
            .row = entry_of(job, kv_head, j),
            .rows = entries - j < a_page ? entries - j : a_page,
            .row_stride = s->key_dim,
            .out = sum + j,
            .out_stride = entries,
        });
    for (uint32_t h = 0; h < group; h++) /* the first head's shares, in place, then the others' */
        job->ops->softmax(&(kr_softmax_args){
            .score = scores_of(job, first + h),
            .n = entries,
            .scale = s->softmax_scale,
            .add = h > 0,
            .out = sum,
        });
    for (uint64_t b = 0; b < blocks_of(job); b++) {
        rank[b] = -INFINITY;
        for (uint64_t j = b == 0 ? 0 : b * a_block - 1; j < (b + 1) * a_block && j < entries; j++)
            rank[b] = sum[j] > rank[b] ? sum[j] : rank[b];
    }
}

static uint32_t select_parts(const kr_job *job)
{
    return kr_job_is_dense(job) ? 0 : job->view->shape->kv_heads;
}

static void select_run(const kr_job *job, uint32_t kv_head, kr_scratch scratch)
{
    const kr_list_ref ref = {job, job->view->shape->kv_heads, kv_head, 0, 0};
    const uint64_t visible = kr_job_visible(job, 0), blocks = blocks_of(job), unit = job->plan->unit_tokens;
    const uint64_t init = init_of(job->config) < blocks ? init_of(job->config) : blocks;
    const uint64_t recent = visible > window_of(job->config) ? (visible - window_of(job->config)) / unit : 0;
    const uint64_t local = recent > init ? recent : init; /* first block of the window not in init */
    uint32_t *selected = kr_list_selected(&ref), count = 0;
    uint64_t nan = 0;

    for (uint64_t b = 0; b < (takes_all(job) ? blocks : init); b++)
        selected[count++] = (uint32_t)b;
    if (!takes_all(job)) {
        const uint32_t chosen = local == init ? 0
                                              : job->ops->select_topk(&(kr_select_topk_args){
                                                    .score = rank_of(job, kv_head) + init,
                                                    .n = local - init,
                                                    .k = budget_of(job->config) / (uint32_t)unit,
                                                    .position = selected + count,
                                                    .scratch = scratch.memory,
                                                    .nan_count = &nan,
                                                });

        for (uint32_t i = 0; i < chosen; i++)
            selected[count + i] += (uint32_t)init;
        count += chosen;
        for (uint64_t b = local; b < blocks; b++)
            selected[count++] = (uint32_t)b;
        kr_count_nan(job, nan);
    }
    *kr_list_count(&ref) = count;
}

static const kr_list_source *source_of(const kr_job *job)
{
    return kr_job_is_dense(job) ? &kr_list_dense : &kr_list_units;
}

KR_LIST_STAGES(source_of, lists_of)

static size_t workspace_bytes(const kr_method_plan *plan, const kr_method_config *config,
                              const kr_attention_shape *shape, uint32_t queries, uint64_t context_max)
{
    (void)queries;
    if (plan->dense)
        return kr_attend_list_workspace(shape, kr_segments(context_max));
    return kr_attend_list_workspace(shape, kr_segments(plan->selected_max)) +
           sizeof(float) * (shape->heads * kr_ceil_div(context_max, stride_of(config)) +
                            shape->kv_heads * kr_ceil_div(context_max, plan->unit_tokens));
}

static size_t scratch_bytes(const kr_method_plan *plan, const kr_attention_shape *shape, uint64_t context_max)
{
    const size_t select = kr_select_scratch_bytes(kr_ceil_div(context_max, plan->unit_tokens), KR_TOPK_MAX);

    return kr_list_scratch(plan, shape, lists_of(shape), select);
}

const kr_method kr_method_infllm2 = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .name = "infllm2",
    .summary = "blocks ranked by mean keys of overlapping windows, initial blocks and a local window",
    .source = "OpenBMB/infllmv2_cuda_impl (InfLLM-v2, MiniCPM4)",
    .plan = plan_infllm2,
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
