/* Canonical composition (Unicode Standard Annex 15, form NFC): decompose fully, order each run of
 * marks by combining class, compose. Runs are sorted in n log n and composed in one pass, so a
 * million combining marks cost what a million letters do. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "files/nfc_table.h"
#include "files/tokenizer_impl.h"
#include "files/utf8.h"

/* Nothing below U+0300 changes under NFC unless a mark, which lies above, follows. */
enum { FIRST_MARK = 0x300, PARTS_MAX = 4 };
/* Hangul syllables are arithmetic (Unicode Standard, 3.12). */
enum { L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11a7, S_BASE = 0xac00 };
enum { L_COUNT = 19, V_COUNT = 21, T_COUNT = 28, S_COUNT = L_COUNT * V_COUNT * T_COUNT };

static uint8_t combining_class(uint32_t code)
{
    uint32_t low = 0, high = KR_NFC_CLASSES;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (kr_nfc_classes[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < KR_NFC_CLASSES && kr_nfc_classes[low].first <= code ? kr_nfc_classes[low].value : 0;
}

static const kr_nfc_pair *decomposition(uint32_t code)
{
    uint32_t low = 0, high = KR_NFC_PAIRS;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (kr_nfc_pairs[middle].code < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < KR_NFC_PAIRS && kr_nfc_pairs[low].code == code ? &kr_nfc_pairs[low] : NULL;
}

/* Full decomposition of code into out[PARTS_MAX]; returns how many. The first part of a step may
 * decompose further, the second never does. */
static uint32_t decompose(uint32_t code, uint32_t out[PARTS_MAX])
{
    uint32_t tail[PARTS_MAX], tails = 0, count = 0;
    const kr_nfc_pair *pair;

    if (code >= S_BASE && code < S_BASE + S_COUNT) {
        const uint32_t s = code - S_BASE;
        out[0] = L_BASE + s / (V_COUNT * T_COUNT);
        out[1] = V_BASE + s % (V_COUNT * T_COUNT) / T_COUNT;
        out[2] = T_BASE + s % T_COUNT;
        return out[2] == T_BASE ? 2 : 3;
    }
    while ((pair = decomposition(code)) != NULL) {
        if (pair->second != 0)
            tail[tails++] = pair->second;
        code = pair->first;
    }
    out[count++] = code;
    while (tails > 0)
        out[count++] = tail[--tails];
    return count;
}

/* The character first and second compose to, 0 for none. */
static uint32_t composition(uint32_t first, uint32_t second)
{
    uint32_t low = 0, high = KR_NFC_COMPOSE;

    if (first - L_BASE < L_COUNT && second - V_BASE < V_COUNT)
        return S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT;
    if (first - S_BASE < S_COUNT && (first - S_BASE) % T_COUNT == 0 && second - T_BASE - 1 < T_COUNT - 1)
        return first + (second - T_BASE);
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const kr_nfc_pair *p = &kr_nfc_pairs[kr_nfc_compose[middle]];
        if (p->first < first || (p->first == first && p->second < second))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == KR_NFC_COMPOSE)
        return 0;
    const kr_nfc_pair *p = &kr_nfc_pairs[kr_nfc_compose[low]];
    return p->first == first && p->second == second ? p->code : 0;
}

/* A decomposed character as a sort key: class, place, code. Places fit 32 bits. */
static uint64_t mark_key(uint8_t class, size_t place, uint32_t code)
{
    return (uint64_t) class << 56 | (uint64_t)place << 24 | code;
}

static int by_key(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint32_t key_code(uint64_t key) { return key & 0xffffff; }
static uint8_t key_class(uint64_t key) { return (uint8_t)(key >> 56); }

static size_t decompose_text(const char *text, size_t bytes, uint64_t *keys)
{
    size_t count = 0, run = 0; /* run: first mark of the current run */

    for (size_t at = 0; at < bytes;) {
        uint32_t parts[PARTS_MAX], n;
        const uint32_t many = decompose(kr_utf8_decode(text + at, &n), parts);
        for (uint32_t i = 0; i < many; i++) {
            const uint8_t class = combining_class(parts[i]);
            if (class == 0) {
                qsort(keys + run, count - run, sizeof *keys, by_key);
                run = count + 1;
            }
            keys[count] = mark_key(class, count, parts[i]);
            count++;
        }
        at += n;
    }
    if (run < count)
        qsort(keys + run, count - run, sizeof *keys, by_key);
    return count;
}

/* Composes in place; returns the new count. A mark joins the last starter unless something of its
 * own class or a starter stands between. */
static size_t compose_text(uint64_t *keys, size_t count)
{
    size_t out = 0, starter = SIZE_MAX;
    uint32_t last = 0; /* class of the last character kept after the starter; 0 directly after it */

    for (size_t i = 0; i < count; i++) {
        const uint8_t class = key_class(keys[i]);
        const bool adjacent = starter != SIZE_MAX && out == starter + 1;
        if (starter != SIZE_MAX && (adjacent || (last != 0 && last < class))) {
            const uint32_t whole = composition(key_code(keys[starter]), key_code(keys[i]));
            if (whole != 0) {
                keys[starter] = mark_key(0, 0, whole);
                continue;
            }
        }
        if (class == 0)
            starter = out;
        last = class;
        keys[out++] = keys[i];
    }
    return out;
}

static bool may_change(const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        uint32_t n;
        if (kr_utf8_decode(text + at, &n) >= FIRST_MARK)
            return true;
        at += n;
    }
    return false;
}

kr_status kr_nfc(const char *text, size_t bytes, char **out, size_t *out_bytes, kr_err *err)
{
    if (!may_change(text, bytes)) {
        *out = NULL;
        *out_bytes = bytes;
        return KR_OK;
    }
    /* No character decomposes into more than twice as many parts as it has bytes (U+01D5: 3 of 2). */
    uint64_t *keys = kr_alloc(2 * bytes * sizeof *keys);
    if (!keys)
        return kr_fail(err, KR_E_MEMORY, "no memory to normalise %zu bytes of text", bytes);
    const size_t count = compose_text(keys, decompose_text(text, bytes, keys));
    char *copy = kr_alloc(4 * count + 1);
    size_t at = 0;
    for (size_t i = 0; copy && i < count; i++)
        at += kr_utf8_encode(key_code(keys[i]), copy + at);
    kr_free(keys);
    if (!copy)
        return kr_fail(err, KR_E_MEMORY, "no memory to normalise %zu bytes of text", bytes);
    *out = copy;
    *out_bytes = at;
    return KR_OK;
}
