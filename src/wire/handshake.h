/* The handshake on a fresh control socket: both ends prove that they hold the pre-shared key before
 * anything else is said.
 *
 *   client                                   node
 *   HELLO     versions, features, nonce  ->
 *                                        <-  CHALLENGE  version, nonce, node's proof
 *   PROOF     client's proof             ->
 *                                        <-  WELCOME    epoch, devices, limits
 *
 * proof(role) = HMAC-SHA256(key, "karat" || version u16 || role || client nonce || node nonce), role
 * a text of 16 bytes, NUL-padded. Roles differ, so no proof can be sent back as another. An absent
 * key is the empty key. Either end answers a refusal with ERROR and closes. */
#ifndef KR_WIRE_HANDSHAKE_H
#define KR_WIRE_HANDSHAKE_H

#include "wire/control.h"

/* What both ends share once the handshake is done. */
typedef struct {
    const uint8_t *key; /* [key_bytes], the caller's; NULL with 0 bytes */
    size_t key_bytes;
    uint16_t version;
    uint8_t client_nonce[KR_NONCE_BYTES], node_nonce[KR_NONCE_BYTES];
} kr_handshake;

typedef enum { KR_ROLE_CLIENT, KR_ROLE_NODE, KR_ROLE_CLIENT_DATA, KR_ROLE_NODE_DATA } kr_role;

void kr_handshake_prove(const kr_handshake *handshake, kr_role role, uint8_t proof[KR_PROOF_BYTES]);
/* Constant-time. */
bool kr_handshake_check(const kr_handshake *handshake, kr_role role, const uint8_t proof[KR_PROOF_BYTES]);

/* handshake holds the key; the rest is filled. KR_E_AUTH, KR_E_VERSION (both versions named),
 * KR_E_FORMAT, KR_E_LOST, KR_E_DEADLINE. */
kr_status kr_handshake_client(const kr_control *control, kr_handshake *handshake, kr_msg_welcome *welcome,
                              uint64_t deadline_ns, kr_err *err);
kr_status kr_handshake_node(const kr_control *control, kr_handshake *handshake, const kr_msg_welcome *welcome,
                            uint64_t deadline_ns, kr_err *err);

#endif
