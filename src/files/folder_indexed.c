/* config.json of the families with an indexer and experts of their own: DeepSeek-V3.2 and GLM-5.x (latent
 * attention, DSA), MiniMax-M3 (block selection). Keys are those of transformers' configurations; MiniMax's
 * also as its release spells them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "files/folder_impl.h"

/* One number that must be there. */
typedef struct {
    const char *key;
    uint32_t max;
    uint32_t *value;
} size_key;

static kr_status read_all(kr_json c, const size_key *keys, size_t count, kr_err *err)
{
    kr_status s = KR_OK;

    for (size_t i = 0; i < count && s == KR_OK; i++)
        s = kr_json_u32(c, keys[i].key, true, 1, keys[i].max, keys[i].value, err);
    return s;
}

#define READ_ALL(c, keys, err) read_all(c, keys, sizeof keys / sizeof keys[0], err)

/* Element l of an array that has one for each layer: KR_E_FORMAT names the key. */
static kr_status layer_item(kr_json c, const char *key, const kr_model *m, uint32_t l, const json_t **item,
                            kr_err *err)
{
    const json_t *list = json_object_get(c.object, key);

    if (json_array_size(list) < m->layers)
        return kr_fail(err, KR_E_FORMAT, "%s: %s has %zu entries, num_hidden_layers is %u", c.where, key,
                       json_array_size(list), m->layers);
    *item = json_array_get(list, l);
    return KR_OK;
}

/* Whether layer l is of the kind: text entries are yes or no, numbers 1 or 0. */
static kr_status layer_is(kr_json c, const char *key, const char *yes, const char *no, const kr_model *m,
                          uint32_t l, bool *is, kr_err *err)
{
    const json_t *item;
    const kr_status s = layer_item(c, key, m, l, &item, err);

    if (s != KR_OK)
        return s;
    const char *text = json_string_value(item);
    if (text != NULL && (strcmp(text, yes) == 0 || strcmp(text, no) == 0))
        *is = strcmp(text, yes) == 0;
    else if (json_is_integer(item))
        *is = json_integer_value(item) != 0;
    else
        return kr_fail(err, KR_E_UNSUPPORTED, "%s: %s[%u] is \"%.40s\"; %s and %s are supported", c.where,
                       key, l, text != NULL ? text : "", yes, no);
    return KR_OK;
}

/* Layers with experts: a list, or all from first on. */
static kr_status read_ffn_kinds(kr_json c, uint32_t first, kr_model *m, kr_err *err)
{
    const char *key = json_object_get(c.object, "mlp_layer_types") != NULL ? "mlp_layer_types"
                                                                           : "moe_layer_freq";
    const bool listed = json_is_array(json_object_get(c.object, key));
    kr_status s = KR_OK;

    for (uint32_t l = 0; l < m->layers && s == KR_OK; l++) {
        bool moe = l >= first;
        if (listed)
            s = layer_is(c, key, "sparse", "dense", m, l, &moe, err);
        m->layer[l].ffn = moe ? KR_FFN_MOE : KR_FFN_DENSE;
    }
    return s;
}

/* ---- DeepSeek-V3.2, GLM-5.x ---- */

/* Every layer owns an index unless a list, or a frequency behind an offset, says that it uses the one of
 * the nearest owner before it (GLM-5.2's IndexShare; IndexCache for a model that was trained without). */
static kr_status read_index_owners(kr_json c, kr_model *m, kr_err *err)
{
    const bool listed = json_object_get(c.object, "indexer_types") != NULL;
    uint32_t every = 1, offset = 2, owner = UINT32_MAX;
    kr_status s = kr_json_u32(c, "index_topk_freq", false, 1, KR_LAYERS_MAX, &every, err);

    if (s == KR_OK)
        s = kr_json_u32(c, "index_skip_topk_offset", false, 1, KR_LAYERS_MAX, &offset, err);
    for (uint32_t l = 0; l < m->layers && s == KR_OK; l++) {
        bool full = l + 1 <= offset || (l + 1 - offset) % every == 0;
        if (listed)
            s = layer_is(c, "indexer_types", "full", "shared", m, l, &full, err);
        owner = full ? l : owner;
        if (s == KR_OK && owner == UINT32_MAX)
            s = kr_fail(err, KR_E_FORMAT, "%s: layer %u shares an index, but no earlier layer owns one",
                        c.where, l);
        m->layer[l].indexed = true;
        m->layer[l].index_owner = (uint16_t)owner;
    }
    return s;
}

static kr_status read_latent_ropes(kr_json c, kr_model *m, kr_err *err)
{
    const json_t *parameters = json_object_get(c.object, "rope_parameters");
    const json_t *scaling = json_object_get(c.object, "rope_scaling");
    bool interleaved = m->family == KR_FAMILY_GLM_DSA;
    kr_rope rope = {.layout = KR_ROPE_INTERLEAVED, .dims = m->rope_dim, .theta = 1e4};
    kr_status s = kr_json_real(c, "rope_theta", false, 1.0, 1e12, &rope.theta, err);

    if (s == KR_OK && (parameters != NULL || scaling != NULL))
        s = kr_folder_rope((kr_json){parameters != NULL ? parameters : scaling, c.where}, true, &rope, err);
    if (s == KR_OK)
        s = kr_json_bool(c, "indexer_rope_interleave", false, &interleaved, err);
    if (s != KR_OK)
        return s;
    m->rope[0] = m->index_rope = rope;
    m->rope[0].first = m->nope_dim;
    m->index_rope.layout = interleaved ? KR_ROPE_INTERLEAVED : KR_ROPE_HALF;
    m->softmax_scale = 1.0 / sqrt(m->head_dim);
    if (rope.scaling == KR_ROPE_YARN && rope.mscale_all_dim != 0.0 && rope.factor > 1.0) {
        const double mscale = 0.1 * rope.mscale_all_dim * log(rope.factor) + 1.0;
        m->softmax_scale *= mscale * mscale;
    }
    return KR_OK;
}

static kr_status read_deepseek_experts(kr_json c, kr_model *m, kr_err *err)
{
    uint32_t first = m->layers;
    bool normed = true;
    const size_key keys[] = {
        {"n_routed_experts", KR_EXPERTS_MAX, &m->moe.experts},
        {"num_experts_per_tok", KR_EXPERTS_MAX, &m->moe.active},
        {"moe_intermediate_size", UINT32_MAX, &m->moe.width},
        {"n_group", KR_EXPERTS_MAX, &m->moe.groups},
        {"topk_group", KR_EXPERTS_MAX, &m->moe.groups_kept},
    };
    kr_status s = READ_ALL(c, keys, err);

    m->moe.routed_scale = 1.0;
    if (s == KR_OK)
        s = kr_json_u32(c, "n_shared_experts", false, 0, KR_EXPERTS_MAX, &m->moe.shared, err);
    m->moe.shared_width = m->moe.width;
    if (s == KR_OK)
        s = kr_json_real(c, "routed_scaling_factor", false, 1e-6, 1e6, &m->moe.routed_scale, err);
    if (s == KR_OK)
        s = kr_json_u32(c, "first_k_dense_replace", false, 0, KR_LAYERS_MAX, &first, err);
    if (s == KR_OK)
        s = kr_folder_refuse(c, "scoring_func", "sigmoid", err);
    if (s == KR_OK)
        s = kr_json_bool(c, "norm_topk_prob", false, &normed, err);
    if (s == KR_OK && !normed)
        s = kr_fail(err, KR_E_UNSUPPORTED, "%s: \"norm_topk_prob\" false is not supported", c.where);
    return s == KR_OK ? read_ffn_kinds(c, first, m, err) : s;
}

static kr_status read_deepseek(kr_json c, kr_model *m, kr_err *err)
{
    const size_key keys[] = {
        {"intermediate_size", UINT32_MAX, &m->ffn_width},
        {"q_lora_rank", UINT32_MAX, &m->q_lora},
        {"kv_lora_rank", KR_HEAD_DIM_MAX, &m->kv_lora},
        {"qk_nope_head_dim", KR_HEAD_DIM_MAX / 2, &m->nope_dim},
        {"qk_rope_head_dim", KR_HEAD_DIM_MAX / 2, &m->rope_dim},
        {"v_head_dim", KR_HEAD_DIM_MAX, &m->value_dim},
        {"index_n_heads", KR_HEADS_MAX, &m->index_heads},
        {"index_head_dim", KR_HEAD_DIM_MAX, &m->index_dim},
        {"index_topk", UINT32_MAX, &m->index_topk},
    };
    kr_status s = READ_ALL(c, keys, err);

    if (s == KR_OK)
        s = kr_folder_refuse(c, "attention_bias", NULL, err);
    if (s == KR_OK)
        s = kr_folder_refuse(c, "hidden_act", "silu", err);
    if (s == KR_OK && (m->index_dim & (m->index_dim - 1)) != 0)
        s = kr_fail(err, KR_E_UNSUPPORTED, "%s: index_head_dim %u is not a power of two", c.where,
                    m->index_dim);
    if (s != KR_OK)
        return s;
    m->kv_heads = 1;
    m->head_dim = m->nope_dim + m->rope_dim;
    m->latent_norm_eps = 1e-6; /* transformers' default, whatever rms_norm_eps says */
    m->indexer = KR_INDEXER_DSA;
    m->index_block = 1;
    m->index_dtype = KR_E4M3;
    s = read_latent_ropes(c, m, err);
    if (s == KR_OK)
        s = read_index_owners(c, m, err);
    return s == KR_OK ? read_deepseek_experts(c, m, err) : s;
}

/* ---- MiniMax-M3 ---- */

/* A number under transformers' name, or inside sparse_attention_config under the release's. */
static kr_status read_either(kr_json c, kr_json sparse, const char *key, const char *released, uint32_t min,
                             uint32_t max, uint32_t *value, kr_err *err)
{
    if (sparse.object != NULL && json_object_get(sparse.object, released) != NULL)
        return kr_json_u32(sparse, released, true, min, max, value, err);
    return kr_json_u32(c, key, true, min, max, value, err);
}

static kr_status read_blocks(kr_json c, kr_model *m, kr_err *err)
{
    const kr_json sparse = {json_object_get(c.object, "sparse_attention_config"), c.where};
    const bool released = json_object_get(c.object, "layer_types") == NULL;
    uint32_t local = 1, initial = 0;
    kr_status s = read_either(c, sparse, "index_n_heads", "sparse_num_index_heads", 1, KR_HEADS_MAX,
                              &m->index_heads, err);

    if (s == KR_OK)
        s = read_either(c, sparse, "index_head_dim", "sparse_index_dim", 1, KR_HEAD_DIM_MAX, &m->index_dim,
                        err);
    if (s == KR_OK)
        s = read_either(c, sparse, "index_topk_blocks", "sparse_topk_blocks", 1, UINT32_MAX, &m->index_topk,
                        err);
    if (s == KR_OK)
        s = read_either(c, sparse, "index_block_size", "sparse_block_size", 1, KR_PAGE_TOKENS,
                        &m->index_block, err);
    if (s == KR_OK)
        s = read_either(c, sparse, "index_local_blocks", "sparse_local_block", 0, UINT32_MAX, &local, err);
    if (s == KR_OK && sparse.object != NULL)
        s = kr_json_u32(sparse, "sparse_init_block", false, 0, UINT32_MAX, &initial, err);
    if (s == KR_OK && (local != 1 || initial != 0))
        s = kr_fail(err, KR_E_UNSUPPORTED, "%s: %u local and %u initial blocks; 1 and 0 are supported",
                    c.where, local, initial);
    m->indexer = KR_INDEXER_BLOCK;
    for (uint32_t l = 0; l < m->layers && s == KR_OK; l++)
        s = layer_is(released ? sparse : c, released ? "sparse_attention_freq" : "layer_types",
                     "minimax_m3_sparse", "full_attention", m, l, &m->layer[l].indexed, err);
    return s;
}

static kr_status read_partial_rope(kr_json c, kr_model *m, kr_err *err)
{
    const json_t *parameters = json_object_get(c.object, "rope_parameters");
    kr_rope rope = {.layout = KR_ROPE_HALF, .dims = m->head_dim, .theta = 5e6};
    kr_status s = kr_json_real(c, "rope_theta", false, 1.0, 1e12, &rope.theta, err);

    if (s == KR_OK && parameters != NULL)
        s = kr_folder_rope((kr_json){parameters, c.where}, false, &rope, err);
    if (s == KR_OK)
        s = kr_json_u32(c, "rotary_dim", false, 2, m->head_dim, &rope.dims, err);
    m->rope[0] = m->index_rope = rope;
    return s;
}

static kr_status check_activation(kr_json c, kr_err *err)
{
    const char *act = "silu";
    double alpha = 1.702, limit = 7.0;
    kr_status s = kr_json_string(c, "hidden_act", false, &act, err);

    if (s == KR_OK)
        s = kr_json_real(c, "swiglu_alpha", false, 0.0, 1e3, &alpha, err);
    if (s == KR_OK)
        s = kr_json_real(c, "swiglu_limit", false, 0.0, 1e3, &limit, err);
    if (s == KR_OK &&
        (alpha != 1.702 || limit != 7.0 || (strcmp(act, "silu") != 0 && strcmp(act, "swigluoai") != 0)))
        s = kr_fail(
            err, KR_E_UNSUPPORTED,
            "%s: activation \"%.40s\" with alpha %g and limit %g; swigluoai with 1.702 and 7 is supported",
            c.where, act, alpha, limit);
    return s;
}

static kr_status read_minimax(kr_json c, kr_model *m, kr_err *err)
{
    const size_key keys[] = {
        {"num_key_value_heads", KR_HEADS_MAX, &m->kv_heads},
        {"head_dim", KR_HEAD_DIM_MAX, &m->head_dim},
        {"dense_intermediate_size", UINT32_MAX, &m->ffn_width},
        {"intermediate_size", UINT32_MAX, &m->moe.width},
        {"shared_intermediate_size", UINT32_MAX, &m->moe.shared_width},
        {"num_local_experts", KR_EXPERTS_MAX, &m->moe.experts},
        {"num_experts_per_tok", KR_EXPERTS_MAX, &m->moe.active},
    };
    kr_status s = READ_ALL(c, keys, err);

    m->value_dim = m->head_dim;
    m->moe.shared = m->moe.groups = m->moe.groups_kept = 1;
    m->moe.routed_scale = 2.0;
    m->norm_plus_one = true;
    m->softmax_scale = 1.0 / sqrt(m->head_dim);
    if (s == KR_OK)
        s = kr_json_real(c, "routed_scaling_factor", false, 1e-6, 1e6, &m->moe.routed_scale, err);
    if (s == KR_OK)
        s = check_activation(c, err);
    if (s == KR_OK)
        s = read_partial_rope(c, m, err);
    if (s == KR_OK)
        s = read_blocks(c, m, err);
    return s == KR_OK ? read_ffn_kinds(c, 0, m, err) : s;
}

kr_status kr_folder_config_indexed(kr_json c, kr_model *m, kr_err *err)
{
    const size_key keys[] = {
        {"hidden_size", KR_HIDDEN_MAX, &m->hidden},
        {"num_attention_heads", KR_HEADS_MAX, &m->heads},
        {"max_position_embeddings", KR_CONTEXT_MAX, &m->context},
    };
    kr_status s = READ_ALL(c, keys, err);

    m->embed_scale = 1.0;
    m->norm_eps = 1e-6;
    if (s == KR_OK)
        s = kr_json_real(c, "rms_norm_eps", false, 0.0, 1.0, &m->norm_eps, err);
    if (s == KR_OK)
        s = kr_json_bool(c, "tie_word_embeddings", false, &m->tied_embedding, err);
    if (s != KR_OK)
        return s;
    return m->family == KR_FAMILY_MINIMAX_M3 ? read_minimax(c, m, err) : read_deepseek(c, m, err);
}
