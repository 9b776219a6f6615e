/* Requests to and replies from one memory node. */
#include "engine/peer.h"

#include <string.h>

kr_status kr_peer_init(kr_peer *peer, const kr_engine_node *node, const kr_clock *clock, uint64_t timeout_ns,
                       kr_err *err)
{
    if (node->welcome.devices == 0 || node->welcome.devices > KR_MSG_DEVICES_MAX)
        return kr_fail(err, KR_E_LIMIT, "memory node %s has %u devices; an engine uses 1 to %d of a node",
                       node->link->describe(node->link), node->welcome.devices, KR_MSG_DEVICES_MAX);
    *peer = (kr_peer){.node = *node, .clock = clock, .timeout_ns = timeout_ns};
    return KR_OK;
}

const char *kr_peer_name(const kr_peer *peer) { return peer->node.link->describe(peer->node.link); }

/* The first cause stays: later calls return it. */
static kr_status go_down(kr_peer *peer, const kr_err *cause, kr_err *err)
{
    if (peer->down.status == KR_OK)
        peer->down = *cause;
    if (err != NULL)
        *err = peer->down;
    return peer->down.status;
}

static kr_status still_up(const kr_peer *peer, kr_err *err)
{
    if (peer->down.status != KR_OK && err != NULL)
        *err = peer->down;
    return peer->down.status;
}

kr_status kr_peer_send(kr_peer *peer, kr_msg_header header, const kr_piece *pieces, uint32_t count,
                       uint64_t *sequence, kr_err *err)
{
    kr_status status = still_up(peer, err);
    if (status != KR_OK)
        return status;
    kr_err cause = {0};
    header.epoch = peer->node.welcome.epoch;
    header.sequence = peer->sequence + 1;
    status = peer->node.link->send(peer->node.link, header, pieces, count,
                                   kr_deadline_after(peer->clock, peer->timeout_ns), &cause);
    if (status == KR_E_LIMIT) { /* too large for the link: nothing was sent */
        if (err != NULL)
            *err = cause;
        return status;
    }
    if (status != KR_OK)
        return go_down(peer, &cause, err);
    *sequence = ++peer->sequence;
    return KR_OK;
}

/* Messages that no caller wants to see: heartbeats. A wrong epoch takes the peer down, and so does an
 * ERROR that answers no request: why the node will not serve us. */
static kr_status accept(kr_peer *peer, kr_message *message, bool *wanted, kr_err *err)
{
    *wanted = false;
    if (message->header.kind == KR_MSG_BEAT) {
        kr_peer_release(peer, message);
        return KR_OK;
    }
    if (message->header.epoch != peer->node.welcome.epoch) {
        kr_err cause;
        kr_fail(&cause, KR_E_STALE,
                "memory node %s restarted: it answers in epoch %u, the session began in %u",
                kr_peer_name(peer), message->header.epoch, peer->node.welcome.epoch);
        kr_peer_release(peer, message);
        return go_down(peer, &cause, err);
    }
    if (message->header.kind == KR_MSG_ERROR && message->header.sequence == 0) {
        kr_err cause;
        (void)kr_peer_error(peer, message, &cause);
        kr_peer_release(peer, message);
        return go_down(peer, &cause, err);
    }
    *wanted = true;
    return KR_OK;
}

kr_status kr_peer_poll(kr_peer *peer, kr_message *message, kr_err *err)
{
    kr_status status = still_up(peer, err);
    for (bool wanted = false; status == KR_OK && !wanted;) {
        kr_err cause = {0};
        status = peer->node.link->receive(peer->node.link, message, 0, &cause);
        if (status == KR_OK)
            status = accept(peer, message, &wanted, err);
        else if (status != KR_E_DEADLINE)
            status = go_down(peer, &cause, err);
    }
    return status;
}

static kr_status wait_failed(kr_peer *peer, kr_status status, kr_err *cause, kr_err *err)
{
    if (status == KR_E_DEADLINE)
        kr_fail(cause, KR_E_DEADLINE, "memory node %s did not answer within %.1f s; it counts as lost",
                kr_peer_name(peer), (double)peer->timeout_ns / 1e9);
    return go_down(peer, cause, err);
}

kr_status kr_peer_wait(kr_peer *peer, kr_message *message, uint64_t deadline_ns, kr_err *err)
{
    kr_status status = still_up(peer, err);
    for (bool wanted = false; status == KR_OK && !wanted;) {
        kr_err cause = {0};
        if (peer->node.drive != NULL) {
            status = kr_peer_poll(peer, message, err);
            if (status != KR_E_DEADLINE)
                return status;
            status = peer->node.drive(peer->node.drive_context, deadline_ns, &cause);
        } else {
            status = peer->node.link->receive(peer->node.link, message, deadline_ns, &cause);
            if (status == KR_OK)
                status = accept(peer, message, &wanted, &cause);
        }
        if (status != KR_OK)
            return wait_failed(peer, status, &cause, err);
    }
    return status;
}

void kr_peer_release(kr_peer *peer, kr_message *message)
{
    peer->node.link->release(peer->node.link, message);
}

kr_status kr_peer_error(const kr_peer *peer, const kr_message *message, kr_err *err)
{
    kr_err theirs = {0};
    const kr_status status = kr_msg_error_read(message->payload, message->header.payload_bytes, &theirs);
    return kr_fail(err, status, "memory node %s: %s", kr_peer_name(peer), theirs.text);
}

kr_status kr_peer_call(kr_peer *peer, kr_msg_kind kind, uint32_t device, const kr_piece *pieces,
                       uint32_t count, kr_msg_kind expect, kr_message *reply, kr_err *err)
{
    uint64_t sequence = 0;
    const kr_msg_header header = {.kind = (uint16_t)kind, .device = device};
    kr_status status = kr_peer_send(peer, header, pieces, count, &sequence, err);
    const uint64_t deadline = kr_deadline_after(peer->clock, peer->timeout_ns);
    while (status == KR_OK) {
        kr_message message;
        status = kr_peer_wait(peer, &message, deadline, err);
        if (status != KR_OK)
            break;
        if (message.header.sequence != sequence) {
            kr_peer_release(peer, &message);
            continue;
        }
        if (message.header.kind == expect) {
            *reply = message;
            return KR_OK;
        }
        if (message.header.kind == KR_MSG_ERROR)
            status = kr_peer_error(peer, &message, err);
        else
            status = kr_fail(err, KR_E_FORMAT, "memory node %s answered %s with %s", kr_peer_name(peer),
                             kr_msg_name(kind), kr_msg_name((kr_msg_kind)message.header.kind));
        kr_peer_release(peer, &message);
    }
    return status;
}

kr_status kr_peer_ask_stats(kr_peer *peer, kr_err *err)
{
    kr_message reply;
    kr_status status = kr_peer_call(peer, KR_MSG_STATS, 0, NULL, 0, KR_MSG_STATS, &reply, err);
    if (status != KR_OK)
        return status;
    kr_msg_stats stats = {0};
    status = kr_msg_stats_read(reply.payload, reply.header.payload_bytes, &stats, peer->device, err);
    kr_peer_release(peer, &reply);
    if (status != KR_OK)
        return status;
    if (stats.devices != peer->node.welcome.devices)
        return kr_fail(err, KR_E_FORMAT, "memory node %s has %u devices and reports on %u",
                       kr_peer_name(peer), peer->node.welcome.devices, stats.devices);
    peer->stats = stats;
    return KR_OK;
}

void kr_peer_mark(kr_peer *peer)
{
    for (uint32_t d = 0; d < peer->node.welcome.devices; d++) {
        peer->busy_before_ns[d] = peer->device[d].busy_ns;
        memcpy(peer->stage_before_ns[d], peer->device[d].stage_ns, sizeof peer->stage_before_ns[d]);
    }
}
