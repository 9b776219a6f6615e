/* A node for tests of links: accepts clients and returns each message's payload as OUTPUT. A STATS
 * message makes it sleep, without touching its link, for the milliseconds in its payload first. */
#ifndef KR_TESTS_WIRE_ECHO_H
#define KR_TESTS_WIRE_ECHO_H

#include "tests/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "wire/ucx.h"

#define ECHO_KEY "a shared key of tests"

enum { ECHO_CLIENTS_MAX = 64, ECHO_BEAT_MS = 100, ECHO_DEAD_MS = 1000 };

typedef struct {
    kr_ucx_config config;
    kr_msg_welcome welcome;
    kr_ucx_listener *listener;
    pthread_t acceptor, servers[ECHO_CLIENTS_MAX];
    _Atomic uint32_t clients; /* served so far */
    _Atomic kr_status last;   /* why the last service ended */
    _Atomic bool stop;
} echo_node;

typedef struct {
    echo_node *node;
    kr_link *link;
} echo_service;

static inline uint64_t in_ms(uint64_t ms) { return kr_deadline_after(&kr_clock_system, ms * 1000000); }
static inline uint64_t now_ms(void) { return kr_now_ns(&kr_clock_system) / 1000000; }
static inline void sleep_ms(uint64_t ms) { usleep((useconds_t)(ms * 1000)); }

static inline kr_ucx_config echo_config(uint16_t port, kr_ucx_transport transport)
{
    return (kr_ucx_config){.host = "127.0.0.1",
                           .port = port,
                           .transport = transport,
                           .key = (const uint8_t *)ECHO_KEY,
                           .key_bytes = sizeof ECHO_KEY - 1,
                           .payload_max = 16 << 20,
                           .timeout_ns = 5000000000u,
                           .spin_us = 20,
                           .clock = &kr_clock_system};
}

static inline void *echo_serve(void *argument)
{
    echo_service *service = argument;
    kr_link *link = service->link;
    kr_message m;
    kr_status status = KR_OK;
    uint64_t ms;

    while (status == KR_OK && !service->node->stop) {
        status = link->receive(link, &m, in_ms(100), NULL);
        if (status == KR_E_DEADLINE || status == KR_E_STALE || status == KR_E_CHECKSUM) {
            status = KR_OK;
            continue;
        }
        if (status != KR_OK)
            break;
        if (m.header.kind == KR_MSG_STATS && m.header.payload_bytes == sizeof ms) {
            memcpy(&ms, m.payload, sizeof ms);
            sleep_ms(ms);
        }
        const kr_piece piece = {m.payload, m.header.payload_bytes};
        m.header.kind = KR_MSG_OUTPUT;
        status = link->send(link, m.header, &piece, 1, in_ms(10000), NULL);
        link->release(link, &m);
    }
    service->node->last = status;
    link->close(link);
    free(service);
    return NULL;
}

static inline void *echo_accept(void *argument)
{
    echo_node *node = argument;
    kr_link *link;

    while (!node->stop) {
        if (kr_ucx_accept(node->listener, &node->welcome, &link, in_ms(50), NULL) != KR_OK)
            continue;
        echo_service *service = malloc(sizeof *service);
        KR_CHECK(service != NULL && node->clients < ECHO_CLIENTS_MAX);
        *service = (echo_service){node, link};
        KR_CHECK(pthread_create(&node->servers[node->clients], NULL, echo_serve, service) == 0);
        node->clients++;
    }
    return NULL;
}

/* port 0: chosen by the system. */
static inline void echo_start_at(echo_node *node, kr_ucx_config config, uint32_t epoch)
{
    kr_err err;

    *node = (echo_node){.config = config,
                        .welcome = {.epoch = epoch,
                                    .devices = 1,
                                    .beat_interval_ms = ECHO_BEAT_MS,
                                    .dead_after_ms = ECHO_DEAD_MS,
                                    .payload_max = KR_MSG_PAYLOAD_MAX}};
    if (kr_ucx_listen(&node->listener, &node->config, &err) != KR_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    KR_CHECK(pthread_create(&node->acceptor, NULL, echo_accept, node) == 0);
}

static inline void echo_start(echo_node *node, kr_ucx_transport transport)
{
    echo_start_at(node, echo_config(0, transport), 77);
}

static inline void echo_stop(echo_node *node)
{
    node->stop = true;
    pthread_join(node->acceptor, NULL);
    for (uint32_t i = 0; i < node->clients; i++)
        pthread_join(node->servers[i], NULL);
    kr_ucx_listener_close(node->listener);
}

static inline kr_link *echo_connect(const echo_node *node, kr_ucx_transport transport)
{
    const kr_ucx_config config = echo_config(kr_ucx_port(node->listener), transport);
    kr_msg_welcome welcome;
    kr_link *link = NULL;
    kr_err err;

    if (kr_ucx_connect(&config, &welcome, &link, &err) != KR_OK)
        fail_msg("%s", err.text);
    assert_int_equal(welcome.epoch, node->welcome.epoch);
    return link;
}

static inline kr_msg_header echo_header(uint32_t epoch, uint64_t sequence)
{
    return (kr_msg_header){.kind = KR_MSG_ATTEND, .epoch = epoch, .sequence = sequence};
}

/* Sends bytes of a pattern and checks that they come back. */
static inline void echo_round_trip(kr_link *link, uint32_t epoch, uint64_t sequence, uint8_t *payload,
                                   uint64_t bytes)
{
    const kr_piece pieces[2] = {{payload, bytes / 3}, {payload + bytes / 3, bytes - bytes / 3}};
    kr_message m;
    kr_err err = {0};

    for (uint64_t i = 0; i < bytes; i++)
        payload[i] = (uint8_t)(sequence * 31 + i * 7 + (i >> 8));
    if (link->send(link, echo_header(epoch, sequence), pieces, 2, in_ms(10000), &err) != KR_OK ||
        link->receive(link, &m, in_ms(10000), &err) != KR_OK)
        fail_msg("%s", err.text);
    assert_int_equal(m.header.sequence, sequence);
    assert_int_equal(m.header.payload_bytes, bytes);
    assert_int_equal((uintptr_t)m.payload % 64, 0);
    assert_memory_equal(m.payload, payload, bytes);
    link->release(link, &m);
}

#endif
