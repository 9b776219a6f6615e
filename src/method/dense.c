/* Dense attention: no index, no selection; windows are the layer's own. */
#include "method/dense.h"

#include "method/attend_list.h"
#include "method/cost.h"
#include "method/tiled.h"

static kr_status plan_dense(const kr_method_config *config, const kr_attention_shape *shape,
                            uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    kr_method_plan p = {
        .keys = shape->latent ? KR_KEYS_ROWS : KR_KEYS_TILED,
        .granularity = KR_UNIT_TOKEN,
        .unit_tokens = 1,
        .dense = true,
        .owns_index = true,
        .index_owner = (uint16_t)shape->layer,
    };

    (void)config;
    (void)context_max;
    if (shape->kv_heads == 0 || shape->heads % shape->kv_heads != 0)
        return kr_fail(err, KR_E_SHAPE, "dense: %u heads do not divide into %u KV heads", shape->heads,
                       shape->kv_heads);
    p.cost[KR_STAGE_APPEND].fixed = kr_append_row_work(shape);
    p.cost[KR_STAGE_ATTEND].per_attended_token = kr_attend_token_work(shape);
    *plan = p;
    return KR_OK;
}

static size_t workspace_bytes(const kr_method_plan *plan, const kr_method_config *config,
                              const kr_attention_shape *shape, uint32_t queries, uint64_t context_max)
{
    (void)plan;
    (void)config;
    if (queries != 1)
        return 0;
    if (shape->window != 0 && shape->window < context_max)
        context_max = shape->window;
    /* One more than full segments: a window may begin inside one and end inside another. */
    return shape->latent ? kr_attend_list_workspace(shape, kr_segments(context_max) + 1)
                         : kr_tiled_partial_bytes(shape, context_max);
}

static size_t scratch_bytes(const kr_method_plan *plan, const kr_attention_shape *shape, uint64_t context_max)
{
    (void)plan;
    (void)context_max;
    return shape->latent ? kr_attend_list_scratch(shape, 1) : kr_tiled_scratch_bytes(shape);
}

/* MLA keeps rows, one list for all heads; everything else keeps tiles. */
static bool is_latent(const kr_job *job) { return job->view->shape->latent; }

static uint32_t attend_parts(const kr_job *job)
{
    return is_latent(job) ? kr_attend_list_parts(job, &kr_list_dense, 1) : kr_tiled_dense_parts(job);
}

static void attend_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    if (is_latent(job))
        kr_attend_list_run(job, &kr_list_dense, 1, part, scratch);
    else
        kr_tiled_dense_run(job, part, job->workspace, scratch);
}

static uint32_t attend_device(const kr_job *job, uint32_t part)
{
    return is_latent(job) ? job->view->home : kr_tiled_dense_device(job, part);
}

static uint32_t merge_parts(const kr_job *job)
{
    return is_latent(job) ? kr_merge_list_parts(job, 1) : job->queries == 1;
}

static void merge_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    (void)scratch;
    if (is_latent(job)) {
        kr_merge_list_run(job, &kr_list_dense, 1, part);
        return;
    }
    for (uint32_t h = 0; h < job->view->shape->heads; h++)
        kr_tiled_merge(job, h, kr_tiled_dense_segments(job), job->workspace);
}

const kr_method kr_method_dense = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .name = "dense",
    .summary = "every token in the layer's window",
    .source = "softmax attention",
    .plan = plan_dense,
    .workspace_bytes = workspace_bytes,
    .scratch_bytes = scratch_bytes,
    .stage =
        {
            [KR_STAGE_ATTEND] = {attend_parts, attend_run, attend_device},
            [KR_STAGE_MERGE] = {merge_parts, merge_run, NULL},
        },
};
