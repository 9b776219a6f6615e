/* Merging one word: symbols in a linked list, candidate pairs in a heap ordered by (rank,
 * position). A pair is taken when both its symbols are still what they were when it was queued.
 *
 * Every merge pops one candidate and queues at most two, so a word of n symbols needs a heap of
 * at most 2n and O(n log n) time, whatever the word is. */
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "files/tokenizer_impl.h"
#include "files/utf8.h"

typedef struct {
    uint32_t start, bytes;   /* span of the word; bytes = 0: merged away */
    uint32_t id;             /* KR_SPAN_NONE: no piece spells it */
    uint32_t previous, next; /* KR_SPAN_NONE at the ends */
} symbol;

typedef struct {
    uint32_t rank, left;    /* order; left is the index of the left symbol */
    uint32_t bytes, merged; /* bytes of the pair: it is stale when that no longer holds */
} candidate;

typedef struct {
    const kr_tokenizer *tokenizer;
    const char *word;
    symbol *symbols;
    candidate *heap;
    uint32_t queued;
} merger;

static bool before(const candidate *a, const candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

static void push(merger *m, candidate c)
{
    uint32_t at = m->queued++;

    while (at > 0 && before(&c, &m->heap[(at - 1) / 2])) {
        m->heap[at] = m->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    m->heap[at] = c;
}

static candidate pop(merger *m)
{
    const candidate top = m->heap[0], last = m->heap[--m->queued];
    uint32_t at = 0;

    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= m->queued)
            break;
        if (child + 1 < m->queued && before(&m->heap[child + 1], &m->heap[child]))
            child++;
        if (!before(&m->heap[child], &last))
            break;
        m->heap[at] = m->heap[child];
        at = child;
    }
    m->heap[at] = last;
    return top;
}

/* The piece a span of text may become by merging; never a special token or a byte token. */
static uint32_t plain_piece(const kr_tokenizer *t, const char *text, uint32_t bytes)
{
    if (bytes > t->piece_bytes_max)
        return KR_SPAN_NONE;
    const uint32_t id = kr_span_map_find(&t->by_piece, (kr_bytes){text, bytes});
    if (id == KR_SPAN_NONE || t->kind[id] == KR_TOKEN_NORMAL || t->kind[id] == KR_TOKEN_USER ||
        t->kind[id] == KR_TOKEN_UNUSED)
        return id;
    return KR_SPAN_NONE;
}

/* Queues the pair that starts at symbol left, if it may merge. */
static void consider(merger *m, uint32_t left)
{
    const kr_tokenizer *t = m->tokenizer;

    if (left == KR_SPAN_NONE || m->symbols[left].next == KR_SPAN_NONE)
        return;
    const symbol *a = &m->symbols[left], *b = &m->symbols[a->next];
    const uint32_t bytes = a->bytes + b->bytes;
    if (t->order == KR_ORDER_RANKS) {
        const kr_merge *merge = kr_merge_map_find(&t->merges, a->id, b->id);
        if (merge)
            push(m, (candidate){merge->rank, left, bytes, merge->merged});
    } else {
        const uint32_t id = plain_piece(t, m->word + a->start, bytes);
        if (id != KR_SPAN_NONE)
            push(m, (candidate){t->priority[id], left, bytes, id});
    }
}

static void merge_all(merger *m)
{
    while (m->queued > 0) {
        const candidate c = pop(m);
        symbol *a = &m->symbols[c.left];
        /* Symbols only grow, so equal bytes mean that both sides are unchanged. */
        if (a->bytes == 0 || a->next == KR_SPAN_NONE || a->bytes + m->symbols[a->next].bytes != c.bytes)
            continue;
        symbol *b = &m->symbols[a->next];
        a->bytes = c.bytes;
        a->id = c.merged;
        a->next = b->next;
        b->bytes = 0;
        if (a->next != KR_SPAN_NONE)
            m->symbols[a->next].previous = c.left;
        consider(m, a->previous);
        consider(m, c.left);
    }
}

static uint32_t first_symbols(merger *m, uint32_t bytes)
{
    const kr_tokenizer *t = m->tokenizer;
    uint32_t count = 0;

    for (uint32_t at = 0; at < bytes; count++) {
        const char *p = m->word + at;
        const bool single = t->spelling == KR_SPELLING_BYTES;
        const uint32_t n = single ? 1 : kr_utf8_length(*p);
        const uint32_t id = single ? t->byte_id[(uint8_t)*p] : plain_piece(t, p, n);
        m->symbols[count] = (symbol){at, n, id, count - 1, count + 1};
        at += n;
    }
    m->symbols[0].previous = KR_SPAN_NONE;
    m->symbols[count - 1].next = KR_SPAN_NONE;
    return count;
}

kr_status kr_id_sink_put(kr_id_sink *sink, uint32_t id, kr_err *err)
{
    if (sink->count == sink->capacity)
        return kr_fail(err, KR_E_LIMIT, "the text has more than %zu tokens", sink->capacity);
    sink->ids[sink->count++] = id;
    return KR_OK;
}

/* A symbol no piece spells: its bytes as byte tokens, or the unknown token where a byte has none.
 * A vocabulary without an unknown token drops the byte (SmolLM2 has no token for some control
 * characters): that is what the reference implementations do, so what the model was trained on. */
static kr_status put_unspelled(const kr_tokenizer *t, const char *text, uint32_t bytes, kr_id_sink *sink,
                               kr_err *err)
{
    kr_status status = KR_OK;

    for (uint32_t i = 0; i < bytes && status == KR_OK; i++) {
        const uint32_t id = t->byte_id[(uint8_t)text[i]];
        if (id != KR_SPAN_NONE)
            status = kr_id_sink_put(sink, id, err);
        else if (t->unknown != KR_SPAN_NONE)
            return kr_id_sink_put(sink, t->unknown, err);
    }
    return status;
}

static kr_status reserve(kr_bpe_scratch *scratch, uint32_t symbols, kr_err *err)
{
    if (symbols <= scratch->capacity)
        return KR_OK;
    kr_bpe_scratch_free(scratch);
    scratch->symbols = kr_alloc(symbols * sizeof(symbol));
    scratch->heap = kr_alloc(2 * (size_t)symbols * sizeof(candidate));
    if (!scratch->symbols || !scratch->heap)
        return kr_fail(err, KR_E_MEMORY, "no memory to tokenize a word of %u bytes", symbols);
    scratch->capacity = symbols;
    return KR_OK;
}

void kr_bpe_scratch_free(kr_bpe_scratch *scratch)
{
    kr_free(scratch->symbols);
    kr_free(scratch->heap);
    *scratch = (kr_bpe_scratch){NULL, NULL, 0};
}

/* The piece that spells a whole word, where the vocabulary prefers it to merging. */
static uint32_t whole_word(const kr_tokenizer *t, const char *word, uint32_t bytes)
{
    char spelled[KR_TOKEN_BYTES_MAX + 4];
    uint32_t at = 0;

    if (t->spelling == KR_SPELLING_METASPACE)
        return plain_piece(t, word, bytes);
    for (uint32_t i = 0; i < bytes; i++) {
        if (at >= KR_TOKEN_BYTES_MAX)
            return KR_SPAN_NONE;
        at += kr_utf8_encode(kr_byte_letter((uint8_t)word[i]), spelled + at);
    }
    return plain_piece(t, spelled, at);
}

kr_status kr_bpe_word(const kr_tokenizer *tokenizer, kr_bpe_scratch *scratch, const char *word,
                      uint32_t bytes, kr_id_sink *sink, kr_err *err)
{
    kr_status status;

    if (bytes == 0)
        return KR_OK;
    if (tokenizer->whole_word_first) {
        const uint32_t id = whole_word(tokenizer, word, bytes);
        if (id != KR_SPAN_NONE)
            return kr_id_sink_put(sink, id, err);
    }
    status = reserve(scratch, bytes, err);
    if (status != KR_OK)
        return status;
    merger m = {tokenizer, word, scratch->symbols, scratch->heap, 0};
    const uint32_t count = first_symbols(&m, bytes);
    for (uint32_t i = 0; i + 1 < count; i++)
        consider(&m, i);
    merge_all(&m);
    for (uint32_t i = 0; i != KR_SPAN_NONE && status == KR_OK; i = m.symbols[i].next) {
        const symbol *s = &m.symbols[i];
        status = s->id != KR_SPAN_NONE ? kr_id_sink_put(sink, s->id, err)
                                       : put_unspelled(tokenizer, word + s->start, s->bytes, sink, err);
    }
    return status;
}

/* --- pairs --- */

static uint32_t pair_hash(uint32_t left, uint32_t right)
{
    const uint64_t x = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(x >> 32) ^ (uint32_t)(x >> 17);
}

static kr_merge *pair_slot(const kr_merge_map *map, uint32_t left, uint32_t right)
{
    uint32_t at = pair_hash(left, right) & map->mask;

    while (map->slots[at].left != KR_SPAN_NONE &&
           (map->slots[at].left != left || map->slots[at].right != right))
        at = (at + 1) & map->mask;
    return &map->slots[at];
}

kr_status kr_merge_map_init(kr_merge_map *map, uint64_t pairs, kr_err *err)
{
    uint64_t slots = 16;

    KR_CHECK(pairs < 1u << 30);
    while (slots < 2 * pairs)
        slots *= 2;
    map->slots = kr_alloc(slots * sizeof *map->slots);
    if (!map->slots)
        return kr_fail(err, KR_E_MEMORY, "no memory for %llu merges", (unsigned long long)pairs);
    for (uint64_t i = 0; i < slots; i++)
        map->slots[i].left = KR_SPAN_NONE;
    map->mask = (uint32_t)(slots - 1);
    return KR_OK;
}

void kr_merge_map_free(kr_merge_map *map)
{
    kr_free(map->slots);
    *map = (kr_merge_map){NULL, 0};
}

void kr_merge_map_add(kr_merge_map *map, kr_merge merge)
{
    kr_merge *slot = pair_slot(map, merge.left, merge.right);
    if (slot->left == KR_SPAN_NONE)
        *slot = merge;
}

const kr_merge *kr_merge_map_find(const kr_merge_map *map, uint32_t left, uint32_t right)
{
    if (left == KR_SPAN_NONE || right == KR_SPAN_NONE)
        return NULL;
    const kr_merge *slot = pair_slot(map, left, right);
    return slot->left == KR_SPAN_NONE ? NULL : slot;
}
