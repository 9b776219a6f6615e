/* STARC: keys clustered in windows of 64, clusters of about 16 taken whole.
 *
 * Build: consecutive windows of `window` tokens are clustered alone, by k-means on L2-normalised keys
 * into ceil(n / unit) clusters: centroids start as the window's first keys, at most 16 Lloyd rounds
 * with the nearest centroid (first index wins), an empty cluster's centroid becomes 0, stop when no
 * element moves by more than 1e-4 + 1e-5 |c|. Tokens not yet in a window are "recent". Old clusters
 * are never touched.
 * Decode: per query head, cluster score q.c / sqrt d; recent tokens are all taken and count in the
 * budget; clusters are taken whole in descending score while they fit; the first that does not gives
 * its first tokens in stored order; nothing after it.
 * budget defaults to 1024, unit to 16; parameter[0] = window (64). Layers 0 and 1 stay dense.
 *
 * When: a full window of prompt tokens is clustered as soon as it is stored, so the result does not
 * depend on chunks; at the first decode step after a prompt the rest, that step's token included,
 * is clustered as a shorter window, and from then on every 64 new tokens. A second turn's prompt
 * goes on from there and its rest is clustered the same way (after very many short turns the rest stays
 * recent until its window is full).
 * State, in the index record per KV head: centroids in the KV type, a cluster's first member, members
 * in cluster order.
 * Source: EPIC-RPI/STARC, evaluation/starc_attention.py (ASPLOS 2026). */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "method/attend_list.h"
#include "method/training_free.h"

enum {
    BUDGET_DEFAULT = 1024,
    UNIT_DEFAULT = 16,
    WINDOW_DEFAULT = 64,
    WINDOW_MAX = 256,
    ROUNDS = 16,
    DENSE_LAYERS = 2
};

static uint32_t or_default(uint32_t value, uint32_t fallback) { return value != 0 ? value : fallback; }
static uint32_t budget_of(const kr_method_config *c) { return or_default(c->budget, BUDGET_DEFAULT); }
static uint32_t unit_of(const kr_method_config *c) { return or_default(c->unit, UNIT_DEFAULT); }
static uint32_t window_of(const kr_method_config *c) { return or_default(c->parameter[0], WINDOW_DEFAULT); }
static uint32_t lists_of(const kr_attention_shape *shape) { return shape->heads; }

/* One KV head's part of the record: this, first [clusters_max + 1], member [tokens_max], centroids
 * [clusters_max][key_dim] of the KV type. */
typedef struct {
    uint64_t tokens; /* clustered: tokens [0, tokens) */
    uint64_t clusters;
    uint64_t decoded; /* the newest job was a decode step */
    uint64_t reserved;
} head_state;

typedef struct {
    head_state *st;
    uint32_t *first, *member;
    uint8_t *centroid;
    uint64_t clusters_max;
} head_index;

/* Clusters of a full window, and one more a window as room for short ones. */
static uint64_t clusters_a_window(const kr_method_config *c)
{
    return kr_ceil_div(window_of(c), unit_of(c)) + 1;
}

/* Bytes of one KV head for whole windows: linear, so that the number can be found again. */
static uint64_t fixed_bytes(void) { return sizeof(head_state) + sizeof(uint32_t); }
static uint64_t window_bytes(const kr_method_config *c, const kr_attention_shape *s)
{
    const uint64_t cluster = sizeof(uint32_t) + s->key_dim * (uint64_t)kr_dtype_bytes(s->kv_dtype);

    return clusters_a_window(c) * cluster + sizeof(uint32_t) * window_of(c);
}

static uint64_t head_bytes(const kr_method_config *c, const kr_attention_shape *s, uint64_t tokens)
{
    return kr_align_up(fixed_bytes() + kr_ceil_div(tokens, window_of(c)) * window_bytes(c, s), 8);
}

static head_index index_of(const kr_view *view, const kr_method_config *c, uint32_t kv_head)
{
    const uint64_t bytes = view->record->body_bytes / view->shape->kv_heads;
    const uint64_t windows = (bytes - fixed_bytes()) / window_bytes(c, view->shape);
    head_index x = {.st = (head_state *)((uint8_t *)kr_view_record_body(view) + bytes * kv_head)};

    x.clusters_max = windows * clusters_a_window(c);
    x.first = (uint32_t *)(x.st + 1);
    x.member = x.first + x.clusters_max + 1;
    x.centroid = (uint8_t *)(x.member + windows * window_of(c));
    return x;
}

static kr_status plan_starc(const kr_method_config *config, const kr_attention_shape *shape,
                            uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    kr_method_plan p;
    const kr_status status = kr_list_plan("starc", config, shape, DENSE_LAYERS, &p, err);
    const uint64_t element = kr_dtype_bytes(shape->kv_dtype);

    if (status != KR_OK)
        return status;
    if (unit_of(config) < 2 || window_of(config) > WINDOW_MAX || unit_of(config) > window_of(config))
        return kr_fail(err, KR_E_SHAPE,
                       "starc: clusters of %u in windows of %u; must be 2..window, window at most %d",
                       unit_of(config), window_of(config), WINDOW_MAX);
    if (budget_of(config) > KR_TOPK_MAX)
        return kr_fail(err, KR_E_LIMIT, "starc: budget %u, must be at most %d", budget_of(config),
                       KR_TOPK_MAX);
    if (!p.dense) {
        p.granularity = KR_UNIT_CLUSTER;
        p.record_body_bytes = shape->kv_heads * head_bytes(config, shape, context_max);
        /* The budget is exceeded only by recent tokens. */
        p.selected_max = budget_of(config) > window_of(config) ? budget_of(config) : window_of(config);
        p.cost[KR_STAGE_SCORE].per_context_token = (kr_work){
            .flops = 2 * (uint64_t)shape->heads * shape->key_dim / unit_of(config),
            .read_bytes = shape->kv_heads * shape->key_dim * element / unit_of(config),
        };
    }
    *plan = p;
    return KR_OK;
}

/* ---- k-means of one window ---- */

typedef struct {
    float *key;      /* [n][dim], normalised */
    float *centroid; /* [k][dim] */
    float *next;     /* [k][dim] */
    uint32_t n, k, dim;
    uint32_t label[WINDOW_MAX], size[WINDOW_MAX];
} clustering;

/* Nearest centroid by squared distance; |x|^2 is the same for all. */
static void assign(clustering *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        float best = INFINITY;

        c->label[i] = 0;
        for (uint32_t j = 0; j < c->k; j++) {
            float dot = 0.0f, square = 0.0f;

            for (uint32_t d = 0; d < c->dim; d++) {
                dot += c->key[i * c->dim + d] * c->centroid[j * c->dim + d];
                square += c->centroid[j * c->dim + d] * c->centroid[j * c->dim + d];
            }
            if (square - 2.0f * dot < best) {
                best = square - 2.0f * dot;
                c->label[i] = j;
            }
        }
    }
}

/* Moves centroids to their members' mean; false when none moved. */
static bool move(clustering *c)
{
    bool moved = false;

    memset(c->next, 0, sizeof(float) * c->k * c->dim);
    memset(c->size, 0, sizeof(uint32_t) * c->k);
    for (uint32_t i = 0; i < c->n; i++) {
        c->size[c->label[i]]++;
        for (uint32_t d = 0; d < c->dim; d++)
            c->next[c->label[i] * c->dim + d] += c->key[i * c->dim + d];
    }
    for (uint32_t i = 0; i < c->k * c->dim; i++) {
        const uint32_t size = c->size[i / c->dim];

        c->next[i] /= size > 0 ? (float)size : 1.0f;
        moved = moved || !(fabsf(c->centroid[i] - c->next[i]) <= 1e-4f + 1e-5f * fabsf(c->next[i]));
        c->centroid[i] = c->next[i];
    }
    return moved;
}

static void load_normalised(const kr_view *view, uint32_t kv_head, uint64_t token, float *out)
{
    const kr_attention_shape *s = view->shape;
    float square = 0.0f;

    kr_to_f32(s->kv_dtype, kr_view_key_row(view, kv_head, token), out, s->key_dim);
    for (uint32_t d = 0; d < s->key_dim; d++)
        square += out[d] * out[d];
    const float norm = sqrtf(square) > 1e-12f ? sqrtf(square) : 1e-12f;

    for (uint32_t d = 0; d < s->key_dim; d++)
        out[d] /= norm;
}

/* Clusters tokens [st->tokens, end) of one KV head. */
static void cluster_window(const kr_view *view, const kr_method_config *config, uint32_t kv_head,
                           uint64_t end, kr_scratch scratch)
{
    const kr_attention_shape *s = view->shape;
    head_index x = index_of(view, config, kv_head);
    const uint32_t n = (uint32_t)(end - x.st->tokens);
    clustering c = {
        .n = n, .k = (uint32_t)kr_ceil_div(n, unit_of(config)), .dim = s->key_dim, .key = scratch.memory};

    KR_CHECK(x.st->clusters + c.k <= x.clusters_max);
    c.centroid = c.key + (size_t)n * c.dim;
    c.next = c.centroid + (size_t)c.k * c.dim;
    for (uint32_t i = 0; i < n; i++)
        load_normalised(view, kv_head, x.st->tokens + i, c.key + (size_t)i * c.dim);
    memcpy(c.centroid, c.key, sizeof(float) * c.k * c.dim);
    for (int round = 0; round < ROUNDS; round++) {
        assign(&c);
        if (!move(&c))
            break;
    }
    uint32_t at = (uint32_t)x.st->tokens;

    for (uint32_t j = 0; j < c.k; j++) {
        x.first[x.st->clusters + j] = at;
        for (uint32_t i = 0; i < n; i++)
            if (c.label[i] == j)
                x.member[at++] = (uint32_t)x.st->tokens + i;
        kr_from_f32(s->kv_dtype, c.centroid + (size_t)j * c.dim,
                    x.centroid + (x.st->clusters + j) * c.dim * kr_dtype_bytes(s->kv_dtype), c.dim);
    }
    x.st->clusters += c.k;
    x.first[x.st->clusters] = at;
    x.st->tokens = end;
}

/* ---- append ---- */

static uint32_t append_parts(const kr_job *job) { return job->plan->dense ? 0 : job->view->shape->kv_heads; }

/* A short window is taken only while one a full window is the average, which bounds clusters. */
static bool has_room_for_short(const kr_job *job, const head_index *x, uint64_t end)
{
    const uint64_t clusters = x->st->clusters + kr_ceil_div(end - x->st->tokens, unit_of(job->config));

    return clusters <= kr_ceil_div(end, window_of(job->config)) * clusters_a_window(job->config);
}

static void append_run(const kr_job *job, uint32_t kv_head, kr_scratch scratch)
{
    const uint64_t end = job->first_position + job->queries;
    const head_index x = index_of(job->view, job->config, kv_head);
    const bool first_step = !job->is_prefill && !x.st->decoded;

    x.st->decoded = !job->is_prefill;
    while (end - x.st->tokens >= window_of(job->config))
        cluster_window(job->view, job->config, kv_head, x.st->tokens + window_of(job->config), scratch);
    if (first_step && end > x.st->tokens && has_room_for_short(job, &x, end))
        cluster_window(job->view, job->config, kv_head, end, scratch);
}

/* ---- score and select ----
 * Workspace of a decode row behind the partial results: scores [heads][clusters]. */

static float *scores_of(const kr_job *job, uint32_t head)
{
    const uint32_t group = job->view->shape->heads / job->view->shape->kv_heads;

    return (float *)kr_attend_list_behind(job, &kr_list_tokens) +
           head * index_of(job->view, job->config, head / group).st->clusters;
}

static uint32_t score_parts(const kr_job *job)
{
    return kr_job_is_dense(job) ? 0 : job->view->shape->kv_heads;
}

static void score_run(const kr_job *job, uint32_t kv_head, kr_scratch scratch)
{
    const kr_attention_shape *s = job->view->shape;
    const head_index x = index_of(job->view, job->config, kv_head);
    const uint32_t group = s->heads / s->kv_heads;

    (void)scratch;
    job->ops->row_dot(&(kr_row_dot_args){
        .query = job->query + (size_t)kv_head * group * s->key_dim,
        .queries = group,
        .query_stride = s->key_dim,
        .dim = s->key_dim,
        .type = s->kv_dtype,
        .row = x.centroid,
        .rows = x.st->clusters,
        .row_stride = s->key_dim,
        .out = scores_of(job, kv_head * group),
        .out_stride = x.st->clusters,
    });
    for (uint32_t h = 0; h < group; h++) /* an empty cluster has nothing to take */
        for (uint64_t c = 0; c < x.st->clusters; c++)
            if (x.first[c] == x.first[c + 1])
                scores_of(job, kv_head * group + h)[c] = -INFINITY;
}

/* Sorts cluster numbers by (score descending, number ascending): binary insertion into a short list. */
static void sort_clusters(const float *score, uint32_t *cluster, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        const uint32_t c = cluster[i];
        uint32_t low = 0, high = i;

        while (low < high) {
            const uint32_t mid = (low + high) / 2;

            if (score[cluster[mid]] >= score[c])
                low = mid + 1;
            else
                high = mid;
        }
        memmove(cluster + low + 1, cluster + low, sizeof *cluster * (i - low));
        cluster[low] = c;
    }
}

static uint32_t select_parts(const kr_job *job) { return kr_job_is_dense(job) ? 0 : job->view->shape->heads; }

/* Takes members of the best clusters up to room tokens. A non-empty cluster has at least one, so the
 * best `room` clusters are enough. Returns the number written. */
static uint32_t take_clusters(const kr_job *job, const head_index *x, const float *score, uint32_t room,
                              uint32_t *token, kr_scratch scratch)
{
    uint32_t *cluster = scratch.memory, k = room / unit_of(job->config) * 2 + 16, taken;
    uint64_t nan;

    for (;;) {
        uint32_t count;

        k = k < room ? k : room;
        nan = 0;
        taken = 0;
        count = job->ops->select_topk(&(kr_select_topk_args){
            .score = score,
            .n = x->st->clusters,
            .k = k,
            .position = cluster,
            .scratch = (uint8_t *)scratch.memory + kr_align_up(sizeof(uint32_t) * KR_TOPK_MAX, 64),
            .nan_count = &nan,
        });
        sort_clusters(score, cluster, count);
        for (uint32_t i = 0; i < count && taken < room; i++)
            for (uint32_t m = x->first[cluster[i]]; m < x->first[cluster[i] + 1] && taken < room; m++)
                token[taken++] = x->member[m];
        if (taken == room || k == room || k >= x->st->clusters)
            break;
        k *= 2;
    }
    kr_count_nan(job, nan);
    return taken;
}

static void select_run(const kr_job *job, uint32_t head, kr_scratch scratch)
{
    const kr_list_ref ref = {job, job->view->shape->heads, head, 0, 0};
    const head_index x = index_of(job->view, job->config, kr_list_kv_head(&ref));
    const uint64_t visible = kr_job_visible(job, 0), recent = visible - x.st->tokens;
    uint32_t *selected = kr_list_selected(&ref), count = 0;

    if (recent < budget_of(job->config)) {
        count = take_clusters(job, &x, scores_of(job, head), budget_of(job->config) - (uint32_t)recent,
                              selected, scratch);
        kr_list_sort(selected, count, visible, scratch.memory); /* top-k's is more than a bit a token */
    }
    for (uint64_t t = x.st->tokens; t < visible; t++)
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
    (void)queries;
    if (plan->dense)
        return kr_attend_list_workspace(shape, kr_segments(context_max));
    return kr_attend_list_workspace(shape, kr_segments(plan->selected_max)) +
           sizeof(float) * shape->heads * kr_ceil_div(context_max, window_of(config)) *
               clusters_a_window(config);
}

static size_t scratch_bytes(const kr_method_plan *plan, const kr_attention_shape *shape, uint64_t context_max)
{
    const size_t build = sizeof(float) * 3 * WINDOW_MAX * shape->key_dim;
    const size_t select = kr_align_up(sizeof(uint32_t) * KR_TOPK_MAX, 64) +
                          kr_select_scratch_bytes(context_max, KR_TOPK_MAX);
    const size_t most = build > select ? build : select;

    return kr_list_scratch(plan, shape, lists_of(shape), most);
}

const kr_method kr_method_starc = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .name = "starc",
    .summary = "whole clusters of about 16 keys, clustered in windows of 64",
    .source = "EPIC-RPI/STARC (ASPLOS 2026)",
    .plan = plan_starc,
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
