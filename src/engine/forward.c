/* Runs the compute ops of attention over heads (GQA), the dense FFN, and both ends of the model. Each is a
 * few passes: rows (norm, rounding to the matrices' input form), outputs (matrix units), rows again
 * (bias, q/k norm, rotation, residual). */
#include "engine/forward.h"

#include <string.h>

#include "base/check.h"
#include "engine/forward_pass.h"

static void embed_row(const kr_row_job *job, uint32_t row)
{
    const kr_forward *f = job->f;
    const uint32_t hidden = f->model->hidden, token = job->in->token[row];
    const float scale = (float)f->model->embed_scale;
    float *x = job->in->hidden + (uint64_t)row * hidden;

    KR_CHECK(token < f->embedding.rows);
    kr_dequantise(f->embedding.type,
                  f->embedding.data + token * kr_weight_row_bytes(f->embedding.type, hidden), x, hidden);
    for (uint32_t i = 0; scale != 1.0f && i < hidden; i++)
        x[i] *= scale;
}

void kr_forward_embed(kr_forward *forward, const kr_rows *rows)
{
    kr_row_job job = {.f = forward, .run = embed_row, .rows = rows->rows, .in = rows};

    kr_pass_check(forward, rows);
    kr_pass_rows(&job, forward->model->hidden);
}

/* Bias, norm and rotation of the heads of one row of queries or keys; pre_rope (NULL: nowhere) is where
 * all rows before rotation are kept. */
static void finish_heads(const kr_row_job *job, float *x, uint32_t heads, const float *bias,
                         const float *norm, float *pre_rope, uint32_t row)
{
    const kr_forward *f = job->f;
    const uint32_t dim = f->model->head_dim;
    const float *table = kr_pass_table(f, job->angles, job->rope_index, row);

    if (bias != NULL)
        f->ops->add(x, bias, heads * dim);
    for (uint32_t h = 0; h < heads; h++, x += dim) {
        if (norm != NULL)
            f->ops->rms_norm(x, norm, (float)f->model->norm_eps, x, dim);
        if (pre_rope != NULL)
            memcpy(pre_rope + ((uint64_t)row * heads + h) * dim, x, dim * sizeof *x);
        if (job->rope->dims != 0)
            f->ops->rope(x + job->rope->first, table, job->rope->dims,
                         job->rope->layout == KR_ROPE_INTERLEAVED);
    }
}

static void finish_qkv_row(const kr_row_job *job, uint32_t row)
{
    const kr_forward *f = job->f;
    const kr_model *m = f->model;
    const kr_forward_layer *w = job->layer;
    const uint32_t q_n = m->heads * m->head_dim, k_n = m->kv_heads * m->head_dim,
                   v_n = m->kv_heads * m->value_dim;
    float *key = f->product + (uint64_t)row * (k_n + v_n), *value = key + k_n;

    finish_heads(job, job->in->query + (uint64_t)row * q_n, m->heads, w->q_bias, w->q_norm,
                 job->in->query_pre_rope, row);
    finish_heads(job, key, m->kv_heads, w->k_bias, w->k_norm, job->in->key_pre_rope, row);
    if (w->v_bias != NULL)
        f->ops->add(value, w->v_bias, v_n);
    kr_pass_store_kv(f, key, job->in->key, row, k_n);
    kr_pass_store_kv(f, value, job->in->value, row, v_n);
}

void kr_forward_qkv(kr_forward *forward, const kr_rows *rows, uint32_t layer)
{
    kr_forward *f = forward;
    const kr_model *m = f->model;
    const kr_forward_layer *w = &f->layer[layer];
    const uint32_t q_n = m->heads * m->head_dim, k_n = m->kv_heads * m->head_dim,
                   v_n = m->kv_heads * m->value_dim;

    kr_pass_check(f, rows);
    KR_CHECK(layer < m->layers);
    if (m->attention == KR_ATTENTION_MLA) {
        kr_forward_qkv_latent(f, rows, layer);
        return;
    }
    const kr_inputs in = kr_pass_prepare(f, rows->hidden, NULL, w->attn_norm, rows->rows, m->hidden,
                                         w->q.form | w->k.form | w->v.form);
    const kr_product products[] = {
        {&w->q, rows->query, q_n}, {&w->k, f->product, k_n + v_n}, {&w->v, f->product + k_n, k_n + v_n}};
    kr_pass_multiply(f, &in, rows->rows, products, 3);

    const uint32_t r = m->layer[layer].rope;
    kr_row_job job = {.f = f,
                      .run = finish_qkv_row,
                      .rows = rows->rows,
                      .in = rows,
                      .layer = w,
                      .angles = kr_pass_angles(f, rows),
                      .rope = &m->rope[r],
                      .rope_index = r};
    kr_pass_rows(&job, q_n + k_n + v_n);
}

void kr_forward_o_proj(kr_forward *forward, const kr_rows *rows, uint32_t layer)
{
    const kr_model *m = forward->model;
    const kr_forward_layer *w = &forward->layer[layer];
    const float *values = m->attention == KR_ATTENTION_MLA ? rows->expanded : rows->attended;

    kr_pass_check(forward, rows);
    KR_CHECK(layer < m->layers);
    const kr_inputs in = kr_pass_prepare(forward, values, NULL, NULL, rows->rows, m->heads * m->value_dim,
                                         w->o.form);
    kr_pass_multiply(forward, &in, rows->rows, &(kr_product){&w->o, forward->product, m->hidden}, 1);
    kr_pass_add(forward, rows, w->post_attn_norm);
}

void kr_forward_ffn(kr_forward *forward, const kr_rows *rows, uint32_t layer)
{
    kr_forward *f = forward;
    const kr_forward_layer *w = &f->layer[layer];

    kr_pass_check(f, rows);
    KR_CHECK(layer < f->model->layers);
    const kr_inputs in = kr_pass_prepare(f, rows->hidden, NULL, w->ffn_norm, rows->rows, f->model->hidden,
                                         w->gate.form | w->up.form);
    kr_pass_gated(f, &in, rows->rows, &w->gate, &w->up, &w->down, f->product);
    kr_pass_add(f, rows, w->post_ffn_norm);
}

void kr_forward_head(kr_forward *forward, const kr_rows *rows, const uint32_t *row, uint32_t count,
                     float *logits)
{
    kr_pass_check(forward, rows);
    KR_CHECK(count <= forward->rows_max);
    for (uint32_t i = 0; i < count; i++)
        KR_CHECK(row[i] < rows->rows);
    if (count == 0)
        return;
    const kr_inputs in = kr_pass_prepare(forward, rows->hidden, row, forward->final_norm, count,
                                         forward->model->hidden, forward->output.form);
    kr_product p = {.matrix = &forward->output, .out_stride = forward->output.outputs};

    p.out = logits;
    kr_pass_multiply(forward, &in, count, &p, 1);
}
