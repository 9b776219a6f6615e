/* The models' own indexers: from a layer's normed input (and the latent query) to the index rows that a
 * memory node stores and scores with. Layouts are those of method/native_dsa.c and native_msa.c; the order
 * of operations is the references' (DeepSeek-V3.2 inference/model.py; transformers' MiniMaxM3VLIndexer). */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "engine/forward_pass.h"
#include "ops/index_key.h"

static const double key_norm_eps = 1e-6; /* of DSA's LayerNorm, whatever the model's other norms have */

/* A row of f->index: queries of all heads, the key, DSA's head weights. */
static uint32_t queries_of(const kr_model *m) { return m->index_heads * m->index_dim; }
static uint32_t row_of(const kr_model *m) { return queries_of(m) + m->index_dim + m->index_heads; }

static void rotate(const kr_row_job *job, float *x, uint32_t row)
{
    const kr_forward *f = job->f;

    f->ops->rope(x + job->rope->first, kr_pass_table(f, job->angles, job->rope_index, row), job->rope->dims,
                 job->rope->layout == KR_ROPE_INTERLEAVED);
}

/* RoPE, Hadamard rotation and E4M3, whose scale is returned. */
static float encode(const kr_row_job *job, float *x, uint32_t row, uint8_t *code)
{
    const uint32_t dim = job->f->model->index_dim;

    rotate(job, x, row);
    kr_hadamard(x, dim);
    return kr_e4m3_quantise(x, dim, code);
}

/* Query row: codes of all heads, then one F32 weight a head, the query's scale folded in. Key row: codes,
 * then the F32 scale. */
static void finish_dsa_row(const kr_row_job *job, uint32_t row)
{
    const kr_model *m = job->f->model;
    const uint32_t heads = m->index_heads, dim = m->index_dim;
    float *query = job->f->index + (uint64_t)row * row_of(m), *key = query + queries_of(m);
    const float *weight = key + dim;
    uint8_t *query_row = job->in->index_query + (uint64_t)row * heads * (dim + sizeof(float));
    uint8_t *key_row = job->in->index_key + (uint64_t)row * (dim + sizeof(float));
    const float share = (float)(1.0 / sqrt((double)heads) / sqrt((double)dim));

    kr_layer_norm(key, job->layer->index_k_norm, job->layer->index_k_bias, dim, key_norm_eps);
    const float scale = encode(job, key, row, key_row);
    memcpy(key_row + dim, &scale, sizeof scale);
    for (uint32_t h = 0; h < heads; h++) {
        const float w = weight[h] * share * encode(job, query + h * dim, row, query_row + h * dim);
        memcpy(query_row + heads * dim + h * sizeof w, &w, sizeof w);
    }
}

/* BF16 queries [heads][dim] and key [dim]. */
static void finish_block_row(const kr_row_job *job, uint32_t row)
{
    const kr_forward *f = job->f;
    const kr_model *m = f->model;
    const uint32_t dim = m->index_dim;
    float *query = f->index + (uint64_t)row * row_of(m), *key = query + queries_of(m);

    for (uint32_t h = 0; h < m->index_heads; h++) {
        f->ops->rms_norm(query + h * dim, job->layer->index_q_norm, (float)m->norm_eps, query + h * dim, dim);
        rotate(job, query + h * dim, row);
    }
    f->ops->rms_norm(key, job->layer->index_k_norm, (float)m->norm_eps, key, dim);
    rotate(job, key, row);
    kr_from_f32(KR_BF16, query, job->in->index_query + (uint64_t)row * queries_of(m) * 2, queries_of(m));
    kr_from_f32(KR_BF16, key, job->in->index_key + (uint64_t)row * dim * 2, dim);
}

void kr_forward_index(kr_forward *forward, const kr_rows *rows, uint32_t layer)
{
    kr_forward *f = forward;
    const kr_model *m = f->model;
    const kr_forward_layer *w = &f->layer[layer];
    const bool dsa = m->indexer == KR_INDEXER_DSA;
    const uint32_t stride = row_of(m);
    const kr_product query = {&w->index_q, f->index, stride},
                     key = {&w->index_k, f->index + queries_of(m), stride},
                     weights = {&w->index_w, f->index + queries_of(m) + m->index_dim, stride};
    kr_row_job job = {.f = f,
                      .run = dsa ? finish_dsa_row : finish_block_row,
                      .rows = rows->rows,
                      .in = rows,
                      .layer = w,
                      .angles = kr_pass_angles(f, rows),
                      .rope = f->rope[KR_FORWARD_INDEX_ROPE],
                      .rope_index = KR_FORWARD_INDEX_ROPE};

    kr_pass_check(f, rows);
    KR_CHECK(layer < m->layers && m->layer[layer].index_owner == layer);
    kr_inputs in = kr_pass_prepare(f, rows->hidden, NULL, w->attn_norm, rows->rows, m->hidden,
                                   w->index_k.form | (dsa ? w->index_w.form : w->index_q.form));
    const kr_product of_hidden[] = {key, dsa ? weights : query};
    kr_pass_multiply(f, &in, rows->rows, of_hidden, 2);
    if (dsa) {
        in = kr_pass_prepare(f, rows->latent, NULL, NULL, rows->rows, m->q_lora, w->index_q.form);
        kr_pass_multiply(f, &in, rows->rows, &query, 1);
    }
    kr_pass_rows(&job, 16 * stride);
}
