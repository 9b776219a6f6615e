/* Links over UCX inside one process: both transports carry every size, whole, in order, within
 * limits and deadlines; what closes, breaks or is stale is reported as it should be. */
#include "tests/wire/echo.h"

#include <signal.h>

#include "base/arena.h"

enum { EPOCH = 77, LARGEST = 3 << 20 };

static uint8_t payload[LARGEST];

static const struct {
    kr_ucx_transport transport;
    const char *word;
} transports[] = {{KR_UCX_SHM, "ucx shm 127.0.0.1:"},
                  {KR_UCX_TCP, "ucx tcp 127.0.0.1:"},
                  {KR_UCX_AUTO, "ucx shm 127.0.0.1:"}};

enum { TRANSPORTS = sizeof transports / sizeof transports[0] };

static void every_size_comes_back_whole(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, 1, 63, 64, 65, 4096, 8191, 8192, 8193, 65536, 1000003, LARGEST};

    for (int t = 0; t < TRANSPORTS; t++) {
        echo_node node;
        echo_start(&node, KR_UCX_AUTO);
        kr_link *link = echo_connect(&node, transports[t].transport);
        assert_memory_equal(link->describe(link), transports[t].word, strlen(transports[t].word));
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            echo_round_trip(link, EPOCH, i, payload, sizes[i]);
        assert_int_equal(link->messages_received, sizeof sizes / sizeof sizes[0]);
        assert_int_equal(link->bytes_sent, link->bytes_received);
        link->close(link);
        echo_stop(&node);
    }
}

static void node_and_client_must_allow_one_transport(void **state)
{
    (void)state;
    echo_node node;
    kr_msg_welcome welcome;
    kr_link *link = NULL;
    kr_err err;

    echo_start(&node, KR_UCX_SHM);
    const kr_ucx_config config = echo_config(kr_ucx_port(node.listener), KR_UCX_TCP);
    assert_int_equal(kr_ucx_connect(&config, &welcome, &link, &err), KR_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "client allows tcp and node shm"));
    assert_null(link);
    echo_stop(&node);
}

static void deadlines_and_polls_keep_the_message(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        echo_node node;
        kr_message m;
        uint64_t polls = 0;
        const kr_piece piece = {payload, LARGEST};
        echo_start(&node, transports[t].transport);
        kr_link *link = echo_connect(&node, transports[t].transport);

        assert_int_equal(link->receive(link, &m, 0, NULL), KR_E_DEADLINE);
        const uint64_t begin = now_ms();
        assert_int_equal(link->receive(link, &m, in_ms(50), NULL), KR_E_DEADLINE);
        assert_in_range(now_ms() - begin, 49, 1000);
        /* A large reply crosses many polls, each of which gives up in the middle of it. */
        assert_int_equal(link->send(link, echo_header(EPOCH, 5), &piece, 1, in_ms(5000), NULL), KR_OK);
        const uint64_t end = in_ms(10000);
        kr_status status;
        while ((status = link->receive(link, &m, 0, NULL)) == KR_E_DEADLINE &&
               kr_now_ns(&kr_clock_system) < end)
            polls++;
        assert_int_equal(status, KR_OK);
        assert_true(polls > 1);
        assert_memory_equal(m.payload, payload, LARGEST);
        link->release(link, &m);
        link->close(link);
        echo_stop(&node);
    }
}

static void nothing_is_allocated_after_the_first_rounds(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, 100, 4096, 70000, 33, 20000};
    for (int t = 0; t < 2; t++) {
        echo_node node;
        uint64_t calls = 0;
        echo_start(&node, transports[t].transport);
        kr_link *link = echo_connect(&node, transports[t].transport);
        for (uint64_t i = 0; i < 300; i++) {
            if (i == 18)
                calls = kr_alloc_calls();
            echo_round_trip(link, EPOCH, i, payload, sizes[i % 6]);
        }
        assert_int_equal(kr_alloc_calls(), calls);
        link->close(link);
        echo_stop(&node);
    }
}

static void sending_over_the_limit_is_refused_before_allocation(void **state)
{
    (void)state;
    echo_node node;
    const kr_piece huge = {payload, (16 << 20) + 1};
    kr_err err;
    echo_start(&node, KR_UCX_AUTO);
    kr_link *link = echo_connect(&node, KR_UCX_AUTO);
    const uint64_t calls = kr_alloc_calls();

    assert_int_equal(link->send(link, echo_header(EPOCH, 1), &huge, 1, in_ms(1000), &err), KR_E_LIMIT);
    assert_non_null(strstr(err.text, "16777216"));
    assert_int_equal(kr_alloc_calls(), calls);
    echo_round_trip(link, EPOCH, 2, payload, 100); /* the link is as good as before */
    link->close(link);
    echo_stop(&node);
}

static void another_epoch_is_stale(void **state)
{
    (void)state;
    echo_node node;
    kr_err err;
    echo_start(&node, KR_UCX_AUTO);
    kr_link *link = echo_connect(&node, KR_UCX_AUTO);

    assert_int_equal(link->send(link, echo_header(EPOCH + 1, 1), NULL, 0, in_ms(1000), &err), KR_E_STALE);
    assert_non_null(strstr(err.text, "epoch 78"));
    echo_round_trip(link, EPOCH, 2, payload, 100);
    link->close(link);
    echo_stop(&node);
}

static void a_client_that_closes_is_a_loss_after_its_last_message(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        const kr_piece piece = {payload, 200000};
        kr_message m;
        kr_err err;
        echo_node node;
        echo_start(&node, transports[t].transport);
        kr_link *link = echo_connect(&node, transports[t].transport);
        assert_int_equal(link->send(link, echo_header(EPOCH, 1), &piece, 1, in_ms(1000), &err), KR_OK);
        assert_int_equal(link->receive(link, &m, in_ms(5000), &err), KR_OK);
        link->release(link, &m);
        link->close(link);
        const uint64_t begin = now_ms();
        while (node.last != KR_E_LOST && now_ms() - begin < 5000)
            sleep_ms(1);
        assert_int_equal(node.last, KR_E_LOST);
        assert_true(now_ms() - begin < ECHO_DEAD_MS); /* told, not timed out */
        echo_stop(&node);
    }
}

static void a_node_that_closes_is_named(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        echo_node node;
        kr_message m;
        kr_err err;
        echo_start(&node, transports[t].transport);
        kr_link *link = echo_connect(&node, transports[t].transport);
        echo_round_trip(link, EPOCH, 1, payload, 100);
        echo_stop(&node);
        assert_int_equal(link->receive(link, &m, in_ms(5000), &err), KR_E_LOST);
        assert_non_null(strstr(err.text, "node 127.0.0.1:"));
        assert_non_null(strstr(err.text, "closed the connection"));
        assert_int_equal(link->send(link, echo_header(EPOCH, 2), NULL, 0, in_ms(100), &err), KR_E_LOST);
        link->close(link);
    }
}

typedef struct {
    kr_link *link;
    uint64_t first;
    _Atomic bool failed;
} sender;

enum { SENDERS = 3, EACH = 200 };

static void *send_many(void *context)
{
    sender *s = context;
    uint8_t bytes[6000];
    const kr_piece piece = {bytes, sizeof bytes};

    for (uint64_t i = 0; i < EACH; i++) {
        memset(bytes, (int)(s->first + i), sizeof bytes);
        if (s->link->send(s->link, echo_header(EPOCH, s->first + i), &piece, 1, in_ms(20000), NULL) != KR_OK)
            s->failed = true;
    }
    return NULL;
}

/* Several threads send while another receives on the same link. */
static void several_threads_send_whole_messages(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        echo_node node;
        pthread_t threads[SENDERS];
        sender senders[SENDERS];
        uint64_t next[SENDERS] = {0};
        kr_message m;
        kr_err err;
        echo_start(&node, transports[t].transport);
        kr_link *link = echo_connect(&node, transports[t].transport);

        for (int i = 0; i < SENDERS; i++) {
            senders[i] = (sender){.link = link, .first = (uint64_t)i * EACH};
            assert_int_equal(pthread_create(&threads[i], NULL, send_many, &senders[i]), 0);
        }
        for (int n = 0; n < SENDERS * EACH; n++) {
            if (link->receive(link, &m, in_ms(20000), &err) != KR_OK)
                fail_msg("%s", err.text);
            const uint64_t who = m.header.sequence / EACH;
            assert_int_equal(m.header.sequence % EACH, next[who]++);
            assert_int_equal(m.payload[0], (uint8_t)m.header.sequence);
            assert_int_equal(m.payload[5999], (uint8_t)m.header.sequence);
            link->release(link, &m);
        }
        for (int i = 0; i < SENDERS; i++) {
            pthread_join(threads[i], NULL);
            assert_false(senders[i].failed);
        }
        link->close(link);
        echo_stop(&node);
    }
}

static void clients_are_served_at_once_and_in_turn(void **state)
{
    (void)state;
    echo_node node;
    kr_link *links[6];
    echo_start(&node, KR_UCX_AUTO);

    for (int i = 0; i < 6; i++)
        links[i] = echo_connect(&node, i % 2 ? KR_UCX_TCP : KR_UCX_SHM);
    for (uint64_t round = 0; round < 5; round++)
        for (int i = 0; i < 6; i++)
            echo_round_trip(links[i], EPOCH, round, payload, 10000);
    for (int i = 0; i < 6; i++)
        links[i]->close(links[i]);
    for (int i = 0; i < 10; i++) { /* D-15: ten sessions in a row on one listener */
        kr_link *link = echo_connect(&node, KR_UCX_AUTO);
        echo_round_trip(link, EPOCH, 1, payload, 5000);
        link->close(link);
    }
    echo_stop(&node);
}

/* The receiver's memory is bounded by its own reading: a sender runs into its deadline. */
static void a_peer_that_does_not_read_stops_the_sender(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        echo_node node;
        uint64_t ms = 3000;
        const kr_piece sleep_piece = {&ms, sizeof ms}, piece = {payload, LARGEST};
        kr_msg_header header = echo_header(EPOCH, 0);
        kr_status status = KR_OK;
        int sent = 0;
        kr_err err;
        echo_start(&node, transports[t].transport);
        kr_link *link = echo_connect(&node, transports[t].transport);

        header.kind = KR_MSG_STATS;
        assert_int_equal(link->send(link, header, &sleep_piece, 1, in_ms(1000), NULL), KR_OK);
        const uint64_t begin = now_ms();
        for (; status == KR_OK && sent < 100; sent++)
            status = link->send(link, echo_header(EPOCH, 1), &piece, 1, in_ms(300), &err);
        assert_int_equal(status, KR_E_DEADLINE);
        assert_in_range(sent, 1, 20);
        assert_true(now_ms() - begin < 2500);
        /* Part of a message is out: the link cannot go on, and says so. */
        assert_int_equal(link->send(link, echo_header(EPOCH, 1), NULL, 0, in_ms(300), &err), KR_E_LOST);
        link->close(link);
        echo_stop(&node);
    }
}

/* UCX catches SIGHUP when it is loaded; then a closed terminal would not end karat. */
static void a_closed_terminal_ends_the_process(void **state)
{
    (void)state;
    struct sigaction action;
    echo_node node;

    echo_start(&node, KR_UCX_AUTO);
    kr_link *link = echo_connect(&node, KR_UCX_AUTO);
    link->close(link);
    echo_stop(&node);
    assert_int_equal(sigaction(SIGHUP, NULL, &action), 0);
    assert_true(action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_comes_back_whole),
        cmocka_unit_test(node_and_client_must_allow_one_transport),
        cmocka_unit_test(deadlines_and_polls_keep_the_message),
        cmocka_unit_test(nothing_is_allocated_after_the_first_rounds),
        cmocka_unit_test(sending_over_the_limit_is_refused_before_allocation),
        cmocka_unit_test(another_epoch_is_stale),
        cmocka_unit_test(a_client_that_closes_is_a_loss_after_its_last_message),
        cmocka_unit_test(a_node_that_closes_is_named),
        cmocka_unit_test(several_threads_send_whole_messages),
        cmocka_unit_test(clients_are_served_at_once_and_in_turn),
        cmocka_unit_test(a_peer_that_does_not_read_stops_the_sender),
        cmocka_unit_test(a_closed_terminal_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
