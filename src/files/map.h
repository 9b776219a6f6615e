/* A file mapped read-only. The mapping is private: a file that shrinks under a running process is
 * the one damage this cannot turn into a status (the kernel sends SIGBUS). */
#ifndef KR_FILES_MAP_H
#define KR_FILES_MAP_H

#include <stdint.h>

#include "base/status.h"

typedef struct {
    const uint8_t *data; /* [bytes]; NULL when the file is empty */
    uint64_t bytes;
} kr_map;

/* KR_E_NOT_FOUND or KR_E_IO, naming path and reason; only regular files are mapped. */
kr_status kr_map_open(const char *path, kr_map *map, kr_err *err);
void kr_map_close(kr_map *map);

#endif
