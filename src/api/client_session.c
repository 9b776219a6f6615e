/* Sessions of a client: a handle on the node, and how many tokens each layer has there. */
#include <string.h>

#include "api/client.h"

static kr_status usable(const karat_session *session, kr_err *err)
{
    if (session == NULL)
        return kr_fail(err, KR_E_ARG, "session is null");
    return kr_client_usable(session->client, err);
}

/* OPEN; *opened is the node's answer, checked. */
static kr_status open_on_node(karat_client *client, uint64_t tokens_max, uint64_t seed, kr_msg_opened *opened,
                              kr_err *err)
{
    const kr_msg_open open = {.tokens_max = tokens_max, .seed = seed};
    const kr_piece piece = {&open, sizeof open};
    const uint8_t *blob;
    kr_message reply;
    kr_status status = kr_peer_call(&client->peer, KR_MSG_OPEN, 0, &piece, 1, KR_MSG_OPEN, &reply, err);

    if (status != KR_OK)
        return status;
    status = kr_msg_opened_read(reply.payload, reply.header.payload_bytes, opened, &blob, err);
    kr_peer_release(&client->peer, &reply);
    if (status == KR_OK && (opened->device >= client->peer.node.welcome.devices || opened->tokens != 0))
        status = kr_fail(err, KR_E_FORMAT,
                         "memory node %s opened a session on device %u of %u with %llu tokens",
                         kr_peer_name(&client->peer), opened->device, client->peer.node.welcome.devices,
                         (unsigned long long)opened->tokens);
    return status;
}

/* Another client may have configured the node while it was idle: it is told again. */
static kr_status open_agreed(karat_client *client, uint64_t tokens_max, uint64_t seed, kr_msg_opened *opened,
                             kr_err *err)
{
    kr_status status = open_on_node(client, tokens_max, seed, opened, err);

    if (status != KR_E_STALE)
        return status;
    status = kr_client_send_plan(client, &client->plan, err);
    return status == KR_OK ? open_on_node(client, tokens_max, seed, opened, err) : status;
}

static kr_status session_open(karat_client *client, uint64_t tokens_max, uint64_t seed, karat_session **out,
                              kr_err *err)
{
    kr_msg_opened opened;
    kr_status status = kr_client_usable(client, err);

    if (status != KR_OK)
        return status;
    if (!client->configured || out == NULL)
        return kr_fail(err, KR_E_ARG, "open needs a configured client and a place for the session");
    if (tokens_max == 0 || tokens_max > client->plan.configure.context_max)
        return kr_fail(err, KR_E_LIMIT, "session of %llu tokens; 1 to context_max, %llu",
                       (unsigned long long)tokens_max,
                       (unsigned long long)client->plan.configure.context_max);
    karat_session *session = kr_alloc(sizeof *session);
    uint64_t *tokens = kr_alloc(client->plan.configure.layers * sizeof *tokens);
    if (session == NULL || tokens == NULL)
        status = kr_fail(err, KR_E_MEMORY, "no memory for a session");
    else
        status = open_agreed(client, tokens_max, seed, &opened, err);
    if (status != KR_OK) {
        kr_free(session);
        kr_free(tokens);
        return status;
    }
    *session = (karat_session){.client = client,
                               .next = client->sessions,
                               .handle = opened.session,
                               .tokens_max = tokens_max,
                               .device = opened.device,
                               .tokens = tokens};
    *out = client->sessions = session;
    return KR_OK;
}

karat_status karat_session_open(karat_client *client, uint64_t tokens_max, uint64_t seed,
                                karat_session **session, karat_error *error)
{
    kr_err err;
    return kr_api_end(session_open(client, tokens_max, seed, session, &err), &err, error);
}

/* TRIM, CLOSE, END_PREFILL: one struct, a DONE back. */
static kr_status tell(const karat_session *session, kr_msg_kind kind, uint64_t tokens, kr_err *err)
{
    const kr_msg_session body = {.session = session->handle, .tokens = tokens};
    const kr_piece piece = {&body, sizeof body};
    kr_peer *peer = &session->client->peer;
    kr_message reply;
    const kr_status status = kr_peer_call(peer, kind, session->device, &piece, 1, KR_MSG_DONE, &reply, err);

    if (status == KR_OK)
        kr_peer_release(peer, &reply);
    return status;
}

void kr_client_free_session(karat_session *session)
{
    karat_session **at = &session->client->sessions;

    while (*at != session)
        at = &(*at)->next;
    *at = session->next;
    kr_free(session->tokens);
    kr_free(session);
}

karat_status karat_session_close(karat_session *session, karat_error *error)
{
    kr_err err;

    if (session == NULL)
        return KARAT_OK;
    kr_status status = usable(session, &err);
    if (status == KR_OK)
        status = tell(session, KR_MSG_CLOSE, session->tokens[0], &err);
    kr_client_free_session(session);
    return kr_api_end(status, &err, error);
}

uint64_t karat_session_tokens(const karat_session *session, uint32_t layer)
{
    return session != NULL && layer < session->client->plan.configure.layers ? session->tokens[layer] : 0;
}

static kr_status end_prefill(karat_session *session, kr_err *err)
{
    kr_status status = usable(session, err);

    if (status != KR_OK)
        return status;
    for (uint32_t l = 1; l < session->client->plan.configure.layers; l++)
        if (session->tokens[l] != session->tokens[0])
            return kr_fail(err, KR_E_ARG, "end of prefill with %llu tokens in layer 0 and %llu in layer %u",
                           (unsigned long long)session->tokens[0], (unsigned long long)session->tokens[l], l);
    return tell(session, KR_MSG_END_PREFILL, session->tokens[0], err);
}

karat_status karat_session_end_prefill(karat_session *session, karat_error *error)
{
    kr_err err;
    return kr_api_end(end_prefill(session, &err), &err, error);
}

static kr_status trim(karat_session *session, uint64_t tokens, kr_err *err)
{
    kr_status status = usable(session, err);

    if (status == KR_OK)
        status = tell(session, KR_MSG_TRIM, tokens, err);
    if (status != KR_OK)
        return status;
    for (uint32_t l = 0; l < session->client->plan.configure.layers; l++)
        session->tokens[l] = session->tokens[l] < tokens ? session->tokens[l] : tokens;
    return KR_OK;
}

karat_status karat_session_trim(karat_session *session, uint64_t tokens, karat_error *error)
{
    kr_err err;
    return kr_api_end(trim(session, tokens, &err), &err, error);
}
