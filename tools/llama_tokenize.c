/* Token ids by llama.cpp, for tools/make_token_fixtures.py.
 *
 *     cc llama_tokenize.c -I LLAMA_CPP/include -I LLAMA_CPP/ggml/include -L BUILD -lllama -o llama_tokenize
 *     llama_tokenize MODEL.gguf SPECIAL < texts
 *
 * Reads texts that end with a NUL byte each, writes the ids of one text per line. SPECIAL is 0 or
 * 1: whether special tokens are recognised in the text. No BOS is added. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llama.h"

enum { INPUT_MAX = 64 << 20 };

static void quiet(enum ggml_log_level level, const char *text, void *context)
{
    (void)level, (void)text, (void)context;
}

int main(int argc, char **argv)
{
    struct llama_model_params params = llama_model_default_params();
    char *text = malloc(INPUT_MAX);
    llama_token *ids = malloc(INPUT_MAX * sizeof *ids);

    if (argc != 3 || !text || !ids)
        return 2;
    llama_log_set(quiet, NULL);
    params.vocab_only = true;
    struct llama_model *model = llama_model_load_from_file(argv[1], params);
    if (!model)
        return 1;
    const size_t bytes = fread(text, 1, INPUT_MAX, stdin);
    for (size_t at = 0; at < bytes;) {
        const size_t n = strnlen(text + at, bytes - at);
        const int count = llama_tokenize(llama_model_get_vocab(model), text + at, (int)n, ids, INPUT_MAX,
                                         false, atoi(argv[2]) != 0);
        for (int i = 0; i < count; i++)
            printf("%d ", ids[i]);
        putchar('\n');
        at += n + 1;
    }
    return 0;
}
