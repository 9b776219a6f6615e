/* Reference logits from llama.cpp, for tests/e2e and `make oracle`: tokenises a text, prefills its
 * first N tokens, then decodes `steps` tokens, either greedily or along a given list, and writes
 * the logits of every step.
 *
 *   llama_logits MODEL TEXT N STEPS KV THREADS OUT [FORCED]
 *     KV       f32 or f16 (type of both caches)
 *     OUT      OUT.json gets prompt ids and decoded ids; OUT.f32 the logits [STEPS][vocab]
 *     FORCED   an OUT.json of an earlier run: follow its decoded ids instead of the own argmax
 *
 * Built by make_llama_fixture.py against the user's own llama.cpp tree; nothing of it is here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llama.h"

static void die(const char *what)
{
    fprintf(stderr, "llama_logits: %s\n", what);
    exit(1);
}

static char *read_all(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        die(path);
    fseek(f, 0, SEEK_END);
    *bytes = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*bytes + 1);
    if (!text || fread(text, 1, *bytes, f) != *bytes)
        die("cannot read");
    text[*bytes] = 0;
    fclose(f);
    return text;
}

static void quiet(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static int argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static void feed(struct llama_context *ctx, struct llama_batch *batch, const llama_token *ids, int from,
                 int count, int last_wants_logits)
{
    batch->n_tokens = count;
    for (int i = 0; i < count; i++) {
        batch->token[i] = ids[i];
        batch->pos[i] = from + i;
        batch->n_seq_id[i] = 1;
        batch->seq_id[i][0] = 0;
        batch->logits[i] = last_wants_logits && i == count - 1;
    }
    if (llama_decode(ctx, *batch))
        die("llama_decode failed");
}

static void write_ids(FILE *f, const char *key, const llama_token *ids, int n)
{
    fprintf(f, "\"%s\": [", key);
    for (int i = 0; i < n; i++)
        fprintf(f, "%s%d", i ? ", " : "", ids[i]);
    fprintf(f, "]");
}

int main(int argc, char **argv)
{
    if (argc < 8)
        die("usage: MODEL TEXT N STEPS KV THREADS OUT [FORCED]");
    const int wanted = atoi(argv[3]), steps = atoi(argv[4]);
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model)
        die("cannot load model");
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    const int n_vocab = llama_vocab_n_tokens(vocab);

    size_t bytes;
    char *text = read_all(argv[2], &bytes);
    llama_token *ids = malloc(sizeof *ids * (bytes + 8)), *decoded = malloc(sizeof *decoded * (size_t)steps);
    int n = llama_tokenize(vocab, text, (int)bytes, ids, (int)bytes + 8, true, false);
    if (n <= 0)
        die("cannot tokenise");
    if (wanted > 0 && n > wanted)
        n = wanted;

    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = (uint32_t)(n + steps + 8);
    cp.n_batch = cp.n_ubatch = 512;
    cp.n_threads = cp.n_threads_batch = atoi(argv[6]);
    cp.type_k = cp.type_v = strcmp(argv[5], "f32") ? GGML_TYPE_F16 : GGML_TYPE_F32;
    cp.flash_attn_type = strcmp(argv[5], "f32") ? LLAMA_FLASH_ATTN_TYPE_AUTO : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *ctx = llama_init_from_model(model, cp);
    if (!ctx)
        die("cannot make a context");

    int forced = 0;
    if (argc > 8) {
        size_t json_bytes;
        char *json = read_all(argv[8], &json_bytes), *p = strstr(json, "\"decoded\": [");
        if (!p)
            die("FORCED has no decoded list");
        p += strlen("\"decoded\": [");
        for (; forced < steps; forced++)
            decoded[forced] = (llama_token)strtol(p, &p, 10), p += *p == ',';
    }

    struct llama_batch batch = llama_batch_init(512, 0, 1);
    for (int i = 0; i < n; i += 512)
        feed(ctx, &batch, ids + i, i, n - i < 512 ? n - i : 512, i + 512 >= n);

    char path[4096];
    snprintf(path, sizeof path, "%s.f32", argv[7]);
    FILE *out = fopen(path, "wb");
    if (!out)
        die(path);
    for (int s = 0; s < steps; s++) {
        const float *logits = llama_get_logits_ith(ctx, -1);
        if (fwrite(logits, sizeof *logits, (size_t)n_vocab, out) != (size_t)n_vocab)
            die("cannot write logits");
        if (!forced)
            decoded[s] = argmax(logits, n_vocab);
        if (s + 1 < steps)
            feed(ctx, &batch, decoded + s, n + s, 1, 1);
    }
    fclose(out);
    snprintf(path, sizeof path, "%s.json", argv[7]);
    out = fopen(path, "w");
    if (!out)
        die(path);
    fprintf(out, "{\"system\": \"%s\",\n", llama_print_system_info());
    write_ids(out, "prompt", ids, n);
    fprintf(out, ",\n");
    write_ids(out, "decoded", decoded, steps);
    fprintf(out, "}\n");
    return fclose(out) ? 1 : 0;
}
