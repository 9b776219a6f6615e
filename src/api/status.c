/* Status codes, error text and versions of the C API. The numbers are those of base/status.h. */
#include "api/api.h"

#include <string.h>

#include "base/num.h"

/* clang-format off */
#define PUBLIC_STATUSES(X) \
    X(OK) \
    X(E_ARG) \
    X(E_SHAPE) \
    X(E_UNSUPPORTED) \
    X(E_FORMAT) \
    X(E_VERSION) \
    X(E_CHECKSUM) \
    X(E_LIMIT) \
    X(E_NOT_FOUND) \
    X(E_EXISTS) \
    X(E_MEMORY) \
    X(E_FULL) \
    X(E_IO) \
    X(E_BUSY) \
    X(E_DEADLINE) \
    X(E_LOST) \
    X(E_STALE) \
    X(E_AUTH) \
    X(E_CANCELLED) \
    X(E_INTERNAL)
/* clang-format on */

#define SAME_NUMBER(name) _Static_assert((int)KARAT_##name == (int)KR_##name, "one list of numbers");
PUBLIC_STATUSES(SAME_NUMBER)

_Static_assert((int)KARAT_F32 == KR_F32 && (int)KARAT_F16 == KR_F16 && (int)KARAT_BF16 == KR_BF16 &&
                   (int)KARAT_E4M3 == KR_E4M3,
               "one list of types");
_Static_assert(KARAT_ERROR_TEXT_BYTES >= KR_ERR_TEXT_BYTES, "every line fits");

const char *karat_status_name(karat_status status)
{
    switch (status) {
#define NAME_CASE(name) \
    case KARAT_##name:  \
        return "KARAT_" #name;
        PUBLIC_STATUSES(NAME_CASE)
    }
    return "KARAT_E_UNKNOWN";
}

const char *karat_status_text(karat_status status) { return kr_status_text((kr_status)status); }

const char *karat_version(void) { return KR_VERSION; }

uint32_t karat_abi(void) { return KARAT_ABI; }

karat_status kr_api_end(kr_status status, const kr_err *err, karat_error *error)
{
    if (status != KR_OK && error != NULL) {
        error->status = (karat_status)status;
        memcpy(error->text, err->text, sizeof err->text);
    }
    return (karat_status)status;
}

kr_status kr_api_struct(const void *given, void *own, size_t own_bytes, size_t first_bytes, const char *name,
                        kr_err *err)
{
    enum { BYTES_MAX = 65536 }; /* no version will be larger: a number beyond is garbage */
    const uint8_t *bytes = given;
    uint32_t size;

    if (given == NULL)
        return kr_fail(err, KR_E_ARG, "%s is null", name);
    memcpy(&size, given, sizeof size);
    if (size < first_bytes || size > BYTES_MAX)
        return kr_fail(err, KR_E_ARG, "%s: struct_size %u; set it to sizeof(%s), here %zu", name, size, name,
                       own_bytes);
    for (size_t i = own_bytes; i < size; i++)
        if (bytes[i] != 0)
            return kr_fail(err, KR_E_VERSION, "%s: byte %zu is set, but karat %s knows only %zu", name, i,
                           KR_VERSION, own_bytes);
    memset(own, 0, own_bytes);
    memcpy(own, given, size < own_bytes ? size : own_bytes);
    return KR_OK;
}
