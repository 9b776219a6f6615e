/* Connecting and listening: the control socket first, then handshake, data path, link.
 *
 * A listener owns one socket for its life. Each client that arrives gets an attempt: a thread that
 * takes it through handshake and data path within timeout_ns. So one that stalls holds up nobody,
 * neither those being served nor those who come after: there are ATTEMPTS_MAX attempts, and when
 * they are all taken the oldest is cut off.
 *
 * An attempt: FREE -> RUNNING (its thread) -> DONE (thread ended; link set if it succeeded) -> FREE
 * (reaped by accept). Only the thread of kr_ucx_accept leaves FREE and DONE; done_fd wakes it. */
#include "wire/ucx.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/log.h"
#include "wire/path.h"
#include "wire/ucx_link.h"

enum { ATTEMPTS_MAX = 32, POLL_MS_MAX = 60000, PAUSE_MS = 50 };

typedef enum { FREE, RUNNING, DONE } attempt_state;

typedef struct {
    _Atomic attempt_state state;
    pthread_t thread;
    kr_ucx_listener *listener;
    kr_control control;
    kr_msg_welcome welcome;
    uint64_t number;  /* of the connection: the oldest is the smallest */
    _Atomic bool cut; /* its socket was shut down to make room */
    kr_link *link;
} attempt;

struct kr_ucx_listener {
    kr_ucx_config config;
    int fd, done_fd;
    uint64_t clients; /* connections so far */
    bool starved;     /* out of files or threads at the last try, and logged */
    attempt attempts[ATTEMPTS_MAX];
};

static uint32_t allowed(kr_ucx_transport transport)
{
    return transport == KR_UCX_SHM ? KR_PATH_SHM : transport == KR_UCX_TCP ? KR_PATH_TCP : KR_PATH_ALL;
}

static kr_path_config path_config(const kr_ucx_config *config, const kr_control *control,
                                  const kr_handshake *handshake, uint32_t epoch, uint64_t deadline_ns)
{
    return (kr_path_config){.control = control,
                            .handshake = handshake,
                            .epoch = epoch,
                            .transports = allowed(config->transport),
                            .spin_ns = (uint64_t)config->spin_us * 1000,
                            .deadline_ns = deadline_ns};
}

static void config_check(const kr_ucx_config *config)
{
    KR_CHECK(config->host != NULL && config->clock != NULL && config->timeout_ns != 0);
    KR_CHECK(config->payload_max != 0 && config->payload_max <= KR_MSG_PAYLOAD_MAX);
    KR_CHECK((unsigned)config->transport <= KR_UCX_TCP && (config->key != NULL || config->key_bytes == 0));
}

kr_status kr_ucx_connect(const kr_ucx_config *config, kr_msg_welcome *out, kr_link **link, kr_err *err)
{
    const uint64_t deadline_ns = kr_deadline_after(config->clock, config->timeout_ns);
    kr_handshake handshake = {.key = config->key, .key_bytes = config->key_bytes};
    kr_control control = {.fd = -1};
    kr_msg_welcome welcome = {0};
    kr_data *data = NULL;
    uint32_t transport = 0;

    config_check(config);
    kr_status status = kr_control_connect(config->host, config->port, config->clock, deadline_ns, &control,
                                          err);
    if (status == KR_OK)
        status = kr_handshake_client(&control, &handshake, &welcome, deadline_ns, err);
    if (status == KR_OK) {
        const kr_path_config path = path_config(config, &control, &handshake, welcome.epoch, deadline_ns);
        status = kr_path_client(&path, &data, &transport, err);
    }
    if (status == KR_OK) {
        const kr_ucx_link_config made = {&control, data, transport, "node", &welcome, config->payload_max};
        status = kr_ucx_link_create(link, &made, err);
    }
    if (status != KR_OK) {
        if (data != NULL)
            kr_data_close(data);
        kr_control_close(&control);
        return status;
    }
    *out = welcome;
    return KR_OK;
}

/* ---- listening ---- */

kr_status kr_ucx_listen(kr_ucx_listener **out, const kr_ucx_config *config, kr_err *err)
{
    config_check(config);
    kr_ucx_listener *listener = kr_alloc(sizeof *listener);
    if (listener == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a listener");
    listener->config = *config;
    listener->done_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    kr_status status = listener->done_fd >= 0
                           ? kr_control_listen(config->host, config->port, &listener->fd, err)
                           : kr_fail(err, KR_E_IO, "no event file: %m");
    if (status != KR_OK) {
        if (listener->done_fd >= 0)
            close(listener->done_fd);
        kr_free(listener);
        return status;
    }
    *out = listener;
    return KR_OK;
}

uint16_t kr_ucx_port(const kr_ucx_listener *listener) { return kr_control_port(listener->fd); }

static kr_status attempt_link(attempt *a, kr_err *err)
{
    const kr_ucx_config *config = &a->listener->config;
    const uint64_t deadline_ns = kr_deadline_after(config->clock, config->timeout_ns);
    kr_handshake handshake = {.key = config->key, .key_bytes = config->key_bytes};
    kr_data *data = NULL;
    uint32_t transport = 0;
    kr_status status = kr_handshake_node(&a->control, &handshake, &a->welcome, deadline_ns, err);

    if (status == KR_OK) {
        const kr_path_config path = path_config(config, &a->control, &handshake, a->welcome.epoch,
                                                deadline_ns);
        status = kr_path_node(&path, &data, &transport, err);
    }
    if (status == KR_OK) {
        const kr_ucx_link_config made = {&a->control, data,        transport,
                                         "client",    &a->welcome, config->payload_max};
        status = kr_ucx_link_create(&a->link, &made, err);
        if (status != KR_OK)
            kr_data_close(data);
    }
    return status;
}

static void *attempt_run(void *argument)
{
    attempt *a = argument;
    const uint64_t one = 1;
    kr_err err = {0};

    if (attempt_link(a, &err) != KR_OK)
        kr_log(KR_LOG_WARN, "client %s refused: %s", a->control.peer,
               a->cut ? "cut off for newer ones" : err.text);
    atomic_store(&a->state, DONE);
    ssize_t n = write(a->listener->done_fd, &one, sizeof one);
    (void)n; /* a full counter wakes as well */
    return NULL;
}

/* Ends an attempt that is DONE; its link, or NULL. */
static kr_link *attempt_reap(attempt *a)
{
    kr_link *link = a->link;

    KR_CHECK(pthread_join(a->thread, NULL) == 0);
    if (link == NULL) /* else the link has the socket */
        kr_control_close(&a->control);
    a->link = NULL;
    atomic_store(&a->state, FREE);
    return link;
}

/* Takes one waiting client into a free attempt. KR_E_FULL: out of files or threads. */
static kr_status attempt_start(kr_ucx_listener *listener, attempt *a, const kr_msg_welcome *welcome,
                               kr_err *err)
{
    kr_status status = kr_control_accept(listener->fd, listener->config.clock, &a->control, err);

    if (status != KR_OK)
        return status;
    a->listener = listener;
    a->cut = false;
    a->number = ++listener->clients;
    a->welcome = *welcome;
    a->welcome.client = a->number;
    if (a->welcome.payload_max > listener->config.payload_max)
        a->welcome.payload_max = listener->config.payload_max;
    atomic_store(&a->state, RUNNING);
    if (pthread_create(&a->thread, NULL, attempt_run, a) == 0)
        return KR_OK;
    atomic_store(&a->state, FREE);
    kr_control_close(&a->control);
    return kr_fail(err, KR_E_FULL, "cannot start a thread for client %s", a->control.peer);
}

/* A free attempt, or NULL; then one is about to become free. */
static attempt *attempt_find(kr_ucx_listener *listener)
{
    attempt *oldest = NULL;

    for (int i = 0; i < ATTEMPTS_MAX; i++) {
        attempt *a = &listener->attempts[i];
        const attempt_state state = a->state;
        if (state != RUNNING)
            return state == FREE ? a : NULL;
        if (oldest == NULL || a->number < oldest->number)
            oldest = a;
    }
    if (!oldest->cut) {
        oldest->cut = true;
        (void)shutdown(oldest->control.fd, SHUT_RDWR);
    }
    return NULL;
}

static void accept_sleep(const kr_ucx_listener *listener, bool room, uint64_t now, uint64_t deadline_ns)
{
    struct pollfd events[2] = {{listener->done_fd, POLLIN, 0}, {listener->fd, POLLIN, 0}};
    const uint64_t ms = deadline_ns > now ? (deadline_ns - now + 999999) / 1000000 : 0;
    uint64_t count;

    (void)poll(events, room ? 2 : 1, ms > POLL_MS_MAX ? POLL_MS_MAX : (int)ms);
    ssize_t n = read(listener->done_fd, &count, sizeof count);
    (void)n;
}

kr_status kr_ucx_accept(kr_ucx_listener *listener, const kr_msg_welcome *welcome, kr_link **link,
                        uint64_t deadline_ns, kr_err *err)
{
    for (;;) {
        for (int i = 0; i < ATTEMPTS_MAX; i++) {
            attempt *a = &listener->attempts[i];
            kr_link *made = a->state == DONE ? attempt_reap(a) : NULL;
            if (made != NULL) {
                *link = made;
                return KR_OK;
            }
        }
        attempt *a = attempt_find(listener);
        kr_status status = a != NULL ? attempt_start(listener, a, welcome, err) : KR_E_DEADLINE;
        if (status == KR_E_FULL) { /* the client waits in the socket's queue; look again soon */
            if (!listener->starved)
                kr_log(KR_LOG_WARN, "no room for another client: out of files or threads");
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000}, NULL);
        }
        listener->starved = status == KR_E_FULL;
        const uint64_t now = kr_now_ns(listener->config.clock);
        if (now >= deadline_ns)
            return kr_fail(err, KR_E_DEADLINE, "no client in time");
        if (status != KR_OK)
            accept_sleep(listener, a != NULL, now, deadline_ns);
    }
}

void kr_ucx_listener_close(kr_ucx_listener *listener)
{
    close(listener->fd);
    for (int i = 0; i < ATTEMPTS_MAX; i++)
        if (listener->attempts[i].state != FREE)
            (void)shutdown(listener->attempts[i].control.fd, SHUT_RDWR);
    for (int i = 0; i < ATTEMPTS_MAX; i++) {
        if (listener->attempts[i].state == FREE)
            continue;
        kr_link *link = attempt_reap(&listener->attempts[i]);
        if (link != NULL)
            link->close(link);
    }
    close(listener->done_fd);
    kr_free(listener);
}
