/* Strict reading of JSON objects (jansson underneath): unknown keys, wrong types, duplicates and
 * out-of-range numbers are errors that name the file, the path and the expectation. */
#ifndef KR_BASE_JSON_H
#define KR_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { KR_JSON_BYTES_MAX = 256 << 20, KR_JSON_DEPTH_MAX = 64 };

/* Reads a whole file of at most KR_JSON_BYTES_MAX bytes. The caller owns *root (json_decref). */
kr_status kr_json_load(const char *path, json_t **root, kr_err *err);

/* One object being read; where is its printable path ("h200.json: memory"). */
typedef struct {
    const json_t *object;
    const char *where;
} kr_json;

/* Each getter writes *out only when the key is present and valid. required = false leaves *out
 * (the default the caller put there) when the key is absent. */
kr_status kr_json_u64(kr_json j, const char *key, bool required, uint64_t min, uint64_t max, uint64_t *out,
                      kr_err *err);
kr_status kr_json_u32(kr_json j, const char *key, bool required, uint32_t min, uint32_t max, uint32_t *out,
                      kr_err *err);
kr_status kr_json_real(kr_json j, const char *key, bool required, double min, double max, double *out,
                       kr_err *err);
kr_status kr_json_bool(kr_json j, const char *key, bool required, bool *out, kr_err *err);
/* The string belongs to the JSON tree. */
kr_status kr_json_string(kr_json j, const char *key, bool required, const char **out, kr_err *err);
/* Fails on the first key of the object that is not in keys (NULL-terminated), naming the nearest. */
kr_status kr_json_only(kr_json j, const char *const *keys, kr_err *err);

#endif
