/* SnapKV: at the end of the prompt, keep what its last queries looked at.
 *
 * Per query head: softmax rows of the last w queries (causal) summed over the rows for the
 * keys before the window, pooled over 1-D neighbourhoods of `kernel` positions, the best cap - w kept
 * with the window; all generated tokens are kept too. A prompt shorter than cap keeps everything.
 * budget = cap (default 2048); parameter[0] = w (32), [1] = kernel (5, odd); mode 1 = average pooling
 * (default; divides by kernel at the borders too), 2 = maximum.
 *
 * State, in the index record: the last w queries and, after the prompt, the kept list of each head.
 * Nothing is freed: a second turn's prompt attends densely to everything stored, and at its end the
 * choice is made anew over the whole context with the last w queries, which reach into generated
 * tokens when the new prompt is shorter than w.
 * Source: FasterDecoding/SnapKV, snapkv_utils.py (NeurIPS 2024). */
#include <math.h>
#include <string.h>

#include "method/attend_list.h"
#include "method/training_free.h"

enum { CAP_DEFAULT = 2048, WINDOW_DEFAULT = 32, KERNEL_DEFAULT = 5, WINDOW_MAX = 256, KERNEL_MAX = 63 };
enum { POOL_AVERAGE = 1, POOL_MAXIMUM = 2 };

static uint32_t or_default(uint32_t value, uint32_t fallback) { return value != 0 ? value : fallback; }
static uint32_t cap_of(const kr_method_config *c) { return or_default(c->budget, CAP_DEFAULT); }
static uint32_t window_of(const kr_method_config *c) { return or_default(c->parameter[0], WINDOW_DEFAULT); }
static uint32_t kernel_of(const kr_method_config *c) { return or_default(c->parameter[1], KERNEL_DEFAULT); }
static uint32_t lists_of(const kr_attention_shape *shape) { return shape->heads; }

/* Record body: this, then queries F32 [window][heads][key_dim] as a ring by position, then kept
 * positions u32 [heads][cap - window]. */
typedef struct {
    uint64_t prompt_end; /* tokens at the last end of a prompt; 0: none yet */
    uint64_t kept;       /* positions kept per head; 0 with prompt_end set: the prompt was short */
} state;

static size_t query_floats(const kr_view *view) { return (size_t)view->shape->heads * view->shape->key_dim; }

static float *ring(const kr_view *view) { return (float *)((state *)kr_view_record_body(view) + 1); }

static float *ring_row(const kr_view *view, uint32_t window, uint64_t position)
{
    return ring(view) + position % window * query_floats(view);
}

static uint32_t *kept_list(const kr_view *view, const kr_method_config *config, uint32_t head)
{
    return (uint32_t *)(ring(view) + window_of(config) * query_floats(view)) +
           (size_t)head * (cap_of(config) - window_of(config));
}

static kr_status plan_snapkv(const kr_method_config *config, const kr_attention_shape *shape,
                             uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    kr_method_plan p;
    const kr_status status = kr_list_plan("snapkv", config, shape, 0, &p, err);
    const uint64_t window = window_of(config), cap = cap_of(config);

    if (status != KR_OK)
        return status;
    if (window > WINDOW_MAX || cap <= window || cap - window > KR_TOPK_MAX)
        return kr_fail(err, KR_E_LIMIT,
                       "snapkv: budget %u and window %u; the window is at most %d, the budget above "
                       "it by 1..%d",
                       cap_of(config), window_of(config), WINDOW_MAX, KR_TOPK_MAX);
    if (kernel_of(config) % 2 == 0 || kernel_of(config) > KERNEL_MAX || config->mode > POOL_MAXIMUM)
        return kr_fail(err, KR_E_UNSUPPORTED,
                       "snapkv: pooling kernel %u must be odd and at most %d; modes are 1 "
                       "(average) and 2 (maximum)",
                       kernel_of(config), KERNEL_MAX);
    if (!p.dense) {
        p.selected_max = (uint32_t)context_max; /* every generated token is kept */
        p.attended_fixed = (uint32_t)cap;       /* without the generated ones, which a plan cannot know */
        p.record_body_bytes = sizeof(state) + sizeof(float) * window * shape->heads * shape->key_dim +
                              sizeof(uint32_t) * shape->heads * (cap - window);
    }
    *plan = p;
    return KR_OK;
}

/* ---- append: remember the newest queries ---- */

static uint32_t append_parts(const kr_job *job) { return !job->plan->dense && job->query != NULL; }

static void append_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    const uint32_t window = window_of(job->config), skip = job->queries > window ? job->queries - window : 0;
    const size_t row = query_floats(job->view);

    (void)part;
    (void)scratch;
    for (uint32_t q = skip; q < job->queries; q++)
        memcpy(ring_row(job->view, window, job->first_position + q), job->query + q * row,
               row * sizeof(float));
}

/* ---- end of the prompt ---- */

/* Adds softmax(q.k) over tokens [0, position] to sum. */
static void add_attention(const kr_view *view, const kr_ops *ops, uint32_t head, const float *query,
                          uint64_t position, float *score, float *sum)
{
    const kr_attention_shape *s = view->shape;
    const uint32_t kv_head = head / (s->heads / s->kv_heads);

    for (uint64_t t = 0; t <= position; t += KR_PAGE_TOKENS)
        ops->row_dot(&(kr_row_dot_args){
            .query = query,
            .queries = 1,
            .query_stride = s->key_dim,
            .dim = s->key_dim,
            .type = s->kv_dtype,
            .row = kr_view_key_row(view, kv_head, t),
            .row_stride = s->key_dim,
            .rows = position + 1 - t < KR_PAGE_TOKENS ? position + 1 - t : KR_PAGE_TOKENS,
            .out = score + t,
            .out_stride = KR_PAGE_TOKENS,
        });
    ops->softmax(&(kr_softmax_args){
        .score = score, .n = position + 1, .scale = s->softmax_scale, .add = true, .out = sum});
}

static void pool(const kr_method_config *config, const float *sum, uint64_t n, float *out)
{
    const int64_t reach = kernel_of(config) / 2;

    for (int64_t t = 0; t < (int64_t)n; t++) {
        float total = 0.0f, largest = -INFINITY;

        for (int64_t i = t - reach; i <= t + reach; i++)
            if (i >= 0 && i < (int64_t)n) {
                total += sum[i];
                largest = sum[i] > largest ? sum[i] : largest;
            }
        out[t] = config->mode == POOL_MAXIMUM ? largest : total / (float)kernel_of(config);
    }
}

static kr_status end_prefill(const kr_view *view, const kr_method_config *config, const kr_ops *ops,
                             kr_scratch scratch, kr_err *err)
{
    const uint32_t window = window_of(config);
    state *st = kr_view_record_body(view);
    float *sum = scratch.memory, *score = sum + view->tokens + KR_PAGE_TOKENS;
    void *topk = (uint8_t *)scratch.memory +
                 kr_align_up(2 * sizeof(float) * (view->tokens + KR_PAGE_TOKENS), 64);
    uint64_t nan = 0;

    (void)err;
    if (view->record->body_bytes == 0)
        return KR_OK; /* a layer that stays dense */
    st->prompt_end = view->tokens;
    st->kept = 0;
    if (view->tokens < cap_of(config))
        return KR_OK;
    const uint64_t before = view->tokens - window;

    for (uint32_t head = 0; head < view->shape->heads; head++) {
        memset(sum, 0, sizeof(float) * view->tokens);
        for (uint64_t t = before; t < view->tokens; t++)
            add_attention(view, ops, head, ring_row(view, window, t) + (size_t)head * view->shape->key_dim, t,
                          score, sum);
        pool(config, sum, before, score);
        st->kept = ops->select_topk(&(kr_select_topk_args){
            .score = score,
            .n = before,
            .k = cap_of(config) - window,
            .position = kept_list(view, config, head),
            .scratch = topk,
            .nan_count = &nan,
        });
    }
    return KR_OK;
}

/* ---- decode: the kept list, then everything from the window on ---- */

static uint32_t select_parts(const kr_job *job) { return kr_job_is_dense(job) ? 0 : job->view->shape->heads; }

static void select_run(const kr_job *job, uint32_t head, kr_scratch scratch)
{
    const kr_list_ref ref = {job, job->view->shape->heads, head, 0, 0};
    const state *st = kr_view_record_body(job->view);
    uint32_t *selected = kr_list_selected(&ref), count = (uint32_t)st->kept;

    (void)scratch;
    memcpy(selected, kept_list(job->view, job->config, head), count * sizeof *selected);
    for (uint64_t t = count == 0 ? 0 : st->prompt_end - window_of(job->config); t < kr_job_visible(job, 0);
         t++)
        selected[count++] = (uint32_t)t;
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
    (void)plan;
    (void)config;
    (void)queries;
    return kr_attend_list_workspace(shape, kr_segments(context_max));
}

static size_t scratch_bytes(const kr_method_plan *plan, const kr_attention_shape *shape, uint64_t context_max)
{
    const size_t build = kr_align_up(2 * sizeof(float) * (context_max + KR_PAGE_TOKENS), 64) +
                         kr_select_scratch_bytes(context_max, KR_TOPK_MAX);

    return kr_list_scratch(plan, shape, lists_of(shape), build);
}

const kr_method kr_method_snapkv = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .modes = POOL_MAXIMUM,
    .name = "snapkv",
    .summary = "what the prompt's last queries attended to, chosen once at its end",
    .source = "FasterDecoding/SnapKV (NeurIPS 2024)",
    .plan = plan_snapkv,
    .workspace_bytes = workspace_bytes,
    .lists = lists,
    .scratch_bytes = scratch_bytes,
    .end_prefill = end_prefill,
    .watches_prompt = true,
    .stage =
        {
            [KR_STAGE_APPEND] = {.parts = append_parts, .run = append_run},
            [KR_STAGE_SELECT] = {.parts = select_parts, .run = select_run},
            [KR_STAGE_ATTEND] = {.parts = attend_parts, .run = attend_run},
            [KR_STAGE_MERGE] = {.parts = merge_parts, .run = merge_run},
        },
};
