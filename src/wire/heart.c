/* The thread sleeps in poll until the next beat is due, a beat arrives or stop_fd says so. Before it
 * calls the peer silent it reads what has arrived: when this process itself was stopped for a while,
 * the peer's beats are waiting in the socket. */
#include "wire/heart.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/check.h"

#define NS_PER_MS ((uint64_t)1000000)

struct kr_heart {
    kr_control control;
    kr_heart_config config;
    pthread_t thread;
    int stop_fd;
    uint64_t heard_ns, beaten_ns, beats;
    uint8_t incoming[KR_MSG_HEADER_BYTES];
    uint32_t incoming_bytes;
    char loss[128];
    _Atomic bool lost;
};

static void lose(kr_heart *heart, const char *why)
{
    snprintf(heart->loss, sizeof heart->loss, "%s", why);
    atomic_store(&heart->lost, true);
    heart->config.on_lost(heart->config.context);
}

/* A beat that does not fit the socket's buffer is dropped: the peer has hundreds unread. */
static void send_frame(kr_heart *heart, kr_msg_kind kind)
{
    uint8_t frame[KR_MSG_HEADER_BYTES];
    kr_msg_header header = {.kind = (uint16_t)kind, .epoch = heart->config.epoch, .sequence = heart->beats++};

    kr_msg_seal(&header, NULL, 0, frame);
    ssize_t n = send(heart->control.fd, frame, sizeof frame, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)n;
}

/* One whole frame has arrived; false ends the connection. */
static bool frame_accept(kr_heart *heart)
{
    kr_msg_header header;
    kr_err err;

    heart->incoming_bytes = 0;
    kr_status status = kr_msg_header_read(heart->incoming, &header, &err);
    if (status == KR_OK && header.payload_bytes == 0)
        status = kr_msg_verify(&header, NULL, &err);
    const bool ours = status == KR_OK && header.payload_bytes == 0 && header.epoch == heart->config.epoch;
    if (ours && header.kind == KR_MSG_BEAT) {
        heart->heard_ns = kr_now_ns(heart->control.clock);
        return true;
    }
    lose(heart, ours && header.kind == KR_MSG_BYE
                    ? "closed the connection"
                    : "sent something that is no heartbeat on the control socket");
    return false;
}

/* Reads what has arrived; false when the peer is lost. */
static bool listen_to(kr_heart *heart)
{
    for (;;) {
        const ssize_t n = recv(heart->control.fd, heart->incoming + heart->incoming_bytes,
                               sizeof heart->incoming - heart->incoming_bytes, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            lose(heart, n == 0 ? "ended without a word (killed or crashed)" : strerror(errno));
            return false;
        }
        if (n < 0)
            return true;
        heart->incoming_bytes += (uint32_t)n;
        if (heart->incoming_bytes == sizeof heart->incoming && !frame_accept(heart))
            return false;
    }
}

static bool is_silent(kr_heart *heart, uint64_t now)
{
    char text[64];

    if (now - heart->heard_ns < heart->config.dead_after_ms * NS_PER_MS)
        return false;
    snprintf(text, sizeof text, "silent for %u ms", heart->config.dead_after_ms);
    lose(heart, text);
    return true;
}

static void *beat(void *argument)
{
    kr_heart *heart = argument;
    struct pollfd events[2] = {{heart->control.fd, POLLIN, 0}, {heart->stop_fd, POLLIN, 0}};
    const uint64_t interval = heart->config.beat_interval_ms * NS_PER_MS;

    while (listen_to(heart)) {
        const uint64_t now = kr_now_ns(heart->control.clock);
        if (is_silent(heart, now))
            break;
        if (now - heart->beaten_ns >= interval) {
            send_frame(heart, KR_MSG_BEAT);
            heart->beaten_ns = now;
        }
        (void)poll(events, 2, (int)((interval - (now - heart->beaten_ns)) / NS_PER_MS + 1));
        if (events[1].revents != 0)
            break;
    }
    return NULL;
}

kr_status kr_heart_start(kr_heart **out, const kr_control *control, const kr_heart_config *config,
                         kr_err *err)
{
    kr_heart *heart = kr_alloc(sizeof *heart);

    if (heart == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a heartbeat");
    heart->control = *control;
    heart->config = *config;
    heart->heard_ns = kr_now_ns(control->clock);
    heart->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (heart->stop_fd < 0 || pthread_create(&heart->thread, NULL, beat, heart) != 0) {
        if (heart->stop_fd >= 0)
            close(heart->stop_fd);
        kr_free(heart);
        return kr_fail(err, KR_E_IO, "cannot start a heartbeat thread");
    }
    *out = heart;
    return KR_OK;
}

const char *kr_heart_loss(const kr_heart *heart) { return atomic_load(&heart->lost) ? heart->loss : NULL; }

void kr_heart_stop(kr_heart *heart)
{
    const uint64_t one = 1;

    KR_CHECK(write(heart->stop_fd, &one, sizeof one) == sizeof one);
    KR_CHECK(pthread_join(heart->thread, NULL) == 0);
    send_frame(heart, KR_MSG_BYE);
    close(heart->stop_fd);
    kr_control_close(&heart->control);
    kr_free(heart);
}
