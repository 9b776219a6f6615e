/* karat_attend_lists: attention over lists of units of a caller's own arrays, read where they lie.
 *
 * The parts of method/attend_list.h with a source whose rows come from the caller's strides, one after
 * the other on the calling thread: the bits of a selector that keeps its keys as rows. */
#include <math.h>

#include "api/inside.h"
#include "karat/kernels.h"
#include "method/attend_list.h"

enum { ATTENTION_BYTES = 128 /* in the first version of ABI 0 */ };

_Static_assert(sizeof(karat_list_attention) >= ATTENTION_BYTES, "grows at its end");

/* A job over arrays; the source finds them behind it. */
typedef struct {
    kr_job job; /* first */
    const karat_list_attention *arrays;
} array_job;

static const karat_list_attention *arrays_of(const kr_job *job)
{
    return ((const array_job *)(const void *)job)->arrays;
}

/* Positions of a list: whole units, and what there is of the last. */
static uint64_t positions(const karat_list_attention *a, uint32_t list)
{
    if (a->count == NULL)
        return a->tokens;
    const uint32_t count = a->count[list];
    if (count == 0)
        return 0;
    const uint64_t last = (uint64_t)a->unit[(size_t)list * a->stride + count - 1] * a->unit_tokens;
    const uint64_t left = a->tokens - last;
    return (uint64_t)(count - 1) * a->unit_tokens + (left < a->unit_tokens ? left : a->unit_tokens);
}

static uint32_t segments(const kr_list_ref *ref)
{
    return kr_segments(positions(arrays_of(ref->job), ref->list));
}

static uint32_t segments_max(const kr_job *job)
{
    const karat_list_attention *a = arrays_of(job);
    uint32_t most = 0;

    for (uint32_t l = 0; l < a->lists; l++) {
        const uint32_t n = kr_segments(positions(a, l));
        most = n > most ? n : most;
    }
    return most;
}

static void fill(const kr_list_ref *ref, uint32_t segment, kr_list_segment *out)
{
    const karat_list_attention *a = arrays_of(ref->job);
    const uint64_t all = positions(a, ref->list), first = (uint64_t)segment * KR_SEGMENT;
    const uint64_t kv_head = kr_list_kv_head(ref), element = kr_dtype_bytes((kr_dtype)a->dtype);
    const uint32_t *unit = a->count != NULL ? a->unit + (size_t)ref->list * a->stride : NULL;

    for (uint64_t i = first; i < all && i < first + KR_SEGMENT; i++) {
        const uint64_t t = unit != NULL
                               ? (uint64_t)unit[i / a->unit_tokens] * a->unit_tokens + i % a->unit_tokens
                               : i;
        out->key_row[out->count] = (const uint8_t *)a->key +
                                   (t * a->key_token_stride + kv_head * a->key_head_stride) * element;
        out->value_row[out->count++] = (const uint8_t *)a->value +
                                       (t * a->value_token_stride + kv_head * a->value_head_stride) * element;
    }
}

static const kr_list_source array_source = {segments, segments_max, fill, NULL};

static kr_status check_shape(const karat_list_attention *a, kr_err *err)
{
    if (a->key == NULL || a->value == NULL || a->query == NULL || a->output == NULL ||
        (a->count != NULL && a->unit == NULL))
        return kr_fail(err, KR_E_ARG, "karat_list_attention: a pointer is null");
    if (a->dtype != KARAT_F32 && a->dtype != KARAT_F16 && a->dtype != KARAT_BF16)
        return kr_fail(err, KR_E_UNSUPPORTED, "karat_list_attention: dtype %d; F32, F16 or BF16",
                       (int)a->dtype);
    if (a->heads < 1 || a->heads > KR_HEADS_MAX || a->kv_heads < 1 || a->heads % a->kv_heads != 0 ||
        a->lists < 1 || a->heads % a->lists != 0 || a->lists % a->kv_heads != 0)
        return kr_fail(err, KR_E_SHAPE,
                       "karat_list_attention: %u heads (at most %d) over %u kv_heads in %u lists; each a "
                       "multiple of the next, lists of kv_heads",
                       a->heads, KR_HEADS_MAX, a->kv_heads, a->lists);
    if (a->key_dim < 1 || a->key_dim > KR_ATTEND_DIM_MAX || a->value_dim < 1 ||
        a->value_dim > KR_ATTEND_DIM_MAX)
        return kr_fail(err, KR_E_SHAPE, "karat_list_attention: key_dim %u, value_dim %u; 1 to %d", a->key_dim,
                       a->value_dim, KR_ATTEND_DIM_MAX);
    if (a->tokens < 1 || a->tokens > KR_CONTEXT_MAX || a->unit_tokens < 1 || a->unit_tokens > KR_PAGE_TOKENS)
        return kr_fail(err, KR_E_LIMIT, "karat_list_attention: %llu tokens in units of %u; 1 to %d, 1 to %d",
                       (unsigned long long)a->tokens, a->unit_tokens, KR_CONTEXT_MAX, KR_PAGE_TOKENS);
    if (!(a->softmax_scale >= 0.0f) || !isfinite(a->softmax_scale))
        return kr_fail(err, KR_E_ARG, "karat_list_attention: softmax_scale %g; finite, not negative",
                       (double)a->softmax_scale);
    return KR_OK;
}

static kr_status run(const karat_list_attention *a, kr_err *err)
{
    const kr_attention_shape shape = {.heads = a->heads,
                                      .kv_heads = a->kv_heads,
                                      .key_dim = a->key_dim,
                                      .value_dim = a->value_dim,
                                      .kv_dtype = (kr_dtype)a->dtype,
                                      .softmax_scale = a->softmax_scale};
    const kr_view view = {.shape = &shape, .tokens = a->tokens};
    array_job j = {.job = {.view = &view,
                           .ops = kr_api_ops(),
                           .first_position = a->tokens - 1,
                           .queries = 1,
                           .query = a->query,
                           .output = a->output},
                   .arrays = a};
    const size_t workspace = kr_align_up(kr_attend_list_workspace(&shape, segments_max(&j.job)), 64);
    const size_t scratch = kr_attend_list_scratch(&shape, a->lists);
    kr_arena memory;
    kr_status status = kr_arena_init(&memory, workspace + scratch, err);

    if (status != KR_OK)
        return status;
    j.job.workspace = memory.base;
    const kr_scratch own = {memory.base + workspace, scratch};
    for (uint32_t p = 0; p < kr_attend_list_parts(&j.job, &array_source, a->lists); p++)
        kr_attend_list_run(&j.job, &array_source, a->lists, p, own);
    for (uint32_t p = 0; p < kr_merge_list_parts(&j.job, a->lists); p++)
        kr_merge_list_run(&j.job, &array_source, a->lists, p);
    kr_arena_free(&memory);
    return KR_OK;
}

static kr_status attend(const karat_list_attention *given, kr_err *err)
{
    karat_list_attention a;
    kr_status status = kr_api_struct(given, &a, sizeof a, ATTENTION_BYTES, "karat_list_attention", err);

    if (status == KR_OK)
        status = check_shape(&a, err);
    if (status == KR_OK)
        status = kr_api_strides("key", a.tokens, a.kv_heads, a.key_dim, &a.key_token_stride,
                                &a.key_head_stride, err);
    if (status == KR_OK)
        status = kr_api_strides("value", a.tokens, a.kv_heads, a.value_dim, &a.value_token_stride,
                                &a.value_head_stride, err);
    if (status == KR_OK && a.count != NULL)
        status = kr_api_units(a.count, a.unit, a.lists, a.stride, kr_ceil_div(a.tokens, a.unit_tokens), err);
    if (status != KR_OK)
        return status;
    a.softmax_scale = a.softmax_scale > 0.0f ? a.softmax_scale : 1.0f / sqrtf((float)a.key_dim);
    return run(&a, err);
}

karat_status karat_attend_lists(const karat_list_attention *attention, karat_error *error)
{
    kr_err err = {0};
    return kr_api_end(attend(attention, &err), &err, error);
}
