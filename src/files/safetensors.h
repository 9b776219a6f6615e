/* safetensors files: an 8-byte length, a JSON header, the tensors' bytes.
 *
 * Validated before any use (rules of the format's own reader): the header fits the file and a
 * stated limit, keys are unique, every tensor's extent product equals its byte range, the ranges
 * cover the data without overlap, hole or trailing byte. Beyond the format: no extent is 0. */
#ifndef KR_FILES_SAFETENSORS_H
#define KR_FILES_SAFETENSORS_H

#include <stdint.h>

#include "base/status.h"
#include "files/map.h"
#include "files/tensor_table.h"

enum { KR_SAFETENSORS_HEADER_MAX = 32 << 20 }; /* bytes; the largest published headers are near 1 MB */

/* Maps path and appends its tensors to table as part `part`. On failure *map is untouched (table
 * may hold entries; the caller frees it). KR_E_IO, KR_E_FORMAT, KR_E_LIMIT, KR_E_UNSUPPORTED. */
kr_status kr_safetensors_open(const char *path, uint32_t part, kr_map *map, kr_tensor_table *table,
                              kr_err *err);

#endif
