/* A decode step as data: ops with kind, layer, micro-batch, resource, dependencies and cost terms.
 *
 * Built once per (model, method, placement, layout, micro-batches); the engine executes it, the
 * simulator prices it. Nothing here depends on which sessions are running: a kr_load says how many
 * rows, context tokens and attended tokens an op meets in a given step, and kr_op_work turns terms
 * and load into work. Bytes and FLOPs come from here and from nowhere else. */
#ifndef KR_PROGRAM_PROGRAM_H
#define KR_PROGRAM_PROGRAM_H

#include "base/arena.h"
#include "base/status.h"
#include "method/method.h"
#include "model/model.h"
#include "model/op.h"

enum { KR_MICRO_BATCHES_MAX = 8, KR_DEPS_MAX = 6 };

/* Work of an op as a function of its load; integer everywhere. */
typedef struct {
    kr_work fixed;              /* once an op: weights read, launch-independent */
    kr_work per_row;            /* per query row (token) of the micro-batch */
    kr_work per_context_token;  /* per context token, summed over rows */
    kr_work per_unit;           /* per selection unit scored, summed over rows */
    kr_work per_attended_token; /* per attended token, summed over rows */
    kr_work per_expert;         /* per distinct expert touched on the rank (weights read) */
    kr_work per_expert_row;     /* per (row, expert) pair executed on the rank */
} kr_cost_terms;

/* What one op meets in one step on one resource instance. */
typedef struct {
    uint64_t rows;
    uint64_t context_tokens;
    uint64_t units;
    uint64_t attended_tokens;
    uint64_t experts;
    uint64_t expert_rows;
} kr_load;

typedef struct {
    uint16_t kind;  /* kr_op_kind */
    uint16_t layer; /* EMBED: 0; HEAD, SAMPLE: layers */
    uint16_t micro_batch;
    uint8_t resource; /* kr_resource */
    uint8_t dep_count;
    uint32_t dep[KR_DEPS_MAX]; /* op numbers, all smaller than the op's own */
    uint32_t cost;             /* index into kr_program.cost: ops of equal shape share terms */
} kr_op;

typedef struct {
    uint32_t tp;            /* attention tensor parallelism, >= 1 */
    uint32_t ep;            /* expert parallelism: ranks the routed experts are spread over */
    uint32_t dp;            /* data-parallel compute ranks in all */
    uint32_t micro_batches; /* 1 or 2 (up to KR_MICRO_BATCHES_MAX) */
    kr_placement placement;
    bool absorb_on_memory;      /* the paper's transfers: un-absorbed query, W_uk on the node */
    bool paper_accounting;      /* index scales and rope FLOPs left out, as Table II counts */
    kr_dtype activation;        /* on links: query and output elements */
    kr_dtype dispatch, combine; /* all-to-all payload elements */
} kr_parallel;

typedef struct {
    const kr_model *model;
    kr_parallel parallel;
    uint64_t context_max; /* tokens of the longest session that the plans are for */
    kr_op *ops;           /* [count], topological order: every dep precedes its op */
    uint32_t count;
    kr_cost_terms *cost; /* [costs] */
    uint32_t costs;
    uint32_t *first_of_micro_batch; /* [micro_batches + 1]: ops are grouped by micro-batch */
    /* SCMS's plan: the ops of each resource class in the order in which one instance starts them
     * (kr_port.static_next walks it). Links and all-to-alls start an op when it is ready. */
    uint32_t *order[KR_RESOURCE_COUNT]; /* [order_count[resource]] op numbers */
    uint32_t order_count[KR_RESOURCE_COUNT];
    const kr_method **method;  /* [layers] */
    kr_method_config *config;  /* [layers], "native" resolved to the method it stands for */
    kr_attention_shape *shape; /* [layers], of one rank where attention runs on compute */
    kr_method_plan *plan;      /* [layers] */
} kr_program;

/* Builds the program in arena memory. configs [layers]: the method of each layer ("native" for the
 * model's own indexer). context_max bounds plans. KR_E_UNSUPPORTED names layer and reason. */
kr_status kr_program_build(kr_program *program, kr_arena *arena, const kr_model *model,
                           const kr_method_config *configs, const kr_parallel *parallel, uint64_t context_max,
                           kr_err *err);

kr_work kr_op_work(const kr_program *program, const kr_op *op, const kr_load *load);

/* The kernels of an op of one accelerator, and the type in which it multiplies: that of its weights or
 * of the keys it reads. layer is below the model's layers. */
kr_op_kernels kr_program_kernels(const kr_program *program, kr_op_kind kind, uint32_t layer);
kr_dtype kr_program_math(const kr_program *program, kr_op_kind kind, uint32_t layer);

/* Load of one query row with context tokens (own included) under a layer's plan. */
kr_load kr_row_load(const kr_method_plan *plan, uint64_t context_tokens);

/* Memory by class for a served configuration: what --dry-run prints and admission uses. */
typedef struct {
    uint64_t weight_bytes;      /* on the compute rank */
    uint64_t activation_bytes;  /* compute-side buffers */
    uint64_t kv_token_bytes;    /* per token on the node, all layers: pages less index areas */
    uint64_t index_token_bytes; /* per token, page index areas */
    uint64_t page_bytes[2];     /* per layer group */
    uint64_t record_bytes;      /* per session: index records of all layers */
    uint64_t workspace_bytes;   /* node-side stage workspaces per device */
} kr_memory_plan;

/* Sizes for sessions of up to context_max tokens and messages of up to rows_max query rows. */
kr_status kr_program_memory(const kr_program *program, uint64_t context_max, uint32_t rows_max,
                            kr_memory_plan *memory, kr_err *err);

/* Pages that a session of tokens occupies at most, by layer group, when up to message_tokens of
 * them are under way (a message in each of two micro-batches). Windows drop pages, so the local
 * group stops growing; it is 0 for a model without one. */
void kr_program_pages(const kr_program *program, uint64_t tokens, uint32_t message_tokens, uint64_t pages[2]);

/* Where a layer's data lie in a page of its group, and that page's size. KR_E_SHAPE. */
kr_status kr_program_layout(const kr_program *program, uint32_t layer, kr_layout *layout,
                            uint64_t *page_bytes, kr_err *err);

/* Digest of structure and cost terms: two builds of one configuration agree. */
uint64_t kr_program_digest(const kr_program *program);

#endif
