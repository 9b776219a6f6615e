/* Strangers at the control socket, liars behind the handshake, and nodes that are none: each attempt
 * is bounded and refused with the right status, and those who are served notice nothing
 * (D-03, D-12, R-01, R-04, R-07). */
#include "tests/wire/echo.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "wire/path.h"

enum { EPOCH = 77 };

static uint8_t payload[70000];

/* ---- raw sockets ---- */

static int dial(uint16_t port)
{
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval limit = {.tv_sec = 8};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* Milliseconds until the node closes the socket; what it says before is dropped. */
static uint64_t closed_after(int fd)
{
    const uint64_t begin = now_ms();
    uint8_t rest[512];
    ssize_t n;

    while ((n = recv(fd, rest, sizeof rest, 0)) > 0) {
    }
    assert_true(n == 0 || errno == ECONNRESET);
    close(fd);
    return now_ms() - begin;
}

static kr_msg_hello a_hello(uint16_t version_min, uint16_t version_max)
{
    return (kr_msg_hello){.version_min = version_min, .version_max = version_max, .build = "test"};
}

/* Frames a message by hand, so that any field can be wrong. */
static size_t frame(uint8_t *out, kr_msg_kind kind, const void *body, size_t bytes)
{
    kr_msg_header header = {.kind = (uint16_t)kind};

    if (bytes != 0)
        memcpy(out + KR_MSG_HEADER_BYTES, body, bytes);
    kr_msg_seal(&header, out + KR_MSG_HEADER_BYTES, bytes, out);
    return KR_MSG_HEADER_BYTES + bytes;
}

static void say(uint16_t port, const void *bytes, size_t count)
{
    const int fd = dial(port);

    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), count);
    assert_true(closed_after(fd) < 2000);
}

static void garbage_is_refused_and_the_served_notice_nothing(void **state)
{
    (void)state;
    static const char get[] =
        "GET / HTTP/1.1\r\nHost: karat\r\nAccept: text/html\r\nContent-Length: 99999999999\r\n\r\n";
    static const uint64_t lengths[] = {KR_CONTROL_PAYLOAD_MAX + 1, (uint64_t)1 << 30, ((uint64_t)1 << 30) + 1,
                                       UINT64_MAX};
    kr_rng rng = test_rng("garbage");
    const kr_msg_hello hello = a_hello(1, 1);
    uint8_t bytes[1024];
    echo_node node;
    echo_start(&node, KR_UCX_AUTO);
    const uint16_t port = kr_ucx_port(node.listener);
    kr_link *served = echo_connect(&node, KR_UCX_AUTO);

    say(port, get, sizeof get);
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)kr_rng_next(&rng);
        say(port, bytes, sizeof bytes);
        echo_round_trip(served, EPOCH, (uint64_t)round, payload, 3000);
    }
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        (void)frame(bytes, KR_MSG_HELLO, &hello, sizeof hello);
        memcpy(bytes + 40, &lengths[i], 8);
        say(port, bytes, KR_MSG_HEADER_BYTES + sizeof hello);
    }
    for (uint16_t kind = KR_MSG_HELLO + 1; kind < KR_MSG_KIND_END; kind++) /* well-formed, but not HELLO */
        say(port, bytes, frame(bytes, (kr_msg_kind)kind, NULL, 0));
    for (uint32_t kind = 0; kind <= 0xffff; kind += 0x3333) { /* none of these is a kind */
        (void)frame(bytes, KR_MSG_BYE, NULL, 0);
        memcpy(bytes + 6, &(uint16_t){(uint16_t)kind}, 2);
        say(port, bytes, KR_MSG_HEADER_BYTES);
    }
    size_t n = frame(bytes, KR_MSG_HELLO, &hello, sizeof hello);
    bytes[n - 1] ^= 1; /* checksum */
    say(port, bytes, n);
    close(dial(port)); /* comes and goes */
    const int fd = dial(port);
    assert_int_equal(send(fd, bytes, 30, 0), 30); /* half a header, then gone */
    close(fd);
    echo_round_trip(served, EPOCH, 99, payload, 70000);
    assert_int_equal(node.clients, 1);
    served->close(served);
    echo_stop(&node);
}

static void a_proof_without_the_key_opens_nothing(void **state)
{
    (void)state;
    uint8_t bytes[1024];
    echo_node node;
    echo_start(&node, KR_UCX_AUTO);
    const kr_msg_hello hello = a_hello(1, 1);
    kr_msg_hello challenge;
    kr_msg_proof proof;

    for (int attempt = 0; attempt < 2; attempt++) {
        const int fd = dial(kr_ucx_port(node.listener));
        size_t n = frame(bytes, KR_MSG_HELLO, &hello, sizeof hello);
        assert_int_equal(send(fd, bytes, n, 0), n);
        assert_int_equal(recv(fd, bytes, n, MSG_WAITALL), n);
        memcpy(&challenge, bytes + KR_MSG_HEADER_BYTES, sizeof challenge);
        if (attempt == 0) /* the node's own proof, sent back */
            memcpy(proof.proof, challenge.proof, sizeof proof.proof);
        else
            memset(proof.proof, 0, sizeof proof.proof);
        n = frame(bytes, KR_MSG_PROOF, &proof, sizeof proof);
        assert_int_equal(send(fd, bytes, n, 0), n);
        assert_int_equal(recv(fd, bytes, KR_MSG_HEADER_BYTES, MSG_WAITALL), KR_MSG_HEADER_BYTES);
        assert_int_equal(bytes[6], KR_MSG_ERROR);
        assert_true(closed_after(fd) < 1000);
    }
    assert_int_equal(node.clients, 0);
    echo_stop(&node);
}

static void slow_and_silent_clients_end_in_time(void **state)
{
    (void)state;
    kr_ucx_config config = echo_config(0, KR_UCX_AUTO);
    uint8_t bytes[256];
    echo_node node;

    config.timeout_ns = 400000000;
    echo_start_at(&node, config, EPOCH);
    const uint16_t port = kr_ucx_port(node.listener);
    const kr_msg_hello hello = a_hello(1, 1);
    const size_t n = frame(bytes, KR_MSG_HELLO, &hello, sizeof hello);
    const int silent = dial(port), slow = dial(port);
    const uint64_t begin = now_ms();
    for (size_t i = 0; i < n && now_ms() - begin < 3000; i++) { /* a byte at a time would take 10 s */
        if (send(slow, bytes + i, 1, MSG_NOSIGNAL) != 1)
            break;
        sleep_ms(50);
    }
    assert_in_range(now_ms() - begin, 300, 1500);
    close(slow);
    assert_true(closed_after(silent) < 1000);
    echo_stop(&node);
}

/* More silent clients than the node tries at once: a good one still gets in, in little time. */
static void a_crowd_of_silent_clients_keeps_nobody_out(void **state)
{
    (void)state;
    enum { CROWD = 100 };
    int crowd[CROWD];
    echo_node node;
    echo_start(&node, KR_UCX_AUTO);

    for (int i = 0; i < CROWD; i++)
        crowd[i] = dial(kr_ucx_port(node.listener));
    const uint64_t begin = now_ms();
    kr_link *link = echo_connect(&node, KR_UCX_AUTO);
    assert_true(now_ms() - begin < 2000);
    echo_round_trip(link, EPOCH, 1, payload, 1000);
    link->close(link);
    for (int i = 0; i < CROWD; i++)
        close(crowd[i]);
    echo_stop(&node);
}

/* ---- keys and versions ---- */

static kr_status connect_with(uint16_t port, const char *key, kr_err *err)
{
    kr_ucx_config config = echo_config(port, KR_UCX_AUTO);
    kr_msg_welcome welcome = {.client = 4711};
    kr_link *link = NULL;

    config.key = (const uint8_t *)key;
    config.key_bytes = key != NULL ? strlen(key) : 0;
    config.timeout_ns = 1000000000;
    const kr_status status = kr_ucx_connect(&config, &welcome, &link, err);
    if (status == KR_OK) {
        link->close(link);
    } else {
        assert_null(link);
        assert_int_equal(welcome.client, 4711);
    }
    return status;
}

static void keys_must_be_equal(void **state)
{
    (void)state;
    echo_node locked, open;
    kr_ucx_config config = echo_config(0, KR_UCX_AUTO);
    kr_err err;
    echo_start(&locked, KR_UCX_AUTO);
    config.key = NULL;
    config.key_bytes = 0;
    echo_start_at(&open, config, EPOCH);
    const uint16_t port = kr_ucx_port(locked.listener), open_port = kr_ucx_port(open.listener);

    assert_int_equal(connect_with(port, ECHO_KEY, &err), KR_OK);
    assert_int_equal(connect_with(port, ECHO_KEY "x", &err), KR_E_AUTH);
    assert_non_null(strstr(err.text, "--key-file"));
    assert_int_equal(connect_with(port, NULL, &err), KR_E_AUTH);
    assert_int_equal(connect_with(open_port, NULL, &err), KR_OK);
    assert_int_equal(connect_with(open_port, ECHO_KEY, &err), KR_E_AUTH);
    echo_stop(&locked);
    echo_stop(&open);
}

/* The node's answer to a HELLO of other versions, as a client of that version would see it. */
static void expect_version_error(uint16_t port, uint16_t header_version, kr_msg_hello hello)
{
    uint8_t bytes[1024], text[512] = {0};
    const size_t n = frame(bytes, KR_MSG_HELLO, &hello, sizeof hello);
    const int fd = dial(port);
    uint64_t length;

    memcpy(bytes + 4, &header_version, 2);
    assert_int_equal(send(fd, bytes, n, 0), n);
    assert_int_equal(recv(fd, bytes, KR_MSG_HEADER_BYTES, MSG_WAITALL), KR_MSG_HEADER_BYTES);
    assert_int_equal(bytes[6], KR_MSG_ERROR);
    memcpy(&length, bytes + 40, 8);
    assert_in_range(length, 9, sizeof text - 1);
    assert_int_equal(recv(fd, text, length, MSG_WAITALL), length);
    assert_int_equal(*(int32_t *)(void *)text, KR_E_VERSION);
    assert_non_null(strstr((char *)text + 8, "1")); /* ours */
    if (header_version != 1 || hello.version_min > 1)
        assert_non_null(strstr((char *)text + 8, "2")); /* theirs */
    assert_true(closed_after(fd) < 1000);
}

static void other_versions_are_told_both_numbers(void **state)
{
    (void)state;
    echo_node node;
    kr_msg_hello features = a_hello(1, 1);
    echo_start(&node, KR_UCX_AUTO);
    const uint16_t port = kr_ucx_port(node.listener);

    expect_version_error(port, 1, a_hello(2, 3)); /* newer */
    expect_version_error(port, 1, a_hello(0, 0)); /* older */
    expect_version_error(port, 2, a_hello(2, 2)); /* newer framing */
    features.features = 1;
    expect_version_error(port, 1, features);
    echo_stop(&node);
}

/* ---- nodes that are none ---- */

typedef struct {
    int listener;
    const void *answer;
    size_t bytes;
    bool close;
} fake_node;

static void *fake_run(void *context)
{
    fake_node *fake = context;
    const int fd = accept(fake->listener, NULL, NULL);

    if (fake->bytes != 0)
        (void)!send(fd, fake->answer, fake->bytes, MSG_NOSIGNAL);
    if (!fake->close) { /* wait for the client to give up */
        uint8_t rest[512];
        while (recv(fd, rest, sizeof rest, 0) > 0) {
        }
    }
    close(fd);
    return NULL;
}

static kr_status connect_to_fake(const void *answer, size_t bytes, bool closes, kr_err *err)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    fake_node fake = {socket(AF_INET, SOCK_STREAM, 0), answer, bytes, closes};
    pthread_t thread;

    assert_int_equal(bind(fake.listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fake.listener, 4), 0);
    assert_int_equal(getsockname(fake.listener, (struct sockaddr *)&at, &length), 0);
    assert_int_equal(pthread_create(&thread, NULL, fake_run, &fake), 0);
    const kr_status status = connect_with(ntohs(at.sin_port), ECHO_KEY, err);
    pthread_join(thread, NULL);
    close(fake.listener);
    return status;
}

static void nodes_that_are_none_are_found_out(void **state)
{
    (void)state;
    uint8_t bytes[1024];
    kr_msg_hello challenge = a_hello(1, 1);
    kr_err err;
    const uint64_t begin = now_ms();

    assert_int_equal(connect_to_fake(NULL, 0, false, &err), KR_E_DEADLINE); /* D-03 */
    assert_in_range(now_ms() - begin, 900, 3000);
    assert_int_equal(connect_to_fake(NULL, 0, true, &err), KR_E_LOST);
    memset(bytes, 'x', sizeof bytes);
    assert_int_equal(connect_to_fake(bytes, sizeof bytes, false, &err), KR_E_FORMAT);
    size_t n = frame(bytes, KR_MSG_CHALLENGE, &challenge, sizeof challenge);
    assert_int_equal(connect_to_fake(bytes, n, false, &err), KR_E_AUTH);
    challenge = a_hello(2, 2);
    n = frame(bytes, KR_MSG_CHALLENGE, &challenge, sizeof challenge);
    assert_int_equal(connect_to_fake(bytes, n, false, &err), KR_E_VERSION);
    assert_non_null(strstr(err.text, "2 to 2"));
    /* Nobody there at all. */
    echo_node node;
    echo_start(&node, KR_UCX_AUTO);
    const uint16_t port = kr_ucx_port(node.listener);
    echo_stop(&node);
    assert_int_equal(connect_with(port, ECHO_KEY, &err), KR_E_LOST);
    assert_non_null(strstr(err.text, "no node at 127.0.0.1:"));
}

/* ---- liars behind the handshake ---- */

typedef struct {
    kr_control control;
    kr_data *data;
} liar;

static liar liar_connect(uint16_t port)
{
    liar l = {.control.fd = -1};
    kr_handshake handshake = {.key = (const uint8_t *)ECHO_KEY, .key_bytes = sizeof ECHO_KEY - 1};
    kr_msg_welcome welcome;
    uint32_t transport;
    const uint64_t deadline_ns = in_ms(3000);
    kr_err err = {0};

    kr_status status = kr_control_connect("127.0.0.1", port, &kr_clock_system, deadline_ns, &l.control, &err);
    if (status == KR_OK)
        status = kr_handshake_client(&l.control, &handshake, &welcome, deadline_ns, &err);
    const kr_path_config path = {&l.control, &handshake, EPOCH, KR_PATH_ALL, 0, deadline_ns};
    if (status == KR_OK)
        status = kr_path_client(&path, &l.data, &transport, &err);
    if (status != KR_OK)
        fail_msg("%s", err.text);
    return l;
}

static void liar_close(liar *l)
{
    kr_data_close(l->data);
    kr_control_close(&l->control);
}

static void wait_for_last(const echo_node *node, kr_status expected)
{
    const uint64_t begin = now_ms();

    while (node->last != expected && now_ms() - begin < 3000)
        sleep_ms(1);
    assert_int_equal(node->last, expected);
}

/* A header alone, with one field changed; the node must end the link with the status. */
static void header_ends_the_link(echo_node *node, size_t at, const void *value, size_t bytes,
                                 kr_status expected)
{
    kr_msg_header header = echo_header(EPOCH, 1);
    uint8_t wire[KR_MSG_HEADER_BYTES];
    bool released;
    liar l = liar_connect(kr_ucx_port(node->listener));

    node->last = KR_OK;
    kr_msg_seal(&header, NULL, 0, wire);
    memcpy(wire + at, value, bytes);
    assert_int_equal(kr_data_send(l.data, wire, sizeof wire, in_ms(1000), &released, NULL), KR_OK);
    wait_for_last(node, expected);
    liar_close(&l);
}

static void headers_that_lie_end_their_link_only(void **state)
{
    (void)state;
    echo_node node;
    echo_start(&node, KR_UCX_AUTO);
    kr_link *served = echo_connect(&node, KR_UCX_AUTO);

    header_ends_the_link(&node, 0, "GET ", 4, KR_E_FORMAT);
    header_ends_the_link(&node, 4, &(uint16_t){9}, 2, KR_E_VERSION);
    header_ends_the_link(&node, 6, &(uint16_t){0xffff}, 2, KR_E_FORMAT);
    /* More than this link carries, more than any carries: refused before memory is asked for. */
    header_ends_the_link(&node, 40, &(uint64_t){(16 << 20) + 1}, 8, KR_E_LIMIT);
    header_ends_the_link(&node, 40, &(uint64_t){UINT64_MAX}, 8, KR_E_LIMIT);
    echo_round_trip(served, EPOCH, 1, payload, 70000);
    served->close(served);
    echo_stop(&node);
}

static void wrong_epoch_and_checksum_drop_the_message_only(void **state)
{
    (void)state;
    uint8_t wire[3][KR_MSG_HEADER_BYTES + 8], back[KR_MSG_HEADER_BYTES + 8];
    kr_msg_header header;
    bool released;
    echo_node node;
    echo_start(&node, KR_UCX_AUTO);
    liar l = liar_connect(kr_ucx_port(node.listener));

    for (int i = 0; i < 3; i++) {
        header = echo_header(i == 0 ? EPOCH - 1 : EPOCH, (uint64_t)i);
        memset(wire[i] + KR_MSG_HEADER_BYTES, i, 8);
        kr_msg_seal(&header, wire[i] + KR_MSG_HEADER_BYTES, 8, wire[i]);
        wire[i][KR_MSG_HEADER_BYTES] ^= i == 1;
        assert_int_equal(kr_data_send(l.data, wire[i], sizeof wire[i], in_ms(1000), &released, NULL), KR_OK);
    }
    assert_int_equal(kr_data_receive(l.data, back, sizeof back, in_ms(3000), NULL), KR_OK);
    assert_int_equal(kr_msg_header_read(back, &header, NULL), KR_OK);
    assert_int_equal(header.sequence, 2); /* the only one that was answered */
    liar_close(&l);
    echo_stop(&node);
}

static void noise_on_the_control_socket_ends_the_link(void **state)
{
    (void)state;
    echo_node node;
    echo_start(&node, KR_UCX_AUTO);
    liar l = liar_connect(kr_ucx_port(node.listener));

    assert_int_equal(send(l.control.fd, payload, 64, 0), 64);
    wait_for_last(&node, KR_E_LOST);
    liar_close(&l);
    echo_stop(&node);
}

static void a_client_without_heartbeat_is_dropped(void **state)
{
    (void)state;
    echo_node node;
    echo_start(&node, KR_UCX_AUTO);
    const uint64_t begin = now_ms();
    liar l = liar_connect(kr_ucx_port(node.listener));

    wait_for_last(&node, KR_E_LOST);
    assert_in_range(now_ms() - begin, ECHO_DEAD_MS - 100, ECHO_DEAD_MS + 1500);
    liar_close(&l);
    echo_stop(&node);
}

/* ---- who listens where ---- */

static bool is_own_socket(unsigned long inode)
{
    char path[300], target[64], wanted[64];
    bool own = false;
    DIR *folder = opendir("/proc/self/fd");
    const struct dirent *entry;

    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    while (!own && (entry = readdir(folder)) != NULL) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        const ssize_t n = readlink(path, target, sizeof target - 1);
        own = n > 0 && (size_t)n == strlen(wanted) && memcmp(target, wanted, (size_t)n) == 0;
    }
    closedir(folder);
    return own;
}

/* Counts this process's listening sockets in a table of /proc/net; all must be at 127.0.0.1. */
static unsigned count_listening(const char *table, const char *loopback)
{
    char line[512], local[64];
    unsigned state, count = 0;
    unsigned long inode;
    FILE *file = fopen(table, "r");

    if (file == NULL) /* a kernel without IPv6 */
        return 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, " %*d: %63s %*s %x %*s %*s %*s %*u %*u %lu", local, &state, &inode) != 3 ||
            state != 10 || !is_own_socket(inode))
            continue;
        count++;
        if (strncmp(local, loopback, strlen(loopback)) != 0)
            fail_msg("listens at %s of %s", local, table);
    }
    fclose(file);
    return count;
}

static void a_loopback_node_listens_on_loopback_only(void **state)
{
    (void)state;
    echo_node node;
    echo_start(&node, KR_UCX_AUTO);

    assert_int_equal(count_listening("/proc/net/tcp", "0100007F:"), 1);
    kr_link *shm = echo_connect(&node, KR_UCX_SHM);
    echo_round_trip(shm, EPOCH, 1, payload, 100);
    assert_int_equal(count_listening("/proc/net/tcp", "0100007F:"), 1); /* shared memory adds none */
    kr_link *tcp = echo_connect(&node, KR_UCX_TCP);
    echo_round_trip(tcp, EPOCH, 1, payload, 100);
    assert_int_equal(count_listening("/proc/net/tcp", "0100007F:"), 3); /* UCX's, at both ends */
    assert_int_equal(count_listening("/proc/net/tcp6", "none"), 0);
    shm->close(shm);
    tcp->close(tcp);
    echo_stop(&node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(garbage_is_refused_and_the_served_notice_nothing),
        cmocka_unit_test(a_proof_without_the_key_opens_nothing),
        cmocka_unit_test(slow_and_silent_clients_end_in_time),
        cmocka_unit_test(a_crowd_of_silent_clients_keeps_nobody_out),
        cmocka_unit_test(keys_must_be_equal),
        cmocka_unit_test(other_versions_are_told_both_numbers),
        cmocka_unit_test(nodes_that_are_none_are_found_out),
        cmocka_unit_test(headers_that_lie_end_their_link_only),
        cmocka_unit_test(wrong_epoch_and_checksum_drop_the_message_only),
        cmocka_unit_test(noise_on_the_control_socket_ends_the_link),
        cmocka_unit_test(a_client_without_heartbeat_is_dropped),
        cmocka_unit_test(a_loopback_node_listens_on_loopback_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
