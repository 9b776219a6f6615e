/* Starting and ending a node's process. */
#include "cli/node_process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READY_MS = 20000, LINE_BYTES = 4096, POOL_BYTES_MIN = 1 << 20 };

static kr_status spawn(kr_node_process *process, char **argv, int *from, kr_err *err)
{
    posix_spawn_file_actions_t actions;
    int ends[2];

    if (pipe(ends) != 0)
        return kr_fail(err, KR_E_IO, "no pipe to a memory node's process: %s", strerror(errno));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    /* Clients that come and go are this command's own doing. */
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    const int failure = posix_spawn(&process->pid, "/proc/self/exe", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    *from = ends[0];
    if (failure == 0)
        return KR_OK;
    close(ends[0]);
    process->pid = 0;
    return kr_fail(err, KR_E_IO, "a memory node's process does not start: %s", strerror(failure));
}

/* The line of JSON that a node prints when it listens. */
static kr_status read_port(int from, int *port, kr_err *err)
{
    char line[LINE_BYTES] = "";
    size_t used = 0;
    struct pollfd ready = {.fd = from, .events = POLLIN};
    ssize_t got = 1;

    while (got > 0 && used + 1 < sizeof line && strchr(line, '\n') == NULL && poll(&ready, 1, READY_MS) > 0) {
        got = read(from, line + used, sizeof line - 1 - used);
        used += got > 0 ? (size_t)got : 0;
        line[used] = '\0';
    }
    json_t *root = json_loads(line, 0, NULL);
    *port = (int)json_integer_value(json_object_get(root, "port"));
    json_decref(root);
    return *port > 0
               ? KR_OK
               : kr_fail(err, KR_E_IO,
                         "a memory node's process of this size ended before it listened; karat node --memory "
                         "tells why");
}

kr_status kr_node_process_start(kr_node_process *process, uint64_t pool_bytes, uint32_t sessions,
                                uint32_t threads, kr_engine_node *node, kr_err *err)
{
    char memory[32], count[16], team[16], address[32];
    char *argv[] = {"karat",
                    "node",
                    "--listen",
                    "127.0.0.1:0",
                    "--json",
                    "--devices",
                    "1",
                    "--memory",
                    memory,
                    "--sessions-max",
                    count,
                    "--threads-per-device",
                    team,
                    "--save-folder",
                    (char *)(uintptr_t)process->save_folder,
                    NULL};
    int from = -1, port = 0;

    snprintf(memory, sizeof memory, "%" PRIu64, pool_bytes > POOL_BYTES_MIN ? pool_bytes : POOL_BYTES_MIN);
    snprintf(count, sizeof count, "%u", sessions);
    snprintf(team, sizeof team, "%u", threads);
    kr_status status = spawn(process, argv, &from, err);
    if (status != KR_OK)
        return status;
    status = read_port(from, &port, err);
    close(from);
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    if (status == KR_OK)
        status = kr_cli_connect(address, KR_UCX_AUTO, NULL, process->timeout_ns, node, err);
    if (status != KR_OK) {
        *node = (kr_engine_node){0};
        kr_node_process_stop(process, node);
    }
    return status;
}

void kr_node_process_stop(kr_node_process *process, kr_engine_node *node)
{
    if (node->link != NULL)
        node->link->close(node->link);
    *node = (kr_engine_node){0};
    if (process->pid == 0)
        return;
    kill(process->pid, SIGTERM);
    while (waitpid(process->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    process->pid = 0;
}
