/* A retrieval method outside karat's tree: a shared object with one symbol, karat_method.
 *
 *     KARAT_METHOD_EXPORT const karat_method_table karat_method = {.abi = KARAT_METHOD_ABI, ...};
 *     cc -shared -fPIC -O2 $(pkg-config --cflags karat) my_method.c -o my_method.so
 *     karat run MODEL --attention ./my_method.so
 *     karat node --method ./my_method.so          and there: karat run MODEL --attention ./my_method.so
 *                                                     --memory-node HOST:PORT
 *
 * Nothing is linked: what a method needs of karat it gets with each call. A node loads only what its own
 * command line names; clients name methods, never files.
 *
 * The model of a method here: keys and values lie in pages of KARAT_PAGE_TOKENS tokens, as rows. The
 * context is cut into units of unit_tokens tokens. A method may keep unit_bytes of index for each unit
 * and KV head, and state_bytes of state for each KV head; both begin as zeros, are saved with sessions,
 * and are written by append and end_prompt only. For each query of a decode step, select names the units
 * of a list; karat attends to their tokens exactly (plain softmax), and attends densely to prompts, to
 * layers with a sliding window and to the first --dense-layers layers. GQA and MHA only.
 *
 * append runs once per KV head and select once per list, for different heads and lists at the same
 * time on different threads: each writes only its own head's index and state, or its own list. Results
 * must not depend on anything but the arguments: karat runs the same session with other chunks, threads
 * and hosts and expects the same bits. Functions return; they never exit, print, or keep pointers. */
#ifndef KARAT_METHOD_H
#define KARAT_METHOD_H

#include "karat/karat.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a table or call changes so that old shared objects would break; others are refused. */
#define KARAT_METHOD_ABI 1
#define KARAT_PAGE_TOKENS 128
#define KARAT_METHOD_TOPK_MAX 8192
#define KARAT_METHOD_EXPORT __attribute__((visibility("default")))

/* One layer's attention. */
typedef struct karat_method_shape {
    uint32_t heads, kv_heads; /* query heads h of KV head h * kv_heads / heads */
    uint32_t key_dim, value_dim;
    karat_dtype dtype; /* of keys and values: F32, F16, BF16 */
    float softmax_scale;
    uint32_t layer, layers;
} karat_method_shape;

/* What the user asked for; 0 = the method's default. */
typedef struct karat_method_options {
    uint32_t budget; /* tokens attended per query */
    uint32_t unit;   /* tokens of a unit */
    uint32_t mode;
    float threshold;
    uint32_t parameter[8];
    uint64_t seed;
} karat_method_options;

/* What the method answers; calls see it with state_bytes rounded up and tokens_max filled in. */
typedef struct karat_method_plan {
    uint32_t unit_tokens; /* a power of two, 1 to KARAT_PAGE_TOKENS */
    uint32_t unit_bytes;  /* index of a unit and KV head; 0: none */
    uint64_t state_bytes; /* state of a KV head, for context_max tokens; 0: none */
    uint64_t tokens_max;  /* most tokens of a list, whole units; 0: as many as there are */
    uint64_t unit_flops;  /* operations of selecting, per unit and query row, all heads: for prices */
} karat_method_plan;

typedef struct karat_method_call karat_method_call;

/* karat's kernels for methods. */
typedef struct karat_method_tools {
    /* The k best of score [n], ties to the smaller position; NaN never wins and is counted. position gets
     * them ascending; returns their number. 1 <= k <= KARAT_METHOD_TOPK_MAX, n up to the units of the
     * context; k > n is fine. */
    uint32_t (*topk)(const karat_method_call *call, const float *score, uint64_t n, uint32_t k,
                     uint32_t *position);
    /* out[q][i] = query[q] . row[i] for query [queries][dim] F32 and rows [rows][dim] of dtype. */
    void (*dot)(const karat_method_call *call, const float *query, uint32_t queries, karat_dtype dtype,
                const void *row, uint64_t rows, uint32_t dim, float *out, uint64_t out_stride);
    /* n elements to and from F32, rounding to nearest even. */
    void (*to_f32)(karat_dtype dtype, const void *source, float *target, size_t n);
    void (*from_f32)(karat_dtype dtype, const float *source, void *target, size_t n);
} karat_method_tools;

/* One session in one layer, for the duration of a call. */
struct karat_method_call {
    const karat_method_shape *shape;
    const karat_method_options *options;
    const karat_method_plan *plan;
    const karat_method_tools *tools;
    uint64_t tokens; /* stored, the new ones included */
    uint64_t first;  /* append: the first new token; all from it to tokens are new */
    /* append: F32 [tokens - first][heads][key_dim] of the new tokens, null unless needs_queries;
     * select: [heads][key_dim] of the newest token. */
    const float *query;
    void *scratch; /* scratch_bytes of this call's own, aligned to 64; contents undefined */
    uint64_t seed; /* of the session */
    /* For the functions below. */
    uint8_t *const *pages;
    uint64_t key_offset, value_offset, index_offset, state_stride;
    uint8_t *state;
    void *inside;
};

/* Bytes of an element. */
static inline size_t karat_element_bytes(karat_dtype dtype) { return dtype == KARAT_F32 ? 4 : 2; }

/* Rows of a page's keys of one KV head: [KARAT_PAGE_TOKENS][key_dim], those of stored tokens filled. */
static inline const void *karat_page_keys(const karat_method_call *call, uint32_t kv_head, uint64_t page)
{
    const karat_method_shape *s = call->shape;

    return call->pages[page] + call->key_offset +
           (size_t)kv_head * KARAT_PAGE_TOKENS * s->key_dim * karat_element_bytes(s->dtype);
}

static inline const void *karat_page_values(const karat_method_call *call, uint32_t kv_head, uint64_t page)
{
    const karat_method_shape *s = call->shape;

    return call->pages[page] + call->value_offset +
           (size_t)kv_head * KARAT_PAGE_TOKENS * s->value_dim * karat_element_bytes(s->dtype);
}

/* Index of the units of a page of one KV head: [KARAT_PAGE_TOKENS / unit_tokens][unit_bytes]. */
static inline void *karat_page_index(const karat_method_call *call, uint32_t kv_head, uint64_t page)
{
    const size_t units = KARAT_PAGE_TOKENS / call->plan->unit_tokens;

    return call->pages[page] + call->index_offset + kv_head * units * call->plan->unit_bytes;
}

/* State of one KV head: [state_bytes], aligned to 16. */
static inline void *karat_state(const karat_method_call *call, uint32_t kv_head)
{
    return call->state + kv_head * call->state_stride;
}

typedef enum karat_method_lists {
    KARAT_LIST_PER_KV_HEAD, /* kv_heads lists; the heads of a group share one */
    KARAT_LIST_PER_HEAD,    /* heads lists */
    KARAT_LIST_FOR_ALL      /* one for all heads */
} karat_method_lists;

typedef struct karat_method_table {
    uint32_t abi;                 /* KARAT_METHOD_ABI */
    uint32_t version;             /* of index and state: saved sessions of another version are refused */
    const char *name;             /* 1 to 15 of a-z, 0-9, '-' and '_'; no built-in method's */
    const char *summary, *source; /* one line each; source may be null */
    karat_method_lists lists;
    uint32_t needs_queries; /* 1: append gets the queries of the new tokens */

    /* Fills plan, zero at first, for a layer and sessions of at most context_max tokens. On failure a
     * status and one line in error->text: which option, its range. */
    karat_status (*plan)(const karat_method_shape *shape, const karat_method_options *options,
                         uint64_t context_max, karat_method_plan *plan, karat_error *error);
    /* Bytes of scratch of a call; null: 0. */
    uint64_t (*scratch_bytes)(const karat_method_shape *shape, const karat_method_plan *plan,
                              uint64_t context_max);
    /* Brings index and state of a KV head up to tokens, from first on; null: nothing to do. Must give the
     * same whatever the chunks. After a session was cut, first is the start of a unit whose index is old. */
    void (*append)(const karat_method_call *call, uint32_t kv_head);
    /* A prompt is complete; null: nothing to do. */
    void (*end_prompt)(const karat_method_call *call, uint32_t kv_head);
    /* Writes the units of a list for the query of the newest token, in any order, and returns their
     * number: at most tokens_max / unit_tokens, or the units of the context. Units that do not exist or
     * come twice are dropped. The newest token's unit is attended only if it is among them. */
    uint32_t (*select)(const karat_method_call *call, uint32_t list, uint32_t *unit);
} karat_method_table;

#ifdef __cplusplus
}
#endif

#endif
