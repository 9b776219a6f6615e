/* Lists of tokens, their segments, and attention over them, for decode and prefill. */
#include "method/attend_list.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "method/cost.h"

enum { ROWS_PER_PART = 64 /* query rows times heads of a list that share a pass over the tokens */ };

/* ---- sources ---- */

void kr_list_add(const kr_view *view, uint32_t kv_head, uint64_t token, kr_list_segment *out)
{
    out->key_row[out->count] = kr_view_key_row(view, kv_head, token);
    out->value_row[out->count++] = kr_view_value_row(view, kv_head, token);
}

/* Dense lists are cut at absolute multiples of KR_SEGMENT, so that neither a window nor a chunk
 * moves the cuts. Segment 0 is the first that any row of the job sees. */
static uint64_t first_seen(const kr_attention_shape *shape, uint64_t position)
{
    return shape->window != 0 && position + 1 > shape->window ? position + 1 - shape->window : 0;
}

static uint64_t dense_first(const kr_job *job, uint32_t query)
{
    return first_seen(job->view->shape, job->first_position + query) / KR_SEGMENT * KR_SEGMENT;
}

static uint32_t dense_segments(const kr_list_ref *ref)
{
    return kr_segments(kr_job_visible(ref->job, ref->query) - dense_first(ref->job, ref->first_query));
}

static uint32_t dense_segments_max(const kr_job *job)
{
    return kr_segments(kr_job_visible(job, job->queries - 1) - dense_first(job, 0));
}

static void dense_fill(const kr_list_ref *ref, uint32_t segment, kr_list_segment *out)
{
    const uint64_t first = dense_first(ref->job, ref->first_query) + (uint64_t)segment * KR_SEGMENT;
    const uint64_t end = kr_job_visible(ref->job, ref->query),
                   lowest = ref->job->view->first_page * KR_PAGE_TOKENS;

    for (uint64_t t = first; t < end && t < first + KR_SEGMENT; t++)
        /* Tokens of dropped pages are outside every row's range; any row stands in for them. */
        kr_list_add(ref->job->view, kr_list_kv_head(ref), t < lowest ? end - 1 : t, out);
}

const kr_list_source kr_list_dense = {dense_segments, dense_segments_max, dense_fill, NULL};

static uint32_t selected_segments_max(const kr_job *job)
{
    const uint32_t most = job->plan->selected_max;
    const uint64_t tokens = kr_job_visible(job, job->queries - 1);

    return kr_segments(most != 0 && most < tokens ? most : tokens);
}

static uint32_t token_segments(const kr_list_ref *ref) { return kr_segments(*kr_list_count(ref)); }

static void token_fill(const kr_list_ref *ref, uint32_t segment, kr_list_segment *out)
{
    const uint32_t *token = kr_list_selected(ref), count = *kr_list_count(ref);

    for (uint32_t i = segment * KR_SEGMENT; i < count && i < (segment + 1) * KR_SEGMENT; i++)
        kr_list_add(ref->job->view, kr_list_kv_head(ref), token[i], out);
}

const kr_list_source kr_list_tokens = {token_segments, selected_segments_max, token_fill, NULL};

/* Tokens of the list: whole units, and the visible part of the last. */
static uint64_t unit_tokens(const kr_list_ref *ref)
{
    const uint64_t unit = ref->job->plan->unit_tokens, visible = kr_job_visible(ref->job, ref->query);
    const uint32_t count = *kr_list_count(ref);

    if (count == 0)
        return 0;
    const uint64_t last = kr_list_selected(ref)[count - 1] * unit;
    return (count - 1) * unit + (visible - last < unit ? visible - last : unit);
}

static uint32_t unit_segments(const kr_list_ref *ref) { return kr_segments(unit_tokens(ref)); }

static void unit_fill(const kr_list_ref *ref, uint32_t segment, kr_list_segment *out)
{
    const uint32_t *selected = kr_list_selected(ref), unit = ref->job->plan->unit_tokens;
    const uint64_t first = (uint64_t)segment * KR_SEGMENT, all = unit_tokens(ref);

    for (uint64_t i = first; i < all && i < first + KR_SEGMENT; i++)
        kr_list_add(ref->job->view, kr_list_kv_head(ref), (uint64_t)selected[i / unit] * unit + i % unit,
                    out);
}

const kr_list_source kr_list_units = {unit_segments, selected_segments_max, unit_fill, NULL};

uint32_t kr_list_of_bits(const uint64_t *bits, uint64_t limit, uint32_t *position)
{
    uint32_t count = 0;

    for (uint64_t w = 0; w < kr_ceil_div(limit, 64); w++)
        for (uint64_t left = bits[w]; left != 0; left &= left - 1)
            position[count++] = (uint32_t)(w * 64) + (uint32_t)__builtin_ctzll(left);
    return count;
}

void kr_list_sort(uint32_t *position, uint32_t count, uint64_t limit, uint64_t *bits)
{
    memset(bits, 0, kr_list_bits_bytes(limit));
    for (uint32_t i = 0; i < count; i++)
        kr_list_set_bit(bits, position[i]);
    KR_CHECK(kr_list_of_bits(bits, limit, position) == count);
}

/* ---- memory ---- */

/* Partial result of one head in one segment: maximum, sum, accumulator[value_dim]. */
static size_t partial_floats(const kr_attention_shape *shape)
{
    return kr_align_up(2 + shape->value_dim, 16);
}

size_t kr_attend_list_workspace(const kr_attention_shape *shape, uint32_t segments)
{
    return sizeof(float) * partial_floats(shape) * shape->heads * segments;
}

/* Query rows of a block and rows (query rows times heads of the list) of an op call. */
static uint32_t block_queries(const kr_attention_shape *shape, uint32_t lists)
{
    const uint32_t heads = shape->heads / lists;

    return heads >= ROWS_PER_PART ? 1 : ROWS_PER_PART / heads;
}

/* Per-thread memory of one part. */
typedef struct {
    const float **query;                            /* [rows] */
    uint32_t *from, *to;                            /* [rows] */
    float *maximum, *sum, *accumulator;             /* of one segment */
    float *all_maximum, *all_sum, *all_accumulator; /* of the segments so far */
    kr_list_segment segment;
    void *op;
} part_memory;

/* The next bytes of base; without a base, only counts them. */
static void *take(uint8_t *base, size_t *used, size_t bytes)
{
    void *p = base != NULL ? base + *used : NULL;

    *used += kr_align_up(bytes, 64);
    return p;
}

/* Lays a part's memory out from base, which may be NULL; returns its size in bytes. */
static size_t lay_out(const kr_attention_shape *shape, uint32_t lists, uint8_t *base, part_memory *m)
{
    const size_t rows = (size_t)block_queries(shape, lists) * (shape->heads / lists);
    size_t used = 0;

    m->query = take(base, &used, rows * sizeof *m->query);
    m->from = take(base, &used, rows * sizeof *m->from);
    m->to = take(base, &used, rows * sizeof *m->to);
    m->maximum = take(base, &used, rows * sizeof(float));
    m->sum = take(base, &used, rows * sizeof(float));
    m->accumulator = take(base, &used, rows * shape->value_dim * sizeof(float));
    m->all_maximum = take(base, &used, rows * sizeof(float));
    m->all_sum = take(base, &used, rows * sizeof(float));
    m->all_accumulator = take(base, &used, rows * shape->value_dim * sizeof(float));
    m->segment.key_row = take(base, &used, KR_SEGMENT * sizeof(void *));
    m->segment.value_row = take(base, &used, KR_SEGMENT * sizeof(void *));
    m->segment.bias = take(base, &used, KR_SEGMENT * sizeof(float));
    m->segment.mass = take(base, &used, KR_SEGMENT * sizeof(float));
    m->op = take(base, &used, kr_attend_rows_scratch_bytes((uint32_t)rows, shape->key_dim, shape->value_dim));
    return used;
}

size_t kr_attend_list_scratch(const kr_attention_shape *shape, uint32_t lists)
{
    part_memory m;

    return lay_out(shape, lists, NULL, &m);
}

size_t kr_list_scratch(const kr_method_plan *plan, const kr_attention_shape *shape, uint32_t lists,
                       size_t others)
{
    const size_t attend = kr_attend_list_scratch(shape, lists);

    return plan->dense || attend > others ? attend : others;
}

/* ---- one segment ---- */

static uint32_t clamp_position(uint64_t token, uint64_t first, uint32_t count)
{
    return token <= first ? 0 : token - first < count ? (uint32_t)(token - first) : count;
}

static void attend_segment(const kr_list_ref *ref, const kr_list_source *source, uint32_t segment,
                           part_memory *m)
{
    const kr_job *job = ref->job;
    const kr_attention_shape *s = job->view->shape;
    const uint32_t heads = s->heads / ref->lists, rows = (ref->query + 1 - ref->first_query) * heads;
    const uint64_t first = dense_first(job, ref->first_query) + (uint64_t)segment * KR_SEGMENT;

    m->segment.type = s->kv_dtype;
    m->segment.count = 0;
    m->segment.biased = m->segment.weighted = false;
    source->fill(ref, segment, &m->segment);
    for (uint32_t r = 0; r < rows; r++) {
        const uint64_t query = ref->first_query + r / heads, head = (uint64_t)ref->list * heads + r % heads;

        m->query[r] = job->query + (query * s->heads + head) * s->key_dim;
        m->from[r] = 0;
        m->to[r] = m->segment.count;
        if (source == &kr_list_dense) {
            m->from[r] = clamp_position(first_seen(s, job->first_position + query), first, m->segment.count);
            m->to[r] = clamp_position(job->first_position + query + 1, first, m->segment.count);
        }
    }
    job->ops->attend_rows(&(kr_attend_rows_args){
        .query = m->query,
        .from = m->from,
        .to = m->to,
        .key_row = m->segment.key_row,
        .value_row = m->segment.value_row,
        .bias = m->segment.biased ? m->segment.bias : NULL,
        .mass = m->segment.weighted ? m->segment.mass : NULL,
        .rows = rows,
        .positions = m->segment.count,
        .key_dim = s->key_dim,
        .value_dim = s->value_dim,
        .type = m->segment.type,
        .scale = s->softmax_scale,
        .scratch = m->op,
        .maximum = m->maximum,
        .sum = m->sum,
        .accumulator = m->accumulator,
    });
}

static void finish_head(const kr_job *job, const kr_list_source *source, uint32_t query, uint32_t head,
                        float sum, const float *accumulator)
{
    const kr_attention_shape *s = job->view->shape;
    float *out = job->output + ((size_t)query * s->heads + head) * s->value_dim;

    kr_attend_finish(sum, accumulator, out, s->value_dim);
    if (source->finish)
        source->finish(job, query, head, out);
}

/* ---- prefill: all segments of a block of query rows ---- */

static uint32_t block_of(const kr_job *job, const kr_list_source *source, uint32_t lists)
{
    return source == &kr_list_dense ? block_queries(job->view->shape, lists) : 1;
}

static void attend_block(const kr_list_ref *ref, const kr_list_source *source, part_memory *m)
{
    const kr_attention_shape *s = ref->job->view->shape;
    const uint32_t heads = s->heads / ref->lists, rows = (ref->query + 1 - ref->first_query) * heads;

    for (uint32_t r = 0; r < rows; r++) {
        m->all_maximum[r] = -INFINITY;
        m->all_sum[r] = 0.0f;
    }
    memset(m->all_accumulator, 0, sizeof(float) * rows * s->value_dim);
    for (uint32_t g = 0; g < source->segments(ref); g++) {
        attend_segment(ref, source, g, m);
        for (uint32_t r = 0; r < rows; r++)
            kr_attend_merge(&m->all_maximum[r], &m->all_sum[r], m->all_accumulator + (size_t)r * s->value_dim,
                            m->maximum[r], m->sum[r], m->accumulator + (size_t)r * s->value_dim,
                            s->value_dim);
    }
    for (uint32_t r = 0; r < rows; r++)
        finish_head(ref->job, source, ref->first_query + r / heads, ref->list * heads + r % heads,
                    m->all_sum[r], m->all_accumulator + (size_t)r * s->value_dim);
}

/* ---- decode: partial results in the workspace, [segment][head] ---- */

static float *partial_at(const kr_job *job, uint32_t segment, uint32_t head)
{
    const kr_attention_shape *s = job->view->shape;

    return (float *)job->workspace + ((size_t)segment * s->heads + head) * partial_floats(s);
}

static void store_partials(const kr_list_ref *ref, uint32_t segment, const part_memory *m)
{
    const kr_attention_shape *s = ref->job->view->shape;
    const uint32_t heads = s->heads / ref->lists;

    for (uint32_t r = 0; r < heads; r++) {
        float *partial = partial_at(ref->job, segment, ref->list * heads + r);

        partial[0] = m->maximum[r];
        partial[1] = m->sum[r];
        memcpy(partial + 2, m->accumulator + (size_t)r * s->value_dim, sizeof(float) * s->value_dim);
    }
}

static bool is_decode(const kr_job *job) { return !job->is_prefill; }

uint32_t kr_attend_list_parts(const kr_job *job, const kr_list_source *source, uint32_t lists)
{
    if (is_decode(job)) {
        KR_CHECK(job->queries == 1);
        return source->segments_max(job) * lists;
    }
    return (uint32_t)kr_ceil_div(job->queries, block_of(job, source, lists)) * lists;
}

void kr_attend_list_run(const kr_job *job, const kr_list_source *source, uint32_t lists, uint32_t part,
                        kr_scratch scratch)
{
    const uint32_t number = part / lists;
    part_memory m;
    kr_list_ref ref = {job, lists, part % lists, 0, 0};

    KR_CHECK(lay_out(job->view->shape, lists, scratch.memory, &m) <= scratch.bytes);
    if (is_decode(job)) {
        if (number < source->segments(&ref)) {
            attend_segment(&ref, source, number, &m);
            store_partials(&ref, number, &m);
        }
        return;
    }
    const uint32_t block = block_of(job, source, lists), left = job->queries - number * block;

    ref.first_query = number * block;
    ref.query = ref.first_query + (left < block ? left : block) - 1;
    attend_block(&ref, source, &m);
}

uint32_t kr_merge_list_parts(const kr_job *job, uint32_t lists) { return is_decode(job) ? lists : 0; }

void kr_merge_list_run(const kr_job *job, const kr_list_source *source, uint32_t lists, uint32_t part)
{
    const kr_attention_shape *s = job->view->shape;
    const uint32_t heads = s->heads / lists;
    const kr_list_ref ref = {job, lists, part, 0, 0};

    for (uint32_t head = part * heads; head < (part + 1) * heads; head++) {
        float *all = job->output + (size_t)head * s->value_dim, maximum = -INFINITY, sum = 0.0f;

        memset(all, 0, sizeof(float) * s->value_dim);
        for (uint32_t g = 0; g < source->segments(&ref); g++) {
            const float *next = partial_at(job, g, head);

            kr_attend_merge(&maximum, &sum, all, next[0], next[1], next + 2, s->value_dim);
        }
        finish_head(job, source, 0, head, sum, all);
    }
}

kr_status kr_list_plan(const char *name, const kr_method_config *config, const kr_attention_shape *shape,
                       uint32_t dense_layers_default, kr_method_plan *plan, kr_err *err)
{
    const uint32_t dense_layers = config->dense_layers == UINT32_MAX ? dense_layers_default
                                                                     : config->dense_layers;

    if (shape->latent)
        return kr_fail(err, KR_E_UNSUPPORTED, "%s: layer %u is MLA; the method needs GQA or MHA", name,
                       shape->layer);
    if (shape->kv_heads == 0 || shape->heads % shape->kv_heads != 0)
        return kr_fail(err, KR_E_SHAPE, "%s: %u heads do not divide into %u KV heads", name, shape->heads,
                       shape->kv_heads);
    if (shape->key_dim > KR_ATTEND_DIM_MAX || shape->value_dim > KR_ATTEND_DIM_MAX)
        return kr_fail(err, KR_E_SHAPE, "%s: head width %u, must be at most %d", name, shape->key_dim,
                       KR_ATTEND_DIM_MAX);
    *plan = (kr_method_plan){
        .keys = KR_KEYS_ROWS,
        .granularity = KR_UNIT_TOKEN,
        .unit_tokens = 1,
        .dense = shape->layer < dense_layers || shape->window != 0,
        .owns_index = true,
        .index_owner = (uint16_t)shape->layer,
    };
    plan->cost[KR_STAGE_APPEND].fixed = kr_append_row_work(shape);
    plan->cost[KR_STAGE_ATTEND].per_attended_token = kr_attend_token_work(shape);
    return KR_OK;
}
