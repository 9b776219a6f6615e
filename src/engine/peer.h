/* One memory node as the engine sees it: its link, epoch, request numbers and last statistics.
 *
 * A peer is up until its link fails, it answers from another epoch, or a deadline passes without
 * the reply that was due; then it is down for good and every later use returns the first cause.
 * Replies carry the number of their request; a reply nobody waits for any more is dropped. */
#ifndef KR_ENGINE_PEER_H
#define KR_ENGINE_PEER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "wire/link.h"
#include "wire/payload.h"

/* How the engine reaches one memory node. The link stays the caller's. */
typedef struct {
    kr_link *link;          /* connected and authenticated */
    kr_msg_welcome welcome; /* what the node said of itself; embedded: epoch and devices */
    /* Embedded node with one stream: handles the next message on the calling thread
     * (kr_node_step), so that both sides may use all cores in turn. NULL: the node runs by itself. */
    kr_status (*drive)(void *context, uint64_t deadline_ns, kr_err *err);
    void *drive_context;
} kr_engine_node;

enum { KR_PEER_STAGES = sizeof((kr_msg_device_stats *)0)->stage_ns / sizeof(uint64_t) };

typedef struct {
    kr_engine_node node;
    const kr_clock *clock;
    uint64_t timeout_ns; /* of one reply */
    uint64_t sequence;   /* of the last request */
    kr_err down;         /* down.status != KR_OK: lost, with the cause */
    kr_msg_stats stats;  /* last STATS reply */
    kr_msg_device_stats device[KR_MSG_DEVICES_MAX];
    /* Of each device when the engine came: what the node did before is not the engine's. */
    uint64_t busy_before_ns[KR_MSG_DEVICES_MAX], stage_before_ns[KR_MSG_DEVICES_MAX][KR_PEER_STAGES];
} kr_peer;

/* KR_E_LIMIT when the node has no device or more than KR_MSG_DEVICES_MAX. */
kr_status kr_peer_init(kr_peer *peer, const kr_engine_node *node, const kr_clock *clock, uint64_t timeout_ns,
                       kr_err *err);
/* "embedded", "ucx tcp 10.0.0.2:7420", ... */
const char *kr_peer_name(const kr_peer *peer);

/* Sends a request; header needs kind, device, rows, layer, micro_batch, step and flags. The
 * request's number goes to *sequence. */
kr_status kr_peer_send(kr_peer *peer, kr_msg_header header, const kr_piece *pieces, uint32_t count,
                       uint64_t *sequence, kr_err *err);

/* Takes a message that is there already; KR_E_DEADLINE (without text, peer stays up) when none. */
kr_status kr_peer_poll(kr_peer *peer, kr_message *message, kr_err *err);
/* Waits for a message, driving an embedded node; after deadline_ns the peer is down. */
kr_status kr_peer_wait(kr_peer *peer, kr_message *message, uint64_t deadline_ns, kr_err *err);
void kr_peer_release(kr_peer *peer, kr_message *message);
/* The text of an ERROR message as a status of ours; releases nothing. */
kr_status kr_peer_error(const kr_peer *peer, const kr_message *message, kr_err *err);

/* Request and reply; expect is the kind of a good reply. The caller releases *reply. */
kr_status kr_peer_call(kr_peer *peer, kr_msg_kind kind, uint32_t device, const kr_piece *pieces,
                       uint32_t count, kr_msg_kind expect, kr_message *reply, kr_err *err);
/* Refreshes stats and device[]. */
kr_status kr_peer_ask_stats(kr_peer *peer, kr_err *err);
/* Takes the last statistics as what was before. */
void kr_peer_mark(kr_peer *peer);

#endif
