/* Links over UCX, connected by socket address: shared memory on one host, TCP or RDMA between hosts.
 *
 * A listener binds to the address it is given and to nothing else: for a loopback address the
 * listening network device is fixed to lo (a bare UCX listener would listen everywhere).
 * TCP and RDMA links are neither encrypted nor, past the handshake, authenticated: they belong on
 * a trusted network. */
#ifndef KR_WIRE_UCX_H
#define KR_WIRE_UCX_H

#include "wire/link.h"

typedef enum { KR_UCX_AUTO, KR_UCX_SHM, KR_UCX_TCP } kr_ucx_transport;

typedef struct {
    const char *host;            /* numeric address or name */
    uint16_t port;               /* 0 in listen: the system chooses, see kr_ucx_port */
    kr_ucx_transport transport;  /* AUTO: shared memory when both ends are on one host */
    const uint8_t *key;          /* pre-shared key, NULL: none */
    size_t key_bytes;
    uint64_t payload_max;        /* refuse larger messages */
    uint64_t timeout_ns;         /* of connecting and handshake */
    uint32_t spin_us;            /* poll this long before sleeping in receive */
    const kr_clock *clock;
} kr_ucx_config;

typedef struct kr_ucx_listener kr_ucx_listener;

kr_status kr_ucx_listen(kr_ucx_listener **listener, const kr_ucx_config *config, kr_err *err);
uint16_t kr_ucx_port(const kr_ucx_listener *listener);
/* Next client that passed the handshake, or KR_E_DEADLINE. A client that fails it costs the node
 * nothing but the attempt, which is logged. welcome: what to tell it. */
kr_status kr_ucx_accept(kr_ucx_listener *listener, const kr_msg_welcome *welcome, kr_link **link,
                        uint64_t deadline_ns, kr_err *err);
void kr_ucx_listener_close(kr_ucx_listener *listener);

/* Connects and completes the handshake; *welcome is the node's. KR_E_LOST (absent), KR_E_VERSION
 * (with both versions), KR_E_AUTH, KR_E_DEADLINE. Heartbeats run inside the link from here on:
 * receive returns KR_E_LOST when the peer has been silent for dead_after_ms, even if the transport
 * reports nothing. */
kr_status kr_ucx_connect(const kr_ucx_config *config, kr_msg_welcome *welcome, kr_link **link,
                         kr_err *err);

#endif
