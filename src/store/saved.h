/* What a saved session's file holds, for people: the file is read to its end, every frame's checksum
 * compared and every frame unpacked, but nothing of it is restored and no model is needed. */
#ifndef KR_STORE_SAVED_H
#define KR_STORE_SAVED_H

#include <stdbool.h>
#include <stdio.h>

#include "base/status.h"

/* Whether path is a file that begins as a saved session does. */
bool kr_saved_recognise(const char *path);

/* Prints one JSON object, or the same facts as text (of many boundaries only the first), when all of
 * the file is sound; else nothing. KR_E_FORMAT, KR_E_VERSION, KR_E_CHECKSUM, KR_E_LIMIT, KR_E_IO,
 * KR_E_MEMORY. Memory: the largest frame as stored, at most the file's size, and zstd's window. */
kr_status kr_saved_describe(const char *path, FILE *out, bool as_json, kr_err *err);

#endif
