/* One UCX context, worker and endpoint; stream sends and receives; sleeping on UCX's event fd.
 *
 * lock guards every call into the worker. A thread holds it while it makes progress and drops it to
 * sleep. Completions run inside progress, so a sender may complete the receiver's request: the
 * callback then wakes the receiver through wake_fd. A waiting sender has no such fd: it looks
 * again by itself.
 *
 * Error handling mode: UCX 1.13 excludes shared memory from peer-failure mode, so a shared-memory
 * endpoint has none and the control socket alone says that the peer is gone. */
#include "wire/data.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/check.h"
#include "wire/msg.h"
#include "wire/ucx_process.h"

/* Should a wake-up ever be lost, the receiver looks by itself after POLL_MS_MAX. */
enum { SEND_NAP_MS = 1, SEND_SPIN_NS = 300000, POLL_MS_MAX = 100, SHM_MIB = 6 };

/* A forced close is local work; this bounds it should UCX disagree. */
#define CLOSE_NS ((uint64_t)100000000)

struct kr_data {
    kr_data_config config;
    pthread_mutex_t lock;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h endpoint;
    _Atomic bool interrupted;
    ucp_address_t *address;
    size_t address_bytes;
    int event_fd, wake_fd; /* UCX's, ours */
    /* The receive under way, if any; written by the completion under lock. */
    void *receive_request;
    bool receive_done, receiver_sleeps;
    ucs_status_t receive_status;
    ucs_status_t endpoint_status; /* first failure UCX reported (TCP only) */
    bool abandoned;               /* a send was given up: UCX still holds its memory */
};

/* The limits named are the two that make UCX refuse in practice: a small /dev/shm (containers have
 * 64 MiB) and, on networks that pin memory, the locked-memory limit. */
static kr_status ucx_fail(kr_err *err, const char *what, ucs_status_t status)
{
    struct rlimit lock = {.rlim_cur = RLIM_INFINITY};

    if (getrlimit(RLIMIT_MEMLOCK, &lock) == 0 && lock.rlim_cur != RLIM_INFINITY)
        return kr_fail(err, KR_E_IO, "UCX: %s: %s (an end needs %d MiB of /dev/shm; ulimit -l is %llu KiB)",
                       what, ucs_status_string(status), SHM_MIB, (unsigned long long)lock.rlim_cur / 1024);
    return kr_fail(err, KR_E_IO, "UCX: %s: %s (an end needs %d MiB of /dev/shm)", what,
                   ucs_status_string(status), SHM_MIB);
}

static kr_status context_open(kr_data *data, kr_err *err)
{
    const bool shm = data->config.transport == KR_PATH_SHM;
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
                           .features = UCP_FEATURE_STREAM | UCP_FEATURE_WAKEUP,
                           .name = "karat"};
    ucp_config_t *config = NULL;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);

    if (status != UCS_OK)
        return ucx_fail(err, "reading its configuration", status);
    status = ucp_config_modify(config, "TLS", shm ? "posix" : "tcp");
    if (status == UCS_OK && !shm)
        status = ucp_config_modify(config, "NET_DEVICES", data->config.interface);
    if (status == UCS_OK)
        status = ucp_init(&params, config, &data->context);
    ucp_config_release(config);
    return status == UCS_OK ? KR_OK : ucx_fail(err, shm ? "opening shared memory" : "opening TCP", status);
}

static kr_status worker_open(kr_data *data, kr_err *err)
{
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE |
                                                      UCP_WORKER_PARAM_FIELD_EVENTS,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
                                        .events = UCP_WAKEUP_RX | UCP_WAKEUP_TX};
    ucs_status_t status = ucp_worker_create(data->context, &params, &data->worker);

    if (status != UCS_OK)
        return ucx_fail(err, "opening a worker", status);
    status = ucp_worker_get_efd(data->worker, &data->event_fd);
    if (status == UCS_OK)
        status = ucp_worker_get_address(data->worker, &data->address, &data->address_bytes);
    return status == UCS_OK ? KR_OK : ucx_fail(err, "naming a worker", status);
}

static void data_free(kr_data *data)
{
    if (data->address != NULL)
        ucp_worker_release_address(data->worker, data->address);
    if (data->worker != NULL)
        ucp_worker_destroy(data->worker);
    if (data->context != NULL)
        ucp_cleanup(data->context);
    if (data->wake_fd >= 0)
        close(data->wake_fd);
    pthread_mutex_destroy(&data->lock);
    kr_free(data);
}

kr_status kr_data_open(kr_data **out, const kr_data_config *config, kr_err *err)
{
    kr_data *data = kr_alloc(sizeof *data);

    KR_CHECK(config->transport == KR_PATH_SHM || config->transport == KR_PATH_TCP);
    if (data == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a link");
    kr_ucx_tame();
    data->config = *config;
    KR_CHECK(pthread_mutex_init(&data->lock, NULL) == 0);
    data->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    kr_status status = data->wake_fd >= 0 ? KR_OK : kr_fail(err, KR_E_IO, "no event file: %m");
    if (status == KR_OK)
        status = context_open(data, err);
    if (status == KR_OK)
        status = worker_open(data, err);
    if (status == KR_OK && data->address_bytes > KR_PATH_ADDRESS_MAX)
        status = kr_fail(err, KR_E_LIMIT, "UCX address of %zu bytes; at most %d", data->address_bytes,
                         KR_PATH_ADDRESS_MAX);
    if (status != KR_OK) {
        data_free(data);
        return status;
    }
    *out = data;
    return KR_OK;
}

const uint8_t *kr_data_address(const kr_data *data, size_t *bytes)
{
    *bytes = data->address_bytes;
    return (const uint8_t *)data->address;
}

static void wake_receiver(const kr_data *data)
{
    const uint64_t one = 1;
    ssize_t written = write(data->wake_fd, &one, sizeof one);
    (void)written; /* a full counter is as good as a write */
}

/* UCX says that the TCP peer is gone; runs inside progress, under lock. */
static void on_endpoint_error(void *argument, ucp_ep_h endpoint, ucs_status_t status)
{
    kr_data *data = argument;

    (void)endpoint;
    if (data->endpoint_status == UCS_OK)
        data->endpoint_status = status;
    if (data->receiver_sleeps)
        wake_receiver(data);
}

kr_status kr_data_connect(kr_data *data, const uint8_t *address, kr_err *err)
{
    const bool shm = data->config.transport == KR_PATH_SHM;
    const ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLER,
                                    .address = (const ucp_address_t *)address,
                                    .err_mode = shm ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER,
                                    .err_handler = {.cb = on_endpoint_error, .arg = data}};

    pthread_mutex_lock(&data->lock);
    const ucs_status_t status = ucp_ep_create(data->worker, &params, &data->endpoint);
    pthread_mutex_unlock(&data->lock);
    return status == UCS_OK ? KR_OK : ucx_fail(err, "reaching the peer", status);
}

static int poll_ms(const kr_data *data, uint64_t deadline_ns)
{
    const uint64_t now = kr_now_ns(data->config.clock);
    const uint64_t left = deadline_ns > now ? (deadline_ns - now + 999999) / 1000000 : 0;

    return left > POLL_MS_MAX ? POLL_MS_MAX : (int)left;
}

static bool is_lost(const kr_data *data)
{
    return data->interrupted || data->endpoint_status != UCS_OK || data->abandoned;
}

static kr_status lost(const kr_data *data, kr_err *err)
{
    return kr_fail(err, KR_E_LOST, "data path lost%s%s", data->endpoint_status != UCS_OK ? ": " : "",
                   data->endpoint_status != UCS_OK ? ucs_status_string(data->endpoint_status) : "");
}

/* Under lock, dropped meanwhile: gives the peer time to make room. UCX reports room in shared memory
 * by no event, so the sender looks again and again, offering its core, and naps only when the peer
 * has not moved for SEND_SPIN_NS. */
static void send_pause(kr_data *data, uint64_t idle_ns)
{
    struct pollfd event = {data->event_fd, POLLIN, 0};
    const bool nap = idle_ns >= SEND_SPIN_NS && ucp_worker_arm(data->worker) == UCS_OK;

    pthread_mutex_unlock(&data->lock);
    if (nap)
        (void)poll(&event, 1, SEND_NAP_MS);
    else
        sched_yield();
    pthread_mutex_lock(&data->lock);
}

/* Waits under lock for a send request to complete. */
static kr_status send_wait(kr_data *data, void *request, uint64_t deadline_ns, kr_err *err)
{
    uint64_t moved_ns = kr_now_ns(data->config.clock);

    for (;;) {
        const bool moved = ucp_worker_progress(data->worker) != 0;
        const ucs_status_t status = ucp_request_check_status(request);
        const uint64_t now = kr_now_ns(data->config.clock);
        if (status == UCS_OK)
            return KR_OK;
        if (status != UCS_INPROGRESS) {
            if (data->endpoint_status == UCS_OK)
                data->endpoint_status = status;
            return lost(data, err);
        }
        if (is_lost(data))
            return lost(data, err);
        if (now >= deadline_ns)
            return kr_fail(err, KR_E_DEADLINE, "the peer does not take what was sent to it");
        if (moved)
            moved_ns = now;
        else
            send_pause(data, now - moved_ns);
    }
}

kr_status kr_data_send(kr_data *data, const void *memory, size_t bytes, uint64_t deadline_ns, bool *released,
                       kr_err *err)
{
    const ucp_request_param_t params = {0};
    kr_status status = KR_OK;

    *released = true;
    pthread_mutex_lock(&data->lock);
    if (is_lost(data)) {
        status = lost(data, err);
    } else {
        void *request = ucp_stream_send_nbx(data->endpoint, memory, bytes, &params);
        if (UCS_PTR_IS_ERR(request)) {
            data->endpoint_status = UCS_PTR_STATUS(request);
            status = lost(data, err);
        } else if (request != NULL) {
            status = send_wait(data, request, deadline_ns, err);
            *released = ucp_request_check_status(request) != UCS_INPROGRESS;
            data->abandoned |= !*released;
            ucp_request_free(request);
        }
    }
    pthread_mutex_unlock(&data->lock);
    return status;
}

static void on_received(void *request, ucs_status_t status, size_t length, void *argument)
{
    kr_data *data = argument;

    (void)request;
    (void)length; /* all of it: UCP_STREAM_RECV_FLAG_WAITALL */
    data->receive_status = status;
    data->receive_done = true;
    if (data->receiver_sleeps)
        wake_receiver(data);
}

/* Under lock: starts the receive unless it is under way. */
static void receive_start(kr_data *data, void *memory, size_t bytes)
{
    const ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                        UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
                                        .flags = UCP_STREAM_RECV_FLAG_WAITALL,
                                        .cb.recv_stream = on_received,
                                        .user_data = data};
    size_t length = 0;

    if (data->receive_request != NULL)
        return;
    data->receive_done = false;
    void *request = ucp_stream_recv_nbx(data->endpoint, memory, bytes, &length, &params);
    if (UCS_PTR_IS_PTR(request)) {
        data->receive_request = request;
        return;
    }
    data->receive_status = request == NULL ? UCS_OK : UCS_PTR_STATUS(request);
    data->receive_done = true;
}

/* Under lock; dropped while asleep. */
static void receive_sleep(kr_data *data, uint64_t deadline_ns)
{
    struct pollfd events[2] = {{data->event_fd, POLLIN, 0}, {data->wake_fd, POLLIN, 0}};
    uint64_t count;

    if (ucp_worker_arm(data->worker) != UCS_OK)
        return; /* something has arrived meanwhile */
    data->receiver_sleeps = true;
    pthread_mutex_unlock(&data->lock);
    (void)poll(events, 2, poll_ms(data, deadline_ns));
    pthread_mutex_lock(&data->lock);
    data->receiver_sleeps = false;
    if (events[1].revents != 0 && !data->interrupted) {
        ssize_t got = read(data->wake_fd, &count, sizeof count);
        (void)got;
    }
}

kr_status kr_data_receive(kr_data *data, void *memory, size_t bytes, uint64_t deadline_ns, kr_err *err)
{
    kr_status status = KR_IN_PROGRESS;
    const uint64_t spin_end = kr_deadline_after(data->config.clock, data->config.spin_ns);

    pthread_mutex_lock(&data->lock);
    receive_start(data, memory, bytes);
    while (status == KR_IN_PROGRESS) {
        /* Not a step beyond what completes this receive: what the peer sends ahead stays with the
         * transport, whose room is bounded, and not in UCX's memory, whose is not. */
        const bool moved = !data->receive_done && ucp_worker_progress(data->worker) != 0;
        const uint64_t now = kr_now_ns(data->config.clock);
        if (data->receive_done) {
            status = data->receive_status == UCS_OK ? KR_OK : lost(data, err);
        } else if (moved && now < deadline_ns) {
            continue;
        } else if (is_lost(data)) {
            status = lost(data, err);
        } else if (now >= deadline_ns) {
            status = kr_fail(err, KR_E_DEADLINE, "no message in time");
        } else if (now < spin_end) {
            pthread_mutex_unlock(&data->lock);
            sched_yield();
            pthread_mutex_lock(&data->lock);
        } else {
            receive_sleep(data, deadline_ns);
        }
    }
    if (data->receive_done && data->receive_request != NULL) {
        ucp_request_free(data->receive_request);
        data->receive_request = NULL;
    }
    pthread_mutex_unlock(&data->lock);
    return status;
}

void kr_data_interrupt(kr_data *data)
{
    data->interrupted = true;
    wake_receiver(data); /* left readable: every later sleep ends at once */
}

/* Progress until request is complete or the deadline passes; frees it. */
static void settle(kr_data *data, void *request, uint64_t deadline_ns)
{
    if (!UCS_PTR_IS_PTR(request))
        return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS && kr_now_ns(data->config.clock) < deadline_ns)
        if (ucp_worker_progress(data->worker) == 0)
            sched_yield();
    ucp_request_free(request);
}

void kr_data_flush(kr_data *data, uint64_t deadline_ns)
{
    const ucp_request_param_t none = {0};

    pthread_mutex_lock(&data->lock);
    if (data->endpoint != NULL && !is_lost(data))
        settle(data, ucp_ep_flush_nbx(data->endpoint, &none), deadline_ns);
    pthread_mutex_unlock(&data->lock);
}

void kr_data_close(kr_data *data)
{
    const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};

    /* Forced closing needs peer-failure mode; a shared-memory endpoint goes with its worker. */
    if (data->endpoint != NULL && data->config.transport == KR_PATH_TCP)
        settle(data, ucp_ep_close_nbx(data->endpoint, &force),
               kr_deadline_after(data->config.clock, CLOSE_NS));
    data_free(data);
}
