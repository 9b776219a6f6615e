/* Attention on the node: rows of callers' arrays out, outputs and selections back.
 *
 * The items of a call are grouped by the device that holds their session: one ATTEND each, in the
 * caller's order, all sent before the first reply is waited for. In a layer with index queries of its own
 * an INDEX goes before it, which is answered only when it fails. */
#include <string.h>

#include "api/client.h"

/* One call on its way. */
typedef struct {
    karat_client *client;
    uint32_t layer;
    const karat_attend_item *item; /* [count] */
    uint32_t count;
    const karat_client_plan *plan; /* of the layer */
    bool want_selection;
    uint64_t index[KR_MSG_DEVICES_MAX];    /* sequence of the INDEX sent; 0: none */
    uint64_t sequence[KR_MSG_DEVICES_MAX]; /* of the ATTEND whose reply is due; 0: none */
} call;

/* Parts of a payload start at multiples of 8 bytes. */
static const uint8_t padding[8];

/* ---- checks ---- */

static kr_status check_array(const karat_client_array *array, const char *what, uint32_t i, uint32_t tokens,
                             uint32_t heads, uint32_t dim, kr_err *err)
{
    uint64_t token_stride = array->token_stride, head_stride = array->head_stride;

    if (array->data == NULL || array->reserved != 0)
        return kr_fail(err, KR_E_ARG, "item %u: %s is null, or its reserved field is set", i, what);
    if ((unsigned)array->dtype > KARAT_BF16)
        return kr_fail(err, KR_E_ARG, "item %u: %s of dtype %d; F32, F16 or BF16", i, what,
                       (int)array->dtype);
    if ((uintptr_t)array->data % kr_dtype_bytes((kr_dtype)array->dtype) != 0)
        return kr_fail(err, KR_E_ARG, "item %u: %s is not aligned to its elements", i, what);
    return kr_api_strides(what, tokens, heads, dim, &token_stride, &head_stride, err);
}

static kr_status check_arrays(const karat_attend_item *item, const kr_msg_configure *g, uint32_t i,
                              kr_err *err)
{
    uint64_t token_stride = item->output_token_stride, head_stride = item->output_head_stride;
    kr_status status = check_array(&item->query, "query", i, item->tokens, g->heads, g->key_dim, err);

    if (status == KR_OK)
        status = check_array(&item->key, "key", i, item->tokens, g->kv_heads, g->key_dim, err);
    if (status == KR_OK && g->latent == 0)
        status = check_array(&item->value, "value", i, item->tokens, g->kv_heads, g->value_dim, err);
    if (status == KR_OK)
        status = kr_api_strides("output", item->tokens, g->heads, g->value_dim, &token_stride, &head_stride,
                                err);
    return status;
}

static kr_status check_item(const call *c, uint32_t i, kr_err *err)
{
    const karat_attend_item *item = &c->item[i];
    karat_session *session = item->session;

    if (session == NULL || session->client != c->client)
        return kr_fail(err, KR_E_ARG, "item %u: the session is null or another client's", i);
    if (session->call == c->client->calls)
        return kr_fail(err, KR_E_ARG, "item %u: the session has another item in the same call", i);
    session->call = c->client->calls;
    if (item->tokens == 0 || item->prefill > 1)
        return kr_fail(err, KR_E_ARG, "item %u: %u tokens, prefill %u (0 or 1)", i, item->tokens,
                       item->prefill);
    if (c->plan->index_query_bytes != 0 && (item->index_query == NULL || item->index_key == NULL))
        return kr_fail(err, KR_E_ARG, "item %u: layer %u needs index queries and keys", i, c->layer);
    if (item->tokens > session->tokens_max - session->tokens[c->layer])
        return kr_fail(err, KR_E_LIMIT,
                       "item %u: %u tokens after %llu in layer %u; the session was opened for %llu", i,
                       item->tokens, (unsigned long long)session->tokens[c->layer], c->layer,
                       (unsigned long long)session->tokens_max);
    if (item->output == NULL || (uintptr_t)item->output % sizeof(float) != 0)
        return kr_fail(err, KR_E_ARG, "item %u: output is null or not aligned", i);
    if ((item->selected == NULL) != (item->selected_count == NULL))
        return kr_fail(err, KR_E_ARG, "item %u: selected and selected_count come together", i);
    return check_arrays(item, &c->client->plan.configure, i, err);
}

static kr_status check_call(call *c, kr_err *err)
{
    const kr_msg_configure *g = &c->client->plan.configure;
    const uint64_t selection = 4ull * c->plan->lists * (1 + (uint64_t)c->plan->units_max);
    uint64_t tokens = 0, reply = 0;
    kr_status status = KR_OK;

    c->client->calls++;
    for (uint32_t i = 0; i < c->count && status == KR_OK; i++) {
        const karat_attend_item *item = &c->item[i];
        status = check_item(c, i, err);
        c->want_selection |= item->selected != NULL;
        tokens += item->tokens;
        reply += item->tokens * (4ull * g->heads * g->value_dim + selection);
    }
    if (status != KR_OK)
        return status;
    if (tokens > g->tokens_max)
        return kr_fail(err, KR_E_LIMIT, "a call of %llu tokens; the client is configured for %u",
                       (unsigned long long)tokens, g->tokens_max);
    if (c->want_selection && reply > c->client->message_bytes_max)
        return kr_fail(
            err, KR_E_LIMIT,
            "outputs and selections may take %llu bytes, a message %llu: ask for fewer tokens at once",
            (unsigned long long)reply, (unsigned long long)c->client->message_bytes_max);
    return KR_OK;
}

/* ---- out ---- */

/* Where the row of (token, head) begins, in elements. */
static uint64_t row_at(uint64_t token_stride, uint64_t head_stride, uint32_t heads, uint32_t dim,
                       uint32_t token, uint32_t head)
{
    return token * (token_stride != 0 ? token_stride : (uint64_t)heads * dim) +
           head * (head_stride != 0 ? head_stride : dim);
}

/* Writes rows as type to at; returns where it ended. */
static uint8_t *pack(const karat_client_array *from, uint32_t tokens, uint32_t heads, uint32_t dim,
                     kr_dtype type, float *one, uint8_t *at)
{
    const kr_dtype given = (kr_dtype)from->dtype;
    const uint64_t bytes = (uint64_t)dim * kr_dtype_bytes(type);

    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t h = 0; h < heads; h++, at += bytes) {
            const uint64_t element = row_at(from->token_stride, from->head_stride, heads, dim, t, h);
            const uint8_t *source = (const uint8_t *)from->data + element * kr_dtype_bytes(given);
            if (given == type) {
                memcpy(at, source, bytes);
            } else {
                kr_to_f32(given, source, one, dim);
                kr_from_f32(type, one, at, dim);
            }
        }
    return at;
}

static void put(kr_piece *piece, uint32_t *count, const uint8_t *begin, const uint8_t *end)
{
    const uint64_t bytes = (uint64_t)(end - begin);

    piece[(*count)++] = (kr_piece){begin, bytes};
    piece[(*count)++] = (kr_piece){padding, (8 - bytes % 8) % 8};
}

/* INDEX for the items on device, whose rows are there already. */
static kr_status send_index(call *c, uint32_t device, uint32_t rows, kr_err *err)
{
    const kr_client_rows *r = &c->client->plan.rows;
    uint8_t *query = r->index_query, *key = r->index_key;
    kr_piece piece[6];
    uint32_t pieces = 0;

    for (uint32_t i = 0; i < c->count; i++) {
        const karat_attend_item *item = &c->item[i];
        const uint64_t q = (uint64_t)item->tokens * c->plan->index_query_bytes,
                       k = (uint64_t)item->tokens * c->plan->index_key_bytes;
        if (item->session->device != device)
            continue;
        memcpy(query, item->index_query, q);
        memcpy(key, item->index_key, k);
        query += q;
        key += k;
    }
    put(piece, &pieces, (const uint8_t *)r->row, (const uint8_t *)(r->row + rows));
    put(piece, &pieces, r->index_query, query);
    put(piece, &pieces, r->index_key, key);
    const kr_msg_header header = {.kind = KR_MSG_INDEX,
                                  .layer = (uint16_t)c->layer,
                                  .device = device,
                                  .rows = rows,
                                  .step = c->client->step};
    return kr_peer_send(&c->client->peer, header, piece, pieces, &c->index[device], err);
}

/* Sends the items whose sessions live on device, if there are any. */
static kr_status send_to(call *c, uint32_t device, kr_err *err)
{
    const kr_client_plan *plan = &c->client->plan;
    const kr_msg_configure *g = &plan->configure;
    const kr_dtype type = (kr_dtype)g->kv_dtype;
    const kr_client_rows *r = &plan->rows;
    uint8_t *query = r->query, *key = r->key, *value = r->value;
    kr_piece piece[8];
    uint32_t rows = 0, pieces = 0;

    for (uint32_t i = 0; i < c->count; i++) {
        const karat_attend_item *item = &c->item[i];
        if (item->session->device != device)
            continue;
        r->row[rows++] = (kr_msg_row){.session = item->session->handle,
                                      .position = item->session->tokens[c->layer],
                                      .tokens = item->tokens,
                                      .is_prefill = item->prefill};
        query = pack(&item->query, item->tokens, g->heads, g->key_dim, KR_F32, r->one, query);
        key = pack(&item->key, item->tokens, g->kv_heads, g->key_dim, type, r->one, key);
        if (g->latent == 0)
            value = pack(&item->value, item->tokens, g->kv_heads, g->value_dim, type, r->one, value);
    }
    if (rows == 0)
        return KR_OK;
    if (c->plan->index_query_bytes != 0) {
        const kr_status status = send_index(c, device, rows, err);
        if (status != KR_OK)
            return status;
    }
    put(piece, &pieces, (const uint8_t *)r->row, (const uint8_t *)(r->row + rows));
    put(piece, &pieces, r->query, query);
    put(piece, &pieces, r->key, key);
    put(piece, &pieces, r->value, value);
    const kr_msg_header header = {.kind = KR_MSG_ATTEND,
                                  .layer = (uint16_t)c->layer,
                                  .device = device,
                                  .rows = rows,
                                  .step = c->client->step,
                                  .flags = c->want_selection ? KR_MSG_WANT_SELECTION : 0};
    return kr_peer_send(&c->client->peer, header, piece, pieces, &c->sequence[device], err);
}

/* ---- back ---- */

/* Room for the indices of a reply: as many as its rest can hold. */
static kr_status need_selected(karat_client *client, uint64_t bytes, kr_err *err)
{
    const uint64_t count = bytes / sizeof(uint32_t);
    uint32_t *bigger;

    if (count <= client->selected_max)
        return KR_OK;
    bigger = kr_alloc(count * sizeof *bigger);
    if (bigger == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a selection of %llu units",
                       (unsigned long long)count);
    kr_free(client->selected);
    client->selected = bigger;
    client->selected_max = count;
    return KR_OK;
}

/* The lists of one item, from *count and *unit on. */
static kr_status take_lists(const call *c, const karat_attend_item *item, const uint32_t **count,
                            const uint32_t **unit, kr_err *err)
{
    const uint32_t lists = c->plan->lists, most = c->plan->units_max;

    for (uint64_t i = 0; i < (uint64_t)item->tokens * lists; i++) {
        const uint32_t n = *(*count)++;
        const uint64_t tokens = item->session->tokens[c->layer] + i / lists + 1;
        if (n > most || (n != 0 && (*unit)[n - 1] >= kr_ceil_div(tokens, c->plan->unit_tokens)))
            return kr_fail(err, KR_E_FORMAT,
                           "memory node %s selected %u units of %llu tokens in layer %u; at most %u expected",
                           kr_peer_name(&c->client->peer), n, (unsigned long long)tokens, c->layer, most);
        if (item->selected != NULL) {
            item->selected_count[i] = n;
            memcpy(item->selected + i * most, *unit, n * sizeof **unit);
        }
        *unit += n;
    }
    return KR_OK;
}

static kr_status take_selection(const call *c, uint32_t device, uint32_t tokens, const uint8_t *part,
                                uint64_t bytes, kr_err *err)
{
    karat_client *client = c->client;
    const uint32_t lists = tokens * c->plan->lists;
    const uint32_t *count, *unit;
    uint64_t used;
    kr_status status = need_selected(client, bytes + 4ull * lists, err);

    if (status != KR_OK)
        return status;
    count = client->selected;
    unit = client->selected + lists;
    status = kr_msg_lists_read(part, bytes, lists, UINT32_MAX, client->selected, client->selected + lists,
                               client->selected_max - lists, &used, err);
    if (status == KR_OK && used != bytes)
        status = kr_fail(
            err, KR_E_FORMAT, "memory node %s sent %llu bytes of selection, %llu of them of no list",
            kr_peer_name(&client->peer), (unsigned long long)bytes, (unsigned long long)(bytes - used));
    for (uint32_t i = 0; i < c->count && status == KR_OK; i++)
        if (c->item[i].session->device == device)
            status = take_lists(c, &c->item[i], &count, &unit, err);
    return status;
}

static const uint8_t *unpack(const karat_attend_item *item, uint32_t heads, uint32_t dim, const uint8_t *at)
{
    const uint64_t bytes = dim * sizeof(float);

    for (uint32_t t = 0; t < item->tokens; t++)
        for (uint32_t h = 0; h < heads; h++, at += bytes)
            memcpy(item->output +
                       row_at(item->output_token_stride, item->output_head_stride, heads, dim, t, h),
                   at, bytes);
    return at;
}

/* The good reply of a device: its items have advanced. */
static kr_status take_output(const call *c, uint32_t device, const kr_message *message, kr_err *err)
{
    const kr_msg_configure *g = &c->client->plan.configure;
    const uint64_t row = 4ull * g->heads * g->value_dim;
    const uint64_t received = message->header.payload_bytes;
    const bool selects = c->want_selection && c->plan->lists != 0;
    const uint8_t *at = message->payload;
    uint32_t tokens = 0;
    kr_status status = KR_OK;

    for (uint32_t i = 0; i < c->count; i++)
        tokens += c->item[i].session->device == device ? c->item[i].tokens : 0;
    const uint64_t outputs = kr_align_up(tokens * row, 8);
    if (message->header.kind != KR_MSG_OUTPUT || message->header.layer != c->layer || received < outputs ||
        (!selects && received != outputs))
        return kr_fail(err, KR_E_FORMAT, "memory node %s answered ATTEND of layer %u with %llu bytes of %s",
                       kr_peer_name(&c->client->peer), c->layer, (unsigned long long)received,
                       kr_msg_name((kr_msg_kind)message->header.kind));
    for (uint32_t i = 0; i < c->count; i++)
        if (c->item[i].session->device == device)
            at = unpack(&c->item[i], g->heads, g->value_dim, at);
    if (selects)
        status = take_selection(c, device, tokens, message->payload + outputs, received - outputs, err);
    for (uint32_t i = 0; i < c->count && status == KR_OK; i++)
        if (c->item[i].session->device == device)
            c->item[i].session->tokens[c->layer] += c->item[i].tokens;
    return status;
}

/* Takes one message. *failure keeps the first error that the node reported; what breaks the protocol is
 * the end of the client. */
static kr_status take(call *c, kr_message *message, uint32_t *due, kr_err *failure, kr_err *err)
{
    kr_peer *peer = &c->client->peer;
    const uint64_t sequence = message->header.sequence;
    kr_status status = KR_OK;
    uint32_t d = 0;

    while (d < KR_MSG_DEVICES_MAX &&
           (sequence == 0 || (c->sequence[d] != sequence && c->index[d] != sequence)))
        d++;
    const bool was_due = d < KR_MSG_DEVICES_MAX && c->sequence[d] == sequence;
    if (was_due) {
        c->sequence[d] = 0;
        (*due)--;
    }
    if (d < KR_MSG_DEVICES_MAX && message->header.kind == KR_MSG_ERROR) {
        kr_err theirs;
        if (kr_peer_error(peer, message, &theirs) != KR_OK && failure->status == KR_OK)
            *failure = theirs;
    } else if (was_due) {
        status = take_output(c, d, message, err);
        if (status != KR_OK)
            peer->down = *err;
    }
    kr_peer_release(peer, message);
    return status;
}

static kr_status attend(call *c, kr_err *err)
{
    kr_peer *peer = &c->client->peer;
    kr_err failure = {0};
    uint32_t due = 0;
    kr_status status = KR_OK;

    c->client->step += c->plan->index_query_bytes != 0;
    for (uint32_t d = 0; d < peer->node.welcome.devices && status == KR_OK; d++) {
        status = send_to(c, d, err);
        due += c->sequence[d] != 0;
    }
    const uint64_t deadline = kr_deadline_after(peer->clock, peer->timeout_ns);
    while (status == KR_OK && due != 0) {
        kr_message message;
        status = kr_peer_wait(peer, &message, deadline, err);
        if (status == KR_OK)
            status = take(c, &message, &due, &failure, err);
    }
    if (status == KR_OK && failure.status != KR_OK) {
        *err = failure;
        return failure.status;
    }
    return status;
}

karat_status karat_client_attend(karat_client *client, uint32_t layer, const karat_attend_item *items,
                                 uint32_t count, karat_error *error)
{
    call c = {.client = client, .layer = layer, .item = items, .count = count};
    kr_err err;
    kr_status status = kr_client_usable(client, &err);

    if (status == KR_OK && (!client->configured || layer >= client->plan.configure.layers))
        status = kr_fail(&err, KR_E_ARG, "layer %u of %u: configure the client first", layer,
                         client->plan.configure.layers);
    if (status == KR_OK && (items == NULL || count == 0 || count > client->plan.configure.tokens_max))
        status = kr_fail(&err, KR_E_ARG, "attend to %u items; 1 to %u, as many as tokens_max", count,
                         client->plan.configure.tokens_max);
    if (status == KR_OK) {
        c.plan = &client->plan.of[layer];
        status = check_call(&c, &err);
    }
    if (status == KR_OK)
        status = attend(&c, &err);
    return kr_api_end(status, &err, error);
}
