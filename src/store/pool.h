/* The pages of one layer group on one device.
 *
 * A page is free, used (one or more sessions hold it) or cached (nobody holds it, but the prefix
 * index names it). Cached pages give way, oldest first, when the free ones are gone. Each use of a
 * page slot has a generation, so a stale handle is refused instead of freeing another's page.
 *
 *   free --take--> used --release (not named)--> free
 *                  used --release (named)------> cached --hold--> used
 *                                                cached --take, oldest--> used, name dropped
 *
 * reserved counts pages promised to sessions and not yet taken: used + reserved <= total. Not
 * thread-safe: the store's lock covers it. */
#ifndef KR_STORE_POOL_H
#define KR_STORE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define KR_NO_PAGE UINT32_MAX
#define KR_NO_NAME UINT32_MAX

/* Names a page for one holder. */
typedef struct {
    uint32_t page, generation;
    uint8_t device, group;
    uint16_t reserved;
} kr_page_id;

typedef struct {
    uint32_t generation, holders;
    uint32_t older, newer; /* free list: older = next; cached list: neighbours in age */
    uint32_t name;         /* entry of the prefix index, KR_NO_NAME: none */
} kr_page_state;

typedef struct {
    uint8_t *base; /* [total][page_bytes] */
    uint64_t page_bytes;
    uint32_t total, used, cached, reserved;
    uint8_t device, group;
    kr_page_state *state; /* [total] */
    uint32_t free_head, oldest, newest;
} kr_pool;

/* state is caller's memory for total entries; nothing is touched in base. */
void kr_pool_init(kr_pool *pool, uint8_t device, uint8_t group, uint8_t *base, uint64_t page_bytes,
                  uint32_t total, kr_page_state *state);

/* Takes a page for one holder. *evicted = the prefix entry whose page was given up, or KR_NO_NAME.
 * KR_E_FULL when every page is used. */
kr_status kr_pool_take(kr_pool *pool, kr_page_id *id, uint32_t *evicted, kr_err *err);
/* One more holder of a used or cached page. KR_E_STALE: id is not of the page's present life. */
kr_status kr_pool_hold(kr_pool *pool, kr_page_id id, kr_err *err);
/* One holder less. KR_E_STALE, and nothing changes, for a page that id does not hold any more. */
kr_status kr_pool_release(kr_pool *pool, kr_page_id id, kr_err *err);
/* The prefix index names a used page, or (KR_NO_NAME) stops naming it; a cached page without a name
 * becomes free. */
void kr_pool_name(kr_pool *pool, uint32_t page, uint32_t name);

static inline uint8_t *kr_pool_at(const kr_pool *pool, uint32_t page)
{
    return pool->base + page * pool->page_bytes;
}

/* Pages that can still be promised. */
static inline uint32_t kr_pool_available(const kr_pool *pool)
{
    return pool->total - pool->used - pool->reserved;
}

#endif
