/* Attend and Merge for methods that keep keys as rows (KR_KEYS_ROWS): attention over lists of tokens.
 *
 * A query row has a number of lists: one for all heads (MLA), one per KV head, or one per query head;
 * the heads of a list share it. A list is cut into segments of at most KR_SEGMENT positions, always
 * the same way, and the segments' results are merged in order, so a decode step that spreads segments
 * over threads gives the bits of a prefill that walks them on one.
 *
 * Decode (one query row): Attend has one part per (list, segment) and writes partial results to the
 * workspace; Merge has one part per list. Prefill: one Attend part per (block of query rows, list)
 * does both; only the dense source lets query rows share a block. */
#ifndef KR_METHOD_ATTEND_LIST_H
#define KR_METHOD_ATTEND_LIST_H

#include "method/method.h"

/* One list of one query row of a job. Rows first_query..query share the list when it is dense; for
 * every other source first_query is query. */
typedef struct {
    const kr_job *job;
    uint32_t lists, list; /* list < lists */
    uint32_t first_query, query;
} kr_list_ref;

/* Up to KR_SEGMENT list positions, to be filled by a source; count and flags are preset to 0. */
typedef struct {
    kr_dtype type; /* of the rows; preset to the KV type */
    uint32_t count;
    bool biased, weighted;             /* bias, mass are filled and used */
    const void **key_row, **value_row; /* [KR_SEGMENT] */
    float *bias, *mass;                /* [KR_SEGMENT] */
} kr_list_segment;

/* Where the positions of a list come from. */
typedef struct {
    uint32_t (*segments)(const kr_list_ref *ref);
    /* Upper bound of segments over the lists of a decode job. */
    uint32_t (*segments_max)(const kr_job *job);
    void (*fill)(const kr_list_ref *ref, uint32_t segment, kr_list_segment *out);
    /* Optional: turns a head's normalised output into the method's, in place. */
    void (*finish)(const kr_job *job, uint32_t query, uint32_t head, float *output);
} kr_list_source;

/* All tokens up to the query's own, inside the layer's window: prefill of training-free methods, and
 * layers that stay dense. */
extern const kr_list_source kr_list_dense;
/* job->selected holds tokens. */
extern const kr_list_source kr_list_tokens;
/* job->selected holds units of plan->unit_tokens tokens; only a list's last may be partial. */
extern const kr_list_source kr_list_units;

/* Appends one token's rows to a segment. */
void kr_list_add(const kr_view *view, uint32_t kv_head, uint64_t token, kr_list_segment *out);

/* Sets of positions below a limit, a bit each: an order for lists that are found out of order. */
static inline size_t kr_list_bits_bytes(uint64_t limit) { return sizeof(uint64_t) * kr_ceil_div(limit, 64); }
static inline void kr_list_set_bit(uint64_t *bits, uint64_t position)
{
    bits[position / 64] |= (uint64_t)1 << position % 64;
}
/* Writes the members, ascending; returns their number. */
uint32_t kr_list_of_bits(const uint64_t *bits, uint64_t limit, uint32_t *position);
/* Sorts distinct positions below limit, in place. */
void kr_list_sort(uint32_t *position, uint32_t count, uint64_t limit, uint64_t *bits);

/* KV head that a list reads. */
static inline uint32_t kr_list_kv_head(const kr_list_ref *ref)
{
    return (uint32_t)((uint64_t)ref->list * ref->job->view->shape->kv_heads / ref->lists);
}
/* Its selection. */
static inline uint32_t *kr_list_selected(const kr_list_ref *ref)
{
    return ref->job->selected + ((size_t)ref->query * ref->lists + ref->list) * ref->job->selected_stride;
}
static inline uint32_t *kr_list_count(const kr_list_ref *ref)
{
    return ref->job->selected_count + (size_t)ref->query * ref->lists + ref->list;
}
/* Tokens that query row sees: itself and all before it. */
static inline uint64_t kr_job_visible(const kr_job *job, uint32_t query)
{
    return job->first_position + query + 1;
}
/* Prefill and layers that stay dense attend to everything. */
static inline bool kr_job_is_dense(const kr_job *job) { return job->plan->dense || job->is_prefill; }

/* Adds NaN scores met by a Select part; parts run at once. */
static inline void kr_count_nan(const kr_job *job, uint64_t nan)
{
    if (nan != 0)
        __atomic_fetch_add(job->nan_count, nan, __ATOMIC_RELAXED);
}

uint32_t kr_attend_list_parts(const kr_job *job, const kr_list_source *source, uint32_t lists);
void kr_attend_list_run(const kr_job *job, const kr_list_source *source, uint32_t lists, uint32_t part,
                        kr_scratch scratch);
uint32_t kr_merge_list_parts(const kr_job *job, uint32_t lists);
void kr_merge_list_run(const kr_job *job, const kr_list_source *source, uint32_t lists, uint32_t part);

/* Bytes at the start of a decode row's workspace that the partial results of lists with up to
 * segments segments take; a multiple of 64. */
size_t kr_attend_list_workspace(const kr_attention_shape *shape, uint32_t segments);
/* What lies behind the partial results of a decode row. */
static inline void *kr_attend_list_behind(const kr_job *job, const kr_list_source *source)
{
    return (uint8_t *)job->workspace + kr_attend_list_workspace(job->view->shape, source->segments_max(job));
}
/* Per-thread scratch of one Attend part. */
size_t kr_attend_list_scratch(const kr_attention_shape *shape, uint32_t lists);
/* Per-thread scratch of a method whose other parts need `others` bytes; a dense layer has none of them. */
size_t kr_list_scratch(const kr_method_plan *plan, const kr_attention_shape *shape, uint32_t lists,
                       size_t others);

/* Stage functions attend_* and merge_* of a method, and its lists(): SOURCE(job) is the source of a job's
 * lists, LISTS(shape) their number a query row. */
#define KR_LIST_STAGES(SOURCE, LISTS)                                                      \
    static uint32_t lists(const kr_method_config *config, const kr_attention_shape *shape) \
    {                                                                                      \
        (void)config;                                                                      \
        return LISTS(shape);                                                               \
    }                                                                                      \
    static uint32_t attend_parts(const kr_job *job)                                        \
    {                                                                                      \
        return kr_attend_list_parts(job, SOURCE(job), LISTS(job->view->shape));            \
    }                                                                                      \
    static void attend_run(const kr_job *job, uint32_t part, kr_scratch scratch)           \
    {                                                                                      \
        kr_attend_list_run(job, SOURCE(job), LISTS(job->view->shape), part, scratch);      \
    }                                                                                      \
    static uint32_t merge_parts(const kr_job *job)                                         \
    {                                                                                      \
        return kr_merge_list_parts(job, LISTS(job->view->shape));                          \
    }                                                                                      \
    static void merge_run(const kr_job *job, uint32_t part, kr_scratch scratch)            \
    {                                                                                      \
        (void)scratch;                                                                     \
        kr_merge_list_run(job, SOURCE(job), LISTS(job->view->shape), part);                \
    }

/* The plan of a training-free GQA method with keys as rows, before its own fields: append and attend
 * work, dense first layers and windowed layers. name starts error lines. */
kr_status kr_list_plan(const char *name, const kr_method_config *config, const kr_attention_shape *shape,
                       uint32_t dense_layers_default, kr_method_plan *plan, kr_err *err);

#endif
