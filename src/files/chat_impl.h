/* What the chat code and the model file tell each other. Nothing outside src/files includes this. */
#ifndef KR_FILES_CHAT_IMPL_H
#define KR_FILES_CHAT_IMPL_H

#include "files/chat.h"
#include "files/tokenizer_impl.h"

/* Keeps in tokenizer what the file's template writes beside its markup: a default system text, the
 * dated system block of Llama 3.1. */
kr_status kr_chat_note_template(kr_tokenizer *tokenizer, const char *template, kr_err *err);
const char *kr_chat_family_name(kr_chat_family family);

#endif
