/* A link carries whole messages between one compute node and one memory node, in order.
 *
 * Two kinds: a queue inside the process (embedded node; the same bytes, no copy of payloads) and
 * UCX (shared memory, TCP, RDMA). Liveness is our own heartbeat, deadline and epoch; a link never
 * trusts the transport's word alone. Every call that waits takes a deadline (kr_clock time). */
#ifndef KR_WIRE_LINK_H
#define KR_WIRE_LINK_H

#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"
#include "wire/msg.h"

/* A received message; payload stays valid until kr_link_release. */
typedef struct {
    kr_msg_header header;
    const uint8_t *payload; /* [header.payload_bytes], 64-byte aligned */
    void *buffer;           /* link's own */
} kr_message;

/* Gather list of an outgoing payload; the memory may be reused when send returns. */
typedef struct {
    const void *data;
    size_t bytes;
} kr_piece;

typedef struct kr_link kr_link;

struct kr_link {
    /* Fills magic, version, payload_bytes and checksum of header itself. KR_E_LOST, KR_E_DEADLINE,
     * KR_E_LIMIT. */
    kr_status (*send)(kr_link *link, kr_msg_header header, const kr_piece *pieces, uint32_t count,
                      uint64_t deadline_ns, kr_err *err);
    /* Next message, or KR_E_DEADLINE. deadline 0 polls. Checksum and header are verified. */
    kr_status (*receive)(kr_link *link, kr_message *message, uint64_t deadline_ns, kr_err *err);
    void (*release)(kr_link *link, kr_message *message);
    void (*close)(kr_link *link); /* frees the link */
    const char *(*describe)(const kr_link *link); /* "embedded", "ucx shm 127.0.0.1:7420", ... */
    uint64_t bytes_sent, bytes_received, messages_sent, messages_received;
};

#endif
