/* config.json of the supported families, by the defaults transformers gives absent keys. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "files/folder_impl.h"

/* transformers writes null for "not set"; an absent key says the same. */
static void drop_nulls(json_t *object)
{
    const char *key;
    json_t *value;
    void *next;

    json_object_foreach_safe(object, next, key, value)
    {
        if (json_is_null(value))
            json_object_del(object, key);
        else if (json_is_object(value))
            drop_nulls(value);
    }
}

kr_status kr_folder_refuse(kr_json c, const char *key, const char *allowed, kr_err *err)
{
    const json_t *value = json_object_get(c.object, key);
    const char *text = json_string_value(value);

    if (!value || json_is_false(value) || (allowed && text && strcmp(text, allowed) == 0))
        return KR_OK;
    return kr_fail(err, KR_E_UNSUPPORTED, "%s: \"%s\"%s%.40s is not supported%s%s", c.where, key,
                   text ? " " : "", text ? text : "", allowed ? "; it must be " : "", allowed ? allowed : "");
}

static kr_status read_sizes(kr_json c, kr_model *m, kr_err *err)
{
    const bool gemma = m->family == KR_FAMILY_GEMMA3; /* its files leave defaults out */
    kr_status s;

    m->heads = 8;
    m->hidden = 2304;
    m->ffn_width = 9216;
    m->context = 131072;
    m->norm_eps = 1e-6;
    s = kr_json_u32(c, "hidden_size", !gemma, 1, KR_HIDDEN_MAX, &m->hidden, err);
    if (s == KR_OK)
        s = kr_json_u32(c, "intermediate_size", !gemma, 1, UINT32_MAX, &m->ffn_width, err);
    if (s == KR_OK)
        s = kr_json_u32(c, "num_attention_heads", !gemma, 1, KR_HEADS_MAX, &m->heads, err);
    if (s == KR_OK)
        s = kr_json_u32(c, "max_position_embeddings", !gemma, 1, KR_CONTEXT_MAX, &m->context, err);
    if (s == KR_OK)
        s = kr_json_real(c, "rms_norm_eps", !gemma, 0.0, 1.0, &m->norm_eps, err);
    m->kv_heads = gemma ? 4 : m->heads;
    if (s == KR_OK)
        s = kr_json_u32(c, "num_key_value_heads", false, 1, KR_HEADS_MAX, &m->kv_heads, err);
    if (s == KR_OK && !gemma && !json_object_get(c.object, "head_dim") && m->hidden % m->heads != 0)
        s = kr_fail(err, KR_E_FORMAT, "%s: %u heads do not divide hidden_size %u and head_dim is missing",
                    c.where, m->heads, m->hidden);
    m->head_dim = gemma ? 256 : m->hidden / m->heads;
    if (s == KR_OK)
        s = kr_json_u32(c, "head_dim", false, 1, KR_HEAD_DIM_MAX, &m->head_dim, err);
    m->value_dim = m->head_dim;
    m->tied_embedding = gemma;
    if (s == KR_OK)
        s = kr_json_bool(c, "tie_word_embeddings", false, &m->tied_embedding, err);
    return s;
}

static kr_status read_llama3(kr_json r, kr_rope *rope, kr_err *err)
{
    kr_status s = kr_json_real(r, "low_freq_factor", true, 1e-3, 1e6, &rope->low_freq, err);

    if (s == KR_OK)
        s = kr_json_real(r, "high_freq_factor", true, 1e-3, 1e6, &rope->high_freq, err);
    return s == KR_OK ? kr_json_u32(r, "original_max_position_embeddings", true, 1, KR_CONTEXT_MAX,
                                    &rope->original_context, err)
                      : s;
}

static kr_status read_yarn(kr_json r, kr_rope *rope, kr_err *err)
{
    kr_status s;

    rope->beta_fast = 32.0;
    rope->beta_slow = 1.0;
    s = kr_json_real(r, "beta_fast", false, 1e-6, 1e6, &rope->beta_fast, err);
    if (s == KR_OK)
        s = kr_json_real(r, "beta_slow", false, 1e-6, 1e6, &rope->beta_slow, err);
    if (s == KR_OK)
        s = kr_json_real(r, "mscale", false, 0.0, 1e3, &rope->mscale, err);
    if (s == KR_OK)
        s = kr_json_real(r, "mscale_all_dim", false, 0.0, 1e3, &rope->mscale_all_dim, err);
    return s == KR_OK ? kr_json_u32(r, "original_max_position_embeddings", true, 1, KR_CONTEXT_MAX,
                                    &rope->original_context, err)
                      : s;
}

kr_status kr_folder_rope(kr_json r, bool yarn, kr_rope *rope, kr_err *err)
{
    const char *type = "default";
    double partial = 1.0;
    kr_status s = kr_json_string(r, "type", false, &type, err);

    if (s == KR_OK)
        s = kr_json_string(r, "rope_type", false, &type, err);
    if (s == KR_OK)
        s = kr_json_real(r, "rope_theta", false, 1.0, 1e12, &rope->theta, err);
    if (s == KR_OK)
        s = kr_json_real(r, "partial_rotary_factor", false, 0.0, 1.0, &partial, err);
    if (s != KR_OK)
        return s;
    rope->dims = (uint32_t)(rope->dims * partial);
    if (strcmp(type, "default") == 0)
        return KR_OK;
    if (strcmp(type, "linear") == 0)
        rope->scaling = KR_ROPE_LINEAR;
    else if (strcmp(type, "llama3") == 0)
        rope->scaling = KR_ROPE_LLAMA3;
    else if (yarn && strcmp(type, "yarn") == 0)
        rope->scaling = KR_ROPE_YARN;
    else
        return kr_fail(err, KR_E_UNSUPPORTED,
                       "%s: rope type \"%.40s\" is not supported; default, linear and llama3 are%s", r.where,
                       type, yarn ? ", and yarn" : "");
    s = kr_json_real(r, "factor", true, 1e-3, 1e6, &rope->factor, err);
    if (s == KR_OK && rope->scaling == KR_ROPE_LLAMA3)
        return read_llama3(r, rope, err);
    return s == KR_OK && rope->scaling == KR_ROPE_YARN ? read_yarn(r, rope, err) : s;
}

static kr_status read_ropes(kr_json c, kr_model *m, kr_err *err)
{
    const bool gemma = m->family == KR_FAMILY_GEMMA3;
    const json_t *both = json_object_get(c.object, "rope_parameters");
    const json_t *scaling = json_object_get(c.object, "rope_scaling");
    const json_t *full = json_object_get(both, "full_attention");
    const json_t *local = json_object_get(both, "sliding_attention");
    kr_status s;

    m->rope[0] = (kr_rope){.layout = KR_ROPE_HALF, .dims = m->head_dim, .theta = gemma ? 1e6 : 1e4};
    s = kr_json_real(c, "rope_theta", false, 1.0, 1e12, &m->rope[0].theta, err);
    if (s == KR_OK && (both || scaling)) {
        const json_t *global = full ? full : both ? both : scaling;
        s = kr_folder_rope((kr_json){global, c.where}, false, &m->rope[0], err);
    }
    if (s != KR_OK || !gemma)
        return s;
    m->rope[1] = (kr_rope){.layout = KR_ROPE_HALF, .dims = m->head_dim, .theta = 1e4};
    s = kr_json_real(c, "rope_local_base_freq", false, 1.0, 1e12, &m->rope[1].theta, err);
    return s == KR_OK && local ? kr_folder_rope((kr_json){local, c.where}, false, &m->rope[1], err) : s;
}

/* Which layers see a window: "layer_types" where the file has it, else the family's pattern. */
static kr_status read_windows(kr_json c, kr_model *m, kr_err *err)
{
    const bool gemma = m->family == KR_FAMILY_GEMMA3;
    const json_t *types = json_object_get(c.object, "layer_types");
    bool use = gemma;
    uint32_t window = gemma ? 4096 : 0, pattern = 6, first = 0;
    kr_status s = kr_json_bool(c, "use_sliding_window", false, &use, err);

    if (s == KR_OK)
        s = kr_json_u32(c, "sliding_window", false, 1, KR_CONTEXT_MAX, &window, err);
    if (s == KR_OK)
        s = kr_json_u32(c, "_sliding_window_pattern", false, 1, KR_LAYERS_MAX, &pattern, err);
    if (s == KR_OK)
        s = kr_json_u32(c, "sliding_window_pattern", false, 1, KR_LAYERS_MAX, &pattern, err);
    if (s == KR_OK && !gemma)
        s = kr_json_u32(c, "max_window_layers", false, 0, UINT32_MAX, &first, err);
    if (s != KR_OK || !use || window == 0)
        return s;
    if (types && json_array_size(types) != m->layers)
        return kr_fail(err, KR_E_FORMAT, "%s: layer_types has %zu entries, num_hidden_layers is %u", c.where,
                       json_array_size(types), m->layers);
    for (uint32_t l = 0; l < m->layers; l++) {
        const char *type = json_string_value(json_array_get(types, l));
        const bool local = types   ? type && strcmp(type, "sliding_attention") == 0
                           : gemma ? (l + 1) % pattern != 0
                                   : l >= first;
        if (types && !local && (!type || strcmp(type, "full_attention") != 0))
            return kr_fail(
                err, KR_E_UNSUPPORTED,
                "%s: layer_types[%u] is \"%.40s\"; full_attention and sliding_attention are supported",
                c.where, l, type ? type : "");
        m->layer[l].window = local ? window : 0;
        m->layer[l].rope = local && gemma;
    }
    return KR_OK;
}

static kr_status read_family_rules(kr_json c, kr_model *m, kr_err *err)
{
    static const char *const refused[] = {"attn_logit_softcapping", "final_logit_softcapping",
                                          "use_bidirectional_attention", "mlp_bias", "num_local_experts"};
    const bool gemma = m->family == KR_FAMILY_GEMMA3;
    const char *act = gemma ? "gelu_pytorch_tanh" : "silu";
    double scalar = gemma ? 256.0 : m->head_dim;
    kr_status s = kr_folder_refuse(c, "hidden_act", act, err);

    if (s == KR_OK)
        s = kr_folder_refuse(c, "hidden_activation", act, err);
    for (size_t i = 0; s == KR_OK && i < sizeof refused / sizeof refused[0]; i++)
        s = kr_folder_refuse(c, refused[i], NULL, err);
    if (s == KR_OK && gemma)
        s = kr_json_real(c, "query_pre_attn_scalar", false, 1e-3, 1e6, &scalar, err);
    m->softmax_scale = 1.0 / sqrt(scalar);
    m->norm_plus_one = gemma;
    m->embed_scale = gemma ? sqrt((double)m->hidden) : 1.0;
    return s;
}

static const kr_tensor_entry *gate_tensor(const kr_model_file *file, const char *name)
{
    char whole[KR_TENSOR_NAME_MAX + 1];

    snprintf(whole, sizeof whole, "%slayers.0" KR_GATE_TENSORS "%s", file->name_prefix, name);
    return kr_tensor_table_find(&file->tensors, whole);
}

/* SeerAttention-R: a query projection of each head, keys pooled by maximum, minimum and mean. */
static kr_status read_gates(const kr_model_file *file, kr_json c, kr_gates *gates, kr_err *err)
{
    const kr_tensor_entry *query = gate_tensor(file, "attngate_linear_q.weight");
    const char *queries = "Qproj", *keys = "Kmaxminavg";
    kr_gates g = {.block = 64, .rope = true};
    kr_status s = kr_json_string(c, "seerattn_q_head_pooling_type", false, &queries, err);

    if (s == KR_OK)
        s = kr_json_string(c, "seerattn_k_seq_pooling_type", false, &keys, err);
    if (s != KR_OK || query == NULL)
        return s;
    if (strcmp(queries, "Qproj") != 0 || strcmp(keys, "Kmaxminavg") != 0)
        return kr_fail(err, KR_E_UNSUPPORTED,
                       "%s: gates with %.40s and %.40s are not supported; Qproj with Kmaxminavg are", c.where,
                       queries, keys);
    if (kr_tensor_entry_columns(query) > KR_HEAD_DIM_MAX)
        return kr_fail(err, KR_E_LIMIT, "%s: tensor %s has gates of %llu; at most %d", c.where, query->name,
                       (unsigned long long)kr_tensor_entry_columns(query), KR_HEAD_DIM_MAX);
    s = kr_json_u32(c, "seerattn_gate_block_size", false, 1, KR_PAGE_TOKENS, &g.block, err);
    if (s == KR_OK)
        s = kr_json_bool(c, "seerattn_use_rope", false, &g.rope, err);
    if (s != KR_OK)
        return s;
    g.dim = (uint32_t)kr_tensor_entry_columns(query);
    g.norm = gate_tensor(file, "attngate_qnorm.weight") != NULL;
    *gates = g;
    return KR_OK;
}

kr_status kr_folder_config(kr_model_file *file, json_t *config, const char *where, kr_err *err)
{
    char name[KR_TENSOR_NAME_MAX + 1];
    const char *type = "", *inner_type = "";
    kr_json c = {config, where};
    kr_family family = KR_FAMILY_LLAMA;
    kr_model *m = &file->model;
    uint32_t layers = 26;
    kr_status s;

    drop_nulls(config);
    /* Multimodal files describe their language model inside. */
    if (json_is_object(json_object_get(config, "text_config")))
        c.object = json_object_get(config, "text_config");
    s = kr_json_string((kr_json){config, where}, "model_type", true, &type, err);
    if (s == KR_OK)
        s = kr_json_string(c, "model_type", false, &inner_type, err);
    if (s == KR_OK)
        s = kr_family_of(where, KR_FORM_FOLDER, kr_bytes_of(*inner_type ? inner_type : type), &family, err);
    if (s == KR_OK)
        s = kr_json_u32(c, "num_hidden_layers", family != KR_FAMILY_GEMMA3, 1, KR_LAYERS_MAX, &layers, err);
    if (s != KR_OK)
        return s;
    kr_model_start(m, family, layers);
    if (family >= KR_FAMILY_DEEPSEEK_V32)
        return kr_folder_config_indexed(c, m, err);
    s = read_sizes(c, m, err);
    if (s == KR_OK)
        s = read_family_rules(c, m, err);
    if (s == KR_OK)
        s = read_ropes(c, m, err);
    if (s == KR_OK)
        s = read_windows(c, m, err);
    if (s == KR_OK)
        s = read_gates(file, c, &m->gates, err);
    kr_role_tensor_name(file, KR_ROLE_Q_BIAS, 0, 0, name, sizeof name);
    if (kr_tensor_table_find(&file->tensors, name))
        m->qkv_bias = true; /* some Llama derivatives have one too */
    return s;
}
