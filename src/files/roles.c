/* Which tensor plays which role, under which name, with which shape. One table for both forms of
 * model file and all supported families. */
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "files/model_file_impl.h"

typedef enum { WHEN_ALWAYS, WHEN_UNTIED, WHEN_BIAS, WHEN_QK_NORM, WHEN_SANDWICH, WHEN_PRESENT } role_when;

typedef struct {
    bool per_layer;
    role_when when;
    const char *gguf;            /* after "blk.N." for a layer's */
    const char *folder;          /* after PREFIX or PREFIX "layers.N." */
    const char *folder_sandwich; /* where Gemma names it otherwise; NULL = the same */
} role_row;

static const role_row rows[KR_ROLES] = {
    [KR_ROLE_EMBEDDING] = {false, WHEN_ALWAYS, "token_embd.weight", "embed_tokens.weight", NULL},
    [KR_ROLE_FINAL_NORM] = {false, WHEN_ALWAYS, "output_norm.weight", "norm.weight", NULL},
    [KR_ROLE_OUTPUT] = {false, WHEN_UNTIED, "output.weight", "lm_head.weight", NULL},
    [KR_ROLE_ATTN_NORM] = {true, WHEN_ALWAYS, "attn_norm.weight", "input_layernorm.weight", NULL},
    [KR_ROLE_Q] = {true, WHEN_ALWAYS, "attn_q.weight", "self_attn.q_proj.weight", NULL},
    [KR_ROLE_K] = {true, WHEN_ALWAYS, "attn_k.weight", "self_attn.k_proj.weight", NULL},
    [KR_ROLE_V] = {true, WHEN_ALWAYS, "attn_v.weight", "self_attn.v_proj.weight", NULL},
    [KR_ROLE_Q_BIAS] = {true, WHEN_BIAS, "attn_q.bias", "self_attn.q_proj.bias", NULL},
    [KR_ROLE_K_BIAS] = {true, WHEN_BIAS, "attn_k.bias", "self_attn.k_proj.bias", NULL},
    [KR_ROLE_V_BIAS] = {true, WHEN_BIAS, "attn_v.bias", "self_attn.v_proj.bias", NULL},
    [KR_ROLE_Q_NORM] = {true, WHEN_QK_NORM, "attn_q_norm.weight", "self_attn.q_norm.weight", NULL},
    [KR_ROLE_K_NORM] = {true, WHEN_QK_NORM, "attn_k_norm.weight", "self_attn.k_norm.weight", NULL},
    [KR_ROLE_O] = {true, WHEN_ALWAYS, "attn_output.weight", "self_attn.o_proj.weight", NULL},
    [KR_ROLE_POST_ATTN_NORM] = {true, WHEN_SANDWICH, "post_attention_norm.weight",
                                "post_attention_layernorm.weight", NULL},
    [KR_ROLE_FFN_NORM] = {true, WHEN_ALWAYS, "ffn_norm.weight", "post_attention_layernorm.weight",
                          "pre_feedforward_layernorm.weight"},
    [KR_ROLE_GATE] = {true, WHEN_ALWAYS, "ffn_gate.weight", "mlp.gate_proj.weight", NULL},
    [KR_ROLE_UP] = {true, WHEN_ALWAYS, "ffn_up.weight", "mlp.up_proj.weight", NULL},
    [KR_ROLE_DOWN] = {true, WHEN_ALWAYS, "ffn_down.weight", "mlp.down_proj.weight", NULL},
    [KR_ROLE_POST_FFN_NORM] = {true, WHEN_SANDWICH, "post_ffw_norm.weight",
                               "post_feedforward_layernorm.weight", NULL},
    [KR_ROLE_ROPE_FACTORS] = {false, WHEN_PRESENT, "rope_freqs.weight", "", NULL},
};

bool kr_role_used(const kr_model *model, kr_role role)
{
    switch (rows[role].when) {
    case WHEN_UNTIED:
        return !model->tied_embedding;
    case WHEN_BIAS:
        return model->qkv_bias;
    case WHEN_QK_NORM:
        return model->qk_norm;
    case WHEN_SANDWICH:
        return model->sandwich_norm;
    default:
        return true;
    }
}

bool kr_role_per_layer(kr_role role) { return rows[role].per_layer; }

const char *kr_role_name(kr_role role)
{
    static const char *const names[KR_ROLES] = {
#define KR_ROLE_TEXT(name) #name,
        KR_ROLE_LIST(KR_ROLE_TEXT)
#undef KR_ROLE_TEXT
    };
    return names[role];
}

kr_role_shape kr_role_shape_of(const kr_model *m, kr_role role)
{
    const uint64_t q = (uint64_t)m->heads * m->head_dim, kv = (uint64_t)m->kv_heads * m->head_dim;
    const uint64_t v = (uint64_t)m->kv_heads * m->value_dim, o = (uint64_t)m->heads * m->value_dim;

    switch (role) {
    case KR_ROLE_EMBEDDING:
    case KR_ROLE_OUTPUT:
        return (kr_role_shape){m->vocab, m->hidden};
    case KR_ROLE_Q:
        return (kr_role_shape){q, m->hidden};
    case KR_ROLE_K:
        return (kr_role_shape){kv, m->hidden};
    case KR_ROLE_V:
        return (kr_role_shape){v, m->hidden};
    case KR_ROLE_Q_BIAS:
        return (kr_role_shape){1, q};
    case KR_ROLE_K_BIAS:
        return (kr_role_shape){1, kv};
    case KR_ROLE_V_BIAS:
        return (kr_role_shape){1, v};
    case KR_ROLE_Q_NORM:
    case KR_ROLE_K_NORM:
        return (kr_role_shape){1, m->head_dim};
    case KR_ROLE_O:
        return (kr_role_shape){m->hidden, o};
    case KR_ROLE_GATE:
    case KR_ROLE_UP:
        return (kr_role_shape){m->ffn_width, m->hidden};
    case KR_ROLE_DOWN:
        return (kr_role_shape){m->hidden, m->ffn_width};
    case KR_ROLE_ROPE_FACTORS:
        return (kr_role_shape){1, m->rope[0].dims / 2};
    default:
        return (kr_role_shape){1, m->hidden}; /* the norms of the residual stream */
    }
}

void kr_role_tensor_name(const kr_model_file *file, kr_role role, uint32_t layer, char *name, size_t size)
{
    const role_row *row = &rows[role];
    const char *base = file->model.sandwich_norm && row->folder_sandwich ? row->folder_sandwich : row->folder;

    if (file->form == KR_FORM_GGUF && row->per_layer)
        snprintf(name, size, "blk.%u.%s", layer, row->gguf);
    else if (file->form == KR_FORM_GGUF)
        snprintf(name, size, "%s", row->gguf);
    else if (row->per_layer)
        snprintf(name, size, "%slayers.%u.%s", file->name_prefix, layer, base);
    else if (role == KR_ROLE_OUTPUT) /* beside the "model." it follows, not inside */
        snprintf(name, size, "%s%s",
                 strncmp(file->name_prefix, "language_model.", 15) == 0 ? "language_model." : "", base);
    else
        snprintf(name, size, "%s%s", file->name_prefix, base);
}

kr_status kr_tensor_usable(const kr_model_file *file, const kr_tensor_entry *e, kr_err *err)
{
    if (e->type == KR_W_TYPES)
        return kr_fail(err, KR_E_UNSUPPORTED, "%s: tensor %s is of type %s; F32, F16 and BF16 are supported",
                       file->path, e->name, e->type_name);
    const kr_weight_type_info *info = kr_weight_type_of(e->type);
    if (info->block_elements == 1 && (uintptr_t)e->data % info->block_bytes != 0)
        return kr_fail(
            err, KR_E_UNSUPPORTED,
            "%s: tensor %s of type %s does not start at a multiple of %u bytes; save the file again with "
            "a current safetensors",
            file->path, e->name, e->type_name, info->block_bytes);
    return KR_OK;
}

/* KR_E_NOT_FOUND for an absent optional tensor has no text of interest; err may be NULL. */
kr_status kr_model_file_tensor(const kr_model_file *file, kr_role role, uint32_t layer, kr_tensor *tensor,
                               kr_err *err)
{
    char name[KR_TENSOR_NAME_MAX + 1];
    char found[96];

    if ((unsigned)role >= KR_ROLES || (rows[role].per_layer && layer >= file->model.layers))
        return kr_fail(err, KR_E_ARG, "no tensor role %u in layer %u", (unsigned)role, layer);
    if (role == KR_ROLE_OUTPUT && file->model.tied_embedding)
        role = KR_ROLE_EMBEDDING;
    kr_role_tensor_name(file, role, layer, name, sizeof name);
    const kr_tensor_entry *e = kr_role_used(&file->model, role) ? kr_tensor_table_find(&file->tensors, name)
                                                                : NULL;
    if (!e)
        return kr_fail(err, KR_E_NOT_FOUND, "%s: no tensor %s (%s of a %s model)", file->path, name,
                       kr_role_name(role), kr_family_name(file->model.family));
    const kr_status status = kr_tensor_usable(file, e, err);
    if (status != KR_OK)
        return status;
    const kr_role_shape want = kr_role_shape_of(&file->model, role);
    kr_tensor_entry_shape(e, found, sizeof found);
    if (kr_tensor_entry_rows(e) != want.rows || kr_tensor_entry_columns(e) != want.columns)
        return kr_fail(err, KR_E_FORMAT,
                       "%s: tensor %s has shape %s, the configuration asks for [%llu][%llu]", file->path,
                       name, found, (unsigned long long)want.rows, (unsigned long long)want.columns);
    *tensor = (kr_tensor){e->type, want.rows, want.columns, e->data, e->bytes, e->name};
    return KR_OK;
}

/* Marks the tensor of a role as used; it must be there unless optional. */
static kr_status claim(const kr_model_file *file, kr_role role, uint32_t layer, uint8_t *claimed, kr_err *err)
{
    kr_err why;
    kr_tensor tensor;
    const kr_status status = kr_model_file_tensor(file, role, layer, &tensor, &why);

    if (status == KR_E_NOT_FOUND && rows[role].when == WHEN_PRESENT)
        return KR_OK;
    if (status != KR_OK)
        return kr_fail(err, status, "%s", why.text);
    claimed[kr_span_map_find(&file->tensors.by_name, kr_bytes_of(tensor.name))] = 1;
    return KR_OK;
}

/* Tensors that no role names and karat knows of: gates, which the method that brings them reads, and a
 * table that old checkpoints carry, which repeats what the configuration says. */
static bool is_beside(const char *name)
{
    return strstr(name, KR_GATE_TENSORS) != NULL || strstr(name, "rotary_emb.inv_freq") != NULL;
}

static kr_status check_unclaimed(const kr_model_file *file, const uint8_t *claimed, kr_err *err)
{
    char layers[KR_NAME_PREFIX_MAX + 16];

    if (file->form == KR_FORM_GGUF)
        snprintf(layers, sizeof layers, "blk.");
    else
        snprintf(layers, sizeof layers, "%slayers.", file->name_prefix);
    for (uint32_t i = 0; i < file->tensors.count; i++) {
        const char *name = file->tensors.entries[i].name;
        if (!claimed[i] && strncmp(name, layers, strlen(layers)) == 0 && !is_beside(name))
            return kr_fail(err, KR_E_UNSUPPORTED,
                           "%s: tensor %s is not part of a %s model of %u layers as karat computes it",
                           file->path, name, kr_family_name(file->model.family), file->model.layers);
    }
    return KR_OK;
}

kr_status kr_roles_check(const kr_model_file *file, kr_err *err)
{
    uint8_t *claimed = kr_alloc(file->tensors.count + 1);
    kr_status status = KR_OK;

    if (!claimed)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory to check %u tensors", file->path,
                       file->tensors.count);
    for (unsigned role = 0; role < KR_ROLES; role++) {
        const uint32_t layers = rows[role].per_layer ? file->model.layers : 1;
        if (!kr_role_used(&file->model, (kr_role)role))
            continue;
        for (uint32_t layer = 0; layer < layers && status == KR_OK; layer++)
            status = claim(file, (kr_role)role, layer, claimed, err);
    }
    if (status == KR_OK)
        status = check_unclaimed(file, claimed, err);
    kr_free(claimed);
    return status;
}
