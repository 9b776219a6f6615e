/* Diagnostics to standard error: one line, one write, so lines of threads do not mix. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { LINE_BYTES = 1024 };

enum { SILENT = -1 };
static _Atomic int highest = SILENT;

void kr_log_set(kr_log_level highest_printed) { atomic_store(&highest, (int)highest_printed); }

void kr_log(kr_log_level level, const char *format, ...)
{
    static const char *const prefix[] = {"karat: error: ", "karat: warning: ", "karat: ", "karat: debug: "};
    char line[LINE_BYTES];

    if ((int)level > atomic_load_explicit(&highest, memory_order_relaxed))
        return;
    const int head = snprintf(line, sizeof line, "%s", prefix[level]);
    va_list args;
    va_start(args, format);
    const int body = vsnprintf(line + head, sizeof line - (size_t)head - 1, format, args);
    va_end(args);
    if (body < 0)
        return;
    size_t length = (size_t)head + (size_t)body;
    if (length > sizeof line - 2) /* a long line is cut */
        length = sizeof line - 2;
    line[length] = '\n';
    const ssize_t ignored = write(STDERR_FILENO, line, length + 1); /* nowhere left to report it */
    (void)ignored;
}
