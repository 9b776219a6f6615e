/* Encoding and decoding with a loaded tokenizer, and the parts of building one that both file
 * kinds share. */
#include "files/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "files/tokenizer_impl.h"
#include "files/utf8.h"
#include "model/model.h"

/* Tokens that end a turn or a text in the supported families, whatever the file lists as EOS. */
static const char *const end_pieces[] = {"<|im_end|>",      "<|endoftext|>", "<|eot_id|>", "<|eom_id|>",
                                         "<|end_of_text|>", "<end_of_turn>", "<eos>",      "</s>"};

/* --- GPT-2's byte alphabet: printable Latin-1 spells itself, the rest U+0100 onward in order --- */

static bool spells_itself(uint32_t b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

uint32_t kr_byte_letter(uint8_t b)
{
    if (spells_itself(b))
        return b;
    if (b <= 0x20)
        return 0x100u + b;
    return b == 0xad ? 0x143u : 0x121u + (b - 0x7fu); /* 0x7f to 0xa0, then 0xad */
}

int kr_letter_byte(uint32_t code)
{
    if (code < 0x100)
        return spells_itself(code) ? (int)code : -1;
    if (code <= 0x120)
        return (int)(code - 0x100);
    if (code <= 0x142)
        return (int)(code - 0x121 + 0x7f);
    return code == 0x143 ? 0xad : -1;
}

/* --- building --- */

kr_status kr_tokenizer_new(uint64_t vocab, kr_tokenizer **tokenizer, kr_err *err)
{
    kr_tokenizer *t = kr_alloc(sizeof *t);

    if (vocab == 0 || vocab > KR_VOCAB_MAX) {
        kr_free(t);
        return kr_fail(err, KR_E_LIMIT, "a vocabulary of %llu tokens; 1 to %d are supported",
                       (unsigned long long)vocab, KR_VOCAB_MAX);
    }
    if (t) {
        t->piece = kr_alloc(vocab * sizeof *t->piece);
        t->kind = kr_alloc(vocab);
    }
    if (!t || !t->piece || !t->kind) {
        kr_tokenizer_free(t);
        return kr_fail(err, KR_E_MEMORY, "no memory for a vocabulary of %llu tokens",
                       (unsigned long long)vocab);
    }
    t->vocab = (uint32_t)vocab;
    t->unknown = t->bos = KR_SPAN_NONE;
    for (int b = 0; b < 256; b++)
        t->byte_id[b] = KR_SPAN_NONE;
    *tokenizer = t;
    return KR_OK;
}

void kr_tokenizer_free(kr_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    for (uint32_t i = 0; i < tokenizer->splits; i++)
        kr_split_free(tokenizer->split[i]);
    kr_span_map_free(&tokenizer->by_piece);
    kr_merge_map_free(&tokenizer->merges);
    kr_free(tokenizer->piece);
    kr_free(tokenizer->kind);
    kr_free(tokenizer->blob);
    kr_free(tokenizer->priority);
    kr_free(tokenizer->added);
    kr_free(tokenizer->default_system);
    kr_free(tokenizer);
}

void kr_tokenizer_add_end(kr_tokenizer *tokenizer, uint32_t id)
{
    if (id < tokenizer->vocab && tokenizer->ends < KR_ENDS_MAX && !kr_tokenizer_is_end(tokenizer, id))
        tokenizer->end[tokenizer->ends++] = id;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte that "<0xHH>" names; -1 for any other spelling. */
static int byte_piece(kr_bytes piece)
{
    if (piece.bytes != 6 || memcmp(piece.text, "<0x", 3) != 0 || piece.text[5] != '>')
        return -1;
    const int high = hex_digit(piece.text[3]), low = hex_digit(piece.text[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static kr_status find_byte_tokens(kr_tokenizer *t, const char *where, kr_err *err)
{
    char letter[4];

    for (uint32_t b = 0; b < 256 && t->spelling == KR_SPELLING_BYTES; b++) {
        const uint32_t bytes = kr_utf8_encode(kr_byte_letter((uint8_t)b), letter);
        t->byte_id[b] = kr_span_map_find(&t->by_piece, (kr_bytes){letter, bytes});
    }
    for (uint32_t id = 0; id < t->vocab && t->spelling == KR_SPELLING_METASPACE; id++) {
        const int b = t->kind[id] == KR_TOKEN_BYTE ? byte_piece(t->piece[id]) : 0;
        if (b < 0)
            return kr_fail(err, KR_E_FORMAT, "%s: byte token %u is spelt \"%.*s\", not <0xHH>", where, id,
                           (int)(t->piece[id].bytes > 40 ? 40 : t->piece[id].bytes), t->piece[id].text);
        if (t->kind[id] == KR_TOKEN_BYTE)
            t->byte_id[b] = id;
    }
    return KR_OK;
}

static int by_bytes(const void *a, const void *b, void *context)
{
    const kr_bytes *piece = context;
    const kr_bytes x = piece[*(const uint32_t *)a], y = piece[*(const uint32_t *)b];
    const int order = memcmp(x.text, y.text, x.bytes < y.bytes ? x.bytes : y.bytes);
    return order ? order : (x.bytes > y.bytes) - (x.bytes < y.bytes);
}

static kr_status find_added_tokens(kr_tokenizer *t, kr_err *err)
{
    uint32_t count = 0;

    for (uint32_t id = 0; id < t->vocab; id++)
        count += t->kind[id] == KR_TOKEN_CONTROL || t->kind[id] == KR_TOKEN_USER;
    t->added = kr_alloc((count + 1) * sizeof *t->added);
    if (!t->added)
        return kr_fail(err, KR_E_MEMORY, "no memory for %u added tokens", count);
    for (uint32_t id = 0; id < t->vocab; id++)
        if ((t->kind[id] == KR_TOKEN_CONTROL || t->kind[id] == KR_TOKEN_USER) && t->piece[id].bytes > 0) {
            t->added[t->added_count++] = id;
            t->added_first[(uint8_t)t->piece[id].text[0]] = true;
        }
    qsort_r(t->added, t->added_count, sizeof *t->added, by_bytes, t->piece);
    return KR_OK;
}

/* Markup of a chat turn is special even where a file forgot to mark it (T-03: user text must not
 * become a turn). */
static bool looks_like_markup(kr_bytes p)
{
    return (p.bytes > 4 && memcmp(p.text, "<|", 2) == 0 && memcmp(p.text + p.bytes - 2, "|>", 2) == 0) ||
           kr_bytes_equal(p, kr_bytes_of("<start_of_turn>")) ||
           kr_bytes_equal(p, kr_bytes_of("<end_of_turn>"));
}

kr_status kr_tokenizer_index(kr_tokenizer *tokenizer, const char *where, kr_err *err)
{
    kr_tokenizer *t = tokenizer;
    kr_status status = kr_span_map_init(&t->by_piece, t->vocab, err);

    for (uint32_t id = 0; status == KR_OK && id < t->vocab; id++) {
        const kr_bytes p = t->piece[id];
        if (p.bytes > KR_TOKEN_BYTES_MAX)
            return kr_fail(err, KR_E_LIMIT, "%s: token %u is %u bytes long; at most %d", where, id, p.bytes,
                           KR_TOKEN_BYTES_MAX);
        if (p.bytes == 0) /* a hole in the numbering: never produced */
            continue;
        if (t->kind[id] == KR_TOKEN_USER && looks_like_markup(p))
            t->kind[id] = KR_TOKEN_CONTROL;
        if (t->kind[id] == KR_TOKEN_BYTE && t->spelling == KR_SPELLING_BYTES)
            t->kind[id] = KR_TOKEN_NORMAL; /* the alphabet spells single bytes like any others */
        if (p.bytes > t->piece_bytes_max)
            t->piece_bytes_max = p.bytes;
        const uint32_t other = kr_span_map_add(&t->by_piece, p, id);
        if (other != KR_SPAN_NONE)
            return kr_fail(err, KR_E_FORMAT, "%s: tokens %u and %u are both spelt \"%.*s\"", where, other, id,
                           (int)(p.bytes > 40 ? 40 : p.bytes), p.text);
    }
    if (status == KR_OK)
        status = find_byte_tokens(t, where, err);
    if (status == KR_OK)
        status = find_added_tokens(t, err);
    for (size_t i = 0; status == KR_OK && i < sizeof end_pieces / sizeof end_pieces[0]; i++) {
        const uint32_t id = kr_span_map_find(&t->by_piece, kr_bytes_of(end_pieces[i]));
        if (id != KR_SPAN_NONE && t->kind[id] == KR_TOKEN_CONTROL)
            kr_tokenizer_add_end(t, id);
    }
    return status;
}

kr_status kr_tokenizer_add_merge(kr_tokenizer *tokenizer, kr_bytes left, kr_bytes right, uint32_t rank,
                                 const char *where, kr_err *err)
{
    char both[2 * KR_TOKEN_BYTES_MAX];
    uint32_t merged = KR_SPAN_NONE;
    const uint32_t a = kr_span_map_find(&tokenizer->by_piece, left);
    const uint32_t b = kr_span_map_find(&tokenizer->by_piece, right);

    if (a != KR_SPAN_NONE && b != KR_SPAN_NONE) {
        memcpy(both, left.text, left.bytes);
        memcpy(both + left.bytes, right.text, right.bytes);
        merged = kr_span_map_find(&tokenizer->by_piece, (kr_bytes){both, left.bytes + right.bytes});
    }
    if (merged == KR_SPAN_NONE)
        return kr_fail(err, KR_E_FORMAT,
                       "%s: merge %u joins \"%.*s\" and \"%.*s\", but not all three are tokens", where, rank,
                       (int)(left.bytes > 40 ? 40 : left.bytes), left.text,
                       (int)(right.bytes > 40 ? 40 : right.bytes), right.text);
    kr_merge_map_add(&tokenizer->merges, (kr_merge){a, b, rank, merged});
    return KR_OK;
}

/* --- encoding --- */

typedef struct {
    const kr_tokenizer *tokenizer;
    kr_bpe_scratch scratch;
    kr_id_sink sink;
} encoder;

static kr_status encode_word(void *context, const char *word, uint32_t bytes, kr_err *err)
{
    encoder *e = context;
    return kr_bpe_word(e->tokenizer, &e->scratch, word, bytes, &e->sink, err);
}

/* text with a space in front where the tokenizer asks for one, spaces as U+2581. */
static kr_status metaspace(const kr_tokenizer *t, const char *text, size_t bytes, bool at_start, char **out,
                           size_t *out_bytes, kr_err *err)
{
    const bool spaced = text[0] == ' ' || (bytes >= 3 && memcmp(text, KR_METASPACE, 3) == 0);
    const bool prefix = t->prefix == KR_PREFIX_DOUBLED || (t->prefix == KR_PREFIX_ALWAYS && !spaced) ||
                        (t->prefix == KR_PREFIX_FIRST && at_start && !spaced);
    size_t at = 0;
    char *copy = kr_alloc(3 * (bytes + 1));

    if (!copy)
        return kr_fail(err, KR_E_MEMORY, "no memory to normalise %zu bytes of text", bytes);
    for (size_t i = prefix ? 0 : 1; i <= bytes; i++) {
        const char c = i == 0 ? ' ' : text[i - 1];
        if (c == ' ') {
            memcpy(copy + at, KR_METASPACE, sizeof KR_METASPACE - 1);
            at += sizeof KR_METASPACE - 1;
        } else {
            copy[at++] = c;
        }
    }
    *out = copy;
    *out_bytes = at;
    return KR_OK;
}

/* A stretch of text without added tokens. at_start: nothing came before it. */
static kr_status encode_stretch(encoder *e, const char *text, size_t bytes, bool at_start, kr_err *err)
{
    const kr_tokenizer *t = e->tokenizer;
    char *normal = NULL, *spaced = NULL;
    kr_status status = KR_OK;

    if (bytes == 0)
        return KR_OK;
    if (t->nfc)
        status = kr_nfc(text, bytes, &normal, &bytes, err);
    if (normal)
        text = normal;
    if (status == KR_OK && t->spelling == KR_SPELLING_METASPACE)
        status = metaspace(t, text, bytes, at_start, &spaced, &bytes, err);
    if (status == KR_OK)
        status = kr_split_text(t, spaced ? spaced : text, (uint32_t)bytes, encode_word, e, err);
    kr_free(normal);
    kr_free(spaced);
    return status;
}

/* The longest added token that text begins with, KR_SPAN_NONE for none. The sorted list is
 * narrowed byte by byte, so the cost is bounded by the longest token. */
static uint32_t added_at(const kr_tokenizer *t, const char *text, size_t left, bool special)
{
    uint32_t low = 0, high = t->added_count, best = KR_SPAN_NONE;

    for (uint32_t depth = 0; depth < left && low < high; depth++) {
        const uint8_t c = (uint8_t)text[depth];
        uint32_t first = low, last = high;
        while (first < last) { /* first entry whose byte at depth is >= c (shorter ones count as less) */
            const uint32_t middle = first + (last - first) / 2;
            const kr_bytes p = t->piece[t->added[middle]];
            if (p.bytes <= depth || (uint8_t)p.text[depth] < c)
                first = middle + 1;
            else
                last = middle;
        }
        low = first;
        last = high;
        while (first < last) { /* first entry whose byte at depth is > c */
            const uint32_t middle = first + (last - first) / 2;
            if ((uint8_t)t->piece[t->added[middle]].text[depth] <= c)
                first = middle + 1;
            else
                last = middle;
        }
        high = first;
        if (low < high && t->piece[t->added[low]].bytes == depth + 1 &&
            (special || t->kind[t->added[low]] == KR_TOKEN_USER))
            best = t->added[low];
    }
    return best;
}

static kr_status encode(encoder *e, const char *text, size_t bytes, uint32_t flags, kr_err *err)
{
    const kr_tokenizer *t = e->tokenizer;
    const bool special = flags & KR_TOKENIZE_SPECIAL;
    size_t from = 0;
    kr_status status = KR_OK;

    if ((flags & KR_TOKENIZE_BOS) && t->add_bos && e->sink.count == 0 &&
        !(special && bytes > 0 && added_at(t, text, bytes, true) == t->bos))
        status = kr_id_sink_put(&e->sink, t->bos, err);
    for (size_t at = 0; at < bytes && status == KR_OK;) {
        const uint32_t id = t->added_first[(uint8_t)text[at]] ? added_at(t, text + at, bytes - at, special)
                                                              : KR_SPAN_NONE;
        if (id == KR_SPAN_NONE) {
            at++;
            continue;
        }
        status = encode_stretch(e, text + from, at - from, from == 0, err);
        if (status == KR_OK)
            status = kr_id_sink_put(&e->sink, id, err);
        at += t->piece[id].bytes;
        from = at;
    }
    return status == KR_OK ? encode_stretch(e, text + from, bytes - from, from == 0, err) : status;
}

kr_status kr_tokenize(const kr_tokenizer *tokenizer, const char *text, size_t bytes, uint32_t flags,
                      uint32_t *ids, size_t capacity, size_t *count, kr_err *err)
{
    encoder e = {.tokenizer = tokenizer, .sink.capacity = capacity, .sink.count = *count};
    kr_status status;

    KR_CHECK(*count <= capacity);
    e.sink.ids = ids;
    if (bytes > KR_TEXT_BYTES_MAX)
        return kr_fail(err, KR_E_LIMIT, "a text of %zu bytes; at most %d can be tokenized", bytes,
                       KR_TEXT_BYTES_MAX);
    const size_t bad = kr_utf8_invalid(text, bytes);
    if (bad < bytes)
        return kr_fail(err, KR_E_FORMAT, "the text is not valid UTF-8: byte 0x%02x at offset %zu",
                       (unsigned)(uint8_t)text[bad], bad);
    status = encode(&e, text, bytes, flags, err);
    kr_bpe_scratch_free(&e.scratch);
    if (status == KR_OK)
        *count = e.sink.count;
    return status;
}

/* --- decoding --- */

static size_t put(char *out, size_t capacity, size_t at, const char *bytes, size_t n)
{
    if (n > capacity - at)
        n = capacity - at;
    memcpy(out + at, bytes, n);
    return at + n;
}

static size_t decode_letters(kr_bytes piece, char *out, size_t capacity)
{
    size_t at = 0;

    for (uint32_t i = 0, n; i < piece.bytes; i += n) {
        const int b = kr_letter_byte(kr_utf8_decode(piece.text + i, &n));
        const char c = (char)b;
        at = b >= 0 ? put(out, capacity, at, &c, 1) : put(out, capacity, at, piece.text + i, n);
    }
    return at;
}

static size_t decode_metaspace(kr_bytes piece, char *out, size_t capacity)
{
    size_t at = 0;

    for (uint32_t i = 0, n; i < piece.bytes; i += n) {
        const char *p = piece.text + i;
        n = kr_utf8_length(*p);
        at = n == 3 && memcmp(p, KR_METASPACE, 3) == 0 ? put(out, capacity, at, " ", 1)
                                                       : put(out, capacity, at, p, n);
    }
    return at;
}

size_t kr_detokenize(const kr_tokenizer *tokenizer, uint32_t id, bool specials, char *out, size_t capacity)
{
    if (id >= tokenizer->vocab)
        return 0;
    const kr_bytes piece = tokenizer->piece[id];
    const uint8_t kind = tokenizer->kind[id];
    if (kind == KR_TOKEN_CONTROL || kind == KR_TOKEN_UNKNOWN)
        return specials ? put(out, capacity, 0, piece.text, piece.bytes) : 0;
    if (kind == KR_TOKEN_BYTE) {
        const char c = (char)byte_piece(piece);
        return put(out, capacity, 0, &c, 1);
    }
    if (tokenizer->spelling == KR_SPELLING_METASPACE)
        return decode_metaspace(piece, out, capacity);
    return kind == KR_TOKEN_USER ? put(out, capacity, 0, piece.text, piece.bytes)
                                 : decode_letters(piece, out, capacity);
}

uint32_t kr_tokenizer_vocab(const kr_tokenizer *tokenizer) { return tokenizer->vocab; }

bool kr_tokenizer_is_end(const kr_tokenizer *tokenizer, uint32_t id)
{
    for (uint32_t i = 0; i < tokenizer->ends; i++)
        if (tokenizer->end[i] == id)
            return true;
    return false;
}

int64_t kr_tokenizer_find(const kr_tokenizer *tokenizer, const char *piece)
{
    const uint32_t id = kr_span_map_find(&tokenizer->by_piece, kr_bytes_of(piece));
    return id == KR_SPAN_NONE ? KR_NO_TOKEN : (int64_t)id;
}
