/* RetroInfer: clusters of keys; the best are attended exactly, the next are estimated from their
 * centroid and sum of values, the rest are ignored.
 *
 * Zones of a decode step, per KV head: steady = the first `sinks` tokens and every token that is not in
 * the index yet, the newest `local` always among them: exact. Retrieval = the best nprobe clusters:
 * exact. Estimation = the next clusters: a cluster adds exp(q.c) * (sum of its values) to the
 * numerator and size * exp(q.c) to the denominator. Clusters are ranked by the sum over the group's
 * heads of softmax(q.c / sqrt d).
 *
 * Build, when the first prompt ends and has at least sinks + local + update tokens: the tokens between
 * sinks and local, less their mean key, in segments of about `segment` tokens; centroids start at
 * evenly spaced keys; iterations - 1 rounds inside each segment (largest inner product, first wins;
 * new centroid = mean, L2-normalised; an empty one stays), then one assignment of all tokens to all
 * centroids, whose means, with the mean key added back, are the centroids.
 * Append, and what a second turn does: whenever `update` tokens are waiting beyond sinks + local they
 * are clustered on their own and appended, prompt or generated; old clusters are never touched.
 * Both happen at stored token counts only, so the index does not depend on chunks.
 *
 * unit = tokens a cluster (16). parameter: [0] sinks 4, [1] local 64, [2] segment 8192, [3] retrieval
 * and [4] estimation share in thousandths (18, 232), [5] iterations 10, [6] update 1024.
 * State, in the index record per KV head: centroid and value sum of each cluster in the KV type, first
 * member of each cluster, members.
 * Source: microsoft/RetrievalAttention, cache_hub/retroinfer_cache.py, cache_hub/kmeans.py. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "method/attend_list.h"
#include "method/training_free.h"

enum {
    UNIT_DEFAULT = 16,
    TOKEN_BLOCK = 16,
    FACTOR = 8 /* the reference keeps numbers of clusters multiples of 8 */
};

static uint32_t or_default(uint32_t value, uint32_t fallback) { return value != 0 ? value : fallback; }
static uint64_t unit_of(const kr_method_config *c) { return or_default(c->unit, UNIT_DEFAULT); }
static uint64_t sinks_of(const kr_method_config *c) { return or_default(c->parameter[0], 4); }
static uint64_t local_of(const kr_method_config *c) { return or_default(c->parameter[1], 64); }
static uint64_t segment_of(const kr_method_config *c) { return or_default(c->parameter[2], 8192); }
static double retrieval_of(const kr_method_config *c) { return or_default(c->parameter[3], 18) / 1000.0; }
static double estimation_of(const kr_method_config *c) { return or_default(c->parameter[4], 232) / 1000.0; }
static uint32_t iterations_of(const kr_method_config *c) { return or_default(c->parameter[5], 10); }
static uint64_t update_of(const kr_method_config *c) { return or_default(c->parameter[6], 1024); }
static uint32_t lists_of(const kr_attention_shape *shape) { return shape->kv_heads; }

/* ---- the index of one KV head ---- */

typedef struct {
    uint64_t indexed; /* tokens [sinks, indexed) are in clusters; 0: none yet */
    uint64_t clusters;
    uint64_t nprobe, estimated; /* clusters taken exactly, and estimated */
} head_state;

/* The rest of a KV head's part of the record: first [clusters_max + 1], member [tokens_max], centroid
 * [clusters_max][key_dim] and value sum [clusters_max][value_dim] of the KV type. */
typedef struct {
    head_state *st;
    uint32_t *first, *member;
    uint8_t *centroid, *value_sum;
    uint64_t clusters_max;
} head_index;

/* Room is counted in steps of `update` tokens, so that their number can be found again from the
 * record's size. The first build rounds to a multiple of at most FACTOR * segments, at least one. */
static uint64_t step_clusters(const kr_method_config *c)
{
    return update_of(c) / unit_of(c) + FACTOR + kr_ceil_div(FACTOR * update_of(c), segment_of(c));
}

static uint64_t step_bytes(const kr_method_config *c, const kr_attention_shape *s)
{
    const uint64_t cluster = sizeof(uint32_t) +
                             (s->key_dim + (uint64_t)s->value_dim) * kr_dtype_bytes(s->kv_dtype);

    return step_clusters(c) * cluster + sizeof(uint32_t) * update_of(c);
}

static uint64_t head_bytes(const kr_method_config *c, const kr_attention_shape *s, uint64_t tokens)
{
    const uint64_t steps = kr_ceil_div(tokens, update_of(c));

    return kr_align_up(sizeof(head_state) + sizeof(uint32_t) + steps * step_bytes(c, s), 8);
}

static head_index index_of(const kr_view *view, const kr_method_config *c, uint32_t kv_head)
{
    const kr_attention_shape *s = view->shape;
    const uint64_t bytes = view->record->body_bytes / s->kv_heads;
    const uint64_t steps = (bytes - sizeof(head_state) - sizeof(uint32_t)) / step_bytes(c, s);
    head_index x = {.st = (head_state *)((uint8_t *)kr_view_record_body(view) + bytes * kv_head)};

    x.clusters_max = steps * step_clusters(c);
    x.first = (uint32_t *)(x.st + 1);
    x.member = x.first + x.clusters_max + 1;
    x.centroid = (uint8_t *)(x.member + steps * update_of(c));
    x.value_sum = x.centroid + x.clusters_max * s->key_dim * kr_dtype_bytes(s->kv_dtype);
    return x;
}

static kr_status plan_retroinfer(const kr_method_config *config, const kr_attention_shape *shape,
                                 uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    kr_method_plan p;
    const kr_status status = kr_list_plan("retroinfer", config, shape, 0, &p, err);
    const uint64_t element = kr_dtype_bytes(shape->kv_dtype);

    if (status != KR_OK)
        return status;
    if (unit_of(config) < 2 || update_of(config) % unit_of(config) != 0 ||
        segment_of(config) < unit_of(config) || iterations_of(config) > 100)
        return kr_fail(err, KR_E_SHAPE,
                       "retroinfer: clusters of %u tokens, must be at least 2, divide the update of "
                       "%u and fit a segment; at most 100 iterations",
                       (uint32_t)unit_of(config), (uint32_t)update_of(config));
    if (retrieval_of(config) + estimation_of(config) > 1.0)
        return kr_fail(err, KR_E_LIMIT,
                       "retroinfer: retrieval and estimation shares sum to more than 1000 thousandths");
    if ((retrieval_of(config) + estimation_of(config)) * (double)context_max / (double)unit_of(config) >
        0.9 * (KR_TOPK_MAX - 64))
        return kr_fail(err, KR_E_LIMIT,
                       "retroinfer: %u clusters of a context of %u tokens are attended or estimated, the "
                       "limit is %d; lower parameter 3 or 4",
                       (uint32_t)((retrieval_of(config) + estimation_of(config)) * (double)context_max /
                                  (double)unit_of(config)),
                       (uint32_t)context_max, KR_TOPK_MAX);
    if (!p.dense) {
        p.granularity = KR_UNIT_CLUSTER;
        p.record_body_bytes = shape->kv_heads * head_bytes(config, shape, context_max);
        p.selected_max = (uint32_t)context_max; /* sizes of clusters are not bounded */
        /* Sinks, window and, on average, half a batch that is not clustered yet; of the rest the share
         * of clusters that is retrieved. */
        p.attended_fixed = (uint32_t)(sinks_of(config) + local_of(config) + update_of(config) / 2);
        p.attended_ppm = (uint32_t)(1e6 * retrieval_of(config) + 0.5);
        p.cost[KR_STAGE_ATTEND].per_context_token = (kr_work){
            .flops = (uint64_t)(2.0 * estimation_of(config) * shape->heads * shape->value_dim /
                                (double)unit_of(config)),
            .read_bytes = (uint64_t)(estimation_of(config) * shape->kv_heads * shape->value_dim *
                                     (double)element / (double)unit_of(config)),
        };
        p.cost[KR_STAGE_SCORE].per_context_token = (kr_work){
            .flops = 2 * (uint64_t)shape->heads * shape->key_dim / unit_of(config),
            .read_bytes = shape->kv_heads * shape->key_dim * element / unit_of(config),
        };
    }
    *plan = p;
    return KR_OK;
}

/* ---- build ---- */

/* Memory and bounds of one clustering: tokens [begin, begin + n) into k clusters. */
typedef struct {
    const kr_view *view;
    const kr_ops *ops;
    uint32_t kv_head;
    uint64_t begin, n, k;
    float *mean;     /* [key_dim] */
    float *centroid; /* [k][key_dim], less the mean */
    float *sum;      /* [k][max(key_dim, value_dim)] */
    float *block;    /* [TOKEN_BLOCK][key_dim] tokens less the mean */
    float *dot;      /* [TOKEN_BLOCK][k] */
    uint32_t *label; /* [n] */
    uint32_t *size;  /* [k] */
} clustering;

static size_t clustering_bytes(const kr_attention_shape *s, uint64_t n, uint64_t k)
{
    const uint64_t dim = s->key_dim > s->value_dim ? s->key_dim : s->value_dim;

    return sizeof(float) *
           (s->key_dim + k * s->key_dim + k * dim + TOKEN_BLOCK * s->key_dim + TOKEN_BLOCK * k + n + k);
}

static void lay_out(clustering *c, void *memory)
{
    const kr_attention_shape *s = c->view->shape;
    const uint64_t dim = s->key_dim > s->value_dim ? s->key_dim : s->value_dim;

    c->mean = memory;
    c->centroid = c->mean + s->key_dim;
    c->sum = c->centroid + c->k * s->key_dim;
    c->block = c->sum + c->k * dim;
    c->dot = c->block + TOKEN_BLOCK * s->key_dim;
    c->label = (uint32_t *)(c->dot + TOKEN_BLOCK * c->k);
    c->size = c->label + c->n;
}

static void load_key(const clustering *c, uint64_t i, float *out)
{
    const kr_attention_shape *s = c->view->shape;

    kr_to_f32(s->kv_dtype, kr_view_key_row(c->view, c->kv_head, c->begin + i), out, s->key_dim);
    for (uint32_t d = 0; d < s->key_dim; d++)
        out[d] -= c->mean[d];
}

static void find_mean(clustering *c)
{
    const kr_attention_shape *s = c->view->shape;
    double sum[KR_ATTEND_DIM_MAX] = {0};

    memset(c->mean, 0, sizeof(float) * s->key_dim);
    for (uint64_t i = 0; i < c->n; i++) {
        load_key(c, i, c->block);
        for (uint32_t d = 0; d < s->key_dim; d++)
            sum[d] += (double)c->block[d];
    }
    for (uint32_t d = 0; d < s->key_dim; d++)
        c->mean[d] = (float)(sum[d] / (double)c->n);
}

/* Labels tokens [from, to) with the largest inner product among centroids [low, low + count). */
static void assign(clustering *c, uint64_t from, uint64_t to, uint64_t low, uint64_t count)
{
    const uint32_t dim = c->view->shape->key_dim;

    for (uint64_t i = from; i < to; i += TOKEN_BLOCK) {
        const uint32_t n = to - i < TOKEN_BLOCK ? (uint32_t)(to - i) : TOKEN_BLOCK;

        for (uint32_t t = 0; t < n; t++)
            load_key(c, i + t, c->block + (size_t)t * dim);
        c->ops->row_dot(&(kr_row_dot_args){
            .query = c->block,
            .queries = n,
            .query_stride = dim,
            .dim = dim,
            .type = KR_F32,
            .row = c->centroid + low * dim,
            .rows = count,
            .row_stride = dim,
            .out = c->dot,
            .out_stride = count,
        });
        for (uint32_t t = 0; t < n; t++)
            c->label[i + t] = (uint32_t)(low + c->ops->argmax(c->dot + t * count, count));
    }
}

/* Sums and sizes of clusters [low, low + count) over tokens [from, to). */
static void add_up(clustering *c, uint64_t from, uint64_t to, uint64_t low, uint64_t count)
{
    const uint32_t dim = c->view->shape->key_dim;

    memset(c->sum + low * dim, 0, sizeof(float) * count * dim);
    memset(c->size + low, 0, sizeof(uint32_t) * count);
    for (uint64_t i = from; i < to; i++) {
        float *sum = c->sum + (size_t)c->label[i] * dim;

        load_key(c, i, c->block);
        c->size[c->label[i]]++;
        for (uint32_t d = 0; d < dim; d++)
            sum[d] += c->block[d];
    }
}

/* One round inside a segment: centroids become normalised means; an empty one stays. */
static void round_of_segment(clustering *c, uint64_t from, uint64_t to, uint64_t low, uint64_t count)
{
    const uint32_t dim = c->view->shape->key_dim;

    assign(c, from, to, low, count);
    add_up(c, from, to, low, count);
    for (uint64_t j = low; j < low + count; j++) {
        float square = 0.0f;

        if (c->size[j] == 0)
            continue;
        for (uint32_t d = 0; d < dim; d++) {
            c->sum[j * dim + d] /= (float)c->size[j];
            square += c->sum[j * dim + d] * c->sum[j * dim + d];
        }
        for (uint32_t d = 0; d < dim; d++)
            c->centroid[j * dim + d] = square > 0.0f ? c->sum[j * dim + d] / sqrtf(square) : 0.0f;
    }
}

/* Writes the clusters behind those the index has. */
static void store_clusters(clustering *c, head_index *x)
{
    const kr_attention_shape *s = c->view->shape;
    const size_t element = kr_dtype_bytes(s->kv_dtype), dim = s->key_dim;
    uint32_t at = x->first[x->st->clusters];
    float value[KR_ATTEND_DIM_MAX];

    for (uint64_t j = 0; j < c->k; j++) {
        for (uint32_t d = 0; d < dim; d++)
            c->centroid[j * dim + d] = c->mean[d] +
                                       (c->size[j] > 0 ? c->sum[j * dim + d] / (float)c->size[j] : 0.0f);
        kr_from_f32(s->kv_dtype, c->centroid + j * dim, x->centroid + (x->st->clusters + j) * dim * element,
                    dim);
        x->first[x->st->clusters + j] = at;
        at += c->size[j];
        c->size[j] = x->first[x->st->clusters + j]; /* from here on: where the next member goes */
    }
    memset(c->sum, 0, sizeof(float) * c->k * s->value_dim);
    for (uint64_t i = 0; i < c->n; i++) {
        x->member[c->size[c->label[i]]++] = (uint32_t)(c->begin + i);
        kr_to_f32(s->kv_dtype, kr_view_value_row(c->view, c->kv_head, c->begin + i), value, s->value_dim);
        for (uint32_t d = 0; d < s->value_dim; d++)
            c->sum[(size_t)c->label[i] * s->value_dim + d] += value[d];
    }
    kr_from_f32(s->kv_dtype, c->sum, x->value_sum + x->st->clusters * s->value_dim * element,
                c->k * s->value_dim);
    x->st->clusters += c->k;
    x->first[x->st->clusters] = at;
    x->st->indexed = c->begin + c->n;
}

static void cluster_tokens(const kr_view *view, const kr_method_config *config, const kr_ops *ops,
                           uint32_t kv_head, uint64_t begin, uint64_t n, uint64_t k, uint64_t segments,
                           void *memory)
{
    head_index x = index_of(view, config, kv_head);
    clustering c = {.view = view, .ops = ops, .kv_head = kv_head, .begin = begin, .n = n, .k = k};
    const uint64_t tokens = n / segments, count = k / segments;

    KR_CHECK(x.st->clusters + k <= x.clusters_max);
    lay_out(&c, memory);
    find_mean(&c);
    for (uint64_t j = 0; j < k; j++) /* floor(j * n/k + n/(2k)) */
        load_key(&c, (2 * j + 1) * n / (2 * k), c.centroid + j * view->shape->key_dim);
    for (uint32_t round = 1; round < iterations_of(config); round++)
        for (uint64_t g = 0; g < segments; g++)
            round_of_segment(&c, g * tokens, (g + 1) * tokens, g * count, count);
    assign(&c, 0, n, 0, k);
    add_up(&c, 0, n, 0, k);
    store_clusters(&c, &x);
}

/* Clusters of the first build: the multiple of lcm(FACTOR, segments) nearest to n / unit. */
static uint64_t first_clusters(const kr_method_config *c, uint64_t n, uint64_t segments)
{
    uint64_t a = FACTOR, b = segments;

    while (b != 0) {
        const uint64_t r = a % b;
        a = b, b = r;
    }
    const uint64_t factor = FACTOR / a * segments, near = (uint64_t)rint((double)n / (double)unit_of(c));
    const uint64_t k = near > factor ? near : factor, lower = k / factor * factor;

    return k - lower <= lower + factor - k ? lower : lower + factor;
}

static uint64_t at_least_one(double x) { return rint(x) < 1.0 ? 1 : (uint64_t)rint(x); }

/* Clusters whole updates that wait beyond sinks and local. */
static void index_waiting(const kr_view *view, const kr_method_config *c, const kr_ops *ops, uint32_t kv_head,
                          void *memory)
{
    head_state *st = index_of(view, c, kv_head).st;
    const uint64_t update = update_of(c), half = update / unit_of(c) / FACTOR * FACTOR;
    const uint64_t k = half > FACTOR ? half : FACTOR;

    for (;;) {
        const uint64_t begin = st->indexed != 0 ? st->indexed : sinks_of(c);

        if (view->tokens < begin + update + local_of(c))
            return;
        cluster_tokens(view, c, ops, kv_head, begin, update, k, 1, memory);
        st->nprobe += at_least_one((double)k * retrieval_of(c));
        st->estimated += at_least_one((double)k * estimation_of(c));
    }
}

static kr_status end_prefill(const kr_view *view, const kr_method_config *c, const kr_ops *ops,
                             kr_scratch scratch, kr_err *err)
{
    (void)err;
    for (uint32_t g = 0; g < view->shape->kv_heads && view->record->body_bytes != 0; g++) {
        head_state *st = index_of(view, c, g).st;

        if (st->indexed == 0 && view->tokens >= sinks_of(c) + local_of(c) + update_of(c)) {
            const uint64_t n = view->tokens - sinks_of(c) - local_of(c);
            const uint64_t near = (uint64_t)rint((double)n / (double)segment_of(c)),
                           segments = near > 0 ? near : 1;
            const uint64_t k = first_clusters(c, n, segments);

            cluster_tokens(view, c, ops, g, sinks_of(c), n, k, segments, scratch.memory);
            st->nprobe = at_least_one((double)k * retrieval_of(c));
            st->estimated = (uint64_t)rint((double)k * estimation_of(c));
            if (st->nprobe + st->estimated > k)
                st->estimated = k - st->nprobe;
        }
        index_waiting(view, c, ops, g, scratch.memory);
    }
    return KR_OK;
}

static uint32_t append_parts(const kr_job *job)
{
    return kr_job_is_dense(job) ? 0 : job->view->shape->kv_heads;
}

static void append_run(const kr_job *job, uint32_t kv_head, kr_scratch scratch)
{
    index_waiting(job->view, job->config, job->ops, kv_head, scratch.memory);
}

/* ---- score and select ----
 * Workspace of a decode row behind the partial results: estimated clusters u32 [kv_heads][KR_TOPK_MAX],
 * scores F32 [heads][clusters], rank F32 [kv_heads][clusters]. */

static const kr_list_source own;

static uint32_t *estimated_list(const kr_job *job, uint32_t kv_head)
{
    return (uint32_t *)kr_attend_list_behind(job, &own) + (size_t)kv_head * KR_TOPK_MAX;
}

static uint64_t clusters_of(const kr_job *job) { return index_of(job->view, job->config, 0).st->clusters; }

static float *scores_of(const kr_job *job, uint32_t head)
{
    return (float *)estimated_list(job, job->view->shape->kv_heads) + head * clusters_of(job);
}

static float *rank_of(const kr_job *job, uint32_t kv_head)
{
    return scores_of(job, job->view->shape->heads) + kv_head * clusters_of(job);
}

static uint32_t score_parts(const kr_job *job)
{
    return kr_job_is_dense(job) || clusters_of(job) == 0 ? 0 : job->view->shape->kv_heads;
}

/* Adds softmax(score * scale) over non-empty clusters to rank; uses score up. */
static void add_softmax(const kr_job *job, const head_index *x, float *score, float *rank)
{
    for (uint64_t j = 0; j < x->st->clusters; j++)
        if (x->first[j] == x->first[j + 1])
            score[j] = -INFINITY;
    job->ops->softmax(&(kr_softmax_args){
        .score = score,
        .n = x->st->clusters,
        .scale = job->view->shape->softmax_scale,
        .add = true,
        .out = rank,
    });
}

static void score_run(const kr_job *job, uint32_t kv_head, kr_scratch scratch)
{
    const kr_attention_shape *s = job->view->shape;
    const head_index x = index_of(job->view, job->config, kv_head);
    const uint32_t group = s->heads / s->kv_heads;
    float *rank = rank_of(job, kv_head);

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
    for (uint64_t j = 0; j < x.st->clusters; j++)
        rank[j] = x.first[j] != x.first[j + 1] ? 0.0f : -1.0f;
    for (uint32_t h = 0; h < group; h++)
        add_softmax(job, &x, scores_of(job, kv_head * group + h), rank);
}

static uint32_t select_parts(const kr_job *job)
{
    return kr_job_is_dense(job) ? 0 : job->view->shape->kv_heads;
}

/* Exact list: sinks, members of the best nprobe clusters, everything not indexed. The next clusters
 * go to the estimated list (its first element is their number). */
static void select_run(const kr_job *job, uint32_t kv_head, kr_scratch scratch)
{
    const kr_list_ref ref = {job, job->view->shape->kv_heads, kv_head, 0, 0};
    const head_index x = index_of(job->view, job->config, kv_head);
    uint32_t *selected = kr_list_selected(&ref), *estimated = estimated_list(job, kv_head), count = 0,
             near = 0, all = 0;
    uint32_t *best = scratch.memory, *next = best + KR_TOPK_MAX;
    void *topk = (uint8_t *)scratch.memory + kr_align_up(2 * sizeof(uint32_t) * KR_TOPK_MAX, 64);
    uint64_t nan = 0;

    estimated[0] = 0;
    for (uint64_t t = 0; t < sinks_of(job->config) && t < kr_job_visible(job, 0); t++)
        selected[count++] = (uint32_t)t;
    if (x.st->clusters > 0) {
        kr_select_topk_args top = {.score = rank_of(job, kv_head),
                                   .n = x.st->clusters,
                                   .k = (uint32_t)x.st->nprobe,
                                   .position = best,
                                   .scratch = topk,
                                   .nan_count = &nan};

        near = job->ops->select_topk(&top);
        nan = 0;
        top.k = (uint32_t)(x.st->nprobe + x.st->estimated), top.position = next;
        all = job->ops->select_topk(&top);
        kr_count_nan(job, nan);
    }
    for (uint32_t i = 0, j = 0; i < all; i++) {
        const bool exact = j < near && best[j] == next[i];

        j += exact;
        if (!exact && x.first[next[i]] != x.first[next[i] + 1])
            estimated[++estimated[0]] = next[i];
        for (uint32_t m = x.first[next[i]]; exact && m < x.first[next[i] + 1]; m++)
            selected[count++] = x.member[m];
    }
    kr_list_sort(selected, count, kr_job_visible(job, 0), topk);
    for (uint64_t t = x.st->indexed != 0 ? x.st->indexed : count; t < kr_job_visible(job, 0); t++)
        selected[count++] = (uint32_t)t;
    *kr_list_count(&ref) = count;
}

/* ---- attend: exact segments, then estimated clusters ---- */

static uint32_t exact_segments(const kr_list_ref *ref) { return kr_list_tokens.segments(ref); }

static uint32_t own_segments(const kr_list_ref *ref)
{
    return exact_segments(ref) + kr_segments(estimated_list(ref->job, ref->list)[0]);
}

static uint32_t own_segments_max(const kr_job *job)
{
    return kr_list_tokens.segments_max(job) + kr_segments(KR_TOPK_MAX);
}

static void own_fill(const kr_list_ref *ref, uint32_t segment, kr_list_segment *out)
{
    const kr_attention_shape *s = ref->job->view->shape;
    const head_index x = index_of(ref->job->view, ref->job->config, ref->list);
    const uint32_t *estimated = estimated_list(ref->job, ref->list), exact = exact_segments(ref);
    const size_t element = kr_dtype_bytes(s->kv_dtype);

    if (segment < exact) {
        kr_list_tokens.fill(ref, segment, out);
        return;
    }
    out->weighted = true;
    for (uint32_t i = (segment - exact) * KR_SEGMENT; i < estimated[0] && out->count < KR_SEGMENT; i++) {
        const uint64_t c = estimated[1 + i];

        out->mass[out->count] = (float)(x.first[c + 1] - x.first[c]);
        out->key_row[out->count] = x.centroid + c * s->key_dim * element;
        out->value_row[out->count++] = x.value_sum + c * s->value_dim * element;
    }
}

static const kr_list_source own = {own_segments, own_segments_max, own_fill, NULL};

static const kr_list_source *source_of(const kr_job *job)
{
    return kr_job_is_dense(job) ? &kr_list_dense : &own;
}

KR_LIST_STAGES(source_of, lists_of)

static size_t workspace_bytes(const kr_method_plan *plan, const kr_method_config *config,
                              const kr_attention_shape *shape, uint32_t queries, uint64_t context_max)
{
    const uint64_t clusters = kr_ceil_div(context_max, update_of(config)) * step_clusters(config);

    (void)queries;
    if (plan->dense)
        return kr_attend_list_workspace(shape, kr_segments(context_max));
    return kr_attend_list_workspace(shape, kr_segments(context_max) + kr_segments(KR_TOPK_MAX)) +
           sizeof(uint32_t) * shape->kv_heads * KR_TOPK_MAX +
           sizeof(float) * (shape->heads + (uint64_t)shape->kv_heads) * clusters;
}

/* The build's memory is counted for clusters of 2 tokens, the least a plan allows. */
static size_t scratch_bytes(const kr_method_plan *plan, const kr_attention_shape *shape, uint64_t context_max)
{
    const uint64_t means = shape->kv_heads * (shape->key_dim + (uint64_t)shape->value_dim) *
                           kr_dtype_bytes(shape->kv_dtype); /* bytes of one cluster of every head */
    KR_CHECK(means > 0);
    const uint64_t clusters = plan->record_body_bytes / means;
    const size_t build = clustering_bytes(shape, context_max, clusters);
    const size_t topk = kr_select_scratch_bytes(clusters, KR_TOPK_MAX),
                 sort = kr_list_bits_bytes(context_max);
    const size_t select = kr_align_up(2 * sizeof(uint32_t) * KR_TOPK_MAX, 64) + (topk > sort ? topk : sort);
    const size_t most = build > select ? build : select;

    return kr_list_scratch(plan, shape, lists_of(shape), most);
}

const kr_method kr_method_retroinfer = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .name = "retroinfer",
    .summary = "the best clusters of keys exactly, the next ones by their centroid",
    .source = "microsoft/RetrievalAttention (RetroInfer)",
    .plan = plan_retroinfer,
    .workspace_bytes = workspace_bytes,
    .lists = lists,
    .scratch_bytes = scratch_bytes,
    .end_prefill = end_prefill,
    .stage =
        {
            [KR_STAGE_APPEND] = {.parts = append_parts, .run = append_run},
            [KR_STAGE_SCORE] = {.parts = score_parts, .run = score_run},
            [KR_STAGE_SELECT] = {.parts = select_parts, .run = select_run},
            [KR_STAGE_ATTEND] = {.parts = attend_parts, .run = attend_run},
            [KR_STAGE_MERGE] = {.parts = merge_parts, .run = merge_run},
        },
};
