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
    uint32_t done;
    taker weights, scratch;
    kr_err *err;
} builder;

/* The same walk over all tensors is made three times or four: to plan the matrices, to count bytes
 * (take without an arena), to take them, and to fill what was taken. */
typedef enum { PLAN, TAKE, FILL } pass;

static kr_status do_matrix(builder *b, pass p, kr_role role, uint32_t layer, kr_matrix *m)
{
    kr_tensor tensor;
    kr_status s;

    if (p == TAKE) {
        m->packed = take(&b->weights, kr_matrix_packed_bytes(m));
        if (kr_matrix_chunk_bytes(m) != 0)
            m->chunk = take(&b->weights, kr_matrix_chunk_bytes(m));
        return KR_OK;
    }
    s = kr_model_file_tensor(b->config->file, role, layer, &tensor, b->err);
    if (s != KR_OK)
        return s;
    if (p == PLAN) {
        s = kr_matrix_plan(m, b->f->gemm, &tensor, b->config->weights_f32, b->err);
        if (s == KR_OK && m->columns > b->f->columns_max)
            b->f->columns_max = m->columns;
        return s;
    }
    s = kr_matrix_pack(m, b->f->gemm, b->f->team, &tensor, b->err);
    b->done++;
    if (s == KR_OK && b->progress != NULL)
        b->progress(b->context, b->done, 7 * b->f->model->layers + 1);
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

static kr_status do_layer(builder *b, pass p, uint32_t l)
{
    const kr_model *m = b->f->model;
    kr_forward_layer *w = &b->f->layer[l];
    const struct {
        kr_role role;
        kr_matrix *matrix;
    } matrices[] = {{KR_ROLE_Q, &w->q},      {KR_ROLE_K, &w->k},       {KR_ROLE_V, &w->v},
                    {KR_ROLE_O, &w->o},      {KR_ROLE_GATE, &w->gate}, {KR_ROLE_UP, &w->up},
                    {KR_ROLE_DOWN, &w->down}};
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
    };
    kr_status s = KR_OK;

    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0] && s == KR_OK; i++)
        s = do_matrix(b, p, matrices[i].role, l, matrices[i].matrix);
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
        s = do_layer(b, p, l);
    if (s == KR_OK)
        s = do_matrix(b, p, KR_ROLE_OUTPUT, 0, &f->output);
    if (s == KR_OK)
        s = do_vector(b, p, KR_ROLE_FINAL_NORM, 0, f->model->hidden, true, &f->final_norm);
    return s;
}

/* Forms any matrix wants its input in. */
static uint32_t forms_of(const kr_forward *f)
{
    uint32_t forms = f->output.form;

    for (uint32_t l = 0; l < f->model->layers; l++) {
        const kr_forward_layer *w = &f->layer[l];
        forms |= w->q.form | w->k.form | w->v.form | w->o.form | w->gate.form | w->up.form | w->down.form;
    }
    return forms;
}

static void take_scratch(builder *b)
{
    kr_forward *f = b->f;
    const kr_model *m = f->model;
    const uint64_t rows = f->rows_max;
    const uint32_t forms = forms_of(f);
    const uint32_t kv = m->kv_heads * (m->head_dim + m->value_dim);
    taker *t = &b->scratch;

    for (uint32_t i = 0; i < 2; i++)
        f->inv_freq[i] = take(t, m->rope[i].dims / 2 * sizeof(float));
    for (uint32_t a = 0; a < KR_FORWARD_ANGLES; a++) {
        f->angles[a].position = take(t, rows * sizeof(uint64_t));
        for (uint32_t i = 0; i < 2; i++)
            f->angles[a].table[i] = take(t, rows * 2 * m->rope[i].dims * sizeof(float));
    }
    f->normed = take(t, rows * f->columns_max * sizeof(float));
    if (forms & KR_FORM_BF16)
        f->bf16 = take(t, rows * f->columns_max * sizeof(uint16_t));
    if (forms & KR_FORM_INT8) {
        f->q = take(t, rows * f->columns_max);
        f->meta = take(t, rows * kr_ceil_div(f->columns_max, KR_QUANT_BLOCK) * sizeof(kr_quant_meta));
    }
    f->product = take(t, rows * (m->hidden > kv ? m->hidden : kv) * sizeof(float));
    f->gate = take(t, rows * m->ffn_width * sizeof(float));
    f->up = take(t, rows * m->ffn_width * sizeof(float));
}

static kr_status fill_frequencies(builder *b)
{
    kr_forward *f = b->f;
    kr_tensor factors;

    for (uint32_t i = 0; i < 2; i++)
        if (f->model->rope[i].dims != 0)
            f->rope_factor[i] = kr_rope_frequencies(&f->model->rope[i], f->inv_freq[i]);
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

static kr_status check_model(const kr_model *m, kr_err *err)
{
    if (m->attention != KR_ATTENTION_GQA)
        return kr_fail(err, KR_E_UNSUPPORTED, "%s: latent attention (MLA) cannot be computed yet", m->name);
    if (m->activation != KR_ACT_SILU && m->activation != KR_ACT_GELU_TANH)
        return kr_fail(err, KR_E_UNSUPPORTED, "%s: its FFN activation cannot be computed yet", m->name);
    for (uint32_t l = 0; l < m->layers; l++)
        if (m->layer[l].ffn != KR_FFN_DENSE)
            return kr_fail(err, KR_E_UNSUPPORTED, "%s: experts (layer %u) cannot be computed yet", m->name,
                           l);
    return KR_OK;
}

/* "Q4_1 Q8_0 avx512 with 8-bit activations, F32 oneDNN 2.6.3": what multiplies which types. */
static void write_path(kr_forward *f)
{
    const char *by[KR_KERNELS];
    bool held[KR_KERNELS][KR_W_TYPES] = {{false}}, expanded = false;
    uint32_t length = 0;

    kr_quant_dot_choose(&by[KR_KERNEL_QUANT]);
    kr_half_dot_choose(&by[KR_KERNEL_HALF]);
    by[KR_KERNEL_GEMM] = kr_gemm_library(f->gemm);
    for (uint32_t l = 0; l < f->model->layers; l++) {
        const kr_forward_layer *w = &f->layer[l];
        const kr_matrix *all[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down, &f->output};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            held[all[i]->kernel][all[i]->type] = true;
            expanded |= all[i]->kernel == KR_KERNEL_GEMM && all[i]->form == KR_FORM_F32 &&
                        all[i]->type != KR_W_F32;
        }
    }
    for (uint32_t k = 0; k < KR_KERNELS; k++) {
        const uint32_t before = length;
        for (uint32_t t = 0; t < KR_W_TYPES; t++)
            if (held[k][t])
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
    kr_status s = check_model(m, b->err);

    KR_CHECK(b->config->rows_max > 0 && kr_team_threads(b->config->team) > 0);
    if (s != KR_OK)
        return s;
    f->model = m;
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
    return sizeof *f + f->model->layers * sizeof *f->layer + kr_gemm_scratch_bytes(f->gemm);
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
    write_path(f);
    *forward = f;
    return KR_OK;
}

void kr_forward_destroy(kr_forward *forward)
{
    if (forward == NULL)
        return;
    for (uint32_t l = 0; forward->layer != NULL && l < forward->model->layers; l++) {
        kr_forward_layer *w = &forward->layer[l];
        kr_matrix *all[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            kr_matrix_drop(all[i]);
    }
    kr_matrix_drop(&forward->output);
    kr_gemm_destroy(forward->gemm);
    kr_arena_free(&forward->arena);
    kr_free(forward->layer);
    kr_free(forward);
}

const char *kr_forward_path(const kr_forward *forward) { return forward->path; }
