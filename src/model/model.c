/* Sizes derived from a model: layer groups, bytes per token, parameters by class. */
#include "model/model.h"

const char *kr_family_name(kr_family family)
{
    static const char *const names[KR_FAMILY_COUNT] = {
        "llama", "qwen2", "qwen3", "gemma3", "deepseek_v32", "glm_dsa", "minimax_m3",
    };

    return (unsigned)family < KR_FAMILY_COUNT ? names[family] : "?";
}

uint32_t kr_model_kv_elements(const kr_model *model)
{
    if (model->attention == KR_ATTENTION_MLA)
        return model->kv_lora + model->rope_dim;
    return model->kv_heads * (model->head_dim + model->value_dim);
}

uint64_t kr_model_kv_token_bytes(const kr_model *model)
{
    return (uint64_t)model->layers * kr_model_kv_elements(model) * kr_dtype_bytes(model->kv_dtype);
}

static bool owns_index(const kr_model *model, uint32_t layer)
{
    return model->layer[layer].indexed && model->layer[layer].index_owner == layer;
}

uint32_t kr_model_index_layers(const kr_model *model)
{
    uint32_t n = 0;

    for (uint32_t l = 0; l < model->layers; l++)
        n += owns_index(model, l);
    return n;
}

uint64_t kr_model_index_token_bytes(const kr_model *model, bool scales)
{
    uint64_t key_bytes = (uint64_t)model->index_dim * kr_dtype_bytes(model->index_dtype);

    if (scales && model->index_dtype == KR_E4M3)
        key_bytes += sizeof(float);
    return kr_model_index_layers(model) * key_bytes;
}

uint32_t kr_model_layer_groups(const kr_model *model, uint8_t group_of[KR_LAYERS_MAX])
{
    bool any_global = false, any_local = false;

    for (uint32_t l = 0; l < model->layers; l++) {
        any_global |= model->layer[l].window == 0;
        any_local |= model->layer[l].window != 0;
    }
    for (uint32_t l = 0; l < model->layers; l++)
        group_of[l] = any_global && model->layer[l].window != 0;
    return any_global && any_local ? 2 : 1;
}

static uint64_t attention_parameters(const kr_model *m)
{
    const uint64_t hidden = m->hidden;
    const uint64_t q_width = (uint64_t)m->heads * m->head_dim;
    const uint64_t o = (uint64_t)m->heads * m->value_dim * hidden;

    if (m->attention == KR_ATTENTION_MLA) {
        const uint64_t q = m->q_lora * (hidden + q_width);
        const uint64_t kv_a = hidden * (m->kv_lora + m->rope_dim);
        const uint64_t kv_b = (uint64_t)m->kv_lora * m->heads * (m->nope_dim + m->value_dim);

        return q + kv_a + kv_b + o;
    }
    return (hidden + m->qkv_bias) * (q_width + kr_model_kv_elements(m)) + o;
}

/* Query and key projections of one index layer. DSA's queries come from the latent query. */
static uint64_t indexer_parameters(const kr_model *m)
{
    const uint64_t q_input = m->indexer == KR_INDEXER_DSA ? m->q_lora : m->hidden;

    return q_input * m->index_heads * m->index_dim + (uint64_t)m->hidden * m->index_dim;
}

static uint64_t norm_parameters(const kr_model *m)
{
    uint64_t layer = (m->sandwich_norm ? 4 : 2) * (uint64_t)m->hidden;

    if (m->qk_norm)
        layer += 2 * (uint64_t)m->head_dim;
    if (m->attention == KR_ATTENTION_MLA)
        layer += m->q_lora + m->kv_lora;
    /* DSA: weight and bias of the key's LayerNorm; block scoring: one weight each for q and k. */
    return m->layers * layer + m->hidden + kr_model_index_layers(m) * 2 * (uint64_t)m->index_dim;
}

kr_parameters kr_model_parameters(const kr_model *m)
{
    const uint64_t hidden = m->hidden, index_layers = kr_model_index_layers(m);
    kr_parameters p = {
        .embedding = (uint64_t)m->vocab * hidden,
        .head = m->tied_embedding ? 0 : (uint64_t)m->vocab * hidden,
        .attention = m->layers * attention_parameters(m),
        .norms = norm_parameters(m),
    };

    if (m->indexer != KR_INDEXER_NONE)
        p.indexer = index_layers * indexer_parameters(m);
    if (m->indexer == KR_INDEXER_DSA)
        p.index_head_weights = index_layers * hidden * m->index_heads;
    for (uint32_t l = 0; l < m->layers; l++) {
        if (m->layer[l].ffn == KR_FFN_DENSE) {
            p.dense_ffn += 3 * hidden * m->ffn_width;
            continue;
        }
        p.router += hidden * m->moe.experts;
        p.experts += 3 * hidden * m->moe.width * m->moe.experts;
        p.shared_experts += 3 * hidden * m->moe.shared_width * m->moe.shared;
    }
    return p;
}

uint64_t kr_parameters_total(const kr_parameters *p)
{
    return p->embedding + p->head + p->attention + p->indexer + p->index_head_weights + p->router +
           p->experts + p->shared_experts + p->dense_ffn + p->norms;
}

uint64_t kr_model_weight_bytes(const kr_model *model, kr_weight_class kind, uint64_t parameters)
{
    double bytes = model->weight_bytes_dense;

    if (kind == KR_WEIGHT_EXPERT)
        bytes = model->weight_bytes_experts;
    if (kind == KR_WEIGHT_WIDE && model->weight_bytes_wide > 0.0)
        bytes = model->weight_bytes_wide;
    return (uint64_t)((double)parameters * bytes + 0.5);
}
