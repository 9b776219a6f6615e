/* The texts of an evaluation as token ids: a corpus to continue, and prompts with a planted passkey. */
#ifndef KR_EVAL_EVAL_TEXT_H
#define KR_EVAL_EVAL_TEXT_H

#include <stdint.h>

#include "base/status.h"
#include "files/tokenizer.h"

/* Debian's licence texts: plain files only, by name. */
#define KR_EVAL_TEXTS "/usr/share/common-licenses"

typedef struct {
    uint32_t *token; /* [count] */
    uint64_t count;
} kr_eval_tokens;

/* A file, or all plain files of a folder in the order of their names. KR_E_IO, KR_E_LIMIT (64 MiB). */
kr_status kr_eval_corpus(const kr_tokenizer *tokenizer, const char *path, kr_eval_tokens *out, kr_err *err);

enum { KR_EVAL_PASSKEY_DIGITS = 5, KR_EVAL_ANSWER_TOKENS = 8 };

/* document: filler from the corpus with the passkey's sentence at depth (0 first, 1 last), exactly
 * `tokens` long; question: what is asked behind it. Both belong to the caller. */
typedef struct {
    kr_eval_tokens document, question;
    char passkey[KR_EVAL_PASSKEY_DIGITS + 1];
    double depth;
} kr_eval_needle;

/* The passkey follows from tokens and number alone. */
kr_status kr_eval_needle_make(const kr_tokenizer *tokenizer, const kr_eval_tokens *corpus, uint64_t tokens,
                              uint32_t number, double depth, kr_eval_needle *needle, kr_err *err);
void kr_eval_needle_free(kr_eval_needle *needle);
/* The answer's text holds the passkey. */
int kr_eval_needle_found(const kr_tokenizer *tokenizer, const kr_eval_needle *needle, const uint32_t *answer,
                         uint32_t count);

#endif
