/* What a retrieval method sees of one session in one layer: its pages and its index record.
 *
 * A page holds KR_PAGE_TOKENS tokens of one layer group. Inside a page the data of one layer lie
 * in one block, at the offsets of kr_layout; the method never sees the pool, the page table, or
 * another session. Sealed pages (all 128 tokens present) are immutable and may be shared between
 * sessions; only the last page is written, by the append stage alone.
 *
 * Keys are post-RoPE. Two key layouts exist, chosen by the method:
 *   KR_KEYS_TILED  [kv_head][token/16][dim][16 tokens]   lane = token; contiguous 16-token units
 *   KR_KEYS_ROWS   [kv_head][token][dim]                 rows; for token gather and for MLA
 * Values are always rows: [kv_head][token][value_dim]. MLA has one "KV head" of kv_lora + rope
 * elements a row in the key area and no value area (values are the first kv_lora elements). */
#ifndef KR_METHOD_VIEW_H
#define KR_METHOD_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/num.h"
#include "base/status.h"
#include "model/model.h"

typedef enum { KR_KEYS_TILED, KR_KEYS_ROWS } kr_keys_layout;

enum { KR_TILE_TOKENS = 16 };

/* Geometry of attention in one layer; the same for every session. */
typedef struct {
    uint32_t heads, kv_heads; /* MLA: kv_heads = 1 */
    uint32_t key_dim;         /* elements of a cached key row (MLA: kv_lora + rope) */
    uint32_t value_dim;       /* elements of a value row (MLA: kv_lora, inside the key row) */
    bool latent;              /* MLA: values are a prefix of the key row */
    kr_dtype kv_dtype;
    float softmax_scale;
    uint32_t window; /* attended tokens, own included; 0 = all */
    uint32_t layer, layers;
} kr_attention_shape;

/* Byte offsets of one layer's block inside a page, and of its parts inside the block. */
typedef struct {
    kr_keys_layout keys;
    uint64_t block_offset; /* of this layer in the page */
    uint64_t key_offset;   /* inside the block */
    uint64_t value_offset;
    uint64_t index_offset; /* the method's per-token and per-unit index of this page */
    uint64_t index_bytes;  /* size of that area; its inner layout is the method's own */
    uint64_t block_bytes;  /* all of the above, 64-byte aligned */
} kr_layout;

/* State of a method that spans pages (clusters, hash tables, running means, RNG seed): one per
 * session and layer. The header is kept by store/, the body by the method. */
enum { KR_RECORD_MAGIC = 0x4b52524du /* "KRRM" */, KR_RECORD_VERSION = 1 };

typedef struct {
    uint32_t magic, version;
    char method[16];         /* name of the method that wrote the body, NUL-padded */
    uint32_t method_version; /* the method's own body version */
    uint32_t layer;
    uint64_t tokens_covered; /* tokens [0, tokens_covered) are reflected in body and page index */
    uint64_t body_bytes;
    uint64_t seed;     /* of the session's random choices */
    uint64_t checksum; /* XXH3 of header (checksum 0) and body; set on save, checked on restore */
} kr_record_header;

/* A stretch of tokens computed together: prompt (prefill) or generated (decode). Methods that
 * build at the end of prefill depend on these; they are stored with the session and replayed. */
typedef struct {
    uint64_t first_token;
    uint32_t is_prefill;
    uint32_t reserved;
} kr_boundary;

/* One session in one layer. All pointers stay valid for the duration of a stage call. */
typedef struct {
    const kr_attention_shape *shape;
    const kr_layout *layout;
    uint8_t *const *pages;      /* [page_count] page bases; pages before first_page may be NULL */
    const uint8_t *page_device; /* [page_count] device index inside the node that holds the page */
    uint32_t home;              /* the session's home device */
    uint64_t page_count;
    uint64_t first_page;           /* pages before it were dropped (outside every window) */
    uint64_t tokens;               /* tokens whose KV is present, new ones included after append */
    kr_record_header *record;      /* header; the body follows at record + 1 */
    const kr_boundary *boundaries; /* [boundary_count], ascending first_token */
    uint32_t boundary_count;
} kr_view;

static inline uint8_t *kr_view_block(const kr_view *view, uint64_t page)
{
    return view->pages[page] + view->layout->block_offset;
}

static inline void *kr_view_record_body(const kr_view *view) { return view->record + 1; }

/* Address of the 16-token key tile that holds token (KR_KEYS_TILED): [key_dim][16]. */
static inline const void *kr_view_key_tile(const kr_view *view, uint32_t kv_head, uint64_t token)
{
    const kr_attention_shape *s = view->shape;
    const uint64_t in_page = token % KR_PAGE_TOKENS;
    const uint64_t element = ((uint64_t)kv_head * KR_PAGE_TOKENS +
                              in_page / KR_TILE_TOKENS * KR_TILE_TOKENS) *
                             s->key_dim;
    return kr_view_block(view, token / KR_PAGE_TOKENS) + view->layout->key_offset +
           element * kr_dtype_bytes(s->kv_dtype);
}

/* Address of the key row of token (KR_KEYS_ROWS): [key_dim]. */
static inline const void *kr_view_key_row(const kr_view *view, uint32_t kv_head, uint64_t token)
{
    const kr_attention_shape *s = view->shape;
    const uint64_t row = (uint64_t)kv_head * KR_PAGE_TOKENS + token % KR_PAGE_TOKENS;
    return kr_view_block(view, token / KR_PAGE_TOKENS) + view->layout->key_offset +
           row * s->key_dim * kr_dtype_bytes(s->kv_dtype);
}

/* Address of the value row of token: [value_dim]; for MLA the same address as its key row. */
static inline const void *kr_view_value_row(const kr_view *view, uint32_t kv_head, uint64_t token)
{
    const kr_attention_shape *s = view->shape;
    const uint64_t row = (uint64_t)kv_head * KR_PAGE_TOKENS + token % KR_PAGE_TOKENS;
    if (s->latent)
        return kr_view_key_row(view, kv_head, token);
    return kr_view_block(view, token / KR_PAGE_TOKENS) + view->layout->value_offset +
           row * s->value_dim * kr_dtype_bytes(s->kv_dtype);
}

static inline void *kr_view_index(const kr_view *view, uint64_t page)
{
    return kr_view_block(view, page) + view->layout->index_offset;
}

#endif
