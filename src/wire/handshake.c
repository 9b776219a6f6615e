/* Nothing a stranger sends is kept or acted on before its proof holds; what it may send until then
 * is two messages of fixed size. */
#include "wire/handshake.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "wire/payload.h"

enum { VERSION_MIN = KR_MSG_VERSION, VERSION_MAX = KR_MSG_VERSION, ROLE_BYTES = 16 };

void kr_handshake_prove(const kr_handshake *h, kr_role role, uint8_t proof[KR_PROOF_BYTES])
{
    static const char roles[][ROLE_BYTES] = {"client", "node", "client data", "node data"};
    uint8_t text[5 + 2 + ROLE_BYTES + 2 * KR_NONCE_BYTES], *next = text;

    next = (uint8_t *)mempcpy(next, "karat", 5);
    next = (uint8_t *)mempcpy(next, &h->version, 2);
    next = (uint8_t *)mempcpy(next, roles[role], ROLE_BYTES);
    next = (uint8_t *)mempcpy(next, h->client_nonce, KR_NONCE_BYTES);
    memcpy(next, h->node_nonce, KR_NONCE_BYTES);
    KR_CHECK(gnutls_hmac_fast(GNUTLS_MAC_SHA256, h->key_bytes != 0 ? h->key : (const uint8_t *)"",
                              h->key_bytes, text, sizeof text, proof) == 0);
}

bool kr_handshake_check(const kr_handshake *h, kr_role role, const uint8_t proof[KR_PROOF_BYTES])
{
    uint8_t expected[KR_PROOF_BYTES];

    kr_handshake_prove(h, role, expected);
    return gnutls_memcmp(expected, proof, sizeof expected) == 0;
}

static kr_msg_hello own_hello(uint8_t nonce[KR_NONCE_BYTES])
{
    kr_msg_hello hello = {.version_min = VERSION_MIN, .version_max = VERSION_MAX};

    KR_CHECK(gnutls_rnd(GNUTLS_RND_RANDOM, nonce, KR_NONCE_BYTES) == 0);
    memcpy(hello.nonce, nonce, KR_NONCE_BYTES);
    snprintf(hello.build, sizeof hello.build, "%s", KR_VERSION);
    return hello;
}

/* The newest version both ends speak. */
static kr_status version_choose(const kr_msg_hello *peer, const char *who, uint16_t *version, kr_err *err)
{
    if (peer->version_min > VERSION_MAX || peer->version_max < VERSION_MIN)
        return kr_fail(
            err, KR_E_VERSION, "%s (karat %s) speaks wire versions %u to %u, this end (karat %s) %d to %d",
            who, peer->build, peer->version_min, peer->version_max, KR_VERSION, VERSION_MIN, VERSION_MAX);
    if (peer->features != 0)
        return kr_fail(err, KR_E_VERSION, "%s (karat %s) wants features %#x, this end (karat %s) has none",
                       who, peer->build, peer->features, KR_VERSION);
    *version = peer->version_max < VERSION_MAX ? peer->version_max : VERSION_MAX;
    return KR_OK;
}

/* Tells the peer why, unless it is the peer that went away or never spoke the protocol. */
static kr_status refuse(const kr_control *control, kr_status status, const kr_err *failure,
                        uint64_t deadline_ns)
{
    if (status == KR_E_VERSION || status == KR_E_AUTH)
        kr_control_send_error(control, failure, deadline_ns);
    return status;
}

kr_status kr_handshake_client(const kr_control *control, kr_handshake *h, kr_msg_welcome *welcome,
                              uint64_t deadline_ns, kr_err *err)
{
    const kr_msg_hello hello = own_hello(h->client_nonce);
    kr_control_message m;
    kr_msg_hello challenge;
    kr_msg_proof proof;
    kr_err failure = {0};
    kr_status status = kr_control_send(control, (kr_msg_header){.kind = KR_MSG_HELLO}, &hello, sizeof hello,
                                       deadline_ns, &failure);

    if (status == KR_OK)
        status = kr_control_expect(control, KR_MSG_CHALLENGE, &m, deadline_ns, &failure);
    if (status == KR_OK)
        status = kr_msg_hello_read(m.payload, m.header.payload_bytes, &challenge, &failure);
    if (status == KR_OK)
        status = version_choose(&challenge, "the node", &h->version, &failure);
    if (status == KR_OK) {
        memcpy(h->node_nonce, challenge.nonce, KR_NONCE_BYTES);
        if (!kr_handshake_check(h, KR_ROLE_NODE, challenge.proof))
            status = kr_fail(&failure, KR_E_AUTH,
                             "the keys of node %s and client differ; give both the same --key-file",
                             control->peer);
    }
    if (status == KR_OK) {
        kr_handshake_prove(h, KR_ROLE_CLIENT, proof.proof);
        status = kr_control_send(control, (kr_msg_header){.kind = KR_MSG_PROOF}, &proof, sizeof proof,
                                 deadline_ns, &failure);
    }
    if (status == KR_OK)
        status = kr_control_expect(control, KR_MSG_WELCOME, &m, deadline_ns, &failure);
    if (status == KR_OK)
        status = kr_msg_welcome_read(m.payload, m.header.payload_bytes, welcome, &failure);
    if (status != KR_OK && err != NULL)
        *err = failure;
    return status == KR_OK ? KR_OK : refuse(control, status, &failure, deadline_ns);
}

/* The node's half up to the moment it believes the client. */
static kr_status client_proves(const kr_control *control, kr_handshake *h, uint64_t deadline_ns, kr_err *err)
{
    kr_control_message m;
    kr_msg_hello hello, challenge;
    kr_msg_proof proof;
    kr_status status = kr_control_expect(control, KR_MSG_HELLO, &m, deadline_ns, err);

    if (status == KR_OK)
        status = kr_msg_hello_read(m.payload, m.header.payload_bytes, &hello, err);
    if (status == KR_OK)
        status = version_choose(&hello, "the client", &h->version, err);
    if (status != KR_OK)
        return status;
    memcpy(h->client_nonce, hello.nonce, KR_NONCE_BYTES);
    challenge = own_hello(h->node_nonce);
    kr_handshake_prove(h, KR_ROLE_NODE, challenge.proof);
    status = kr_control_send(control, (kr_msg_header){.kind = KR_MSG_CHALLENGE}, &challenge, sizeof challenge,
                             deadline_ns, err);
    if (status == KR_OK)
        status = kr_control_expect(control, KR_MSG_PROOF, &m, deadline_ns, err);
    if (status == KR_OK)
        status = kr_msg_proof_read(m.payload, m.header.payload_bytes, &proof, err);
    if (status == KR_OK && !kr_handshake_check(h, KR_ROLE_CLIENT, proof.proof))
        status = kr_fail(err, KR_E_AUTH, "the client's key is not the node's");
    return status;
}

kr_status kr_handshake_node(const kr_control *control, kr_handshake *h, const kr_msg_welcome *welcome,
                            uint64_t deadline_ns, kr_err *err)
{
    kr_err failure = {0};
    kr_status status = client_proves(control, h, deadline_ns, &failure);

    if (status == KR_OK)
        status = kr_control_send(control, (kr_msg_header){.kind = KR_MSG_WELCOME, .epoch = welcome->epoch},
                                 welcome, sizeof *welcome, deadline_ns, &failure);
    if (status != KR_OK && err != NULL)
        *err = failure;
    return status == KR_OK ? KR_OK : refuse(control, status, &failure, deadline_ns);
}
