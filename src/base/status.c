/* Names and texts of the one status list, and the writer of error lines. */
#include "base/status.h"

#include <stdio.h>

#include "base/check.h"

const char *kr_status_name(kr_status status)
{
    switch (status) {
#define KR_STATUS_CASE(name, code, text) \
    case name:                           \
        return #name;
        KR_STATUS_LIST(KR_STATUS_CASE)
#undef KR_STATUS_CASE
    }
    return "KR_E_UNKNOWN";
}

const char *kr_status_text(kr_status status)
{
    switch (status) {
#define KR_STATUS_CASE(name, code, text) \
    case name:                           \
        return text;
        KR_STATUS_LIST(KR_STATUS_CASE)
#undef KR_STATUS_CASE
    }
    return "unknown status";
}

#undef kr_fail
kr_status kr_fail(kr_err *err, kr_status status, const char *format, ...)
{
    KR_CHECK(status != KR_OK);
    if (err == NULL)
        return status;

    /* Formatted aside first: an argument may be the text already in err. */
    char text[KR_ERR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    const int written = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (written < 0)
        text[0] = '\0';

    err->status = status;
    int i = 0;
    for (; text[i] != '\0'; i++) {
        const unsigned char c = (unsigned char)text[i];
        err->text[i] = c < 0x20 || c == 0x7f ? '?' : text[i];
    }
    err->text[i] = '\0';
    return status;
}
