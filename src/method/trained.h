/* Block methods that a model is trained or continued with: MoBA, InfLLM-v2, SeerAttention-R. The first
 * two need no tensors of their own; the third has gates that project() runs on the compute node. */
#ifndef KR_METHOD_TRAINED_H
#define KR_METHOD_TRAINED_H

#include "method/method.h"

extern const kr_method kr_method_moba;
extern const kr_method kr_method_infllm2;
extern const kr_method kr_method_seer;

/* ---- SeerAttention-R's gate, as the compute node runs it ---- */

enum { KR_SEER_TOPK = 1, KR_SEER_THRESHOLD = 2 }; /* kr_method_config.mode */

/* One layer's gate of one KV head. Norms are applied when their weights are not NULL (RMSNorm, eps 1e-6);
 * RoPE (half-split, on all gate_dim) when inv_freq is not NULL. */
typedef struct {
    uint32_t head_dim, group, gate_dim;
    const float *key_weight;            /* [3 * head_dim][gate_dim] on max, min, mean */
    const float *query_weight;          /* [group * head_dim][gate_dim] */
    const float *key_norm, *query_norm; /* [gate_dim] or NULL */
    const float *inv_freq;              /* [gate_dim / 2] or NULL */
} kr_seer_gate;

/* Pools the pre-RoPE keys of a block of one KV head one by one: largest, least and sum by dimension,
 * pool [3][head_dim]; the first one begins it. */
void kr_seer_pool(float *pool, const float *key, uint32_t head_dim, bool first);
/* Gate key of a block of so many pooled keys, rotated by position. The paper rotates by the block's first
 * token, as karat does; the released decode code by its last. out [gate_dim]. */
void kr_seer_gate_key(const kr_seer_gate *gate, const float *pool, uint32_t tokens, uint64_t position,
                      float *out);
/* Gate query of a KV head from its group's pre-RoPE queries [group][head_dim]. out [gate_dim]. */
void kr_seer_gate_query(const kr_seer_gate *gate, const float *query, uint64_t position, float *out);

#endif
