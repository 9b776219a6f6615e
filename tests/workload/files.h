/* Small trace files for the tests of workload/, written where they run and removed again. */
#ifndef TESTS_WORKLOAD_FILES_H
#define TESTS_WORKLOAD_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "workload/trace.h"

/* Writes text to a fresh file whose name ends so; path holds 64 bytes. */
static inline void put_file(char *path, const char *suffix, const char *text)
{
    int fd;

    snprintf(path, 64, "/tmp/karat-trace-XXXXXX%s", suffix);
    fd = mkstemps(path, (int)strlen(suffix));
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static inline kr_status read_text(kr_trace *trace, const char *suffix, const char *text, kr_err *err)
{
    char path[64];
    kr_status status;

    put_file(path, suffix, text);
    status = kr_trace_read(trace, path, 0, err);
    unlink(path);
    return status;
}

static inline void must_read(kr_trace *trace, const char *suffix, const char *text)
{
    kr_err err;

    if (read_text(trace, suffix, text, &err) != KR_OK)
        fail_msg("%s", err.text);
}

/* Reading fails with status and a line that contains said. */
static inline void must_refuse(const char *suffix, const char *text, kr_status status, const char *said)
{
    kr_trace trace;
    kr_err err = {0};

    assert_int_equal(read_text(&trace, suffix, text, &err), status);
    if (strstr(err.text, said) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.text, said);
    assert_null(trace.turn);
    assert_int_equal(trace.sessions, 0);
}

#endif
