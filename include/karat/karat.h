/* What every part of karat's C API shares: status codes, error text, versions, the export mark.
 *
 *   karat/karat.h      this file
 *   karat/selector.h   selection and attention on a caller's own keys and values
 *   karat/kernels.h    the plain kernels: exact top-k, indexer and block scores
 *   karat/client.h     sessions on a running `karat node`
 *   karat/method.h     a retrieval method outside karat's tree, loaded as a shared object
 *
 * Rules of the whole API. Handles are opaque. Structs that may grow begin with struct_size, which the
 * caller sets to sizeof the struct it was compiled with; fields beyond it count as 0, and 0 always
 * means "the documented default". Functions return a karat_status and write outputs only on
 * KARAT_OK. A wrong argument, a null handle included, is a status, never a crash, as far as it can be
 * seen: a pointer that is not null is believed. No function prints, exits or reads the environment.
 * Strings are UTF-8 with an end; those that are returned live as long as the process unless said.
 * A handle is used by one thread at a time; different handles by any number. */
#ifndef KARAT_KARAT_H
#define KARAT_KARAT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KARAT_API __attribute__((visibility("default")))

/* Number in the shared object's name (libkarat.so.0): raised when a function or struct changes so
 * that old programs would break. Additions leave it. */
#define KARAT_ABI 0

typedef enum karat_status {
    KARAT_OK = 0,
    KARAT_E_ARG = -1,         /* invalid argument */
    KARAT_E_SHAPE = -2,       /* shape not supported */
    KARAT_E_UNSUPPORTED = -3, /* not supported */
    KARAT_E_FORMAT = -10,     /* malformed input */
    KARAT_E_VERSION = -11,    /* version mismatch */
    KARAT_E_CHECKSUM = -12,   /* checksum mismatch */
    KARAT_E_LIMIT = -13,      /* over a stated limit */
    KARAT_E_NOT_FOUND = -14,  /* not found */
    KARAT_E_EXISTS = -15,     /* already exists */
    KARAT_E_MEMORY = -20,     /* out of memory */
    KARAT_E_FULL = -21,       /* pool full */
    KARAT_E_IO = -22,         /* input/output error */
    KARAT_E_BUSY = -23,       /* busy */
    KARAT_E_DEADLINE = -30,   /* deadline passed */
    KARAT_E_LOST = -31,       /* peer lost */
    KARAT_E_STALE = -32,      /* stale epoch */
    KARAT_E_AUTH = -33,       /* authentication failed */
    KARAT_E_CANCELLED = -34,  /* cancelled */
    KARAT_E_INTERNAL = -40    /* internal error */
} karat_status;

/* "KARAT_E_FULL", "pool full"; never null, also for a number that is no status. */
KARAT_API const char *karat_status_name(karat_status status);
KARAT_API const char *karat_status_text(karat_status status);

/* The first cause of a failure, as one line without a newline: what, where, the limit, what to do.
 * The caller's memory; every function takes a null instead. Written on failure only. */
#define KARAT_ERROR_TEXT_BYTES 256
typedef struct karat_error {
    karat_status status;
    char text[KARAT_ERROR_TEXT_BYTES];
} karat_error;

/* Element type of an array. */
typedef enum karat_dtype {
    KARAT_F32 = 0,
    KARAT_F16 = 1,
    KARAT_BF16 = 2,
    KARAT_E4M3 = 3 /* FP8, finite: largest 448, NaN is 0x7f and 0xff */
} karat_dtype;

/* Where options of a method say how many first layers stay dense: as its authors had it. */
#define KARAT_METHOD_DEFAULT UINT32_MAX

/* Version of the library that is loaded ("0.1.0"), and its KARAT_ABI. */
KARAT_API const char *karat_version(void);
KARAT_API uint32_t karat_abi(void);

#ifdef __cplusplus
}
#endif

#endif
