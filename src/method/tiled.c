/* Parts of attention over key tiles. A part owns its scratch while it runs, and writes only its own
 * partial results (decode) or its own rows of the output (prefill). */
#include "method/tiled.h"

#include <math.h>
#include <string.h>

#include "base/check.h"

/* Query rows of one call in prefill: enough to fill the kernel's row groups, few enough that the
 * partial and running sums of all of them stay in the second-level cache. */
enum { PREFILL_ROWS = 48, SEGMENT_TILES = KR_SEGMENT / KR_TILE_TOKENS };

static uint32_t group_size(const kr_attention_shape *shape) { return shape->heads / shape->kv_heads; }

/* Tokens of a prefill part. */
static uint32_t block_tokens(const kr_attention_shape *shape)
{
    const uint32_t tokens = PREFILL_ROWS / group_size(shape);
    return tokens > 0 ? tokens : 1;
}

static uint32_t rows_max(const kr_attention_shape *shape) { return block_tokens(shape) * group_size(shape); }

/* Per-thread memory of one part. */
typedef struct {
    const float **query;        /* [rows] */
    uint32_t *from, *to;        /* [rows] */
    float *maximum, *sum, *acc; /* of the segment: [rows], [rows], [rows][value_dim] */
    float *run_maximum, *run_sum, *run_acc;
    float *scores;                      /* [KR_ATTEND_ROW_GROUP][KR_SEGMENT] */
    const void **key_tile, **value_row; /* [SEGMENT_TILES] */
    uint8_t *key_copy, *value_copy;     /* gathered rows: [KR_SEGMENT] keys as tiles, values as rows */
} part_memory;

static void *carve(uint8_t *base, size_t *used, size_t bytes)
{
    void *p = base == NULL ? NULL : base + *used;

    *used += kr_align_up(bytes, 64);
    return p;
}

/* Lays part_memory out in base; with base NULL only counts. Returns the bytes used. */
static size_t lay_out(const kr_attention_shape *s, uint8_t *base, part_memory *m)
{
    const size_t rows = rows_max(s), element = kr_dtype_bytes(s->kv_dtype);
    size_t used = 0;

    m->query = carve(base, &used, rows * sizeof *m->query);
    m->from = carve(base, &used, rows * sizeof *m->from);
    m->to = carve(base, &used, rows * sizeof *m->to);
    m->maximum = carve(base, &used, rows * sizeof(float));
    m->sum = carve(base, &used, rows * sizeof(float));
    m->acc = carve(base, &used, rows * s->value_dim * sizeof(float));
    m->run_maximum = carve(base, &used, rows * sizeof(float));
    m->run_sum = carve(base, &used, rows * sizeof(float));
    m->run_acc = carve(base, &used, rows * s->value_dim * sizeof(float));
    m->scores = carve(base, &used, sizeof(float) * KR_ATTEND_ROW_GROUP * KR_SEGMENT);
    m->key_tile = carve(base, &used, sizeof(void *) * SEGMENT_TILES);
    m->value_row = carve(base, &used, sizeof(void *) * SEGMENT_TILES);
    m->key_copy = carve(base, &used, KR_SEGMENT * element * s->key_dim);
    m->value_copy = carve(base, &used, KR_SEGMENT * element * s->value_dim);
    return used;
}

size_t kr_tiled_scratch_bytes(const kr_attention_shape *shape)
{
    part_memory m;
    return lay_out(shape, NULL, &m);
}

static part_memory take_memory(const kr_attention_shape *shape, kr_scratch scratch)
{
    part_memory m;

    KR_CHECK(scratch.memory != NULL);
    const size_t used = lay_out(shape, scratch.memory, &m);
    KR_CHECK(used <= scratch.bytes);
    return m;
}

/* ---- partial results of a decode row: [segment][head] of (maximum, sum, acc[value_dim]) ---- */

static size_t partial_floats(const kr_attention_shape *shape)
{
    return kr_align_up(2 + shape->value_dim, 16);
}

size_t kr_tiled_partial_bytes(const kr_attention_shape *shape, uint64_t positions)
{
    /* One more than full segments: a window may begin inside one and end inside another. */
    return sizeof(float) * partial_floats(shape) * shape->heads * (kr_segments(positions) + 1);
}

static float *partial_at(const kr_attention_shape *shape, void *workspace, uint32_t segment, uint32_t head)
{
    return (float *)workspace + ((size_t)segment * shape->heads + head) * partial_floats(shape);
}

static void store_partial(const kr_attention_shape *shape, const part_memory *m, uint32_t row, float *partial)
{
    partial[0] = m->maximum[row];
    partial[1] = m->sum[row];
    memcpy(partial + 2, m->acc + (size_t)row * shape->value_dim, sizeof(float) * shape->value_dim);
}

void kr_tiled_merge(const kr_job *job, uint32_t head, uint32_t segments, void *workspace)
{
    const kr_attention_shape *s = job->view->shape;
    float *out = job->output + (size_t)head * s->value_dim, maximum = -INFINITY, sum = 0.0f;

    memset(out, 0, sizeof *out * s->value_dim);
    for (uint32_t g = 0; g < segments; g++) {
        const float *next = partial_at(s, workspace, g, head);
        kr_attend_merge(&maximum, &sum, out, next[0], next[1], next + 2, s->value_dim);
    }
    kr_attend_finish(sum, out, out, s->value_dim);
}

/* ---- one segment's tiles ---- */

/* Points tile at 16 tokens from token on; copies them to scratch when another device holds them. */
static void take_tile(const kr_view *v, uint32_t kv_head, uint64_t token, uint32_t device, part_memory *m,
                      uint32_t tile)
{
    const kr_attention_shape *s = v->shape;
    const size_t bytes = (size_t)KR_TILE_TOKENS * kr_dtype_bytes(s->kv_dtype);
    const uint64_t page = token / KR_PAGE_TOKENS;

    if (page < v->first_page) { /* dropped: outside every row's window, never read */
        m->key_tile[tile] = m->value_row[tile] = NULL;
        return;
    }
    m->key_tile[tile] = kr_view_key_tile(v, kv_head, token);
    m->value_row[tile] = kr_view_value_row(v, kv_head, token);
    if (v->page_device[page] == device)
        return;
    m->key_tile[tile] = memcpy(m->key_copy + tile * bytes * s->key_dim, m->key_tile[tile],
                               bytes * s->key_dim);
    m->value_row[tile] = memcpy(m->value_copy + tile * bytes * s->value_dim, m->value_row[tile],
                                bytes * s->value_dim);
}

/* Copies a unit smaller than a tile to list position first of the segment's copies. */
static void copy_unit(const kr_view *v, uint32_t kv_head, uint64_t token, uint32_t unit_tokens,
                      part_memory *m, uint32_t first)
{
    const kr_attention_shape *s = v->shape;
    const size_t element = kr_dtype_bytes(s->kv_dtype), tile_row = KR_TILE_TOKENS * element;
    const uint8_t *key = kr_view_key_tile(v, kv_head, token);
    uint8_t *copy = m->key_copy + first / KR_TILE_TOKENS * tile_row * s->key_dim;

    for (uint32_t c = 0; c < s->key_dim; c++)
        memcpy(copy + c * tile_row + first % KR_TILE_TOKENS * element,
               key + c * tile_row + token % KR_TILE_TOKENS * element, unit_tokens * element);
    memcpy(m->value_copy + (size_t)first * s->value_dim * element, kr_view_value_row(v, kv_head, token),
           (size_t)unit_tokens * s->value_dim * element);
    if (first % KR_TILE_TOKENS == 0) {
        m->key_tile[first / KR_TILE_TOKENS] = copy;
        m->value_row[first / KR_TILE_TOKENS] = m->value_copy + (size_t)first * s->value_dim * element;
    }
}

static void attend(const kr_job *job, part_memory *m, uint32_t rows, uint32_t positions)
{
    const kr_attention_shape *s = job->view->shape;

    job->ops->attend_tiled(&(kr_attend_tiled_args){
        .query = m->query,
        .from = m->from,
        .to = m->to,
        .rows = rows,
        .key_tile = m->key_tile,
        .value_row = m->value_row,
        .positions = positions,
        .key_dim = s->key_dim,
        .value_dim = s->value_dim,
        .type = s->kv_dtype,
        .scale = s->softmax_scale,
        .scores = m->scores,
        .maximum = m->maximum,
        .sum = m->sum,
        .accumulator = m->acc,
    });
}

/* ---- dense ---- */

/* Positions [first, end) that the query at position sees. */
static uint64_t first_seen(const kr_attention_shape *s, uint64_t position)
{
    return s->window != 0 && position + 1 > s->window ? position + 1 - s->window : 0;
}

/* Segments from the first one seen by the job's first row to the last one seen by its last. */
static uint32_t first_segment(const kr_job *job)
{
    return (uint32_t)(first_seen(job->view->shape, job->first_position) / KR_SEGMENT);
}

static uint32_t end_segment(const kr_job *job) { return kr_segments(job->first_position + job->queries); }

uint32_t kr_tiled_dense_segments(const kr_job *job) { return end_segment(job) - first_segment(job); }

static uint32_t clamp_to_segment(uint64_t position, uint64_t segment_first)
{
    if (position <= segment_first)
        return 0;
    return position - segment_first < KR_SEGMENT ? (uint32_t)(position - segment_first) : KR_SEGMENT;
}

/* Partial results of query rows [query, query + queries) of one KV head's group in one segment. */
static void dense_segment(const kr_job *job, part_memory *m, uint32_t kv_head, uint32_t query,
                          uint32_t queries, uint32_t segment, uint32_t device)
{
    const kr_attention_shape *s = job->view->shape;
    const uint32_t group = group_size(s);
    const uint64_t first = (uint64_t)segment * KR_SEGMENT;
    uint32_t low = KR_SEGMENT, high = 0;

    for (uint32_t r = 0; r < queries * group; r++) {
        const uint64_t row = query + r / group, position = job->first_position + row;

        m->query[r] = job->query + (row * s->heads + (uint64_t)kv_head * group + r % group) * s->key_dim;
        m->from[r] = clamp_to_segment(first_seen(s, position), first);
        m->to[r] = clamp_to_segment(position + 1, first);
        low = m->from[r] < low ? m->from[r] : low;
        high = m->to[r] > high ? m->to[r] : high;
    }
    for (uint32_t tile = low / KR_TILE_TOKENS; tile * KR_TILE_TOKENS < high; tile++)
        take_tile(job->view, kv_head, first + (uint64_t)tile * KR_TILE_TOKENS, device, m, tile);
    attend(job, m, queries * group, high);
}

static void dense_prefill(const kr_job *job, uint32_t part, part_memory *m)
{
    const kr_attention_shape *s = job->view->shape;
    const uint32_t group = group_size(s), kv_head = part % s->kv_heads,
                   query = part / s->kv_heads * block_tokens(s);
    const uint32_t left = job->queries - query, queries = left < block_tokens(s) ? left : block_tokens(s);
    const uint64_t last = job->first_position + query + queries - 1;
    const uint32_t begin = (uint32_t)(first_seen(s, job->first_position + query) / KR_SEGMENT);

    for (uint32_t r = 0; r < queries * group; r++) {
        m->run_maximum[r] = -INFINITY;
        m->run_sum[r] = 0.0f;
    }
    memset(m->run_acc, 0, sizeof(float) * queries * group * s->value_dim);
    for (uint32_t segment = begin; segment <= last / KR_SEGMENT; segment++) {
        dense_segment(job, m, kv_head, query, queries, segment, job->view->home);
        for (uint32_t r = 0; r < queries * group; r++)
            kr_attend_merge(&m->run_maximum[r], &m->run_sum[r], m->run_acc + (size_t)r * s->value_dim,
                            m->maximum[r], m->sum[r], m->acc + (size_t)r * s->value_dim, s->value_dim);
    }
    for (uint32_t r = 0; r < queries * group; r++)
        kr_attend_finish(m->run_sum[r], m->run_acc + (size_t)r * s->value_dim,
                         job->output +
                             ((size_t)(query + r / group) * s->heads + kv_head * group + r % group) *
                                 s->value_dim,
                         s->value_dim);
}

uint32_t kr_tiled_dense_parts(const kr_job *job)
{
    const kr_attention_shape *s = job->view->shape;

    if (job->queries == 1)
        return s->kv_heads * kr_tiled_dense_segments(job);
    return s->kv_heads * (uint32_t)kr_ceil_div(job->queries, block_tokens(s));
}

uint32_t kr_tiled_dense_device(const kr_job *job, uint32_t part)
{
    const kr_view *v = job->view;

    if (job->queries != 1)
        return v->home;
    const uint64_t segment = first_segment(job) + part / v->shape->kv_heads;
    const uint64_t seen = first_seen(v->shape, job->first_position) / KR_PAGE_TOKENS;
    uint64_t page = segment * KR_SEGMENT / KR_PAGE_TOKENS;
    const uint64_t end = page + KR_SEGMENT / KR_PAGE_TOKENS;

    page = page > seen ? page : seen;
    for (uint64_t p = page; p < end && p < v->page_count; p++)
        if (v->page_device[p] != v->page_device[page])
            return v->home;
    return v->page_device[page];
}

void kr_tiled_dense_run(const kr_job *job, uint32_t part, void *workspace, kr_scratch scratch)
{
    const kr_attention_shape *s = job->view->shape;
    const uint32_t group = group_size(s), kv_head = part % s->kv_heads, n = part / s->kv_heads;
    part_memory m = take_memory(s, scratch);

    if (job->queries != 1) {
        dense_prefill(job, part, &m);
        return;
    }
    dense_segment(job, &m, kv_head, 0, 1, first_segment(job) + n, kr_tiled_dense_device(job, part));
    for (uint32_t r = 0; r < group; r++)
        store_partial(s, &m, r, partial_at(s, workspace, n, kv_head * group + r));
}

/* ---- selected lists ---- */

uint64_t kr_unit_list_positions(const kr_view *view, kr_unit_list list)
{
    if (list.units == 0)
        return 0;
    const uint64_t last = (uint64_t)list.unit[list.units - 1] * list.unit_tokens, left = view->tokens - last;

    return (uint64_t)(list.units - 1) * list.unit_tokens +
           (left < list.unit_tokens ? left : list.unit_tokens);
}

/* Token at position of the list. */
static uint64_t token_at(kr_unit_list list, uint64_t position)
{
    return (uint64_t)list.unit[position / list.unit_tokens] * list.unit_tokens + position % list.unit_tokens;
}

static uint64_t list_segment_end(const kr_view *view, kr_unit_list list, uint32_t segment)
{
    const uint64_t positions = kr_unit_list_positions(view, list), end = ((uint64_t)segment + 1) * KR_SEGMENT;
    return positions < end ? positions : end;
}

uint32_t kr_tiled_list_device(const kr_view *view, kr_unit_list list, uint32_t segment)
{
    const uint64_t first = (uint64_t)segment * KR_SEGMENT, end = list_segment_end(view, list, segment);
    const uint32_t step = list.unit_tokens < KR_TILE_TOKENS ? list.unit_tokens : KR_TILE_TOKENS;
    const uint32_t device = view->page_device[token_at(list, first) / KR_PAGE_TOKENS];

    for (uint64_t p = first; p < end; p += step)
        if (view->page_device[token_at(list, p) / KR_PAGE_TOKENS] != device)
            return view->home;
    return device;
}

void kr_tiled_list_run(const kr_job *job, kr_unit_list list, uint32_t head, uint32_t segment, void *workspace,
                       kr_scratch scratch)
{
    const kr_view *v = job->view;
    const kr_attention_shape *s = v->shape;
    const uint64_t first = (uint64_t)segment * KR_SEGMENT, end = list_segment_end(v, list, segment);
    const uint32_t kv_head = head / group_size(s), positions = (uint32_t)(end - first);
    const uint32_t device = kr_tiled_list_device(v, list, segment);
    part_memory m = take_memory(s, scratch);

    m.query[0] = job->query + (size_t)head * s->key_dim;
    m.from[0] = 0;
    m.to[0] = positions;
    if (list.unit_tokens >= KR_TILE_TOKENS)
        for (uint32_t i = 0; i < positions; i += KR_TILE_TOKENS)
            take_tile(v, kv_head, token_at(list, first + i), device, &m, i / KR_TILE_TOKENS);
    else
        for (uint32_t i = 0; i < positions; i += list.unit_tokens)
            copy_unit(v, kv_head, token_at(list, first + i), list.unit_tokens, &m, i);
    attend(job, &m, 1, positions);
    store_partial(s, &m, 0, partial_at(s, workspace, segment, head));
}
