/* Which index has this string: an open-addressing table over byte strings that live elsewhere
 * (a mapped file, a blob). Used for metadata keys, tensor names and vocabulary pieces. */
#ifndef KR_FILES_SPAN_MAP_H
#define KR_FILES_SPAN_MAP_H

#include <stdint.h>
#include <string.h>

#include "base/status.h"

/* Bytes of a string that is not NUL-terminated and not owned. */
typedef struct {
    const char *text;
    uint32_t bytes;
} kr_bytes;

static inline kr_bytes kr_bytes_of(const char *text) { return (kr_bytes){text, (uint32_t)strlen(text)}; }
static inline int kr_bytes_equal(kr_bytes a, kr_bytes b)
{
    return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.text, b.text, a.bytes) == 0);
}

typedef struct {
    uint32_t hash;  /* upper half of the 64-bit hash, to skip most comparisons */
    uint32_t index; /* KR_SPAN_NONE = empty slot */
    kr_bytes key;
} kr_span_slot;

typedef struct {
    kr_span_slot *slots; /* [mask + 1], at most half full */
    uint32_t mask, count, capacity;
} kr_span_map;

#define KR_SPAN_NONE UINT32_MAX

/* Room for capacity keys, capacity < 2^30. KR_E_MEMORY. */
kr_status kr_span_map_init(kr_span_map *map, uint64_t capacity, kr_err *err);
void kr_span_map_free(kr_span_map *map);
/* Returns the index already stored under key, or stores index and returns KR_SPAN_NONE. */
uint32_t kr_span_map_add(kr_span_map *map, kr_bytes key, uint32_t index);
/* KR_SPAN_NONE when absent. */
uint32_t kr_span_map_find(const kr_span_map *map, kr_bytes key);

#endif
