/* The compute half of a decode step: the ops of the step program that read weights, on rows of tokens.
 * Attention is not here: between qkv and o_proj the rows travel to a memory node. With latent attention
 * (MLA) the rows that travel are latent: q_up and absorb come before, v_up after.
 *
 * Each row's result is independent of the other rows in the call and of the number of threads: a
 * row gives the same bits alone, in a batch of 8, or inside a prefill chunk of any size. */
#ifndef KR_ENGINE_FORWARD_H
#define KR_ENGINE_FORWARD_H

#include <stdint.h>

#include "base/status.h"
#include "base/team.h"
#include "files/model_file.h"

typedef struct kr_forward kr_forward;

/* Rows in flight of one micro-batch; all arrays belong to the caller, 64-byte aligned. */
typedef struct {
    uint32_t rows;
    const uint32_t *token;    /* [rows] ids, for embed */
    const uint64_t *position; /* [rows] absolute positions, for rope */
    float *hidden;            /* [rows][hidden] residual stream, updated in place */
    float *query;             /* [rows][heads][key_dim] as they travel; written by qkv, MLA: absorb */
    float *query_pre_rope;    /* [rows][heads][head_dim]; NULL: not kept */
    float *key_pre_rope;      /* [rows][kv_heads][head_dim]; NULL: not kept */
    void *key;                /* [rows][kv_heads][key_dim] of kv_dtype, post-rope */
    void *value;              /* [rows][kv_heads][value_dim] of kv_dtype; MLA: none */
    const float *attended;    /* [rows][heads][value_dim, MLA: kv_lora], read by o_proj, MLA: v_up */
    float *latent;            /* MLA: [rows][q_lora], normed; from qkv to q_up and index_project */
    float *expanded;          /* MLA: [rows][heads][max(head_dim, value_dim)]: queries from q_up to absorb,
                                 values from v_up to o_proj */
    float *ffn_input;         /* experts: [rows][hidden], normed; from router to experts, shared_expert */
    uint32_t *expert;         /* experts: [rows][active], ascending; from router to experts */
    float *expert_weight;     /* experts: [rows][active] */
    uint8_t *index_query;     /* [rows][index_query_bytes of the layer's plan], for the memory node */
    uint8_t *index_key;       /* [rows][index_key_bytes] */
} kr_rows;

typedef struct {
    const kr_model_file *file;
    kr_team *team;     /* used by the thread that calls the ops; not owned */
    uint32_t rows_max; /* largest kr_rows.rows */
    kr_dtype kv_dtype; /* of key and value rows: F32, F16, BF16 */
    bool weights_f32;  /* expand F16/BF16/quantised weights to F32 (for comparisons) */
} kr_forward_config;

/* Binds and packs weights; prints nothing; long work is reported through progress (may be NULL). */
kr_status kr_forward_create(kr_forward **forward, const kr_forward_config *config,
                            void (*progress)(void *context, uint32_t done, uint32_t all), void *context,
                            kr_err *err);
void kr_forward_destroy(kr_forward *forward);

/* Bytes it allocates, before it does: packed weights and scratch. For --dry-run. */
kr_status kr_forward_bytes(const kr_forward_config *config, uint64_t *weights, uint64_t *scratch,
                           kr_err *err);

void kr_forward_embed(kr_forward *forward, const kr_rows *rows);
void kr_forward_qkv(kr_forward *forward, const kr_rows *rows, uint32_t layer);
/* MLA: queries of heads, latent queries of them; values of heads from latent outputs. */
void kr_forward_q_up(kr_forward *forward, const kr_rows *rows, uint32_t layer);
void kr_forward_absorb(kr_forward *forward, const kr_rows *rows, uint32_t layer);
void kr_forward_v_up(kr_forward *forward, const kr_rows *rows, uint32_t layer);
/* Index queries and keys of the model's own indexer, as methods dsa and msa take them. */
void kr_forward_index(kr_forward *forward, const kr_rows *rows, uint32_t layer);
void kr_forward_o_proj(kr_forward *forward, const kr_rows *rows, uint32_t layer);
void kr_forward_ffn(kr_forward *forward, const kr_rows *rows, uint32_t layer);
/* Experts: choice, shared expert, routed experts; the latter two add to hidden. */
void kr_forward_router(kr_forward *forward, const kr_rows *rows, uint32_t layer);
void kr_forward_shared_expert(kr_forward *forward, const kr_rows *rows, uint32_t layer);
void kr_forward_experts(kr_forward *forward, const kr_rows *rows, uint32_t layer);
/* Logits of the rows listed in row[count]: logits [count][vocab]. */
void kr_forward_head(kr_forward *forward, const kr_rows *rows, const uint32_t *row, uint32_t count,
                     float *logits);

/* One line: which weight kernels and GEMM are in use ("Q4_1 avx512, F32 oneDNN 2.6.3"). */
const char *kr_forward_path(const kr_forward *forward);

#endif
