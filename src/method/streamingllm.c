/* StreamingLLM: attention sinks and a window of recent tokens; everything between is forgotten.
 *
 * Each query row, prompt rows included, attends to the first `sinks` tokens and to the newest
 * budget - sinks, its own included. parameter[0] = sinks (default 4); budget defaults to 2004.
 *
 * Against the reference: it keeps pre-RoPE keys and renumbers positions inside its cache; keys here
 * are post-RoPE and keep their positions, so results agree only while nothing has been dropped.
 * No state; a second turn goes on as if there had been no boundary.
 * Source: mit-han-lab/streaming-llm (ICLR 2024). */
#include "method/attend_list.h"
#include "method/training_free.h"

enum { SINKS_DEFAULT = 4, BUDGET_DEFAULT = 2004 };

static uint32_t sinks_of(const kr_method_config *c)
{
    return c->parameter[0] != 0 ? c->parameter[0] : SINKS_DEFAULT;
}
static uint32_t budget_of(const kr_method_config *c) { return c->budget != 0 ? c->budget : BUDGET_DEFAULT; }
static uint32_t lists_of(const kr_attention_shape *shape) { return shape->kv_heads; }

static kr_status plan_streamingllm(const kr_method_config *config, const kr_attention_shape *shape,
                                   uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    kr_method_plan p;
    const kr_status status = kr_list_plan("streamingllm", config, shape, 0, &p, err);

    if (status != KR_OK)
        return status;
    if (budget_of(config) <= sinks_of(config))
        return kr_fail(err, KR_E_LIMIT, "streamingllm: budget %u, must be above its %u sinks",
                       budget_of(config), sinks_of(config));
    p.selected_max = p.dense                           ? 0
                     : budget_of(config) < context_max ? budget_of(config)
                                                       : (uint32_t)context_max;
    *plan = p;
    return KR_OK;
}

static const kr_list_source *source_of(const kr_job *job)
{
    return job->plan->dense ? &kr_list_dense : &kr_list_tokens;
}

static uint32_t select_parts(const kr_job *job) { return job->plan->dense ? 0 : job->queries; }

static void select_run(const kr_job *job, uint32_t query, kr_scratch scratch)
{
    const uint64_t visible = kr_job_visible(job, query), sinks = sinks_of(job->config);
    const uint64_t window = budget_of(job->config) - sinks;

    (void)scratch;
    for (uint32_t list = 0; list < lists_of(job->view->shape); list++) {
        const kr_list_ref ref = {job, lists_of(job->view->shape), list, query, query};
        uint32_t *selected = kr_list_selected(&ref), count = 0;

        for (uint64_t t = 0; t < visible; t++) {
            if (t == sinks && visible - t > window)
                t = visible - window;
            selected[count++] = (uint32_t)t;
        }
        *kr_list_count(&ref) = count;
    }
}

KR_LIST_STAGES(source_of, lists_of)

static size_t workspace_bytes(const kr_method_plan *plan, const kr_method_config *config,
                              const kr_attention_shape *shape, uint32_t queries, uint64_t context_max)
{
    (void)config;
    (void)queries;
    return kr_attend_list_workspace(shape, kr_segments(plan->dense ? context_max : plan->selected_max));
}

static size_t scratch_bytes(const kr_method_plan *plan, const kr_attention_shape *shape, uint64_t context_max)
{
    (void)plan;
    (void)context_max;
    return kr_attend_list_scratch(shape, lists_of(shape));
}

const kr_method kr_method_streamingllm = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .name = "streamingllm",
    .summary = "the first tokens and a window of the newest",
    .source = "mit-han-lab/streaming-llm (ICLR 2024)",
    .plan = plan_streamingllm,
    .workspace_bytes = workspace_bytes,
    .lists = lists,
    .scratch_bytes = scratch_bytes,
    .stage =
        {
            [KR_STAGE_SELECT] = {.parts = select_parts, .run = select_run},
            [KR_STAGE_ATTEND] = {.parts = attend_parts, .run = attend_run},
            [KR_STAGE_MERGE] = {.parts = merge_parts, .run = merge_run},
        },
};
