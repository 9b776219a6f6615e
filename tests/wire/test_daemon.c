/* karat node as people start it: the built program in a process of its own, reached over its socket.
 * KARAT names the program (default build/karat). */
#include "tests/wire/daemon.h"

#include <sys/stat.h>

#include "wire/payload.h"

static char key_path[] = "/tmp/karat-test-key-XXXXXX";

static kr_link *connect_to(const daemon_process *d, kr_ucx_transport transport, const char *key)
{
    kr_ucx_config config = echo_config(d->port, transport);
    kr_msg_welcome welcome;
    kr_link *link = NULL;
    kr_err err;

    config.key = (const uint8_t *)key;
    config.key_bytes = key != NULL ? strlen(key) : 0;
    if (kr_ucx_connect(&config, &welcome, &link, &err) != KR_OK)
        fail_msg("%s", err.text);
    assert_int_equal(welcome.epoch, d->epoch);
    assert_int_equal(welcome.beat_interval_ms, 500);
    assert_int_equal(welcome.dead_after_ms, 2000);
    return link;
}

static void ask_stats(kr_link *link, const daemon_process *d, uint32_t devices)
{
    kr_msg_header header = echo_header(d->epoch, 5);
    kr_msg_device_stats device[KR_MSG_DEVICES_MAX];
    kr_msg_stats stats;
    kr_message m;
    kr_err err = {0};

    header.kind = KR_MSG_STATS;
    if (link->send(link, header, NULL, 0, in_ms(3000), &err) != KR_OK ||
        link->receive(link, &m, in_ms(3000), &err) != KR_OK)
        fail_msg("%s", err.text);
    assert_int_equal(m.header.kind, KR_MSG_STATS);
    assert_int_equal(m.header.sequence, 5);
    assert_int_equal(kr_msg_stats_read(m.payload, m.header.payload_bytes, &stats, device, &err), KR_OK);
    assert_int_equal(stats.devices, devices);
    link->release(link, &m);
}

static void several_clients_are_served(void **state)
{
    (void)state;
    static const char *const options[] = {"--listen", "127.0.0.1:0", "--devices", "2", NULL};
    daemon_process d = daemon_start(options);
    kr_link *links[4];

    for (int i = 0; i < 4; i++)
        links[i] = connect_to(&d, i % 2 ? KR_UCX_TCP : KR_UCX_AUTO, NULL);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 4; i++)
            ask_stats(links[i], &d, 2);
    for (int i = 0; i < 4; i++)
        links[i]->close(links[i]);
    for (int i = 0; i < 10; i++) {
        kr_link *link = connect_to(&d, KR_UCX_AUTO, NULL);
        ask_stats(link, &d, 2);
        link->close(link);
    }
    kill(d.pid, SIGTERM);
    assert_int_equal(daemon_wait(&d, 1500), 0);
}

static void one_client_too_many_hears_why(void **state)
{
    (void)state;
    enum { MOST = 64 };
    static const char *const options[] = {"--listen", "127.0.0.1:0", "--transport", "tcp", NULL};
    daemon_process d = daemon_start(options);
    kr_link *links[MOST + 1];
    kr_message m;
    kr_err err;

    for (int i = 0; i <= MOST; i++)
        links[i] = connect_to(&d, KR_UCX_TCP, NULL);
    assert_int_equal(links[MOST]->receive(links[MOST], &m, in_ms(3000), &err), KR_OK);
    assert_int_equal(m.header.kind, KR_MSG_ERROR);
    assert_int_equal(kr_msg_error_read(m.payload, m.header.payload_bytes, &err), KR_E_FULL);
    links[MOST]->release(links[MOST], &m);
    assert_int_equal(links[MOST]->receive(links[MOST], &m, in_ms(3000), &err), KR_E_LOST);
    links[MOST]->close(links[MOST]);
    ask_stats(links[0], &d, 1);
    links[0]->close(links[0]); /* its place is free again */
    sleep_ms(500);
    links[0] = connect_to(&d, KR_UCX_TCP, NULL);
    ask_stats(links[0], &d, 1);
    for (int i = 0; i < MOST; i++)
        links[i]->close(links[i]);
    kill(d.pid, SIGTERM);
    assert_int_equal(daemon_wait(&d, 1500), 0);
}

static void a_signal_ends_it_within_a_second(void **state)
{
    (void)state;
    static const char *const options[] = {"--listen", "127.0.0.1:0", NULL};
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};

    for (int clients = 0; clients < 3; clients++) {
        daemon_process d = daemon_start(options);
        kr_link *links[2];
        kr_message m;
        kr_err err;
        for (int i = 0; i < clients; i++)
            links[i] = connect_to(&d, KR_UCX_AUTO, NULL);
        const uint64_t begin = now_ms();
        kill(d.pid, signals[clients]);
        assert_int_equal(daemon_wait(&d, 5000), 0);
        assert_true(now_ms() - begin < 1000);
        for (int i = 0; i < clients; i++) {
            assert_int_equal(links[i]->receive(links[i], &m, in_ms(3000), &err), KR_E_LOST);
            assert_non_null(strstr(err.text, "closed the connection"));
            links[i]->close(links[i]);
        }
    }
}

/* A client that neither reads nor leaves cannot keep the node from ending. */
static void a_stopped_client_does_not_hold_it(void **state)
{
    (void)state;
    static const char *const options[] = {"--listen", "127.0.0.1:0", NULL};
    daemon_process d = daemon_start(options);
    const pid_t client = fork();

    if (client == 0) {
        kr_link *link = connect_to(&d, KR_UCX_AUTO, NULL);
        (void)link;
        kill(getpid(), SIGSTOP);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(client, &status, WUNTRACED), client);
    assert_true(WIFSTOPPED(status));
    kill(d.pid, SIGTERM);
    assert_int_equal(daemon_wait(&d, 1500), 0);
    kill(client, SIGKILL);
    waitpid(client, &status, 0);
}

static void the_key_file_is_the_key(void **state)
{
    (void)state;
    static const char key[] = "0123456789abcdef0123456789abcdef";
    const char *const options[] = {"--listen", "127.0.0.1:0", "--key-file", key_path, NULL};
    kr_msg_welcome welcome;
    kr_link *link = NULL;
    kr_err err;
    const int fd = mkstemp(key_path);
    assert_int_equal(write(fd, key, 32), 32);
    assert_int_equal(write(fd, "\n", 1), 1);
    close(fd);
    daemon_process d = daemon_start(options);

    link = connect_to(&d, KR_UCX_AUTO, key);
    ask_stats(link, &d, 1);
    link->close(link);
    const kr_ucx_config other = echo_config(d.port, KR_UCX_AUTO);
    assert_int_equal(kr_ucx_connect(&other, &welcome, &link, &err), KR_E_AUTH);
    kill(d.pid, SIGTERM);
    assert_int_equal(daemon_wait(&d, 1500), 0);

    char line[400];
    chmod(key_path, 0644);
    d = daemon_fork(options);
    read_line(d.err, line, sizeof line);
    assert_non_null(strstr(line, "chmod 600"));
    assert_int_equal(daemon_wait(&d, 1500), 1);
    unlink(key_path);
}

static void what_cannot_be_is_said_in_one_line(void **state)
{
    (void)state;
    static const char *const first_options[] = {"--listen", "127.0.0.1:0", NULL};
    daemon_process first = daemon_start(first_options);
    char taken[32], line[400];
    const char *const rows[][4] = {
        {"--listen", taken, "1", "cannot listen at 127.0.0.1:"},
        {"--listen", "0.0.0.0:0", "2", "give --key-file"},
        {"--listen", "127.0.0.1", "2", "is not HOST:PORT"},
        {"--listen", "127.0.0.1:70000", "2", "is not HOST:PORT"},
        {"--listen", "[::1:7", "2", "is not HOST:PORT"},
        {"--listen", "no.such.host.invalid:1", "2", "give --key-file"},
        {"--key-file", "/nonexistent", "1", "/nonexistent"},
        {"--save-folder", "/nonexistent", "1", "--save-folder /nonexistent: No such file"},
        {"--save-folder", "/dev/null", "1", "--save-folder /dev/null: not a folder"},
        {"--memory", "100T", "1", "1 device of 102400.0 GiB; this machine has"},
        {"--devices", "0", "2", "devices"},
        {"--transport", "carrier-pigeon", "2", "transport"},
    };

    snprintf(taken, sizeof taken, "127.0.0.1:%u", first.port);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *const options[] = {rows[i][0], rows[i][1], NULL};
        daemon_process d = daemon_fork(options);
        read_line(d.err, line, sizeof line);
        if (strstr(line, rows[i][3]) == NULL)
            fail_msg("%s %s: \"%s\"", rows[i][0], rows[i][1], line);
        assert_int_equal(daemon_wait(&d, 3000), atoi(rows[i][2]));
    }
    kill(first.pid, SIGTERM);
    assert_int_equal(daemon_wait(&first, 1500), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_clients_are_served),
        cmocka_unit_test(one_client_too_many_hears_why),
        cmocka_unit_test(a_signal_ends_it_within_a_second),
        cmocka_unit_test(a_stopped_client_does_not_hold_it),
        cmocka_unit_test(the_key_file_is_the_key),
        cmocka_unit_test(what_cannot_be_is_said_in_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
