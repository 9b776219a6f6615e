/* One GGUF file (version 2 or 3, little endian): its metadata and its tensor table.
 *
 * Format: ggml's docs/gguf.md. The file is hostile until proven otherwise: every count, length,
 * offset, alignment, type and product is checked against the file's size before use, and memory is
 * proportional to the file. Afterwards: every value lies inside the map, array elements of type
 * string have been walked, keys are unique, tensors neither overlap nor leave the file.
 * Alignment follows the specification: a non-zero multiple of 8, here at most 64 KiB. */
#ifndef KR_FILES_GGUF_H
#define KR_FILES_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "files/map.h"
#include "files/span_map.h"
#include "files/tensor_table.h"

enum { KR_GGUF_ALIGNMENT_MAX = 1 << 16, KR_GGUF_KEYS_MAX = 1 << 16, KR_GGUF_KEY_BYTES_MAX = 65535 };
enum { KR_GGUF_DIMS_MAX = 4 }; /* the format's own limit */

/* Value types, with the format's numbers. */
typedef enum {
    KR_GGUF_U8 = 0,
    KR_GGUF_I8 = 1,
    KR_GGUF_U16 = 2,
    KR_GGUF_I16 = 3,
    KR_GGUF_U32 = 4,
    KR_GGUF_I32 = 5,
    KR_GGUF_F32 = 6,
    KR_GGUF_BOOL = 7,
    KR_GGUF_STRING = 8,
    KR_GGUF_ARRAY = 9,
    KR_GGUF_U64 = 10,
    KR_GGUF_I64 = 11,
    KR_GGUF_F64 = 12,
    KR_GGUF_TYPES
} kr_gguf_type;

/* One metadata entry. For an array: items elements of type item, first at data. */
typedef struct {
    kr_bytes key;
    kr_gguf_type type, item;
    uint64_t items;      /* 1 for a scalar */
    const uint8_t *data; /* unaligned */
} kr_gguf_value;

typedef struct {
    const char *path; /* owned by the caller, for messages */
    kr_map map;
    uint32_t version;
    uint32_t alignment;
    kr_gguf_value *values; /* [count] */
    uint32_t count;
    kr_span_map keys;
} kr_gguf;

/* Maps and validates path and appends its tensors to table as part `part`. path must outlive
 * the kr_gguf. On failure nothing stays open (table may hold entries; the caller frees it). */
kr_status kr_gguf_open(const char *path, uint32_t part, kr_gguf *gguf, kr_tensor_table *table, kr_err *err);
void kr_gguf_close(kr_gguf *gguf);

/* NULL when absent. */
const kr_gguf_value *kr_gguf_find(const kr_gguf *gguf, const char *key);

/* Typed reading. An absent key leaves *out alone: KR_E_NOT_FOUND with text when required, else
 * KR_OK. A wrong type or a value outside [min, max] is KR_E_FORMAT. Any integer type will do for
 * an integer, F32 or F64 for a real. Strings point into the map. */
kr_status kr_gguf_u64(const kr_gguf *gguf, const char *key, bool required, uint64_t min, uint64_t max,
                      uint64_t *out, kr_err *err);
kr_status kr_gguf_u32(const kr_gguf *gguf, const char *key, bool required, uint32_t min, uint32_t max,
                      uint32_t *out, kr_err *err);
kr_status kr_gguf_real(const kr_gguf *gguf, const char *key, bool required, double min, double max,
                       double *out, kr_err *err);
kr_status kr_gguf_bool(const kr_gguf *gguf, const char *key, bool required, bool *out, kr_err *err);
kr_status kr_gguf_string(const kr_gguf *gguf, const char *key, bool required, kr_bytes *out, kr_err *err);
/* An array of exactly this element type; *out is NULL when absent and not required. */
kr_status kr_gguf_array(const kr_gguf *gguf, const char *key, bool required, kr_gguf_type item,
                        const kr_gguf_value **out, kr_err *err);

/* Reads the string at *at and moves *at past it; only for arrays that kr_gguf_open has walked. */
kr_bytes kr_gguf_next_string(const uint8_t **at);
/* Element i of an array of integers (any width and sign) or of F32. */
int64_t kr_gguf_item_int(const kr_gguf_value *value, uint64_t i);
float kr_gguf_item_f32(const kr_gguf_value *value, uint64_t i);

#endif
