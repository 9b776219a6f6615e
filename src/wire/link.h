/* A link carries whole messages between one compute node and one memory node, in order.
 *
 * Two kinds: a queue inside the process (embedded node; the same bytes, no copy of payloads) and
 * UCX (shared memory, TCP). Liveness is our own heartbeat, deadline and epoch; a link never trusts
 * the transport's word alone. Every call that waits takes a deadline (kr_clock time).
 *
 * Threads: one thread at a time receives; any thread may send, also while another receives (so a
 * device's thread can answer itself), and sends leave whole; any thread may release. close comes
 * when every other call has returned and every message is released. */
#ifndef KR_WIRE_LINK_H
#define KR_WIRE_LINK_H

#include <stdatomic.h>
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
    /* Fills magic, version, payload_bytes and checksum of header itself. KR_E_LOST, KR_E_DEADLINE
     * (nothing was sent, or the link is lost from here on), KR_E_LIMIT, KR_E_STALE (the header names
     * another epoch than the connected node's), KR_E_MEMORY. */
    kr_status (*send)(kr_link *link, kr_msg_header header, const kr_piece *pieces, uint32_t count,
                      uint64_t deadline_ns, kr_err *err);
    /* Next message, or KR_E_DEADLINE. deadline 0 polls. Header and checksum are verified. KR_E_STALE
     * and KR_E_CHECKSUM drop the message and the link goes on; KR_E_FORMAT, KR_E_VERSION and
     * KR_E_LIMIT end it (later calls: KR_E_LOST). What arrived before a loss is still delivered. */
    kr_status (*receive)(kr_link *link, kr_message *message, uint64_t deadline_ns, kr_err *err);
    void (*release)(kr_link *link, kr_message *message);
    void (*close)(kr_link *link);                 /* frees the link */
    const char *(*describe)(const kr_link *link); /* "embedded", "ucx shm 127.0.0.1:7420", ... */
    /* Payload bytes and messages so far; read them from any thread. */
    _Atomic uint64_t bytes_sent, bytes_received, messages_sent, messages_received;
};

static inline void kr_link_count_sent(kr_link *link, uint64_t payload_bytes)
{
    link->bytes_sent += payload_bytes;
    link->messages_sent++;
}

static inline void kr_link_count_received(kr_link *link, uint64_t payload_bytes)
{
    link->bytes_received += payload_bytes;
    link->messages_received++;
}

#endif
