/* A selector and a sequence fed like a session of tests/method/session.h: the internal path that the
 * API must not differ from. */
#ifndef TESTS_API_SEQUENCE_H
#define TESTS_API_SEQUENCE_H

#include "karat/selector.h"
#include "tests/method/session.h"

#define assert_karat(call)                                                       \
    do {                                                                         \
        karat_error problem = {0};                                               \
        karat_error *error = &problem;                                           \
        if ((call) != KARAT_OK)                                                  \
            fail_msg("%s: %s", karat_status_name(problem.status), problem.text); \
    } while (0)

static inline karat_selector_options options_of(const char *method, const kr_method_config *config,
                                                const kr_attention_shape *shape, uint64_t tokens)
{
    karat_selector_options o = {
        .struct_size = sizeof o,
        .dtype = (karat_dtype)shape->kv_dtype,
        .method = method,
        .layers = 1,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .key_dim = shape->key_dim,
        .value_dim = shape->value_dim,
        .latent = shape->latent,
        .softmax_scale = shape->softmax_scale,
        .tokens_max = tokens,
        .budget = config->budget,
        .unit = config->unit,
        .mode = config->mode,
        .dense_layers = config->dense_layers,
        .threshold = config->threshold,
        .seed = 7, /* that of session_open */
    };

    memcpy(o.parameter, config->parameter, sizeof o.parameter);
    return o;
}

/* A feed's keys and values in the KV type: [tokens][kv_heads][dim]. */
typedef struct {
    uint8_t *key, *value;
    size_t key_row, value_row; /* bytes of a token */
} kv_arrays;

static inline kv_arrays kv_of(const feed *f, const kr_attention_shape *shape)
{
    const size_t element = kr_dtype_bytes(shape->kv_dtype);
    kv_arrays a = {.key_row = element * shape->kv_heads * shape->key_dim,
                   .value_row = element * shape->kv_heads * shape->value_dim};

    a.key = session_memory(a.key_row * f->tokens, 0);
    a.value = session_memory(a.value_row * f->tokens, 0);
    kr_from_f32(shape->kv_dtype, f->key, a.key, f->tokens * shape->kv_heads * shape->key_dim);
    kr_from_f32(shape->kv_dtype, f->value, a.value, f->tokens * shape->kv_heads * shape->value_dim);
    return a;
}

static inline void kv_free(kv_arrays *a) { free(a->key), free(a->value); }

/* Rows [first, first + n) of a feed. output is the whole run's, or NULL. */
static inline karat_rows rows_of(const feed *f, const kv_arrays *a, const kr_attention_shape *shape,
                                 const karat_selector_plan *plan, uint64_t first, uint64_t n, bool prompt,
                                 float *output)
{
    return (karat_rows){
        .struct_size = sizeof(karat_rows),
        .prompt = prompt,
        .count = n,
        .key = a->key + first * a->key_row,
        .value = shape->latent ? NULL : a->value + first * a->value_row,
        .index_key = f->index_key ? f->index_key + first * plan->index_key_bytes : NULL,
        .query = f->query + first * shape->heads * shape->key_dim,
        .index_query = f->index_query ? f->index_query + first * plan->index_query_bytes : NULL,
        .output = prompt && output ? output + first * shape->heads * shape->value_dim : NULL,
    };
}

#endif
