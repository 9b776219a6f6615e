/* Reading and planting. */
#include "eval/eval_text.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/rng.h"

enum { TEXT_BYTES_MAX = 64 << 20, PATH_BYTES = 1024, TOKENS_BESIDE = 8 /* a BOS and a space */ };

typedef struct {
    char *data;
    size_t bytes;
} text;

/* Appends a whole file. */
static kr_status add_file(const char *path, text *t, kr_err *err)
{
    struct stat about;
    FILE *file = fopen(path, "rb");
    if (file == NULL || fstat(fileno(file), &about) != 0) {
        const int cause = errno;
        if (file != NULL)
            fclose(file);
        return kr_fail(err, KR_E_IO, "text %.180s: %s", path, strerror(cause));
    }
    kr_status status = KR_OK;
    char *more = NULL;
    if (about.st_size < 0 || (uint64_t)about.st_size > TEXT_BYTES_MAX - t->bytes)
        status = kr_fail(err, KR_E_LIMIT, "text %.180s: more than %d MiB in all", path, TEXT_BYTES_MAX >> 20);
    else if ((more = kr_realloc(t->data, t->bytes + (size_t)about.st_size + 1)) == NULL)
        status = kr_fail(err, KR_E_MEMORY, "text %.180s: no memory", path);
    else
        t->data = more;
    if (status == KR_OK) {
        t->bytes += fread(t->data + t->bytes, 1, (size_t)about.st_size, file);
        if (ferror(file))
            status = kr_fail(err, KR_E_IO, "text %.180s: %s", path, strerror(errno));
    }
    fclose(file);
    return status;
}

static kr_status add_folder(const char *path, text *t, kr_err *err)
{
    struct dirent **entry;
    const int count = scandir(path, &entry, NULL, alphasort);
    kr_status status = KR_OK;
    if (count < 0)
        return kr_fail(err, KR_E_IO, "text %.180s: %s", path, strerror(errno));
    for (int i = 0; i < count; i++) {
        char name[PATH_BYTES];
        struct stat about;
        const int n = snprintf(name, sizeof name, "%s/%s", path, entry[i]->d_name);
        if (status == KR_OK && n > 0 && n < PATH_BYTES && lstat(name, &about) == 0 && S_ISREG(about.st_mode))
            status = add_file(name, t, err);
        kr_free(entry[i]);
    }
    kr_free(entry);
    return status;
}

static kr_status encode(const kr_tokenizer *tokenizer, const char *data, size_t bytes, uint32_t flags,
                        kr_eval_tokens *out, kr_err *err)
{
    const size_t room = bytes + TOKENS_BESIDE;
    size_t count = 0;
    uint32_t *token = kr_alloc(room * sizeof *token);
    kr_status status = token == NULL ? kr_fail(err, KR_E_MEMORY, "no memory for %zu tokens", room)
                                     : kr_tokenize(tokenizer, data, bytes, flags, token, room, &count, err);
    if (status != KR_OK) {
        kr_free(token);
        return status;
    }
    *out = (kr_eval_tokens){token, count};
    return KR_OK;
}

kr_status kr_eval_corpus(const kr_tokenizer *tokenizer, const char *path, kr_eval_tokens *out, kr_err *err)
{
    text t = {0};
    struct stat about;
    kr_status status;
    if (stat(path, &about) != 0)
        status = kr_fail(err, KR_E_IO, "text %.180s: %s", path, strerror(errno));
    else if (S_ISDIR(about.st_mode))
        status = add_folder(path, &t, err);
    else
        status = add_file(path, &t, err);
    if (status == KR_OK && t.bytes == 0)
        status = kr_fail(err, KR_E_FORMAT, "text %.180s holds nothing", path);
    if (status == KR_OK)
        status = encode(tokenizer, t.data, t.bytes, KR_TOKENIZE_BOS, out, err);
    kr_free(t.data);
    return status;
}

/* Filler before and after the sentence comes from the corpus without a gap. */
static kr_status plant(const kr_eval_tokens *corpus, const kr_eval_tokens *sentence, uint64_t tokens,
                       kr_eval_needle *needle, kr_err *err)
{
    if (sentence->count + 2 > tokens || tokens - sentence->count > corpus->count)
        return kr_fail(err, KR_E_LIMIT, "a document of %llu tokens with a passkey: the text has %llu",
                       (unsigned long long)tokens, (unsigned long long)corpus->count);
    const uint64_t filler = tokens - sentence->count;
    const uint64_t before = 1 + (uint64_t)(needle->depth * (double)(filler - 1)); /* behind a BOS */
    uint32_t *token = kr_alloc(tokens * sizeof *token);
    if (token == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for %llu tokens", (unsigned long long)tokens);
    memcpy(token, corpus->token, before * sizeof *token);
    memcpy(token + before, sentence->token, sentence->count * sizeof *token);
    memcpy(token + before + sentence->count, corpus->token + before, (filler - before) * sizeof *token);
    needle->document = (kr_eval_tokens){token, tokens};
    return KR_OK;
}

kr_status kr_eval_needle_make(const kr_tokenizer *tokenizer, const kr_eval_tokens *corpus, uint64_t tokens,
                              uint32_t number, double depth, kr_eval_needle *needle, kr_err *err)
{
    static const char question[] = "\n\nWhat is the pass key? The pass key is";
    char sentence[128];
    kr_eval_tokens planted = {0};
    kr_rng rng = kr_rng_make(tokens, number);
    kr_eval_needle n = {.depth = depth};
    for (int i = 0; i < KR_EVAL_PASSKEY_DIGITS; i++)
        n.passkey[i] = (char)('1' + kr_rng_below(&rng, 9));
    const int bytes = snprintf(sentence, sizeof sentence,
                               "\n\nThe pass key is %s. Remember it. %s is the pass key.\n\n", n.passkey,
                               n.passkey);
    kr_status status = encode(tokenizer, sentence, (size_t)bytes, 0, &planted, err);
    if (status == KR_OK)
        status = encode(tokenizer, question, sizeof question - 1, 0, &n.question, err);
    if (status == KR_OK)
        status = plant(corpus, &planted, tokens, &n, err);
    kr_free(planted.token);
    if (status == KR_OK)
        *needle = n;
    else
        kr_eval_needle_free(&n);
    return status;
}

void kr_eval_needle_free(kr_eval_needle *needle)
{
    kr_free(needle->document.token);
    kr_free(needle->question.token);
    *needle = (kr_eval_needle){0};
}

int kr_eval_needle_found(const kr_tokenizer *tokenizer, const kr_eval_needle *needle, const uint32_t *answer,
                         uint32_t count)
{
    char said[KR_EVAL_ANSWER_TOKENS * KR_TOKEN_BYTES_MAX + 1];
    size_t n = 0;
    for (uint32_t i = 0; i < count && i < KR_EVAL_ANSWER_TOKENS; i++)
        n += kr_detokenize(tokenizer, answer[i], false, said + n, sizeof said - 1 - n);
    said[n] = '\0';
    return strstr(said, needle->passkey) != NULL;
}
