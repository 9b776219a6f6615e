/* Work that every method has in common, so that each plan prices it the same way.
 *
 * Conventions, from the KARAT paper's Table II unless said: a multiply-add is 2 FLOPs; keys and
 * values are read once per attended token; query, output and softmax are left out. MLA reads one
 * latent row for keys and values together. Gather is part of Attend: an index-driven read of the
 * rows, as every fused sparse kernel does it. */
#ifndef KR_METHOD_COST_H
#define KR_METHOD_COST_H

#include "method/view.h"
#include "model/op.h"

/* Bytes of one token's keys and values in one layer. */
static inline uint64_t kr_kv_row_bytes(const kr_attention_shape *shape)
{
    const uint64_t elements = shape->latent ? shape->key_dim : shape->key_dim + (uint64_t)shape->value_dim;

    return shape->kv_heads * elements * kr_dtype_bytes(shape->kv_dtype);
}

/* ATTEND, per attended token: scores and weighted sum of all heads, one read of the row. */
static inline kr_work kr_attend_token_work(const kr_attention_shape *shape)
{
    return (kr_work){
        .flops = 2 * (uint64_t)shape->heads * (shape->key_dim + (uint64_t)shape->value_dim),
        .read_bytes = kr_kv_row_bytes(shape),
    };
}

/* APPEND, per query row: the new token's row. */
static inline kr_work kr_append_row_work(const kr_attention_shape *shape)
{
    return (kr_work){.write_bytes = kr_kv_row_bytes(shape)};
}

#endif
