/* A retrieval method is a table of stage functions over one session's pages in one layer.
 *
 * Stages run in the order append, score, select, gather, attend, merge; any may be absent (NULL
 * run) or fused into a later one. A stage is split into numbered parts that may run on any thread
 * in any order: a part writes only its own slice of the job's workspace or output, and the number
 * of parts depends on shapes alone, never on threads. So results are the same at any thread count,
 * batch, chunk size and micro-batch split.
 *
 * Build has two halves: project runs on the compute node and may use weights (and keeps what it
 * must of the open block's pre-RoPE keys); append runs on the memory node without model weights.
 *
 * To the table a memory is opaque: the same stages serve token KV pages and, later, postings or
 * embeddings (the memory-pipeline paper's Prepare = build, Relevancy = score, Retrieval = select +
 * gather, Apply = attend).
 *
 * Selection order everywhere: score descending, then position ascending; NaN never wins and is
 * counted; k is exact; padding cannot win; with fewer candidates than k all are taken.
 * Attend reduces over fixed segments of KR_SEGMENT list positions, merged in list order. */
#ifndef KR_METHOD_METHOD_H
#define KR_METHOD_METHOD_H

#include <stddef.h>

#include "base/status.h"
#include "method/view.h"
#include "model/op.h"
#include "ops/ops.h"

enum { KR_METHOD_ABI = 1, KR_SEGMENT = 1024, KR_TOPK_MAX = 8192 };

/* What the user asked for; 0 means the method's documented default. Sent to the node at open. */
typedef struct {
    char name[16];         /* "dense", "quest", ... NUL-padded */
    uint32_t budget;       /* tokens attended per query */
    uint32_t dense_layers; /* first layers that stay dense; UINT32_MAX = the method's default */
    uint32_t unit;         /* tokens per page/block/cluster of the method */
    uint32_t mode;         /* method's named variant, e.g. Quest eval = 1, kernel = 2 */
    float threshold;       /* threshold methods */
    uint32_t parameter[8]; /* method's own, documented in its file (hash bits, tables, ...) */
    uint32_t reserved;     /* 0 */
    uint64_t seed;
} kr_method_config;

/* The struct's bytes are its wire form (little-endian host): wire/msg.h carries them opaque. */
_Static_assert(sizeof(kr_method_config) == 80, "kr_method_config is part of the wire format");

typedef enum { KR_UNIT_TOKEN, KR_UNIT_PAGE, KR_UNIT_BLOCK, KR_UNIT_CLUSTER } kr_granularity;

/* What a method declares for one layer, so that store, node, engine, placement, admission and
 * simulator price and size it from one place. */
typedef struct {
    kr_keys_layout keys;
    kr_granularity granularity;
    uint32_t unit_tokens; /* tokens per selection unit */
    bool dense;           /* this layer attends to everything: score/select absent */
    bool priced_only;     /* sizes of a paper's accounting, which leave out bytes that a run needs */
    bool owns_index;      /* false: uses the selection of layer index_owner */
    uint16_t index_owner;
    bool separate_index_query;  /* an INDEX message precedes ATTEND */
    uint32_t index_query_bytes; /* per token row on the wire; 0 without separate_index_query */
    uint32_t index_key_bytes;   /* per token row on the wire */
    uint32_t page_index_bytes;  /* index area of one page of this layer, all KV heads */
    uint64_t record_body_bytes; /* for a session of the declared maximum length */
    uint32_t selected_max;      /* largest number of tokens one query row attends; 0 = all */
    /* For pricing where selected_max is no guide, since the number varies: what a row attends on
     * average, attended_fixed tokens and attended_ppm millionths of its context. Both 0: selected_max. */
    uint32_t attended_fixed, attended_ppm;
    const void *outside; /* table of a method outside the tree (outside.h); NULL for all others */
    /* Per decode query row, for pricing: work = fixed + context * per_context + units * per_unit
     * + attended * per_attended; stage order as kr_stage_kind. */
    struct {
        kr_work fixed, per_context_token, per_unit, per_attended_token;
    } cost[KR_STAGES];
} kr_method_plan;

/* A run of new tokens of one session in one layer: one decode token or a prefill chunk. */
typedef struct {
    const kr_view *view;
    const kr_method_plan *plan;
    const kr_method_config *config;
    const kr_ops *ops;
    uint64_t first_position; /* position of query row 0 */
    uint32_t queries;        /* query rows = new tokens */
    bool is_prefill;
    const float *query;      /* [queries][heads][key_dim], post-RoPE; NULL in an INDEX job */
    const void *index_query; /* [queries][index_query_bytes] or NULL */
    const void *index_key;   /* [queries][index_key_bytes] or NULL */
    /* Method's, zero-filled once, kept from score to merge; of stages that an INDEX message ran, only
     * the selection is kept for ATTEND. */
    void *workspace;
    /* Selection of each list (one per query row and select head), written by select, read by
     * gather/attend; also the payload of an INDICES reply. */
    uint32_t *selected;       /* [lists][selected_stride] unit or token numbers, ascending */
    uint32_t *selected_count; /* [lists] */
    uint32_t selected_stride;
    float *output;       /* [queries][heads][value_dim] */
    uint64_t *nan_count; /* NaN scores met, added to by select: atomically, parts run at once */
    uint64_t step;       /* decode step number of the session, for cadence methods */
} kr_job;

/* Per-thread scratch, 64-byte aligned; a part may not assume its contents. */
typedef struct {
    void *memory;
    size_t bytes;
} kr_scratch;

typedef struct {
    uint32_t (*parts)(const kr_job *job); /* 0: nothing to do for this job */
    void (*run)(const kr_job *job, uint32_t part, kr_scratch scratch);
    /* Device that holds what the part reads: it runs there. NULL: always home. A part whose pages
     * lie on several devices says home and copies the foreign ones into its scratch. */
    uint32_t (*device)(const kr_job *job, uint32_t part);
} kr_stage;

/* The model's tensors by name, for methods that bring weights of their own. */
typedef struct kr_weight_source {
    const void *context;
    const kr_model *model;
    /* Copies the tensor that the model file has under name in layer ("self_attn.attn_gate...", without
     * what precedes it in every layer) as F32 to out[rows * columns], columns being the innermost extent;
     * out NULL: only looks. KR_E_NOT_FOUND and KR_E_FORMAT name the tensor. */
    kr_status (*read)(const struct kr_weight_source *source, uint32_t layer, const char *name, uint64_t rows,
                      uint64_t columns, float *out, kr_err *err);
} kr_weight_source;

/* Consecutive new tokens of one session in one layer, on the compute node. */
typedef struct {
    const void *weights; /* what bind made of the layer */
    void *state;         /* [state_bytes] of this session and layer; zero at the session's first token */
    uint32_t rows;
    uint64_t first_position;
    bool is_prefill;
    const float *query;   /* [rows][heads][head_dim], before RoPE, normed and biased */
    const float *key;     /* [rows][kv_heads][head_dim], likewise */
    uint8_t *index_query; /* out, [rows][index_query_bytes of the plan]; not read in prefill by methods
                                that attend densely there */
    uint8_t *index_key;   /* out, [rows][index_key_bytes of the plan] */
} kr_project_job;

/* The compute node's half of build for methods with tensors of their own. State may depend on the tokens
 * since the last whole page only: a session may begin behind a shared prefix of whole pages. */
typedef struct {
    /* Bytes of one layer's weights, and of what a session keeps in one layer. */
    size_t (*weight_bytes)(const kr_method_config *config, const kr_attention_shape *shape);
    size_t (*state_bytes)(const kr_method_config *config, const kr_attention_shape *shape);
    /* Fills weights (64-byte aligned) of a layer; weights NULL: only looks whether it could. */
    kr_status (*bind)(const kr_method_config *config, const kr_attention_shape *shape,
                      const kr_weight_source *source, void *weights, kr_err *err);
    void (*run)(const kr_project_job *job);
} kr_method_project;

typedef struct kr_method {
    uint32_t abi;     /* KR_METHOD_ABI */
    uint32_t version; /* of the record body and page index */
    uint32_t modes;   /* largest kr_method_config.mode; 0: the method has one way */
    const char *name, *summary, *source;

    /* Fills plan for one layer and a session of at most context_max tokens. KR_E_SHAPE,
     * KR_E_UNSUPPORTED, KR_E_LIMIT say which parameter and its range. */
    kr_status (*plan)(const kr_method_config *config, const kr_attention_shape *shape, uint64_t context_max,
                      kr_method_plan *plan, kr_err *err);

    /* Bytes of kr_job.workspace for jobs of up to queries rows over context_max tokens, number of
     * selection lists per query row, and bytes of per-thread scratch. */
    size_t (*workspace_bytes)(const kr_method_plan *plan, const kr_method_config *config,
                              const kr_attention_shape *shape, uint32_t queries, uint64_t context_max);
    uint32_t (*lists)(const kr_method_config *config, const kr_attention_shape *shape);
    size_t (*scratch_bytes)(const kr_method_plan *plan, const kr_attention_shape *shape,
                            uint64_t context_max);

    kr_stage stage[KR_STAGES];

    /* What decode selects depends on the queries of prompt rows: they must come with them. */
    bool watches_prompt;

    /* Called on the node when a prefill ends and decode begins (or a new prompt segment ends),
     * for methods that cluster or hash then. NULL: nothing to do. May be slow. */
    kr_status (*end_prefill)(const kr_view *view, const kr_method_config *config, const kr_ops *ops,
                             kr_scratch scratch, kr_err *err);

    const kr_method_project *project; /* NULL: nothing to do on the compute node */
} kr_method;

/* The table of built-in methods, ending in NULL. */
extern const kr_method *const kr_methods[];
/* Built-in ones, then those loaded (outside.h), by number; NULL past the last. */
const kr_method *kr_method_at(uint32_t index);
/* By name, of any of them; KR_E_NOT_FOUND lists the names. */
kr_status kr_method_find(const char *name, const kr_method **method, kr_err *err);

/* Number of segments of a list of n positions. */
static inline uint32_t kr_segments(uint64_t n) { return (uint32_t)((n + KR_SEGMENT - 1) / KR_SEGMENT); }

#endif
