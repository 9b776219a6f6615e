/* The walk over a model's tensors: which matrices and vectors a layer has, by family and kind of layer. */
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "engine/forward_build.h"

void *kr_forward_take(kr_forward_taker *t, uint64_t bytes)
{
    t->bytes += kr_align_up(bytes, 64);
    if (t->arena == NULL)
        return NULL;
    void *p = kr_arena_take(t->arena, bytes);
    KR_CHECK(p != NULL); /* the arena was made for these very takes */
    return p;
}

/* as_f32: held as F32 whatever the tensor's type. */
static kr_status do_tensor(kr_forward_builder *b, kr_forward_walk p, const kr_tensor *tensor, bool as_f32,
                           kr_matrix *m)
{
    kr_status s;

    if (p == KR_FORWARD_PLAN) {
        s = kr_matrix_plan(m, b->f->gemm, tensor, as_f32, b->err);
        if (s == KR_OK && m->columns > b->f->columns_max)
            b->f->columns_max = m->columns;
        return s;
    }
    s = kr_matrix_pack(m, b->f->gemm, b->f->team, tensor, b->err);
    b->done++;
    if (s == KR_OK && b->progress != NULL)
        b->progress(b->context, b->done, b->matrices);
    return s;
}

static void take_matrix(kr_forward_builder *b, kr_matrix *m)
{
    m->packed = kr_forward_take(&b->weights, kr_matrix_packed_bytes(m));
    if (kr_matrix_chunk_bytes(m) != 0)
        m->chunk = kr_forward_take(&b->weights, kr_matrix_chunk_bytes(m));
    if (b->weights.arena == NULL)
        b->matrices++;
}

static kr_status do_matrix(kr_forward_builder *b, kr_forward_walk p, kr_role role, uint32_t layer,
                           bool as_f32, kr_matrix *m)
{
    kr_tensor tensor;

    if (p == KR_FORWARD_TAKE) {
        take_matrix(b, m);
        return KR_OK;
    }
    const kr_status s = kr_model_file_tensor(b->config->file, role, layer, &tensor, b->err);
    return s == KR_OK ? do_tensor(b, p, &tensor, as_f32, m) : s;
}

/* ---- kv_b by head ---- */

/* Rows turned into columns; 2 or 4 bytes an element. */
static void transpose(const uint8_t *from, uint64_t rows, uint64_t columns, uint32_t bytes, uint8_t *to)
{
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c++)
            memcpy(to + (c * rows + r) * bytes, from + (r * columns + c) * bytes, bytes);
}

/* Head h of kv_b holds nope_dim rows that make a key of a latent, then value_dim that make a value. */
static kr_status do_head(kr_forward_builder *b, kr_forward_walk p, const kr_tensor *kv_b, uint32_t h,
                         uint8_t *turned, kr_forward_layer *w)
{
    const kr_model *m = b->f->model;
    const uint64_t row_bytes = kr_weight_row_bytes(kv_b->type, m->kv_lora);
    const uint8_t *up = kv_b->data + (uint64_t)h * (m->nope_dim + m->value_dim) * row_bytes;
    const kr_tensor key = {kv_b->type, m->kv_lora, m->nope_dim, turned, m->nope_dim * row_bytes, kv_b->name};
    const kr_tensor value = {
        kv_b->type, m->value_dim, m->kv_lora, up + m->nope_dim * row_bytes, m->value_dim * row_bytes,
        kv_b->name};

    if (p == KR_FORWARD_FILL)
        transpose(up, m->nope_dim, m->kv_lora, (uint32_t)(row_bytes / m->kv_lora), turned);
    const kr_status s = do_tensor(b, p, &key, b->config->weights_f32, &w->k_up[h]);
    return s == KR_OK ? do_tensor(b, p, &value, b->config->weights_f32, &w->v_up[h]) : s;
}

static kr_status do_heads(kr_forward_builder *b, kr_forward_walk p, uint32_t l)
{
    const kr_model *m = b->f->model;
    kr_forward_layer *w = &b->f->layer[l];
    uint8_t *turned = NULL;
    kr_tensor kv_b;

    for (uint32_t h = 0; p == KR_FORWARD_TAKE && h < m->heads; h++) {
        take_matrix(b, &w->k_up[h]);
        take_matrix(b, &w->v_up[h]);
    }
    if (p == KR_FORWARD_TAKE)
        return KR_OK;
    kr_status s = kr_model_file_tensor(b->config->file, KR_ROLE_KV_B, l, &kv_b, b->err);
    if (s == KR_OK && kr_weight_type_of(kv_b.type)->block_elements != 1)
        s = kr_fail(b->err, KR_E_UNSUPPORTED,
                    "tensor %s is of type %s; F32, F16 and BF16 can be split by head", kv_b.name,
                    kr_weight_type_of(kv_b.type)->name);
    if (s == KR_OK && p == KR_FORWARD_FILL)
        turned = kr_alloc(m->nope_dim * kr_weight_row_bytes(kv_b.type, m->kv_lora));
    if (s == KR_OK && p == KR_FORWARD_FILL && turned == NULL)
        s = kr_fail(b->err, KR_E_MEMORY, "no memory to turn a head of %s around", kv_b.name);
    for (uint32_t h = 0; h < m->heads && s == KR_OK; h++)
        s = do_head(b, p, &kv_b, h, turned, w);
    kr_free(turned);
    return s;
}

/* ---- experts ---- */

static kr_status do_experts(kr_forward_builder *b, kr_forward_walk p, uint32_t l)
{
    static const kr_role roles[] = {KR_ROLE_EXPERT_GATE, KR_ROLE_EXPERT_UP, KR_ROLE_EXPERT_DOWN};
    kr_status s = KR_OK;

    for (uint32_t i = 0; i < 3 * b->f->model->moe.experts && s == KR_OK; i++) {
        kr_matrix *m = &b->f->layer[l].expert[i];
        kr_tensor tensor;

        if (p == KR_FORWARD_TAKE) {
            take_matrix(b, m);
            continue;
        }
        s = kr_model_file_expert(b->config->file, roles[i % 3], l, i / 3, &tensor, b->err);
        if (s == KR_OK)
            s = do_tensor(b, p, &tensor, b->config->weights_f32, m);
    }
    return s;
}

/* A vector of n numbers as F32, with 1 added to norms that are stored without it. */
static kr_status do_vector(kr_forward_builder *b, kr_forward_walk p, kr_role role, uint32_t layer, uint32_t n,
                           bool is_norm, float **vector)
{
    kr_tensor tensor;

    if (p == KR_FORWARD_TAKE)
        *vector = kr_forward_take(&b->weights, n * sizeof **vector);
    if (p != KR_FORWARD_FILL)
        return KR_OK;
    const kr_status s = kr_model_file_tensor(b->config->file, role, layer, &tensor, b->err);
    if (s != KR_OK)
        return s;
    KR_CHECK(tensor.rows * tensor.columns == n);
    kr_dequantise(tensor.type, tensor.data, *vector, n);
    for (uint32_t i = 0; is_norm && b->f->model->norm_plus_one && i < n; i++)
        (*vector)[i] += 1.0f;
    return KR_OK;
}

/* The arrays that a layer's matrices by head and by expert lie in; made once, when they are planned. */
static kr_status make_arrays(kr_forward_builder *b, uint32_t l)
{
    const kr_model *m = b->f->model;
    kr_forward_layer *w = &b->f->layer[l];
    const bool mla = m->attention == KR_ATTENTION_MLA, moe = m->layer[l].ffn == KR_FFN_MOE;

    if (mla) {
        w->k_up = kr_alloc(m->heads * sizeof *w->k_up);
        w->v_up = kr_alloc(m->heads * sizeof *w->v_up);
    }
    if (moe)
        w->expert = kr_alloc(3 * m->moe.experts * sizeof *w->expert);
    if ((mla && (w->k_up == NULL || w->v_up == NULL)) || (moe && w->expert == NULL))
        return kr_fail(b->err, KR_E_MEMORY, "no memory for the matrices of layer %u", l);
    return KR_OK;
}

static kr_status do_matrices(kr_forward_builder *b, kr_forward_walk p, uint32_t l)
{
    const kr_model *m = b->f->model;
    kr_forward_layer *w = &b->f->layer[l];
    const bool mla = m->attention == KR_ATTENTION_MLA, moe = m->layer[l].ffn == KR_FFN_MOE;
    const bool index = m->layer[l].indexed && m->layer[l].index_owner == l;
    const bool as_f32 = b->config->weights_f32;
    const struct {
        kr_role role;
        bool present, as_f32;
        kr_matrix *matrix;
    } matrices[] = {
        {KR_ROLE_Q, !mla, as_f32, &w->q},
        {KR_ROLE_K, !mla, as_f32, &w->k},
        {KR_ROLE_V, !mla, as_f32, &w->v},
        {KR_ROLE_Q_A, mla, as_f32, &w->q_a},
        {KR_ROLE_Q_B, mla, as_f32, &w->q_b},
        {KR_ROLE_KV_A, mla, as_f32, &w->kv_a},
        {KR_ROLE_O, true, as_f32, &w->o},
        {KR_ROLE_INDEX_Q, index, as_f32, &w->index_q},
        {KR_ROLE_INDEX_K, index, as_f32, &w->index_k},
        {KR_ROLE_INDEX_W, index && m->indexer == KR_INDEXER_DSA, as_f32, &w->index_w},
        {KR_ROLE_GATE, !moe, as_f32, &w->gate},
        {KR_ROLE_UP, !moe, as_f32, &w->up},
        {KR_ROLE_DOWN, !moe, as_f32, &w->down},
        /* Rounded activations would choose other experts than the reference, which routes in F32. */
        {KR_ROLE_ROUTER, moe, true, &w->router},
        {KR_ROLE_SHARED_GATE, moe && m->moe.shared != 0, as_f32, &w->shared_gate},
        {KR_ROLE_SHARED_UP, moe && m->moe.shared != 0, as_f32, &w->shared_up},
        {KR_ROLE_SHARED_DOWN, moe && m->moe.shared != 0, as_f32, &w->shared_down},
    };
    kr_status s = p == KR_FORWARD_PLAN ? make_arrays(b, l) : KR_OK;

    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0] && s == KR_OK; i++)
        if (matrices[i].present)
            s = do_matrix(b, p, matrices[i].role, l, matrices[i].as_f32, matrices[i].matrix);
    if (s == KR_OK && mla)
        s = do_heads(b, p, l);
    return s == KR_OK && moe ? do_experts(b, p, l) : s;
}

static kr_status do_vectors(kr_forward_builder *b, kr_forward_walk p, uint32_t l)
{
    const kr_model *m = b->f->model;
    kr_forward_layer *w = &b->f->layer[l];
    const bool mla = m->attention == KR_ATTENTION_MLA, moe = m->layer[l].ffn == KR_FFN_MOE;
    const bool index = m->layer[l].indexed && m->layer[l].index_owner == l;
    const bool dsa = m->indexer == KR_INDEXER_DSA;
    const struct {
        kr_role role;
        bool present, is_norm;
        uint32_t n;
        float **vector;
    } vectors[] = {
        {KR_ROLE_ATTN_NORM, true, true, m->hidden, &w->attn_norm},
        {KR_ROLE_FFN_NORM, true, true, m->hidden, &w->ffn_norm},
        {KR_ROLE_POST_ATTN_NORM, m->sandwich_norm, true, m->hidden, &w->post_attn_norm},
        {KR_ROLE_POST_FFN_NORM, m->sandwich_norm, true, m->hidden, &w->post_ffn_norm},
        {KR_ROLE_Q_NORM, m->qk_norm, true, m->head_dim, &w->q_norm},
        {KR_ROLE_K_NORM, m->qk_norm, true, m->head_dim, &w->k_norm},
        {KR_ROLE_Q_BIAS, m->qkv_bias, false, m->heads * m->head_dim, &w->q_bias},
        {KR_ROLE_K_BIAS, m->qkv_bias, false, m->kv_heads * m->head_dim, &w->k_bias},
        {KR_ROLE_V_BIAS, m->qkv_bias, false, m->kv_heads * m->value_dim, &w->v_bias},
        {KR_ROLE_Q_A_NORM, mla, true, m->q_lora, &w->q_a_norm},
        {KR_ROLE_KV_A_NORM, mla, true, m->kv_lora, &w->kv_a_norm},
        {KR_ROLE_INDEX_Q_NORM, index && !dsa, true, m->index_dim, &w->index_q_norm},
        {KR_ROLE_INDEX_K_NORM, index, true, m->index_dim, &w->index_k_norm},
        {KR_ROLE_INDEX_K_BIAS, index && dsa, false, m->index_dim, &w->index_k_bias},
        {KR_ROLE_ROUTER_BIAS, moe, false, m->moe.experts, &w->router_bias},
    };
    kr_status s = KR_OK;

    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0] && s == KR_OK; i++)
        if (vectors[i].present)
            s = do_vector(b, p, vectors[i].role, l, vectors[i].n, vectors[i].is_norm, vectors[i].vector);
    return s;
}

kr_status kr_forward_weights(kr_forward_builder *b, kr_forward_walk p)
{
    kr_forward *f = b->f;
    kr_status s = KR_OK;

    for (uint32_t l = 0; l < f->model->layers && s == KR_OK; l++)
        s = do_matrices(b, p, l);
    for (uint32_t l = 0; l < f->model->layers && s == KR_OK; l++)
        s = do_vectors(b, p, l);
    if (s == KR_OK)
        s = do_matrix(b, p, KR_ROLE_OUTPUT, 0, b->config->weights_f32, &f->output);
    if (s == KR_OK)
        s = do_vector(b, p, KR_ROLE_FINAL_NORM, 0, f->model->hidden, true, &f->final_norm);
    return s;
}

void kr_forward_each_matrix(kr_forward *f, void (*visit)(void *context, kr_matrix *m), void *context)
{
    const kr_model *model = f->model;

    for (uint32_t l = 0; l < model->layers; l++) {
        kr_forward_layer *w = &f->layer[l];
        kr_matrix *all[] = {&w->q,    &w->k,       &w->v,           &w->q_a,       &w->q_b,        &w->kv_a,
                            &w->o,    &w->index_q, &w->index_k,     &w->index_w,   &w->gate,       &w->up,
                            &w->down, &w->router,  &w->shared_gate, &w->shared_up, &w->shared_down};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            if (all[i]->outputs != 0)
                visit(context, all[i]);
        for (uint32_t h = 0; w->k_up != NULL && w->v_up != NULL && h < model->heads; h++) {
            visit(context, &w->k_up[h]);
            visit(context, &w->v_up[h]);
        }
        for (uint32_t i = 0; w->expert != NULL && i < 3 * model->moe.experts; i++)
            visit(context, &w->expert[i]);
    }
    visit(context, &f->output);
}
