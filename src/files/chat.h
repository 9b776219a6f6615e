/* Chat templates by recognised family. A template that is not recognised is an error that names
 * the flag which chooses one (--chat-template chatml|llama3|gemma). */
#ifndef KR_FILES_CHAT_H
#define KR_FILES_CHAT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "files/model_file.h"
#include "files/tokenizer.h"

typedef enum { KR_CHAT_AUTO, KR_CHAT_CHATML, KR_CHAT_LLAMA3, KR_CHAT_GEMMA } kr_chat_family;

typedef struct {
    const char *role; /* "system", "user", "assistant" */
    const char *text; /* UTF-8 */
} kr_chat_message;

kr_status kr_chat_parse(const char *name, kr_chat_family *family, kr_err *err);
/* The family of the file's template (KR_CHAT_AUTO -> recognised one). */
kr_status kr_chat_recognise(const kr_model_file *file, kr_chat_family *family, kr_err *err);
/* Appends the ids of messages to ids; markup is encoded as special tokens, message text never is.
 * first: the conversation starts here (BOS, default system text of the file's template). Otherwise
 * the context so far ends with the token that closed the last assistant turn.
 * open_reply: ends with the opening of an assistant turn.
 * KR_E_LIMIT when ids does not hold them, KR_E_FORMAT for invalid UTF-8, KR_E_ARG for an unknown
 * role, KR_E_UNSUPPORTED when the vocabulary lacks the family's markup; *written changes only on
 * success. */
kr_status kr_chat_encode(const kr_tokenizer *tokenizer, kr_chat_family family,
                         const kr_chat_message *messages, size_t count, int first, int open_reply,
                         uint32_t *ids, size_t capacity, size_t *written, kr_err *err);

#endif
