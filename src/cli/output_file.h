/* A file that a command writes: it has its name when it is whole, and not before.
 *
 * What is written goes to NAME.part. On success that takes the name; on a failure it is removed, and
 * what had the name is as it was. A name of no regular file (a pipe, /dev/stdout) is written itself. */
#ifndef KR_CLI_OUTPUT_FILE_H
#define KR_CLI_OUTPUT_FILE_H

#include <stdio.h>

#include "base/status.h"

typedef struct {
    FILE *file;
    const char *path;
    char part[4096]; /* "" when path itself is open */
} kr_output_file;

/* path must outlive the output. KR_E_IO, KR_E_LIMIT (the name's length). */
kr_status kr_output_open(kr_output_file *out, const char *path, kr_err *err);
/* Ends what kr_output_open began. status is that of what was written, and comes back unless the file
 * cannot be written: then KR_E_IO names it. */
kr_status kr_output_close(kr_output_file *out, kr_status status, kr_err *err);

#endif
