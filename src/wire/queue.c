/* The in-process link: two lanes, each a bounded ring of pooled messages with one lock.
 *
 * A lane is closed when either end closes; what was sent before is still received, then both ends
 * see KR_E_LOST. The pair is freed by whichever end closes last. Waiting spins for SPIN_NS with the
 * core offered to others, then sleeps on a condition variable until the deadline. */
#include "wire/queue.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "base/arena.h"
#include "base/check.h"
#include "wire/buffer.h"

enum { SPIN_NS = 10000, DEPTH_MAX = 4096 };
#define SLEEP_NS_MAX ((uint64_t)3600 * 1000000000)

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t filled, drained;
    kr_wire_buffer **ring; /* [depth] */
    uint32_t depth, head;
    _Atomic uint32_t count; /* written under lock; read by spinners without it */
    _Atomic bool closed;
    kr_wire_pool pool;
} lane;

typedef struct {
    lane lanes[2]; /* [0] client to server, [1] server to client */
    _Atomic uint32_t open_ends;
} pair;

typedef struct {
    kr_link link;
    pair *pair;
    lane *out, *in;
    const kr_clock *clock;
} queue_end;

static void lane_init(lane *l, uint32_t depth)
{
    pthread_condattr_t attributes;

    l->depth = depth;
    KR_CHECK(pthread_mutex_init(&l->lock, NULL) == 0);
    KR_CHECK(pthread_condattr_init(&attributes) == 0);
    KR_CHECK(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
    KR_CHECK(pthread_cond_init(&l->filled, &attributes) == 0);
    KR_CHECK(pthread_cond_init(&l->drained, &attributes) == 0);
    pthread_condattr_destroy(&attributes);
    kr_wire_pool_init(&l->pool);
}

static void lane_free(lane *l)
{
    for (; l->count > 0; l->count--)
        kr_wire_give(&l->pool, l->ring[l->head++ % l->depth]);
    kr_wire_pool_free(&l->pool);
    pthread_cond_destroy(&l->filled);
    pthread_cond_destroy(&l->drained);
    pthread_mutex_destroy(&l->lock);
    kr_free(l->ring);
}

static void lane_close(lane *l)
{
    pthread_mutex_lock(&l->lock);
    atomic_store(&l->closed, true);
    pthread_cond_broadcast(&l->filled);
    pthread_cond_broadcast(&l->drained);
    pthread_mutex_unlock(&l->lock);
}

/* One sleep under the lane's lock, until signalled or the deadline (of clock) passes. */
static void lane_sleep(lane *l, pthread_cond_t *condition, const kr_clock *clock, uint64_t deadline_ns)
{
    const uint64_t now = kr_now_ns(clock);
    uint64_t left = deadline_ns > now ? deadline_ns - now : 0;

    if (left > SLEEP_NS_MAX)
        left = SLEEP_NS_MAX;
    const uint64_t end = kr_deadline_after(&kr_clock_system, left); /* the condition's own clock */
    const struct timespec until = {(time_t)(end / 1000000000u), (long)(end % 1000000000u)};
    (void)pthread_cond_timedwait(condition, &l->lock, &until); /* the caller looks again */
}

/* Puts buffer at the tail of the lane; waits while the lane is full. */
static kr_status lane_push(lane *l, kr_wire_buffer *buffer, const kr_clock *clock, uint64_t deadline_ns,
                           kr_err *err)
{
    kr_status status = KR_OK;

    pthread_mutex_lock(&l->lock);
    while (l->count == l->depth && !l->closed && kr_now_ns(clock) < deadline_ns)
        lane_sleep(l, &l->drained, clock, deadline_ns);
    if (l->closed) {
        status = kr_fail(err, KR_E_LOST, "embedded link: the other end has closed");
    } else if (l->count == l->depth) {
        status = kr_fail(err, KR_E_DEADLINE, "embedded link: %u messages wait unread", l->depth);
    } else {
        l->ring[(l->head + l->count) % l->depth] = buffer;
        l->count++;
        pthread_cond_signal(&l->filled);
    }
    pthread_mutex_unlock(&l->lock);
    return status;
}

/* Waits a moment without the lock for the common case that the other side is about to send. */
static void lane_spin(const lane *l, const kr_clock *clock, uint64_t deadline_ns)
{
    const uint64_t begin = kr_now_ns(clock);

    for (uint64_t now = begin; now < deadline_ns && now - begin < SPIN_NS; now = kr_now_ns(clock)) {
        if (l->count != 0 || l->closed)
            return;
        sched_yield();
    }
}

static kr_status lane_pop(lane *l, kr_wire_buffer **buffer, const kr_clock *clock, uint64_t deadline_ns,
                          kr_err *err)
{
    kr_status status = KR_OK;

    lane_spin(l, clock, deadline_ns);
    pthread_mutex_lock(&l->lock);
    while (l->count == 0 && !l->closed && kr_now_ns(clock) < deadline_ns)
        lane_sleep(l, &l->filled, clock, deadline_ns);
    if (l->count != 0) {
        *buffer = l->ring[l->head];
        l->head = (l->head + 1) % l->depth;
        l->count--;
        pthread_cond_signal(&l->drained);
    } else if (l->closed) {
        status = kr_fail(err, KR_E_LOST, "embedded link: the other end has closed");
    } else {
        status = kr_fail(err, KR_E_DEADLINE, "embedded link: no message in time");
    }
    pthread_mutex_unlock(&l->lock);
    return status;
}

static kr_status queue_send(kr_link *link, kr_msg_header header, const kr_piece *pieces, uint32_t count,
                            uint64_t deadline_ns, kr_err *err)
{
    queue_end *end = (queue_end *)link;
    kr_wire_buffer *buffer = NULL;
    kr_status status = kr_wire_join(&end->out->pool, &header, pieces, count, KR_MSG_PAYLOAD_MAX, &buffer,
                                    err);

    if (status != KR_OK)
        return status;
    status = lane_push(end->out, buffer, end->clock, deadline_ns, err);
    if (status != KR_OK) {
        kr_wire_give(&end->out->pool, buffer);
        return status;
    }
    kr_link_count_sent(link, header.payload_bytes);
    return KR_OK;
}

static kr_status queue_receive(kr_link *link, kr_message *message, uint64_t deadline_ns, kr_err *err)
{
    queue_end *end = (queue_end *)link;
    kr_wire_buffer *buffer = NULL;
    kr_msg_header header;
    kr_status status = lane_pop(end->in, &buffer, end->clock, deadline_ns, err);

    if (status != KR_OK)
        return status;
    status = kr_msg_header_read(buffer->bytes, &header, err);
    if (status == KR_OK)
        status = kr_msg_verify(&header, buffer->bytes + KR_MSG_HEADER_BYTES, err);
    if (status != KR_OK) {
        kr_wire_give(&end->in->pool, buffer);
        return status;
    }
    *message = (kr_message){header, buffer->bytes + KR_MSG_HEADER_BYTES, buffer};
    kr_link_count_received(link, header.payload_bytes);
    return KR_OK;
}

static void queue_release(kr_link *link, kr_message *message)
{
    kr_wire_give(&((queue_end *)link)->in->pool, message->buffer);
    *message = (kr_message){0};
}

static void queue_close(kr_link *link)
{
    queue_end *end = (queue_end *)link;
    pair *both = end->pair;

    lane_close(end->out);
    lane_close(end->in);
    kr_free(end);
    if (atomic_fetch_sub(&both->open_ends, 1) == 1) {
        lane_free(&both->lanes[0]);
        lane_free(&both->lanes[1]);
        kr_free(both);
    }
}

static const char *queue_describe(const kr_link *link)
{
    (void)link;
    return "embedded";
}

static void end_init(queue_end *end, pair *both, int side, const kr_clock *clock)
{
    end->link = (kr_link){.send = queue_send,
                          .receive = queue_receive,
                          .release = queue_release,
                          .close = queue_close,
                          .describe = queue_describe};
    end->pair = both;
    end->out = &both->lanes[side];
    end->in = &both->lanes[1 - side];
    end->clock = clock;
}

kr_status kr_queue_pair(kr_link **client, kr_link **server, uint32_t depth, const kr_clock *clock,
                        kr_err *err)
{
    KR_CHECK(clock != NULL);
    if (depth == 0 || depth > DEPTH_MAX)
        return kr_fail(err, KR_E_LIMIT, "embedded link of %u messages; 1 to %d", depth, DEPTH_MAX);

    pair *both = kr_alloc(sizeof *both);
    queue_end *ends[2] = {kr_alloc(sizeof(queue_end)), kr_alloc(sizeof(queue_end))};
    kr_wire_buffer **rings[2] = {kr_alloc(depth * sizeof(kr_wire_buffer *)),
                                 kr_alloc(depth * sizeof(kr_wire_buffer *))};
    if (both == NULL || ends[0] == NULL || ends[1] == NULL || rings[0] == NULL || rings[1] == NULL) {
        kr_free(both);
        for (int i = 0; i < 2; i++) {
            kr_free(ends[i]);
            kr_free(rings[i]);
        }
        return kr_fail(err, KR_E_MEMORY, "no memory for an embedded link of %u messages", depth);
    }
    for (int side = 0; side < 2; side++) {
        both->lanes[side].ring = rings[side];
        lane_init(&both->lanes[side], depth);
        end_init(ends[side], both, side, clock);
    }
    both->open_ends = 2;
    *client = &ends[0]->link;
    *server = &ends[1]->link;
    return KR_OK;
}
