/* A model of a few small matrices for tests of the scheduler and the simulator: GQA with block selection,
 * eight experts. The caller says what each layer is. */
#ifndef TESTS_TINY_MODEL_H
#define TESTS_TINY_MODEL_H

#include "model/model.h"

static inline kr_model tiny_base_model(uint32_t layers)
{
    return (kr_model){
        .name = "tiny",
        .family = KR_FAMILY_MINIMAX_M3,
        .layers = layers,
        .hidden = 64,
        .vocab = 100,
        .context = 1 << 20,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 16,
        .value_dim = 16,
        .softmax_scale = 0.25,
        .indexer = KR_INDEXER_BLOCK,
        .index_heads = 2,
        .index_dim = 16,
        .index_topk = 4,
        .index_block = 16,
        .ffn_width = 64,
        .moe = {.experts = 8,
                .active = 2,
                .shared = 1,
                .width = 32,
                .shared_width = 32,
                .groups = 1,
                .groups_kept = 1,
                .routed_scale = 1.0},
        .norm_eps = 1e-6,
        .embed_scale = 1.0,
        .kv_dtype = KR_BF16,
        .index_dtype = KR_BF16,
        .weight_bytes_dense = 2.0,
        .weight_bytes_experts = 2.0,
    };
}

#endif
