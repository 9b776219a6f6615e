/* Where the prompts of `karat run` come from, and their token ids. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "cli/run.h"

enum { TEXT_BYTES_MAX = 256 << 20, SEPARATOR_BYTES = 3 };

/* A whole file, or standard input for "-". *text belongs to the caller. */
static kr_status read_text(const char *path, char **text, size_t *bytes, kr_err *err)
{
    const bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "rb");
    if (file == NULL)
        return kr_fail(err, KR_E_IO, "prompt file %s: %s", path, strerror(errno));
    size_t room = 64 << 10, n = 0;
    char *data = kr_alloc(room);
    kr_status status = KR_OK;
    while (data != NULL) {
        n += fread(data + n, 1, room - n, file);
        if (n < room)
            break;
        if (room == TEXT_BYTES_MAX) {
            status = kr_fail(err, KR_E_LIMIT, "prompt file %s is longer than %d MiB", path,
                             TEXT_BYTES_MAX >> 20);
            break;
        }
        char *more = kr_realloc(data, room *= 2);
        if (more == NULL)
            kr_free(data);
        data = more;
    }
    if (data == NULL)
        status = kr_fail(err, KR_E_MEMORY, "no memory for prompt file %s", path);
    else if (status == KR_OK && ferror(file))
        status = kr_fail(err, KR_E_IO, "prompt file %s: %s", path, strerror(errno));
    if (!standard)
        fclose(file);
    if (status != KR_OK) {
        kr_free(data);
        return status;
    }
    *text = data;
    *bytes = n;
    return KR_OK;
}

/* A token covers at least one byte, but a vocabulary may prefix a space and a BOS. */
kr_status kr_run_encode(const kr_tokenizer *tokenizer, const char *text, size_t bytes, bool first,
                        kr_run_prompt *out, kr_err *err)
{
    const size_t room = bytes + 8;
    size_t count = 0;
    uint32_t *token = kr_alloc(room * sizeof *token);
    if (token == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for %zu tokens", room);
    kr_status status = kr_tokenize(tokenizer, text, bytes, first ? KR_TOKENIZE_BOS : 0, token, room, &count,
                                   err);
    if (status != KR_OK) {
        kr_free(token);
        return status;
    }
    *out = (kr_run_prompt){token, count};
    return KR_OK;
}

kr_status kr_run_encode_turn(const kr_tokenizer *tokenizer, kr_chat_family family, const char *system,
                             const char *user, bool first, kr_run_prompt *out, kr_err *err)
{
    const kr_chat_message messages[] = {{"system", system}, {"user", user}};
    const size_t skip = system == NULL || !first;
    const size_t room = strlen(user) + (system == NULL ? 0 : strlen(system)) + 256;
    size_t count = 0;
    uint32_t *token = kr_alloc(room * sizeof *token);
    if (token == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for %zu tokens", room);
    kr_status status = kr_chat_encode(tokenizer, family, messages + skip, 2 - skip, first, 1, token, room,
                                      &count, err);
    if (status != KR_OK) {
        kr_free(token);
        return status;
    }
    *out = (kr_run_prompt){token, count};
    return KR_OK;
}

typedef struct {
    const kr_run_options *options;
    const kr_tokenizer *tokenizer;
    kr_chat_family family;
    kr_run_prompts *prompts;
    uint32_t wanted; /* at most so many */
} reader;

static kr_status add(reader *r, const char *text, size_t bytes, kr_err *err)
{
    kr_run_prompts *p = r->prompts;
    if (p->count == r->wanted)
        return KR_OK;
    if (bytes == 0)
        return kr_fail(err, KR_E_ARG, "prompt %u is empty", p->count + 1);
    kr_run_prompt *grown = kr_realloc(p->prompt, (p->count + 1) * sizeof *grown);
    if (grown == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for prompt %u", p->count + 1);
    p->prompt = grown;
    const bool first = r->options->restore == NULL; /* a restored session has its beginning */
    kr_status status;
    if (r->options->instruct) {
        char *user = kr_alloc(bytes + 1);
        if (user == NULL)
            return kr_fail(err, KR_E_MEMORY, "no memory for prompt %u", p->count + 1);
        memcpy(user, text, bytes);
        if (memchr(text, '\0', bytes) != NULL)
            status = kr_fail(err, KR_E_FORMAT, "prompt %u holds a NUL byte", p->count + 1);
        else
            status = kr_run_encode_turn(r->tokenizer, r->family, r->options->system, user, first,
                                        &p->prompt[p->count], err);
        kr_free(user);
    } else {
        status = kr_run_encode(r->tokenizer, text, bytes, first, &p->prompt[p->count], err);
    }
    p->count += status == KR_OK;
    return status;
}

/* Blocks between lines that hold only "---"; the newline before such a line is not part of a block. */
static kr_status add_blocks(reader *r, const char *text, size_t bytes, kr_err *err)
{
    size_t begin = 0;
    for (size_t at = 0; at < bytes;) {
        const char *newline = memchr(text + at, '\n', bytes - at);
        const size_t end = newline == NULL ? bytes : (size_t)(newline - text);
        if (end - at == SEPARATOR_BYTES && memcmp(text + at, "---", SEPARATOR_BYTES) == 0) {
            kr_status status = add(r, text + begin, at > begin ? at - 1 - begin : 0, err);
            if (status != KR_OK)
                return status;
            begin = end + 1;
        }
        at = end + 1;
    }
    if (begin >= bytes && r->prompts->count != 0)
        return KR_OK; /* the file ended with a separator */
    return add(r, text + begin, begin < bytes ? bytes - begin : 0, err);
}

static kr_status read_all(reader *r, char **texts, int text_count, kr_err *err)
{
    const kr_run_options *o = r->options;
    kr_status status = KR_OK;
    if (o->prompt != NULL)
        status = add(r, o->prompt, strlen(o->prompt), err);
    for (int i = 0; i < text_count && status == KR_OK; i++)
        status = add(r, texts[i], strlen(texts[i]), err);
    if (status != KR_OK || o->prompt_file == NULL)
        return status;
    char *text;
    size_t bytes;
    status = read_text(o->prompt_file, &text, &bytes, err);
    if (status != KR_OK)
        return status;
    status = add_blocks(r, text, bytes, err);
    kr_free(text);
    return status;
}

kr_status kr_run_read_prompts(const kr_run_options *options, char **texts, int text_count,
                              const kr_tokenizer *tokenizer, kr_chat_family family, kr_run_prompts *prompts,
                              kr_err *err)
{
    reader r = {options, tokenizer, family, prompts,
                options->sessions != 0 ? options->sessions : KR_ENGINE_SESSIONS_MAX};
    *prompts = (kr_run_prompts){0};
    kr_status status = read_all(&r, texts, text_count, err);
    if (status == KR_OK && prompts->count == 0)
        status = kr_fail(err, KR_E_ARG, "no prompt: give --prompt, --prompt-file or --chat");
    if (status == KR_OK && prompts->count < options->sessions)
        status = kr_fail(err, KR_E_ARG, "--sessions %u needs as many prompts, %u given", options->sessions,
                         prompts->count);
    if (status != KR_OK)
        kr_run_free_prompts(prompts);
    return status;
}

void kr_run_free_prompts(kr_run_prompts *prompts)
{
    for (uint32_t i = 0; i < prompts->count; i++)
        kr_free(prompts->prompt[i].token);
    kr_free(prompts->prompt);
    *prompts = (kr_run_prompts){0};
}
