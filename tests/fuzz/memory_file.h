/* Fuzz inputs as files: the readers under test map paths. */
#ifndef KR_TESTS_FUZZ_MEMORY_FILE_H
#define KR_TESTS_FUZZ_MEMORY_FILE_H

#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"

/* The path of an anonymous file that holds exactly data[bytes]; the same file on every call. */
static inline const char *memory_file(const uint8_t *data, size_t bytes)
{
    static char path[64];
    static int fd = -1;

    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        KR_CHECK(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    KR_CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
    return path;
}

#endif
