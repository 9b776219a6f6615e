/* Reads a model descriptor (data/models, data/schema/model.schema.json) into a kr_model. Strict:
 * unknown keys, wrong types and numbers out of range are errors that name file, path and rule. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "model/model.h"

/* Long enough for any path plus the names of two nested objects. */
enum { WHERE_BYTES = 4200 };

#define TRY(call)                            \
    do {                                     \
        const kr_status try_status = (call); \
        if (try_status != KR_OK)             \
            return try_status;               \
    } while (0)

/* A nested object; absent ones have object NULL. */
typedef struct {
    kr_json json;
    char where[WHERE_BYTES];
} nested;

static kr_status nested_open(nested *child, kr_json parent, const char *key, kr_err *err)
{
    json_t *object = json_object_get(parent.object, key);

    snprintf(child->where, sizeof child->where, "%s %s", parent.where, key);
    child->json = (kr_json){.object = object, .where = child->where};
    if (object != NULL && !json_is_object(object))
        return kr_fail(err, KR_E_FORMAT, "%s: must be an object", child->where);
    return KR_OK;
}

/* Reads a string that must be one of names; *index keeps its value when the key is absent. */
static kr_status read_choice(kr_json j, const char *key, bool required, const char *const *names,
                             uint32_t *index, kr_err *err)
{
    const char *text = NULL;
    char list[160] = "";

    TRY(kr_json_string(j, key, required, &text, err));
    if (text == NULL)
        return KR_OK;
    for (uint32_t i = 0; names[i] != NULL; i++) {
        const size_t used = strlen(list);

        if (strcmp(text, names[i]) == 0) {
            *index = i;
            return KR_OK;
        }
        snprintf(list + used, sizeof list - used, " %s", names[i]);
    }
    return kr_fail(err, KR_E_FORMAT, "%s: %s is \"%s\", must be one of:%s", j.where, key, text, list);
}

static kr_status read_dtype(kr_json j, const char *key, bool required, kr_dtype *type, kr_err *err)
{
    const char *text = NULL;

    TRY(kr_json_string(j, key, required, &text, err));
    if (text != NULL && !kr_dtype_parse(text, type))
        return kr_fail(err, KR_E_FORMAT, "%s: %s is \"%s\", not an element type", j.where, key, text);
    return KR_OK;
}

static kr_status read_rope(kr_json parent, const char *key, bool required, kr_rope *out, kr_err *err)
{
    static const char *const layouts[] = {"half", "interleaved", NULL};
    static const char *const scalings[] = {"none", "linear", "llama3", "yarn", NULL};
    static const char *const keys[] = {
        "theta",     "dims",      "first",     "layout", "scaling",        "factor",           "low_freq",
        "high_freq", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "original_context", NULL,
    };
    kr_rope rope = {.factor = 1.0, .beta_fast = 32.0, .beta_slow = 1.0};
    uint32_t layout = 0, scaling = 0;
    nested child;

    TRY(nested_open(&child, parent, key, err));
    if (child.json.object == NULL)
        return required ? kr_fail(err, KR_E_FORMAT, "%s: %s is missing", parent.where, key) : KR_OK;
    TRY(kr_json_only(child.json, keys, err));
    TRY(kr_json_real(child.json, "theta", true, 1e-6, 1e12, &rope.theta, err));
    TRY(kr_json_u32(child.json, "dims", true, 0, KR_HEAD_DIM_MAX, &rope.dims, err));
    TRY(kr_json_u32(child.json, "first", false, 0, KR_HEAD_DIM_MAX, &rope.first, err));
    TRY(read_choice(child.json, "layout", true, layouts, &layout, err));
    TRY(read_choice(child.json, "scaling", false, scalings, &scaling, err));
    TRY(kr_json_real(child.json, "factor", false, 1.0, 1e6, &rope.factor, err));
    TRY(kr_json_real(child.json, "low_freq", false, 1e-6, 1e6, &rope.low_freq, err));
    TRY(kr_json_real(child.json, "high_freq", false, 1e-6, 1e6, &rope.high_freq, err));
    TRY(kr_json_real(child.json, "beta_fast", false, 1e-6, 1e6, &rope.beta_fast, err));
    TRY(kr_json_real(child.json, "beta_slow", false, 1e-6, 1e6, &rope.beta_slow, err));
    TRY(kr_json_real(child.json, "mscale", false, 0.0, 1e3, &rope.mscale, err));
    TRY(kr_json_real(child.json, "mscale_all_dim", false, 0.0, 1e3, &rope.mscale_all_dim, err));
    TRY(kr_json_u32(child.json, "original_context", false, 1, KR_CONTEXT_MAX, &rope.original_context, err));
    rope.layout = (kr_rope_layout)layout;
    rope.scaling = (kr_rope_scaling)scaling;
    *out = rope;
    return KR_OK;
}

static kr_status read_mla(kr_json root, kr_model *m, kr_err *err)
{
    static const char *const keys[] = {"q_lora", "kv_lora", "nope_dim", "rope_dim", NULL};
    nested mla;

    TRY(nested_open(&mla, root, "mla", err));
    if (mla.json.object == NULL)
        return KR_OK;
    TRY(kr_json_only(mla.json, keys, err));
    TRY(kr_json_u32(mla.json, "q_lora", true, 1, UINT32_MAX, &m->q_lora, err));
    TRY(kr_json_u32(mla.json, "kv_lora", true, 1, UINT32_MAX, &m->kv_lora, err));
    TRY(kr_json_u32(mla.json, "nope_dim", true, 1, UINT32_MAX, &m->nope_dim, err));
    TRY(kr_json_u32(mla.json, "rope_dim", true, 2, UINT32_MAX, &m->rope_dim, err));
    m->attention = KR_ATTENTION_MLA;
    return KR_OK;
}

/* "layers": "all", or an ascending list of the layers that own an index. */
static kr_status read_index_owners(kr_json j, kr_model *m, kr_err *err)
{
    const json_t *list = json_object_get(j.object, "layers");
    json_int_t previous = -1;

    if (json_is_string(list) && strcmp(json_string_value(list), "all") == 0) {
        for (uint32_t l = 0; l < m->layers; l++)
            m->layer[l].indexed = true;
        return KR_OK;
    }
    if (!json_is_array(list) || json_array_size(list) == 0)
        return kr_fail(err, KR_E_FORMAT, "%s: layers must be \"all\" or a list of layer numbers", j.where);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const json_int_t layer = json_integer_value(item);

        if (!json_is_integer(item) || layer <= previous || layer >= (json_int_t)m->layers)
            return kr_fail(err, KR_E_FORMAT, "%s: layers[%zu] must be an integer over %lld and below %u",
                           j.where, i, (long long)previous, m->layers);
        m->layer[layer].indexed = true;
        previous = layer;
    }
    return KR_OK;
}

/* Layers from shared_from on that own no index use the nearest earlier owner. */
static kr_status share_index(kr_json j, kr_model *m, kr_err *err)
{
    uint32_t shared_from = m->layers, owner = UINT32_MAX;

    TRY(kr_json_u32(j, "shared_from", false, 0, m->layers - 1, &shared_from, err));
    for (uint32_t l = 0; l < m->layers; l++) {
        if (m->layer[l].indexed) {
            owner = l;
        } else if (l >= shared_from) {
            if (owner == UINT32_MAX)
                return kr_fail(err, KR_E_FORMAT, "%s: layer %u shares an index but no earlier layer owns one",
                               j.where, l);
            m->layer[l].indexed = true;
            m->layer[l].index_owner = (uint16_t)owner;
        }
    }
    return KR_OK;
}

static kr_status read_indexer(kr_json root, kr_model *m, kr_err *err)
{
    static const char *const kinds[] = {"dsa", "block", NULL};
    static const char *const keys[] = {"kind",  "heads",  "dim",         "topk", "block",
                                       "dtype", "layers", "shared_from", "rope", NULL};
    uint32_t kind = 0;
    nested indexer;

    TRY(nested_open(&indexer, root, "indexer", err));
    if (indexer.json.object == NULL)
        return KR_OK;
    TRY(kr_json_only(indexer.json, keys, err));
    TRY(read_choice(indexer.json, "kind", true, kinds, &kind, err));
    TRY(kr_json_u32(indexer.json, "heads", true, 1, UINT32_MAX, &m->index_heads, err));
    TRY(kr_json_u32(indexer.json, "dim", true, 1, UINT32_MAX, &m->index_dim, err));
    TRY(kr_json_u32(indexer.json, "topk", true, 1, UINT32_MAX, &m->index_topk, err));
    m->index_block = 1;
    TRY(kr_json_u32(indexer.json, "block", false, 1, UINT32_MAX, &m->index_block, err));
    TRY(read_dtype(indexer.json, "dtype", true, &m->index_dtype, err));
    TRY(read_rope(indexer.json, "rope", false, &m->index_rope, err));
    m->indexer = kind == 0 ? KR_INDEXER_DSA : KR_INDEXER_BLOCK;
    TRY(read_index_owners(indexer.json, m, err));
    return share_index(indexer.json, m, err);
}

static kr_status read_moe(kr_json root, kr_model *m, kr_err *err)
{
    static const char *const keys[] = {"experts",     "active", "shared",      "width",        "shared_width",
                                       "first_layer", "groups", "groups_kept", "routed_scale", NULL};
    kr_moe moe = {.groups = 1, .groups_kept = 1, .routed_scale = 1.0};
    uint32_t first = 0;
    nested child;

    TRY(nested_open(&child, root, "moe", err));
    if (child.json.object == NULL)
        return KR_OK;
    TRY(kr_json_only(child.json, keys, err));
    TRY(kr_json_u32(child.json, "experts", true, 1, KR_EXPERTS_MAX, &moe.experts, err));
    TRY(kr_json_u32(child.json, "active", true, 1, KR_EXPERTS_MAX, &moe.active, err));
    TRY(kr_json_u32(child.json, "shared", true, 0, KR_EXPERTS_MAX, &moe.shared, err));
    TRY(kr_json_u32(child.json, "width", true, 1, UINT32_MAX, &moe.width, err));
    moe.shared_width = moe.width;
    TRY(kr_json_u32(child.json, "shared_width", false, 1, UINT32_MAX, &moe.shared_width, err));
    TRY(kr_json_u32(child.json, "first_layer", true, 0, KR_LAYERS_MAX, &first, err));
    TRY(kr_json_u32(child.json, "groups", false, 1, KR_EXPERTS_MAX, &moe.groups, err));
    TRY(kr_json_u32(child.json, "groups_kept", false, 1, KR_EXPERTS_MAX, &moe.groups_kept, err));
    TRY(kr_json_real(child.json, "routed_scale", false, 1e-6, 1e6, &moe.routed_scale, err));
    m->moe = moe;
    for (uint32_t l = first; l < m->layers; l++)
        m->layer[l].ffn = KR_FFN_MOE;
    return KR_OK;
}

/* Sliding windows: layer i is global iff (i + 1) mod global_every is 0; the others are local. */
static kr_status read_window(kr_json root, kr_model *m, kr_err *err)
{
    static const char *const keys[] = {"tokens", "global_every", NULL};
    uint32_t tokens = 0, every = 0;
    nested child;

    TRY(nested_open(&child, root, "window", err));
    if (child.json.object == NULL)
        return KR_OK;
    TRY(kr_json_only(child.json, keys, err));
    TRY(kr_json_u32(child.json, "tokens", true, 1, KR_CONTEXT_MAX, &tokens, err));
    TRY(kr_json_u32(child.json, "global_every", true, 2, KR_LAYERS_MAX + 1, &every, err));
    for (uint32_t l = 0; l < m->layers; l++) {
        if ((l + 1) % every == 0)
            continue;
        m->layer[l].window = tokens;
        m->layer[l].rope = m->rope[1].dims != 0;
    }
    return KR_OK;
}

static kr_status read_flags(kr_json root, kr_model *m, kr_err *err)
{
    static const char *const activations[] = {"silu", "gelu_tanh", "swiglu_oai", NULL};
    uint32_t activation = 0;

    TRY(read_choice(root, "activation", true, activations, &activation, err));
    m->activation = (kr_activation)activation;
    TRY(kr_json_real(root, "norm_eps", true, 1e-12, 1.0, &m->norm_eps, err));
    TRY(kr_json_bool(root, "qkv_bias", false, &m->qkv_bias, err));
    TRY(kr_json_bool(root, "qk_norm", false, &m->qk_norm, err));
    TRY(kr_json_bool(root, "sandwich_norm", false, &m->sandwich_norm, err));
    TRY(kr_json_bool(root, "tied_embedding", false, &m->tied_embedding, err));
    TRY(read_dtype(root, "kv_dtype", false, &m->kv_dtype, err));
    TRY(kr_json_real(root, "weight_bytes_dense", false, 1e-3, 8.0, &m->weight_bytes_dense, err));
    m->weight_bytes_experts = m->weight_bytes_dense;
    TRY(kr_json_real(root, "weight_bytes_experts", false, 1e-3, 8.0, &m->weight_bytes_experts, err));
    return kr_json_real(root, "weight_bytes_wide", false, 1e-3, 8.0, &m->weight_bytes_wide, err);
}

static kr_status read_shape(kr_json root, kr_model *m, kr_err *err)
{
    static const char *const families[] = {"llama",        "qwen2",   "qwen3",      "gemma3",
                                           "deepseek_v32", "glm_dsa", "minimax_m3", NULL};
    const char *name = NULL;
    uint32_t family = 0;

    TRY(kr_json_string(root, "name", true, &name, err));
    if (strlen(name) >= sizeof m->name)
        return kr_fail(err, KR_E_FORMAT, "%s: name is longer than %zu bytes", root.where, sizeof m->name - 1);
    memcpy(m->name, name, strlen(name) + 1);
    TRY(read_choice(root, "family", true, families, &family, err));
    m->family = (kr_family)family;
    TRY(kr_json_u32(root, "layers", true, 1, KR_LAYERS_MAX, &m->layers, err));
    TRY(kr_json_u32(root, "hidden", true, 1, KR_HIDDEN_MAX, &m->hidden, err));
    TRY(kr_json_u32(root, "vocab", true, 1, KR_VOCAB_MAX, &m->vocab, err));
    TRY(kr_json_u32(root, "context", true, 1, KR_CONTEXT_MAX, &m->context, err));
    TRY(kr_json_u32(root, "heads", true, 1, KR_HEADS_MAX, &m->heads, err));
    TRY(kr_json_u32(root, "kv_heads", true, 1, KR_HEADS_MAX, &m->kv_heads, err));
    TRY(kr_json_u32(root, "head_dim", true, 1, KR_HEAD_DIM_MAX, &m->head_dim, err));
    m->value_dim = m->head_dim;
    TRY(kr_json_u32(root, "value_dim", false, 1, KR_HEAD_DIM_MAX, &m->value_dim, err));
    m->softmax_scale = 1.0 / sqrt(m->head_dim);
    TRY(kr_json_real(root, "softmax_scale", false, 1e-6, 1e6, &m->softmax_scale, err));
    return kr_json_u32(root, "ffn_width", true, 1, UINT32_MAX, &m->ffn_width, err);
}

static kr_status read_model(kr_json root, kr_model *m, kr_err *err)
{
    static const char *const keys[] = {
        "karat_model",
        "name",
        "source",
        "family",
        "layers",
        "hidden",
        "vocab",
        "context",
        "heads",
        "kv_heads",
        "head_dim",
        "value_dim",
        "softmax_scale",
        "mla",
        "indexer",
        "ffn_width",
        "moe",
        "activation",
        "norm_eps",
        "qkv_bias",
        "qk_norm",
        "sandwich_norm",
        "tied_embedding",
        "window",
        "rope",
        "rope_local",
        "kv_dtype",
        "weight_bytes_dense",
        "weight_bytes_experts",
        "weight_bytes_wide",
        NULL,
    };
    uint32_t version = 0;
    const char *source = NULL;

    TRY(kr_json_only(root, keys, err));
    TRY(kr_json_u32(root, "karat_model", true, 1, 1, &version, err));
    TRY(kr_json_string(root, "source", true, &source, err));
    TRY(read_shape(root, m, err));
    for (uint32_t l = 0; l < m->layers; l++)
        m->layer[l].index_owner = (uint16_t)l;
    TRY(read_flags(root, m, err));
    TRY(read_mla(root, m, err));
    TRY(read_rope(root, "rope", true, &m->rope[0], err));
    TRY(read_rope(root, "rope_local", false, &m->rope[1], err));
    TRY(read_window(root, m, err));
    TRY(read_indexer(root, m, err));
    TRY(read_moe(root, m, err));
    /* What the family alone decides and no descriptor states. */
    m->norm_plus_one = m->family == KR_FAMILY_GEMMA3 || m->family == KR_FAMILY_MINIMAX_M3;
    m->embed_scale = m->family == KR_FAMILY_GEMMA3 ? sqrt(m->hidden) : 1.0;
    return kr_model_check(m, err);
}

kr_status kr_model_load(const char *path, kr_model *model, kr_err *err)
{
    kr_model read = {.kv_dtype = KR_BF16, .index_dtype = KR_BF16, .weight_bytes_dense = 2.0};
    json_t *root = NULL;
    kr_status status = kr_json_load(path, &root, err);

    if (status != KR_OK)
        return status;
    if (!json_is_object(root))
        status = kr_fail(err, KR_E_FORMAT, "%s: must be a JSON object", path);
    else
        status = read_model((kr_json){.object = root, .where = path}, &read, err);
    json_decref(root);
    if (status == KR_OK)
        *model = read;
    return status;
}
