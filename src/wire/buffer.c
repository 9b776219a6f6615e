/* The pool is a short list walked under its lock: a link has a handful of buffers. */
#include "wire/buffer.h"

#include <string.h>

#include "base/arena.h"
#include "base/check.h"

enum { ALIGNMENT = 64, CAPACITY_MIN = 4096, BATCH_BYTES = 1 << 20, BATCH_MAX = 8 };

void kr_wire_pool_init(kr_wire_pool *pool)
{
    pool->free = NULL;
    KR_CHECK(pthread_mutex_init(&pool->lock, NULL) == 0);
}

void kr_wire_pool_free(kr_wire_pool *pool)
{
    while (pool->free != NULL) {
        kr_wire_buffer *next = pool->free->next;
        kr_free(pool->free);
        pool->free = next;
    }
    pthread_mutex_destroy(&pool->lock);
}

static kr_wire_buffer *buffer_make(uint64_t capacity)
{
    kr_wire_buffer *buffer = kr_alloc(sizeof *buffer + ALIGNMENT + KR_MSG_HEADER_BYTES + capacity);

    if (buffer == NULL)
        return NULL;
    buffer->capacity = capacity;
    buffer->bytes = (uint8_t *)kr_align_up((uintptr_t)(buffer + 1), ALIGNMENT);
    return buffer;
}

/* Unlinks the smallest free buffer that fits; NULL when there is none. */
static kr_wire_buffer *best_free(kr_wire_pool *pool, uint64_t payload_bytes)
{
    kr_wire_buffer **best = NULL;

    for (kr_wire_buffer **p = &pool->free; *p != NULL; p = &(*p)->next)
        if ((*p)->capacity >= payload_bytes && (best == NULL || (*p)->capacity < (*best)->capacity))
            best = p;
    if (best == NULL)
        return NULL;
    kr_wire_buffer *buffer = *best;
    *best = buffer->next;
    return buffer;
}

/* Buffers made at a miss: as many as BATCH_BYTES hold, and at least one to spare. */
static uint64_t batch_of(uint64_t capacity)
{
    const uint64_t fit = BATCH_BYTES / capacity;
    return fit < 2 ? 2 : fit > BATCH_MAX ? BATCH_MAX : fit;
}

kr_wire_buffer *kr_wire_take(kr_wire_pool *pool, uint64_t payload_bytes)
{
    uint64_t capacity = CAPACITY_MIN;

    pthread_mutex_lock(&pool->lock);
    kr_wire_buffer *buffer = best_free(pool, payload_bytes);
    pthread_mutex_unlock(&pool->lock);
    if (buffer != NULL)
        return buffer;

    while (capacity < payload_bytes)
        capacity *= 2; /* payload_bytes <= KR_MSG_PAYLOAD_MAX */
    buffer = buffer_make(capacity);
    for (uint64_t i = 1; buffer != NULL && i < batch_of(capacity); i++) {
        kr_wire_buffer *spare = buffer_make(capacity);
        if (spare == NULL)
            break; /* the one that was asked for is there */
        kr_wire_give(pool, spare);
    }
    return buffer;
}

void kr_wire_give(kr_wire_pool *pool, kr_wire_buffer *buffer)
{
    pthread_mutex_lock(&pool->lock);
    buffer->next = pool->free;
    pool->free = buffer;
    pthread_mutex_unlock(&pool->lock);
}

kr_status kr_wire_join(kr_wire_pool *pool, kr_msg_header *header, const kr_piece *pieces, uint32_t count,
                       uint64_t payload_max, kr_wire_buffer **out, kr_err *err)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < count; i++)
        if (!kr_add_u64(bytes, pieces[i].bytes, &bytes) || bytes > payload_max)
            return kr_fail(err, KR_E_LIMIT, "%s message is larger than the link's %llu bytes",
                           kr_msg_name(header->kind), (unsigned long long)payload_max);
    kr_wire_buffer *buffer = kr_wire_take(pool, bytes);
    if (buffer == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a message of %llu bytes", (unsigned long long)bytes);

    uint8_t *payload = buffer->bytes + KR_MSG_HEADER_BYTES, *next = payload;
    for (uint32_t i = 0; i < count; i++) {
        if (pieces[i].bytes != 0)
            memcpy(next, pieces[i].data, pieces[i].bytes);
        next += pieces[i].bytes;
    }
    kr_msg_seal(header, payload, bytes, buffer->bytes);
    *out = buffer;
    return KR_OK;
}
