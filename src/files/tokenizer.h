/* Text to token ids and back: byte-level BPE and SentencePiece-style vocabularies, from GGUF
 * metadata or tokenizer.json. Linear time and bounded stack on any input (131,072 equal
 * characters included); invalid UTF-8 is an error that names the byte offset. */
#ifndef KR_FILES_TOKENIZER_H
#define KR_FILES_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct kr_tokenizer kr_tokenizer;

typedef enum {
    KR_TOKENIZE_SPECIAL = 1, /* recognise special tokens in the text (markup we wrote ourselves) */
    KR_TOKENIZE_BOS = 2,     /* into empty ids: the model's BOS first, if it wants one (never two) */
} kr_tokenize_flag;

/* Appends the ids of text[bytes] to ids[*count..capacity). KR_E_LIMIT when they do not fit,
 * KR_E_FORMAT for invalid UTF-8. User text is encoded without KR_TOKENIZE_SPECIAL, so that a
 * spelled-out special token stays plain text. */
kr_status kr_tokenize(const kr_tokenizer *tokenizer, const char *text, size_t bytes, uint32_t flags,
                      uint32_t *ids, size_t capacity, size_t *count, kr_err *err);

/* Bytes of one token appended to out (not NUL-terminated; may be part of a character). Special
 * tokens give nothing unless specials is true. Returns the byte count, at most capacity. */
size_t kr_detokenize(const kr_tokenizer *tokenizer, uint32_t id, bool specials, char *out, size_t capacity);

uint32_t kr_tokenizer_vocab(const kr_tokenizer *tokenizer);
bool kr_tokenizer_is_end(const kr_tokenizer *tokenizer, uint32_t id); /* EOS, EOT, end of turn */
enum { KR_TOKEN_BYTES_MAX = 1024, KR_NO_TOKEN = -1 };
int64_t kr_tokenizer_find(const kr_tokenizer *tokenizer, const char *piece); /* special or plain */

#endif
