/* The tensors of a model file, whatever its format: name, shape, stored type and where the bytes
 * lie. Filled by the readers of GGUF and safetensors after they have validated every number.
 *
 * Invariants: names are unique over all parts; data[0..bytes) lies inside one mapped part;
 * shape is outermost first, every extent is > 0 and rows * columns fits 64 bits. */
#ifndef KR_FILES_TENSOR_TABLE_H
#define KR_FILES_TENSOR_TABLE_H

#include <stdint.h>

#include "base/status.h"
#include "files/model_file.h"
#include "files/span_map.h"

enum { KR_TENSOR_DIMS_MAX = 8, KR_TENSORS_MAX = 1 << 20, KR_TENSOR_NAME_MAX = 255 };

typedef struct {
    char *name; /* owned, NUL-terminated */
    uint32_t dims;
    uint64_t shape[KR_TENSOR_DIMS_MAX];
    kr_weight_type type;   /* KR_W_TYPES: a type karat can describe but not compute with */
    const char *type_name; /* as the file names it */
    const uint8_t *data;
    uint64_t bytes;
    uint32_t part; /* file of a split or sharded model, 0-based */
} kr_tensor_entry;

typedef struct {
    kr_tensor_entry *entries; /* [count] in file order */
    uint32_t count, capacity;
    kr_span_map by_name; /* valid after kr_tensor_table_seal */
} kr_tensor_table;

void kr_tensor_table_free(kr_tensor_table *table);
/* Copies name; takes the rest of entry as it is. KR_E_LIMIT, KR_E_MEMORY. */
kr_status kr_tensor_table_add(kr_tensor_table *table, kr_bytes name, const kr_tensor_entry *entry,
                              const char *path, kr_err *err);
/* Indexes the names; KR_E_FORMAT when one occurs twice. path is for the message. */
kr_status kr_tensor_table_seal(kr_tensor_table *table, const char *path, kr_err *err);
/* Indices of the entries from `first` on, in the order of their data: a new array [count - first]
 * for kr_free. KR_E_MEMORY. */
kr_status kr_tensor_table_by_place(const kr_tensor_table *table, uint32_t first, uint32_t **order,
                                   const char *path, kr_err *err);
/* NULL when absent. */
const kr_tensor_entry *kr_tensor_table_find(const kr_tensor_table *table, const char *name);
/* rows and columns as kr_tensor has them: columns is the innermost extent. */
uint64_t kr_tensor_entry_columns(const kr_tensor_entry *entry);
uint64_t kr_tensor_entry_rows(const kr_tensor_entry *entry);
/* "[576][1536]" into text[size]; always terminated. */
void kr_tensor_entry_shape(const kr_tensor_entry *entry, char *text, size_t size);

#endif
