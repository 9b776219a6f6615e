/* Event queue order: a bounded 4-ary min-heap of (time, sequence) keys with a 64-bit payload.
 *
 * Equal times come out in insertion order (sequence is given by push), which makes the order of
 * events total. Capacity is fixed at init; push on a full heap is a status, not a growth. */
#ifndef KR_BASE_HEAP_H
#define KR_BASE_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct {
    uint64_t time;
    uint64_t sequence;
    uint64_t payload;
} kr_heap_item;

typedef struct {
    kr_heap_item *items; /* [capacity], caller's memory */
    uint32_t count, capacity;
    uint64_t next_sequence;
} kr_heap;

void kr_heap_init(kr_heap *heap, kr_heap_item *items, uint32_t capacity);
/* KR_E_FULL when capacity items are live. O(log4 n). */
kr_status kr_heap_push(kr_heap *heap, uint64_t time, uint64_t payload);
/* Removes the smallest (time, sequence) into *item; false when empty. */
bool kr_heap_pop(kr_heap *heap, kr_heap_item *item);

#endif
