/* The end of a process whose own code is wrong. */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

_Noreturn void kr_check_failed(const char *file, int line, const char *text)
{
    char message[512];
    const int n = snprintf(message, sizeof message, "karat: bug at %s:%d: %s\n", file, line, text);
    const size_t length = n < 0 ? 0 : (size_t)n < sizeof message ? (size_t)n : sizeof message - 1;

    /* write, not stdio: the stream's lock may be held by the thread that is broken. */
    if (write(STDERR_FILENO, message, length) < 0)
        abort();
    abort();
}
