/* A growing array, then an index by name. */
#include "files/tensor_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

void kr_tensor_table_free(kr_tensor_table *table)
{
    for (uint32_t i = 0; i < table->count; i++)
        kr_free(table->entries[i].name);
    kr_free(table->entries);
    kr_span_map_free(&table->by_name);
    memset(table, 0, sizeof *table);
}

kr_status kr_tensor_table_add(kr_tensor_table *table, kr_bytes name, const kr_tensor_entry *entry,
                              const char *path, kr_err *err)
{
    if (name.bytes == 0 || name.bytes > KR_TENSOR_NAME_MAX || memchr(name.text, 0, name.bytes))
        return kr_fail(err, KR_E_FORMAT,
                       "%s: tensor %u has a name of %u bytes or with a NUL (1 to %d allowed)", path,
                       table->count, name.bytes, KR_TENSOR_NAME_MAX);
    if (table->count == KR_TENSORS_MAX)
        return kr_fail(err, KR_E_LIMIT, "%s: more than %d tensors", path, KR_TENSORS_MAX);
    if (table->count == table->capacity) {
        const uint32_t capacity = table->capacity ? 2 * table->capacity : 256;
        kr_tensor_entry *grown = kr_realloc(table->entries, capacity * sizeof *grown);
        if (!grown)
            return kr_fail(err, KR_E_MEMORY, "%s: no memory for %u tensors", path, capacity);
        table->entries = grown;
        table->capacity = capacity;
    }
    char *copy = kr_alloc(name.bytes + 1);
    if (!copy)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for a tensor name", path);
    memcpy(copy, name.text, name.bytes);
    table->entries[table->count] = *entry;
    table->entries[table->count++].name = copy;
    return KR_OK;
}

kr_status kr_tensor_table_seal(kr_tensor_table *table, const char *path, kr_err *err)
{
    const kr_status status = kr_span_map_init(&table->by_name, table->count, err);

    for (uint32_t i = 0; status == KR_OK && i < table->count; i++) {
        const char *name = table->entries[i].name;
        const uint32_t before = kr_span_map_add(&table->by_name, kr_bytes_of(name), i);
        if (before != KR_SPAN_NONE)
            return kr_fail(err, KR_E_FORMAT, "%s: tensor %s occurs twice (in parts %u and %u)", path, name,
                           table->entries[before].part + 1, table->entries[i].part + 1);
    }
    return status;
}

static int by_place(const void *a, const void *b, void *context)
{
    const kr_tensor_entry *entries = context;
    const uint8_t *x = entries[*(const uint32_t *)a].data, *y = entries[*(const uint32_t *)b].data;
    return (x > y) - (x < y);
}

kr_status kr_tensor_table_by_place(const kr_tensor_table *table, uint32_t first, uint32_t **order,
                                   const char *path, kr_err *err)
{
    const uint32_t count = table->count - first;
    uint32_t *sorted = kr_alloc(((size_t)count + 1) * sizeof *sorted);

    if (!sorted)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory to order %u tensors", path, count);
    for (uint32_t i = 0; i < count; i++)
        sorted[i] = first + i;
    qsort_r(sorted, count, sizeof *sorted, by_place, table->entries);
    *order = sorted;
    return KR_OK;
}

const kr_tensor_entry *kr_tensor_table_find(const kr_tensor_table *table, const char *name)
{
    const uint32_t at = kr_span_map_find(&table->by_name, kr_bytes_of(name));
    return at == KR_SPAN_NONE ? NULL : &table->entries[at];
}

uint64_t kr_tensor_entry_columns(const kr_tensor_entry *entry)
{
    return entry->dims ? entry->shape[entry->dims - 1] : 1;
}

uint64_t kr_tensor_entry_rows(const kr_tensor_entry *entry)
{
    uint64_t rows = 1;
    for (uint32_t d = 0; d + 1 < entry->dims; d++)
        rows *= entry->shape[d];
    return rows;
}

void kr_tensor_entry_shape(const kr_tensor_entry *entry, char *text, size_t size)
{
    size_t at = 0;

    text[0] = 0;
    for (uint32_t d = 0; d < entry->dims && at < size; d++)
        at += (size_t)snprintf(text + at, size - at, "[%llu]", (unsigned long long)entry->shape[d]);
}
