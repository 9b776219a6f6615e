/* Messages between a compute node and a memory node: fixed little-endian header and payloads.
 *
 * One message per (micro-batch, layer, device), carrying rows of sessions; empty ones are legal.
 * The index query goes first (INDEX), so that Score starts while the tokens' KV is on its way
 * (ATTEND). Every length is checked against the frame and a stated maximum before anything is
 * allocated or read; enums are range-checked; no pointer ever crosses the wire. The structs below
 * have no padding and karat runs on little-endian hosts, so a struct's bytes are its wire form: a
 * sender hands the struct itself to a link as a piece, a receiver checks and copies (payload.h),
 * never casts. */
#ifndef KR_WIRE_MSG_H
#define KR_WIRE_MSG_H

#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/num.h"
#include "base/status.h"

enum {
    KR_MSG_MAGIC = 0x5241524bu, /* "KRAR" read as little-endian bytes 4b 52 41 52 */
    KR_MSG_VERSION = 1,
    KR_MSG_HEADER_BYTES = 64,
    KR_MSG_ROWS_MAX = 1 << 16,
    KR_MSG_LAYERS_MAX = 256,
};
#define KR_MSG_PAYLOAD_MAX ((uint64_t)1 << 30)

#define KR_MSG_LIST(X)                                                                         \
    X(KR_MSG_HELLO, 1)        /* client -> node: versions, features, nonce */                  \
    X(KR_MSG_CHALLENGE, 2)    /* node -> client: nonce, proof of key */                        \
    X(KR_MSG_PROOF, 3)        /* client -> node: proof of key */                               \
    X(KR_MSG_WELCOME, 4)      /* node -> client: epoch, devices, limits */                     \
    X(KR_MSG_BEAT, 5)         /* both ways on the control link */                              \
    X(KR_MSG_STATS, 6)        /* request (empty) and reply */                                  \
    X(KR_MSG_CONFIGURE, 7)    /* client -> node: model geometry, methods per layer, KV type */ \
    X(KR_MSG_OPEN, 8)         /* open or find a session; reply gives handle, device, prefix */ \
    X(KR_MSG_TRIM, 9)         /* cut a session to its first n tokens */                        \
    X(KR_MSG_END_PREFILL, 10) /* boundary: prompt segment complete */                          \
    X(KR_MSG_CLOSE, 11)                                                                        \
    X(KR_MSG_INDEX, 12)   /* rows: index query and key */                                      \
    X(KR_MSG_ATTEND, 13)  /* rows: query, new K and V; or query with indices */                \
    X(KR_MSG_OUTPUT, 14)  /* rows: attention output */                                         \
    X(KR_MSG_INDICES, 15) /* rows: selected units (indices-only placement) */                  \
    X(KR_MSG_SAVE, 16)                                                                         \
    X(KR_MSG_RESTORE, 17)                                                                      \
    X(KR_MSG_DONE, 18)  /* success reply without data */                                       \
    X(KR_MSG_ERROR, 19) /* reply: status and one line of text */                               \
    X(KR_MSG_BYE, 20)                                                                          \
    X(KR_MSG_PATH, 21) /* both ways: transport and address of the data path */

typedef enum {
#define KR_MSG_ENUM(name, code) name = code,
    KR_MSG_LIST(KR_MSG_ENUM)
#undef KR_MSG_ENUM
        KR_MSG_KIND_END = 22
} kr_msg_kind;

/* 64 bytes on the wire, in this order, little-endian, no padding. */
typedef struct {
    uint32_t magic;
    uint16_t version;
    uint16_t kind;  /* kr_msg_kind */
    uint32_t epoch; /* the node's, from WELCOME; 0 before */
    uint16_t micro_batch;
    uint16_t layer;
    uint32_t device; /* device inside the node */
    uint32_t rows;
    uint64_t sequence; /* client's request number; the reply repeats it */
    uint64_t step;     /* decode step, for traces and cadence */
    uint64_t payload_bytes;
    uint64_t checksum; /* kr_msg_checksum */
    uint32_t flags;    /* kr_msg_flag */
    uint32_t reserved; /* 0 */
} kr_msg_header;

typedef enum {
    KR_MSG_WANT_SELECTION = 1, /* OUTPUT carries the selected units after the outputs */
    KR_MSG_WITH_INDICES = 2,   /* ATTEND carries indices: gather and attend only */
    KR_MSG_INDICES_ONLY = 4,   /* reply INDICES, do not attend */
    KR_MSG_NO_APPEND = 8,      /* query over what is stored; nothing new */
} kr_msg_flag;

enum { KR_MSG_FLAGS_ALL = 15 };

/* One row = new tokens of one session in one layer. 32 bytes on the wire. */
typedef struct {
    uint64_t session;  /* handle: generation << 32 | slot + 1; 0 is never valid */
    uint64_t position; /* of the first new token; must equal the session's length */
    uint32_t tokens;   /* >= 1 */
    uint32_t is_prefill;
    uint64_t reserved;
} kr_msg_row;

/* Payloads, in order, each part 8-byte aligned:
 *   INDEX    rows[], index_query[tokens in all][index_query_bytes], index_key[..][index_key_bytes]
 *   ATTEND   rows[], query F32 [tokens][heads][key_dim], key [tokens][kv_heads][key_dim] and
 *            value [tokens][kv_heads][value_dim] of the session's KV type (MLA: key rows only);
 *            WITH_INDICES: counts u32[lists], then indices u32, ascending within a list
 *   OUTPUT   F32 [tokens][heads][value_dim]; WANT_SELECTION: counts and indices as above
 *   INDICES  counts u32[lists], indices u32
 *   ERROR    i32 status, u32 text bytes, text
 * Lists of a message: tokens in all times the method's lists of a token, in row order; none in a
 * layer whose plan is dense; all of count 0 for rows that attend densely (prefill). INDICES_ONLY
 * appends, scores and selects, in a dense layer it only appends. WITH_INDICES comes with decode rows
 * of layers that select, appends as always, and attends to exactly the units listed.
 *
 * Replies: STATS by STATS, OPEN by OPEN (kr_msg_opened), RESTORE by RESTORE (kr_msg_opened and the
 * client's blob), INDEX by nothing, ATTEND by OUTPUT or INDICES, the others by DONE; or by ERROR. */

/* ---- control payloads, fixed little-endian structs followed by the arrays named ---- */

enum { KR_NONCE_BYTES = 32, KR_PROOF_BYTES = 32, KR_NAME_BYTES = 64 };

/* HELLO and CHALLENGE. proof = HMAC-SHA256(key, "karat" || version || role || both nonces); an
 * absent key is the empty key, and a node with a key refuses it with KR_E_AUTH. */
typedef struct {
    uint16_t version_min, version_max;
    uint32_t features; /* 0; unknown bits are refused */
    uint8_t nonce[KR_NONCE_BYTES];
    uint8_t proof[KR_PROOF_BYTES]; /* CHALLENGE: the node's; HELLO: zero */
    char build[KR_NAME_BYTES];     /* karat version, NUL-padded, for messages only */
} kr_msg_hello;

typedef struct {
    uint8_t proof[KR_PROOF_BYTES];
} kr_msg_proof;

typedef struct {
    uint32_t epoch; /* changes at every start of the node */
    uint32_t devices;
    uint32_t beat_interval_ms, dead_after_ms;
    uint64_t payload_max;
    uint64_t client; /* number of this connection */
} kr_msg_welcome;

/* CONFIGURE: followed by layer[layers]. A second CONFIGURE that differs is refused while sessions
 * are open. */
typedef struct {
    uint32_t layers, heads, kv_heads, key_dim, value_dim;
    uint32_t latent;   /* 0 or 1 */
    uint32_t kv_dtype; /* kr_dtype: F32, F16, BF16 */
    float softmax_scale;
    uint64_t context_max; /* tokens of the longest session */
    uint32_t tokens_max;  /* tokens (query rows) in one message */
    uint32_t groups;      /* layer groups: 1 or 2 */
    uint64_t fingerprint; /* of the model file: prefixes are shared only within it */
} kr_msg_configure;

/* The kr_method_config of method/method.h in wire form; wire/ knows it as bytes. */
enum { KR_METHOD_CONFIG_BYTES = 80 };

typedef struct {
    uint32_t window;
    uint32_t group; /* layer group of this layer */
    uint32_t index_owner;
    uint32_t reserved;
    uint8_t method[KR_METHOD_CONFIG_BYTES];
} kr_msg_layer;

/* OPEN: followed by prefix[prefix_pages], the hash chain of the prompt's whole pages. */
typedef struct {
    uint64_t tokens_max; /* context + prompt + growth: pages are promised for it */
    uint64_t seed;
    uint32_t prefix_pages;
    uint32_t reserved;
} kr_msg_open;

typedef struct {
    uint64_t session;      /* handle */
    uint64_t tokens;       /* present already: shared prefix, or restored */
    uint32_t device;       /* home */
    uint32_t client_bytes; /* RESTORE: bytes of the client's blob that follows */
} kr_msg_opened;

/* TRIM, END_PREFILL, CLOSE. After END_PREFILL tokens = length at the boundary; prefix_pages hashes
 * of all whole pages follow, which makes the session's sealed pages findable for sharing. */
typedef struct {
    uint64_t session;
    uint64_t tokens;
    uint32_t prefix_pages;
    uint32_t reserved;
} kr_msg_session;

/* SAVE (client blob follows: the token ids) and RESTORE. The name is a file name in the node's save
 * folder: [A-Za-z0-9._-], no leading dot. */
typedef struct {
    uint64_t session; /* 0 in RESTORE */
    uint32_t client_bytes;
    uint32_t tokens_max; /* RESTORE: pages are promised for so many tokens, if the file says fewer */
    char name[KR_NAME_BYTES];
} kr_msg_file;

/* STATS reply: followed by device[devices]. */
typedef struct {
    uint32_t devices, sessions;
    uint64_t messages, bytes_in, bytes_out, nan_scores, prefix_hits_tokens;
} kr_msg_stats;

typedef struct {
    uint64_t pages_total[2], pages_used[2], pages_cached[2]; /* by layer group */
    uint64_t page_bytes[2];
    uint64_t spilled_pages;
    uint64_t busy_ns;     /* time in stages since start */
    uint64_t stage_ns[8]; /* by kr_stage_kind */
    uint64_t pool_bytes, workspace_bytes;
} kr_msg_device_stats;

/* PATH: how the data path is reached, followed by the transport's address [address_bytes].
 * The client offers with transports = what it allows and no address; the node answers with the one
 * it chose and its address; the client answers with its own. */
enum { KR_PATH_SHM = 1, KR_PATH_TCP = 2, KR_PATH_ALL = 3, KR_PATH_ADDRESS_MAX = 4096 };

typedef struct {
    uint32_t transports; /* set of KR_PATH_*; exactly one when there is an address */
    uint32_t address_bytes;
    uint64_t host; /* equal on both ends: they can share memory */
} kr_msg_path;

/* Checks magic, version, kind, flags, limits, reserved zero; not the checksum. KR_E_VERSION names
 * both versions. */
kr_status kr_msg_header_read(const uint8_t bytes[KR_MSG_HEADER_BYTES], kr_msg_header *header, kr_err *err);
void kr_msg_header_write(const kr_msg_header *header, uint8_t bytes[KR_MSG_HEADER_BYTES]);

/* XXH3-64 of the payload, seeded with the XXH3-64 (seed 0) of the header's wire form whose
 * checksum field is 0. */
uint64_t kr_msg_checksum(const kr_msg_header *header, const uint8_t *payload);

/* Completes header (magic, version, payload_bytes, reserved, checksum) for the payload and writes
 * its wire form. */
void kr_msg_seal(kr_msg_header *header, const uint8_t *payload, uint64_t payload_bytes,
                 uint8_t bytes[KR_MSG_HEADER_BYTES]);
/* KR_E_CHECKSUM when the payload is not the one that was sealed. */
kr_status kr_msg_verify(const kr_msg_header *header, const uint8_t *payload, kr_err *err);

/* "ATTEND"; "?" for an unknown kind. */
const char *kr_msg_name(kr_msg_kind kind);

#endif
