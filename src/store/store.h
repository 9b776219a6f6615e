/* Sessions and their pages: who holds what, where, and what may still be promised.
 *
 * A session has a home device. Opening promises all the pages it may come to need: on home as far
 * as they go, the rest on other devices, so that a session that was opened never runs out. Pages
 * are taken from the promise as tokens arrive, home's part first. Sealed pages of published
 * prefixes are shared and stay as cache after their session closes; a page that is shared or
 * published is copied before it is written. Layers advance one by one: each has its own length.
 *
 *   session: absent --open or restore--> open --close--> absent (generation + 1)
 *
 * Threads: functions here take the store's lock where they touch pools, the prefix index or the
 * table of sessions. What a kr_kv_session holds is changed only by the thread that works for its home
 * device; the node keeps to that. */
#ifndef KR_STORE_STORE_H
#define KR_STORE_STORE_H

#include <pthread.h>

#include "base/arena.h"
#include "store/geometry.h"
#include "store/pool.h"
#include "store/prefix.h"

enum { KR_STORE_DEVICES_MAX = 64, KR_BOUNDARIES_MAX = 1 << 16 };

/* Pages of one layer group of a session: entries [first, count) are live. */
typedef struct {
    kr_page_id *id;  /* [capacity] */
    uint8_t **base;  /* [capacity], what a kr_view shows */
    uint8_t *device; /* [capacity]; dropped pages keep theirs */
    uint64_t first, count, capacity;
    uint64_t writable; /* pages before it are shared or published: copied before a write */
    uint32_t promised[KR_STORE_DEVICES_MAX];
} kr_kv_session_group;

typedef struct {
    uint64_t handle; /* generation << 32 | slot + 1 */
    uint64_t client; /* connection that opened it */
    uint32_t home;
    bool spilled; /* pages lie, or lay, on other devices too */
    uint64_t tokens_max, seed;
    uint64_t stamp;   /* the node's mark: seen in the message being handled */
    uint64_t *tokens; /* [layers] tokens present */
    kr_kv_session_group group[KR_GROUPS_MAX];
    uint8_t *records; /* of all layers, see kr_kv_session_record */
    kr_boundary *boundaries;
    uint32_t boundary_count, boundary_capacity;
} kr_kv_session;

typedef struct {
    uint32_t generation;
    kr_kv_session *session; /* NULL: absent */
} kr_kv_session_slot;

typedef struct {
    kr_pool pool[KR_GROUPS_MAX];
    kr_arena memory;  /* all pools of the device */
    uint64_t spilled; /* pages of sessions whose home is elsewhere */
} kr_store_device;

typedef struct {
    pthread_mutex_t lock;
    kr_geometry geometry;
    uint32_t devices, sessions_max, sessions;
    kr_store_device device[KR_STORE_DEVICES_MAX];
    kr_page_state *page_state;
    kr_prefix_index prefix;
    kr_kv_session_slot *slot; /* [sessions_max] */
    uint64_t prefix_hits_tokens;
} kr_store;

typedef struct {
    uint32_t devices, sessions_max;
    uint64_t pool_bytes; /* per device */
    uint32_t generation; /* handles begin after it: those of an earlier store stay dead */
    bool lazy;           /* pools are only reserved; they take memory as pages are first used */
    /* Called with each device's memory before it is touched (to bind it); may be NULL. */
    void (*bind)(void *context, uint32_t device, void *memory, uint64_t bytes);
    void *context;
} kr_store_config;

/* Takes over a completed geometry, reserves the pools and touches them. KR_E_MEMORY; KR_E_LIMIT when a
 * pool cannot hold one page of each group. */
kr_status kr_store_init(kr_store *store, const kr_geometry *geometry, const kr_store_config *config,
                        kr_err *err);
void kr_store_free(kr_store *store);

/* Where sessions go, answered by the scheduling policy. Called with the lock held; may ask the
 * kr_store_occupancy. Both return a device or UINT32_MAX. */
typedef struct {
    void *context;
    uint32_t (*place)(void *context, uint64_t tokens_max, uint32_t prefix_device, uint64_t prefix_tokens);
    uint32_t (*spill)(void *context, uint32_t home);
} kr_store_policy;

typedef struct {
    uint64_t total, used, cached, reserved; /* pages, all layer groups */
} kr_occupancy;

/* Lock held. */
kr_occupancy kr_store_occupancy(const kr_store *store, uint32_t device);

typedef struct {
    uint64_t tokens_max, seed, client;
    const uint8_t *prefix; /* [prefix_pages] kr_hash128, any alignment */
    uint32_t prefix_pages;
} kr_open_request;

/* KR_E_LIMIT over the context, KR_E_FULL (no slot, or pages asked for and left), KR_E_MEMORY. */
kr_status kr_store_open(kr_store *store, const kr_open_request *request, const kr_store_policy *policy,
                        kr_kv_session **session, kr_err *err);
/* KR_E_NOT_FOUND for a handle of no session, of another life, or of another client. */
kr_status kr_store_find(kr_store *store, uint64_t handle, uint64_t client, kr_kv_session **session,
                        kr_err *err);
/* Home device of such a session, UINT32_MAX for none: for any thread, unlike the session itself. */
uint32_t kr_store_home(kr_store *store, uint64_t handle, uint64_t client);
/* The slot'th session of client, for closing all; NULL when it has none there. */
kr_kv_session *kr_store_session_at(kr_store *store, uint32_t slot, uint64_t client);
/* The largest generation of any handle so far. */
uint32_t kr_store_generation(const kr_store *store);
void kr_store_close(kr_store *store, kr_kv_session *session);

/* Makes sure that pages for tokens [position, position + count) of layer's group exist and may be
 * written. KR_E_LIMIT over tokens_max; KR_E_UNSUPPORTED when the window's pages were dropped. */
kr_status kr_store_grow(kr_store *store, kr_kv_session *session, uint32_t layer, uint64_t position,
                        uint32_t count, kr_err *err);
/* Cuts all layers to tokens. KR_E_LIMIT (longer than present), KR_E_UNSUPPORTED (a window's pages are
 * gone, or a method's record cannot be cut), KR_E_FULL; on failure nothing has changed. */
kr_status kr_store_trim(kr_store *store, kr_kv_session *session, uint64_t tokens, kr_err *err);
/* Names the session's first pages whole pages by hash, so that others may share them. */
void kr_store_publish(kr_store *store, kr_kv_session *session, const uint8_t *prefix, uint32_t pages);

/* Length of the longest layer. */
uint64_t kr_kv_session_tokens(const kr_store *store, const kr_kv_session *session);
kr_record_header *kr_kv_session_record(const kr_store *store, const kr_kv_session *session, uint32_t layer);
/* Notes that a token computed as prefill or decode begins at position. KR_E_MEMORY, KR_E_LIMIT. */
kr_status kr_kv_session_boundary(kr_kv_session *session, uint64_t position, bool is_prefill, kr_err *err);
/* What a method sees of layer with tokens tokens present. */
kr_view kr_kv_session_view(const kr_store *store, const kr_kv_session *session, uint32_t layer,
                           uint64_t tokens);
/* Copies new tokens' rows into the pages: key [count][kv_heads][key_dim], value likewise, of the KV
 * type, first at position; only those that fall in page number page. */
void kr_kv_session_write(const kr_store *store, const kr_kv_session *session, uint32_t layer,
                         uint64_t position, uint32_t count, uint64_t page, const uint8_t *key,
                         const uint8_t *value);

/* Writes the session and the client's blob to folder/name, visible only when complete. KR_E_IO. */
kr_status kr_store_save(kr_store *store, kr_kv_session *session, const char *folder, const char *name,
                        const uint8_t *blob, uint32_t blob_bytes, kr_err *err);
/* The session may grow to tokens_max, or to what it was opened for when that is more.
 * All or nothing. *blob is kr_alloc'ed, the caller's. KR_E_NOT_FOUND, KR_E_FORMAT, KR_E_VERSION,
 * KR_E_CHECKSUM, KR_E_SHAPE (of another model, method or KV type), and those of kr_store_open. */
kr_status kr_store_restore(kr_store *store, uint64_t client, const char *folder, const char *name,
                           uint64_t tokens_max, const kr_store_policy *policy, kr_kv_session **session,
                           uint8_t **blob, uint32_t *blob_bytes, kr_err *err);

#endif
