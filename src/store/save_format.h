/* A saved session, version 1. Little-endian; nothing in it is trusted.
 *
 *   header   fixed; its checksum is XXH3 of itself with checksum 0
 *   frames   LAYERS, BOUNDARIES, RECORDS, BLOB, then the PAGEs of each group in order, then END
 *
 * A frame is its own header and stored_bytes of zstd. Its checksum is XXH3 of the stored bytes,
 * seeded with kind << 32 ^ index, so that frames cannot be exchanged and nothing damaged is
 * unpacked. Raw sizes follow from the header and are known before a frame is read. END has no
 * bytes, and the file ends with it. */
#ifndef KR_STORE_SAVE_FORMAT_H
#define KR_STORE_SAVE_FORMAT_H

#include <zstd.h>

#include "store/store.h"

#define KR_SAVE_MAGIC 0x315353455352414bull /* "KARSESS1" */
enum { KR_SAVE_VERSION = 1, KR_SAVE_BLOB_MAX = 64 << 20 };

typedef struct {
    uint64_t magic;
    uint32_t version, layers;
    uint32_t groups, boundaries;
    uint64_t fingerprint, tokens_max, seed;
    uint64_t record_bytes; /* of all layers */
    uint64_t first[KR_GROUPS_MAX], count[KR_GROUPS_MAX], page_bytes[KR_GROUPS_MAX];
    uint32_t blob_bytes, reserved;
    uint64_t checksum;
} kr_save_header;

/* What must equal the node's configuration, and the layer's length. */
typedef struct {
    uint32_t heads, kv_heads, key_dim, value_dim, latent, kv_dtype, window, group;
    float softmax_scale;
    uint32_t method_version;
    kr_method_config config;
    uint64_t tokens;
} kr_save_layer;

typedef enum {
    KR_SAVE_LAYERS = 1,
    KR_SAVE_BOUNDARIES,
    KR_SAVE_RECORDS,
    KR_SAVE_BLOB,
    KR_SAVE_PAGE, /* index = group << 56 | page */
    KR_SAVE_END,
} kr_save_kind;

typedef struct {
    uint32_t kind, reserved;
    uint64_t index, stored_bytes, checksum;
} kr_save_frame;

kr_save_layer kr_save_layer_of(const kr_store *store, const kr_kv_session *session, uint32_t layer);
uint64_t kr_save_checksum(const void *stored, uint64_t bytes, kr_save_kind kind, uint64_t index);
uint64_t kr_save_header_checksum(const kr_save_header *header);
static inline uint64_t kr_save_page_index(uint32_t group, uint64_t page)
{
    return (uint64_t)group << 56 | page;
}
/* folder/prefix name suffix into path [bytes]. KR_E_LIMIT. */
kr_status kr_save_path(char *path, size_t bytes, const char *folder, const char *name, const char *suffix,
                       kr_err *err);

/* ---- reading, for those who restore a session and those who only look (save_reader.c) ---- */

typedef struct {
    int file;
    const char *name; /* for errors */
    uint64_t at;      /* bytes read so far */
    uint8_t *packed;  /* [capacity] stored bytes of the last frame */
    size_t capacity;
    ZSTD_DCtx *zstd;
} kr_save_reader;

/* The header, its checksum and what can be wrong with it whatever the model. KR_E_FORMAT,
 * KR_E_VERSION, KR_E_CHECKSUM. */
kr_status kr_save_read_header(kr_save_reader *reader, kr_save_header *header, kr_err *err);
/* Makes packed and zstd, for frames of at most capacity stored bytes. KR_E_MEMORY. */
kr_status kr_save_reader_room(kr_save_reader *reader, size_t capacity, kr_err *err);
void kr_save_reader_free(kr_save_reader *reader);
/* The next frame must be this one, of at most what bytes raw bytes may be packed to; its stored
 * bytes, checked, lie in packed. */
kr_status kr_save_read_stored(kr_save_reader *reader, kr_save_kind kind, uint64_t index, uint64_t bytes,
                              uint64_t *stored, kr_err *err);
/* The same, unpacked to exactly bytes at raw. */
kr_status kr_save_read_frame(kr_save_reader *reader, kr_save_kind kind, uint64_t index, void *raw,
                             uint64_t bytes, kr_err *err);
/* The frame BOUNDARIES into boundary [header->boundaries]; they begin at 0 and ascend. */
kr_status kr_save_read_boundaries(kr_save_reader *reader, const kr_save_header *header, kr_boundary *boundary,
                                  kr_err *err);
/* The frame END, with nothing behind it. */
kr_status kr_save_read_end(kr_save_reader *reader, kr_err *err);
/* A layer's length must lie within its group's pages and the session's limit. */
kr_status kr_save_check_length(const kr_save_reader *reader, const kr_save_header *header,
                               const kr_save_layer *layer, uint32_t number, kr_err *err);

#endif
