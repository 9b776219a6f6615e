/* Which tensor plays which role, under which name, with which shape. One table for both forms of
 * model file and all supported families. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "files/model_file_impl.h"

typedef enum {
    WHEN_ALWAYS,
    WHEN_UNTIED,
    WHEN_BIAS,
    WHEN_QK_NORM,
    WHEN_SANDWICH,
    WHEN_PRESENT,
    WHEN_HEADS,  /* attention over heads (GQA) */
    WHEN_LATENT, /* MLA */
    WHEN_INDEX,  /* the layer owns an index, of either kind; of DSA; of MiniMax */
    WHEN_INDEX_DSA,
    WHEN_INDEX_BLOCK,
    WHEN_DENSE, /* the layer has a dense FFN; experts; shared experts among them */
    WHEN_EXPERTS,
    WHEN_SHARED,
} role_when;

typedef enum { ONCE, PER_LAYER, PER_EXPERT } role_scope;

typedef struct {
    role_scope scope;
    role_when when;
    const char *gguf;   /* after "blk.N." for a layer's; NULL: no GGUF of such a family is read */
    const char *folder; /* after PREFIX or PREFIX "layers.N."; # is the expert's number */
    const char *gemma;  /* where Gemma, and where MiniMax-M3, names it otherwise; NULL = the same */
    const char *minimax;
} role_row;

#define EXPERT_TENSOR(NAME) "mlp.experts.#." NAME ".weight"
#define MINIMAX_TENSOR(NAME) "block_sparse_moe." NAME ".weight"

static const role_row rows[KR_ROLES] = {
    [KR_ROLE_EMBEDDING] = {ONCE, WHEN_ALWAYS, "token_embd.weight", "embed_tokens.weight", NULL, NULL},
    [KR_ROLE_FINAL_NORM] = {ONCE, WHEN_ALWAYS, "output_norm.weight", "norm.weight", NULL, NULL},
    [KR_ROLE_OUTPUT] = {ONCE, WHEN_UNTIED, "output.weight", "lm_head.weight", NULL, NULL},
    [KR_ROLE_ATTN_NORM] = {PER_LAYER, WHEN_ALWAYS, "attn_norm.weight", "input_layernorm.weight", NULL, NULL},
    [KR_ROLE_Q] = {PER_LAYER, WHEN_HEADS, "attn_q.weight", "self_attn.q_proj.weight", NULL, NULL},
    [KR_ROLE_K] = {PER_LAYER, WHEN_HEADS, "attn_k.weight", "self_attn.k_proj.weight", NULL, NULL},
    [KR_ROLE_V] = {PER_LAYER, WHEN_HEADS, "attn_v.weight", "self_attn.v_proj.weight", NULL, NULL},
    [KR_ROLE_Q_BIAS] = {PER_LAYER, WHEN_BIAS, "attn_q.bias", "self_attn.q_proj.bias", NULL, NULL},
    [KR_ROLE_K_BIAS] = {PER_LAYER, WHEN_BIAS, "attn_k.bias", "self_attn.k_proj.bias", NULL, NULL},
    [KR_ROLE_V_BIAS] = {PER_LAYER, WHEN_BIAS, "attn_v.bias", "self_attn.v_proj.bias", NULL, NULL},
    [KR_ROLE_Q_NORM] = {PER_LAYER, WHEN_QK_NORM, "attn_q_norm.weight", "self_attn.q_norm.weight", NULL, NULL},
    [KR_ROLE_K_NORM] = {PER_LAYER, WHEN_QK_NORM, "attn_k_norm.weight", "self_attn.k_norm.weight", NULL, NULL},
    [KR_ROLE_O] = {PER_LAYER, WHEN_ALWAYS, "attn_output.weight", "self_attn.o_proj.weight", NULL, NULL},
    [KR_ROLE_POST_ATTN_NORM] = {PER_LAYER, WHEN_SANDWICH, "post_attention_norm.weight",
                                "post_attention_layernorm.weight", NULL, NULL},
    [KR_ROLE_FFN_NORM] = {PER_LAYER, WHEN_ALWAYS, "ffn_norm.weight", "post_attention_layernorm.weight",
                          "pre_feedforward_layernorm.weight", NULL},
    [KR_ROLE_GATE] = {PER_LAYER, WHEN_DENSE, "ffn_gate.weight", "mlp.gate_proj.weight", NULL, NULL},
    [KR_ROLE_UP] = {PER_LAYER, WHEN_DENSE, "ffn_up.weight", "mlp.up_proj.weight", NULL, NULL},
    [KR_ROLE_DOWN] = {PER_LAYER, WHEN_DENSE, "ffn_down.weight", "mlp.down_proj.weight", NULL, NULL},
    [KR_ROLE_POST_FFN_NORM] = {PER_LAYER, WHEN_SANDWICH, "post_ffw_norm.weight",
                               "post_feedforward_layernorm.weight", NULL, NULL},
    [KR_ROLE_ROPE_FACTORS] = {ONCE, WHEN_PRESENT, "rope_freqs.weight", "", NULL, NULL},
    [KR_ROLE_Q_A] = {PER_LAYER, WHEN_LATENT, NULL, "self_attn.q_a_proj.weight", NULL, NULL},
    [KR_ROLE_Q_A_NORM] = {PER_LAYER, WHEN_LATENT, NULL, "self_attn.q_a_layernorm.weight", NULL, NULL},
    [KR_ROLE_Q_B] = {PER_LAYER, WHEN_LATENT, NULL, "self_attn.q_b_proj.weight", NULL, NULL},
    [KR_ROLE_KV_A] = {PER_LAYER, WHEN_LATENT, NULL, "self_attn.kv_a_proj_with_mqa.weight", NULL, NULL},
    [KR_ROLE_KV_A_NORM] = {PER_LAYER, WHEN_LATENT, NULL, "self_attn.kv_a_layernorm.weight", NULL, NULL},
    [KR_ROLE_KV_B] = {PER_LAYER, WHEN_LATENT, NULL, "self_attn.kv_b_proj.weight", NULL, NULL},
    [KR_ROLE_INDEX_Q] = {PER_LAYER, WHEN_INDEX, NULL, "self_attn.indexer.wq_b.weight", NULL,
                         "self_attn.index_q_proj.weight"},
    [KR_ROLE_INDEX_K] = {PER_LAYER, WHEN_INDEX, NULL, "self_attn.indexer.wk.weight", NULL,
                         "self_attn.index_k_proj.weight"},
    [KR_ROLE_INDEX_W] = {PER_LAYER, WHEN_INDEX_DSA, NULL, "self_attn.indexer.weights_proj.weight", NULL,
                         NULL},
    [KR_ROLE_INDEX_Q_NORM] = {PER_LAYER, WHEN_INDEX_BLOCK, NULL, "", NULL, "self_attn.index_q_norm.weight"},
    [KR_ROLE_INDEX_K_NORM] = {PER_LAYER, WHEN_INDEX, NULL, "self_attn.indexer.k_norm.weight", NULL,
                              "self_attn.index_k_norm.weight"},
    [KR_ROLE_INDEX_K_BIAS] = {PER_LAYER, WHEN_INDEX_DSA, NULL, "self_attn.indexer.k_norm.bias", NULL, NULL},
    [KR_ROLE_ROUTER] = {PER_LAYER, WHEN_EXPERTS, NULL, "mlp.gate.weight", NULL, MINIMAX_TENSOR("gate")},
    [KR_ROLE_ROUTER_BIAS] = {PER_LAYER, WHEN_EXPERTS, NULL, "mlp.gate.e_score_correction_bias", NULL,
                             "block_sparse_moe.e_score_correction_bias"},
    [KR_ROLE_SHARED_GATE] = {PER_LAYER, WHEN_SHARED, NULL, "mlp.shared_experts.gate_proj.weight", NULL,
                             MINIMAX_TENSOR("shared_experts.gate_proj")},
    [KR_ROLE_SHARED_UP] = {PER_LAYER, WHEN_SHARED, NULL, "mlp.shared_experts.up_proj.weight", NULL,
                           MINIMAX_TENSOR("shared_experts.up_proj")},
    [KR_ROLE_SHARED_DOWN] = {PER_LAYER, WHEN_SHARED, NULL, "mlp.shared_experts.down_proj.weight", NULL,
                             MINIMAX_TENSOR("shared_experts.down_proj")},
    [KR_ROLE_EXPERT_GATE] = {PER_EXPERT, WHEN_EXPERTS, NULL, EXPERT_TENSOR("gate_proj"), NULL,
                             MINIMAX_TENSOR("experts.#.w1")},
    [KR_ROLE_EXPERT_UP] = {PER_EXPERT, WHEN_EXPERTS, NULL, EXPERT_TENSOR("up_proj"), NULL,
                           MINIMAX_TENSOR("experts.#.w3")},
    [KR_ROLE_EXPERT_DOWN] = {PER_EXPERT, WHEN_EXPERTS, NULL, EXPERT_TENSOR("down_proj"), NULL,
                             MINIMAX_TENSOR("experts.#.w2")},
};

bool kr_role_used(const kr_model *model, kr_role role, uint32_t layer)
{
    const kr_layer *l = &model->layer[layer];
    const bool owner = l->indexed && l->index_owner == layer, moe = l->ffn == KR_FFN_MOE;

    switch (rows[role].when) {
    case WHEN_UNTIED:
        return !model->tied_embedding;
    case WHEN_BIAS:
        return model->qkv_bias;
    case WHEN_QK_NORM:
        return model->qk_norm;
    case WHEN_SANDWICH:
        return model->sandwich_norm;
    case WHEN_HEADS:
        return model->attention == KR_ATTENTION_GQA;
    case WHEN_LATENT:
        return model->attention == KR_ATTENTION_MLA;
    case WHEN_INDEX:
        return owner;
    case WHEN_INDEX_DSA:
        return owner && model->indexer == KR_INDEXER_DSA;
    case WHEN_INDEX_BLOCK:
        return owner && model->indexer == KR_INDEXER_BLOCK;
    case WHEN_DENSE:
        return !moe;
    case WHEN_EXPERTS:
        return moe;
    case WHEN_SHARED:
        return moe && model->moe.shared != 0;
    default:
        return true;
    }
}

const char *kr_role_name(kr_role role)
{
    static const char *const names[KR_ROLES] = {
#define KR_ROLE_TEXT(name) #name,
        KR_ROLE_LIST(KR_ROLE_TEXT)
#undef KR_ROLE_TEXT
    };
    return names[role];
}

static kr_role_shape index_or_expert_shape(const kr_model *m, kr_role role)
{
    const uint64_t shared = (uint64_t)m->moe.shared * m->moe.shared_width;

    switch (role) {
    case KR_ROLE_INDEX_Q:
        return (kr_role_shape){(uint64_t)m->index_heads * m->index_dim,
                               m->indexer == KR_INDEXER_DSA ? m->q_lora : m->hidden};
    case KR_ROLE_INDEX_K:
        return (kr_role_shape){m->index_dim, m->hidden};
    case KR_ROLE_INDEX_W:
        return (kr_role_shape){m->index_heads, m->hidden};
    case KR_ROLE_INDEX_Q_NORM:
    case KR_ROLE_INDEX_K_NORM:
    case KR_ROLE_INDEX_K_BIAS:
        return (kr_role_shape){1, m->index_dim};
    case KR_ROLE_ROUTER:
        return (kr_role_shape){m->moe.experts, m->hidden};
    case KR_ROLE_ROUTER_BIAS:
        return (kr_role_shape){1, m->moe.experts};
    case KR_ROLE_SHARED_GATE:
    case KR_ROLE_SHARED_UP:
        return (kr_role_shape){shared, m->hidden};
    case KR_ROLE_SHARED_DOWN:
        return (kr_role_shape){m->hidden, shared};
    case KR_ROLE_EXPERT_GATE:
    case KR_ROLE_EXPERT_UP:
        return (kr_role_shape){m->moe.width, m->hidden};
    case KR_ROLE_EXPERT_DOWN:
        return (kr_role_shape){m->hidden, m->moe.width};
    default:
        return (kr_role_shape){1, m->hidden}; /* the norms of the residual stream */
    }
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
    case KR_ROLE_Q_A:
        return (kr_role_shape){m->q_lora, m->hidden};
    case KR_ROLE_Q_A_NORM:
        return (kr_role_shape){1, m->q_lora};
    case KR_ROLE_Q_B:
        return (kr_role_shape){q, m->q_lora};
    case KR_ROLE_KV_A:
        return (kr_role_shape){m->kv_lora + m->rope_dim, m->hidden};
    case KR_ROLE_KV_A_NORM:
        return (kr_role_shape){1, m->kv_lora};
    case KR_ROLE_KV_B:
        return (kr_role_shape){(uint64_t)m->heads * (m->nope_dim + m->value_dim), m->kv_lora};
    default:
        return index_or_expert_shape(m, role);
    }
}

/* text with # replaced by the expert's number. */
static void with_expert(const char *text, uint32_t expert, char *out, size_t size)
{
    const char *mark = strchr(text, '#');

    if (mark == NULL)
        snprintf(out, size, "%s", text);
    else
        snprintf(out, size, "%.*s%u%s", (int)(mark - text), text, expert, mark + 1);
}

void kr_role_tensor_name(const kr_model_file *file, kr_role role, uint32_t layer, uint32_t expert, char *name,
                         size_t size)
{
    const role_row *row = &rows[role];
    const char *other = file->model.sandwich_norm                    ? row->gemma
                        : file->model.family == KR_FAMILY_MINIMAX_M3 ? row->minimax
                                                                     : NULL;
    char base[KR_TENSOR_NAME_MAX + 1];

    with_expert(file->form == KR_FORM_GGUF ? (row->gguf != NULL ? row->gguf : "")
                : other != NULL            ? other
                                           : row->folder,
                expert, base, sizeof base);
    if (file->form == KR_FORM_GGUF && row->scope != ONCE)
        snprintf(name, size, "blk.%u.%s", layer, base);
    else if (file->form == KR_FORM_GGUF)
        snprintf(name, size, "%s", base);
    else if (row->scope != ONCE)
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
kr_status kr_model_file_expert(const kr_model_file *file, kr_role role, uint32_t layer, uint32_t expert,
                               kr_tensor *tensor, kr_err *err)
{
    char name[KR_TENSOR_NAME_MAX + 1];
    char found[96];

    if ((unsigned)role >= KR_ROLES || (rows[role].scope != ONCE && layer >= file->model.layers) ||
        (rows[role].scope == PER_EXPERT && expert >= file->model.moe.experts))
        return kr_fail(err, KR_E_ARG, "no tensor role %u in layer %u, expert %u", (unsigned)role, layer,
                       expert);
    if (role == KR_ROLE_OUTPUT && file->model.tied_embedding)
        role = KR_ROLE_EMBEDDING;
    kr_role_tensor_name(file, role, layer, expert, name, sizeof name);
    const kr_tensor_entry *e = kr_role_used(&file->model, role, layer)
                                   ? kr_tensor_table_find(&file->tensors, name)
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

kr_status kr_model_file_tensor(const kr_model_file *file, kr_role role, uint32_t layer, kr_tensor *tensor,
                               kr_err *err)
{
    return kr_model_file_expert(file, role, layer, 0, tensor, err);
}

/* Marks the tensor of a role as used; it must be there unless optional. */
static kr_status claim(const kr_model_file *file, kr_role role, uint32_t layer, uint32_t expert,
                       uint8_t *claimed, kr_err *err)
{
    kr_err why;
    kr_tensor tensor;
    const kr_status status = kr_model_file_expert(file, role, layer, expert, &tensor, &why);

    if (status == KR_E_NOT_FOUND && rows[role].when == WHEN_PRESENT)
        return KR_OK;
    if (status != KR_OK)
        return kr_fail(err, status, "%s", why.text);
    claimed[kr_span_map_find(&file->tensors.by_name, kr_bytes_of(tensor.name))] = 1;
    return KR_OK;
}

/* All tensors of a role in a layer. */
static kr_status claim_layer(const kr_model_file *file, kr_role role, uint32_t layer, uint8_t *claimed,
                             kr_err *err)
{
    const uint32_t count = rows[role].scope == PER_EXPERT ? file->model.moe.experts : 1;
    kr_status status = KR_OK;

    if (!kr_role_used(&file->model, role, layer))
        return KR_OK;
    for (uint32_t i = 0; i < count && status == KR_OK; i++)
        status = claim(file, role, layer, i, claimed, err);
    return status;
}

/* Tensors that no role names and karat knows of: gates, which the method that brings them reads; a table
 * that old checkpoints carry, which repeats what the configuration says; with DSA, layers behind the last
 * one, which predict several tokens at once, and indexers of layers that the configuration makes share
 * another's index. number is what follows "layers." */
static bool is_beside(const kr_model *model, const char *name, const char *number)
{
    const unsigned long layer = strtoul(number, NULL, 10);

    if (strstr(name, KR_GATE_TENSORS) != NULL || strstr(name, "rotary_emb.inv_freq") != NULL)
        return true;
    if (model->indexer != KR_INDEXER_DSA)
        return false;
    return layer >= model->layers ||
           (model->layer[layer].index_owner != layer && strstr(name, ".self_attn.indexer.") != NULL);
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
        if (!claimed[i] && strncmp(name, layers, strlen(layers)) == 0 &&
            !is_beside(&file->model, name, name + strlen(layers)))
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
        const uint32_t layers = rows[role].scope != ONCE ? file->model.layers : 1;
        for (uint32_t layer = 0; layer < layers && status == KR_OK; layer++)
            status = claim_layer(file, (kr_role)role, layer, claimed, err);
    }
    if (status == KR_OK)
        status = check_unclaimed(file, claimed, err);
    kr_free(claimed);
    return status;
}
