/* Page layout: geometry of a layer from the model, offsets of its block from geometry and plan. */
#include "method/layout.h"

#include <string.h>

#include "ops/attend_rows.h"

kr_attention_shape kr_attention_shape_of(const kr_model *model, uint32_t layer)
{
    const bool latent = model->attention == KR_ATTENTION_MLA;
    kr_attention_shape shape = {
        .heads = model->heads,
        .kv_heads = latent ? 1 : model->kv_heads,
        .key_dim = latent ? model->kv_lora + model->rope_dim : model->head_dim,
        .value_dim = latent ? model->kv_lora : model->value_dim,
        .latent = latent,
        .kv_dtype = model->kv_dtype,
        .softmax_scale = (float)model->softmax_scale,
        .window = model->layer[layer].window,
        .layer = layer,
        .layers = model->layers,
    };

    return shape;
}

static kr_status shape_check(const kr_attention_shape *shape, uint32_t layer, kr_err *err)
{
    /* What the kernels take; MLA's key row is kv_lora + rope. */
    if (shape->heads > KR_HEADS_MAX || shape->kv_heads == 0 || shape->kv_heads > KR_HEADS_MAX ||
        shape->key_dim == 0 || shape->key_dim > KR_ATTEND_DIM_MAX || shape->value_dim == 0 ||
        shape->value_dim > KR_ATTEND_DIM_MAX || (shape->latent && shape->value_dim > shape->key_dim) ||
        kr_dtype_bytes(shape->kv_dtype) == 0)
        return kr_fail(
            err, KR_E_SHAPE,
            "layer %u: %u heads over %u KV heads, key %u, value %u; at most %d heads, rows of 1 to "
            "%d elements",
            layer, shape->heads, shape->kv_heads, shape->key_dim, shape->value_dim, KR_HEADS_MAX,
            KR_ATTEND_DIM_MAX);
    return KR_OK;
}

/* All sizes are bounded by shape_check and by page_index_bytes being 32 bits: nothing wraps. */
static void lay_out(const kr_attention_shape *shape, const kr_method_plan *plan, uint64_t offset,
                    kr_layout *layout)
{
    const uint64_t row = (uint64_t)shape->kv_heads * KR_PAGE_TOKENS * kr_dtype_bytes(shape->kv_dtype);
    const uint64_t key_bytes = row * shape->key_dim;
    const uint64_t value_bytes = shape->latent ? 0 : row * shape->value_dim;

    memset(layout, 0, sizeof *layout);
    layout->keys = plan->keys;
    layout->block_offset = offset;
    layout->key_offset = 0;
    layout->value_offset = kr_align_up(key_bytes, KR_BLOCK_ALIGN);
    layout->index_offset = layout->value_offset + kr_align_up(value_bytes, KR_BLOCK_ALIGN);
    layout->index_bytes = plan->page_index_bytes;
    layout->block_bytes = kr_align_up(layout->index_offset + layout->index_bytes, KR_BLOCK_ALIGN);
}

kr_status kr_layout_page(const kr_attention_shape *shape, const kr_method_plan *plan, const uint8_t *group_of,
                         uint32_t layers, uint32_t group, kr_layout *layout, uint64_t *page_bytes,
                         kr_err *err)
{
    uint64_t offset = 0;

    for (uint32_t l = 0; l < layers; l++) {
        kr_status status;

        if (group_of[l] != group)
            continue;
        status = shape_check(&shape[l], l, err);
        if (status != KR_OK)
            return status;
    }
    for (uint32_t l = 0; l < layers; l++) {
        if (group_of[l] != group)
            continue;
        lay_out(&shape[l], &plan[l], offset, &layout[l]);
        offset += layout[l].block_bytes;
    }
    *page_bytes = offset;
    return KR_OK;
}
