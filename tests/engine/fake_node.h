/* A memory node in a hundred lines, for tests of the engine: one device, dense attention written from
 * the formula in double precision, KV in F32, no pages. It is an independent answer to compare
 * the real node with, and it can be told to misbehave. */
#ifndef KR_TESTS_ENGINE_FAKE_NODE_H
#define KR_TESTS_ENGINE_FAKE_NODE_H

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "engine/engine.h"
#include "tests/test.h"
#include "wire/payload.h"
#include "wire/queue.h"

enum { FAKE_SESSIONS = 16, FAKE_TOKENS = 512, FAKE_EPOCH = 1234 };

typedef enum { FAKE_GOOD, FAKE_SILENT, FAKE_OTHER_EPOCH, FAKE_FULL, FAKE_WRONG_KIND, FAKE_SHORT } fake_fault;

typedef struct {
    kr_link *client, *server;
    kr_msg_configure shape;
    kr_msg_layer layer[KR_MSG_LAYERS_MAX];
    bool open[FAKE_SESSIONS];
    float *key[FAKE_SESSIONS], *value[FAKE_SESSIONS]; /* [layers][FAKE_TOKENS][kv_heads][dim] */
    uint64_t tokens[FAKE_SESSIONS][KR_MSG_LAYERS_MAX];
    _Atomic uint64_t attends;     /* ATTEND messages so far */
    _Atomic uint64_t fault_after; /* the fault shows from this ATTEND on */
    _Atomic fake_fault fault;
    _Atomic uint32_t closes, ends;
    float *output;
    pthread_t thread;
} fake_node;

static void fake_send(fake_node *n, const kr_msg_header *to, kr_msg_kind kind, const void *data, size_t bytes)
{
    const kr_piece piece = {data, bytes};
    kr_msg_header header = {.kind = (uint16_t)kind,
                            .epoch = FAKE_EPOCH,
                            .sequence = to->sequence,
                            .micro_batch = to->micro_batch,
                            .layer = to->layer,
                            .device = to->device,
                            .rows = to->rows,
                            .step = to->step};
    if (n->fault == FAKE_OTHER_EPOCH && n->attends > n->fault_after)
        header.epoch++;
    (void)n->server->send(n->server, header, &piece, 1, kr_deadline_after(&kr_clock_system, 1000000000),
                          NULL);
}

static void fake_configure(fake_node *n, const kr_message *m)
{
    kr_err err;
    if (kr_msg_configure_read(m->payload, m->header.payload_bytes, &n->shape, n->layer, &err) != KR_OK)
        fail_msg("%s", err.text);
    const size_t rows = (size_t)n->shape.layers * FAKE_TOKENS * n->shape.kv_heads;
    for (uint32_t s = 0; s < FAKE_SESSIONS; s++) {
        n->key[s] = calloc(rows * n->shape.key_dim, sizeof(float));
        n->value[s] = calloc(rows * n->shape.value_dim, sizeof(float));
    }
    n->output = calloc((size_t)n->shape.tokens_max * n->shape.heads * n->shape.value_dim, sizeof(float));
    fake_send(n, &m->header, KR_MSG_DONE, NULL, 0);
}

static void fake_open(fake_node *n, const kr_message *m)
{
    kr_msg_opened opened = {0};
    for (uint32_t s = 0; s < FAKE_SESSIONS && opened.session == 0; s++)
        if (!n->open[s]) {
            n->open[s] = true;
            memset(n->tokens[s], 0, sizeof n->tokens[s]);
            opened.session = (1ull << 32) + s + 1;
        }
    fake_send(n, &m->header, KR_MSG_OPEN, &opened, sizeof opened);
}

/* One query head over positions [0, last] of its KV head, or the window's part of them. */
static void fake_head(const fake_node *n, uint32_t s, uint32_t layer, uint32_t head, uint64_t last,
                      const float *query, float *out)
{
    const kr_msg_configure *c = &n->shape;
    const uint32_t kv = head / (c->heads / c->kv_heads), window = n->layer[layer].window;
    const uint64_t first = window != 0 && last + 1 > window ? last + 1 - window : 0;
    double weight[FAKE_TOKENS], total = 0, best = -INFINITY;
    for (uint64_t t = first; t <= last; t++) {
        const float *key = n->key[s] + ((layer * FAKE_TOKENS + t) * c->kv_heads + kv) * c->key_dim;
        double dot = 0;
        for (uint32_t i = 0; i < c->key_dim; i++)
            dot += (double)query[i] * (double)key[i];
        weight[t] = dot * (double)c->softmax_scale;
        best = weight[t] > best ? weight[t] : best;
    }
    for (uint64_t t = first; t <= last; t++)
        total += weight[t] = exp(weight[t] - best);
    for (uint32_t i = 0; i < c->value_dim; i++) {
        double sum = 0;
        for (uint64_t t = first; t <= last; t++)
            sum += weight[t] *
                   (double)n->value[s][((layer * FAKE_TOKENS + t) * c->kv_heads + kv) * c->value_dim + i];
        out[i] = (float)(sum / total);
    }
}

static size_t fake_align(size_t bytes) { return (bytes + 7) & ~(size_t)7; }

static void fake_attend(fake_node *n, const kr_message *m)
{
    const kr_msg_configure *c = &n->shape;
    const uint32_t layer = m->header.layer, query_row = c->heads * c->key_dim,
                   key_row = c->kv_heads * c->key_dim, value_row = c->kv_heads * c->value_dim,
                   out_row = c->heads * c->value_dim;
    kr_msg_row rows[64];
    uint64_t used, all = 0;
    kr_err err;
    if (kr_msg_rows_read(m->payload, m->header.payload_bytes, m->header.rows, c->tokens_max, rows, &used,
                         &err) != KR_OK)
        fail_msg("%s", err.text);
    for (uint32_t r = 0; r < m->header.rows; r++)
        all += rows[r].tokens;
    const float *query = (const float *)(const void *)(m->payload + used);
    const float *key = (const float *)(const void *)((const uint8_t *)query +
                                                     fake_align(all * query_row * 4));
    const float *value = (const float *)(const void *)((const uint8_t *)key + fake_align(all * key_row * 4));
    uint64_t at = 0;
    for (uint32_t r = 0; r < m->header.rows; r++) {
        const uint32_t s = (uint32_t)rows[r].session - 1;
        assert_true(n->open[s]);
        assert_int_equal(rows[r].position, n->tokens[s][layer]);
        for (uint32_t t = 0; t < rows[r].tokens; t++, at++) {
            const uint64_t position = n->tokens[s][layer]++;
            memcpy(n->key[s] + (layer * FAKE_TOKENS + position) * key_row, key + at * key_row, key_row * 4);
            memcpy(n->value[s] + (layer * FAKE_TOKENS + position) * value_row, value + at * value_row,
                   value_row * 4);
            for (uint32_t h = 0; h < c->heads; h++)
                fake_head(n, s, layer, h, position, query + at * query_row + h * c->key_dim,
                          n->output + at * out_row + h * c->value_dim);
        }
    }
    const size_t bytes = all * out_row * sizeof(float);
    const bool fault = n->attends++ >= n->fault_after;
    static const struct {
        int32_t status;
        uint32_t bytes;
        char text[9];
    } full = {KR_E_FULL, 9, {'p', 'o', 'o', 'l', ' ', 'f', 'u', 'l', 'l'}};
    if (fault && n->fault == FAKE_SILENT)
        return;
    if (fault && n->fault == FAKE_FULL)
        fake_send(n, &m->header, KR_MSG_ERROR, &full, 17);
    else
        fake_send(n, &m->header, fault && n->fault == FAKE_WRONG_KIND ? KR_MSG_DONE : KR_MSG_OUTPUT,
                  n->output,
                  fault && n->fault == FAKE_WRONG_KIND ? 0
                  : fault && n->fault == FAKE_SHORT    ? bytes - 4
                                                       : bytes);
}

static void fake_session(fake_node *n, const kr_message *m)
{
    kr_msg_session body;
    const uint8_t *prefix;
    assert_int_equal(kr_msg_session_read(m->payload, m->header.payload_bytes, &body, &prefix, NULL), KR_OK);
    const uint32_t s = (uint32_t)body.session - 1;
    assert_true(n->open[s]);
    if (m->header.kind == KR_MSG_CLOSE) {
        n->open[s] = false;
        n->closes++;
    } else {
        assert_int_equal(body.tokens, n->tokens[s][0]);
        n->ends++;
    }
    fake_send(n, &m->header, KR_MSG_DONE, NULL, 0);
}

/* Handles one message; false: the conversation is over. */
static bool fake_step(fake_node *n, uint64_t deadline_ns)
{
    static const struct {
        kr_msg_stats node;
        kr_msg_device_stats device;
    } nothing = {.node = {.devices = 1}};
    kr_message m;
    if (n->server->receive(n->server, &m, deadline_ns, NULL) != KR_OK)
        return false;
    const bool over = m.header.kind == KR_MSG_BYE;
    switch ((kr_msg_kind)m.header.kind) {
    case KR_MSG_CONFIGURE:
        fake_configure(n, &m);
        break;
    case KR_MSG_OPEN:
        fake_open(n, &m);
        break;
    case KR_MSG_STATS:
        fake_send(n, &m.header, KR_MSG_STATS, &nothing, sizeof nothing);
        break;
    case KR_MSG_ATTEND:
        fake_attend(n, &m);
        break;
    case KR_MSG_END_PREFILL:
    case KR_MSG_CLOSE:
        fake_session(n, &m);
        break;
    case KR_MSG_BYE:
        break;
    default:
        fail_msg("unexpected %s", kr_msg_name((kr_msg_kind)m.header.kind));
    }
    n->server->release(n->server, &m);
    return !over;
}

static void *fake_serve(void *context)
{
    while (fake_step(context, kr_deadline_after(&kr_clock_system, 10000000000)))
        ;
    return NULL;
}

static inline kr_engine_node fake_start(fake_node *n)
{
    *n = (fake_node){.fault_after = UINT64_MAX};
    assert_int_equal(kr_queue_pair(&n->client, &n->server, 64, &kr_clock_system, NULL), KR_OK);
    assert_int_equal(pthread_create(&n->thread, NULL, fake_serve, n), 0);
    return (kr_engine_node){.link = n->client, .welcome = {.epoch = FAKE_EPOCH, .devices = 1}};
}

/* After the engine said BYE. */
static inline void fake_stop(fake_node *n)
{
    pthread_join(n->thread, NULL);
    n->client->close(n->client);
    n->server->close(n->server);
    for (uint32_t s = 0; s < FAKE_SESSIONS; s++) {
        free(n->key[s]);
        free(n->value[s]);
    }
    free(n->output);
}

#endif
