/* The inside of a tokenizer, shared by its loaders (GGUF metadata, tokenizer.json) and by the
 * encoder. Nothing outside src/files includes this.
 *
 * One model covers both kinds of vocabulary:
 *   spelling  BYTES: a piece spells bytes in GPT-2's printable alphabet; text starts as bytes.
 *             METASPACE: a piece is UTF-8 with U+2581 for a space; text starts as characters, and
 *             what no piece spells becomes byte tokens <0xHH>.
 *   order     RANKS: a list of pairs says what may merge and in which order (byte-level BPE,
 *             tokenizer.json of Llama 2 and Gemma). SCORES: any two neighbours whose concatenation
 *             is a piece may merge, highest score first (SentencePiece as GGUF stores it).
 * Text is cut at added tokens, each rest is normalised, split by the pre-tokenizer's rules, and
 * every resulting word is merged on its own. */
#ifndef KR_FILES_TOKENIZER_IMPL_H
#define KR_FILES_TOKENIZER_IMPL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "files/gguf.h"
#include "files/span_map.h"
#include "files/tokenizer.h"

#define KR_METASPACE "\xe2\x96\x81"

enum { KR_SPLITS_MAX = 4, KR_ENDS_MAX = 32, KR_TEXT_BYTES_MAX = 1 << 28 };

/* Values as GGUF numbers them. */
typedef enum {
    KR_TOKEN_NORMAL = 1,
    KR_TOKEN_UNKNOWN = 2,
    KR_TOKEN_CONTROL = 3, /* special: only recognised in text when the caller asks */
    KR_TOKEN_USER = 4,    /* added, not special: always recognised in text */
    KR_TOKEN_UNUSED = 5,
    KR_TOKEN_BYTE = 6,
} kr_token_kind;

typedef enum { KR_SPELLING_BYTES, KR_SPELLING_METASPACE } kr_spelling;
typedef enum { KR_ORDER_RANKS, KR_ORDER_SCORES } kr_merge_order;
typedef enum {
    KR_PREFIX_NONE,
    KR_PREFIX_FIRST,   /* a space before text that starts the prompt, unless it has one */
    KR_PREFIX_ALWAYS,  /* a space before each stretch of text, unless it has one */
    KR_PREFIX_DOUBLED, /* a space before each stretch of text, even when it has one */
} kr_prefix;

/* Pairs that may merge: (left, right) -> (rank, merged). Open addressing, at most half full. */
typedef struct {
    uint32_t left, right; /* left = KR_SPAN_NONE: empty slot */
    uint32_t rank, merged;
} kr_merge;

typedef struct {
    kr_merge *slots; /* [mask + 1] */
    uint32_t mask;
} kr_merge_map;

kr_status kr_merge_map_init(kr_merge_map *map, uint64_t pairs, kr_err *err);
void kr_merge_map_free(kr_merge_map *map);
/* The first rank given to a pair stays. */
void kr_merge_map_add(kr_merge_map *map, kr_merge merge);
/* NULL when the pair does not merge. */
const kr_merge *kr_merge_map_find(const kr_merge_map *map, uint32_t left, uint32_t right);

typedef struct kr_split kr_split; /* one compiled pre-tokenizer rule (split.c) */

struct kr_tokenizer {
    uint32_t vocab;
    kr_bytes *piece; /* [vocab] as the file spells it; in the mapped file or in blob */
    uint8_t *kind;   /* [vocab] kr_token_kind */
    char *blob;      /* owned text of pieces, or NULL */
    kr_span_map by_piece;
    kr_spelling spelling;
    kr_merge_order order;
    uint32_t *priority; /* [vocab] of scores: smaller merges first; NULL for ranks */
    kr_merge_map merges;
    bool whole_word_first; /* a word that is a piece is taken without merging (Llama 3) */
    uint32_t piece_bytes_max;
    uint32_t byte_id[256]; /* token of one byte, KR_SPAN_NONE = none */
    uint32_t unknown;      /* KR_SPAN_NONE = none */

    bool nfc; /* normalise text to NFC first */
    kr_prefix prefix;
    kr_split *split[KR_SPLITS_MAX]; /* applied in order, each to every part the last one left */
    uint32_t splits;

    uint32_t *added; /* [added_count] ids of CONTROL and USER tokens in byte order */
    uint32_t added_count;
    bool added_first[256]; /* some added token begins with this byte */

    uint32_t bos; /* KR_SPAN_NONE = none */
    bool add_bos;
    uint32_t end[KR_ENDS_MAX];
    uint32_t ends;
    char *default_system; /* of the file's chat template, owned; NULL = none (chat.c) */
    bool dated_system;    /* template opens with Llama 3.1's knowledge and date lines */
};

/* --- building --- */

/* A tokenizer with room for vocab pieces, everything else unset; id fields KR_SPAN_NONE. */
kr_status kr_tokenizer_new(uint64_t vocab, kr_tokenizer **tokenizer, kr_err *err);
void kr_tokenizer_free(kr_tokenizer *tokenizer);
/* After pieces, kinds and spelling are set: indexes pieces (a duplicate is an error), finds byte
 * tokens and added tokens, and adds the well-known end-of-turn tokens. where is for messages. */
kr_status kr_tokenizer_index(kr_tokenizer *tokenizer, const char *where, kr_err *err);
void kr_tokenizer_add_end(kr_tokenizer *tokenizer, uint32_t id);
/* One merge "left right" of the given rank; both and their concatenation must be pieces. */
kr_status kr_tokenizer_add_merge(kr_tokenizer *tokenizer, kr_bytes left, kr_bytes right, uint32_t rank,
                                 const char *where, kr_err *err);

kr_status kr_tokenizer_from_gguf(const kr_gguf *gguf, kr_tokenizer **tokenizer, kr_err *err);
/* folder holds tokenizer.json; config is its tokenizer_config.json, or NULL. */
kr_status kr_tokenizer_from_folder(const char *folder, const json_t *config, kr_tokenizer **tokenizer,
                                   kr_err *err);

/* Code point that spells byte b in GPT-2's alphabet, and back (-1 for none). */
uint32_t kr_byte_letter(uint8_t b);
int kr_letter_byte(uint32_t code);

/* --- splitting (split.c) --- */

/* The rules of a GGUF pre-tokenizer name; KR_E_UNSUPPORTED lists the known names. Sets
 * whole_word_first and add_bos as the name implies. */
kr_status kr_split_by_name(kr_tokenizer *tokenizer, kr_bytes name, const char *where, kr_err *err);
/* Adds one rule by its regular expression, which must be one of those karat knows to be linear. */
kr_status kr_split_by_pattern(kr_tokenizer *tokenizer, kr_bytes pattern, const char *where, kr_err *err);
void kr_split_free(kr_split *split);

typedef kr_status (*kr_word_fn)(void *context, const char *word, uint32_t bytes, kr_err *err);
/* Calls fn with the words of text (valid UTF-8) in order. */
kr_status kr_split_text(const kr_tokenizer *tokenizer, const char *text, uint32_t bytes, kr_word_fn fn,
                        void *context, kr_err *err);

/* --- merging (bpe.c) --- */

typedef struct {
    uint32_t *ids;
    size_t capacity, count;
} kr_id_sink;

kr_status kr_id_sink_put(kr_id_sink *sink, uint32_t id, kr_err *err);

/* Scratch of the merger, grown to the longest word seen. */
typedef struct {
    void *symbols, *heap;
    uint32_t capacity; /* symbols */
} kr_bpe_scratch;

void kr_bpe_scratch_free(kr_bpe_scratch *scratch);
/* Appends the ids of one word. O(n log n) time and O(n) memory in its length. */
kr_status kr_bpe_word(const kr_tokenizer *tokenizer, kr_bpe_scratch *scratch, const char *word,
                      uint32_t bytes, kr_id_sink *sink, kr_err *err);

/* --- normalising (nfc.c) --- */

/* Canonical composition of text (valid UTF-8) into a new buffer for kr_free, or *out = NULL when
 * text is already composed. O(n log n) time, memory linear in bytes. */
kr_status kr_nfc(const char *text, size_t bytes, char **out, size_t *out_bytes, kr_err *err);

#endif
