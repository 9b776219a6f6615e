/* H2O: heavy hitters by accumulated attention, and recent tokens.
 *
 * Per query head every query so far adds its softmax row to its keys' sums. When more than heavy +
 * recent tokens are present, a decode step attends to the `heavy` keys with the largest sums among
 * those before the newest `recent`, and to the newest `recent` with its own; the others' sums become 0,
 * so what was evicted stays out. As in the reference, the token that has just left the recent part
 * competes one step later: it is left out once.
 * budget = heavy + recent, half each; 0 = the reference's ratios, a tenth of the first prompt each.
 *
 * State, in the index record: the two budgets, fixed at the end of the first prompt, and a sum per
 * head and token. Prompts attend densely and add to the sums in query order whatever the chunking;
 * nothing is freed, so a second turn's prompt sees evicted tokens again, while decode goes on with
 * the sums.
 * Source: FMInference/H2O, h2o_hf/utils_hh/modify_llama.py (NeurIPS 2023). */
#include <math.h>
#include <string.h>

#include "method/attend_list.h"
#include "method/training_free.h"

enum { RATIO = 10, ROWS = 8 /* of a prompt that share a pass over the keys */ };

static uint32_t lists_of(const kr_attention_shape *shape) { return shape->heads; }

/* Record body: this, then sums F32 [heads][capacity]. */
typedef struct {
    uint64_t heavy, recent; /* tokens; 0 before the first prompt has ended */
    uint64_t capacity;
} state;

static state *state_of(const kr_view *view) { return kr_view_record_body(view); }

static float *sums_of(const kr_view *view, uint32_t head)
{
    const uint64_t floats = (view->record->body_bytes - sizeof(state)) / sizeof(float);

    return (float *)(state_of(view) + 1) + head * (floats / view->shape->heads);
}

static kr_status plan_h2o(const kr_method_config *config, const kr_attention_shape *shape,
                          uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    kr_method_plan p;
    const kr_status status = kr_list_plan("h2o", config, shape, 0, &p, err);

    if (status != KR_OK)
        return status;
    if (config->budget == 1 || config->budget / 2 > KR_TOPK_MAX)
        return kr_fail(err, KR_E_LIMIT, "h2o: budget %u, must be 2..%d tokens", config->budget,
                       2 * KR_TOPK_MAX);
    if (!p.dense) {
        const uint64_t ratio = 2 * (context_max / RATIO + 1);

        p.record_body_bytes = sizeof(state) + sizeof(float) * shape->heads * context_max;
        p.selected_max = config->budget != 0 ? config->budget : (uint32_t)ratio;
        p.cost[KR_STAGE_SELECT].per_context_token = (kr_work){
            .flops = shape->heads,
            .read_bytes = sizeof(float) * shape->heads,
        };
        p.cost[KR_STAGE_MERGE].per_attended_token = (kr_work){
            .flops = 2 * (uint64_t)shape->heads * shape->key_dim,
            .read_bytes = shape->heads * (uint64_t)shape->key_dim * kr_dtype_bytes(shape->kv_dtype),
            .write_bytes = sizeof(float) * shape->heads,
        };
    }
    *plan = p;
    return KR_OK;
}

/* ---- prompt: every query row adds its softmax (one part a head, rows in order) ---- */

static uint32_t gather_parts(const kr_job *job)
{
    return job->is_prefill && !job->plan->dense ? job->view->shape->heads : 0;
}

/* Dots of query rows [q, q + n) of head with all tokens that the last of them sees: [n][stride]. */
static void score_rows(const kr_job *job, uint32_t head, uint32_t q, uint32_t n, float *score,
                       uint64_t stride)
{
    const kr_attention_shape *s = job->view->shape;
    const uint64_t visible = kr_job_visible(job, q + n - 1);

    for (uint64_t t = 0; t < visible; t += KR_PAGE_TOKENS)
        job->ops->row_dot(&(kr_row_dot_args){
            .query = job->query + ((size_t)q * s->heads + head) * s->key_dim,
            .queries = n,
            .query_stride = s->heads * s->key_dim,
            .dim = s->key_dim,
            .type = s->kv_dtype,
            .row = kr_view_key_row(job->view, head / (s->heads / s->kv_heads), t),
            .row_stride = s->key_dim,
            .rows = visible - t < KR_PAGE_TOKENS ? visible - t : KR_PAGE_TOKENS,
            .out = score + t,
            .out_stride = stride,
        });
}

static void gather_run(const kr_job *job, uint32_t head, kr_scratch scratch)
{
    const uint64_t stride = kr_job_visible(job, job->queries - 1);
    float *score = scratch.memory;

    for (uint32_t q = 0; q < job->queries; q += ROWS) {
        const uint32_t n = job->queries - q < ROWS ? job->queries - q : ROWS;

        score_rows(job, head, q, n, score, stride);
        for (uint32_t r = 0; r < n; r++)
            job->ops->softmax(&(kr_softmax_args){
                .score = score + r * stride,
                .n = kr_job_visible(job, q + r),
                .scale = job->view->shape->softmax_scale,
                .add = true,
                .out = sums_of(job->view, head),
            });
    }
}

static kr_status end_prefill(const kr_view *view, const kr_method_config *config, const kr_ops *ops,
                             kr_scratch scratch, kr_err *err)
{
    (void)ops;
    (void)scratch;
    (void)err;
    if (view->record->body_bytes == 0 || state_of(view)->recent != 0)
        return KR_OK;
    const uint64_t half = config->budget != 0 ? config->budget / 2 : view->tokens / RATIO;

    state_of(view)->recent = half > 0 ? half : 1;
    state_of(view)->heavy = half < KR_TOPK_MAX ? state_of(view)->recent : KR_TOPK_MAX;
    return KR_OK;
}

/* ---- decode ---- */

static uint32_t select_parts(const kr_job *job) { return kr_job_is_dense(job) ? 0 : job->view->shape->heads; }

/* Keeps the heavy ones among sums[0, n) and sets the others to 0. Writes their positions. */
static uint32_t keep_heavy(const kr_job *job, float *sum, uint64_t n, uint32_t *position, void *scratch)
{
    uint64_t nan = 0;
    const uint32_t count = job->ops->select_topk(&(kr_select_topk_args){
        .score = sum,
        .n = n,
        .k = (uint32_t)state_of(job->view)->heavy,
        .position = position,
        .scratch = scratch,
        .nan_count = &nan,
    });

    kr_count_nan(job, nan);
    for (uint64_t t = 0, i = 0; t < n; t++)
        if (i < count && position[i] == t)
            i++;
        else
            sum[t] = 0.0f;
    return count;
}

static void select_run(const kr_job *job, uint32_t head, kr_scratch scratch)
{
    const kr_list_ref ref = {job, job->view->shape->heads, head, 0, 0};
    const state *st = state_of(job->view);
    const uint64_t visible = kr_job_visible(job, 0), before = visible - 1;
    uint32_t *selected = kr_list_selected(&ref), count = 0;
    uint64_t t = 0;

    if (before > st->heavy + st->recent) {
        count = keep_heavy(job, sums_of(job->view, head), before - st->recent, selected, scratch.memory);
        t = visible - st->recent;
    }
    for (; t < visible; t++)
        selected[count++] = (uint32_t)t;
    *kr_list_count(&ref) = count;
}

static const kr_list_source *source_of(const kr_job *job)
{
    return kr_job_is_dense(job) ? &kr_list_dense : &kr_list_tokens;
}

static uint32_t attend_parts(const kr_job *job)
{
    return kr_attend_list_parts(job, source_of(job), lists_of(job->view->shape));
}

static void attend_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    kr_attend_list_run(job, source_of(job), lists_of(job->view->shape), part, scratch);
}

static uint32_t merge_parts(const kr_job *job)
{
    return kr_merge_list_parts(job, lists_of(job->view->shape));
}

/* Merge, then the step's softmax over the attended tokens goes into the sums. */
static void merge_run(const kr_job *job, uint32_t head, kr_scratch scratch)
{
    const kr_attention_shape *s = job->view->shape;
    const kr_list_ref ref = {job, s->heads, head, 0, 0};
    const uint32_t *selected = kr_list_selected(&ref), count = job->plan->dense ? 0 : *kr_list_count(&ref);
    float *score = scratch.memory;

    kr_merge_list_run(job, source_of(job), s->heads, head);
    if (count == 0)
        return;
    float *sum = sums_of(job->view, head);       /* a layer that stays dense has none */
    for (uint32_t i = 0, n; i < count; i += n) { /* neighbours in a page lie side by side */
        for (n = 1;
             i + n < count && selected[i + n] == selected[i] + n && selected[i + n] % KR_PAGE_TOKENS != 0;
             n++)
            ;
        job->ops->row_dot(&(kr_row_dot_args){
            .query = job->query + (size_t)head * s->key_dim,
            .queries = 1,
            .query_stride = s->key_dim,
            .dim = s->key_dim,
            .type = s->kv_dtype,
            .row = kr_view_key_row(job->view, kr_list_kv_head(&ref), selected[i]),
            .row_stride = s->key_dim,
            .rows = n,
            .out = score + i,
            .out_stride = n,
        });
    }
    job->ops->softmax(
        &(kr_softmax_args){.score = score, .n = count, .scale = s->softmax_scale, .out = score});
    for (uint32_t i = 0; i < count; i++)
        sum[selected[i]] += score[i];
}

static size_t workspace_bytes(const kr_method_plan *plan, const kr_method_config *config,
                              const kr_attention_shape *shape, uint32_t queries, uint64_t context_max)
{
    (void)config;
    (void)queries;
    return kr_attend_list_workspace(shape, kr_segments(plan->dense ? context_max : plan->selected_max));
}

static uint32_t lists(const kr_method_config *config, const kr_attention_shape *shape)
{
    (void)config;
    return lists_of(shape);
}

static size_t scratch_bytes(const kr_method_plan *plan, const kr_attention_shape *shape, uint64_t context_max)
{
    const size_t attend = kr_attend_list_scratch(shape, lists_of(shape));
    const size_t score = sizeof(float) * (ROWS * context_max + plan->selected_max);
    const size_t select = kr_select_scratch_bytes(context_max, KR_TOPK_MAX);
    const size_t most = score > select ? score : select;

    return attend > most ? attend : most;
}

const kr_method kr_method_h2o = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .name = "h2o",
    .summary = "the keys with the most attention so far, and the newest",
    .source = "FMInference/H2O (NeurIPS 2023)",
    .plan = plan_h2o,
    .workspace_bytes = workspace_bytes,
    .lists = lists,
    .scratch_bytes = scratch_bytes,
    .end_prefill = end_prefill,
    .watches_prompt = true,
    .stage =
        {
            [KR_STAGE_SELECT] = {.parts = select_parts, .run = select_run},
            [KR_STAGE_GATHER] = {.parts = gather_parts, .run = gather_run},
            [KR_STAGE_ATTEND] = {.parts = attend_parts, .run = attend_run},
            [KR_STAGE_MERGE] = {.parts = merge_parts, .run = merge_run},
        },
};
