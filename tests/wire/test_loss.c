/* Peers in processes of their own: killed, stopped, restarted, computing for long, short of locked
 * memory, in another container. What a loss looks like and how soon it is noticed (D-09, D-11).
 *
 * The peers are this program again, run with arguments:
 *   serve TRANSPORT EPOCH PORT   an echo node; prints its port; ends when its standard input does
 *   client PORT TRANSPORT        connects, one round trip, prints the link's description, waits
 *   both                         node and client in one process over AUTO; prints the description */
#include "tests/wire/echo.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { EPOCH = 77, SLACK_MS = 700 };

static uint8_t payload[20000];

/* ---- the peers ---- */

static kr_ucx_transport transport_of(const char *text) { return (kr_ucx_transport)atoi(text); }

static void wait_for_end_of_input(void)
{
    char c;
    while (read(STDIN_FILENO, &c, 1) > 0) {
    }
}

static int serve(char **argv)
{
    echo_node node;

    echo_start_at(&node, echo_config((uint16_t)atoi(argv[4]), transport_of(argv[2])),
                  (uint32_t)atoi(argv[3]));
    printf("%u\n", kr_ucx_port(node.listener));
    fflush(stdout);
    wait_for_end_of_input();
    echo_stop(&node);
    return 0;
}

static int be_client(char **argv)
{
    const kr_ucx_config config = echo_config((uint16_t)atoi(argv[2]), transport_of(argv[3]));
    kr_msg_welcome welcome;
    kr_link *link;
    kr_err err;

    if (kr_ucx_connect(&config, &welcome, &link, &err) != KR_OK) {
        printf("failed: %s\n", err.text);
        return 1;
    }
    echo_round_trip(link, welcome.epoch, 1, payload, sizeof payload);
    printf("%s\n", link->describe(link));
    fflush(stdout);
    wait_for_end_of_input();
    link->close(link);
    return 0;
}

static int be_both(void)
{
    echo_node node;

    echo_start(&node, KR_UCX_AUTO);
    kr_link *link = echo_connect(&node, KR_UCX_AUTO);
    echo_round_trip(link, EPOCH, 1, payload, sizeof payload);
    printf("%s\n", link->describe(link));
    link->close(link);
    echo_stop(&node);
    return 0;
}

/* ---- starting them ---- */

typedef struct {
    pid_t pid;
    int in, out;    /* its standard input and output */
    char line[200]; /* the first line it printed; "" when it ended without one */
} peer;

static peer start(char *const argv[], uint64_t memlock_bytes)
{
    int in[2], out[2];
    peer p = {0};

    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    p.pid = fork();
    assert_true(p.pid >= 0);
    if (p.pid == 0) {
        const struct rlimit limit = {memlock_bytes, memlock_bytes};
        if (memlock_bytes != 0)
            (void)setrlimit(RLIMIT_MEMLOCK, &limit);
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        execvp(argv[0], argv);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    p.in = in[1];
    p.out = out[0];
    for (size_t n = 0; n + 1 < sizeof p.line && read(p.out, p.line + n, 1) == 1; n++) {
        if (p.line[n] == '\n') {
            p.line[n] = 0;
            break;
        }
    }
    return p;
}

static peer start_node(kr_ucx_transport transport, uint32_t epoch, uint16_t port, uint64_t memlock_bytes)
{
    char self[] = "/proc/self/exe", mode[] = "serve", t[8], e[16], at[8];

    snprintf(t, sizeof t, "%d", (int)transport);
    snprintf(e, sizeof e, "%u", epoch);
    snprintf(at, sizeof at, "%u", port);
    char *argv[] = {self, mode, t, e, at, NULL};
    const peer p = start(argv, memlock_bytes);
    if (p.line[0] == 0)
        fail_msg("the node did not start");
    return p;
}

static uint16_t port_of(const peer *p) { return (uint16_t)atoi(p->line); }

/* Exit status of the peer, or -signal. */
static int end(peer *p, int signal)
{
    int status;

    if (signal != 0)
        kill(p->pid, signal);
    close(p->in);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    close(p->out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static kr_link *connect_to(uint16_t port, kr_ucx_transport transport, kr_msg_welcome *welcome)
{
    const kr_ucx_config config = echo_config(port, transport);
    kr_link *link = NULL;
    kr_err err;

    if (kr_ucx_connect(&config, welcome, &link, &err) != KR_OK)
        fail_msg("%s", err.text);
    return link;
}

/* Asks the node to compute for ms before it answers. */
static void ask_to_compute(kr_link *link, uint64_t ms)
{
    const kr_piece piece = {&ms, sizeof ms};
    kr_msg_header header = echo_header(EPOCH, 9);

    header.kind = KR_MSG_STATS;
    assert_int_equal(link->send(link, header, &piece, 1, in_ms(1000), NULL), KR_OK);
}

typedef struct {
    pid_t pid;
    int signal;
} blow;

static void *strike(void *context)
{
    const blow *b = context;

    sleep_ms(150);
    kill(b->pid, b->signal);
    return NULL;
}

/* The peer is struck while the client waits for its answer: milliseconds until the loss. */
static uint64_t loss_after(kr_ucx_transport transport, int signal, kr_err *err)
{
    kr_msg_welcome welcome;
    kr_message m;
    pthread_t thread;
    peer node = start_node(transport, EPOCH, 0, 0);
    blow b = {node.pid, signal};
    kr_link *link = connect_to(port_of(&node), transport, &welcome);

    ask_to_compute(link, 60000);
    assert_int_equal(pthread_create(&thread, NULL, strike, &b), 0);
    const uint64_t begin = now_ms();
    assert_int_equal(link->receive(link, &m, in_ms(20000), err), KR_E_LOST);
    const uint64_t took = now_ms() - begin;
    assert_int_equal(link->receive(link, &m, in_ms(20000), err), KR_E_LOST); /* and stays lost */
    pthread_join(thread, NULL);
    link->close(link);
    assert_int_equal(end(&node, SIGKILL), -SIGKILL);
    return took - (took < 150 ? took : 150);
}

static void a_killed_node_is_lost_at_once(void **state)
{
    (void)state;
    kr_err err;

    for (kr_ucx_transport t = KR_UCX_SHM; t <= KR_UCX_TCP; t++) {
        assert_true(loss_after(t, SIGKILL, &err) < SLACK_MS);
        assert_non_null(strstr(err.text, "node 127.0.0.1:"));
        assert_non_null(strstr(err.text, "lost: "));
    }
}

static void a_stopped_node_is_lost_in_its_time(void **state)
{
    (void)state;
    kr_err err;

    for (kr_ucx_transport t = KR_UCX_SHM; t <= KR_UCX_TCP; t++) {
        assert_in_range(loss_after(t, SIGSTOP, &err), ECHO_DEAD_MS - 2 * ECHO_BEAT_MS,
                        ECHO_DEAD_MS + SLACK_MS);
        assert_non_null(strstr(err.text, "silent for 1000 ms"));
    }
}

/* A stopped peer takes nothing: a send larger than what the transport holds ends as well. */
static void sending_to_a_stopped_node_ends_in_time(void **state)
{
    (void)state;
    static uint8_t large[8 << 20];
    const kr_piece piece = {large, sizeof large};

    for (kr_ucx_transport t = KR_UCX_SHM; t <= KR_UCX_TCP; t++) {
        kr_msg_welcome welcome;
        kr_status status = KR_OK;
        kr_err err;
        peer node = start_node(t, EPOCH, 0, 0);
        kr_link *link = connect_to(port_of(&node), t, &welcome);

        kill(node.pid, SIGSTOP);
        const uint64_t begin = now_ms();
        for (int i = 0; i < 20 && status == KR_OK; i++)
            status = link->send(link, echo_header(EPOCH, 1), &piece, 1, in_ms(20000), &err);
        assert_int_equal(status, KR_E_LOST);
        assert_true(now_ms() - begin < ECHO_DEAD_MS + SLACK_MS);
        link->close(link);
        assert_int_equal(end(&node, SIGKILL), -SIGKILL);
    }
}

static void a_node_that_computes_for_long_is_alive(void **state)
{
    (void)state;
    kr_msg_welcome welcome;
    kr_message m;
    kr_err err;
    peer node = start_node(KR_UCX_AUTO, EPOCH, 0, 0);
    kr_link *link = connect_to(port_of(&node), KR_UCX_AUTO, &welcome);
    const uint64_t begin = now_ms();

    ask_to_compute(link, 5 * ECHO_DEAD_MS / 2);
    if (link->receive(link, &m, in_ms(20000), &err) != KR_OK)
        fail_msg("%s", err.text);
    assert_true(now_ms() - begin >= 5 * ECHO_DEAD_MS / 2);
    link->release(link, &m);
    link->close(link);
    assert_int_equal(end(&node, 0), 0); /* and ends cleanly when told */
}

/* The node's side of the same: a client that dies or stops ends its service, and no other's. */
static void a_lost_client_ends_its_service_only(void **state)
{
    (void)state;
    static const int signals[] = {SIGKILL, SIGSTOP};
    char self[] = "/proc/self/exe", mode[] = "client", port[8], t[2] = "1";
    echo_node node;
    echo_start(&node, KR_UCX_AUTO);
    kr_link *served = echo_connect(&node, KR_UCX_AUTO);
    char *argv[] = {self, mode, port, t, NULL};

    snprintf(port, sizeof port, "%u", kr_ucx_port(node.listener));
    for (int i = 0; i < 4; i++) {
        t[0] = (char)('1' + i % 2); /* shared memory, TCP */
        peer client = start(argv, 0);
        assert_memory_equal(client.line, "ucx ", 4);
        node.last = KR_OK;
        kill(client.pid, signals[i / 2]);
        const uint64_t begin = now_ms();
        while (node.last != KR_E_LOST && now_ms() - begin < 5000)
            echo_round_trip(served, EPOCH, 1, payload, 2000);
        assert_int_equal(node.last, KR_E_LOST);
        assert_true(now_ms() - begin < (i / 2 ? ECHO_DEAD_MS : 0) + SLACK_MS);
        (void)end(&client, SIGKILL);
    }
    served->close(served);
    echo_stop(&node);
}

/* D-09: the restarted node is another one; what belonged to the old is refused. */
static void a_restarted_node_has_a_new_epoch(void **state)
{
    (void)state;
    kr_msg_welcome welcome;
    kr_message m;
    kr_err err;
    peer node = start_node(KR_UCX_AUTO, EPOCH, 0, 0);
    const uint16_t port = port_of(&node);
    kr_link *link = connect_to(port, KR_UCX_AUTO, &welcome);

    echo_round_trip(link, welcome.epoch, 1, payload, 100);
    assert_int_equal(end(&node, SIGKILL), -SIGKILL);
    assert_int_equal(link->receive(link, &m, in_ms(5000), &err), KR_E_LOST);
    link->close(link);
    node = start_node(KR_UCX_AUTO, EPOCH + 1, port, 0); /* the same port, at once */
    link = connect_to(port, KR_UCX_AUTO, &welcome);
    assert_int_equal(welcome.epoch, EPOCH + 1);
    assert_int_equal(link->send(link, echo_header(EPOCH, 2), NULL, 0, in_ms(1000), &err), KR_E_STALE);
    echo_round_trip(link, EPOCH + 1, 3, payload, 100);
    link->close(link);
    assert_int_equal(end(&node, 0), 0);
}

static void ten_sessions_in_a_row(void **state)
{
    (void)state;
    peer node = start_node(KR_UCX_AUTO, EPOCH, 0, 0);

    for (int i = 0; i < 10; i++) {
        kr_msg_welcome welcome;
        kr_link *link = connect_to(port_of(&node), KR_UCX_AUTO, &welcome);
        assert_int_equal(welcome.client, i + 1);
        echo_round_trip(link, EPOCH, 1, payload, sizeof payload);
        link->close(link);
    }
    assert_int_equal(end(&node, 0), 0);
}

/* D-11: neither transport pins memory, so a low limit changes nothing. */
static void little_locked_memory_is_enough(void **state)
{
    (void)state;
    for (kr_ucx_transport t = KR_UCX_SHM; t <= KR_UCX_TCP; t++) {
        kr_msg_welcome welcome;
        peer node = start_node(t, EPOCH, 0, 64 << 10);
        kr_link *link = connect_to(port_of(&node), t, &welcome);
        echo_round_trip(link, EPOCH, 1, payload, sizeof payload);
        link->close(link);
        assert_int_equal(end(&node, 0), 0);
    }
}

/* Runs this program inside other namespaces; "" when the system does not let us. */
static void describe_inside(const char *unshare_options, const char *command, char *out, size_t bytes)
{
    char self[300], shell[] = "sh", option[] = "-c", line[700];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    assert_true(n > 0);
    self[n] = 0;
    snprintf(line, sizeof line, "exec unshare %s sh -c '%s' %s 2>&1", unshare_options, command, self);
    char *argv[] = {shell, option, line, NULL};
    peer p = start(argv, 0);
    snprintf(out, bytes, "%s", p.line);
    (void)end(&p, 0);
    if (strncmp(out, "ucx ", 4) != 0 && strstr(out, "karat") == NULL) {
        print_message("SKIP: no namespace here (%s)\n", out);
        out[0] = 0;
    }
}

/* Where two ends cannot share memory they see it before they try. */
static void another_container_is_reached_by_tcp(void **state)
{
    (void)state;
    char command[64], description[200];
    echo_node node;
    echo_start(&node, KR_UCX_AUTO);

    snprintf(command, sizeof command, "exec $0 client %u 0", kr_ucx_port(node.listener));
    describe_inside("--pid --fork", command, description, sizeof description);
    if (description[0] != 0)
        assert_memory_equal(description, "ucx tcp ", 8);
    echo_stop(&node);
}

/* Where shared memory is too small for UCX's rings, AUTO goes on with TCP. */
static void shared_memory_that_fails_gives_way_to_tcp(void **state)
{
    (void)state;
    char description[200];

    describe_inside("--mount", "mount -t tmpfs -o size=64k none /dev/shm && exec $0 both 2>/dev/null",
                    description, sizeof description);
    if (description[0] != 0)
        assert_memory_equal(description, "ucx tcp ", 8);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_node_is_lost_at_once),
        cmocka_unit_test(a_stopped_node_is_lost_in_its_time),
        cmocka_unit_test(sending_to_a_stopped_node_ends_in_time),
        cmocka_unit_test(a_node_that_computes_for_long_is_alive),
        cmocka_unit_test(a_lost_client_ends_its_service_only),
        cmocka_unit_test(a_restarted_node_has_a_new_epoch),
        cmocka_unit_test(ten_sessions_in_a_row),
        cmocka_unit_test(little_locked_memory_is_enough),
        cmocka_unit_test(another_container_is_reached_by_tcp),
        cmocka_unit_test(shared_memory_that_fails_gives_way_to_tcp),
    };

    if (argc == 5 && strcmp(argv[1], "serve") == 0)
        return serve(argv);
    if (argc == 4 && strcmp(argv[1], "client") == 0)
        return be_client(argv);
    if (argc == 2 && strcmp(argv[1], "both") == 0)
        return be_both();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
