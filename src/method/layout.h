/* Where the data of one layer lie inside a page: the one rule that the store lays pages out by and
 * that program/ prices them by.
 *
 * A page holds KR_PAGE_TOKENS tokens of every layer of one layer group. Layers lie one after the
 * other in ascending order, each in a block of keys, values and the method's page index; a block's
 * size is a multiple of KR_BLOCK_ALIGN, so every block and every area starts aligned to it. */
#ifndef KR_METHOD_LAYOUT_H
#define KR_METHOD_LAYOUT_H

#include "base/status.h"
#include "method/method.h"
#include "method/view.h"
#include "model/model.h"

enum { KR_BLOCK_ALIGN = 64 };

/* Geometry of attention in one layer as it is served: absorbed for MLA (one KV head of kv_lora +
 * rope elements, values inside it). model has been checked; layer < model->layers. */
kr_attention_shape kr_attention_shape_of(const kr_model *model, uint32_t layer);

/* Lays out the page of one group. shape, plan, group_of and layout are [layers]; entries of layers
 * in other groups are left alone. *page_bytes is 0 when the group has no layer.
 * KR_E_SHAPE: a shape is zero or over the limits of model.h. */
kr_status kr_layout_page(const kr_attention_shape *shape, const kr_method_plan *plan, const uint8_t *group_of,
                         uint32_t layers, uint32_t group, kr_layout *layout, uint64_t *page_bytes,
                         kr_err *err);

#endif
