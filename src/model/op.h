/* Kinds of operation in a decode step and the resource classes that run them.
 *
 * One list for all model families: what is priced by sim/ and executed by engine/ and node/ has
 * the same name in both. Families beyond dense GQA (MLA, indexer, MoE, all-to-all) are built and
 * priced from the start; an engine refuses a program that holds a kind it cannot execute. */
#ifndef KR_MODEL_OP_H
#define KR_MODEL_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/num.h"

/* What an op occupies while it runs. One instance of each class per rank or device. */
typedef enum {
    KR_ON_COMPUTE, /* compute rank: weights */
    KR_ON_DEVICE,  /* memory device: KV cache, index keys */
    KR_ON_LINK,    /* compute rank <-> memory node */
    KR_ON_A2A,     /* expert all-to-all and sums among compute ranks */
} kr_resource;

enum { KR_RESOURCE_COUNT = 4 };

/* X(name, text): order is part of traces and of the digest, so new kinds go at the end. */
#define KR_OP_LIST(X)                                                                           \
    X(KR_OP_EMBED, "embed")                 /* token rows of the embedding */                   \
    X(KR_OP_QKV, "qkv")                     /* norm, q, k, v (GQA) or q_a, kv_a (MLA), rope */  \
    X(KR_OP_Q_UP, "q_up")                   /* MLA: q_b */                                      \
    X(KR_OP_ABSORB, "absorb")               /* MLA: latent query = W_uk^T q_nope */             \
    X(KR_OP_INDEX_PROJECT, "index_project") /* index query, key, head weights (project half) */ \
    X(KR_OP_SEND_INDEX, "send_index")       /* link: index query and key, goes first */         \
    X(KR_OP_SEND_QKV, "send_qkv")           /* link: query and the new tokens' KV */            \
    X(KR_OP_APPEND, "append")               /* device: store KV, extend the index */            \
    X(KR_OP_SCORE, "score")                                                                     \
    X(KR_OP_SELECT, "select")                                                                   \
    X(KR_OP_GATHER, "gather")                                                                   \
    X(KR_OP_ATTEND, "attend")                                                                   \
    X(KR_OP_RETURN_INDICES, "return_indices") /* link, indices-only placement */                \
    X(KR_OP_RETURN_OUT, "return_out")         /* link: attention output (latent for MLA) */     \
    X(KR_OP_V_UP, "v_up")                     /* MLA: W_uv on the latent output */              \
    X(KR_OP_O_PROJ, "o_proj")                                                                   \
    X(KR_OP_ROUTER, "router")                                                                   \
    X(KR_OP_DISPATCH, "dispatch") /* all-to-all */                                              \
    X(KR_OP_EXPERTS, "experts")                                                                 \
    X(KR_OP_COMBINE, "combine") /* all-to-all */                                                \
    X(KR_OP_SHARED_EXPERT, "shared_expert")                                                     \
    X(KR_OP_FFN, "ffn")                                                                         \
    X(KR_OP_HEAD, "head") /* final norm and output matrix */                                    \
    X(KR_OP_SAMPLE, "sample")                                                                   \
    X(KR_OP_REDUCE, "reduce") /* all-to-all: sum over tensor-parallel ranks */

typedef enum {
#define KR_OP_ENUM(name, text) name,
    KR_OP_LIST(KR_OP_ENUM)
#undef KR_OP_ENUM
        KR_OP_KINDS
} kr_op_kind;

/* "qkv", "score", ...; "?" past the end. */
const char *kr_op_name(kr_op_kind kind);

/* The five stages of a retrieval method, in the order they run, and where build's two halves sit:
 * project runs with INDEX_PROJECT on the compute rank, append with APPEND on the device. */
typedef enum {
    KR_STAGE_APPEND,
    KR_STAGE_SCORE,
    KR_STAGE_SELECT,
    KR_STAGE_GATHER,
    KR_STAGE_ATTEND,
    KR_STAGE_MERGE, /* second half of attend: partial results joined in segment order */
    KR_STAGES
} kr_stage_kind;

const char *kr_stage_name(kr_stage_kind stage);

/* Work of an op: what it does and what it moves, exactly once, whatever the variant. */
typedef struct {
    uint64_t flops;       /* a multiply-add counts 2 */
    uint64_t read_bytes;  /* from the resource's own memory */
    uint64_t write_bytes; /* to the resource's own memory */
    uint64_t move_bytes;  /* over the link or the all-to-all, both directions added */
} kr_work;

static inline kr_work kr_work_add(kr_work a, kr_work b)
{
    return (kr_work){a.flops + b.flops, a.read_bytes + b.read_bytes, a.write_bytes + b.write_bytes,
                     a.move_bytes + b.move_bytes};
}

static inline kr_work kr_work_scale(kr_work a, uint64_t n)
{
    return (kr_work){a.flops * n, a.read_bytes * n, a.write_bytes * n, a.move_bytes * n};
}

/* count products, side by side, of rows with a stored matrix of in x out elements of type math. */
typedef struct {
    uint32_t in, out, count;
    kr_dtype math;
} kr_matrix;

enum { KR_OP_MATRICES_MAX = 4 };

/* An op as the kernels that an accelerator launches one after another: matrix products, and small
 * ones that only pass rows through (norms, rotary, quantisation, activation). Grouped and attention
 * kernels are one of their own and say their shape in unit: of one expert, count of them held by the
 * accelerator; of a key and a value row, count query heads; one head's, count heads; a hidden row and the
 * experts it goes to. */
typedef struct {
    kr_matrix matrix[KR_OP_MATRICES_MAX];
    uint8_t matrices, small;
    kr_matrix unit;
} kr_op_kernels;

/* Where the stages that read KV or index run (docs/architecture.md). */
typedef enum {
    KR_PLACE_ALL_ON_NODE,    /* score, select, gather, attend on the memory node (KARAT) */
    KR_PLACE_INDICES_ONLY,   /* node scores and selects; the compute side holds KV and attends */
    KR_PLACE_ALL_ON_COMPUTE, /* no memory node (GPU-only) */
} kr_placement;

const char *kr_placement_name(kr_placement placement);
bool kr_placement_parse(const char *name, kr_placement *placement);

#endif
