/* UTF-8: validation of untrusted text and stepping through text already known to be valid. */
#ifndef KR_FILES_UTF8_H
#define KR_FILES_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Offset of the first byte that does not begin a valid sequence (overlong forms, surrogates and
 * values past U+10FFFF are invalid), or bytes when all of text is valid. */
size_t kr_utf8_invalid(const char *text, size_t bytes);

/* Bytes of the character that starts with lead, in valid UTF-8. */
static inline uint32_t kr_utf8_length(char lead)
{
    const uint8_t b = (uint8_t)lead;
    return b < 0x80 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
}

/* The character at text (valid UTF-8); its length into *bytes. */
uint32_t kr_utf8_decode(const char *text, uint32_t *bytes);
/* Writes at most 4 bytes; returns how many. code is a Unicode scalar value. */
uint32_t kr_utf8_encode(uint32_t code, char out[4]);

#endif
