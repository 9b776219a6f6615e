/* karat's retrieval methods on a caller's own keys and values, in the caller's process: no model, no
 * node, no engine of karat's.
 *
 * A *selector* is a method with its options for one attention shape: kernels, threads and a pool of
 * memory. A *sequence* is one context in it: keys and values of every layer, and the method's index
 * over them. An engine's step in a layer is
 *
 *     karat_sequence_append   the new token's key and value (copied)
 *     karat_sequence_select   which units of the context its query should attend to
 *     karat_sequence_attend   attention over them; or the engine attends over its own arrays
 *
 * after the prompt was appended in chunks of any size and ended with karat_sequence_end_prompt. Which
 * rows are prompt and which are generated matters: methods build at that end. Results are the bits
 * that `karat run` and `karat node` compute, whatever the chunks, the threads and the CPU's vector
 * width. Selection order: score descending, then position ascending; NaN never wins and is counted.
 *
 * Keys and queries are post-RoPE. A selector and all its sequences are used by one thread at a time. */
#ifndef KARAT_SELECTOR_H
#define KARAT_SELECTOR_H

#include "karat/karat.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Methods, built-in ones first: name, one line and source of number index; null past the last. */
KARAT_API const char *karat_method_name(uint32_t index);
KARAT_API const char *karat_method_summary(uint32_t index);
KARAT_API const char *karat_method_source(uint32_t index);

/* Loads a method outside the tree (karat/method.h) for the rest of the process, for selectors and for
 * clients of nodes that have it too; *name (or null) gets its name. Not while another thread is in karat.
 * KARAT_E_NOT_FOUND, KARAT_E_VERSION, KARAT_E_FORMAT, KARAT_E_EXISTS (a method of that name),
 * KARAT_E_LIMIT. */
KARAT_API karat_status karat_method_load(const char *path, const char **name, karat_error *error);

typedef struct karat_selector_options {
    uint32_t struct_size;   /* sizeof(karat_selector_options) */
    karat_dtype dtype;      /* of keys and values: F32, F16, BF16 */
    const char *method;     /* "quest", ...; docs/methods.md. Copied */
    uint32_t layers;        /* 0 = 1; at most 256 */
    uint32_t heads;         /* query heads, a multiple of kv_heads; at most 512 */
    uint32_t kv_heads;      /* 1 when latent */
    uint32_t key_dim;       /* elements of a key row; latent: kv_lora + rope. At most 1,024 */
    uint32_t value_dim;     /* of a value row; latent: kv_lora. 0: no values are kept, selection only */
    uint32_t latent;        /* 1: MLA, absorbed: the value is the first value_dim elements of the key row */
    float softmax_scale;    /* 0 = 1 / sqrt(key_dim) */
    uint32_t threads;       /* that work on a call, the caller's among them; 0 = 1, at most 256 */
    uint64_t tokens_max;    /* of the longest sequence; at most 2^28 */
    uint64_t memory_bytes;  /* of the pool, taken as sequences grow; 0 = sequences_max of tokens_max */
    uint32_t sequences_max; /* open at a time; 0 = 1 */
    /* The method's; 0 = its default, written in its file and in docs/methods.md. */
    uint32_t budget; /* tokens attended per query */
    uint32_t unit;   /* tokens per page, block or cluster */
    uint32_t mode;
    uint32_t dense_layers; /* first layers that stay dense; 0 = none */
    float threshold;
    uint32_t parameter[8]; /* dsa, msa: [0] index heads, [1] elements of an index key */
    uint64_t seed;         /* of methods that draw */
    /* [layers] or null: the layer whose index a layer uses, itself or an earlier one (dsa). Copied. */
    const uint32_t *index_owner;
} karat_selector_options;

typedef struct karat_selector karat_selector;
typedef struct karat_sequence karat_sequence;

/* KARAT_E_NOT_FOUND: no such method, with the names there are. KARAT_E_ARG, KARAT_E_SHAPE,
 * KARAT_E_UNSUPPORTED, KARAT_E_LIMIT: an option, with its range. KARAT_E_MEMORY. */
KARAT_API karat_status karat_selector_create(const karat_selector_options *options, karat_selector **selector,
                                             karat_error *error);
/* Closes its sequences too. Null is fine. */
KARAT_API void karat_selector_destroy(karat_selector *selector);

/* What a method does in one layer, and what it costs. */
typedef struct karat_selector_plan {
    uint32_t struct_size;       /* set by the caller: sizeof(karat_selector_plan) */
    uint32_t dense;             /* 1: the layer attends to everything, and there is nothing to select */
    uint32_t lists;             /* selection lists of a query: 1, kv_heads or heads; 0 when dense. List l is
                                 * of KV head l * kv_heads / lists and of heads / lists query heads */
    uint32_t unit_tokens;       /* tokens of a unit: unit u is tokens [u, u + 1) * unit_tokens */
    uint32_t units_max;         /* longest list possible, in units */
    uint32_t index_owner;       /* layer whose selection this layer uses; its own number mostly */
    uint32_t index_query_bytes; /* of a query row; 0: the method scores with the query itself */
    uint32_t index_key_bytes;   /* of a token's row; 0: it indexes the keys themselves */
    uint32_t needs_queries;     /* 1: prompt rows need their queries */
    uint32_t page_tokens;       /* tokens of a page of the pool */
    uint64_t page_bytes;        /* of a page, all layers */
    uint64_t page_kv_bytes;     /* of this layer's keys and values in it */
    uint64_t page_index_bytes;  /* of this layer's index in it */
    uint64_t record_bytes;      /* of this layer's state beside the pages, for tokens_max tokens */
} karat_selector_plan;

KARAT_API karat_status karat_selector_plan_of(const karat_selector *selector, uint32_t layer,
                                              karat_selector_plan *plan, karat_error *error);

/* Opens an empty sequence that may grow to tokens_max (0 = the selector's): its pages are promised at
 * once, so that it cannot run out later. KARAT_E_FULL when they are not there, KARAT_E_LIMIT. */
KARAT_API karat_status karat_sequence_open(karat_selector *selector, uint64_t tokens_max,
                                           karat_sequence **sequence, karat_error *error);
KARAT_API void karat_sequence_close(karat_sequence *sequence); /* null is fine */
/* Tokens stored in a layer; 0 for a null or a layer that is not. */
KARAT_API uint64_t karat_sequence_tokens(const karat_sequence *sequence, uint32_t layer);

/* New tokens of one layer. Strides count elements and reach from one token's (head's) row to the
 * next one's; 0 = packed, [count][kv_heads][dim]. All arrays are read (output: written) during the call. */
typedef struct karat_rows {
    uint32_t struct_size; /* sizeof(karat_rows) */
    uint32_t prompt;      /* 1: prompt rows, 0: generated rows */
    uint64_t count;       /* rows, at least 1 */
    const void *key;      /* rows of key_dim elements of the selector's dtype */
    uint64_t key_token_stride, key_head_stride;
    const void *value; /* rows of value_dim; null when latent or without values */
    uint64_t value_token_stride, value_head_stride;
    const void *index_key; /* [count][index_key_bytes], for methods that have them */
    /* F32 [count][heads][key_dim] or null. With prompt rows their attention is computed; methods that
     * choose by it need that (plan's needs_queries). With generated rows the method may remember it
     * for a prompt that follows. */
    const float *query;
    const void *index_query; /* [count][index_query_bytes], with query, for methods that have them */
    float *output;           /* F32 [count][heads][value_dim] of prompt rows with query, or null */
} karat_rows;

/* Stores rows behind those that the layer has, and extends its index. All or nothing.
 * KARAT_E_LIMIT beyond tokens_max. */
KARAT_API karat_status karat_sequence_append(karat_sequence *sequence, uint32_t layer, const karat_rows *rows,
                                             karat_error *error);
/* The prompt, or a further prompt, is complete in all layers: methods cluster, hash or choose now. Must
 * be called before generated rows, select and attend. KARAT_E_ARG when layers differ in length. */
KARAT_API karat_status karat_sequence_end_prompt(karat_sequence *sequence, karat_error *error);
/* Cuts all layers to tokens. KARAT_E_UNSUPPORTED when the method's state cannot be cut. */
KARAT_API karat_status karat_sequence_trim(karat_sequence *sequence, uint64_t tokens, karat_error *error);

/* Selection of one query: the caller's arrays. */
typedef struct karat_lists {
    uint32_t struct_size; /* sizeof(karat_lists) */
    uint32_t lists;       /* the plan's */
    uint32_t stride;      /* room of a list, in units */
    uint32_t reserved;    /* 0 */
    uint32_t *count;      /* [lists] units of each list */
    uint32_t *unit;       /* [lists][stride] unit numbers, ascending */
    uint64_t nan_scores;  /* scores that were NaN; written by select */
} karat_lists;

/* Selects for a query at the newest token: query is F32 [heads][key_dim], index_query the plan's bytes;
 * the one that the method does not use may be null. KARAT_E_LIMIT when a list has more than stride
 * units, with the number. KARAT_E_UNSUPPORTED: the layer stays dense, or uses another layer's lists. */
KARAT_API karat_status karat_sequence_select(karat_sequence *sequence, uint32_t layer, const float *query,
                                             const void *index_query, karat_lists *lists, karat_error *error);
/* Attention of a query at the newest token: F32 output [heads][value_dim].
 * lists null: as the method has it, its own selection, weights and sums included; dense where the
 * layer is. Otherwise plain softmax attention over the listed units: what the method selected, another
 * layer's lists, or the caller's own. */
KARAT_API karat_status karat_sequence_attend(karat_sequence *sequence, uint32_t layer, const float *query,
                                             const void *index_query, const karat_lists *lists, float *output,
                                             karat_error *error);

#ifdef __cplusplus
}
#endif

#endif
