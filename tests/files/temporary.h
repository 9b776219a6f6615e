/* A folder of its own for each test program, gone when it ends. */
#ifndef KR_TESTS_FILES_TEMPORARY_H
#define KR_TESTS_FILES_TEMPORARY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char temporary_folder[64];

/* cmocka's group setup and teardown. */
static inline int temporary_make(void **state)
{
    (void)state;
    snprintf(temporary_folder, sizeof temporary_folder, "/tmp/karat-files-XXXXXX");
    return mkdtemp(temporary_folder) ? 0 : -1;
}

static inline int temporary_remove(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -r %s", temporary_folder);
    return system(command);
}

/* FOLDER/name in a buffer that the next call but three reuses. */
static inline const char *temporary_path(const char *name)
{
    static char paths[4][256];
    static unsigned next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof paths[0], "%s/%s", temporary_folder, name);
    return path;
}

static inline void write_file(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");

    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) {
        perror(path);
        abort();
    }
}

#endif
