/* Files of commands: written beside their name, renamed when whole. */
#include "cli/output_file.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

kr_status kr_output_open(kr_output_file *out, const char *path, kr_err *err)
{
    struct stat there;
    const bool direct = lstat(path, &there) == 0 && !S_ISREG(there.st_mode);

    *out = (kr_output_file){.path = path};
    if (!direct) {
        const int length = snprintf(out->part, sizeof out->part, "%s.part", path);
        if (length < 0 || (size_t)length >= sizeof out->part)
            return kr_fail(err, KR_E_LIMIT, "%.150s...: a name of more than %zu bytes", path,
                           sizeof out->part - sizeof ".part");
    }
    out->file = fopen(direct ? path : out->part, "wb");
    return out->file != NULL ? KR_OK : kr_fail(err, KR_E_IO, "%.200s: %s", path, strerror(errno));
}

kr_status kr_output_close(kr_output_file *out, kr_status status, kr_err *err)
{
    const bool flushed = fflush(out->file) == 0;
    const int cause = flushed ? EIO : errno;
    const bool written = flushed && ferror(out->file) == 0;

    if (fclose(out->file) != 0 || !written)
        status = kr_fail(err, KR_E_IO, "%.200s: %s", out->path, strerror(written ? errno : cause));
    if (status == KR_OK && out->part[0] != '\0' && rename(out->part, out->path) != 0)
        status = kr_fail(err, KR_E_IO, "%.200s: %s", out->path, strerror(errno));
    if (status != KR_OK && out->part[0] != '\0')
        (void)remove(out->part);
    return status;
}
