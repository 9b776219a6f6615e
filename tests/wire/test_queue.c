/* The in-process link: order, bounds, deadlines, closing from either side, no allocation after the
 * first round, several senders. Run under SAN=thread too. */
#include "tests/test.h"

#include <pthread.h>

#include "base/arena.h"
#include "base/rng.h"
#include "wire/queue.h"

#define MS ((uint64_t)1000000)

static uint64_t in_ms(uint64_t ms) { return kr_deadline_after(&kr_clock_system, ms * MS); }

static kr_msg_header numbered(uint64_t sequence)
{
    return (kr_msg_header){.kind = KR_MSG_ATTEND, .sequence = sequence};
}

static void open_pair(kr_link **client, kr_link **server, uint32_t depth)
{
    kr_err err;
    assert_int_equal(kr_queue_pair(client, server, depth, &kr_clock_system, &err), KR_OK);
}

static void pieces_arrive_joined_and_aligned(void **state)
{
    (void)state;
    kr_link *client, *server;
    kr_message m;
    const kr_piece pieces[] = {{"hello ", 6}, {NULL, 0}, {"world", 5}};

    open_pair(&client, &server, 4);
    assert_int_equal(client->send(client, numbered(7), pieces, 3, in_ms(1000), NULL), KR_OK);
    assert_int_equal(server->receive(server, &m, in_ms(1000), NULL), KR_OK);
    assert_int_equal(m.header.sequence, 7);
    assert_int_equal(m.header.payload_bytes, 11);
    assert_int_equal((uintptr_t)m.payload % 64, 0);
    assert_memory_equal(m.payload, "hello world", 11);
    assert_int_equal(client->bytes_sent, 11);
    assert_int_equal(server->messages_received, 1);
    server->release(server, &m);
    client->close(client);
    server->close(server);
}

static void deadlines_hold_on_both_sides(void **state)
{
    (void)state;
    kr_link *client, *server;
    kr_message m;

    open_pair(&client, &server, 2);
    assert_int_equal(server->receive(server, &m, 0, NULL), KR_E_DEADLINE);
    const uint64_t begin = kr_now_ns(&kr_clock_system);
    assert_int_equal(server->receive(server, &m, in_ms(30), NULL), KR_E_DEADLINE);
    assert_true(kr_now_ns(&kr_clock_system) - begin >= 30 * MS);
    assert_int_equal(client->send(client, numbered(1), NULL, 0, 0, NULL), KR_OK);
    assert_int_equal(client->send(client, numbered(2), NULL, 0, 0, NULL), KR_OK);
    assert_int_equal(client->send(client, numbered(3), NULL, 0, in_ms(30), NULL), KR_E_DEADLINE);
    for (uint64_t i = 1; i <= 2; i++) { /* the refused one is not there */
        assert_int_equal(server->receive(server, &m, 0, NULL), KR_OK);
        assert_int_equal(m.header.sequence, i);
        server->release(server, &m);
    }
    assert_int_equal(server->receive(server, &m, 0, NULL), KR_E_DEADLINE);
    client->close(client);
    server->close(server);
}

static void over_the_limit_is_refused_before_allocation(void **state)
{
    (void)state;
    kr_link *client, *server;
    const kr_piece huge[] = {{"x", KR_MSG_PAYLOAD_MAX}, {"x", 1}};
    const kr_piece wraps[] = {{"x", SIZE_MAX}, {"x", 2}};
    kr_err err;

    open_pair(&client, &server, 1);
    const uint64_t calls = kr_alloc_calls();
    assert_int_equal(client->send(client, numbered(1), huge, 2, 0, &err), KR_E_LIMIT);
    assert_int_equal(client->send(client, numbered(1), wraps, 2, 0, &err), KR_E_LIMIT);
    assert_int_equal(kr_alloc_calls(), calls);
    client->close(client);
    server->close(server);
}

static void *close_soon(void *link)
{
    nanosleep(&(struct timespec){.tv_nsec = 20 * MS}, NULL);
    ((kr_link *)link)->close(link);
    return NULL;
}

/* Closing one end wakes a receiver on the other, and a sender that waits for room. */
static void close_from_either_side_is_a_loss_on_the_other(void **state)
{
    (void)state;
    for (int side = 0; side < 2; side++) {
        kr_link *ends[2];
        pthread_t closer;
        kr_message m;

        open_pair(&ends[0], &ends[1], 1);
        assert_int_equal(ends[side]->send(ends[side], numbered(5), NULL, 0, 0, NULL), KR_OK);
        assert_int_equal(pthread_create(&closer, NULL, close_soon, ends[side]), 0);
        kr_link *other = ends[1 - side];
        assert_int_equal(other->send(other, numbered(1), NULL, 0, 0, NULL), KR_OK);
        assert_int_equal(other->send(other, numbered(2), NULL, 0, in_ms(5000), NULL), KR_E_LOST);
        assert_int_equal(other->receive(other, &m, in_ms(5000), NULL), KR_OK); /* sent before */
        other->release(other, &m);
        assert_int_equal(other->receive(other, &m, in_ms(5000), NULL), KR_E_LOST);
        pthread_join(closer, NULL);
        other->close(other);
    }
}

/* ---- an echo server and clients ---- */

static void *echo(void *context)
{
    kr_link *link = context;
    kr_message m;

    while (link->receive(link, &m, in_ms(10000), NULL) == KR_OK) {
        const kr_piece piece = {m.payload, m.header.payload_bytes};
        kr_msg_header header = m.header;
        header.kind = KR_MSG_OUTPUT;
        const kr_status status = link->send(link, header, &piece, 1, in_ms(10000), NULL);
        link->release(link, &m);
        if (status != KR_OK)
            break;
    }
    link->close(link);
    return NULL;
}

static uint8_t pattern(uint64_t sequence, uint64_t i) { return (uint8_t)(sequence * 31 + i * 7); }

static void round_trip(kr_link *link, uint64_t sequence, uint8_t *payload, uint64_t bytes)
{
    const kr_piece piece = {payload, bytes};
    kr_message m;

    for (uint64_t i = 0; i < bytes; i++)
        payload[i] = pattern(sequence, i);
    assert_int_equal(link->send(link, numbered(sequence), &piece, 1, in_ms(10000), NULL), KR_OK);
    assert_int_equal(link->receive(link, &m, in_ms(10000), NULL), KR_OK);
    assert_int_equal(m.header.sequence, sequence);
    assert_int_equal(m.header.payload_bytes, bytes);
    assert_memory_equal(m.payload, payload, bytes);
    link->release(link, &m);
}

static void nothing_is_allocated_after_the_first_round(void **state)
{
    (void)state;
    static uint8_t payload[70000];
    static const uint64_t sizes[] = {0, 100, 4096, 70000, 33, 20000};
    kr_link *client, *server;
    pthread_t thread;
    uint64_t calls = 0;

    open_pair(&client, &server, 4);
    assert_int_equal(pthread_create(&thread, NULL, echo, server), 0);
    for (uint64_t i = 0; i < 600; i++) {
        if (i == 12)
            calls = kr_alloc_calls();
        round_trip(client, i, payload, sizes[i % 6]);
    }
    assert_int_equal(kr_alloc_calls(), calls);
    client->close(client);
    pthread_join(thread, NULL);
}

typedef struct {
    kr_link *link;
    uint64_t first;
} sender;

enum { SENDERS = 4, EACH = 500 };

static void *send_many(void *context)
{
    sender *s = context;
    uint8_t payload[128];
    const kr_piece piece = {payload, sizeof payload};

    for (uint64_t i = 0; i < EACH; i++) {
        memset(payload, (int)(s->first + i), sizeof payload);
        if (s->link->send(s->link, numbered(s->first + i), &piece, 1, in_ms(10000), NULL) != KR_OK)
            return s;
    }
    return NULL;
}

/* Device threads answer by themselves: messages of one sender keep their order and none is torn. */
static void several_threads_send_whole_messages(void **state)
{
    (void)state;
    kr_link *client, *server;
    pthread_t threads[SENDERS];
    sender senders[SENDERS];
    uint64_t next[SENDERS] = {0};
    kr_message m;
    void *failed;

    open_pair(&client, &server, 8);
    for (int i = 0; i < SENDERS; i++) {
        senders[i] = (sender){server, (uint64_t)i * EACH};
        assert_int_equal(pthread_create(&threads[i], NULL, send_many, &senders[i]), 0);
    }
    for (int n = 0; n < SENDERS * EACH; n++) {
        assert_int_equal(client->receive(client, &m, in_ms(10000), NULL), KR_OK);
        const uint64_t who = m.header.sequence / EACH;
        assert_int_equal(m.header.sequence % EACH, next[who]++);
        assert_int_equal(m.payload[0], (uint8_t)m.header.sequence);
        assert_int_equal(m.payload[127], (uint8_t)m.header.sequence);
        client->release(client, &m);
    }
    for (int i = 0; i < SENDERS; i++) {
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    client->close(client);
    server->close(server);
}

static void bad_depth_is_refused(void **state)
{
    (void)state;
    kr_link *client = NULL, *server = NULL;
    kr_err err;

    assert_int_equal(kr_queue_pair(&client, &server, 0, &kr_clock_system, &err), KR_E_LIMIT);
    assert_int_equal(kr_queue_pair(&client, &server, UINT32_MAX, &kr_clock_system, &err), KR_E_LIMIT);
    assert_null(client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_arrive_joined_and_aligned),
        cmocka_unit_test(deadlines_hold_on_both_sides),
        cmocka_unit_test(over_the_limit_is_refused_before_allocation),
        cmocka_unit_test(close_from_either_side_is_a_loss_on_the_other),
        cmocka_unit_test(nothing_is_allocated_after_the_first_round),
        cmocka_unit_test(several_threads_send_whole_messages),
        cmocka_unit_test(bad_depth_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
