/* Makes a kr_forward: first a plan of every matrix, vector and buffer with its size, then one
 * arena of exactly that size, then the packing. kr_forward_bytes stops after the first part, so
 * that what is predicted and what is taken come from the same lines. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "engine/forward_build.h"

static void add_form(void *context, kr_matrix *m) { *(uint32_t *)context |= m->form; }

/* Forms any matrix wants its input in. */
static uint32_t forms_of(kr_forward *f)
{
    uint32_t forms = 0;

    kr_forward_each_matrix(f, add_form, &forms);
    return forms;
}

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

static void take_ropes(kr_forward *f, kr_forward_taker *t)
{
    for (uint32_t i = 0; i < KR_FORWARD_ROPES; i++)
        f->inv_freq[i] = kr_forward_take(t, f->rope[i]->dims / 2 * sizeof(float));
    for (uint32_t a = 0; a < KR_FORWARD_ANGLES; a++) {
        f->angles[a].position = kr_forward_take(t, f->rows_max * sizeof(uint64_t));
        for (uint32_t i = 0; i < KR_FORWARD_ROPES; i++)
            f->angles[a].table[i] = kr_forward_take(t, (uint64_t)f->rows_max * 2 * f->rope[i]->dims *
                                                           sizeof(float));
    }
}

/* What only latent attention, indexers and experts need. */
static void take_special(kr_forward *f, uint32_t forms, kr_forward_taker *t)
{
    const kr_model *m = f->model;
    const uint64_t rows = f->rows_max;
    bool moe = false;

    for (uint32_t l = 0; l < m->layers; l++)
        moe |= m->layer[l].ffn == KR_FFN_MOE;
    if (m->attention == KR_ATTENTION_MLA) {
        f->headed_columns = larger(m->nope_dim, m->kv_lora);
        f->headed = kr_forward_take(t, rows * m->heads * f->headed_columns * sizeof(float));
        if (forms & KR_FORM_BF16)
            f->headed_bf16 = kr_forward_take(t, rows * m->heads * f->headed_columns * sizeof(uint16_t));
    }
    if (m->indexer != KR_INDEXER_NONE)
        f->index = kr_forward_take(t, rows * (m->index_heads * (m->index_dim + 1) + m->index_dim) *
                                          sizeof(float));
    if (moe) {
        f->routed = kr_forward_take(t, rows * m->hidden * sizeof(float));
        f->expert_rows = kr_forward_take(t, rows * m->hidden * sizeof(float));
        f->expert_row = kr_forward_take(t, rows * sizeof(uint32_t));
    }
}

static void take_scratch(kr_forward_builder *b)
{
    kr_forward *f = b->f;
    const kr_model *m = f->model;
    const uint64_t rows = f->rows_max;
    const uint32_t forms = forms_of(f);
    const uint32_t kv = m->kv_heads * (m->head_dim + m->value_dim), latent = m->kv_lora + m->rope_dim;
    const uint32_t product = larger(larger(m->hidden, kv), larger(latent, m->moe.experts));
    const uint32_t ffn = larger(m->ffn_width, larger(m->moe.width, m->moe.shared * m->moe.shared_width));
    kr_forward_taker *t = &b->scratch;

    take_ropes(f, t);
    f->normed = kr_forward_take(t, rows * f->columns_max * sizeof(float));
    if (forms & KR_FORM_BF16)
        f->bf16 = kr_forward_take(t, rows * f->columns_max * sizeof(uint16_t));
    if (forms & KR_FORM_INT8) {
        f->q = kr_forward_take(t, rows * f->columns_max);
        f->meta = kr_forward_take(t,
                                  rows * kr_ceil_div(f->columns_max, KR_QUANT_BLOCK) * sizeof(kr_quant_meta));
    }
    f->product = kr_forward_take(t, rows * product * sizeof(float));
    f->gate = kr_forward_take(t, rows * ffn * sizeof(float));
    f->up = kr_forward_take(t, rows * ffn * sizeof(float));
    take_special(f, forms, t);
}

static kr_status fill_frequencies(kr_forward_builder *b)
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
    kr_forward_each_matrix(f, add_type, &held);
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
static kr_status plan(kr_forward_builder *b)
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
        s = kr_forward_weights(b, KR_FORWARD_PLAN);
    if (s == KR_OK)
        s = kr_forward_weights(b, KR_FORWARD_TAKE); /* no arena yet: counts */
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
    kr_forward_builder b = {.f = kr_alloc(sizeof *b.f), .config = config, .err = err};

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
    kr_forward_builder b = {.f = f, .config = config, .progress = progress, .context = context, .err = err};

    if (f == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for the forward pass");
    kr_status s = plan(&b);
    const uint64_t bytes = b.weights.bytes + b.scratch.bytes;
    if (s == KR_OK)
        s = kr_arena_init(&f->arena, bytes, err);
    if (s == KR_OK) {
        b.weights = b.scratch = (kr_forward_taker){.arena = &f->arena};
        KR_CHECK(kr_forward_weights(&b, KR_FORWARD_TAKE) == KR_OK); /* it has been planned */
        take_scratch(&b);
        KR_CHECK(b.weights.bytes + b.scratch.bytes == bytes);
        s = kr_forward_weights(&b, KR_FORWARD_FILL);
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
        kr_forward_each_matrix(forward, drop, NULL);
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
