/* Linear probing with tombstones; swept when they crowd the table. */
#include "store/prefix.h"

#include <string.h>

#include "base/arena.h"
#include "base/check.h"

#define DELETED UINT32_MAX

kr_status kr_prefix_init(kr_prefix_index *index, uint32_t capacity, kr_err *err)
{
    uint32_t slots = 16;

    while (slots < 2 * (uint64_t)capacity && slots < 1u << 31)
        slots *= 2;
    *index = (kr_prefix_index){
        .entry = kr_alloc(sizeof *index->entry * ((uint64_t)capacity + 1)),
        .slot = kr_alloc(sizeof *index->slot * (uint64_t)slots),
        .unused = kr_alloc(sizeof *index->unused * ((uint64_t)capacity + 1)),
        .capacity = capacity,
        .slots = slots,
    };
    if (index->entry == NULL || index->slot == NULL || index->unused == NULL) {
        kr_prefix_free(index);
        return kr_fail(err, KR_E_MEMORY, "no memory for a prefix index of %u pages", capacity);
    }
    for (uint32_t i = 0; i < capacity; i++)
        index->unused[i] = capacity - 1 - i;
    return KR_OK;
}

void kr_prefix_free(kr_prefix_index *index)
{
    kr_free(index->entry);
    kr_free(index->slot);
    kr_free(index->unused);
    *index = (kr_prefix_index){0};
}

static bool equal(kr_hash128 a, kr_hash128 b) { return a.low == b.low && a.high == b.high; }

/* Slot of hash, or the first one it may take; *found tells which. */
static uint32_t probe(const kr_prefix_index *index, kr_hash128 hash, bool *found)
{
    uint32_t at = (uint32_t)hash.low & (index->slots - 1), vacant = DELETED;

    for (;; at = (at + 1) & (index->slots - 1)) {
        const uint32_t value = index->slot[at];

        if (value == 0) {
            *found = false;
            return vacant != DELETED ? vacant : at;
        }
        if (value == DELETED) {
            vacant = vacant != DELETED ? vacant : at;
        } else if (equal(index->entry[value - 1].hash, hash)) {
            *found = true;
            return at;
        }
    }
}

uint32_t kr_prefix_find(const kr_prefix_index *index, kr_hash128 hash)
{
    bool found;
    const uint32_t at = probe(index, hash, &found);

    return found ? index->slot[at] - 1 : KR_NO_NAME;
}

/* Rebuilds the slots when deleted ones make chains long. */
static void sweep(kr_prefix_index *index)
{
    memset(index->slot, 0, sizeof *index->slot * index->slots);
    index->deleted = 0;
    for (uint32_t e = 0; e < index->capacity; e++)
        if (index->entry[e].live) {
            bool found;
            index->slot[probe(index, index->entry[e].hash, &found)] = e + 1;
        }
}

uint32_t kr_prefix_add(kr_prefix_index *index, kr_hash128 hash)
{
    bool found;

    if (index->live == index->capacity)
        return KR_NO_NAME;
    if (index->live + index->deleted + 1 > index->slots / 4 * 3)
        sweep(index);
    const uint32_t at = probe(index, hash, &found);
    KR_CHECK(!found);
    const uint32_t e = index->unused[index->capacity - 1 - index->live];
    index->live++;
    index->deleted -= index->slot[at] == DELETED;
    index->slot[at] = e + 1;
    index->entry[e] = (kr_prefix_entry){.hash = hash, .live = true};
    return e;
}

void kr_prefix_drop(kr_prefix_index *index, uint32_t entry, uint32_t group)
{
    kr_prefix_entry *e = &index->entry[entry];
    bool found;

    KR_CHECK(entry < index->capacity && e->live);
    e->present &= (uint8_t) ~(1u << group);
    if (e->present != 0)
        return;
    const uint32_t at = probe(index, e->hash, &found);
    KR_CHECK(found);
    index->slot[at] = DELETED;
    index->deleted++;
    e->live = false;
    index->live--;
    index->unused[index->capacity - 1 - index->live] = entry;
}
