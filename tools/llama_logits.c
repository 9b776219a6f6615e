/* Logits of llama.cpp for the tokens of a text, teacher-forced, with F32 keys and values and without
 * flash attention: the oracle of tests/engine/test_forward_llama.c. Built and run by
 * tools/llama_fixtures.sh.
 *
 *   llama_logits MODEL TEXT TOKENS KEEP OUT
 *
 * OUT, little-endian: uint32 tokens, vocab, keep; uint32 ids [tokens]; then for each position the
 * F32 log of the sum of exponentials of all its logits and keep pairs (uint32 id, F32 logit) in
 * descending order of logit. */
#include <llama.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float *sorted_logits;

static int descending(const void *a, const void *b)
{
    const float x = sorted_logits[*(const uint32_t *)a], y = sorted_logits[*(const uint32_t *)b];
    return x < y ? 1 : x > y ? -1 : *(const uint32_t *)a > *(const uint32_t *)b ? 1 : -1;
}

static void write_position(FILE *out, const float *logits, uint32_t vocab, uint32_t keep, uint32_t *order)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < vocab; i++)
        order[i] = i;
    sorted_logits = logits;
    qsort(order, vocab, sizeof *order, descending);
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - (double)logits[order[0]]);
    const float log_sum = (float)(log(sum) + (double)logits[order[0]]);
    fwrite(&log_sum, sizeof log_sum, 1, out);
    for (uint32_t i = 0; i < keep; i++) {
        fwrite(&order[i], sizeof order[i], 1, out);
        fwrite(&logits[order[i]], sizeof(float), 1, out);
    }
}

static void quiet(enum ggml_log_level level, const char *text, void *data)
{
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static int fail(const char *what)
{
    fprintf(stderr, "llama_logits: cannot %s\n", what);
    return 1;
}

int main(int count, char **args)
{
    static char text[1 << 20];
    static llama_token ids[1 << 16];

    if (count != 6)
        return fail("run: use llama_logits MODEL TEXT TOKENS KEEP OUT");
    const int32_t tokens = atoi(args[3]);
    const uint32_t keep = (uint32_t)atoi(args[4]);
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_params mp = llama_model_default_params();
    struct llama_model *model = llama_model_load_from_file(args[1], mp);
    if (model == NULL)
        return fail("load the model");
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = (uint32_t)tokens + 8;
    cp.n_batch = cp.n_ubatch = (uint32_t)tokens;
    cp.type_k = cp.type_v = GGML_TYPE_F32;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    cp.n_threads = cp.n_threads_batch = 2;
    struct llama_context *context = llama_init_from_model(model, cp);
    FILE *in = fopen(args[2], "rb"), *out = fopen(args[5], "wb");
    if (context == NULL || in == NULL || out == NULL)
        return fail("make a context or open the files");

    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    const size_t bytes = fread(text, 1, sizeof text - 1, in);
    const int32_t found = llama_tokenize(vocab, text, (int32_t)bytes, ids, 1 << 16, true, true);
    if (found < tokens)
        return fail("find that many tokens in the text");
    struct llama_batch batch = llama_batch_init(tokens, 0, 1);
    for (int32_t i = 0; i < tokens; i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    batch.n_tokens = tokens;
    if (llama_decode(context, batch) != 0)
        return fail("decode");

    const uint32_t n = (uint32_t)llama_vocab_n_tokens(vocab), head[3] = {(uint32_t)tokens, n, keep};
    uint32_t *order = malloc(n * sizeof *order);
    if (order == NULL)
        return fail("get memory");
    fwrite(head, sizeof head, 1, out);
    fwrite(ids, sizeof ids[0], (size_t)tokens, out);
    for (int32_t i = 0; i < tokens; i++)
        write_position(out, llama_get_logits_ith(context, i), n, keep, order);
    free(order);
    return fclose(out) == 0 ? 0 : fail("write the logits");
}
