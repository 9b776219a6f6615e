/* What every function of the C API does at its start and at its end. */
#ifndef KR_API_API_H
#define KR_API_API_H

#include "base/status.h"
#include "karat/karat.h"

/* Copies a struct that begins with struct_size into own, of own_bytes; fields that the caller's struct
 * does not have become 0. first_bytes is the struct's size in the first version of the API. name is for the
 * error line. KR_E_ARG: given is NULL, or its struct_size cannot be right. KR_E_VERSION: it holds
 * fields of a newer karat that are not 0. */
kr_status kr_api_struct(const void *given, void *own, size_t own_bytes, size_t first_bytes, const char *name,
                        kr_err *err);

/* Strides that are 0 become those of packed rows. KR_E_ARG: rows overlap; KR_E_LIMIT: no address reaches. */
kr_status kr_api_strides(const char *name, uint64_t count, uint32_t heads, uint32_t dim,
                         uint64_t *token_stride, uint64_t *head_stride, kr_err *err);

/* Returns status as a karat_status and, on failure, copies err into error (which may be NULL). */
karat_status kr_api_end(kr_status status, const kr_err *err, karat_error *error);

#endif
