/* Pooled memory for whole messages: the 64 header bytes, then the payload, both 64-byte aligned.
 *
 * A pool gives the smallest free buffer that fits. When none fits it makes several of that size (a
 * power of two), so that the number out at once may vary with the threads' timing without another
 * allocation: a stream of messages that repeats its sizes allocates nothing after its first round.
 * Buffers live as long as the pool. Thread-safe. */
#ifndef KR_WIRE_BUFFER_H
#define KR_WIRE_BUFFER_H

#include <pthread.h>

#include "wire/link.h"

typedef struct kr_wire_buffer {
    struct kr_wire_buffer *next; /* in the pool's free list */
    uint64_t capacity;           /* payload bytes */
    uint8_t *bytes;              /* [KR_MSG_HEADER_BYTES + capacity], 64-byte aligned */
} kr_wire_buffer;

typedef struct {
    pthread_mutex_t lock;
    kr_wire_buffer *free;
} kr_wire_pool;

void kr_wire_pool_init(kr_wire_pool *pool);
/* Frees the buffers in the pool; every buffer taken has been given back. */
void kr_wire_pool_free(kr_wire_pool *pool);
/* A buffer for payloads of up to payload_bytes; NULL when memory is out. */
kr_wire_buffer *kr_wire_take(kr_wire_pool *pool, uint64_t payload_bytes);
void kr_wire_give(kr_wire_pool *pool, kr_wire_buffer *buffer);

/* Joins pieces into one pooled, sealed message. KR_E_LIMIT when the pieces hold more than
 * payload_max, KR_E_MEMORY. header is completed. */
kr_status kr_wire_join(kr_wire_pool *pool, kr_msg_header *header, const kr_piece *pieces, uint32_t count,
                       uint64_t payload_max, kr_wire_buffer **buffer, kr_err *err);

#endif
