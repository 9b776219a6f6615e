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
    uint32_t context;             /* positions the cache holds */
    uint32_t used;                /* positions in it */
    float *key, *value;           /* [layers][context][kv_heads * dim] */
    kr_rows rows;
    uint32_t *token;
    uint64_t *position;
    float *attended;
    double *scores;               /* [context] */
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
    void *all[] = {p->key, p->value, p->token, p->position, p->attended, p->scores,
                   p->rows.hidden, p->rows.query, p->rows.key, p->rows.value};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static inline void plain_attend(plain_model *p, uint32_t layer, uint32_t row, uint32_t head)
{
    const kr_model *m = p->model;
    const uint32_t kd = m->head_dim, vd = m->value_dim, kv = head / (m->heads / m->kv_heads);
    const float *keys = p->key + (size_t)layer * p->context * m->kv_heads * kd + (size_t)kv * kd;
    const float *values = p->value + (size_t)layer * p->context * m->kv_heads * vd + (size_t)kv * vd;
    const float *q = p->rows.query + ((size_t)row * m->heads + head) * kd;
    float *out = p->attended + ((size_t)row * m->heads + head) * vd;
    const uint32_t window = m->layer[layer].window, to = (uint32_t)p->position[row] + 1;
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

/* Reads count tokens after those read before; logits [wanted][vocab] of the last wanted ones.
 * attend = false leaves attention out (its output is the query): for timing the compute part. */
static inline void plain_read(plain_model *p, const uint32_t *tokens, uint32_t count, uint32_t wanted, float *logits,
                              bool attend)
{
    const kr_model *m = p->model;
    const size_t key = (size_t)m->kv_heads * m->head_dim, value = (size_t)m->kv_heads * m->value_dim;
    uint32_t listed[4096];

    if (p->used + count > p->context || wanted > 4096)
        abort();
    p->rows.rows = count;
    for (uint32_t r = 0; r < count; r++) {
        p->token[r] = tokens[r];
        p->position[r] = p->used + r;
    }
    kr_forward_embed(p->forward, &p->rows);
    for (uint32_t l = 0; l < m->layers; l++) {
        kr_forward_qkv(p->forward, &p->rows, l);
        memcpy(p->key + ((size_t)l * p->context + p->used) * key, p->rows.key, count * key * sizeof(float));
        memcpy(p->value + ((size_t)l * p->context + p->used) * value, p->rows.value, count * value * sizeof(float));
        for (uint32_t r = 0; attend && r < count; r++)
            for (uint32_t h = 0; h < m->heads; h++)
                plain_attend(p, l, r, h);
        if (!attend)
            p->rows.attended = p->rows.query;
        kr_forward_o_proj(p->forward, &p->rows, l);
        p->rows.attended = p->attended;
        kr_forward_ffn(p->forward, &p->rows, l);
    }
    for (uint32_t i = 0; i < wanted; i++)
        listed[i] = count - wanted + i;
    kr_forward_head(p->forward, &p->rows, listed, wanted, logits);
    p->used += count;
}

#endif
