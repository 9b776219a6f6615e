/* Makes a kr_forward: first a plan of every matrix, vector and buffer with its size, then one
 * arena of exactly that size, then the packing. kr_forward_bytes stops after the first part, so
 * that what is predicted and what is taken come from the same lines. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "engine/forward_state.h"

/* Takes from the arena, or only counts when there is none yet. */
typedef struct {
    kr_arena *arena; /* NULL: count */
    uint64_t bytes;
} taker;

static void *take(taker *t, uint64_t bytes)
{
    t->bytes += kr_align_up(bytes, 64);
    if (t->arena == NULL)
        return NULL;
    void *p = kr_arena_take(t->arena, bytes);
    KR_CHECK(p != NULL); /* the arena was made for these very takes */
    return p;
}

typedef struct {
    kr_forward *f;
    const kr_forward_config *config;
    void (*progress)(void *context, uint32_t done, uint32_t all);
    void *context;
    uint32_t done, matrices;
    taker weights, scratch;
    kr_err *err;
} builder;

/* The same walk over all tensors is made three times or four: to plan the matrices, to count bytes
 * (take without an arena), to take them, and to fill what was taken. */
typedef enum { PLAN, TAKE, FILL } pass;

/* as_f32: held as F32 whatever the tensor's type. */
static kr_status do_tensor(builder *b, pass p, const kr_tensor *tensor, bool as_f32, kr_matrix *m)
{
    kr_status s;

    if (p == PLAN) {
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

static void take_matrix(builder *b, kr_matrix *m)
{
    m->packed = take(&b->weights, kr_matrix_packed_bytes(m));
    if (kr_matrix_chunk_bytes(m) != 0)
        m->chunk = take(&b->weights, kr_matrix_chunk_bytes(m));
    if (b->weights.arena == NULL)
        b->matrices++;
}

static kr_status do_matrix(builder *b, pass p, kr_role role, uint32_t layer, bool as_f32, kr_matrix *m)
{
    kr_tensor tensor;

    if (p == TAKE) {
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
static kr_status do_head(builder *b, pass p, const kr_tensor *kv_b, uint32_t h, uint8_t *turned,
                         kr_forward_layer *w)
{
    const kr_model *m = b->f->model;
    const uint64_t row_bytes = kr_weight_row_bytes(kv_b->type, m->kv_lora);
    const uint8_t *up = kv_b->data + (uint64_t)h * (m->nope_dim + m->value_dim) * row_bytes;
    const kr_tensor key = {kv_b->type, m->kv_lora, m->nope_dim, turned, m->nope_dim * row_bytes, kv_b->name};
    const kr_tensor value = {
        kv_b->type, m->value_dim, m->kv_lora, up + m->nope_dim * row_bytes, m->value_dim * row_bytes,
        kv_b->name};

    if (p == FILL)
        transpose(up, m->nope_dim, m->kv_lora, (uint32_t)(row_bytes / m->kv_lora), turned);
    const kr_status s = do_tensor(b, p, &key, b->config->weights_f32, &w->k_up[h]);
    return s == KR_OK ? do_tensor(b, p, &value, b->config->weights_f32, &w->v_up[h]) : s;
}

static kr_status do_heads(builder *b, pass p, uint32_t l)
{
    const kr_model *m = b->f->model;
    kr_forward_layer *w = &b->f->layer[l];
    uint8_t *turned = NULL;
    kr_tensor kv_b;

    for (uint32_t h = 0; p == TAKE && h < m->heads; h++) {
        take_matrix(b, &w->k_up[h]);
        take_matrix(b, &w->v_up[h]);
    }
    if (p == TAKE)
        return KR_OK;
    kr_status s = kr_model_file_tensor(b->config->file, KR_ROLE_KV_B, l, &kv_b, b->err);
    if (s == KR_OK && kr_weight_type_of(kv_b.type)->block_elements != 1)
        s = kr_fail(b->err, KR_E_UNSUPPORTED,
                    "tensor %s is of type %s; F32, F16 and BF16 can be split by head", kv_b.name,
                    kr_weight_type_of(kv_b.type)->name);
    if (s == KR_OK && p == FILL)
        turned = kr_alloc(m->nope_dim * kr_weight_row_bytes(kv_b.type, m->kv_lora));
    if (s == KR_OK && p == FILL && turned == NULL)
        s = kr_fail(b->err, KR_E_MEMORY, "no memory to turn a head of %s around", kv_b.name);
    for (uint32_t h = 0; h < m->heads && s == KR_OK; h++)
        s = do_head(b, p, &kv_b, h, turned, w);
    kr_free(turned);
    return s;
}

/* ---- experts ---- */

static kr_status do_experts(builder *b, pass p, uint32_t l)
{
    static const kr_role roles[] = {KR_ROLE_EXPERT_GATE, KR_ROLE_EXPERT_UP, KR_ROLE_EXPERT_DOWN};
    kr_status s = KR_OK;

    for (uint32_t i = 0; i < 3 * b->f->model->moe.experts && s == KR_OK; i++) {
        kr_matrix *m = &b->f->layer[l].expert[i];
        kr_tensor tensor;

        if (p == TAKE) {
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
static kr_status do_vector(builder *b, pass p, kr_role role, uint32_t layer, uint32_t n, bool is_norm,
                           float **vector)
{
    kr_tensor tensor;

    if (p == TAKE)
        *vector = take(&b->weights, n * sizeof **vector);
    if (p != FILL)
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
static kr_status make_arrays(builder *b, uint32_t l)
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

static kr_status do_matrices(builder *b, pass p, uint32_t l)
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
    kr_status s = p == PLAN ? make_arrays(b, l) : KR_OK;

    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0] && s == KR_OK; i++)
        if (matrices[i].present)
            s = do_matrix(b, p, matrices[i].role, l, matrices[i].as_f32, matrices[i].matrix);
    if (s == KR_OK && mla)
        s = do_heads(b, p, l);
    return s == KR_OK && moe ? do_experts(b, p, l) : s;
}

static kr_status do_vectors(builder *b, pass p, uint32_t l)
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

static kr_status do_weights(builder *b, pass p)
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

/* Every matrix that was planned, the output matrix last. */
static void each_matrix(kr_forward *f, void (*visit)(void *context, kr_matrix *m), void *context)
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

static void add_form(void *context, kr_matrix *m) { *(uint32_t *)context |= m->form; }

/* Forms any matrix wants its input in. */
static uint32_t forms_of(kr_forward *f)
{
    uint32_t forms = 0;

    each_matrix(f, add_form, &forms);
    return forms;
}

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

static void take_ropes(kr_forward *f, taker *t)
{
    for (uint32_t i = 0; i < KR_FORWARD_ROPES; i++)
        f->inv_freq[i] = take(t, f->rope[i]->dims / 2 * sizeof(float));
    for (uint32_t a = 0; a < KR_FORWARD_ANGLES; a++) {
        f->angles[a].position = take(t, f->rows_max * sizeof(uint64_t));
        for (uint32_t i = 0; i < KR_FORWARD_ROPES; i++)
            f->angles[a].table[i] = take(t, (uint64_t)f->rows_max * 2 * f->rope[i]->dims * sizeof(float));
    }
}

/* What only latent attention, indexers and experts need. */
static void take_special(kr_forward *f, uint32_t forms, taker *t)
{
    const kr_model *m = f->model;
    const uint64_t rows = f->rows_max;
    bool moe = false;

    for (uint32_t l = 0; l < m->layers; l++)
        moe |= m->layer[l].ffn == KR_FFN_MOE;
    if (m->attention == KR_ATTENTION_MLA) {
        f->headed_columns = larger(m->nope_dim, m->kv_lora);
        f->headed = take(t, rows * m->heads * f->headed_columns * sizeof(float));
        if (forms & KR_FORM_BF16)
            f->headed_bf16 = take(t, rows * m->heads * f->headed_columns * sizeof(uint16_t));
    }
    if (m->indexer != KR_INDEXER_NONE)
        f->index = take(t, rows * (m->index_heads * (m->index_dim + 1) + m->index_dim) * sizeof(float));
    if (moe) {
        f->routed = take(t, rows * m->hidden * sizeof(float));
        f->expert_rows = take(t, rows * m->hidden * sizeof(float));
        f->expert_row = take(t, rows * sizeof(uint32_t));
    }
}

static void take_scratch(builder *b)
{
    kr_forward *f = b->f;
    const kr_model *m = f->model;
    const uint64_t rows = f->rows_max;
    const uint32_t forms = forms_of(f);
    const uint32_t kv = m->kv_heads * (m->head_dim + m->value_dim), latent = m->kv_lora + m->rope_dim;
    const uint32_t product = larger(larger(m->hidden, kv), larger(latent, m->moe.experts));
    const uint32_t ffn = larger(m->ffn_width, larger(m->moe.width, m->moe.shared * m->moe.shared_width));
    taker *t = &b->scratch;

    take_ropes(f, t);
    f->normed = take(t, rows * f->columns_max * sizeof(float));
    if (forms & KR_FORM_BF16)
        f->bf16 = take(t, rows * f->columns_max * sizeof(uint16_t));
    if (forms & KR_FORM_INT8) {
        f->q = take(t, rows * f->columns_max);
        f->meta = take(t, rows * kr_ceil_div(f->columns_max, KR_QUANT_BLOCK) * sizeof(kr_quant_meta));
    }
    f->product = take(t, rows * product * sizeof(float));
    f->gate = take(t, rows * ffn * sizeof(float));
    f->up = take(t, rows * ffn * sizeof(float));
    take_special(f, forms, t);
}

static kr_status fill_frequencies(builder *b)
{
    kr_forward *f = b->f;
    kr_tensor factors;

    for (uint32_t i = 0; i < KR_FORWARD_ROPES; i++)
        if (f->rope[i]->dims != 0)
            f->rope_factor[i] = kr_rope_frequencies(f->rope[i], f->inv_freq[i]);
    const kr_status s = kr_model_file_tensor(b->config->file, KR_ROLE_ROPE_FACTORS, 0, &factors, NULL);
    if (s == KR_E_NOT_FOUND)
        return KR_OK;
    if (s != KR_OK)
        return kr_fail(b->err, s, "the tensor of rotary factors cannot be read");
    const uint64_t n = factors.rows * factors.columns;
    if (factors.type != KR_W_F32 || n != f->model->rope[0].dims / 2)
        return kr_fail(b->err, KR_E_FORMAT, "%s: %llu rotary factors of type %s; expected %u of F32",
                       factors.name, (unsigned long long)n, kr_weight_type_of(factors.type)->name,
                       f->model->rope[0].dims / 2);
    for (uint32_t i = 0; i < n; i++) {
        float factor;
        memcpy(&factor, factors.data + i * sizeof factor, sizeof factor);
        f->inv_freq[0][i] /= factor;
    }
    return KR_OK;
}

typedef struct {
    bool by[KR_KERNELS][KR_W_TYPES];
} held_types;

static void add_type(void *context, kr_matrix *m)
{
    held_types *held = context;

    held->by[m->kernel][m->type] = true;
}

/* "Q4_1 Q8_0 avx512 with 8-bit activations, F32 oneDNN 2.6.3": what multiplies which types. */
static void write_path(kr_forward *f, bool expanded)
{
    const char *by[KR_KERNELS];
    held_types held = {0};
    uint32_t length = 0;

    kr_quant_dot_choose(&by[KR_KERNEL_QUANT]);
    kr_half_dot_choose(&by[KR_KERNEL_HALF]);
    by[KR_KERNEL_GEMM] = kr_gemm_library(f->gemm);
    each_matrix(f, add_type, &held);
    for (uint32_t k = 0; k < KR_KERNELS; k++) {
        const uint32_t before = length;
        for (uint32_t t = 0; t < KR_W_TYPES; t++)
            if (held.by[k][t])
                length += (uint32_t)snprintf(f->path + length, sizeof f->path - length, "%s%s",
                                             length == 0        ? ""
                                             : length == before ? ", "
                                                                : " ",
                                             kr_weight_type_of(t)->name);
        if (length != before)
            length += (uint32_t)snprintf(f->path + length, sizeof f->path - length, "%s %s%s",
                                         k == KR_KERNEL_GEMM && expanded ? " as F32" : "", by[k],
                                         k == KR_KERNEL_QUANT ? " with 8-bit activations" : "");
    }
}

/* Plans everything; *f is for kr_forward_destroy whatever the status. */
static kr_status plan(builder *b)
{
    kr_forward *f = b->f;
    const kr_model *m = kr_model_file_model(b->config->file);
    kr_status s;

    KR_CHECK(b->config->rows_max > 0 && kr_team_threads(b->config->team) > 0);
    f->model = m;
    f->rope[0] = &m->rope[0];
    f->rope[1] = &m->rope[1];
    f->rope[KR_FORWARD_INDEX_ROPE] = &m->index_rope;
    f->team = b->config->team;
    f->rows_max = b->config->rows_max;
    f->kv_dtype = b->config->kv_dtype;
    f->ops = kr_row_ops_choose();
    f->layer = kr_alloc(m->layers * sizeof *f->layer);
    if (f->layer == NULL)
        return kr_fail(b->err, KR_E_MEMORY, "no memory for %u layers", m->layers);
    s = kr_gemm_create(&f->gemm, kr_team_threads(f->team), b->err);
    if (s == KR_OK)
        s = kr_model_file_tensor(b->config->file, KR_ROLE_EMBEDDING, 0, &f->embedding, b->err);
    if (s == KR_OK)
        s = do_weights(b, PLAN);
    if (s == KR_OK)
        s = do_weights(b, TAKE); /* no arena yet: counts */
    if (s == KR_OK)
        take_scratch(b);
    return s;
}

/* What is allocated beside the arena. */
static uint64_t other_bytes(const kr_forward *f)
{
    uint64_t arrays = 0;

    for (uint32_t l = 0; l < f->model->layers; l++) {
        arrays += f->layer[l].k_up != NULL ? 2 * f->model->heads * sizeof(kr_matrix) : 0;
        arrays += f->layer[l].expert != NULL ? 3 * f->model->moe.experts * sizeof(kr_matrix) : 0;
    }
    return sizeof *f + f->model->layers * sizeof *f->layer + arrays + kr_gemm_scratch_bytes(f->gemm);
}

kr_status kr_forward_bytes(const kr_forward_config *config, uint64_t *weights, uint64_t *scratch, kr_err *err)
{
    builder b = {.f = kr_alloc(sizeof *b.f), .config = config, .err = err};

    if (b.f == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for the forward pass");
    const kr_status s = plan(&b);
    if (s == KR_OK) {
        *weights = b.weights.bytes;
        *scratch = b.scratch.bytes + other_bytes(b.f);
    }
    kr_forward_destroy(b.f);
    return s;
}

kr_status kr_forward_create(kr_forward **forward, const kr_forward_config *config,
                            void (*progress)(void *context, uint32_t done, uint32_t all), void *context,
                            kr_err *err)
{
    kr_forward *f = kr_alloc(sizeof *f);
    builder b = {.f = f, .config = config, .progress = progress, .context = context, .err = err};

    if (f == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for the forward pass");
    kr_status s = plan(&b);
    const uint64_t bytes = b.weights.bytes + b.scratch.bytes;
    if (s == KR_OK)
        s = kr_arena_init(&f->arena, bytes, err);
    if (s == KR_OK) {
        b.weights = b.scratch = (taker){.arena = &f->arena};
        KR_CHECK(do_weights(&b, TAKE) == KR_OK); /* it has been planned */
        take_scratch(&b);
        KR_CHECK(b.weights.bytes + b.scratch.bytes == bytes);
        s = do_weights(&b, FILL);
    }
    if (s == KR_OK)
        s = fill_frequencies(&b);
    if (s != KR_OK) {
        kr_forward_destroy(f);
        return s;
    }
    write_path(f, config->weights_f32);
    *forward = f;
    return KR_OK;
}

static void drop(void *context, kr_matrix *m)
{
    (void)context;
    kr_matrix_drop(m);
}

void kr_forward_destroy(kr_forward *forward)
{
    if (forward == NULL)
        return;
    if (forward->layer != NULL)
        each_matrix(forward, drop, NULL);
    for (uint32_t l = 0; forward->layer != NULL && l < forward->model->layers; l++) {
        kr_free(forward->layer[l].k_up);
        kr_free(forward->layer[l].v_up);
        kr_free(forward->layer[l].expert);
    }
    kr_gemm_destroy(forward->gemm);
    kr_arena_free(&forward->arena);
    kr_free(forward->layer);
    kr_free(forward);
}

const char *kr_forward_path(const kr_forward *forward) { return forward->path; }
