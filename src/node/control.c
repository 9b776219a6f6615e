/* Control messages: sessions, statistics, files. */
#include <string.h>

#include "node/state.h"

/* ---- sessions ---- */

static kr_status answer_opened(const kr_node *node, node_connection *connection, const kr_message *m,
                               const kr_kv_session *s, const uint8_t *blob, uint32_t blob_bytes, kr_err *err)
{
    const kr_msg_opened opened = {.session = s->handle,
                                  .tokens = kr_kv_session_tokens(&node->store, s),
                                  .device = s->home,
                                  .client_bytes = blob_bytes};
    const kr_piece pieces[] = {{&opened, sizeof opened}, {blob, blob_bytes}};

    return node_reply(connection, m, (kr_msg_kind)m->header.kind, 0, pieces, 2, err);
}

static kr_status on_open(kr_node *node, node_connection *connection, const kr_message *m, kr_err *err)
{
    const kr_store_policy policy = node_policy(node);
    kr_open_request request = {.client = connection->client};
    kr_kv_session *session;
    kr_msg_open open;
    kr_status status = kr_msg_open_read(m->payload, m->header.payload_bytes, &open, &request.prefix, err);

    if (status == KR_OK)
        status = node_check_agreed(node, connection, err);
    if (status != KR_OK)
        return status;
    request.tokens_max = open.tokens_max;
    request.seed = open.seed;
    request.prefix_pages = open.prefix_pages;
    status = kr_store_open(&node->store, &request, &policy, &session, err);
    return status == KR_OK ? answer_opened(node, connection, m, session, NULL, 0, err) : status;
}

/* The methods' work at the end of a prefill, in every layer that has any. */
static kr_status end_prefill(kr_node *node, kr_kv_session *s, kr_err *err)
{
    const kr_geometry *g = &node->store.geometry;
    kr_status status = KR_OK;

    for (uint32_t l = 0; l < g->layers && status == KR_OK; l++) {
        const kr_view view = kr_kv_session_view(&node->store, s, l, s->tokens[l]);
        if (g->method[l]->end_prefill != NULL && !g->plan[l].dense)
            status = g->method[l]->end_prefill(&view, &g->config[l], &node->ops,
                                               node_scratch(&node->device[s->home], 0), err);
    }
    return status;
}

static kr_status on_session(kr_node *node, node_connection *connection, const kr_message *m, kr_err *err)
{
    const uint8_t *prefix = NULL;
    kr_kv_session *s;
    kr_msg_session body;
    kr_status status = kr_msg_session_read(m->payload, m->header.payload_bytes, &body, &prefix, err);

    if (status == KR_OK)
        status = kr_store_find(&node->store, body.session, connection->client, &s, err);
    if (status != KR_OK)
        return status;
    if (m->header.kind == KR_MSG_TRIM) {
        status = kr_store_trim(&node->store, s, body.tokens, err);
    } else if (m->header.kind == KR_MSG_CLOSE) {
        kr_store_publish(&node->store, s, prefix, body.prefix_pages);
        kr_store_close(&node->store, s);
    } else if (body.tokens != kr_kv_session_tokens(&node->store, s)) {
        status = kr_fail(err, KR_E_ARG, "END_PREFILL at %llu tokens; the session has %llu",
                         (unsigned long long)body.tokens,
                         (unsigned long long)kr_kv_session_tokens(&node->store, s));
    } else {
        pthread_mutex_lock(&node->device[s->home].work); /* of its scratch */
        status = end_prefill(node, s, err);
        pthread_mutex_unlock(&node->device[s->home].work);
        if (status == KR_OK)
            status = kr_kv_session_boundary(s, body.tokens, false, err);
        if (status == KR_OK)
            kr_store_publish(&node->store, s, prefix, body.prefix_pages);
    }
    return status == KR_OK ? node_reply(connection, m, KR_MSG_DONE, 0, NULL, 0, err) : status;
}

void node_close_sessions(kr_node *node, uint64_t client)
{
    if (!node->configured)
        return;
    for (uint32_t d = 0; d < node->config.devices; d++) {
        pthread_mutex_lock(&node->device[d].work);
        node_pending_drop(&node->device[d], client);
        pthread_mutex_unlock(&node->device[d].work);
    }
    for (uint32_t i = 0; i < node->store.sessions_max; i++) {
        kr_kv_session *s = kr_store_session_at(&node->store, i, client);
        if (s != NULL)
            kr_store_close(&node->store, s);
    }
}

uint32_t node_home_of(kr_node *node, node_connection *connection, const kr_message *m)
{
    uint64_t handle;

    if (m->header.payload_bytes < sizeof handle)
        return UINT32_MAX;
    memcpy(&handle, m->payload, sizeof handle); /* the first field of every session-bound message */
    return kr_store_home(&node->store, handle, connection->client);
}

/* ---- files ---- */

static kr_status on_file(kr_node *node, node_connection *connection, const kr_message *m, kr_err *err)
{
    const kr_store_policy policy = node_policy(node);
    const uint8_t *blob = NULL;
    uint8_t *stored = NULL;
    uint32_t stored_bytes = 0;
    kr_kv_session *s;
    kr_msg_file file;
    kr_status status = kr_msg_file_read(m->payload, m->header.payload_bytes, &file, &blob, err);

    if (status != KR_OK)
        return status;
    if (node->config.save_folder == NULL)
        return kr_fail(err, KR_E_UNSUPPORTED, "this node has no save folder; start it with one");
    if (m->header.kind == KR_MSG_SAVE) {
        status = kr_store_find(&node->store, file.session, connection->client, &s, err);
        if (status == KR_OK)
            status = kr_store_save(&node->store, s, node->save_folder, file.name, blob, file.client_bytes,
                                   err);
        return status == KR_OK ? node_reply(connection, m, KR_MSG_DONE, 0, NULL, 0, err) : status;
    }
    status = node_check_agreed(node, connection, err);
    if (status != KR_OK)
        return status;
    status = kr_store_restore(&node->store, connection->client, node->save_folder, file.name, file.tokens_max,
                              &policy, &s, &stored, &stored_bytes, err);
    if (status != KR_OK)
        return status;
    status = answer_opened(node, connection, m, s, stored, stored_bytes, err);
    kr_free(stored);
    return status;
}

/* ---- STATS ---- */

static kr_msg_device_stats device_stats(const kr_node *node, uint32_t d)
{
    const node_device *device = &node->device[d];
    kr_msg_device_stats s = {.busy_ns = device->busy_ns,
                             .pool_bytes = node->config.pool_bytes,
                             .workspace_bytes = device->workspace_bytes +
                                                device->scratch_bytes * node->config.threads_per_device};

    for (uint32_t i = 0; i < KR_STAGES; i++)
        s.stage_ns[i] = device->stage_ns[i];
    if (!node->configured)
        return s;
    s.spilled_pages = node->store.device[d].spilled;
    for (uint32_t g = 0; g < node->store.geometry.groups; g++) {
        const kr_pool *pool = &node->store.device[d].pool[g];
        s.pages_total[g] = pool->total;
        s.pages_used[g] = pool->used;
        s.pages_cached[g] = pool->cached;
        s.page_bytes[g] = pool->page_bytes;
    }
    return s;
}

static kr_status on_stats(kr_node *node, node_connection *connection, const kr_message *m, kr_err *err)
{
    kr_msg_device_stats device[KR_NODE_DEVICES_MAX];
    kr_msg_stats stats = {.devices = node->config.devices,
                          .messages = node->messages,
                          .bytes_in = node->bytes_in,
                          .bytes_out = node->bytes_out};

    if (m->header.payload_bytes != 0)
        return kr_fail(err, KR_E_FORMAT, "STATS carries %llu bytes; none expected",
                       (unsigned long long)m->header.payload_bytes);
    if (node->configured)
        pthread_mutex_lock(&node->store.lock);
    for (uint32_t d = 0; d < node->config.devices; d++) {
        device[d] = device_stats(node, d);
        stats.nan_scores += __atomic_load_n(&node->device[d].nan_scores, __ATOMIC_RELAXED);
    }
    if (node->configured) {
        stats.sessions = node->store.sessions;
        stats.prefix_hits_tokens = node->store.prefix_hits_tokens;
        pthread_mutex_unlock(&node->store.lock);
    }
    const kr_piece pieces[] = {{&stats, sizeof stats}, {device, node->config.devices * sizeof *device}};
    return node_reply(connection, m, KR_MSG_STATS, 0, pieces, 2, err);
}

/* ---- all of them ---- */

kr_status node_control(kr_node *node, node_connection *connection, const kr_message *m, kr_err *err)
{
    kr_status status;

    if (m->header.kind == KR_MSG_CONFIGURE)
        return node_configure(node, connection, m, err);
    pthread_rwlock_rdlock(&node->configuration);
    if (m->header.kind == KR_MSG_STATS)
        status = on_stats(node, connection, m, err);
    else if (!node->configured)
        status = node_not_configured(connection, m, err);
    else if (m->header.kind == KR_MSG_OPEN)
        status = on_open(node, connection, m, err);
    else if (m->header.kind == KR_MSG_SAVE || m->header.kind == KR_MSG_RESTORE)
        status = on_file(node, connection, m, err);
    else if (m->header.kind == KR_MSG_TRIM || m->header.kind == KR_MSG_END_PREFILL ||
             m->header.kind == KR_MSG_CLOSE)
        status = on_session(node, connection, m, err);
    else
        status = kr_fail(err, KR_E_ARG, "a memory node does not take %s",
                         kr_msg_name((kr_msg_kind)m->header.kind));
    pthread_rwlock_unlock(&node->configuration);
    return status;
}
