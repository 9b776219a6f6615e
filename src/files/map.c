/* mmap behind kr_map. */
#include "files/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

kr_status kr_map_open(const char *path, kr_map *map, kr_err *err)
{
    struct stat st;
    void *data = NULL;
    kr_status status = KR_OK;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */

    if (fd < 0)
        return kr_fail(err, errno == ENOENT ? KR_E_NOT_FOUND : KR_E_IO, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0)
        status = kr_fail(err, KR_E_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        status = kr_fail(err, KR_E_IO, "%s: not a regular file", path);
    else if (st.st_size > 0) {
        data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            status = kr_fail(err, KR_E_IO, "%s: mmap of %lld bytes: %s", path, (long long)st.st_size,
                             strerror(errno));
    }
    close(fd);
    if (status == KR_OK)
        *map = (kr_map){data, (uint64_t)st.st_size};
    return status;
}

void kr_map_close(kr_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->bytes);
    *map = (kr_map){NULL, 0};
}
