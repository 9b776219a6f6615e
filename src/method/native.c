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

static bool is_named(const kr_method_config *config, const char *name)
{
    return strncmp(config->name, name, sizeof config->name) == 0;
}

kr_method_config kr_native_resolve(const kr_method_config *asked, const kr_model *model, uint32_t layer,
                                   bool paper)
{
    const bool native = is_named(asked, "native");
    const bool plain = asked->parameter[KR_NATIVE_HEADS] == 0;
    const bool own = !plain                               ? false
                     : model->indexer == KR_INDEXER_DSA   ? is_named(asked, "dsa")
                     : model->indexer == KR_INDEXER_BLOCK ? is_named(asked, "msa")
                                                          : false;
    kr_method_config config = *asked;

    if (native || own) {
        config = kr_native_config(model, layer, paper);
        if (asked->budget != 0 && !is_named(&config, "dense"))
            config.budget = asked->budget;
    } else if (is_named(asked, "seer")) {
        config.unit = asked->unit != 0 ? asked->unit : model->gates.block;
        config.parameter[0] = asked->parameter[0] != 0 ? asked->parameter[0] : model->gates.dim;
    }
    return config;
}
