/* MoBA: each query head attends to its own chunk and to the chunks whose mean key it likes best.
 *
 * Per query head and query row, prompt rows included: gate = q . mean(K of the chunk), unscaled; the own
 * chunk always, future chunks never, the best k - 1 of the complete earlier ones; softmax over the union,
 * causal inside the own chunk. unit = chunk (default 2048), budget = k * chunk (default 3 chunks).
 *
 * State, in the index record: the F32 sum of each chunk's keys per KV head, added to in token order, so
 * neither chunks of a prompt nor turns matter. A model needs continued training with it.
 * Source: MoonshotAI/MoBA, moba/moba_naive.py (NeurIPS 2025). */
#include <string.h>

#include "method/attend_list.h"
#include "method/trained.h"

enum { CHUNK_DEFAULT = 2048, TOPK_DEFAULT = 3 };

static uint32_t unit_of(const kr_method_config *c) { return c->unit != 0 ? c->unit : CHUNK_DEFAULT; }
static uint32_t budget_of(const kr_method_config *c)
{
    return c->budget != 0 ? c->budget : TOPK_DEFAULT * unit_of(c);
}
static uint32_t lists_of(const kr_attention_shape *shape) { return shape->heads; }

static kr_status plan_moba(const kr_method_config *config, const kr_attention_shape *shape,
                           uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    kr_method_plan p;
    const kr_status status = kr_list_plan("moba", config, shape, 0, &p, err);

    if (status != KR_OK)
        return status;
    if (budget_of(config) < unit_of(config) || budget_of(config) % unit_of(config) != 0 ||
        budget_of(config) / unit_of(config) > KR_TOPK_MAX)
        return kr_fail(err, KR_E_LIMIT, "moba: budget %u, must be 1..%d whole chunks of %u",
                       budget_of(config), KR_TOPK_MAX, unit_of(config));
    if (!p.dense) {
        p.granularity = KR_UNIT_BLOCK;
        p.unit_tokens = unit_of(config);
        p.selected_max = budget_of(config);
        p.record_body_bytes = sizeof(float) * shape->kv_heads * shape->key_dim *
                              kr_ceil_div(context_max, unit_of(config));
        p.cost[KR_STAGE_SCORE].per_unit = (kr_work){
            .flops = 2 * (uint64_t)shape->heads * shape->key_dim,
            .read_bytes = sizeof(float) * shape->kv_heads * shape->key_dim,
        };
    }
    *plan = p;
    return KR_OK;
}

/* Sums of one KV head, [chunks][key_dim]. */
static float *sums_of(const kr_view *view, uint32_t kv_head)
{
    return (float *)kr_view_record_body(view) +
           view->record->body_bytes / sizeof(float) / view->shape->kv_heads * kv_head;
}

static uint32_t append_parts(const kr_job *job) { return job->plan->dense ? 0 : job->view->shape->kv_heads; }

static void append_run(const kr_job *job, uint32_t kv_head, kr_scratch scratch)
{
    const kr_attention_shape *s = job->view->shape;
    float key[KR_ATTEND_DIM_MAX];

    (void)scratch;
    for (uint64_t t = job->first_position; t < job->first_position + job->queries; t++) {
        float *sum = sums_of(job->view, kv_head) + t / job->plan->unit_tokens * s->key_dim;

        kr_to_f32(s->kv_dtype, kr_view_key_row(job->view, kv_head, t), key, s->key_dim);
        for (uint32_t d = 0; d < s->key_dim; d++)
            sum[d] = t % job->plan->unit_tokens == 0 ? key[d] : sum[d] + key[d];
    }
}

static uint32_t select_parts(const kr_job *job)
{
    return job->plan->dense ? 0 : job->queries * job->view->shape->heads;
}

/* Complete chunks share one size, so ranking by q . sum is ranking by q . mean. */
static void select_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    const kr_attention_shape *s = job->view->shape;
    const kr_list_ref ref = {job, s->heads, part % s->heads, part / s->heads, part / s->heads};
    const uint64_t own = (kr_job_visible(job, ref.query) - 1) / job->plan->unit_tokens;
    const uint32_t k = budget_of(job->config) / unit_of(job->config);
    uint32_t *selected = kr_list_selected(&ref), count = 0;
    float *score = scratch.memory;
    uint64_t nan = 0;

    if (own > 0 && k > 1) {
        job->ops->row_dot(&(kr_row_dot_args){
            .query = job->query + ((size_t)ref.query * s->heads + ref.list) * s->key_dim,
            .queries = 1,
            .query_stride = s->key_dim,
            .dim = s->key_dim,
            .type = KR_F32,
            .row = sums_of(job->view, kr_list_kv_head(&ref)),
            .rows = own,
            .row_stride = s->key_dim,
            .out = score,
            .out_stride = own,
        });
        count = job->ops->select_topk(&(kr_select_topk_args){
            .score = score,
            .n = own,
            .k = k - 1,
            .position = selected,
            .scratch = (uint8_t *)scratch.memory + kr_align_up(own * sizeof(float), 64),
            .nan_count = &nan,
        });
        kr_count_nan(job, nan);
    }
    selected[count++] = (uint32_t)own;
    *kr_list_count(&ref) = count;
}

static const kr_list_source *source_of(const kr_job *job)
{
    return job->plan->dense ? &kr_list_dense : &kr_list_units;
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
    const uint64_t chunks = kr_ceil_div(context_max, plan->unit_tokens);
    const size_t select = kr_align_up(chunks * sizeof(float), 64) +
                          kr_select_scratch_bytes(chunks, KR_TOPK_MAX);

    return kr_list_scratch(plan, shape, lists_of(shape), select);
}

const kr_method kr_method_moba = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .name = "moba",
    .summary = "the own chunk and the chunks with the best mean key",
    .source = "MoonshotAI/MoBA (NeurIPS 2025)",
    .plan = plan_moba,
    .workspace_bytes = workspace_bytes,
    .lists = lists,
    .scratch_bytes = scratch_bytes,
    .stage =
        {
            [KR_STAGE_APPEND] = {.parts = append_parts, .run = append_run},
            [KR_STAGE_SELECT] = {.parts = select_parts, .run = select_run},
            [KR_STAGE_ATTEND] = {.parts = attend_parts, .run = attend_run},
            [KR_STAGE_MERGE] = {.parts = merge_parts, .run = merge_run},
        },
};
