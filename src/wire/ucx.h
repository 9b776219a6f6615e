/* Links over UCX, connected by socket address: shared memory on one host, TCP between hosts.
 *
 * The address belongs to a plain TCP control socket, which carries the handshake, the exchange of
 * UCX's own addresses and then heartbeats (heart.h); messages go over UCX (data.h). So UCX sees
 * nothing of a stranger who has not proved the key, and a stopped peer is noticed although UCX
 * reports none. A listener binds to the address it is given and to nothing else; a TCP data path
 * listens, at a port of UCX's choice, on the interface of that address alone, a shared-memory one
 * on none.
 * Links are neither encrypted nor, past the handshake, authenticated: TCP links belong on a trusted
 * network. */
#ifndef KR_WIRE_UCX_H
#define KR_WIRE_UCX_H

#include "wire/link.h"

typedef enum { KR_UCX_AUTO, KR_UCX_SHM, KR_UCX_TCP } kr_ucx_transport;

/* host and key are the caller's and outlive the listener. */
typedef struct {
    const char *host;           /* numeric address or name (looked up by the system, in its time) */
    uint16_t port;              /* 0 in listen: the system chooses, see kr_ucx_port */
    kr_ucx_transport transport; /* AUTO: shared memory when both ends are on one host */
    const uint8_t *key;         /* pre-shared key, NULL: none */
    size_t key_bytes;
    uint64_t payload_max; /* 1 .. KR_MSG_PAYLOAD_MAX: refuse larger messages */
    uint64_t timeout_ns;  /* of connecting and handshake */
    uint32_t spin_us;     /* poll this long before sleeping in receive */
    const kr_clock *clock;
} kr_ucx_config;

typedef struct kr_ucx_listener kr_ucx_listener;

/* KR_E_BUSY (port taken), KR_E_NOT_FOUND (host), KR_E_IO, KR_E_MEMORY. */
kr_status kr_ucx_listen(kr_ucx_listener **listener, const kr_ucx_config *config, kr_err *err);
uint16_t kr_ucx_port(const kr_ucx_listener *listener);
/* Next client that passed the handshake, or KR_E_DEADLINE. A client that fails it costs the node
 * nothing but the attempt, which ends after timeout_ns and is logged once. welcome: what to tell
 * the clients that arrive during this call; its client field is filled here. One thread calls. */
kr_status kr_ucx_accept(kr_ucx_listener *listener, const kr_msg_welcome *welcome, kr_link **link,
                        uint64_t deadline_ns, kr_err *err);
/* Ends attempts under way; links already handed out live on. */
void kr_ucx_listener_close(kr_ucx_listener *listener);

/* Connects and completes the handshake; *welcome is the node's, and its epoch must be in the header
 * of every message sent. KR_E_LOST (absent), KR_E_VERSION (with both versions), KR_E_AUTH,
 * KR_E_DEADLINE, KR_E_UNSUPPORTED (no transport that both allow), KR_E_NOT_FOUND (host).
 * Heartbeats run inside the link from here on: receive returns KR_E_LOST when the peer has been
 * silent for dead_after_ms, even if the transport reports nothing. */
kr_status kr_ucx_connect(const kr_ucx_config *config, kr_msg_welcome *welcome, kr_link **link, kr_err *err);

#endif
