/* Status codes of every karat function, and the one-line error text that goes with a failure.
 *
 * One list gives code, name and text. 0 is success, 1 is "not finished yet", negative is failure,
 * grouped by the largest thing that broke: the call, the input, the resource, the peer.
 * Rules: outputs are written only on success; the function that first knows the cause writes the
 * text into kr_err, everyone above passes the status on unchanged. A caller's bug is not a status
 * but a KR_CHECK (check.h). */
#ifndef KR_BASE_STATUS_H
#define KR_BASE_STATUS_H

#include <stdarg.h>

#define KR_STATUS_LIST(X)                      \
    X(KR_OK, 0, "ok")                          \
    X(KR_IN_PROGRESS, 1, "in progress")        \
    X(KR_E_ARG, -1, "invalid argument")        \
    X(KR_E_SHAPE, -2, "shape not supported")   \
    X(KR_E_UNSUPPORTED, -3, "not supported")   \
    X(KR_E_FORMAT, -10, "malformed input")     \
    X(KR_E_VERSION, -11, "version mismatch")   \
    X(KR_E_CHECKSUM, -12, "checksum mismatch") \
    X(KR_E_LIMIT, -13, "over a stated limit")  \
    X(KR_E_NOT_FOUND, -14, "not found")        \
    X(KR_E_EXISTS, -15, "already exists")      \
    X(KR_E_MEMORY, -20, "out of memory")       \
    X(KR_E_FULL, -21, "pool full")             \
    X(KR_E_IO, -22, "input/output error")      \
    X(KR_E_BUSY, -23, "busy")                  \
    X(KR_E_DEADLINE, -30, "deadline passed")   \
    X(KR_E_LOST, -31, "peer lost")             \
    X(KR_E_STALE, -32, "stale epoch")          \
    X(KR_E_AUTH, -33, "authentication failed") \
    X(KR_E_CANCELLED, -34, "cancelled")        \
    X(KR_E_INTERNAL, -40, "internal error")

typedef enum {
#define KR_STATUS_ENUM(name, code, text) name = code,
    KR_STATUS_LIST(KR_STATUS_ENUM)
#undef KR_STATUS_ENUM
} kr_status;

enum { KR_ERR_TEXT_BYTES = 256 };

/* The first cause of a failure, as one line without a newline: what, where, the limit, what to do. */
typedef struct {
    kr_status status;
    char text[KR_ERR_TEXT_BYTES];
} kr_err;

/* Symbolic name ("KR_E_FULL") and short text ("pool full") of a status; never NULL. */
const char *kr_status_name(kr_status status);
const char *kr_status_text(kr_status status);

/* Writes status (not KR_OK) and the formatted line into err (which may be NULL) and returns status.
 * Text past KR_ERR_TEXT_BYTES - 1 is cut; control bytes are replaced by '?'. Called by its macro
 * below, which tells compilers and analysers that the result is not KR_OK: else they would warn of
 * outputs left unwritten. */
kr_status kr_fail(kr_err *err, kr_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static inline kr_status kr_never_ok(kr_status status)
{
    if (status == KR_OK)
        __builtin_unreachable(); /* kr_fail has checked */
    return status;
}

#define kr_fail(...) kr_never_ok(kr_fail(__VA_ARGS__))

#endif
