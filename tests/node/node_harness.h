/* A node at the other end of an in-process link, driven by the test, and what an honest client keeps
 * of its sessions: every query, key and value, for a float64 attention of the test's own. */
#ifndef KR_TESTS_NODE_HARNESS_H
#define KR_TESTS_NODE_HARNESS_H

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/num.h"
#include "base/rng.h"
#include "method/method.h"
#include "node/node.h"
#include "wire/payload.h"
#include "wire/queue.h"

enum { H_LAYERS_MAX = 8, H_TOKENS_MAX = 4096 };
#define H_WAIT_NS ((uint64_t)20000000000)

typedef struct {
    kr_node *node;
    kr_link *client, *server;
    bool threaded; /* the node serves on a thread of its own */
    pthread_t thread;
    uint64_t sequence;
    kr_msg_configure configure;
    kr_msg_layer layer[H_LAYERS_MAX];
    kr_err error; /* of the last ERROR reply */
} harness;

typedef struct {
    uint32_t layers, heads, kv_heads, dim, tokens_max, devices, threads, sessions_max;
    uint64_t context_max, pool_bytes;
    kr_dtype type;
    const char *method[H_LAYERS_MAX], *save_folder;
    uint32_t window[H_LAYERS_MAX], budget, mode, unit, dense_layers;
    bool threaded;
} harness_shape;

static inline void *harness_serve(void *context)
{
    harness *h = context;
    kr_err err;

    (void)kr_node_serve(h->node, h->server, &err);
    return NULL;
}

static inline void harness_start(harness *h, const harness_shape *s)
{
    const kr_node_config config = {
        .devices = s->devices ? s->devices : 1,
        .threads_per_device = s->threads ? s->threads : 1,
        .pool_bytes = s->pool_bytes ? s->pool_bytes : 16u << 20,
        .sessions_max = s->sessions_max ? s->sessions_max : 8,
        .clock = &kr_clock_system,
        .epoch = 77,
        .save_folder = s->save_folder,
    };
    bool windows = false;
    kr_err err = {0};

    memset(h, 0, sizeof *h);
    if (kr_node_create(&h->node, &config, &err) != KR_OK)
        fail_msg("create: %s", err.text);
    assert_int_equal(kr_queue_pair(&h->client, &h->server, 64, &kr_clock_system, &err), KR_OK);
    for (uint32_t l = 0; l < s->layers; l++) {
        kr_method_config m = {
            .budget = s->budget, .mode = s->mode, .unit = s->unit, .dense_layers = s->dense_layers};
        snprintf(m.name, sizeof m.name, "%s", s->method[l] ? s->method[l] : "dense");
        h->layer[l].window = s->window[l];
        windows |= s->window[l] != 0;
        h->layer[l].index_owner = l;
        memcpy(h->layer[l].method, &m, sizeof m);
    }
    for (uint32_t l = 0; l < s->layers && windows; l++)
        h->layer[l].group = s->window[l] != 0;
    h->configure = (kr_msg_configure){
        .layers = s->layers,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .key_dim = s->dim,
        .value_dim = s->dim,
        .kv_dtype = s->type,
        .softmax_scale = 1.0f / sqrtf((float)s->dim),
        .context_max = s->context_max,
        .tokens_max = s->tokens_max,
        .groups = windows ? 2 : 1,
        .fingerprint = 5,
    };
    h->threaded = s->threaded;
    if (h->threaded)
        assert_int_equal(pthread_create(&h->thread, NULL, harness_serve, h), 0);
}

static inline void harness_stop(harness *h)
{
    kr_err err;

    if (h->threaded) {
        assert_int_equal(h->client->send(h->client, (kr_msg_header){.kind = KR_MSG_BYE, .epoch = 77}, NULL, 0,
                                         kr_deadline_after(&kr_clock_system, H_WAIT_NS), &err),
                         KR_OK);
        pthread_join(h->thread, NULL);
    }
    h->client->close(h->client);
    h->server->close(h->server);
    kr_node_destroy(h->node);
}

/* Sends without waiting for a reply. */
static inline void harness_send(harness *h, kr_msg_header header, const kr_piece *pieces, uint32_t count)
{
    kr_err err = {0};

    if (header.epoch == 0)
        header.epoch = 77;
    header.sequence = ++h->sequence;
    if (h->client->send(h->client, header, pieces, count, kr_deadline_after(&kr_clock_system, H_WAIT_NS),
                        &err) != KR_OK)
        fail_msg("send: %s", err.text);
}

static inline kr_message harness_receive(harness *h)
{
    kr_message reply;
    kr_err err = {0};

    if (!h->threaded &&
        kr_node_step(h->node, h->server, kr_deadline_after(&kr_clock_system, H_WAIT_NS), &err) != KR_OK)
        fail_msg("step: %s", err.text);
    if (h->client->receive(h->client, &reply, kr_deadline_after(&kr_clock_system, H_WAIT_NS), &err) != KR_OK)
        fail_msg("receive: %s", err.text);
    return reply;
}

/* One exchange; the status of an ERROR reply, or KR_OK and *reply to be released. */
static inline kr_status harness_call(harness *h, kr_msg_header header, const kr_piece *pieces, uint32_t count,
                                     kr_message *reply)
{
    harness_send(h, header, pieces, count);
    *reply = harness_receive(h);
    assert_int_equal(reply->header.sequence, h->sequence);
    if (reply->header.kind != KR_MSG_ERROR)
        return KR_OK;
    const kr_status status = kr_msg_error_read(reply->payload, reply->header.payload_bytes, &h->error);
    h->client->release(h->client, reply);
    return status;
}

/* An exchange whose good reply carries nothing of interest. */
static inline kr_status harness_do(harness *h, kr_msg_header header, const kr_piece *pieces, uint32_t count)
{
    kr_message reply;
    const kr_status status = harness_call(h, header, pieces, count, &reply);

    if (status == KR_OK)
        h->client->release(h->client, &reply);
    return status;
}

static inline kr_status harness_configure(harness *h)
{
    const kr_piece pieces[] = {{&h->configure, sizeof h->configure},
                               {h->layer, h->configure.layers * sizeof h->layer[0]}};
    return harness_do(h, (kr_msg_header){.kind = KR_MSG_CONFIGURE}, pieces, 2);
}

static inline kr_status harness_open(harness *h, uint64_t tokens_max, const kr_hash128 *prefix,
                                     uint32_t pages, kr_msg_opened *opened)
{
    const kr_msg_open open = {.tokens_max = tokens_max, .seed = 1, .prefix_pages = pages};
    const kr_piece pieces[] = {{&open, sizeof open}, {prefix, pages * sizeof *prefix}};
    const uint8_t *blob;
    kr_message reply;
    kr_status status = harness_call(h, (kr_msg_header){.kind = KR_MSG_OPEN}, pieces, 2, &reply);

    if (status != KR_OK)
        return status;
    assert_int_equal(kr_msg_opened_read(reply.payload, reply.header.payload_bytes, opened, &blob, NULL),
                     KR_OK);
    h->client->release(h->client, &reply);
    return KR_OK;
}

static inline kr_status harness_session(harness *h, kr_msg_kind kind, uint64_t session, uint64_t tokens,
                                        const kr_hash128 *prefix, uint32_t pages)
{
    const kr_msg_session body = {.session = session, .tokens = tokens, .prefix_pages = pages};
    const kr_piece pieces[] = {{&body, sizeof body}, {prefix, pages * sizeof *prefix}};
    return harness_do(h, (kr_msg_header){.kind = (uint16_t)kind}, pieces, 2);
}

static inline kr_msg_stats harness_stats(harness *h, kr_msg_device_stats *devices)
{
    kr_msg_stats stats;
    kr_message reply;

    assert_int_equal(harness_call(h, (kr_msg_header){.kind = KR_MSG_STATS}, NULL, 0, &reply), KR_OK);
    assert_int_equal(kr_msg_stats_read(reply.payload, reply.header.payload_bytes, &stats, devices, NULL),
                     KR_OK);
    h->client->release(h->client, &reply);
    return stats;
}

/* ---- a client's memory of one session ---- */

typedef struct {
    kr_msg_opened opened;
    uint64_t tokens;
    float *query, *key, *value; /* [layers][H_TOKENS_MAX][heads or kv_heads][dim], key and value as stored */
} client_session;

static inline void client_init(client_session *c, const harness_shape *s)
{
    const size_t row = (size_t)s->layers * H_TOKENS_MAX * s->dim;

    memset(c, 0, sizeof *c);
    c->query = calloc(row * s->heads, sizeof(float));
    c->key = calloc(row * s->kv_heads, sizeof(float));
    c->value = calloc(row * s->kv_heads, sizeof(float));
    assert_true(c->query && c->key && c->value);
}

static inline void client_free(client_session *c)
{
    free(c->query);
    free(c->key);
    free(c->value);
}

static inline float *client_row(float *array, const harness_shape *s, uint32_t heads, uint32_t layer,
                                uint64_t token)
{
    return array + ((size_t)layer * H_TOKENS_MAX + token) * heads * s->dim;
}

static inline void client_round(kr_dtype type, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t stored;
        kr_from_f32(type, &x[i], &stored, 1);
        kr_to_f32(type, &stored, &x[i], 1);
    }
}

/* Draws everything of token: the same (seed, token) gives the same rows in any session. */
static inline void client_draw(client_session *c, const harness_shape *s, uint64_t seed, uint64_t token)
{
    for (uint32_t l = 0; l < s->layers; l++) {
        kr_rng rng = kr_rng_make(seed, token * H_LAYERS_MAX + l);
        float *q = client_row(c->query, s, s->heads, l, token),
              *k = client_row(c->key, s, s->kv_heads, l, token);
        float *v = client_row(c->value, s, s->kv_heads, l, token);

        for (uint32_t i = 0; i < s->heads * s->dim; i++)
            q[i] = (float)kr_rng_normal(&rng);
        for (uint32_t i = 0; i < s->kv_heads * s->dim; i++) {
            k[i] = (float)kr_rng_normal(&rng);
            v[i] = (float)kr_rng_normal(&rng);
        }
        client_round(s->type, k, (size_t)s->kv_heads * s->dim);
        client_round(s->type, v, (size_t)s->kv_heads * s->dim);
    }
}

/* One ATTEND over rows of sessions: tokens [position, position + count) of each, which were drawn. */
typedef struct {
    client_session *session;
    uint64_t position;
    uint32_t count;
    bool is_prefill;
} client_run;

/* Builds the payload as one piece; free() it. extra: further bytes (a selection) at the end. */
static inline uint8_t *client_payload(const harness_shape *s, const client_run *run, uint32_t runs,
                                      uint32_t layer, uint32_t flags, const void *extra, size_t extra_bytes,
                                      size_t *bytes)
{
    const size_t element = kr_dtype_bytes(s->type), query = 4u * s->heads * s->dim,
                 kv = element * s->kv_heads * s->dim;
    size_t tokens = 0, at;
    uint8_t *p;

    for (uint32_t i = 0; i < runs; i++)
        tokens += run[i].count;
    *bytes = runs * sizeof(kr_msg_row) + kr_align_up(tokens * query, 8) +
             ((flags & KR_MSG_NO_APPEND) ? 0 : 2 * kr_align_up(tokens * kv, 8)) + kr_align_up(extra_bytes, 8);
    p = calloc(1, *bytes + 8);
    assert_non_null(p);
    for (uint32_t i = 0; i < runs; i++) {
        const kr_msg_row row = {.session = run[i].session->opened.session,
                                .position = run[i].position,
                                .tokens = run[i].count,
                                .is_prefill = run[i].is_prefill};
        memcpy(p + i * sizeof row, &row, sizeof row);
    }
    at = runs * sizeof(kr_msg_row);
    for (uint32_t i = 0; i < runs; i++)
        for (uint32_t t = 0; t < run[i].count; t++, at += query)
            memcpy(p + at, client_row(run[i].session->query, s, s->heads, layer, run[i].position + t), query);
    for (int part = 0; part < 2 && (flags & KR_MSG_NO_APPEND) == 0; part++) {
        at = kr_align_up(at, 8);
        for (uint32_t i = 0; i < runs; i++)
            for (uint32_t t = 0; t < run[i].count; t++, at += kv)
                kr_from_f32(s->type,
                            client_row(part ? run[i].session->value : run[i].session->key, s, s->kv_heads,
                                       layer, run[i].position + t),
                            p + at, (size_t)s->kv_heads * s->dim);
    }
    if (extra_bytes != 0)
        memcpy(p + kr_align_up(at, 8), extra, extra_bytes);
    return p;
}

static inline kr_status client_attend(harness *h, const harness_shape *s, const client_run *run,
                                      uint32_t runs, uint32_t layer, uint32_t flags, const void *extra,
                                      size_t extra_bytes, kr_message *reply)
{
    size_t bytes;
    uint8_t *p = client_payload(s, run, runs, layer, flags, extra, extra_bytes, &bytes);
    const kr_piece piece = {p, bytes};
    const kr_msg_header header = {.kind = KR_MSG_ATTEND,
                                  .layer = (uint16_t)layer,
                                  .rows = runs,
                                  .flags = flags,
                                  .device = runs > 0 ? run[0].session->opened.device : 0};
    const kr_status status = harness_call(h, header, &piece, 1, reply);

    free(p);
    return status;
}

/* ---- float64 attention ---- */

/* A list of tokens for one query, or NULL: all of [from, to). */
static inline void oracle_attend(const harness_shape *s, const client_session *c, uint32_t layer,
                                 uint64_t position, uint32_t head, const uint8_t *listed, double *out,
                                 double *bound)
{
    static double p[H_TOKENS_MAX];
    const uint32_t kv = head / (s->heads / s->kv_heads), window = s->window[layer];
    const float *q = client_row(c->query, s, s->heads, layer, position) + head * s->dim;
    const uint64_t from = window != 0 && position + 1 > window ? position + 1 - window : 0;
    const double eps = 0x1p-24, scale = (double)(1.0f / sqrtf((float)s->dim));
    double m = -INFINITY, l = 0, worst = 0, largest = 0;

    for (uint64_t i = from; i <= position; i++) {
        const float *k = client_row(c->key, s, s->kv_heads, layer, i) + kv * s->dim;
        double dot = 0, magnitude = 0;

        for (uint32_t d = 0; d < s->dim; d++) {
            dot += (double)q[d] * (double)k[d];
            magnitude += fabs((double)q[d] * (double)k[d]);
        }
        p[i] = listed == NULL || listed[i] ? dot * scale : -INFINITY;
        m = fmax(m, p[i]);
        worst = fmax(worst, (s->dim + 2) * eps * magnitude * scale);
    }
    memset(out, 0, sizeof *out * s->dim);
    for (uint64_t i = from; i <= position; i++) {
        const float *v = client_row(c->value, s, s->kv_heads, layer, i) + kv * s->dim;

        l += p[i] = exp(p[i] - m);
        for (uint32_t d = 0; d < s->dim; d++) {
            out[d] += p[i] * (double)v[d];
            largest = fmax(largest, fabs((double)v[d]));
        }
    }
    for (uint32_t d = 0; d < s->dim; d++)
        out[d] /= l;
    *bound = 2 * largest * (expm1(2 * worst) + (2.0 * (double)(position + 1 - from) + 16) * eps);
}

/* Compares an OUTPUT reply with the oracle for all rows and heads. */
static inline void check_output(const harness_shape *s, const client_run *run, uint32_t runs, uint32_t layer,
                                const kr_message *reply)
{
    const float *got = (const float *)(const void *)reply->payload;
    double want[1024], bound;

    assert_int_equal(reply->header.kind, KR_MSG_OUTPUT);
    for (uint32_t i = 0; i < runs; i++)
        for (uint32_t t = 0; t < run[i].count; t++)
            for (uint32_t hd = 0; hd < s->heads; hd++, got += s->dim) {
                oracle_attend(s, run[i].session, layer, run[i].position + t, hd, NULL, want, &bound);
                for (uint32_t d = 0; d < s->dim; d++)
                    if (!(fabs((double)got[d] - want[d]) <= bound))
                        fail_msg("layer %u run %u position %llu head %u dim %u: %g, float64 %g, bound %g",
                                 layer, i, (unsigned long long)run[i].position + t, hd, d, (double)got[d],
                                 want[d], bound);
            }
}

#endif
