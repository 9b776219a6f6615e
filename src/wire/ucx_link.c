/* A link over a UCX data path and a heart on the control socket.
 *
 * A message is one run of bytes on the data path: 64 header bytes, then the payload. The receiver
 * reads the header into a pooled buffer, checks it, and only then makes room for the payload; the
 * receive under way survives KR_E_DEADLINE in `incoming`.
 *
 * States: alive -> broken (a header that cannot be trusted, so that the next one cannot be found)
 *         alive -> lost   (the heart or the data path says so). Both end in close. */
#include "wire/ucx_link.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/check.h"
#include "wire/buffer.h"
#include "wire/heart.h"

/* What was sent before close gets this long to leave. */
#define FLUSH_NS ((uint64_t)200000000)
/* A control socket tells of its end within this time of the data path's. */
#define HEAR_NS ((uint64_t)200000000)

typedef struct {
    kr_link link;
    kr_data *data;
    kr_heart *heart;
    const kr_clock *clock;
    kr_wire_pool pool;
    kr_wire_pool claimed;     /* buffers UCX still holds after a failed send */
    kr_wire_buffer *incoming; /* of the message under way; NULL between messages */
    bool has_header;          /* incoming's header is read and is in header */
    kr_msg_header header;
    _Atomic bool broken;
    uint32_t epoch;
    uint64_t payload_max;
    char peer[KR_CONTROL_NAME_BYTES + 16]; /* "node 127.0.0.1:7420" */
    char description[KR_CONTROL_NAME_BYTES + 16];
} ucx_link;

/* Why the heart lost the peer. The data path may have noticed first; the heart, which knows more,
 * then gets a moment to hear of it. NULL: it has nothing to say. */
static const char *heart_says(const ucx_link *l)
{
    const uint64_t deadline_ns = kr_deadline_after(l->clock, HEAR_NS);
    const char *loss;

    while ((loss = kr_heart_loss(l->heart)) == NULL && kr_now_ns(l->clock) < deadline_ns)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return loss;
}

/* Turns the data path's KR_E_LOST into one that names the peer and the cause. */
static kr_status link_lost(ucx_link *l, kr_err *err)
{
    char text[KR_ERR_TEXT_BYTES] = "data path";

    if (l->broken)
        return kr_fail(err, KR_E_LOST, "%s: link given up after a malformed message", l->peer);
    const char *loss = heart_says(l);
    if (loss == NULL && err != NULL)
        snprintf(text, sizeof text, "%s", err->text);
    return kr_fail(err, KR_E_LOST, "%s lost: %s", l->peer, loss != NULL ? loss : text);
}

static kr_status link_send(kr_link *link, kr_msg_header header, const kr_piece *pieces, uint32_t count,
                           uint64_t deadline_ns, kr_err *err)
{
    ucx_link *l = (ucx_link *)link;
    kr_wire_buffer *buffer = NULL;
    bool released = true;

    if (header.epoch != l->epoch)
        return kr_fail(err, KR_E_STALE, "%s message for epoch %u of %s, which is in epoch %u",
                       kr_msg_name(header.kind), header.epoch, l->peer, l->epoch);
    if (l->broken)
        return link_lost(l, err);
    kr_status status = kr_wire_join(&l->pool, &header, pieces, count, l->payload_max, &buffer, err);
    if (status != KR_OK)
        return status;
    status = kr_data_send(l->data, buffer->bytes, KR_MSG_HEADER_BYTES + header.payload_bytes, deadline_ns,
                          &released, err);
    kr_wire_give(released ? &l->pool : &l->claimed, buffer);
    if (status == KR_E_LOST)
        return link_lost(l, err);
    if (status == KR_OK)
        kr_link_count_sent(link, header.payload_bytes);
    return status;
}

/* A header of the peer's was not acceptable: nothing after it can be found. */
static kr_status link_break(ucx_link *l, kr_status status)
{
    l->broken = true;
    return status;
}

/* Reads and checks the next header, then makes room for its payload. */
static kr_status receive_header(ucx_link *l, uint64_t deadline_ns, kr_err *err)
{
    if (l->incoming == NULL)
        l->incoming = kr_wire_take(&l->pool, 0);
    if (l->incoming == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory to receive from %s", l->peer);
    kr_status status = kr_data_receive(l->data, l->incoming->bytes, KR_MSG_HEADER_BYTES, deadline_ns, err);
    if (status != KR_OK)
        return status;
    status = kr_msg_header_read(l->incoming->bytes, &l->header, err);
    if (status == KR_OK && l->header.payload_bytes > l->payload_max)
        status = kr_fail(err, KR_E_LIMIT, "%s announced a %s message of %llu bytes; the link carries %llu",
                         l->peer, kr_msg_name(l->header.kind), (unsigned long long)l->header.payload_bytes,
                         (unsigned long long)l->payload_max);
    if (status != KR_OK)
        return link_break(l, status);
    if (l->incoming->capacity < l->header.payload_bytes) {
        kr_wire_give(&l->pool, l->incoming);
        l->incoming = kr_wire_take(&l->pool, l->header.payload_bytes);
        if (l->incoming == NULL)
            return link_break(l, kr_fail(err, KR_E_MEMORY, "no memory for %llu bytes from %s",
                                         (unsigned long long)l->header.payload_bytes, l->peer));
    }
    l->has_header = true;
    return KR_OK;
}

static kr_status link_receive(kr_link *link, kr_message *message, uint64_t deadline_ns, kr_err *err)
{
    ucx_link *l = (ucx_link *)link;
    kr_status status = l->broken ? link_lost(l, err) : KR_OK;

    if (status == KR_OK && !l->has_header)
        status = receive_header(l, deadline_ns, err);
    if (status == KR_OK && l->header.payload_bytes != 0)
        status = kr_data_receive(l->data, l->incoming->bytes + KR_MSG_HEADER_BYTES, l->header.payload_bytes,
                                 deadline_ns, err);
    if (status != KR_OK)
        return status == KR_E_LOST ? link_lost(l, err) : status;

    kr_wire_buffer *buffer = l->incoming;
    uint8_t *payload = buffer->bytes + KR_MSG_HEADER_BYTES;
    l->incoming = NULL;
    l->has_header = false;
    status = kr_msg_verify(&l->header, payload, err);
    if (status == KR_OK && l->header.epoch != l->epoch)
        status = kr_fail(err, KR_E_STALE, "%s sent %s for epoch %u; this is epoch %u", l->peer,
                         kr_msg_name(l->header.kind), l->header.epoch, l->epoch);
    if (status != KR_OK) {
        kr_wire_give(&l->pool, buffer);
        return status;
    }
    *message = (kr_message){l->header, payload, buffer};
    kr_link_count_received(link, l->header.payload_bytes);
    return KR_OK;
}

static void link_release(kr_link *link, kr_message *message)
{
    kr_wire_give(&((ucx_link *)link)->pool, message->buffer);
    *message = (kr_message){0};
}

static void link_close(kr_link *link)
{
    ucx_link *l = (ucx_link *)link;
    const bool alive = kr_heart_loss(l->heart) == NULL;

    kr_data_flush(l->data, alive ? kr_deadline_after(l->clock, FLUSH_NS) : 0);
    kr_heart_stop(l->heart); /* before the data path goes: it may interrupt it until it has ended */
    kr_data_close(l->data);
    if (l->incoming != NULL)
        kr_wire_give(&l->pool, l->incoming);
    kr_wire_pool_free(&l->pool);
    kr_wire_pool_free(&l->claimed);
    kr_free(l);
}

static const char *link_describe(const kr_link *link) { return ((const ucx_link *)link)->description; }

static void on_lost(void *context) { kr_data_interrupt(context); }

kr_status kr_ucx_link_create(kr_link **link, const kr_ucx_link_config *config, kr_err *err)
{
    const kr_msg_welcome *welcome = config->welcome;
    const kr_heart_config heart = {.beat_interval_ms = welcome->beat_interval_ms,
                                   .dead_after_ms = welcome->dead_after_ms,
                                   .epoch = welcome->epoch,
                                   .on_lost = on_lost,
                                   .context = config->data};
    ucx_link *l = kr_alloc(sizeof *l);

    if (l == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a link");
    kr_status status = kr_heart_start(&l->heart, config->control, &heart, err);
    if (status != KR_OK) {
        kr_free(l);
        return status;
    }
    l->link = (kr_link){.send = link_send,
                        .receive = link_receive,
                        .release = link_release,
                        .close = link_close,
                        .describe = link_describe};
    l->data = config->data;
    l->clock = config->control->clock;
    l->epoch = welcome->epoch;
    l->payload_max = config->payload_max < welcome->payload_max ? config->payload_max : welcome->payload_max;
    kr_wire_pool_init(&l->pool);
    kr_wire_pool_init(&l->claimed);
    snprintf(l->peer, sizeof l->peer, "%s %s", config->peer, config->control->peer);
    snprintf(l->description, sizeof l->description, "ucx %s %s",
             config->transport == KR_PATH_SHM ? "shm" : "tcp", config->control->peer);
    *link = &l->link;
    return KR_OK;
}
