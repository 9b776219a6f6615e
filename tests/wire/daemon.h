/* `karat node` in a process of its own, for tests that reach it over its socket. KARAT names the program
 * (default build/karat). */
#ifndef KR_TESTS_WIRE_DAEMON_H
#define KR_TESTS_WIRE_DAEMON_H

#include "tests/wire/echo.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { DAEMON_ARGUMENTS_MAX = 20 };

typedef struct {
    pid_t pid;
    int out, err; /* its standard output and error */
    uint16_t port;
    uint32_t epoch;
} daemon_process;

/* Starts karat node with --json, 16 MiB of memory and these options (NULL-terminated), of which a second
 * --memory counts. */
static inline daemon_process daemon_fork(const char *const *options)
{
    const char *program = getenv("KARAT") != NULL ? getenv("KARAT") : "build/karat";
    const char *argv[DAEMON_ARGUMENTS_MAX] = {program, "node", "--json", "--memory", "16M"};
    int out[2], err[2], n = 5;
    daemon_process d = {0};

    while (*options != NULL && n + 1 < DAEMON_ARGUMENTS_MAX)
        argv[n++] = *options++;
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(err, O_CLOEXEC), 0);
    d.pid = fork();
    assert_true(d.pid >= 0);
    if (d.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves no node behind */
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        execv(program, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(out[1]);
    close(err[1]);
    d.out = out[0];
    d.err = err[0];
    return d;
}

static inline size_t read_line(int fd, char *line, size_t bytes)
{
    size_t n = 0;

    while (n + 1 < bytes && read(fd, line + n, 1) == 1 && line[n] != '\n')
        n++;
    line[n] = 0;
    return n;
}

/* The same, at a port of the system's choice, and waits until it is ready. */
static inline daemon_process daemon_start(const char *const *options)
{
    char text[2000];
    json_int_t port, epoch;
    const char *role;
    daemon_process d = daemon_fork(options);

    if (read_line(d.out, text, sizeof text) == 0) {
        read_line(d.err, text, sizeof text);
        fail_msg("karat node did not start: %s", text);
    }
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    assert_int_equal(json_unpack(root, "{s:s, s:I, s:I}", "role", &role, "port", &port, "epoch", &epoch), 0);
    assert_string_equal(role, "node");
    d.port = (uint16_t)port;
    d.epoch = (uint32_t)epoch;
    json_decref(root);
    return d;
}

/* Waits for the end at most limit_ms: exit status, or -signal. */
static inline int daemon_wait(daemon_process *d, uint64_t limit_ms)
{
    const uint64_t begin = now_ms();
    int status;

    while (waitpid(d->pid, &status, WNOHANG) == 0) {
        if (now_ms() - begin > limit_ms) {
            kill(d->pid, SIGKILL);
            waitpid(d->pid, &status, 0);
            fail_msg("still running after %llu ms", (unsigned long long)limit_ms);
        }
        sleep_ms(5);
    }
    close(d->out);
    close(d->err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#endif
