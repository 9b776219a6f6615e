/* Pull scanner for JSON text of any length: one token at a time, bounded memory, integers of 64 bits.
 *
 * A file packed with gzip is unpacked as it is read. Traces are read with it and not with jansson, which
 * builds a whole tree and refuses integers from 2^63 on. A file may hold several values one after another
 * (JSON lines). Strings are kept up to
 * KR_SCAN_TEXT_MAX - 1 bytes; longer ones are read over and marked as cut. Escapes become the bytes
 * they stand for, except \u, which becomes '?': no reader needs text outside ASCII. */
#ifndef KR_WORKLOAD_SCAN_H
#define KR_WORKLOAD_SCAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <zlib.h>

#include "base/status.h"

enum { KR_SCAN_TEXT_MAX = 256, KR_SCAN_DEPTH_MAX = 64, KR_SCAN_BUFFER = 1 << 16 };

typedef enum {
    KR_SCAN_END, /* of the file, between values */
    KR_SCAN_OBJECT,
    KR_SCAN_OBJECT_END,
    KR_SCAN_ARRAY,
    KR_SCAN_ARRAY_END,
    KR_SCAN_KEY, /* text; the value follows */
    KR_SCAN_STRING,
    KR_SCAN_INTEGER, /* u64 and real; not negative, no point, no exponent */
    KR_SCAN_REAL,    /* real; every other number */
    KR_SCAN_TRUE,
    KR_SCAN_FALSE,
    KR_SCAN_NULL,
} kr_scan_kind;

typedef struct {
    const char *path; /* for error lines */
    uint64_t line;    /* of the token, from 1 */
    kr_scan_kind kind;
    char text[KR_SCAN_TEXT_MAX];
    bool cut; /* text was longer */
    uint64_t u64;
    double real;
    /* The rest is the scanner's own. */
    gzFile in;
    int error; /* of zlib, once reading ended */
    uint32_t depth, have, at;
    bool object[KR_SCAN_DEPTH_MAX];
    enum { KR_SCAN_WANT_VALUE, KR_SCAN_WANT_FIRST, KR_SCAN_WANT_COMMA, KR_SCAN_WANT_COLON } want;
    unsigned char buffer[KR_SCAN_BUFFER];
} kr_scan;

/* path must outlive the scanner. KR_E_NOT_FOUND. */
kr_status kr_scan_open(kr_scan *scan, const char *path, kr_err *err);
void kr_scan_close(kr_scan *scan);

/* The next token. KR_E_FORMAT with path and line; KR_E_IO. */
kr_status kr_scan_next(kr_scan *scan, kr_err *err);
/* Reads over the value that comes next. */
kr_status kr_scan_skip(kr_scan *scan, kr_err *err);
/* The next token must be of this kind; what names it in the error line. */
kr_status kr_scan_expect(kr_scan *scan, kr_scan_kind kind, const char *what, kr_err *err);
/* The next value must be an integer of at most max. */
kr_status kr_scan_u64(kr_scan *scan, const char *what, uint64_t max, uint64_t *out, kr_err *err);
/* The next value must be a number of at least 0; scaled by unit_us, rounded to whole microseconds, at
 * most 2^53. null leaves *out_us alone. */
kr_status kr_scan_time(kr_scan *scan, const char *what, double unit_us, uint64_t *out_us, kr_err *err);

#endif
