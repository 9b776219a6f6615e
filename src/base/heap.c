/* 4-ary min-heap: children of i are 4i+1 .. 4i+4. Four children share two cache lines, and the
 * tree is half as deep as a binary one, which is what pop pays for. */
#include "base/heap.h"

#include <stddef.h>

#include "base/check.h"

enum { ARITY = 4 };

static bool before(const kr_heap_item *a, const kr_heap_item *b)
{
    return a->time != b->time ? a->time < b->time : a->sequence < b->sequence;
}

void kr_heap_init(kr_heap *heap, kr_heap_item *items, uint32_t capacity)
{
    KR_CHECK(items != NULL || capacity == 0);
    *heap = (kr_heap){.items = items, .capacity = capacity};
}

kr_status kr_heap_push(kr_heap *heap, uint64_t time, uint64_t payload)
{
    if (heap->count == heap->capacity)
        return KR_E_FULL;

    const kr_heap_item item = {.time = time, .sequence = heap->next_sequence++, .payload = payload};
    uint32_t hole = heap->count++;
    while (hole > 0) {
        const uint32_t parent = (hole - 1) / ARITY;
        if (!before(&item, &heap->items[parent]))
            break;
        heap->items[hole] = heap->items[parent];
        hole = parent;
    }
    heap->items[hole] = item;
    return KR_OK;
}

bool kr_heap_pop(kr_heap *heap, kr_heap_item *item)
{
    if (heap->count == 0)
        return false;

    *item = heap->items[0];
    const kr_heap_item last = heap->items[--heap->count];
    uint64_t hole = 0;
    for (;;) {
        const uint64_t first = hole * ARITY + 1;
        if (first >= heap->count)
            break;
        const uint64_t end = first + ARITY < heap->count ? first + ARITY : heap->count;
        uint64_t least = first;
        for (uint64_t child = first + 1; child < end; child++)
            if (before(&heap->items[child], &heap->items[least]))
                least = child;
        if (!before(&heap->items[least], &last))
            break;
        heap->items[hole] = heap->items[least];
        hole = least;
    }
    heap->items[hole] = last;
    return true;
}
