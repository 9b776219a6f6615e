/* What "native" stands for: the model's own indexer as a method configuration. */
#include "method/native.h"

#include <string.h>

kr_method_config kr_native_config(const kr_model *model, uint32_t layer, bool paper)
{
    const bool indexed = model->layer[layer].indexed;
    kr_method_config config = {0};

    memcpy(config.name, "dense", 6);
    if (!indexed)
        return config;
    memcpy(config.name, model->indexer == KR_INDEXER_DSA ? "dsa" : "msa", 4);
    config.budget = model->index_topk * model->index_block;
    config.unit = model->index_block;
    config.parameter[KR_NATIVE_HEADS] = model->index_heads;
    config.parameter[KR_NATIVE_DIM] = model->index_dim;
    config.parameter[KR_NATIVE_OWNER] = model->layer[layer].index_owner;
    config.parameter[KR_NATIVE_PAPER] = paper;
    return config;
}
