/* What a kr_forward holds; shared by forward_create.c (plans, packs) and forward.c (runs).
 *
 * Everything a step touches is made at create: weights and buffers in one arena, oneDNN's plans in
 * gemm. Buffers hold rows_max rows; an op uses them from its start to its end and leaves nothing
 * in them that another op reads, except the rotary tables, which are a function of positions. */
#ifndef KR_ENGINE_FORWARD_STATE_H
#define KR_ENGINE_FORWARD_STATE_H

#include "base/arena.h"
#include "engine/forward.h"
#include "engine/weights.h"

typedef struct {
    kr_matrix q, k, v, o, gate, up, down;
    float *attn_norm, *ffn_norm;           /* [hidden] */
    float *post_attn_norm, *post_ffn_norm; /* [hidden]; NULL without sandwich norms */
    float *q_norm, *k_norm;                /* [head_dim]; NULL without q/k norm */
    float *q_bias, *k_bias, *v_bias;       /* [q, k, v outputs]; NULL without */

    /* Latent attention: down and up projections; k_up and v_up are kv_b by head, k_up turned around, so
     * that it makes a latent query from a head's. */
    kr_matrix q_a, q_b, kv_a;
    kr_matrix *k_up, *v_up;      /* [heads] of [kv_lora][nope] and [value_dim][kv_lora] */
    float *q_a_norm, *kv_a_norm; /* [q_lora], [kv_lora] */

    /* The model's own indexer, in layers that own an index. */
    kr_matrix index_q, index_k, index_w;               /* index_w: DSA's head weights */
    float *index_q_norm, *index_k_norm, *index_k_bias; /* [index_dim] */

    /* Experts; gate, up and down above are those of dense layers. */
    kr_matrix router, shared_gate, shared_up, shared_down;
    kr_matrix *expert;  /* [experts][3]: gate, up, down */
    float *router_bias; /* [experts] */
} kr_forward_layer;

/* Rotary embeddings: of global layers, of local ones, of the indexer. */
enum { KR_FORWARD_ROPES = 3, KR_FORWARD_INDEX_ROPE = 2 };

/* Rotary tables of one set of rows. Two sets, so that two micro-batches that take turns in a layer
 * don't drive each other out. */
typedef struct {
    uint64_t *position; /* [rows_max] */
    uint32_t rows;
    uint64_t used;                  /* tick of the last use */
    float *table[KR_FORWARD_ROPES]; /* [rows_max][2 * dims]; NULL where dims is 0 */
} kr_forward_angles;

enum { KR_FORWARD_ANGLES = 2, KR_FORWARD_PATH_BYTES = 192 };

struct kr_forward {
    const kr_model *model;
    kr_tensor embedding;
    kr_team *team;
    kr_gemm *gemm;
    const kr_row_ops *ops;
    kr_dtype kv_dtype;
    uint32_t rows_max;

    kr_arena arena;
    kr_forward_layer *layer; /* [layers] */
    kr_matrix output;
    float *final_norm; /* [hidden] */

    const kr_rope *rope[KR_FORWARD_ROPES];
    float *inv_freq[KR_FORWARD_ROPES]; /* [dims / 2] */
    double rope_factor[KR_FORWARD_ROPES];
    kr_forward_angles angles[KR_FORWARD_ANGLES];
    uint64_t tick;

    /* Scratch, [rows_max] rows each. */
    uint32_t columns_max;  /* widest input of a matrix */
    float *normed;         /* [columns_max] */
    uint16_t *bf16;        /* [columns_max]; NULL when no matrix wants it */
    int8_t *q;             /* [columns_max]; NULL when no matrix wants it */
    kr_quant_meta *meta;   /* [columns_max / 32] */
    float *product;        /* [max(hidden, key and value)] what a matrix made, before it is used */
    float *gate, *up;      /* [widest FFN or expert] */
    float *headed;         /* latent attention: [heads][rows][max(nope, kv_lora)], inputs by head */
    uint16_t *headed_bf16; /* NULL when no head's matrix wants it */
    uint32_t headed_columns;
    float *index; /* [index_heads * index_dim + index_dim + index_heads] before they are finished */
    float *routed, *expert_rows; /* [hidden]: sum over experts; rows of one expert */
    uint32_t *expert_row;        /* which rows these are */

    char path[KR_FORWARD_PATH_BYTES];
};

#endif
