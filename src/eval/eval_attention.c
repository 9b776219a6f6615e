/* Dense attention as the formula says it, in token order. */
#include "eval/eval_attention.h"

#include <math.h>

static const uint8_t *row_of(const kr_eval_row_view *v, const uint8_t *const part[2], uint64_t token,
                             uint32_t kv_head, uint32_t dim)
{
    const bool second = token >= v->first;
    const uint64_t row = (token - (second ? v->first : 0)) * v->shape->kv_heads + kv_head;
    return part[second] + row * dim * kr_dtype_bytes(v->shape->kv_dtype);
}

/* weight[t] = exp(logit - largest logit) for the tokens that the layer's window shows; returns their sum. */
static double weigh(const kr_eval_row_view *v, uint32_t head, uint64_t begin, double *weight)
{
    const kr_attention_shape *s = v->shape;
    const uint32_t kv_head = head / (s->heads / s->kv_heads);
    const float *query = v->query + (size_t)head * s->key_dim;
    float key[2 * KR_HEAD_DIM_MAX]; /* a latent and a rotated key */
    double largest = -INFINITY, total = 0;
    for (uint64_t t = begin; t < v->tokens; t++) {
        double dot = 0;
        kr_to_f32(s->kv_dtype, row_of(v, v->key, t, kv_head, s->key_dim), key, s->key_dim);
        for (uint32_t d = 0; d < s->key_dim; d++)
            dot += (double)query[d] * (double)key[d];
        weight[t] = dot * (double)s->softmax_scale;
        largest = fmax(largest, weight[t]);
    }
    for (uint64_t t = begin; t < v->tokens; t++) {
        weight[t] = exp(weight[t] - largest);
        total += weight[t];
    }
    return total;
}

static double output_error(const kr_eval_row_view *v, uint32_t head, uint64_t begin, const double *weight,
                           double total, double *sum)
{
    const kr_attention_shape *s = v->shape;
    const uint32_t kv_head = head / (s->heads / s->kv_heads);
    const float *output = v->output + (size_t)head * s->value_dim;
    float value[KR_HEAD_DIM_MAX];
    double difference = 0, norm = 0;
    for (uint32_t d = 0; d < s->value_dim; d++)
        sum[d] = 0;
    for (uint64_t t = begin; t < v->tokens; t++) {
        kr_to_f32(s->kv_dtype,
                  s->latent ? row_of(v, v->key, t, kv_head, s->key_dim)
                            : row_of(v, v->value, t, kv_head, s->value_dim),
                  value, s->value_dim);
        for (uint32_t d = 0; d < s->value_dim; d++)
            sum[d] += weight[t] * (double)value[d];
    }
    for (uint32_t d = 0; d < s->value_dim; d++) {
        const double dense = sum[d] / total;
        difference += ((double)output[d] - dense) * ((double)output[d] - dense);
        norm += dense * dense;
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

/* Adds in token order, as the total is added, so that a list of everything gives exactly the total. */
static void add_selected(const kr_eval_row_view *v, const uint32_t *unit, uint32_t units, uint64_t begin,
                         const double *weight, double *mass, double *attended)
{
    for (uint32_t u = 0; u < units; u++)
        for (uint64_t i = 0; i < v->unit_tokens; i++) {
            const uint64_t t = (uint64_t)unit[u] * v->unit_tokens + i;
            if (t < begin || t >= v->tokens)
                continue;
            *mass += weight[t];
            *attended += 1;
        }
}

void kr_eval_attention(const kr_eval_row_view *v, double *weight, double *sum, kr_eval_head *head)
{
    const kr_attention_shape *s = v->shape;
    const uint64_t begin = s->window != 0 && v->tokens > s->window ? v->tokens - s->window : 0;
    const uint32_t *unit = v->unit;
    uint32_t next = 0; /* list that unit points behind */
    for (uint32_t h = 0; h < s->heads; h++) {
        const uint32_t list = (uint32_t)((uint64_t)h * v->lists / s->heads);
        const double total = weigh(v, h, begin, weight);
        double mass = 0, attended = 0;
        for (; next < list; next++)
            unit += v->count[next];
        if (v->lists == 0 || v->count[list] == 0)
            mass = total, attended = (double)(v->tokens - begin);
        else
            add_selected(v, unit, v->count[list], begin, weight, &mass, &attended);
        head[h] = (kr_eval_head){mass / total, output_error(v, h, begin, weight, total, sum), attended};
    }
}
