/* Memory that lives as long as its owner: one reservation at start, bump allocation, freed whole.
 *
 * Everything a decode step touches comes from an arena or a pool made before the step; the arena
 * counts bytes so that `--dry-run` and tests can compare plan with use. Not thread-safe. */
#ifndef KR_BASE_ARENA_H
#define KR_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct {
    uint8_t *base;   /* 64-byte aligned, zero-filled */
    size_t capacity; /* bytes reserved */
    size_t used;     /* bytes handed out, padding included */
} kr_arena;

/* Reserves capacity bytes (huge pages advised when >= 2 MiB). KR_E_MEMORY names the size. */
kr_status kr_arena_init(kr_arena *arena, size_t capacity, kr_err *err);
/* Returns bytes zeroed, aligned to 64; NULL when the arena is exhausted (no status: the planner
 * of the arena made a mistake or the caller checks). */
void *kr_arena_take(kr_arena *arena, size_t bytes);
/* Gives everything back; the arena may be initialised again. */
void kr_arena_free(kr_arena *arena);

/* karat's own heap allocations outside arenas: counted, never returning NULL for a size the
 * machine can serve. A test arms the guard during decode and fails on any call. */
void *kr_alloc(size_t bytes);              /* zero-filled; NULL when out of memory */
void *kr_realloc(void *old, size_t bytes); /* new bytes are not zero-filled */
void kr_free(void *p);                     /* also takes what the C library allocated: scandir, getline */
uint64_t kr_alloc_calls(void);             /* calls of kr_alloc and kr_realloc so far */

#endif
