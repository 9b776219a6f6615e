/* The pull scanner. What may come next follows from a stack of "in an object / in an array" and want:
 * VALUE (a value must follow), FIRST (a value or key, or the end of an empty container), COMMA (a
 * comma or the end of the container), COLON. At depth 0, COMMA and VALUE are the same: the next value
 * or the end of the file. */
#include "workload/scan.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static int refill(kr_scan *s)
{
    const int got = gzread(s->in, s->buffer, sizeof s->buffer);

    s->have = got > 0 ? (uint32_t)got : 0;
    s->at = 0;
    if (got <= 0)
        (void)gzerror(s->in, &s->error);
    return got <= 0 ? EOF : s->buffer[s->at];
}

static inline int peek(kr_scan *s) { return s->at < s->have ? s->buffer[s->at] : refill(s); }

static inline int take(kr_scan *s)
{
    const int c = peek(s);

    if (c != EOF)
        s->at++;
    return c;
}

static kr_status bad(const kr_scan *s, kr_err *err, const char *what)
{
    if (s->error == Z_ERRNO)
        return kr_fail(err, KR_E_IO, "%s: cannot be read", s->path);
    if (s->error == Z_DATA_ERROR || s->error == Z_MEM_ERROR)
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: the gzip data are damaged", s->path,
                       (unsigned long long)s->line);
    if (s->have == 0)
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: cut off, %s expected", s->path,
                       (unsigned long long)s->line, what);
    return kr_fail(err, KR_E_FORMAT, "%s:%llu: %s expected", s->path, (unsigned long long)s->line, what);
}

kr_status kr_scan_open(kr_scan *scan, const char *path, kr_err *err)
{
    gzFile in;

    errno = 0;
    in = gzopen(path, "rb");
    if (in == NULL)
        return kr_fail(err, errno == 0 ? KR_E_MEMORY : KR_E_NOT_FOUND, "%s: %s", path,
                       errno == 0 ? "no memory to read" : strerror(errno));
    (void)gzbuffer(in, KR_SCAN_BUFFER);
    memset(scan, 0, offsetof(kr_scan, buffer));
    scan->path = path;
    scan->in = in;
    scan->line = 1;
    return KR_OK;
}

void kr_scan_close(kr_scan *scan) { (void)gzclose_r(scan->in); }

static int skip_space(kr_scan *s)
{
    int c;

    while ((c = peek(s)) == ' ' || c == '\t' || c == '\r' || c == '\n') {
        s->line += c == '\n';
        s->at++;
    }
    return c;
}

static int unescape(kr_scan *s)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const int c = take(s);

    if (c == 'u') {
        for (int i = 0; i < 4; i++) {
            const int digit = peek(s);

            if (digit == EOF || strchr("0123456789abcdefABCDEF", digit) == NULL || digit == 0)
                return EOF;
            s->at++;
        }
        return '?';
    }
    const char *found = c > 0 ? strchr(from, c) : NULL;
    return found != NULL ? to[found - from] : EOF;
}

static kr_status read_string(kr_scan *s, kr_err *err)
{
    uint32_t n = 0;
    int c;

    s->at++; /* the quote */
    s->cut = false;
    while ((c = take(s)) != '"') {
        if (c == '\\')
            c = unescape(s);
        else if (c < 0x20)
            c = EOF;
        if (c == EOF)
            return bad(s, err, "the rest of a string");
        if (n + 1 < KR_SCAN_TEXT_MAX)
            s->text[n++] = (char)c;
        else
            s->cut = true;
    }
    s->text[n] = '\0';
    return KR_OK;
}

/* -?(0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)? in text; integers that fit are exact. */
static bool number_of(kr_scan *s)
{
    const char *p = s->text;
    bool integer = *p != '-', fits = true;
    uint64_t value = 0;

    p += *p == '-';
    if (*p < '0' || *p > '9' || (*p == '0' && p[1] >= '0' && p[1] <= '9'))
        return false;
    for (; *p >= '0' && *p <= '9'; p++)
        fits = fits && !__builtin_mul_overflow(value, 10, &value) &&
               !__builtin_add_overflow(value, (uint64_t)(*p - '0'), &value);
    if (*p == '.') {
        integer = false;
        if (*++p < '0' || *p > '9')
            return false;
        p += strspn(p, "0123456789");
    }
    if (*p == 'e' || *p == 'E') {
        integer = false;
        p++;
        p += *p == '+' || *p == '-';
        if (*p < '0' || *p > '9')
            return false;
        p += strspn(p, "0123456789");
    }
    s->kind = integer && fits ? KR_SCAN_INTEGER : KR_SCAN_REAL;
    s->u64 = value;
    s->real = s->kind == KR_SCAN_INTEGER ? (double)value : strtod(s->text, NULL);
    return *p == '\0';
}

static kr_status read_word(kr_scan *s, kr_err *err)
{
    uint32_t n = 0;
    int c;

    while ((c = peek(s)) != EOF && c != 0 && strchr(" \t\r\n,:[]{}\"", c) == NULL) {
        if (n + 1 == KR_SCAN_TEXT_MAX)
            return bad(s, err, "a shorter number");
        s->text[n++] = (char)c;
        s->at++;
    }
    s->text[n] = '\0';
    if (strcmp(s->text, "true") == 0)
        s->kind = KR_SCAN_TRUE;
    else if (strcmp(s->text, "false") == 0)
        s->kind = KR_SCAN_FALSE;
    else if (strcmp(s->text, "null") == 0)
        s->kind = KR_SCAN_NULL;
    else if (!number_of(s))
        return bad(s, err, "a JSON value");
    return KR_OK;
}

static kr_status open_container(kr_scan *s, bool object, kr_err *err)
{
    if (s->depth == KR_SCAN_DEPTH_MAX)
        return kr_fail(err, KR_E_LIMIT, "%s:%llu: nested deeper than %d", s->path,
                       (unsigned long long)s->line, KR_SCAN_DEPTH_MAX);
    s->object[s->depth++] = object;
    s->kind = object ? KR_SCAN_OBJECT : KR_SCAN_ARRAY;
    s->want = KR_SCAN_WANT_FIRST;
    s->at++;
    return KR_OK;
}

static kr_status close_container(kr_scan *s)
{
    s->kind = s->object[--s->depth] ? KR_SCAN_OBJECT_END : KR_SCAN_ARRAY_END;
    s->want = KR_SCAN_WANT_COMMA;
    s->at++;
    return KR_OK;
}

static kr_status read_key(kr_scan *s, kr_err *err)
{
    kr_status status;

    if (peek(s) != '"')
        return bad(s, err, "a key in quotes");
    status = read_string(s, err);
    if (status != KR_OK)
        return status;
    if (skip_space(s) != ':')
        return bad(s, err, "':' after a key");
    s->at++;
    s->kind = KR_SCAN_KEY;
    s->want = KR_SCAN_WANT_COLON; /* the colon is behind us: the value may not be missing */
    return KR_OK;
}

static kr_status read_value(kr_scan *s, kr_err *err)
{
    const int c = skip_space(s);
    kr_status status;

    if (c == '{' || c == '[')
        return open_container(s, c == '{', err);
    if (c == '"') {
        s->kind = KR_SCAN_STRING;
        status = read_string(s, err);
    } else {
        status = read_word(s, err);
    }
    s->want = KR_SCAN_WANT_COMMA;
    return status;
}

kr_status kr_scan_next(kr_scan *s, kr_err *err)
{
    int c = skip_space(s);

    if (s->depth == 0) {
        if (c == EOF) {
            if (s->error != Z_OK)
                return bad(s, err, "more");
            s->kind = KR_SCAN_END;
            return KR_OK;
        }
        return read_value(s, err);
    }
    const bool object = s->object[s->depth - 1];
    if (s->want == KR_SCAN_WANT_COLON)
        return read_value(s, err);
    if ((s->want == KR_SCAN_WANT_FIRST || s->want == KR_SCAN_WANT_COMMA) && c == (object ? '}' : ']'))
        return close_container(s);
    if (s->want == KR_SCAN_WANT_COMMA) {
        if (c != ',')
            return bad(s, err, object ? "',' or '}'" : "',' or ']'");
        s->at++;
        skip_space(s);
    }
    return object ? read_key(s, err) : read_value(s, err);
}

kr_status kr_scan_skip(kr_scan *scan, kr_err *err)
{
    const uint32_t depth = scan->depth;
    kr_status status;

    do
        status = kr_scan_next(scan, err);
    while (status == KR_OK && scan->depth > depth);
    return status;
}

kr_status kr_scan_expect(kr_scan *scan, kr_scan_kind kind, const char *what, kr_err *err)
{
    const kr_status status = kr_scan_next(scan, err);

    if (status != KR_OK)
        return status;
    return scan->kind == kind ? KR_OK : bad(scan, err, what);
}

kr_status kr_scan_u64(kr_scan *scan, const char *what, uint64_t max, uint64_t *out, kr_err *err)
{
    const kr_status status = kr_scan_next(scan, err);

    if (status != KR_OK)
        return status;
    if (scan->kind != KR_SCAN_INTEGER || scan->u64 > max)
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: %s must be an integer from 0 to %llu", scan->path,
                       (unsigned long long)scan->line, what, (unsigned long long)max);
    *out = scan->u64;
    return KR_OK;
}

kr_status kr_scan_time(kr_scan *scan, const char *what, double unit_us, uint64_t *out_us, kr_err *err)
{
    const kr_status status = kr_scan_next(scan, err);

    if (status != KR_OK || scan->kind == KR_SCAN_NULL)
        return status;
    if ((scan->kind != KR_SCAN_INTEGER && scan->kind != KR_SCAN_REAL) || !(scan->real >= 0.0) ||
        scan->real * unit_us > 9007199254740992.0)
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: %s must be a time of at least 0", scan->path,
                       (unsigned long long)scan->line, what);
    *out_us = (uint64_t)llround(scan->real * unit_us);
    return KR_OK;
}
