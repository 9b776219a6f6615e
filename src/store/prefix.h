/* Which sealed pages hold which token prefix: hash of a prefix's whole pages -> the last page of it
 * in each layer group. Open addressing, fixed capacity; the pools hold the pages. */
#ifndef KR_STORE_PREFIX_H
#define KR_STORE_PREFIX_H

#include "base/hash.h"
#include "store/geometry.h"
#include "store/pool.h"

typedef struct {
    kr_hash128 hash;
    kr_page_id page[KR_GROUPS_MAX];
    uint8_t present; /* bit g: page[g] is there */
    bool live;
} kr_prefix_entry;

typedef struct {
    kr_prefix_entry *entry; /* [capacity] */
    uint32_t *slot;         /* [slots]: entry + 1, 0 = never used, UINT32_MAX = deleted */
    uint32_t *unused;       /* [capacity] stack of entries */
    uint32_t capacity, live, slots, deleted;
} kr_prefix_index;

kr_status kr_prefix_init(kr_prefix_index *index, uint32_t capacity, kr_err *err);
void kr_prefix_free(kr_prefix_index *index);
/* Entry of hash, or KR_NO_NAME. */
uint32_t kr_prefix_find(const kr_prefix_index *index, kr_hash128 hash);
/* A new entry without pages; KR_NO_NAME when all are live. hash must not be present. */
uint32_t kr_prefix_add(kr_prefix_index *index, kr_hash128 hash);
/* The entry no longer has a page of group; it goes when it has none. */
void kr_prefix_drop(kr_prefix_index *index, uint32_t entry, uint32_t group);

#endif
