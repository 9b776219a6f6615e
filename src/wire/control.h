/* The control socket of a connection: one TCP stream that carries the handshake, the exchange of
 * data-path addresses and, from then on, heartbeats. Small whole messages, each with a deadline for
 * all of it, so that a peer that dribbles bytes is no better than one that is silent. */
#ifndef KR_WIRE_CONTROL_H
#define KR_WIRE_CONTROL_H

#include "base/clock.h"
#include "wire/msg.h"

enum { KR_CONTROL_PAYLOAD_MAX = sizeof(kr_msg_path) + KR_PATH_ADDRESS_MAX, KR_CONTROL_NAME_BYTES = 80 };

typedef struct {
    int fd; /* non-blocking */
    const kr_clock *clock;
    char peer[KR_CONTROL_NAME_BYTES]; /* "127.0.0.1:7420", for messages */
} kr_control;

typedef struct {
    kr_msg_header header;
    uint8_t payload[KR_CONTROL_PAYLOAD_MAX];
} kr_control_message;

/* Listens at host:port (port 0: the system chooses). KR_E_IO names the address. */
kr_status kr_control_listen(const char *host, uint16_t port, int *fd, kr_err *err);
uint16_t kr_control_port(int fd);
/* Takes a waiting client; KR_E_DEADLINE when there is none. */
kr_status kr_control_accept(int listener, const kr_clock *clock, kr_control *control, kr_err *err);
/* KR_E_LOST: nobody listens, or the host is out of reach. */
kr_status kr_control_connect(const char *host, uint16_t port, const kr_clock *clock, uint64_t deadline_ns,
                             kr_control *control, kr_err *err);
void kr_control_close(kr_control *control); /* any number of times */

kr_status kr_control_send(const kr_control *control, kr_msg_header header, const void *payload, size_t bytes,
                          uint64_t deadline_ns, kr_err *err);
/* A failure the peer should know about, if it still listens. */
void kr_control_send_error(const kr_control *control, const kr_err *failure, uint64_t deadline_ns);
/* Any one message of at most KR_CONTROL_PAYLOAD_MAX payload bytes, verified. KR_E_LOST when the peer
 * has closed. */
kr_status kr_control_receive(const kr_control *control, kr_control_message *message, uint64_t deadline_ns,
                             kr_err *err);
/* The same, but only of this kind: an ERROR becomes the peer's failure as ours, anything else
 * KR_E_FORMAT. */
kr_status kr_control_expect(const kr_control *control, kr_msg_kind kind, kr_control_message *message,
                            uint64_t deadline_ns, kr_err *err);

/* Name of the network interface that holds the socket's local address ("lo"). KR_E_IO. */
kr_status kr_control_interface(const kr_control *control, char *name, size_t bytes, kr_err *err);

#endif
