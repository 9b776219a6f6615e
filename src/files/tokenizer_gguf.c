/* A tokenizer from GGUF metadata (tokenizer.ggml.*): "gpt2" (byte-level BPE with merges) and
 * "llama" (SentencePiece pieces with scores). Pieces stay in the mapped file. */
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/num.h"
#include "files/tokenizer_impl.h"
#include "files/utf8.h"

static kr_status same_length(const kr_gguf *g, const char *key, const kr_gguf_value *v, uint32_t vocab,
                             kr_err *err)
{
    if (!v || v->items == vocab)
        return KR_OK;
    return kr_fail(err, KR_E_FORMAT, "%s: %s has %llu entries, tokenizer.ggml.tokens has %u", g->path, key,
                   (unsigned long long)v->items, vocab);
}

static kr_status read_pieces(const kr_gguf *g, kr_tokenizer *t, const kr_gguf_value *tokens, kr_err *err)
{
    const kr_gguf_value *types = NULL;
    const uint8_t *at = tokens->data;
    kr_status status = kr_gguf_array(g, "tokenizer.ggml.token_type", false, KR_GGUF_I32, &types, err);

    if (status == KR_OK)
        status = same_length(g, "tokenizer.ggml.token_type", types, t->vocab, err);
    for (uint32_t id = 0; status == KR_OK && id < t->vocab; id++) {
        const int64_t kind = types ? kr_gguf_item_int(types, id) : KR_TOKEN_NORMAL;
        t->piece[id] = kr_gguf_next_string(&at);
        if (kind < KR_TOKEN_NORMAL || kind > KR_TOKEN_BYTE)
            return kr_fail(err, KR_E_FORMAT, "%s: token %u has type %lld; 1 to 6 are defined", g->path, id,
                           (long long)kind);
        if (kr_utf8_invalid(t->piece[id].text, t->piece[id].bytes) != t->piece[id].bytes)
            return kr_fail(err, KR_E_FORMAT, "%s: token %u is not valid UTF-8", g->path, id);
        t->kind[id] = (uint8_t)kind;
    }
    return status;
}

static kr_status read_merges(const kr_gguf *g, kr_tokenizer *t, kr_err *err)
{
    const kr_gguf_value *merges = NULL;
    kr_status status = kr_gguf_array(g, "tokenizer.ggml.merges", true, KR_GGUF_STRING, &merges, err);

    if (status == KR_OK && merges->items > 4ull * KR_VOCAB_MAX)
        status = kr_fail(err, KR_E_LIMIT, "%s: %llu merges; at most %llu", g->path,
                         (unsigned long long)merges->items, 4ull * KR_VOCAB_MAX);
    if (status == KR_OK)
        status = kr_merge_map_init(&t->merges, merges->items, err);
    const uint8_t *at = status == KR_OK ? merges->data : NULL;
    for (uint32_t rank = 0; status == KR_OK && rank < merges->items; rank++) {
        const kr_bytes line = kr_gguf_next_string(&at);
        /* Pieces spell a space as another letter, so the only one here separates the two sides. */
        const char *space = line.bytes > 1 ? memchr(line.text + 1, ' ', line.bytes - 1) : NULL;
        if (!space)
            return kr_fail(err, KR_E_FORMAT, "%s: merge %u has no space between two pieces", g->path, rank);
        const uint32_t left = (uint32_t)(space - line.text);
        status = kr_tokenizer_add_merge(t, (kr_bytes){line.text, left},
                                        (kr_bytes){space + 1, line.bytes - left - 1}, rank, g->path, err);
    }
    return status;
}

/* Larger scores merge first: their bits, made monotonic and turned round. */
static uint32_t priority_of(float score)
{
    const uint32_t bits = kr_f32_bits(score == 0.0f ? 0.0f : score); /* -0 and 0 are one score */
    return bits & 0x80000000u ? bits : 0x7fffffffu - bits;
}

static kr_status read_scores(const kr_gguf *g, kr_tokenizer *t, kr_err *err)
{
    const kr_gguf_value *scores = NULL;
    kr_status status = kr_gguf_array(g, "tokenizer.ggml.scores", true, KR_GGUF_F32, &scores, err);

    if (status == KR_OK)
        status = same_length(g, "tokenizer.ggml.scores", scores, t->vocab, err);
    if (status != KR_OK)
        return status;
    t->priority = kr_alloc(t->vocab * sizeof *t->priority);
    if (!t->priority)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for %u scores", g->path, t->vocab);
    for (uint32_t id = 0; id < t->vocab; id++) {
        const float score = kr_gguf_item_f32(scores, id);
        if (!isfinite(score))
            return kr_fail(err, KR_E_FORMAT, "%s: the score of token %u is not a number", g->path, id);
        t->priority[id] = priority_of(score);
    }
    return KR_OK;
}

static kr_status read_id(const kr_gguf *g, const char *key, uint32_t vocab, uint32_t *id, kr_err *err)
{
    return kr_gguf_u32(g, key, false, 0, vocab - 1, id, err);
}

static kr_status read_specials(const kr_gguf *g, kr_tokenizer *t, kr_err *err)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    kr_status status = kr_gguf_bool(g, "tokenizer.ggml.add_bos_token", false, &t->add_bos, err);

    if (status == KR_OK)
        status = read_id(g, "tokenizer.ggml.bos_token_id", t->vocab, &t->bos, err);
    /* Byte-level files name an unknown token that their tokenizer never produces. */
    if (status == KR_OK && t->spelling == KR_SPELLING_METASPACE)
        status = read_id(g, "tokenizer.ggml.unknown_token_id", t->vocab, &t->unknown, err);
    for (size_t i = 0; status == KR_OK && i < sizeof ends / sizeof ends[0]; i++) {
        uint32_t id = KR_SPAN_NONE;
        status = read_id(g, ends[i], t->vocab, &id, err);
        if (status == KR_OK)
            kr_tokenizer_add_end(t, id);
    }
    if (status == KR_OK && t->add_bos && t->bos == KR_SPAN_NONE)
        status = kr_fail(err, KR_E_FORMAT,
                         "%s: the tokenizer wants a BOS token but tokenizer.ggml.bos_token_id "
                         "is missing",
                         g->path);
    return status;
}

static kr_status read_bpe(const kr_gguf *g, kr_tokenizer *t, kr_err *err)
{
    kr_bytes pre = kr_bytes_of("default");
    kr_status status = kr_gguf_string(g, "tokenizer.ggml.pre", false, &pre, err);

    t->spelling = KR_SPELLING_BYTES;
    t->order = KR_ORDER_RANKS;
    if (status == KR_OK)
        status = kr_split_by_name(t, pre, g->path, err);
    /* The Qwen tokenizers normalise to NFC; GGUF has no key for it, the name implies it. */
    t->nfc = kr_bytes_equal(pre, kr_bytes_of("qwen2"));
    if (status == KR_OK)
        status = kr_tokenizer_index(t, g->path, err);
    return status == KR_OK ? read_merges(g, t, err) : status;
}

static kr_status read_spm(const kr_gguf *g, kr_tokenizer *t, kr_err *err)
{
    bool space = true;
    kr_status status = kr_gguf_bool(g, "tokenizer.ggml.add_space_prefix", false, &space, err);

    t->spelling = KR_SPELLING_METASPACE;
    t->order = KR_ORDER_SCORES;
    t->prefix = space ? KR_PREFIX_DOUBLED : KR_PREFIX_NONE;
    t->add_bos = true; /* the format's default for this kind */
    if (status == KR_OK)
        status = kr_tokenizer_index(t, g->path, err);
    return status == KR_OK ? read_scores(g, t, err) : status;
}

kr_status kr_tokenizer_from_gguf(const kr_gguf *gguf, kr_tokenizer **tokenizer, kr_err *err)
{
    const kr_gguf_value *tokens = NULL;
    kr_bytes model = {NULL, 0};
    kr_tokenizer *t = NULL;
    kr_status status = kr_gguf_string(gguf, "tokenizer.ggml.model", true, &model, err);

    if (status == KR_OK)
        status = kr_gguf_array(gguf, "tokenizer.ggml.tokens", true, KR_GGUF_STRING, &tokens, err);
    if (status == KR_OK)
        status = kr_tokenizer_new(tokens->items, &t, err);
    if (status == KR_OK)
        status = read_pieces(gguf, t, tokens, err);
    if (status == KR_OK && kr_bytes_equal(model, kr_bytes_of("gpt2")))
        status = read_bpe(gguf, t, err);
    else if (status == KR_OK && kr_bytes_equal(model, kr_bytes_of("llama")))
        status = read_spm(gguf, t, err);
    else if (status == KR_OK)
        status = kr_fail(err, KR_E_UNSUPPORTED, "%s: tokenizer model \"%.*s\"; gpt2 and llama are supported",
                         gguf->path, (int)(model.bytes > 40 ? 40 : model.bytes), model.text);
    if (status == KR_OK)
        status = read_specials(gguf, t, err);
    if (status == KR_OK)
        *tokenizer = t;
    else
        kr_tokenizer_free(t);
    return status;
}
