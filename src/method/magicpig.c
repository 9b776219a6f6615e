/* MagicPIG: tokens sampled by locality-sensitive hashing, weighted by their inclusion probability.
 *
 * Build, when a prompt ends: mu = mean of the keys between the first `sinks` and the newest `local`
 * prompt tokens, per KV head; each of those keys less mu is hashed into L tables by the signs of K
 * Gaussian projections (code = sum of bit i times 2^i). Hyperplanes are shared by all heads and drawn
 * from the session's seed, one set per 16 layers.
 * Decode, per query head: sinks, local and all generated tokens are attended exactly. A token of the
 * tables is taken when its code equals the query's in at least 2 of the L tables; its logit is lowered
 * by ln(w + 1e-4), w the probability of that: p = 1 - acos(cos(q, k - mu)) / pi, a = p^K,
 * w = 1 - (1 - a)^L - L a (1 - a)^(L-1). No budget: the number varies. The centring by mu shifts all
 * logits of a query alike and so is left out of them.
 * parameter: [0] K 10, [1] L 150, [2] sinks 4, [3] local 64. Every 16th layer stays dense, unless
 * dense_layers says otherwise.
 *
 * A second turn: generated tokens are never hashed, but when the next prompt ends mu and the tables
 * are built anew over everything stored. The record holds all this: planes, mu, and per KV head and
 * table the token numbers in code order with each code's first place: 4 L bytes a token, more than
 * the BF16 keys and values it stands for at K = 10, L = 150 and head width 128.
 * Source: Infini-AI-Lab/MagicPIG, library/lsh/lsh.cc, models/attnserver.py (ICLR 2025). */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "method/attend_list.h"
#include "method/magicpig.h"
#include "method/training_free.h"

enum { BITS_MAX = 14, TABLES_MAX = 512, DENSE_EVERY = 16 };

static const double weight_floor = 1e-4;

static uint32_t or_default(uint32_t value, uint32_t fallback) { return value != 0 ? value : fallback; }
static uint32_t bits_of(const kr_method_config *c) { return or_default(c->parameter[0], 10); }
static uint32_t tables_of(const kr_method_config *c) { return or_default(c->parameter[1], 150); }
static uint64_t sinks_of(const kr_method_config *c) { return or_default(c->parameter[2], 4); }
static uint64_t local_of(const kr_method_config *c) { return or_default(c->parameter[3], 64); }
static uint32_t lists_of(const kr_attention_shape *shape) { return shape->heads; }

double kr_magicpig_weight(double cosine, uint32_t bits, uint32_t tables)
{
    const double clamped = cosine > 1.0 ? 1.0 : cosine < -1.0 ? -1.0 : cosine;
    const double a = pow(1.0 - acos(clamped) / M_PI, bits);

    return 1.0 - pow(1.0 - a, tables) - tables * a * pow(1.0 - a, tables - 1.0);
}

/* Millionths of random keys that are sampled: the mean of the weight over the cosine of two random
 * directions in dim dimensions, whose density falls as (1 - x^2)^((dim - 3) / 2). Keys of a trained
 * model lie closer to some queries; authors report 2 to 5 % of attention's work with everything that
 * is attended exactly. */
static uint32_t expected_ppm(const kr_method_config *config, uint32_t dim)
{
    enum { POINTS = 2000 };
    double sum = 0.0, weight = 0.0;

    for (int i = 0; i < POINTS; i++) {
        const double x = (2 * i + 1.0) / POINTS - 1.0;
        const double density = pow(1.0 - x * x, (dim - 3.0) / 2);

        sum += density * kr_magicpig_weight(x, bits_of(config), tables_of(config));
        weight += density;
    }
    return (uint32_t)(1e6 * sum / weight + 0.5);
}

/* ---- record: state, planes [tables * bits][key_dim], mu [kv_heads][key_dim], first [kv_heads][tables]
 * [codes + 1], member [kv_heads][tables][capacity] ---- */

float *kr_magicpig_planes(const kr_view *view)
{
    return (float *)((kr_magicpig_state *)kr_view_record_body(view) + 1);
}

static float *mu_of(const kr_view *view, const kr_method_config *c, uint32_t kv_head)
{
    return kr_magicpig_planes(view) + ((size_t)tables_of(c) * bits_of(c) + kv_head) * view->shape->key_dim;
}

static size_t codes_of(const kr_method_config *c) { return (size_t)1 << bits_of(c); }

static uint32_t *first_of(const kr_view *view, const kr_method_config *c, uint32_t kv_head, uint32_t table)
{
    return (uint32_t *)mu_of(view, c, view->shape->kv_heads) +
           ((size_t)kv_head * tables_of(c) + table) * (codes_of(c) + 1);
}

static uint64_t fixed_bytes(const kr_method_config *c, const kr_attention_shape *s)
{
    return sizeof(kr_magicpig_state) +
           sizeof(float) * ((uint64_t)tables_of(c) * bits_of(c) + s->kv_heads) * s->key_dim +
           sizeof(uint32_t) * s->kv_heads * tables_of(c) * (codes_of(c) + 1);
}

/* Members that one table has room for. */
static uint64_t capacity_of(const kr_view *view, const kr_method_config *c)
{
    const uint64_t lists = (uint64_t)view->shape->kv_heads * tables_of(c);

    return (view->record->body_bytes - fixed_bytes(c, view->shape)) / sizeof(uint32_t) / lists;
}

static uint32_t *member_of(const kr_view *view, const kr_method_config *c, uint32_t kv_head, uint32_t table)
{
    return first_of(view, c, view->shape->kv_heads, 0) +
           ((uint64_t)kv_head * tables_of(c) + table) * capacity_of(view, c);
}

static kr_status plan_magicpig(const kr_method_config *config, const kr_attention_shape *shape,
                               uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    kr_method_plan p;
    const kr_status status = kr_list_plan("magicpig", config, shape, 0, &p, err);
    const uint64_t planes = (uint64_t)bits_of(config) * tables_of(config);

    if (status != KR_OK)
        return status;
    if (bits_of(config) > BITS_MAX || tables_of(config) > TABLES_MAX || tables_of(config) < 2)
        return kr_fail(err, KR_E_LIMIT, "magicpig: %u bits and %u tables, must be at most %d and 2..%d",
                       bits_of(config), tables_of(config), BITS_MAX, TABLES_MAX);
    if (config->dense_layers == UINT32_MAX)
        p.dense = shape->window != 0 || shape->layer % DENSE_EVERY == 0;
    if (!p.dense) {
        p.record_body_bytes = fixed_bytes(config, shape) +
                              sizeof(uint32_t) * shape->kv_heads * tables_of(config) * context_max;
        p.selected_max = (uint32_t)context_max; /* sampling has no bound */
        p.attended_fixed = (uint32_t)(sinks_of(config) + local_of(config));
        p.attended_ppm = expected_ppm(config, shape->key_dim);
        p.cost[KR_STAGE_SCORE].fixed = (kr_work){
            .flops = 2 * planes * shape->key_dim * shape->heads,
            .read_bytes = planes * shape->key_dim * sizeof(float),
        };
        /* Random keys share a code of one table once in 2^bits. */
        p.cost[KR_STAGE_SELECT].per_context_token = (kr_work){
            .flops = shape->heads * kr_ceil_div(tables_of(config), codes_of(config)),
            .read_bytes = shape->heads * kr_ceil_div(sizeof(uint32_t) * tables_of(config), codes_of(config)),
        };
    }
    *plan = p;
    return KR_OK;
}

/* ---- hashing ---- */

static void draw_planes(const kr_view *view, const kr_method_config *c)
{
    kr_magicpig_state *st = kr_view_record_body(view);
    kr_rng rng = kr_rng_make(view->record->seed, 0x4c534800u + view->shape->layer / DENSE_EVERY);
    float *plane = kr_magicpig_planes(view);

    if (st->planes_drawn)
        return;
    for (size_t i = 0; i < (size_t)tables_of(c) * bits_of(c) * view->shape->key_dim; i++)
        plane[i] = (float)kr_rng_normal(&rng);
    st->planes_drawn = 1;
}

/* Codes of one vector in all tables; dots is scratch of tables * bits floats. */
static void hash(const kr_view *view, const kr_method_config *c, const kr_ops *ops, const float *x,
                 float *dots, uint16_t *code)
{
    const uint32_t bits = bits_of(c), dim = view->shape->key_dim;

    ops->row_dot(&(kr_row_dot_args){
        .query = x,
        .queries = 1,
        .query_stride = dim,
        .dim = dim,
        .type = KR_F32,
        .row = kr_magicpig_planes(view),
        .rows = (uint64_t)tables_of(c) * bits,
        .row_stride = dim,
        .out = dots,
        .out_stride = (uint64_t)tables_of(c) * bits,
    });
    for (uint32_t l = 0; l < tables_of(c); l++) {
        code[l] = 0;
        for (uint32_t b = 0; b < bits; b++)
            code[l] = (uint16_t)(code[l] | (dots[l * bits + b] > 0.0f) << b);
    }
}

static void load_centred(const kr_view *view, const kr_method_config *c, uint32_t kv_head, uint64_t token,
                         float *out)
{
    const kr_attention_shape *s = view->shape;
    const float *mu = mu_of(view, c, kv_head);

    kr_to_f32(s->kv_dtype, kr_view_key_row(view, kv_head, token), out, s->key_dim);
    for (uint32_t d = 0; d < s->key_dim; d++)
        out[d] -= mu[d];
}

static void find_mu(const kr_view *view, const kr_method_config *c, uint32_t kv_head, uint64_t begin,
                    uint64_t end)
{
    const uint32_t dim = view->shape->key_dim;
    float *mu = mu_of(view, c, kv_head), key[KR_ATTEND_DIM_MAX];
    double sum[KR_ATTEND_DIM_MAX] = {0};

    memset(mu, 0, sizeof(float) * dim);
    for (uint64_t t = begin; t < end; t++) {
        load_centred(view, c, kv_head, t, key);
        for (uint32_t d = 0; d < dim; d++)
            sum[d] += (double)key[d];
    }
    for (uint32_t d = 0; d < dim; d++)
        mu[d] = (float)(sum[d] / (double)(end - begin));
}

/* Counting sort of tokens [begin, begin + n) by code, table by table; code is [n][tables]. */
static void fill_tables(const kr_view *view, const kr_method_config *c, uint32_t kv_head, uint64_t begin,
                        uint64_t n, const uint16_t *code)
{
    const uint32_t tables = tables_of(c);

    for (uint32_t l = 0; l < tables; l++) {
        uint32_t *first = first_of(view, c, kv_head, l), *member = member_of(view, c, kv_head, l);

        memset(first, 0, sizeof *first * (codes_of(c) + 1));
        for (uint64_t i = 0; i < n; i++)
            first[code[i * tables + l] + 1]++;
        for (size_t b = 0; b < codes_of(c); b++)
            first[b + 1] += first[b];
        for (uint64_t i = 0; i < n; i++) /* first[b] moves to the end of b, which is b + 1's first */
            member[first[code[i * tables + l]]++] = (uint32_t)(begin + i);
        memmove(first + 1, first, sizeof *first * codes_of(c));
        first[0] = 0;
    }
}

static kr_status end_prefill(const kr_view *view, const kr_method_config *c, const kr_ops *ops,
                             kr_scratch scratch, kr_err *err)
{
    kr_magicpig_state *st = kr_view_record_body(view);
    uint16_t *code = scratch.memory;
    float key[KR_ATTEND_DIM_MAX];

    (void)err;
    if (view->record->body_bytes == 0)
        return KR_OK;
    draw_planes(view, c);
    st->hashed_begin = st->hashed_end = 0;
    if (view->tokens <= sinks_of(c) + local_of(c))
        return KR_OK;
    const uint64_t begin = sinks_of(c), n = view->tokens - local_of(c) - begin;
    float *dots = (float *)((uint8_t *)scratch.memory + kr_align_up(n * tables_of(c) * sizeof *code, 64));

    for (uint32_t g = 0; g < view->shape->kv_heads; g++) {
        find_mu(view, c, g, begin, begin + n);
        for (uint64_t i = 0; i < n; i++) {
            load_centred(view, c, g, begin + i, key);
            hash(view, c, ops, key, dots, code + i * tables_of(c));
        }
        fill_tables(view, c, g, begin, n, code);
    }
    st->hashed_begin = begin;
    st->hashed_end = begin + n;
    return KR_OK;
}

/* ---- select: sinks, sampled tokens, then everything behind the tables ---- */

static uint32_t select_parts(const kr_job *job) { return kr_job_is_dense(job) ? 0 : job->view->shape->heads; }

static void select_run(const kr_job *job, uint32_t head, kr_scratch scratch)
{
    const kr_list_ref ref = {job, job->view->shape->heads, head, 0, 0};
    const kr_magicpig_state *st = kr_view_record_body(job->view);
    const uint32_t tables = tables_of(job->config), kv_head = kr_list_kv_head(&ref);
    const uint64_t n = st->hashed_end - st->hashed_begin;
    uint32_t *selected = kr_list_selected(&ref), count = 0;
    uint64_t *once = scratch.memory, *twice = once + kr_ceil_div(n, 64); /* bit of each hashed token */
    uint16_t code[TABLES_MAX];
    uint32_t begin[TABLES_MAX], end[TABLES_MAX];
    const uint32_t *members = member_of(job->view, job->config, kv_head, 0);
    const uint64_t capacity = capacity_of(job->view, job->config);

    for (uint64_t t = 0; t < st->hashed_begin; t++)
        selected[count++] = (uint32_t)t;
    memset(once, 0, 2 * kr_list_bits_bytes(n));
    if (n > 0)
        hash(job->view, job->config, job->ops, job->query + (size_t)head * job->view->shape->key_dim,
             (float *)((uint8_t *)scratch.memory + kr_align_up(2 * kr_list_bits_bytes(n), 64)), code);
    /* Tables are far apart: all first places are asked for, then all members, then they are read. */
    for (uint32_t l = 0; n > 0 && l < tables; l++)
        __builtin_prefetch(first_of(job->view, job->config, kv_head, l) + code[l]);
    for (uint32_t l = 0; n > 0 && l < tables; l++) {
        begin[l] = first_of(job->view, job->config, kv_head, l)[code[l]];
        end[l] = first_of(job->view, job->config, kv_head, l)[code[l] + 1];
        __builtin_prefetch(members + l * capacity + begin[l]);
    }
    for (uint32_t l = 0; n > 0 && l < tables; l++) {
        for (uint32_t m = begin[l]; m < end[l]; m++) {
            const uint64_t i = members[l * capacity + m] - st->hashed_begin, bit = (uint64_t)1 << i % 64;

            twice[i / 64] |= once[i / 64] & bit;
            once[i / 64] |= bit;
        }
    }
    const uint32_t sampled = kr_list_of_bits(twice, n, selected + count);

    for (uint32_t i = 0; i < sampled; i++)
        selected[count++] += (uint32_t)st->hashed_begin;
    for (uint64_t t = st->hashed_end; t < kr_job_visible(job, 0); t++)
        selected[count++] = (uint32_t)t;
    *kr_list_count(&ref) = count;
}

/* ---- attend ---- */

static double cosine(const float *a, const float *b, uint32_t dim)
{
    double ab = 0.0, aa = 0.0, bb = 0.0;

    for (uint32_t d = 0; d < dim; d++) {
        ab += (double)a[d] * (double)b[d];
        aa += (double)a[d] * (double)a[d];
        bb += (double)b[d] * (double)b[d];
    }
    return aa > 0.0 && bb > 0.0 ? ab / sqrt(aa * bb) : 0.0;
}

static uint32_t own_segments(const kr_list_ref *ref) { return kr_list_tokens.segments(ref); }
static uint32_t own_segments_max(const kr_job *job) { return kr_list_tokens.segments_max(job); }

static void own_fill(const kr_list_ref *ref, uint32_t segment, kr_list_segment *out)
{
    const kr_job *job = ref->job;
    const kr_magicpig_state *st = kr_view_record_body(job->view);
    const uint32_t *token = kr_list_selected(ref) + (size_t)segment * KR_SEGMENT,
                   dim = job->view->shape->key_dim;
    const float *query = job->query + (size_t)ref->list * dim;
    float key[KR_ATTEND_DIM_MAX];

    kr_list_tokens.fill(ref, segment, out);
    out->biased = true;
    for (uint32_t i = 0; i < out->count; i++) {
        out->bias[i] = 0.0f;
        if (token[i] < st->hashed_begin || token[i] >= st->hashed_end)
            continue;
        load_centred(job->view, job->config, kr_list_kv_head(ref), token[i], key);
        out->bias[i] = (float)-log(
            kr_magicpig_weight(cosine(query, key, dim), bits_of(job->config), tables_of(job->config)) +
            weight_floor);
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
    (void)plan;
    (void)config;
    (void)queries;
    return kr_attend_list_workspace(shape, kr_segments(context_max));
}

static size_t scratch_bytes(const kr_method_plan *plan, const kr_attention_shape *shape, uint64_t context_max)
{
    /* The record tells the number of tables: 4 bytes a KV head, table and token, and some more. */
    const uint64_t tables = plan->record_body_bytes /
                            (sizeof(uint32_t) * shape->kv_heads * (context_max + !context_max));
    const uint64_t most = tables < TABLES_MAX ? tables : TABLES_MAX;
    const size_t build = kr_align_up(context_max * most * sizeof(uint16_t), 64) +
                         sizeof(float) * TABLES_MAX * BITS_MAX;

    return kr_list_scratch(plan, shape, lists_of(shape), build);
}

const kr_method kr_method_magicpig = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .name = "magicpig",
    .summary = "tokens sampled by hash collisions, weighted by their probability",
    .source = "Infini-AI-Lab/MagicPIG (ICLR 2025)",
    .plan = plan_magicpig,
    .workspace_bytes = workspace_bytes,
    .lists = lists,
    .scratch_bytes = scratch_bytes,
    .end_prefill = end_prefill,
    .stage =
        {
            [KR_STAGE_SELECT] = {.parts = select_parts, .run = select_run},
            [KR_STAGE_ATTEND] = {.parts = attend_parts, .run = attend_run},
            [KR_STAGE_MERGE] = {.parts = merge_parts, .run = merge_run},
        },
};
