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
} kr_forward_layer;

/* Rotary tables of one set of rows. Two sets, so that two micro-batches that take turns in a layer
 * don't drive each other out. */
typedef struct {
    uint64_t *position; /* [rows_max] */
    uint32_t rows;
    uint64_t used;   /* tick of the last use */
    float *table[2]; /* [rows_max][2 * dims] of model->rope[i]; NULL where dims is 0 */
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

    float *inv_freq[2]; /* [dims / 2] */
    double rope_factor[2];
    kr_forward_angles angles[KR_FORWARD_ANGLES];
    uint64_t tick;

    /* Scratch, [rows_max] rows each. */
    uint32_t columns_max; /* widest input of a matrix */
    float *normed;        /* [columns_max] */
    uint16_t *bf16;       /* [columns_max]; NULL when no matrix wants it */
    int8_t *q;            /* [columns_max]; NULL when no matrix wants it */
    kr_quant_meta *meta;  /* [columns_max / 32] */
    float *product;       /* [max(hidden, key and value)] what a matrix made, before it is used */
    float *gate, *up;     /* [ffn_width] */

    char path[KR_FORWARD_PATH_BYTES];
};

#endif
