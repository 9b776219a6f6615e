/* Compute ops of latent attention (DeepSeek's MLA), absorbed: heads' queries are turned into queries over
 * latents here, and the latent outputs that come back into values, so that a memory node holds one latent
 * and one rotated key a token and no weights.
 *
 * A cached row is [latent kv_lora | rotated key rope_dim]; a head's query is [nope_dim | rope_dim]. */
#include <string.h>

#include "base/check.h"
#include "engine/forward_pass.h"

static uint32_t key_dim_of(const kr_model *m) { return m->kv_lora + m->rope_dim; }

static void finish_latents_row(const kr_row_job *job, uint32_t row)
{
    const kr_forward *f = job->f;
    const kr_model *m = f->model;
    const float eps = (float)m->latent_norm_eps;
    float *latent = job->in->latent + (uint64_t)row * m->q_lora;
    float *key = f->product + (uint64_t)row * key_dim_of(m);

    f->ops->rms_norm(latent, job->layer->q_a_norm, eps, latent, m->q_lora);
    f->ops->rms_norm(key, job->layer->kv_a_norm, eps, key, m->kv_lora);
    f->ops->rope(key + m->kv_lora, kr_pass_table(f, job->angles, job->rope_index, row), m->rope_dim,
                 job->rope->layout == KR_ROPE_INTERLEAVED);
    kr_pass_store_kv(f, key, job->in->key, row, key_dim_of(m));
}

static kr_row_job rows_of(kr_forward *f, const kr_rows *rows, uint32_t layer,
                          void (*run)(const kr_row_job *job, uint32_t row))
{
    const uint32_t r = f->model->layer[layer].rope;

    return (kr_row_job){.f = f,
                        .run = run,
                        .rows = rows->rows,
                        .in = rows,
                        .layer = &f->layer[layer],
                        .angles = kr_pass_angles(f, rows),
                        .rope = f->rope[r],
                        .rope_index = r};
}

void kr_forward_qkv_latent(kr_forward *f, const kr_rows *rows, uint32_t layer)
{
    const kr_model *m = f->model;
    const kr_forward_layer *w = &f->layer[layer];
    const kr_inputs in = kr_pass_prepare(f, rows->hidden, NULL, w->attn_norm, rows->rows, m->hidden,
                                         w->q_a.form | w->kv_a.form);
    const kr_product products[] = {{&w->q_a, rows->latent, m->q_lora}, {&w->kv_a, f->product, key_dim_of(m)}};
    kr_row_job job = rows_of(f, rows, layer, finish_latents_row);

    kr_pass_multiply(f, &in, rows->rows, products, 2);
    kr_pass_rows(&job, m->q_lora + key_dim_of(m));
}

static void rotate_queries_row(const kr_row_job *job, uint32_t row)
{
    const kr_forward *f = job->f;
    const kr_model *m = f->model;
    const float *table = kr_pass_table(f, job->angles, job->rope_index, row);
    float *query = job->in->expanded + (uint64_t)row * m->heads * m->head_dim;

    for (uint32_t h = 0; h < m->heads; h++, query += m->head_dim)
        f->ops->rope(query + m->nope_dim, table, m->rope_dim, job->rope->layout == KR_ROPE_INTERLEAVED);
}

void kr_forward_q_up(kr_forward *forward, const kr_rows *rows, uint32_t layer)
{
    const kr_model *m = forward->model;
    const kr_forward_layer *w = &forward->layer[layer];
    kr_row_job job = rows_of(forward, rows, layer, rotate_queries_row);

    kr_pass_check(forward, rows);
    const kr_inputs in = kr_pass_prepare(forward, rows->latent, NULL, NULL, rows->rows, m->q_lora,
                                         w->q_b.form);
    kr_pass_multiply(forward, &in, rows->rows, &(kr_product){&w->q_b, rows->expanded, m->heads * m->head_dim},
                     1);
    kr_pass_rows(&job, m->heads * m->rope_dim);
}

/* ---- one small matrix a head ---- */

typedef struct {
    kr_forward *f;
    const kr_matrix *matrix; /* [heads] */
    const float *in;         /* of a row and head: in + (row * heads + head) * in_stride */
    float *out;              /* likewise */
    uint32_t rows, in_stride, out_stride;
} head_job;

/* A head's inputs lie one row behind the other in its part of headed. */
static void run_head(void *context, uint32_t head, uint32_t worker)
{
    const head_job *job = context;
    kr_forward *f = job->f;
    const kr_matrix *matrix = &job->matrix[head];
    const uint32_t heads = f->model->heads, columns = matrix->columns;
    const uint64_t at = (uint64_t)head * f->rows_max * f->headed_columns;
    float *x = f->headed + at;

    for (uint32_t r = 0; r < job->rows; r++)
        memcpy(x + (uint64_t)r * columns, job->in + ((uint64_t)r * heads + head) * job->in_stride,
               columns * sizeof *x);
    kr_inputs inputs = {.columns = columns, .f32 = x};
    if (matrix->form == KR_FORM_BF16) {
        inputs.bf16 = f->headed_bf16 + at;
        f->ops->to_bf16(x, job->rows * columns, inputs.bf16);
    }
    kr_matrix_multiply(matrix, f->gemm, worker, 0, matrix->units, &inputs, job->rows,
                       job->out + (uint64_t)head * job->out_stride, (uint64_t)heads * job->out_stride);
}

static void copy_rotated_row(const kr_row_job *job, uint32_t row)
{
    const kr_model *m = job->f->model;
    const uint32_t key_dim = key_dim_of(m);

    for (uint32_t h = 0; h < m->heads; h++) {
        const uint64_t head = (uint64_t)row * m->heads + h;
        memcpy(job->in->query + head * key_dim + m->kv_lora,
               job->in->expanded + head * m->head_dim + m->nope_dim, m->rope_dim * sizeof(float));
    }
}

void kr_forward_absorb(kr_forward *forward, const kr_rows *rows, uint32_t layer)
{
    const kr_model *m = forward->model;
    head_job job = {
        forward,      forward->layer[layer].k_up, rows->expanded, rows->query, rows->rows, m->head_dim,
        key_dim_of(m)};
    kr_row_job rotated = rows_of(forward, rows, layer, copy_rotated_row);

    kr_pass_check(forward, rows);
    kr_team_run(forward->team, run_head, &job, m->heads);
    kr_pass_rows(&rotated, m->heads * m->rope_dim);
}

void kr_forward_v_up(kr_forward *forward, const kr_rows *rows, uint32_t layer)
{
    const kr_model *m = forward->model;
    head_job job = {
        forward,     forward->layer[layer].v_up, rows->attended, rows->expanded, rows->rows, m->kv_lora,
        m->value_dim};

    kr_pass_check(forward, rows);
    kr_team_run(forward->team, run_head, &job, m->heads);
}
