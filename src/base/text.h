/* What a person may have meant: the nearest of a list of names, for error lines. */
#ifndef KR_BASE_TEXT_H
#define KR_BASE_TEXT_H

/* The name of names (NULL-terminated) with the smallest edit distance to word, ties to the
 * earlier; NULL when none is within a third of the word's length (at least 2). */
const char *kr_text_nearest(const char *word, const char *const *names);

#endif
