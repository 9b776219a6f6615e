/* The retrieval that a model was trained with, as methods: "dsa" (DeepSeek-V3.2, GLM-5.x) and
 * "msa" (MiniMax-M3). A kr_method_config sees no model, so what a plan must know of the indexer
 * travels in its parameters; kr_native_config fills them. */
#ifndef KR_METHOD_NATIVE_H
#define KR_METHOD_NATIVE_H

#include "method/method.h"

/* Meaning of kr_method_config.parameter in dsa and msa. budget is the tokens attended, unit the
 * tokens of a block (1 for dsa). */
enum {
    KR_NATIVE_HEADS, /* index heads */
    KR_NATIVE_DIM,   /* elements of an index key */
    KR_NATIVE_OWNER, /* layer whose index this layer uses; its own number when it owns one */
    KR_NATIVE_PAPER, /* 1: Table II's accounting: no bytes of FP8 scales, no FLOPs of RoPE parts, no
                         passes over the scores */
};

extern const kr_method kr_method_dsa;
extern const kr_method kr_method_msa;

/* The configuration that "native" stands for in a layer: dsa, msa, or dense for a layer that the
 * model does not index. */
kr_method_config kr_native_config(const kr_model *model, uint32_t layer, bool paper);
/* What was asked for a layer with what only the model knows: native, and dsa or msa without parameters,
 * become the model's own (a budget that was asked for stays); seer gets its gates' sizes; others are as
 * asked. */
kr_method_config kr_native_resolve(const kr_method_config *asked, const kr_model *model, uint32_t layer,
                                   bool paper);

#endif
