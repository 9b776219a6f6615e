/* The four forms of UTF-8, one table of ranges for the second byte. */
#include "files/utf8.h"

/* Length of the valid sequence at s, or 0. The second byte's range excludes overlong forms,
 * surrogates and values past U+10FFFF (Unicode standard, table 3-7). */
static size_t sequence(const uint8_t *s, size_t left)
{
    const uint8_t lead = s[0];
    size_t bytes;
    uint8_t low = 0x80, high = 0xbf;

    if (lead < 0x80)
        return 1;
    if (lead < 0xc2 || lead > 0xf4)
        return 0;
    bytes = kr_utf8_length((char)lead);
    if (left < bytes)
        return 0;
    if (lead == 0xe0)
        low = 0xa0;
    else if (lead == 0xed)
        high = 0x9f;
    else if (lead == 0xf0)
        low = 0x90;
    else if (lead == 0xf4)
        high = 0x8f;
    if (s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < bytes; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    return bytes;
}

size_t kr_utf8_invalid(const char *text, size_t bytes)
{
    size_t at = 0;

    while (at < bytes) {
        const size_t n = sequence((const uint8_t *)text + at, bytes - at);
        if (n == 0)
            break;
        at += n;
    }
    return at;
}

uint32_t kr_utf8_decode(const char *text, uint32_t *bytes)
{
    const uint8_t *s = (const uint8_t *)text;

    *bytes = kr_utf8_length(text[0]);
    switch (*bytes) {
    case 1:
        return s[0];
    case 2:
        return (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
    case 3:
        return (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    default:
        return (s[0] & 0x07u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
    }
}

uint32_t kr_utf8_encode(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}
