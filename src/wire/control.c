/* Sockets of the control path. Every socket is non-blocking and close-on-exec; waiting is poll()
 * with the time left. */
#include "wire/control.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "wire/payload.h"

enum { BACKLOG = 128, POLL_MS_MAX = 60000 };

typedef union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage room;
} address;

static void address_name(const address *a, socklen_t bytes, char *name, size_t name_bytes)
{
    char host[64] = "?", port[8] = "?";

    (void)getnameinfo(&a->any, bytes, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(name, name_bytes, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, port);
}

static kr_status resolve(const char *host, uint16_t port, struct addrinfo **list, kr_err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char service[8];

    snprintf(service, sizeof service, "%u", port);
    const int failure = getaddrinfo(host, service, &hints, list);
    if (failure != 0)
        return kr_fail(err, KR_E_NOT_FOUND, "host \"%s\": %s", host, gai_strerror(failure));
    return KR_OK;
}

kr_status kr_control_listen(const char *host, uint16_t port, int *out, kr_err *err)
{
    struct addrinfo *list = NULL;
    const int yes = 1;
    kr_status status = resolve(host, port, &list, err);

    if (status != KR_OK)
        return status;
    const int fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* A restarted node takes its port back while old connections linger in the kernel. */
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        bind(fd, list->ai_addr, list->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        status = kr_fail(err, errno == EADDRINUSE ? KR_E_BUSY : KR_E_IO, "cannot listen at %s:%u: %m", host,
                         port);
        if (fd >= 0)
            close(fd);
    } else {
        *out = fd;
    }
    freeaddrinfo(list);
    return status;
}

uint16_t kr_control_port(int fd)
{
    address a = {0};
    socklen_t bytes = sizeof a;

    KR_CHECK(getsockname(fd, &a.any, &bytes) == 0);
    return ntohs(a.any.sa_family == AF_INET6 ? a.v6.sin6_port : a.v4.sin_port);
}

static void no_delay(int fd)
{
    const int yes = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes); /* only a matter of speed */
}

kr_status kr_control_accept(int listener, const kr_clock *clock, kr_control *control, kr_err *err)
{
    address a = {0};
    socklen_t bytes = sizeof a;
    const int fd = accept4(listener, &a.any, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
        return kr_fail(err, KR_E_FULL, "cannot take another client: %m");
    if (fd < 0) /* none there, or it went away before we took it */
        return kr_fail(err, KR_E_DEADLINE, "no client waits");
    no_delay(fd);
    *control = (kr_control){.fd = fd, .clock = clock};
    address_name(&a, bytes, control->peer, sizeof control->peer);
    return KR_OK;
}

void kr_control_close(kr_control *control)
{
    if (control->fd >= 0)
        close(control->fd);
    control->fd = -1;
}

/* Waits for events on the socket. */
static kr_status wait_for(const kr_control *control, short events, uint64_t deadline_ns, kr_err *err)
{
    struct pollfd p = {control->fd, events, 0};

    for (;;) {
        const uint64_t now = kr_now_ns(control->clock);
        if (now >= deadline_ns)
            return kr_fail(err, KR_E_DEADLINE, "%s does not answer in time", control->peer);
        const uint64_t ms = (deadline_ns - now + 999999) / 1000000;
        if (poll(&p, 1, ms > POLL_MS_MAX ? POLL_MS_MAX : (int)ms) > 0)
            return KR_OK;
    }
}

/* Connects one address of the host. */
static kr_status connect_one(const struct addrinfo *to, uint64_t deadline_ns, kr_control *control,
                             kr_err *err)
{
    address a = {0};
    int failure = 0;
    socklen_t bytes = sizeof failure;

    memcpy(&a, to->ai_addr, to->ai_addrlen);
    address_name(&a, to->ai_addrlen, control->peer, sizeof control->peer);
    control->fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (control->fd < 0)
        return kr_fail(err, KR_E_IO, "no socket: %m");
    if (connect(control->fd, to->ai_addr, to->ai_addrlen) != 0) {
        if (errno != EINPROGRESS)
            return kr_fail(err, KR_E_LOST, "no node at %s: %m", control->peer);
        kr_status status = wait_for(control, POLLOUT, deadline_ns, err);
        if (status != KR_OK)
            return status;
        KR_CHECK(getsockopt(control->fd, SOL_SOCKET, SO_ERROR, &failure, &bytes) == 0);
        if (failure != 0)
            return kr_fail(err, KR_E_LOST, "no node at %s: %s", control->peer, strerror(failure));
    }
    no_delay(control->fd);
    return KR_OK;
}

kr_status kr_control_connect(const char *host, uint16_t port, const kr_clock *clock, uint64_t deadline_ns,
                             kr_control *out, kr_err *err)
{
    struct addrinfo *list = NULL;
    kr_control control = {.fd = -1, .clock = clock};
    kr_status status = resolve(host, port, &list, err);

    if (status != KR_OK)
        return status;
    for (const struct addrinfo *to = list; to != NULL; to = to->ai_next) {
        status = connect_one(to, deadline_ns, &control, err);
        if (status == KR_OK)
            break;
        kr_control_close(&control);
    }
    freeaddrinfo(list);
    if (status == KR_OK)
        *out = control;
    return status;
}

static kr_status write_all(const kr_control *control, const uint8_t *bytes, size_t count,
                           uint64_t deadline_ns, kr_err *err)
{
    while (count > 0) {
        const ssize_t n = send(control->fd, bytes, count, MSG_NOSIGNAL);
        if (n > 0) {
            bytes += n;
            count -= (size_t)n;
        } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
            return kr_fail(err, KR_E_LOST, "%s: %m", control->peer);
        } else {
            kr_status status = wait_for(control, POLLOUT, deadline_ns, err);
            if (status != KR_OK)
                return status;
        }
    }
    return KR_OK;
}

static kr_status read_all(const kr_control *control, uint8_t *bytes, size_t count, uint64_t deadline_ns,
                          kr_err *err)
{
    while (count > 0) {
        kr_status status = wait_for(control, POLLIN, deadline_ns, err);
        if (status != KR_OK)
            return status;
        const ssize_t n = recv(control->fd, bytes, count, 0);
        if (n > 0) {
            bytes += n;
            count -= (size_t)n;
        } else if (n == 0) {
            return kr_fail(err, KR_E_LOST, "%s closed the connection", control->peer);
        } else if (errno != EAGAIN && errno != EINTR) {
            return kr_fail(err, KR_E_LOST, "%s: %m", control->peer);
        }
    }
    return KR_OK;
}

kr_status kr_control_send(const kr_control *control, kr_msg_header header, const void *payload, size_t bytes,
                          uint64_t deadline_ns, kr_err *err)
{
    uint8_t frame[KR_MSG_HEADER_BYTES + KR_CONTROL_PAYLOAD_MAX] = {0};

    KR_CHECK(bytes <= KR_CONTROL_PAYLOAD_MAX);
    if (bytes != 0)
        memcpy(frame + KR_MSG_HEADER_BYTES, payload, bytes);
    kr_msg_seal(&header, frame + KR_MSG_HEADER_BYTES, bytes, frame);
    return write_all(control, frame, KR_MSG_HEADER_BYTES + bytes, deadline_ns, err);
}

void kr_control_send_error(const kr_control *control, const kr_err *failure, uint64_t deadline_ns)
{
    uint8_t payload[KR_MSG_ERROR_BYTES_MAX];
    const uint32_t bytes = kr_msg_error_write(failure, payload);

    /* The peer may be gone already; we have told our side. */
    (void)kr_control_send(control, (kr_msg_header){.kind = KR_MSG_ERROR}, payload, bytes, deadline_ns, NULL);
}

kr_status kr_control_receive(const kr_control *control, kr_control_message *message, uint64_t deadline_ns,
                             kr_err *err)
{
    uint8_t header[KR_MSG_HEADER_BYTES];
    kr_status status = read_all(control, header, sizeof header, deadline_ns, err);

    if (status == KR_OK)
        status = kr_msg_header_read(header, &message->header, err);
    if (status == KR_OK && message->header.payload_bytes > KR_CONTROL_PAYLOAD_MAX)
        status = kr_fail(err, KR_E_LIMIT, "%s message of %llu bytes on the control socket; at most %zu",
                         kr_msg_name(message->header.kind), (unsigned long long)message->header.payload_bytes,
                         (size_t)KR_CONTROL_PAYLOAD_MAX);
    if (status == KR_OK)
        status = read_all(control, message->payload, message->header.payload_bytes, deadline_ns, err);
    return status == KR_OK ? kr_msg_verify(&message->header, message->payload, err) : status;
}

kr_status kr_control_expect(const kr_control *control, kr_msg_kind kind, kr_control_message *message,
                            uint64_t deadline_ns, kr_err *err)
{
    kr_status status = kr_control_receive(control, message, deadline_ns, err);

    if (status != KR_OK || message->header.kind == kind)
        return status;
    if (message->header.kind == KR_MSG_ERROR)
        return kr_msg_error_read(message->payload, message->header.payload_bytes, err);
    return kr_fail(err, KR_E_FORMAT, "%s sent %s where %s was due", control->peer,
                   kr_msg_name(message->header.kind), kr_msg_name(kind));
}

static bool same_host(const struct sockaddr *a, const address *b)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)a;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)a;
    uint32_t mapped;

    if (a->sa_family == AF_INET && b->any.sa_family == AF_INET)
        return v4->sin_addr.s_addr == b->v4.sin_addr.s_addr;
    if (a->sa_family == AF_INET && IN6_IS_ADDR_V4MAPPED(&b->v6.sin6_addr)) {
        memcpy(&mapped, &b->v6.sin6_addr.s6_addr[12], sizeof mapped);
        return v4->sin_addr.s_addr == mapped;
    }
    return a->sa_family == AF_INET6 && b->any.sa_family == AF_INET6 &&
           memcmp(&v6->sin6_addr, &b->v6.sin6_addr, sizeof v6->sin6_addr) == 0;
}

kr_status kr_control_interface(const kr_control *control, char *name, size_t bytes, kr_err *err)
{
    address local = {0};
    socklen_t length = sizeof local;
    struct ifaddrs *list = NULL;
    kr_status status = KR_E_IO;
    char text[KR_CONTROL_NAME_BYTES];

    if (getsockname(control->fd, &local.any, &length) != 0 || getifaddrs(&list) != 0)
        return kr_fail(err, KR_E_IO, "cannot list network interfaces: %m");
    for (const struct ifaddrs *i = list; i != NULL && status != KR_OK; i = i->ifa_next) {
        if (i->ifa_addr != NULL && same_host(i->ifa_addr, &local)) {
            snprintf(name, bytes, "%s", i->ifa_name);
            status = KR_OK;
        }
    }
    freeifaddrs(list);
    if (status == KR_OK)
        return status;
    /* Linux answers on all of 127/8 although lo carries 127.0.0.1 alone. */
    if (local.any.sa_family == AF_INET && ntohl(local.v4.sin_addr.s_addr) >> 24 == 127) {
        snprintf(name, bytes, "lo");
        return KR_OK;
    }
    address_name(&local, length, text, sizeof text);
    return kr_fail(err, KR_E_IO, "no network interface holds %s", text);
}
