/* A whole model around kr_forward for tests, benches and oracles: a cache of F32 keys and values
 * and attention written out in double, in place of a memory node. */
#ifndef KR_TESTS_ENGINE_PLAIN_MODEL_H
#define KR_TESTS_ENGINE_PLAIN_MODEL_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/forward.h"

typedef struct {
    kr_forward *forward;
    const kr_model *model;
    uint32_t context;   /* positions the cache holds */
    uint32_t used;      /* positions in it */
    float *key, *value; /* [layers][context][kv_heads * dim] */
    kr_rows rows;
    uint32_t *token;
    uint64_t *position;
    float *attended;
    double *scores; /* [context] */
} plain_model;

static inline void *plain_take(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (p == NULL)
        abort();
    return p;
}

static inline void plain_init(plain_model *p, kr_forward *forward, const kr_model *m, uint32_t context,
                              uint32_t rows_max)
{
    const size_t key = (size_t)m->kv_heads * m->head_dim, value = (size_t)m->kv_heads * m->value_dim;
    const size_t positions = (size_t)m->layers * context;

    *p = (plain_model){.forward = forward, .model = m, .context = context};
    p->key = plain_take(positions * key * sizeof(float));
    p->value = plain_take(positions * value * sizeof(float));
    p->token = plain_take(rows_max * sizeof *p->token);
    p->position = plain_take(rows_max * sizeof *p->position);
    p->attended = plain_take((size_t)rows_max * m->heads * m->value_dim * sizeof(float));
    p->scores = plain_take(context * sizeof *p->scores);
    p->rows.token = p->token;
    p->rows.position = p->position;
    p->rows.hidden = plain_take((size_t)rows_max * m->hidden * sizeof(float));
    p->rows.query = plain_take((size_t)rows_max * m->heads * m->head_dim * sizeof(float));
    p->rows.key = plain_take(rows_max * key * sizeof(float));
    p->rows.value = plain_take(rows_max * value * sizeof(float));
    p->rows.attended = p->attended;
}

static inline void plain_free(plain_model *p)
{
    void *all[] = {p->key,    p->value,       p->token,      p->position, p->attended,
                   p->scores, p->rows.hidden, p->rows.query, p->rows.key, p->rows.value};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* Attention of one row and head against this model's cache; the row is of batch, which may be
 * another model that shares the forward pass. */
static inline void plain_attend(const plain_model *p, const plain_model *batch, uint32_t layer, uint32_t row,
                                uint32_t head)
{
    const kr_model *m = p->model;
    const uint32_t kd = m->head_dim, vd = m->value_dim, kv = head / (m->heads / m->kv_heads);
    const float *keys = p->key + (size_t)layer * p->context * m->kv_heads * kd + (size_t)kv * kd;
    const float *values = p->value + (size_t)layer * p->context * m->kv_heads * vd + (size_t)kv * vd;
    const float *q = batch->rows.query + ((size_t)row * m->heads + head) * kd;
    float *out = batch->attended + ((size_t)row * m->heads + head) * vd;
    const uint32_t window = m->layer[layer].window, to = (uint32_t)batch->position[row] + 1;
    const uint32_t from = window != 0 && to > window ? to - window : 0;
    double maximum = -INFINITY, sum = 0.0;

    for (uint32_t t = from; t < to; t++) {
        double s = 0.0;
        for (uint32_t c = 0; c < kd; c++)
            s += (double)q[c] * (double)keys[(size_t)t * m->kv_heads * kd + c];
        p->scores[t] = s * m->softmax_scale;
        maximum = fmax(maximum, p->scores[t]);
    }
    for (uint32_t t = from; t < to; t++) {
        p->scores[t] = exp(p->scores[t] - maximum);
        sum += p->scores[t];
    }
    for (uint32_t d = 0; d < vd; d++) {
        double x = 0.0;
        for (uint32_t t = from; t < to; t++)
            x += p->scores[t] * (double)values[(size_t)t * m->kv_heads * vd + d];
        out[d] = (float)(x / sum);
    }
}

/* Puts the next count tokens into the rows. */
static inline void plain_place(plain_model *p, const uint32_t *tokens, uint32_t count)
{
    if (p->used + count > p->context)
        abort();
    p->rows.rows = count;
    for (uint32_t r = 0; r < count; r++) {
        p->token[r] = tokens[r];
        p->position[r] = p->used + r;
    }
}

/* Appends count rows of keys and values, from the batch's row on, at a layer's position. */
static inline void plain_append(plain_model *p, const plain_model *batch, uint32_t row, uint32_t layer,
                                uint32_t count)
{
    const size_t key = (size_t)p->model->kv_heads * p->model->head_dim;
    const size_t value = (size_t)p->model->kv_heads * p->model->value_dim;
    const size_t at = (size_t)layer * p->context + p->used;

    memcpy(p->key + at * key, (const float *)batch->rows.key + row * key, count * key * sizeof(float));
    memcpy(p->value + at * value, (const float *)batch->rows.value + row * value,
           count * value * sizeof(float));
}

/* Reads count tokens after those read before; logits [wanted][vocab] of the last wanted ones.
 * attend = false leaves attention out (its output is the query): for timing the compute part. */
static inline void plain_read(plain_model *p, const uint32_t *tokens, uint32_t count, uint32_t wanted,
                              float *logits, bool attend)
{
    const kr_model *m = p->model;
    uint32_t listed[4096];

    if (wanted > 4096)
        abort();
    plain_place(p, tokens, count);
    kr_forward_embed(p->forward, &p->rows);
    for (uint32_t l = 0; l < m->layers; l++) {
        kr_forward_qkv(p->forward, &p->rows, l);
        plain_append(p, p, 0, l, count);
        for (uint32_t r = 0; attend && r < count; r++)
            for (uint32_t h = 0; h < m->heads; h++)
                plain_attend(p, p, l, r, h);
        p->rows.attended = attend ? p->attended : p->rows.query;
        kr_forward_o_proj(p->forward, &p->rows, l);
        kr_forward_ffn(p->forward, &p->rows, l);
    }
    for (uint32_t i = 0; i < wanted; i++)
        listed[i] = count - wanted + i;
    kr_forward_head(p->forward, &p->rows, listed, wanted, logits);
    p->used += count;
}

/* One decode step of several sessions in one batch: token(session, position, vocab) is read at
 * position by each; logits [sessions][vocab]. */
static inline void plain_step_together(plain_model *batch, plain_model *one, uint32_t sessions,
                                       uint32_t position, uint32_t (*token)(uint32_t, uint32_t, uint32_t),
                                       float *logits)
{
    const kr_model *m = batch->model;
    uint32_t listed[64];

    if (sessions > 64)
        abort();
    batch->rows.rows = sessions;
    for (uint32_t s = 0; s < sessions; s++) {
        batch->token[s] = token(s, position, m->vocab);
        batch->position[s] = position;
        listed[s] = s;
    }
    kr_forward_embed(batch->forward, &batch->rows);
    for (uint32_t l = 0; l < m->layers; l++) {
        kr_forward_qkv(batch->forward, &batch->rows, l);
        for (uint32_t s = 0; s < sessions; s++) {
            plain_append(&one[s], batch, s, l, 1);
            for (uint32_t h = 0; h < m->heads; h++)
                plain_attend(&one[s], batch, l, s, h);
        }
        kr_forward_o_proj(batch->forward, &batch->rows, l);
        kr_forward_ffn(batch->forward, &batch->rows, l);
    }
    kr_forward_head(batch->forward, &batch->rows, listed, sessions, logits);
    for (uint32_t s = 0; s < sessions; s++)
        one[s].used++;
}

#endif
