/* Sessions on a running `karat node`: keys and values go there, attention runs there, outputs come back.
 *
 *   connect -> configure -> open sessions -> attend, layer by layer -> close -> disconnect
 *
 * The caller computes queries, keys and values (positions already encoded, RoPE applied) and calls
 * karat_client_attend for each layer with the new tokens of one or more sessions. The node appends the
 * keys and values to the sessions, attends the queries to everything stored, the new tokens included
 * (causally), under the layer's method, and returns the outputs. Nothing of the KV stays with the caller.
 * Results do not depend on how tokens are cut into calls, nor on the other sessions of a call.
 *
 * One thread at a time uses a client and its sessions; different clients, any number, run side by side,
 * on one node too: as long as sessions are open there, all its clients must ask for a configuration that
 * fits the node's (the same model and methods; contexts and calls that are not longer).
 *
 * Every wait ends: a call that needs the node sends a message to each device concerned and waits for the
 * replies, each at most timeout_ms. A node that is killed, stopped or out of reach ends the call with
 * KARAT_E_LOST or KARAT_E_DEADLINE; from then on every call on the client and its sessions returns that
 * first cause at once, and what is left to do is karat_client_disconnect. An error that the node itself
 * reports (KARAT_E_FULL, KARAT_E_ARG, ...) leaves the client as it was.
 * What a node sends is checked before it is used, and refused beyond message_bytes_max before
 * memory is taken for it. UCX, which carries the messages, reads its UCX_ variables from the environment. */
#ifndef KARAT_CLIENT_H
#define KARAT_CLIENT_H

#include "karat/karat.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct karat_client karat_client;
typedef struct karat_session karat_session;

/* ---- connection ---- */

#define KARAT_TRANSPORT_SHM 1u
#define KARAT_TRANSPORT_TCP 2u

typedef struct karat_client_options {
    uint32_t struct_size;
    uint32_t transports; /* set of KARAT_TRANSPORT_*; 0: all, shared memory first */
    const void *key;     /* [key_bytes] the node's pre-shared key; null: none */
    size_t key_bytes;
    uint32_t timeout_ms;        /* of connecting, of each send and of each reply; 0: 10,000 */
    uint32_t spin_us;           /* look this long for a reply before sleeping; 0: 50 */
    uint64_t message_bytes_max; /* largest message either way, at most 2^30; 0: 256 MiB */
} karat_client_options;

/* Connects to the node at host (a numeric address, or a name, which the system looks up in its own time)
 * and port, and proves the key. options may be null. KARAT_E_LOST (nobody there), KARAT_E_AUTH (another
 * key), KARAT_E_VERSION, KARAT_E_NOT_FOUND (host), KARAT_E_UNSUPPORTED (no transport that both allow),
 * KARAT_E_FULL (as many clients as it takes), KARAT_E_DEADLINE, KARAT_E_ARG. */
KARAT_API karat_status karat_client_connect(const char *host, uint16_t port,
                                            const karat_client_options *options, karat_client **client,
                                            karat_error *error);
/* Closes its sessions on the node, leaves, and frees everything. Null is fine. */
KARAT_API void karat_client_disconnect(karat_client *client);

/* ---- model ---- */

/* How one layer attends. Zeros are the method's documented defaults (docs/methods.md). */
typedef struct karat_client_layer {
    const char *method;    /* "dense", "quest", ...; null: "dense" */
    uint32_t window;       /* tokens attended, own included; 0: all */
    uint32_t budget;       /* tokens attended per query */
    uint32_t dense_layers; /* first layers of the model that attend densely, or KARAT_METHOD_DEFAULT */
    uint32_t unit;         /* tokens of a page, block or cluster of the method */
    uint32_t mode;         /* the method's named variant */
    float threshold;       /* of threshold methods */
    uint32_t parameter[8]; /* the method's own; dsa, msa: [0] index heads, [1] elements of an index key */
    uint64_t seed;
    uint32_t shares_index; /* dsa: 1 = uses the selection of the nearest earlier layer with 0 */
    uint32_t reserved[3];  /* 0 */
} karat_client_layer;

typedef struct karat_client_model {
    uint32_t struct_size;
    uint32_t layers, query_heads, kv_heads;
    uint32_t key_dim, value_dim;
    uint32_t latent;                 /* 1: values are the first value_dim elements of the key row (MLA) */
    karat_dtype kv_dtype;            /* as the node keeps keys and values: F32, F16, BF16 */
    float softmax_scale;             /* 0: 1 / sqrt(key_dim) */
    uint64_t context_max;            /* tokens of the longest session */
    uint32_t tokens_max;             /* new tokens of one call, over all its rows */
    uint64_t fingerprint;            /* stands for the weights; equal in all clients of one model */
    const karat_client_layer *layer; /* [layers]; null: all dense over everything */
} karat_client_model;

/* Says what sessions will be like, to the node too; before any session is open. KARAT_E_BUSY: the node
 * has sessions of another configuration, and the text says which. KARAT_E_UNSUPPORTED, KARAT_E_SHAPE,
 * KARAT_E_LIMIT name the layer or the value. */
KARAT_API karat_status karat_client_configure(karat_client *client, const karat_client_model *model,
                                              karat_error *error);

/* What a layer selects, and what its items carry besides queries, keys and values. */
typedef struct karat_client_plan {
    uint32_t struct_size;       /* set by the caller; what lies beyond it is not written */
    uint32_t lists;             /* selection lists of a token; 0: it attends densely */
    uint32_t units_max;         /* longest list */
    uint32_t unit_tokens;       /* tokens of a unit */
    uint32_t index_query_bytes; /* of a token's index query, and of its index key; 0: the items have none */
    uint32_t index_key_bytes;
    uint32_t index_owner; /* layer whose selection this layer uses: mostly its own number */
} karat_client_plan;

KARAT_API karat_status karat_client_plan_of(const karat_client *client, uint32_t layer,
                                            karat_client_plan *plan, karat_error *error);

/* ---- sessions ---- */

/* Opens an empty session that may grow to tokens_max tokens: the node promises memory for them.
 * KARAT_E_FULL says what is left. seed: of the methods' random choices. */
KARAT_API karat_status karat_session_open(karat_client *client, uint64_t tokens_max, uint64_t seed,
                                          karat_session **session, karat_error *error);
/* Frees the session here in any case and on the node if it can be reached. Null is fine. */
KARAT_API karat_status karat_session_close(karat_session *session, karat_error *error);
/* Tokens present in a layer; 0 for a layer that is none. */
KARAT_API uint64_t karat_session_tokens(const karat_session *session, uint32_t layer);
/* Ends a prompt (each of them in a conversation): methods that build an index then do it now. Every
 * layer must have got the same tokens. */
KARAT_API karat_status karat_session_end_prefill(karat_session *session, karat_error *error);
/* Cuts every layer to its first tokens tokens. KARAT_E_LIMIT when that is more than the session has,
 * KARAT_E_UNSUPPORTED where a window has passed or an index cannot be cut; then nothing has changed. */
KARAT_API karat_status karat_session_trim(karat_session *session, uint64_t tokens, karat_error *error);

/* ---- attention ---- */

/* Rows of a caller's array: element e of head h of token t is at
 * data[t * token_stride + h * head_stride + e]. Strides count elements; 0 = packed. */
typedef struct karat_client_array {
    const void *data;
    uint64_t token_stride; /* 0: heads * dim */
    uint64_t head_stride;  /* 0: dim */
    karat_dtype dtype;     /* F32, F16, BF16 */
    uint32_t reserved;     /* 0 */
} karat_client_array;

/* The next tokens of one session in one layer. */
typedef struct karat_attend_item {
    karat_session *session;
    uint32_t tokens;          /* >= 1 */
    uint32_t prefill;         /* 1: tokens of a prompt, which attend densely; 0: decoded tokens, one by one */
    karat_client_array query; /* query_heads x key_dim, sent as F32 */
    karat_client_array key;   /* kv_heads x key_dim, stored as the model's kv_dtype (nearest even) */
    karat_client_array value; /* kv_heads x value_dim, likewise; not read when latent */
    float *output;            /* query_heads x value_dim */
    uint64_t output_token_stride, output_head_stride; /* as in karat_client_array */
    /* The units that each token's lists selected, ascending: selected_count [tokens][lists] and selected
     * [tokens][lists][units_max], both or neither null. Counts are 0 where a token attended densely. */
    uint32_t *selected_count, *selected;
    /* [tokens] rows of the plan's bytes, packed, in the layers that have them (docs/api.md). */
    const void *index_query, *index_key;
} karat_attend_item;

/* Appends the items' tokens to their sessions in layer and attends. Each session once in a call; at most
 * tokens_max tokens in all. Layers of a session advance one by one; a decode step calls this for each
 * layer in order. A layer that shares an index comes with the same items as the one that owns it, and no
 * other call with index queries between them. On an error outputs are undefined, and each session's
 * lengths are what karat_session_tokens says: sessions on other devices of the node may have advanced. */
KARAT_API karat_status karat_client_attend(karat_client *client, uint32_t layer,
                                           const karat_attend_item *items, uint32_t count,
                                           karat_error *error);

/* ---- what the node says of itself ---- */

typedef struct karat_client_stats {
    uint32_t struct_size;                /* set by the caller; what lies beyond it is not written */
    uint32_t devices;                    /* of the node, as all but the last line */
    uint32_t sessions, reserved;         /* open, of all clients */
    uint64_t memory_bytes;               /* for pages, over all devices */
    uint64_t used_bytes;                 /* of it, pages that sessions hold */
    uint64_t messages;                   /* that the node has handled since it started */
    uint64_t nan_scores;                 /* scores that were no number, and so never selected */
    uint64_t busy_ns;                    /* of the busiest device, in stages since the node started */
    uint64_t sent_bytes, received_bytes; /* by this client, payloads */
    uint64_t sent_messages;
} karat_client_stats;

KARAT_API karat_status karat_client_ask_stats(karat_client *client, karat_client_stats *stats,
                                              karat_error *error);

#ifdef __cplusplus
}
#endif

#endif
