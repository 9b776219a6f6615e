/* Arenas over anonymous mappings, and the counted heap.
 *
 * A fresh mapping is zero and nothing is ever handed out twice, so take() needs no clearing.
 * Pages are committed on first touch: an arena's resident size is what was used of it. */
#include "base/arena.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/check.h"
#include "base/num.h"

enum { ALIGNMENT = 64, HUGE_PAGE_BYTES = 2 << 20 };

static _Atomic uint64_t alloc_calls;

kr_status kr_arena_init(kr_arena *arena, size_t capacity, kr_err *err)
{
    uint8_t *base = NULL;

    if (capacity != 0) {
        void *p = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return kr_fail(err, KR_E_MEMORY, "cannot reserve %zu bytes of memory", capacity);
        if (capacity >= HUGE_PAGE_BYTES)
            (void)madvise(p, capacity, MADV_HUGEPAGE); /* advice: a kernel without it is fine */
        base = p;
    }
    *arena = (kr_arena){.base = base, .capacity = capacity};
    return KR_OK;
}

void *kr_arena_take(kr_arena *arena, size_t bytes)
{
    const size_t left = arena->capacity - arena->used;

    if (arena->base == NULL || bytes > left)
        return NULL;
    void *p = arena->base + arena->used;
    const size_t padded = kr_align_up(bytes, ALIGNMENT);
    arena->used += padded < left ? padded : left;
    return p;
}

void kr_arena_free(kr_arena *arena)
{
    if (arena->base != NULL)
        KR_CHECK(munmap(arena->base, arena->capacity) == 0);
    *arena = (kr_arena){0};
}

void *kr_alloc(size_t bytes)
{
    atomic_fetch_add_explicit(&alloc_calls, 1, memory_order_relaxed);
    return calloc(1, bytes != 0 ? bytes : 1);
}

void *kr_realloc(void *old, size_t bytes)
{
    atomic_fetch_add_explicit(&alloc_calls, 1, memory_order_relaxed);
    return realloc(old, bytes != 0 ? bytes : 1);
}

void kr_free(void *p) { free(p); }

uint64_t kr_alloc_calls(void) { return atomic_load_explicit(&alloc_calls, memory_order_relaxed); }
