#include "store/store.h"
kr_status kr_store_save(kr_store *store, kr_kv_session *session, const char *folder, const char *name,
                        const uint8_t *blob, uint32_t blob_bytes, kr_err *err)
{ (void)store;(void)session;(void)folder;(void)name;(void)blob;(void)blob_bytes; return kr_fail(err, KR_E_UNSUPPORTED, "SAVE is not available yet"); }
kr_status kr_store_restore(kr_store *store, uint64_t client, const char *folder, const char *name,
                           const kr_store_policy *policy, kr_kv_session **session, uint8_t **blob,
                           uint32_t *blob_bytes, kr_err *err)
{ (void)store;(void)client;(void)folder;(void)name;(void)policy;(void)session;(void)blob;(void)blob_bytes; return kr_fail(err, KR_E_UNSUPPORTED, "RESTORE is not available yet"); }
