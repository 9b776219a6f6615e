/* SeerAttention-R: a learned gate ranks blocks of 64 tokens, one gate query per KV head.
 *
 * The compute node turns each complete block's pre-RoPE keys into a gate key and the group's queries into
 * a gate query (kr_seer_gate_key, kr_seer_gate_query in trained.h); they travel as BF16, the key in the
 * row of the block's last token (other rows' keys are ignored). The incomplete newest block has a zero
 * gate key, which takes part in the softmax with logit 0, and is always attended.
 * Decode, per KV head: S = softmax over blocks of Qg.Kg / sqrt(gate_dim). mode 1 (default): the best
 * budget / unit blocks, or all when they are within the budget; mode 2: every block with S > threshold
 * (default 4e-3). The newest block comes beside these.
 * budget defaults to 4096, unit and parameter[0] (elements of a gate key) to what the model's gates have.
 * Prefill attends densely.
 *
 * State, in the page index: gate keys BF16 [kv_head][blocks of a page][gate_dim]. A second turn goes on: a
 * block completed by prompt tokens or generated ones is the same.
 * Source: microsoft/SeerAttention, seer_attn/decode_sparse (SeerAttention-R). */
#include <math.h>
#include <string.h>

#include "method/attend_list.h"
#include "method/trained.h"
#include "ops/index_key.h"

enum { BUDGET_DEFAULT = 4096, UNIT_DEFAULT = 64, GATE_DIM_DEFAULT = 128, ELEMENT = 2 /* BF16 */ };

static const float threshold_default = 4e-3f;

static uint32_t or_default(uint32_t value, uint32_t fallback) { return value != 0 ? value : fallback; }
static uint32_t budget_of(const kr_method_config *c) { return or_default(c->budget, BUDGET_DEFAULT); }
static uint32_t unit_of(const kr_method_config *c) { return or_default(c->unit, UNIT_DEFAULT); }
static uint32_t gate_dim_of(const kr_method_config *c)
{
    return or_default(c->parameter[0], GATE_DIM_DEFAULT);
}
static bool by_threshold(const kr_method_config *c) { return c->mode == KR_SEER_THRESHOLD; }
static float threshold_of(const kr_method_config *c)
{
    return c->threshold > 0.0f ? c->threshold : threshold_default;
}
static uint32_t lists_of(const kr_attention_shape *shape) { return shape->kv_heads; }

/* ---- the gate, on the compute node ---- */

static void finish_gate(const kr_seer_gate *g, const float *norm, uint64_t position, float *out)
{
    double square = 0.0;

    for (uint32_t i = 0; i < g->gate_dim; i++)
        square += (double)out[i] * (double)out[i];
    for (uint32_t i = 0; norm != NULL && i < g->gate_dim; i++)
        out[i] = (float)((double)out[i] / sqrt(square / g->gate_dim + 1e-6)) * norm[i];
    if (g->inv_freq != NULL)
        kr_rope_first(out, g->inv_freq, g->gate_dim, position, false);
}

void kr_seer_pool(float *pool, const float *key, uint32_t head_dim, bool first)
{
    float *largest = pool, *least = pool + head_dim, *sum = least + head_dim;

    for (uint32_t d = 0; d < head_dim; d++) {
        largest[d] = first || key[d] > largest[d] ? key[d] : largest[d];
        least[d] = first || key[d] < least[d] ? key[d] : least[d];
        sum[d] = (first ? 0.0f : sum[d]) + key[d];
    }
}

void kr_seer_gate_key(const kr_seer_gate *g, const float *pool, uint32_t tokens, uint64_t position,
                      float *out)
{
    memset(out, 0, sizeof(float) * g->gate_dim);
    for (uint32_t p = 0; p < 3; p++)
        for (uint32_t d = 0; d < g->head_dim; d++) {
            const size_t at = (size_t)p * g->head_dim + d;
            const float pooled = p < 2 ? pool[at] : pool[at] / (float)tokens;

            for (uint32_t i = 0; i < g->gate_dim; i++)
                out[i] += pooled * g->key_weight[at * g->gate_dim + i];
        }
    finish_gate(g, g->key_norm, position, out);
}

void kr_seer_gate_query(const kr_seer_gate *g, const float *query, uint64_t position, float *out)
{
    memset(out, 0, sizeof(float) * g->gate_dim);
    for (uint32_t d = 0; d < g->group * g->head_dim; d++)
        for (uint32_t i = 0; i < g->gate_dim; i++)
            out[i] += query[d] * g->query_weight[(size_t)d * g->gate_dim + i];
    finish_gate(g, g->query_norm, position, out);
}

/* ---- the project half ----
 * A layer's weights: gates [kv_heads], then what they point to. Its state: pools [kv_heads][3][head_dim]
 * of the open block, which a page's first token begins anew. */

typedef struct {
    uint32_t heads, kv_heads, head_dim, gate_dim, unit;
    kr_seer_gate gate[]; /* [kv_heads] */
} seer_weights;

/* Offsets of a layer's weights. */
typedef struct {
    uint64_t query, key, query_norm, key_norm, inv_freq, bytes;
} seer_places;

static seer_places places_of(const kr_method_config *config, const kr_attention_shape *shape)
{
    const uint64_t dim = gate_dim_of(config), matrix = shape->key_dim * dim * sizeof(float);
    seer_places p;

    p.query = kr_align_up(sizeof(seer_weights) + shape->kv_heads * sizeof(kr_seer_gate), 64);
    p.key = p.query + kr_align_up(shape->heads * matrix, 64);
    p.query_norm = p.key + kr_align_up(3 * shape->kv_heads * matrix, 64);
    p.key_norm = p.query_norm + kr_align_up(dim * sizeof(float), 64);
    p.inv_freq = p.key_norm + kr_align_up(dim * sizeof(float), 64);
    p.bytes = p.inv_freq + kr_align_up(dim / 2 * sizeof(float), 64);
    return p;
}

static size_t weight_bytes(const kr_method_config *config, const kr_attention_shape *shape)
{
    return places_of(config, shape).bytes;
}

static size_t state_bytes(const kr_method_config *config, const kr_attention_shape *shape)
{
    (void)config;
    return 3 * sizeof(float) * shape->kv_heads * shape->key_dim;
}

static kr_status read_gates(const kr_method_config *config, const kr_attention_shape *shape,
                            const kr_weight_source *source, uint8_t *weights, kr_err *err)
{
    const seer_places at = places_of(config, shape);
    const uint32_t dim = gate_dim_of(config);
    const uint64_t rows = (uint64_t)shape->heads * shape->key_dim;
    const struct {
        const char *name;
        bool wanted;
        uint64_t rows, at;
    } tensors[] = {
        {"self_attn.attn_gate.attngate_linear_q.weight", true, rows, at.query},
        {"self_attn.attn_gate.attngate_linear_k.weight", true, 3ull * shape->kv_heads * shape->key_dim,
         at.key},
        {"self_attn.attn_gate.attngate_qnorm.weight", source->model->gates.norm, 1, at.query_norm},
        {"self_attn.attn_gate.attngate_knorm.weight", source->model->gates.norm, 1, at.key_norm},
    };
    kr_status status = KR_OK;

    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0] && status == KR_OK; i++)
        if (tensors[i].wanted)
            status = source->read(source, shape->layer, tensors[i].name, tensors[i].rows, dim,
                                  weights == NULL ? NULL : (float *)(void *)(weights + tensors[i].at), err);
    return status;
}

static kr_status bind(const kr_method_config *config, const kr_attention_shape *shape,
                      const kr_weight_source *source, void *weights, kr_err *err)
{
    const seer_places at = places_of(config, shape);
    const uint32_t dim = gate_dim_of(config), group = shape->heads / shape->kv_heads;
    const kr_gates *gates = &source->model->gates;
    const kr_status status = read_gates(config, shape, source, weights, err);
    uint8_t *base = weights;
    seer_weights *w = weights;
    kr_rope rope = source->model->rope[0];

    if (status != KR_OK || weights == NULL)
        return status;
    rope.dims = dim;
    kr_rope_frequencies(&rope, (float *)(void *)(base + at.inv_freq));
    *w = (seer_weights){shape->heads, shape->kv_heads, shape->key_dim, dim, unit_of(config)};
    for (uint32_t h = 0; h < shape->kv_heads; h++) {
        const uint64_t matrix = (uint64_t)shape->key_dim * dim;

        w->gate[h] = (kr_seer_gate){
            .head_dim = shape->key_dim,
            .group = group,
            .gate_dim = dim,
            .query_weight = (float *)(void *)(base + at.query) + h * group * matrix,
            .key_weight = (float *)(void *)(base + at.key) + h * 3 * matrix,
            .query_norm = gates->norm ? (float *)(void *)(base + at.query_norm) : NULL,
            .key_norm = gates->norm ? (float *)(void *)(base + at.key_norm) : NULL,
            .inv_freq = gates->rope ? (float *)(void *)(base + at.inv_freq) : NULL,
        };
    }
    return KR_OK;
}

/* Gate queries are read in decode alone; a gate key leaves with its block's last token. */
static void project(const kr_project_job *job)
{
    const seer_weights *w = job->weights;
    const uint32_t group = w->heads / w->kv_heads;
    float gated[KR_ATTEND_DIM_MAX];

    for (uint32_t r = 0; r < job->rows; r++) {
        const uint64_t position = job->first_position + r, in_block = position % w->unit;

        for (uint32_t h = 0; h < w->kv_heads; h++) {
            const uint64_t head = (uint64_t)r * w->kv_heads + h;
            const uint64_t out = head * w->gate_dim * ELEMENT;
            float *pool = (float *)job->state + (size_t)h * 3 * w->head_dim;

            kr_seer_pool(pool, job->key + head * w->head_dim, w->head_dim, in_block == 0);
            if (in_block == w->unit - 1) {
                kr_seer_gate_key(&w->gate[h], pool, w->unit, position - in_block, gated);
                kr_from_f32(KR_BF16, gated, job->index_key + out, w->gate_dim);
            }
            if (!job->is_prefill) {
                kr_seer_gate_query(&w->gate[h], job->query + head * group * w->head_dim, position, gated);
                kr_from_f32(KR_BF16, gated, job->index_query + out, w->gate_dim);
            }
        }
    }
}

static const kr_method_project seer_project = {
    .weight_bytes = weight_bytes, .state_bytes = state_bytes, .bind = bind, .run = project};

/* ---- plan ---- */

static kr_status plan_seer(const kr_method_config *config, const kr_attention_shape *shape,
                           uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    kr_method_plan p;
    const kr_status status = kr_list_plan("seer", config, shape, 0, &p, err);
    const uint32_t unit = unit_of(config), dim = gate_dim_of(config);

    if (status != KR_OK)
        return status;
    if (KR_PAGE_TOKENS % unit != 0 || dim > KR_ATTEND_DIM_MAX || config->mode > KR_SEER_THRESHOLD)
        return kr_fail(err, KR_E_SHAPE,
                       "seer: blocks of %u must divide %d, gates of %u be at most %d; modes are 1 "
                       "(top-k) and 2 (threshold)",
                       unit, KR_PAGE_TOKENS, dim, KR_ATTEND_DIM_MAX);
    if (budget_of(config) < unit || budget_of(config) / unit > KR_TOPK_MAX)
        return kr_fail(err, KR_E_LIMIT, "seer: budget %u, must be 1..%d blocks of %u", budget_of(config),
                       KR_TOPK_MAX, unit);
    if (!p.dense) {
        p.granularity = KR_UNIT_BLOCK;
        p.unit_tokens = unit;
        p.separate_index_query = true;
        p.index_query_bytes = p.index_key_bytes = shape->kv_heads * dim * ELEMENT;
        p.page_index_bytes = shape->kv_heads * (KR_PAGE_TOKENS / unit) * dim * ELEMENT;
        p.selected_max = by_threshold(config) ? (uint32_t)context_max : budget_of(config) + unit;
        /* Scores sum to 1, so that at most 1 / threshold blocks are above it. */
        if (by_threshold(config))
            p.attended_fixed = (uint32_t)fmin(1.0 / threshold_of(config) + 1.0, KR_TOPK_MAX) * unit;
        p.cost[KR_STAGE_SCORE].per_unit = (kr_work){
            .flops = 2 * (uint64_t)shape->kv_heads * dim,
            .read_bytes = (uint64_t)shape->kv_heads * dim * ELEMENT,
        };
    }
    *plan = p;
    return KR_OK;
}

/* ---- append ---- */

static uint16_t *gate_key(const kr_job *job, uint32_t kv_head, uint64_t block)
{
    const uint64_t a_page = KR_PAGE_TOKENS / job->plan->unit_tokens;

    return (uint16_t *)kr_view_index(job->view, block / a_page) +
           (kv_head * a_page + block % a_page) * gate_dim_of(job->config);
}

static uint32_t append_parts(const kr_job *job) { return !job->plan->dense && job->index_key != NULL; }

static void append_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    const uint32_t unit = job->plan->unit_tokens, dim = gate_dim_of(job->config);

    (void)part;
    (void)scratch;
    for (uint32_t r = 0; r < job->queries; r++) {
        const uint64_t token = job->first_position + r;
        const uint16_t *row = (const uint16_t *)job->index_key + (size_t)r * job->view->shape->kv_heads * dim;

        for (uint32_t g = 0; g < job->view->shape->kv_heads; g++)
            if (token % unit == unit - 1)
                memcpy(gate_key(job, g, token / unit), row + (size_t)g * dim, dim * ELEMENT);
            else /* an open block has none, nor has one that a cut has opened again */
                memset(gate_key(job, g, token / unit), 0, dim * ELEMENT);
    }
}

/* ---- score and select: one part a KV head ----
 * Workspace of a decode row behind the partial results: S [kv_heads][blocks]. */

static uint64_t blocks_of(const kr_job *job)
{
    return kr_ceil_div(kr_job_visible(job, 0), job->plan->unit_tokens);
}

static float *scores_of(const kr_job *job, uint32_t kv_head)
{
    return (float *)kr_attend_list_behind(job, &kr_list_units) + kv_head * blocks_of(job);
}

static bool takes_all(const kr_job *job)
{
    return !by_threshold(job->config) && blocks_of(job) * job->plan->unit_tokens <= budget_of(job->config);
}

static bool selects(const kr_job *job) { return !kr_job_is_dense(job) && job->index_query != NULL; }

static uint32_t score_parts(const kr_job *job)
{
    return selects(job) && !takes_all(job) ? job->view->shape->kv_heads : 0;
}

static void score_run(const kr_job *job, uint32_t kv_head, kr_scratch scratch)
{
    const uint32_t dim = gate_dim_of(job->config), a_page = KR_PAGE_TOKENS / job->plan->unit_tokens;
    const uint64_t blocks = blocks_of(job);
    float query[KR_ATTEND_DIM_MAX], *score = scores_of(job, kv_head);

    (void)scratch;
    kr_to_f32(KR_BF16, (const uint16_t *)job->index_query + (size_t)kv_head * dim, query, dim);
    for (uint64_t b = 0; b < blocks; b += a_page)
        job->ops->row_dot(&(kr_row_dot_args){
            .query = query,
            .queries = 1,
            .query_stride = dim,
            .dim = dim,
            .type = KR_BF16,
            .row = gate_key(job, kv_head, b),
            .rows = blocks - b < a_page ? blocks - b : a_page,
            .row_stride = dim,
            .out = score + b,
            .out_stride = blocks,
        });
    job->ops->softmax(
        &(kr_softmax_args){.score = score, .n = blocks, .scale = 1.0f / sqrtf((float)dim), .out = score});
}

static uint32_t select_parts(const kr_job *job) { return selects(job) ? job->view->shape->kv_heads : 0; }

static void select_run(const kr_job *job, uint32_t kv_head, kr_scratch scratch)
{
    const kr_list_ref ref = {job, job->view->shape->kv_heads, kv_head, 0, 0};
    const uint64_t blocks = blocks_of(job);
    const float *score = scores_of(job, kv_head);
    const float threshold = threshold_of(job->config);
    uint32_t *selected = kr_list_selected(&ref), count = 0;
    uint64_t nan = 0;

    if (takes_all(job)) {
        for (; count < blocks; count++)
            selected[count] = count;
    } else if (by_threshold(job->config)) {
        for (uint64_t b = 0; b < blocks; b++) {
            nan += isnan(score[b]);
            if (score[b] > threshold)
                selected[count++] = (uint32_t)b;
        }
    } else {
        count = job->ops->select_topk(&(kr_select_topk_args){
            .score = score,
            .n = blocks,
            .k = budget_of(job->config) / job->plan->unit_tokens,
            .position = selected,
            .scratch = scratch.memory,
            .nan_count = &nan,
        });
    }
    if (count == 0 || selected[count - 1] != blocks - 1)
        selected[count++] = (uint32_t)(blocks - 1);
    *kr_list_count(&ref) = count;
    kr_count_nan(job, nan);
}

static const kr_list_source *source_of(const kr_job *job)
{
    return kr_job_is_dense(job) ? &kr_list_dense : &kr_list_units;
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
           sizeof(float) * shape->kv_heads * kr_ceil_div(context_max, plan->unit_tokens);
}

static size_t scratch_bytes(const kr_method_plan *plan, const kr_attention_shape *shape, uint64_t context_max)
{
    const size_t select = kr_select_scratch_bytes(kr_ceil_div(context_max, plan->unit_tokens), KR_TOPK_MAX);

    return kr_list_scratch(plan, shape, lists_of(shape), select);
}

const kr_method kr_method_seer = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .modes = KR_SEER_THRESHOLD,
    .name = "seer",
    .summary = "blocks ranked by a learned gate, by number or by threshold",
    .source = "microsoft/SeerAttention (SeerAttention-R)",
    .plan = plan_seer,
    .workspace_bytes = workspace_bytes,
    .lists = lists,
    .scratch_bytes = scratch_bytes,
    .project = &seer_project,
    .stage =
        {
            [KR_STAGE_APPEND] = {.parts = append_parts, .run = append_run},
            [KR_STAGE_SCORE] = {.parts = score_parts, .run = score_run},
            [KR_STAGE_SELECT] = {.parts = select_parts, .run = select_run},
            [KR_STAGE_ATTEND] = {.parts = attend_parts, .run = attend_run},
            [KR_STAGE_MERGE] = {.parts = merge_parts, .run = merge_run},
        },
};
