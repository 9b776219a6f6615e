/* Page tables of sessions inside the store: promising, taking, copying and giving back pages. All
 * with the store's lock held unless said. */
#ifndef KR_STORE_PAGES_H
#define KR_STORE_PAGES_H

#include "store/store.h"

/* A session without pages, or NULL when out of memory; no lock needed. */
kr_kv_session *kr_kv_session_new(const kr_geometry *geometry, uint64_t tokens_max, uint64_t seed);
void kr_kv_session_free(kr_kv_session *session);

/* Entry of the prefix index for page number page of a hash chain, or KR_NO_NAME. */
uint32_t kr_prefix_page(const kr_store *store, const uint8_t *prefix, uint64_t page);
/* Puts a held page into the session's table. */
void kr_pages_set(kr_store *store, kr_kv_session *session, uint32_t group, uint64_t page, kr_page_id id);
/* KR_E_FULL when the policy found no device for the session. */
kr_status kr_pages_check_home(const kr_store *store, const kr_kv_session *session, kr_err *err);
/* Promises what the session may need beyond the pages it holds, home first. KR_E_FULL with the
 * numbers; then nothing is promised. */
kr_status kr_pages_promise(kr_store *store, kr_kv_session *session, const kr_store_policy *policy,
                           kr_err *err);
/* Takes hold of the pages of a prefix that was found under the same lock. KR_E_FULL: give back. */
kr_status kr_pages_adopt(kr_store *store, kr_kv_session *session, const uint8_t *prefix, uint64_t pages,
                         kr_err *err);
/* Takes the lock: gives an empty session the pages [first, end) of a group, for a restore. */
kr_status kr_pages_begin_at(kr_store *store, kr_kv_session *session, uint32_t group, uint64_t first,
                            uint64_t end, kr_err *err);
/* Takes the next page of a group from the session's promise, zero-filled. */
kr_status kr_pages_take(kr_store *store, kr_kv_session *session, uint32_t group, kr_page_id *id, kr_err *err);
/* Releases every page, last first so that the cache loses the tail of a prefix before its head,
 * and the rest of the promise. */
void kr_pages_give_back(kr_store *store, kr_kv_session *session);

#endif
