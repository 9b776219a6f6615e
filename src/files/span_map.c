/* Linear probing over a table that is at most half full. */
#include "files/span_map.h"

#include "base/arena.h"
#include "base/check.h"
#include "base/hash.h"

kr_status kr_span_map_init(kr_span_map *map, uint64_t capacity, kr_err *err)
{
    uint64_t slots = 16;

    KR_CHECK(capacity < 1u << 30);
    while (slots < 2 * capacity)
        slots *= 2;
    kr_span_slot *memory = kr_alloc(slots * sizeof *memory);
    if (!memory)
        return kr_fail(err, KR_E_MEMORY, "no memory for a table of %llu names", (unsigned long long)capacity);
    for (uint64_t i = 0; i < slots; i++)
        memory[i].index = KR_SPAN_NONE;
    *map = (kr_span_map){memory, (uint32_t)(slots - 1), 0, (uint32_t)capacity};
    return KR_OK;
}

void kr_span_map_free(kr_span_map *map)
{
    kr_free(map->slots);
    *map = (kr_span_map){NULL, 0, 0, 0};
}

/* The slot that holds key, or the empty one where it belongs. */
static kr_span_slot *slot_of(const kr_span_map *map, kr_bytes key, uint32_t *hash)
{
    const uint64_t h = kr_hash64(key.text, key.bytes, 0);
    uint32_t at = (uint32_t)h & map->mask;

    *hash = (uint32_t)(h >> 32);
    while (map->slots[at].index != KR_SPAN_NONE &&
           (map->slots[at].hash != *hash || !kr_bytes_equal(map->slots[at].key, key)))
        at = (at + 1) & map->mask;
    return &map->slots[at];
}

uint32_t kr_span_map_add(kr_span_map *map, kr_bytes key, uint32_t index)
{
    uint32_t hash;
    kr_span_slot *slot = slot_of(map, key, &hash);

    if (slot->index != KR_SPAN_NONE)
        return slot->index;
    KR_CHECK(map->count < map->capacity);
    map->count++;
    *slot = (kr_span_slot){hash, index, key};
    return KR_SPAN_NONE;
}

uint32_t kr_span_map_find(const kr_span_map *map, kr_bytes key)
{
    uint32_t hash;
    return map->slots ? slot_of(map, key, &hash)->index : KR_SPAN_NONE;
}
