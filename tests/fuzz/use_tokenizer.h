/* What every tokenizer must do, wherever it came from: ids inside the vocabulary, decoding inside
 * the stated bound. */
#ifndef KR_TESTS_FUZZ_USE_TOKENIZER_H
#define KR_TESTS_FUZZ_USE_TOKENIZER_H

#include <stdbool.h>
#include <string.h>

#include "base/check.h"
#include "files/chat.h"
#include "files/tokenizer.h"

static inline void use_tokenizer(const kr_tokenizer *t, const char *more, size_t more_bytes)
{
    static const char text[] =
        "Hello 123  \n\n don't <|im_start|><bos> Gr\xc3\xb6\xc3\x9f e\xcc\x81 \xf0\x9f\x99\x82 ab";
    static uint32_t ids[4096];
    char piece[KR_TOKEN_BYTES_MAX], copy[513] = {0};
    const size_t copied = more_bytes < 512 ? more_bytes : 512;
    const kr_chat_message messages[] = {{"system", text}, {"user", copy}};
    size_t count = 0;

    for (uint32_t flags = 0; flags < 4; flags++)
        kr_tokenize(t, text, sizeof text - 1, flags, ids, 4096, &count, NULL);
    kr_tokenize(t, more, copied, 0, ids, 4096, &count, NULL);
    memcpy(copy, more, copied); /* any bytes, valid or not */
    for (int family = KR_CHAT_CHATML; family <= KR_CHAT_GEMMA; family++)
        for (int first = 0; first < 2; first++)
            kr_chat_encode(t, (kr_chat_family)family, messages + !first, 1 + (size_t)first, first, 1, ids,
                           4096, &count, NULL);
    for (size_t i = 0; i < count; i++) {
        KR_CHECK(ids[i] < kr_tokenizer_vocab(t));
        KR_CHECK(kr_detokenize(t, ids[i], true, piece, sizeof piece) <= sizeof piece);
    }
}

#endif
