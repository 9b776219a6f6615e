/* kr_model_check: the rules that every other room relies on, each refused with its number. */
#include <math.h>

#include "model/model.h"

enum { FFN_WIDTH_MAX = 1 << 22, LORA_MAX = 1 << 16, INDEX_TOPK_MAX = 1 << 16, INDEX_BLOCK_MAX = 1 << 12 };

static kr_status in_range(const char *what, uint64_t value, uint64_t min, uint64_t max, kr_err *err)
{
    if (value < min || value > max)
        return kr_fail(err, KR_E_FORMAT, "model: %s is %llu, must be %llu to %llu", what,
                       (unsigned long long)value, (unsigned long long)min, (unsigned long long)max);
    return KR_OK;
}

static kr_status is_positive(const char *what, double value, kr_err *err)
{
    if (!isfinite(value) || value <= 0.0)
        return kr_fail(err, KR_E_FORMAT, "model: %s is %g, must be positive and finite", what, value);
    return KR_OK;
}

/* Both return from the calling function at the first violation; err is its parameter. */
#define REQUIRE(what, value, min, max)                                       \
    do {                                                                     \
        const kr_status range_status = in_range(what, value, min, max, err); \
        if (range_status != KR_OK)                                           \
            return range_status;                                             \
    } while (0)
#define REQUIRE_POSITIVE(what, value)                                \
    do {                                                             \
        const kr_status real_status = is_positive(what, value, err); \
        if (real_status != KR_OK)                                    \
            return real_status;                                      \
    } while (0)

static kr_status check_rope(const char *what, const kr_rope *rope, uint32_t head_dim, kr_err *err)
{
    if (rope->dims == 0)
        return KR_OK;
    if (rope->dims % 2 != 0 || rope->dims > head_dim || rope->first > head_dim - rope->dims)
        return kr_fail(err, KR_E_FORMAT,
                       "model: %s rotates %u dimensions from %u of a head of %u, must be even and inside",
                       what, rope->dims, rope->first, head_dim);
    REQUIRE("rope layout", rope->layout, 0, KR_ROPE_INTERLEAVED);
    REQUIRE("rope scaling", rope->scaling, 0, KR_ROPE_YARN);
    REQUIRE_POSITIVE("rope theta", rope->theta);
    if (rope->scaling == KR_ROPE_PLAIN)
        return KR_OK;
    REQUIRE_POSITIVE("rope factor", rope->factor);
    if (rope->scaling == KR_ROPE_LINEAR)
        return KR_OK;
    REQUIRE("rope original_context", rope->original_context, 1, KR_CONTEXT_MAX);
    if (rope->scaling == KR_ROPE_LLAMA3) {
        REQUIRE_POSITIVE("rope low_freq", rope->low_freq);
        REQUIRE_POSITIVE("rope high_freq - low_freq", rope->high_freq - rope->low_freq);
        return KR_OK;
    }
    REQUIRE_POSITIVE("rope theta - 1", rope->theta - 1.0);
    REQUIRE_POSITIVE("rope beta_slow", rope->beta_slow);
    REQUIRE_POSITIVE("rope beta_fast - beta_slow", rope->beta_fast - rope->beta_slow);
    if (!isfinite(rope->mscale) || !isfinite(rope->mscale_all_dim))
        return kr_fail(err, KR_E_FORMAT, "model: rope mscale is not finite");
    return KR_OK;
}

static kr_status check_attention(const kr_model *m, kr_err *err)
{
    REQUIRE("attention", m->attention, 0, KR_ATTENTION_MLA);
    REQUIRE("heads", m->heads, 1, KR_HEADS_MAX);
    REQUIRE("kv_heads", m->kv_heads, 1, m->heads);
    REQUIRE("head_dim", m->head_dim, 1, KR_HEAD_DIM_MAX);
    REQUIRE("value_dim", m->value_dim, 1, KR_HEAD_DIM_MAX);
    REQUIRE_POSITIVE("softmax_scale", m->softmax_scale);
    if (m->heads % m->kv_heads != 0)
        return kr_fail(err, KR_E_FORMAT, "model: %u KV heads do not divide %u heads", m->kv_heads, m->heads);
    if (m->kv_dtype != KR_F32 && m->kv_dtype != KR_F16 && m->kv_dtype != KR_BF16)
        return kr_fail(err, KR_E_FORMAT, "model: KV type %s, must be f32, f16 or bf16",
                       kr_dtype_name(m->kv_dtype));
    if (m->attention != KR_ATTENTION_MLA)
        return KR_OK;
    REQUIRE("kv_heads of MLA", m->kv_heads, 1, 1);
    REQUIRE("q_lora", m->q_lora, 1, LORA_MAX);
    REQUIRE("kv_lora", m->kv_lora, 1, KR_HEAD_DIM_MAX);
    REQUIRE("rope_dim", m->rope_dim, 2, KR_HEAD_DIM_MAX);
    REQUIRE("nope_dim", m->nope_dim, 1, KR_HEAD_DIM_MAX);
    REQUIRE("head_dim of MLA (nope + rope)", m->head_dim, (uint64_t)m->nope_dim + m->rope_dim,
            (uint64_t)m->nope_dim + m->rope_dim);
    return KR_OK;
}

static kr_status check_indexer(const kr_model *m, kr_err *err)
{
    REQUIRE("indexer", m->indexer, 0, KR_INDEXER_BLOCK);
    if (m->indexer == KR_INDEXER_NONE)
        return KR_OK;
    REQUIRE("index_heads", m->index_heads, 1, KR_HEADS_MAX);
    REQUIRE("index_dim", m->index_dim, 1, KR_HEAD_DIM_MAX);
    REQUIRE("index_topk", m->index_topk, 1, INDEX_TOPK_MAX);
    REQUIRE("index_block", m->index_block, 1, m->indexer == KR_INDEXER_DSA ? 1 : INDEX_BLOCK_MAX);
    if (m->index_dtype != KR_E4M3 && m->index_dtype != KR_BF16)
        return kr_fail(err, KR_E_FORMAT, "model: index key type %s, must be e4m3 or bf16",
                       kr_dtype_name(m->index_dtype));
    if (m->indexer == KR_INDEXER_DSA && m->attention != KR_ATTENTION_MLA)
        return kr_fail(err, KR_E_FORMAT,
                       "model: a dsa indexer reads MLA's latent query, but attention is not MLA");
    if (m->indexer == KR_INDEXER_BLOCK)
        REQUIRE("index_heads (one per KV head)", m->index_heads, m->kv_heads, m->kv_heads);
    return check_rope("index rope", &m->index_rope, m->index_dim, err);
}

static kr_status check_moe(const kr_model *m, kr_err *err)
{
    const kr_moe *moe = &m->moe;

    REQUIRE("experts", moe->experts, 1, KR_EXPERTS_MAX);
    REQUIRE("active experts", moe->active, 1, moe->experts);
    REQUIRE("expert width", moe->width, 1, FFN_WIDTH_MAX);
    REQUIRE("shared experts", moe->shared, 0, KR_EXPERTS_MAX);
    REQUIRE("shared expert width", moe->shared_width, moe->shared != 0, FFN_WIDTH_MAX);
    REQUIRE("expert groups", moe->groups, 1, moe->experts);
    REQUIRE("expert groups kept", moe->groups_kept, 1, moe->groups);
    if (moe->experts % moe->groups != 0 || moe->active > moe->experts / moe->groups * moe->groups_kept)
        return kr_fail(err, KR_E_FORMAT, "model: %u active of %u experts do not fit %u of %u groups",
                       moe->active, moe->experts, moe->groups_kept, moe->groups);
    REQUIRE_POSITIVE("routed_scale", moe->routed_scale);
    return KR_OK;
}

/* A layer that shares an index must name an earlier layer that computes one (pitfall S-25). */
static kr_status check_index_owner(const kr_model *m, uint32_t l, kr_err *err)
{
    const uint32_t owner = m->layer[l].index_owner;

    if (m->indexer == KR_INDEXER_NONE)
        return kr_fail(err, KR_E_FORMAT, "model: layer %u is indexed but the model has no indexer", l);
    if (owner > l || !m->layer[owner].indexed || m->layer[owner].index_owner != owner)
        return kr_fail(err, KR_E_FORMAT,
                       "model: layer %u shares the index of layer %u, which must be earlier and own an index",
                       l, owner);
    return KR_OK;
}

static kr_status check_layers(const kr_model *m, kr_err *err)
{
    uint32_t window = 0;
    bool moe = false;

    for (uint32_t l = 0; l < m->layers; l++) {
        const kr_layer *layer = &m->layer[l];

        REQUIRE("ffn kind", layer->ffn, 0, KR_FFN_MOE);
        REQUIRE("rope table of a layer", layer->rope, 0, 1);
        if (layer->window != 0 && window != 0 && layer->window != window)
            return kr_fail(err, KR_E_FORMAT,
                           "model: layer %u has window %u, an earlier one %u; one window is supported", l,
                           layer->window, window);
        window = layer->window != 0 ? layer->window : window;
        moe |= layer->ffn == KR_FFN_MOE;
        if (layer->ffn == KR_FFN_DENSE)
            REQUIRE("ffn_width", m->ffn_width, 1, FFN_WIDTH_MAX);
        if (layer->rope == 1)
            REQUIRE("local rope dims", m->rope[1].dims, 2, m->head_dim);
        if (layer->indexed && check_index_owner(m, l, err) != KR_OK)
            return KR_E_FORMAT;
    }
    return moe ? check_moe(m, err) : KR_OK;
}

kr_status kr_model_check(const kr_model *m, kr_err *err)
{
    kr_status status;

    if (m->name[0] == '\0' || m->name[sizeof m->name - 1] != '\0')
        return kr_fail(err, KR_E_FORMAT, "model: the name is empty or longer than %zu bytes",
                       sizeof m->name - 1);
    REQUIRE("family", m->family, 0, KR_FAMILY_COUNT - 1);
    REQUIRE("layers", m->layers, 1, KR_LAYERS_MAX);
    REQUIRE("hidden", m->hidden, 1, KR_HIDDEN_MAX);
    REQUIRE("vocab", m->vocab, 1, KR_VOCAB_MAX);
    REQUIRE("context", m->context, 1, KR_CONTEXT_MAX);
    REQUIRE("activation", m->activation, 0, KR_ACT_SWIGLU_OAI);
    REQUIRE_POSITIVE("norm_eps", m->norm_eps);
    REQUIRE_POSITIVE("embed_scale", m->embed_scale);
    REQUIRE_POSITIVE("weight_bytes_dense", m->weight_bytes_dense);
    REQUIRE_POSITIVE("weight_bytes_experts", m->weight_bytes_experts);
    status = check_attention(m, err);
    for (uint32_t i = 0; status == KR_OK && i < 2; i++)
        status = check_rope(i == 0 ? "rope" : "local rope", &m->rope[i], m->head_dim, err);
    if (status == KR_OK)
        status = check_indexer(m, err);
    return status == KR_OK ? check_layers(m, err) : status;
}
