/* For tests of the client API: a client at a `karat node` process, and the same session on a node inside
 * the process, whose bits the client has to give. */
#ifndef KR_TESTS_API_CLIENT_RIG_H
#define KR_TESTS_API_CLIENT_RIG_H

#include "tests/wire/daemon.h"

#include "karat/client.h"
#include "tests/node/node_harness.h"

static inline void api_ok(karat_status status, const karat_error *error)
{
    if (status != KARAT_OK)
        fail_msg("%s: %s", karat_status_name(status), error->text);
}

static inline karat_client *api_connect(const daemon_process *d, uint32_t transports)
{
    const karat_client_options options = {
        .struct_size = sizeof options, .transports = transports, .timeout_ms = 20000};
    karat_client *client = NULL;
    karat_error error;

    api_ok(karat_client_connect("127.0.0.1", d->port, &options, &client, &error), &error);
    return client;
}

/* The harness's shape as the API has it; layer [layers] is the caller's. */
static inline karat_client_model api_model(const harness_shape *s, karat_client_layer *layer)
{
    for (uint32_t l = 0; l < s->layers; l++)
        layer[l] = (karat_client_layer){.method = s->method[l],
                                        .window = s->window[l],
                                        .budget = s->budget,
                                        .mode = s->mode,
                                        .unit = s->unit,
                                        .dense_layers = s->dense_layers};
    return (karat_client_model){.struct_size = sizeof(karat_client_model),
                                .layers = s->layers,
                                .query_heads = s->heads,
                                .kv_heads = s->kv_heads,
                                .key_dim = s->dim,
                                .value_dim = s->dim,
                                .kv_dtype = (karat_dtype)s->type,
                                .context_max = s->context_max,
                                .tokens_max = s->tokens_max,
                                .fingerprint = 5,
                                .layer = layer};
}

static inline void api_configure(karat_client *client, const harness_shape *s)
{
    karat_client_layer layer[H_LAYERS_MAX];
    const karat_client_model model = api_model(s, layer);
    karat_error error;

    api_ok(karat_client_configure(client, &model, &error), &error);
}

/* Outputs of a session: [tokens][layers][heads][dim]. */
static inline float *outputs_at(float *out, const harness_shape *s, uint64_t token, uint32_t layer)
{
    return out + (token * s->layers + layer) * s->heads * s->dim;
}

/* The node inside the process: prompt in chunks, decode token by token; all outputs to out. */
static inline void inside(const harness_shape *s, client_session *c, uint64_t prompt, uint64_t decode,
                          float *out)
{
    const size_t row = (size_t)s->heads * s->dim;
    kr_message reply;
    harness h;

    harness_start(&h, s);
    assert_int_equal(harness_configure(&h), KR_OK);
    assert_int_equal(harness_open(&h, prompt + decode, NULL, 0, &c->opened), KR_OK);
    for (uint64_t t = 0, n; t < prompt + decode; t += n) {
        n = t >= prompt ? 1 : prompt - t < s->tokens_max ? prompt - t : s->tokens_max;
        const client_run r = {c, t, (uint32_t)n, t < prompt};
        if (t == prompt)
            assert_int_equal(harness_session(&h, KR_MSG_END_PREFILL, c->opened.session, t, NULL, 0), KR_OK);
        for (uint32_t l = 0; l < s->layers; l++) {
            if (client_attend(&h, s, &r, 1, l, 0, NULL, 0, &reply) != KR_OK)
                fail_msg("%s", h.error.text);
            for (uint64_t i = 0; i < n; i++)
                memcpy(outputs_at(out, s, t + i, l), reply.payload + 4 * i * row, 4 * row);
            h.client->release(h.client, &reply);
        }
    }
    harness_stop(&h);
}

/* An item over tokens [from, from + count) of c; outputs go to out, which has the layout of outputs_at. */
static inline karat_attend_item api_item(const harness_shape *s, client_session *c, karat_session *session,
                                         uint32_t layer, uint64_t from, uint32_t count, bool prefill,
                                         float *out)
{
    return (karat_attend_item){
        .session = session,
        .tokens = count,
        .prefill = prefill,
        .query = {.data = client_row(c->query, s, s->heads, layer, from)},
        .key = {.data = client_row(c->key, s, s->kv_heads, layer, from)},
        .value = {.data = client_row(c->value, s, s->kv_heads, layer, from)},
        .output = outputs_at(out, s, from, layer),
        .output_token_stride = (uint64_t)s->layers * s->heads * s->dim,
    };
}

static inline void drawn(client_session *c, const harness_shape *s, uint64_t seed, uint64_t tokens)
{
    client_init(c, s);
    for (uint64_t t = 0; t < tokens; t++)
        client_draw(c, s, seed, t);
}

#endif
