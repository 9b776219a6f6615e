/* Sessions: the token log on the compute side and the handles of its pages on memory nodes. */
#include <string.h>

#include "base/check.h"
#include "engine/inside.h"

static kr_status too_long(const kr_engine *engine, uint64_t tokens, uint64_t growth, kr_err *err)
{
    return kr_fail(
        err, KR_E_LIMIT,
        "context over the limit: %llu prompt tokens and %llu to generate make %llu, the context holds %llu",
        (unsigned long long)tokens, (unsigned long long)growth, (unsigned long long)(tokens + growth),
        (unsigned long long)engine->config.context_max);
}

static kr_status take_slot(kr_engine *engine, uint64_t limit, kr_session **out, kr_err *err)
{
    kr_session *session = engine->session;
    while (session < engine->session + engine->config.sessions_max && session->open)
        session++;
    if (session == engine->session + engine->config.sessions_max)
        return kr_fail(err, KR_E_FULL, "all %u sessions of this engine are open",
                       engine->config.sessions_max);
    const uint64_t pages = limit / KR_PAGE_TOKENS;
    uint32_t *token = kr_alloc(limit * sizeof *token);
    kr_hash128 *hash = kr_alloc((pages + 1) * sizeof *hash);
    uint8_t *state = engine->state_bytes != 0 ? kr_alloc(engine->state_bytes) : NULL;
    if (token == NULL || hash == NULL || (state == NULL && engine->state_bytes != 0)) {
        kr_free(token);
        kr_free(hash);
        kr_free(state);
        return kr_fail(err, KR_E_MEMORY, "no memory for a log of %llu tokens", (unsigned long long)limit);
    }
    *session = (kr_session){.engine = engine,
                            .number = (uint32_t)(session - engine->session),
                            .open = true,
                            .token = token,
                            .page_hash = hash,
                            .project_state = state,
                            .limit = limit,
                            .micro_batch = UINT32_MAX};
    *out = session;
    return KR_OK;
}

static void free_slot(kr_session *session)
{
    kr_free(session->token);
    kr_free(session->page_hash);
    kr_free(session->project_state);
    *session = (kr_session){.engine = session->engine, .number = session->number};
}

/* running[] stays ascending by number. */
static void enlist(kr_engine *engine, kr_session *session)
{
    uint32_t at = engine->running_count++;
    for (; at > 0 && engine->running[at - 1]->number > session->number; at--)
        engine->running[at] = engine->running[at - 1];
    engine->running[at] = session;
    kr_place_micro_batches(engine);
}

static void delist(kr_engine *engine, const kr_session *session)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < engine->running_count; i++)
        if (engine->running[i] != session)
            engine->running[kept++] = engine->running[i];
    engine->running_count = kept;
    kr_place_micro_batches(engine);
}

/* Extends the chain over whole pages of the first tokens of the log. */
static uint32_t hash_pages(kr_session *session, uint64_t tokens)
{
    const uint64_t pages = tokens / KR_PAGE_TOKENS;
    for (; session->pages_hashed < pages; session->pages_hashed++) {
        const uint64_t at = session->pages_hashed;
        const kr_hash128 previous = at == 0 ? (kr_hash128){0, 0} : session->page_hash[at - 1];
        session->page_hash[at] = kr_hash128_link(previous, session->token + at * KR_PAGE_TOKENS,
                                                 KR_PAGE_TOKENS * sizeof *session->token);
    }
    return (uint32_t)pages;
}

/* blob, if any, points into the reply. */
static kr_status read_opened(const kr_peer *peer, const kr_message *reply, uint64_t tokens_max,
                             kr_msg_opened *opened, const uint8_t **blob, kr_err *err)
{
    kr_status status = kr_msg_opened_read(reply->payload, reply->header.payload_bytes, opened, blob, err);
    if (status != KR_OK)
        return status;
    if (opened->device >= peer->node.welcome.devices || opened->tokens > tokens_max)
        return kr_fail(err, KR_E_FORMAT,
                       "memory node %s opened a session on device %u of %u with %llu tokens of %llu",
                       kr_peer_name(peer), opened->device, peer->node.welcome.devices,
                       (unsigned long long)opened->tokens, (unsigned long long)tokens_max);
    return KR_OK;
}

/* OPEN and RESTORE. Another client may have configured the node while it was idle: it is told again. */
static kr_status ask_session(kr_engine *engine, kr_peer *peer, kr_msg_kind kind, const kr_piece *pieces,
                             uint32_t count, kr_message *reply, kr_err *err)
{
    kr_status status = kr_peer_call(peer, kind, 0, pieces, count, kind, reply, err);
    if (status != KR_E_STALE || peer->down.status != KR_OK)
        return status;
    status = kr_engine_configure(engine, peer, err);
    return status == KR_OK ? kr_peer_call(peer, kind, 0, pieces, count, kind, reply, err) : status;
}

static kr_status open_on(kr_session *session, kr_peer *peer, uint32_t prefix_pages, kr_msg_opened *opened,
                         kr_err *err)
{
    const kr_msg_open open = {
        .tokens_max = session->limit, .seed = session->sampling.seed, .prefix_pages = prefix_pages};
    const kr_piece pieces[] = {{&open, sizeof open}, {session->page_hash, prefix_pages * sizeof(kr_hash128)}};
    kr_message reply;
    kr_status status = ask_session(session->engine, peer, KR_MSG_OPEN, pieces, 2, &reply, err);
    if (status != KR_OK)
        return status;
    const uint8_t *blob;
    status = read_opened(peer, &reply, (uint64_t)prefix_pages * KR_PAGE_TOKENS, opened, &blob, err);
    kr_peer_release(peer, &reply);
    return status;
}

/* TRIM, CLOSE, END_PREFILL: one struct, a DONE back. */
static kr_status tell(kr_peer *peer, kr_msg_kind kind, uint32_t device, uint64_t handle, uint64_t tokens,
                      const kr_hash128 *hash, uint32_t pages, kr_err *err)
{
    const kr_msg_session body = {.session = handle, .tokens = tokens, .prefix_pages = pages};
    const kr_piece pieces[] = {{&body, sizeof body}, {hash, pages * sizeof *hash}};
    kr_message reply;
    kr_status status = kr_peer_call(peer, kind, device, pieces, 2, KR_MSG_DONE, &reply, err);
    if (status == KR_OK)
        kr_peer_release(peer, &reply);
    return status;
}

/* indices-only: the KV lives beside the compute side; both nodes must hold the same tokens. */
static kr_status open_gather(kr_session *session, uint32_t prefix_pages, kr_msg_opened *opened, kr_err *err)
{
    kr_peer *gather = session->engine->gather;
    kr_msg_opened local;
    kr_status status = open_on(session, gather, prefix_pages, &local, err);
    if (status != KR_OK)
        return status;
    session->gather_handle = local.session;
    if (local.tokens > opened->tokens)
        return tell(gather, KR_MSG_TRIM, local.device, local.session, opened->tokens, NULL, 0, err);
    if (local.tokens == opened->tokens)
        return KR_OK;
    opened->tokens = local.tokens;
    return tell(session->peer, KR_MSG_TRIM, opened->device, opened->session, local.tokens, NULL, 0, err);
}

static void close_handles(kr_session *session)
{
    if (session->handle != 0)
        (void)tell(session->peer, KR_MSG_CLOSE, session->device, session->handle, session->kv_tokens, NULL, 0,
                   NULL);
    if (session->gather_handle != 0)
        (void)tell(session->engine->gather, KR_MSG_CLOSE, 0, session->gather_handle, session->kv_tokens, NULL,
                   0, NULL);
}

static kr_status check_tokens(const kr_engine *engine, const uint32_t *tokens, uint64_t count, kr_err *err)
{
    for (uint64_t i = 0; i < count; i++)
        if (tokens[i] >= engine->model.vocab)
            return kr_fail(err, KR_E_ARG, "token %u at %llu is not in the vocabulary of %u", tokens[i],
                           (unsigned long long)i, engine->model.vocab);
    return KR_OK;
}

kr_status kr_session_open(kr_engine *engine, const kr_session_request *request, kr_session **out, kr_err *err)
{
    kr_session *session;
    kr_status status = kr_sampling_check(&request->sampling, err);
    if (status != KR_OK)
        return status;
    if (request->count == 0)
        return kr_fail(err, KR_E_ARG, "empty prompt: at least one token is needed");
    if (request->count > engine->config.context_max ||
        request->growth > engine->config.context_max - request->count)
        return too_long(engine, request->count, request->growth, err);
    status = check_tokens(engine, request->tokens, request->count, err);
    if (status == KR_OK)
        status = take_slot(engine, request->count + request->growth, &session, err);
    if (status != KR_OK)
        return status;
    memcpy(session->token, request->tokens, request->count * sizeof *session->token);
    session->tokens = request->count;
    session->sampling = request->sampling;

    /* The last token is always run: its logits are wanted. */
    const uint32_t pages = hash_pages(session, request->count - 1);
    kr_msg_opened opened;
    status = kr_place_session(engine, session, &session->peer, err);
    if (status == KR_OK)
        status = open_on(session, session->peer, pages, &opened, err);
    if (status == KR_OK) {
        session->handle = opened.session;
        session->device = opened.device;
        if (engine->gather != NULL)
            status = open_gather(session, pages, &opened, err);
    }
    if (status != KR_OK) {
        close_handles(session);
        free_slot(session);
        return status;
    }
    session->kv_tokens = session->reused = opened.tokens;
    enlist(engine, session);
    *out = session;
    return KR_OK;
}

void kr_session_close(kr_session *session)
{
    if (session == NULL)
        return;
    KR_CHECK(session->open);
    close_handles(session);
    delist(session->engine, session);
    free_slot(session);
}

/* A failed session answers with its first cause. */
static kr_status usable(const kr_session *session, kr_err *err)
{
    KR_CHECK(session->open);
    if (session->failed.status != KR_OK && err != NULL)
        *err = session->failed;
    return session->failed.status;
}

kr_status kr_session_append(kr_session *session, const uint32_t *tokens, uint64_t count, kr_err *err)
{
    kr_status status = usable(session, err);
    if (status == KR_OK)
        status = check_tokens(session->engine, tokens, count, err);
    if (status != KR_OK)
        return status;
    if (count > session->limit - session->tokens)
        return kr_fail(
            err, KR_E_LIMIT,
            "context over the limit: the session holds %llu tokens and %llu follow, its limit is %llu",
            (unsigned long long)session->tokens, (unsigned long long)count,
            (unsigned long long)session->limit);
    memcpy(session->token + session->tokens, tokens, count * sizeof *tokens);
    session->tokens += count;
    return KR_OK;
}

kr_status kr_session_end_prefill(kr_session *session, kr_err *err)
{
    kr_status status = usable(session, err);
    if (status != KR_OK)
        return status;
    const uint32_t pages = hash_pages(session, session->kv_tokens);
    status = tell(session->peer, KR_MSG_END_PREFILL, session->device, session->handle, session->kv_tokens,
                  session->page_hash, pages, err);
    if (status == KR_OK)
        kr_place_note(session->engine, session, pages);
    if (status == KR_OK && session->gather_handle != 0)
        status = tell(session->engine->gather, KR_MSG_END_PREFILL, 0, session->gather_handle,
                      session->kv_tokens, session->page_hash, pages, err);
    return status;
}

const uint32_t *kr_session_tokens(const kr_session *session, uint64_t *count)
{
    *count = session->tokens;
    return session->token;
}

uint64_t kr_session_kv_tokens(const kr_session *session) { return session->kv_tokens; }
uint64_t kr_session_reused_tokens(const kr_session *session) { return session->reused; }
uint64_t kr_session_limit(const kr_session *session) { return session->limit; }
uint32_t kr_session_number(const kr_session *session) { return session->number; }
uint32_t kr_session_micro_batch(const kr_session *session) { return session->micro_batch; }

static kr_status fill_file(kr_msg_file *file, const char *name, kr_err *err)
{
    const size_t bytes = strlen(name);
    if (bytes == 0 || bytes >= sizeof file->name)
        return kr_fail(err, KR_E_ARG, "a save name has 1 to %zu characters", sizeof file->name - 1);
    memcpy(file->name, name, bytes);
    return KR_OK;
}

kr_status kr_session_save(kr_session *session, const char *name, kr_err *err)
{
    kr_msg_file file = {.session = session->handle};
    kr_status status = usable(session, err);
    if (status == KR_OK && session->gather_handle != 0)
        status = kr_fail(err, KR_E_UNSUPPORTED,
                         "saving needs the KV on the memory node; placement is indices-only");
    if (status == KR_OK)
        status = fill_file(&file, name, err);
    if (status != KR_OK)
        return status;
    const uint64_t log = session->tokens * sizeof *session->token, state = session->engine->state_bytes;
    file.client_bytes = (uint32_t)(log + state);
    const kr_piece pieces[] = {{&file, sizeof file}, {session->project_state, state}, {session->token, log}};
    kr_message reply;
    status = kr_peer_call(session->peer, KR_MSG_SAVE, session->device, pieces, 3, KR_MSG_DONE, &reply, err);
    if (status == KR_OK)
        kr_peer_release(session->peer, &reply);
    return status;
}

/* A session of what a node restored: the states of project, then the log, whose tokens beyond the KV are
 * pending again. */
static kr_status adopt(kr_engine *engine, kr_peer *peer, const kr_msg_file *file, const kr_msg_opened *opened,
                       const uint8_t *blob, kr_session **out, kr_err *err)
{
    const uint64_t state = engine->state_bytes;
    const uint64_t log = opened->client_bytes < state ? 0 : opened->client_bytes - state;
    const uint64_t tokens = log / sizeof(uint32_t);
    kr_session *session;
    kr_status status = KR_OK;
    if (log % sizeof(uint32_t) != 0 || tokens < opened->tokens || tokens == 0)
        status = kr_fail(err, KR_E_FORMAT, "%s holds KV of %llu tokens and a log of %llu bytes", file->name,
                         (unsigned long long)opened->tokens, (unsigned long long)log);
    if (status == KR_OK && tokens > file->tokens_max)
        status = kr_fail(err, KR_E_LIMIT, "%s holds %llu tokens; the session may have %u", file->name,
                         (unsigned long long)tokens, file->tokens_max);
    if (status == KR_OK)
        status = take_slot(engine, file->tokens_max, &session, err);
    if (status != KR_OK)
        return status;
    if (state != 0)
        memcpy(session->project_state, blob, state);
    memcpy(session->token, blob + state, log);
    status = check_tokens(engine, session->token, tokens, err);
    if (status != KR_OK) {
        free_slot(session);
        return status;
    }
    session->tokens = tokens;
    session->kv_tokens = session->reused = opened->tokens;
    session->peer = peer;
    session->handle = opened->session;
    session->device = opened->device;
    *out = session;
    return KR_OK;
}

static kr_status restore_on(kr_engine *engine, kr_peer *peer, const kr_msg_file *file, kr_session **out,
                            kr_err *err)
{
    const kr_piece piece = {file, sizeof *file};
    const uint8_t *blob;
    kr_message reply;
    kr_msg_opened opened;
    kr_status status = ask_session(engine, peer, KR_MSG_RESTORE, &piece, 1, &reply, err);
    if (status != KR_OK)
        return status;
    status = read_opened(peer, &reply, engine->config.context_max, &opened, &blob, err);
    if (status == KR_OK) {
        status = adopt(engine, peer, file, &opened, blob, out, err);
        if (status != KR_OK)
            (void)tell(peer, KR_MSG_CLOSE, opened.device, opened.session, opened.tokens, NULL, 0, NULL);
    }
    kr_peer_release(peer, &reply);
    return status;
}

kr_status kr_session_restore(kr_engine *engine, const char *name, uint64_t limit, const kr_sampling *sampling,
                             kr_session **out, kr_err *err)
{
    kr_msg_file file = {.tokens_max = (uint32_t)limit};
    kr_status status = kr_sampling_check(sampling, err);
    if (status == KR_OK && engine->gather != NULL)
        status = kr_fail(err, KR_E_UNSUPPORTED,
                         "restoring needs the KV on the memory node; placement is indices-only");
    if (status == KR_OK && (limit == 0 || limit > engine->config.context_max))
        status = kr_fail(err, KR_E_LIMIT,
                         "a session of %llu tokens is not in 1..%llu, what the context holds",
                         (unsigned long long)limit, (unsigned long long)engine->config.context_max);
    if (status == KR_OK)
        status = fill_file(&file, name, err);
    if (status != KR_OK)
        return status;
    for (uint32_t i = 0; i < engine->config.node_count; i++) {
        status = restore_on(engine, &engine->peer[i], &file, out, err);
        if (status != KR_E_NOT_FOUND)
            break;
    }
    if (status != KR_OK)
        return status;
    (*out)->sampling = *sampling;
    enlist(engine, *out);
    return KR_OK;
}
