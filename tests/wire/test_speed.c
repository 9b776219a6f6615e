/* Round trips of the three kinds of link, printed: a message of each size to an echo on another
 * thread and back, checksums included. What is asserted holds on a busy machine too: no link waits
 * out a timer, as it would after a lost wake-up. */
#include "tests/wire/echo.h"

#include "wire/queue.h"

enum { EPOCH = 77, ROUNDS = 1000, WARM = 20 };

static uint8_t payload[1 << 20];
static double took_us[ROUNDS];

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median_us(kr_link *link, const char *kind, uint64_t bytes, uint64_t pause_us)
{
    const kr_piece piece = {payload, bytes};
    kr_message m;
    kr_err err = {0};
    const bool slow = getenv("KARAT_TEST_SANITIZED") != NULL;
    const int rounds = (pause_us != 0 || bytes > 100000 ? ROUNDS / 5 : ROUNDS) / (slow ? 20 : 1);

    for (int i = -WARM; i < rounds; i++) {
        if (pause_us != 0 && i >= 0)
            usleep((useconds_t)pause_us);
        const uint64_t begin = kr_now_ns(&kr_clock_system);
        if (link->send(link, echo_header(EPOCH, (uint64_t)(i + WARM)), &piece, 1, in_ms(5000), &err) !=
                KR_OK ||
            link->receive(link, &m, in_ms(5000), &err) != KR_OK)
            fail_msg("%s", err.text);
        link->release(link, &m);
        if (i >= 0)
            took_us[i] = (double)(kr_now_ns(&kr_clock_system) - begin) / 1000;
    }
    qsort(took_us, (size_t)rounds, sizeof took_us[0], by_value);
    print_message("%-9s %7llu bytes%s: median %7.1f us, 99%% %7.1f us\n", kind, (unsigned long long)bytes,
                  pause_us != 0 ? ", peer asleep" : "             ", took_us[rounds / 2],
                  took_us[rounds * 99 / 100]);
    return took_us[rounds / 2];
}

static const uint64_t sizes[] = {0, 4096, 65536, 1 << 20};

enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* The last entry: 4,096 bytes to a peer that has gone to sleep. */
static void measure(kr_link *link, const char *kind, double out_us[SIZES + 1])
{
    for (int i = 0; i < SIZES; i++)
        out_us[i] = median_us(link, kind, sizes[i], 0);
    out_us[SIZES] = median_us(link, kind, 4096, 500);
    for (int i = 0; i <= SIZES; i++)
        assert_true(out_us[i] < 100000);
}

static void round_trips(void **state)
{
    (void)state;
    double queue_us[SIZES + 1], shm_us[SIZES + 1], tcp_us[SIZES + 1];
    echo_node node;
    pthread_t thread;
    kr_link *client, *server;
    kr_err err;
    echo_service *service = malloc(sizeof *service);

    echo_start(&node, KR_UCX_AUTO);
    assert_int_equal(kr_queue_pair(&client, &server, 8, &kr_clock_system, &err), KR_OK);
    *service = (echo_service){&node, server};
    assert_int_equal(pthread_create(&thread, NULL, echo_serve, service), 0);
    measure(client, "embedded", queue_us);
    client->close(client);
    pthread_join(thread, NULL);

    kr_link *shm = echo_connect(&node, KR_UCX_SHM);
    measure(shm, "ucx shm", shm_us);
    shm->close(shm);
    kr_link *tcp = echo_connect(&node, KR_UCX_TCP);
    measure(tcp, "ucx tcp", tcp_us);
    tcp->close(tcp);
    echo_stop(&node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(round_trips)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
