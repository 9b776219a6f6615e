/* Edit distance (Levenshtein) over short names. */
#include "base/text.h"

#include <stddef.h>
#include <string.h>

enum { NAME_BYTES_MAX = 64 };

/* Insertions, deletions and substitutions that turn a into b; both at most NAME_BYTES_MAX long. */
static size_t distance(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t row[NAME_BYTES_MAX + 1]; /* row[j]: distance of a[0..i) to b[0..j) */

    for (size_t j = 0; j <= b_bytes; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_bytes; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_bytes; j++) {
            const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            const size_t shifted = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = replaced < shifted ? replaced : shifted;
        }
    }
    return row[b_bytes];
}

const char *kr_text_nearest(const char *word, const char *const *names)
{
    const size_t bytes = strlen(word);
    const char *nearest = NULL;
    size_t best = bytes / 3 > 2 ? bytes / 3 + 1 : bytes > 4 ? 3 : 2; /* one more than allowed */

    if (bytes > NAME_BYTES_MAX)
        return NULL;
    for (; *names != NULL; names++) {
        const size_t name_bytes = strlen(*names);
        if (name_bytes > NAME_BYTES_MAX)
            continue;
        const size_t d = distance(word, bytes, *names, name_bytes);
        if (d < best) {
            best = d;
            nearest = *names;
        }
    }
    return nearest;
}
