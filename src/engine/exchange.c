/* The messages of a step: rows out to the devices that hold their KV, attention outputs back.
 *
 * Per micro-batch and layer one ATTEND goes to each group; its reply (OUTPUT, or INDICES in the
 * indices-only placement) is due until it arrives. Replies are matched by request number; a number
 * nobody waits for belongs to a step that failed and is dropped. */
#include <string.h>

#include "base/check.h"
#include "engine/inside.h"

/* Parts of a payload start at multiples of 8 bytes. */
static const uint8_t padding[8];

static void put(kr_piece *piece, uint32_t *count, const void *data, uint64_t bytes)
{
    const uint64_t rest = (8 - bytes % 8) % 8;
    piece[(*count)++] = (kr_piece){data, bytes};
    if (rest != 0)
        piece[(*count)++] = (kr_piece){padding, rest};
}

/* Of a row; the same in every layer. */
static uint64_t query_row_bytes(const kr_attention_shape *s)
{
    return (uint64_t)s->heads * s->key_dim * sizeof(float);
}
static uint64_t key_row_bytes(const kr_attention_shape *s)
{
    return (uint64_t)s->kv_heads * s->key_dim * kr_dtype_bytes(s->kv_dtype);
}
static uint64_t value_row_bytes(const kr_attention_shape *s)
{
    return s->latent ? 0 : (uint64_t)s->kv_heads * s->value_dim * kr_dtype_bytes(s->kv_dtype);
}
static uint64_t output_row_bytes(const kr_attention_shape *s)
{
    return (uint64_t)s->heads * s->value_dim * sizeof(float);
}

/* rows[], query, key, value of rows [row_first, row_first + rows). */
static void put_rows(const kr_engine *engine, kr_micro_batch *batch, const kr_msg_row *row, uint32_t items,
                     uint32_t row_first, uint32_t rows, uint32_t *count)
{
    const kr_attention_shape *s = &engine->program.shape[0];
    const uint64_t query = query_row_bytes(s), key = key_row_bytes(s), value = value_row_bytes(s);
    put(batch->piece, count, row, (uint64_t)items * sizeof *row);
    put(batch->piece, count, (const uint8_t *)batch->rows.query + row_first * query, rows * query);
    put(batch->piece, count, (const uint8_t *)batch->rows.key + row_first * key, rows * key);
    if (value != 0)
        put(batch->piece, count, (const uint8_t *)batch->rows.value + row_first * value, rows * value);
}

static kr_msg_header header_of(kr_msg_kind kind, const kr_engine *engine, uint32_t mb, uint32_t layer,
                               uint32_t device, uint32_t items, uint32_t flags)
{
    return (kr_msg_header){.kind = (uint16_t)kind,
                           .micro_batch = (uint16_t)mb,
                           .layer = (uint16_t)layer,
                           .device = device,
                           .rows = items,
                           .step = engine->stats.steps,
                           .flags = flags};
}

static uint32_t send_flags(const kr_engine *engine)
{
    if (engine->gather != NULL)
        return KR_MSG_INDICES_ONLY;
    return engine->config.on_selection != NULL ? KR_MSG_WANT_SELECTION : 0;
}

kr_status kr_exchange_send_index(kr_engine *engine, kr_micro_batch *batch, uint32_t mb, uint32_t layer,
                                 kr_err *err)
{
    const kr_method_plan *plan = &engine->program.plan[layer];
    for (uint32_t i = 0; i < batch->groups; i++) {
        const kr_group *group = &batch->group[i];
        const uint64_t first = group->row_first, rows = group->rows;
        uint64_t sequence;
        uint32_t pieces = 0;
        put(batch->piece, &pieces, batch->row + group->item_first, group->items * sizeof *batch->row);
        put(batch->piece, &pieces, batch->rows.index_query + first * plan->index_query_bytes,
            rows * plan->index_query_bytes);
        put(batch->piece, &pieces, batch->rows.index_key + first * plan->index_key_bytes,
            rows * plan->index_key_bytes);
        kr_msg_header header = header_of(KR_MSG_INDEX, engine, mb, layer, group->device, group->items, 0);
        kr_status status = kr_peer_send(group->peer, header, batch->piece, pieces, &sequence, err);
        if (status != KR_OK)
            return status;
    }
    return KR_OK;
}

kr_status kr_exchange_send(kr_engine *engine, kr_micro_batch *batch, uint32_t mb, uint32_t layer, kr_err *err)
{
    for (uint32_t i = 0; i < batch->groups; i++) {
        kr_group *group = &batch->group[i];
        uint32_t pieces = 0;
        put_rows(engine, batch, batch->row + group->item_first, group->items, group->row_first, group->rows,
                 &pieces);
        kr_msg_header header = header_of(KR_MSG_ATTEND, engine, mb, layer, group->device, group->items,
                                         send_flags(engine));
        kr_status status = kr_peer_send(group->peer, header, batch->piece, pieces, &group->sequence, err);
        if (status != KR_OK)
            return status;
        group->sent_ns = kr_engine_now(engine);
        batch->due++;
    }
    return KR_OK;
}

/* Reads counts and indices at offset of the payload and hands each list to the caller's function. */
static kr_status report_selection(kr_engine *engine, const kr_micro_batch *batch, const kr_group *group,
                                  const kr_message *message, uint64_t offset, kr_err *err)
{
    const uint32_t layer = message->header.layer, per_row = engine->lists[layer];
    uint32_t list = 0;
    uint64_t used;
    if (engine->config.on_selection == NULL || per_row == 0)
        return KR_OK;
    kr_status status = kr_msg_lists_read(message->payload + offset, message->header.payload_bytes - offset,
                                         group->rows * per_row, UINT32_MAX, engine->selected_count,
                                         engine->selected, engine->selected_max, &used, err);
    if (status != KR_OK)
        return status;
    const uint32_t *unit = engine->selected;
    for (uint32_t i = group->item_first; i < group->item_first + group->items; i++)
        for (uint32_t t = 0; t < batch->row[i].tokens; t++)
            for (uint32_t l = 0; l < per_row; l++, list++) {
                const kr_selection selection = {.step = engine->stats.steps,
                                                .position = batch->row[i].position + t,
                                                .session = batch->item[i]->session,
                                                .layer = layer,
                                                .list = l,
                                                .unit = unit,
                                                .units = engine->selected_count[list]};
                unit += selection.units;
                if (selection.units != 0)
                    engine->config.on_selection(engine->config.context, &selection);
            }
    return KR_OK;
}

static kr_status take_output(kr_engine *engine, kr_micro_batch *batch, const kr_group *group,
                             const kr_message *message, kr_err *err)
{
    const uint32_t layer = message->header.layer;
    const uint64_t row_bytes = output_row_bytes(&engine->program.shape[0]), bytes = group->rows * row_bytes;
    if (message->header.payload_bytes < bytes)
        return kr_fail(err, KR_E_FORMAT,
                       "memory node %s sent %llu bytes of output for layer %u; %llu are due",
                       kr_peer_name(group->peer), (unsigned long long)message->header.payload_bytes, layer,
                       (unsigned long long)bytes);
    memcpy((uint8_t *)batch->attended + group->row_first * row_bytes, message->payload, bytes);
    if (engine->gather != NULL)
        return KR_OK; /* its lists came with INDICES */
    return report_selection(engine, batch, group, message, kr_align_up(bytes, 8), err);
}

/* Keeps the message itself: its lists go on to the gather node without a copy. */
static kr_status take_indices(kr_engine *engine, kr_micro_batch *batch, kr_group *group,
                              const kr_message *message, kr_err *err)
{
    const uint64_t counts = 4ull * group->rows * engine->lists[message->header.layer];
    if (message->header.payload_bytes < counts)
        return kr_fail(err, KR_E_FORMAT,
                       "memory node %s sent %llu bytes of selection, the counts alone are %llu",
                       kr_peer_name(group->peer), (unsigned long long)message->header.payload_bytes,
                       (unsigned long long)counts);
    kr_status status = report_selection(engine, batch, group, message, 0, err);
    if (status != KR_OK)
        return status;
    group->indices = *message;
    group->indices_held = true;
    return KR_OK;
}

static void add_span(kr_engine *engine, const kr_group *group, const kr_message *message)
{
    uint32_t track = KR_TRACK_DEVICES + group->device;
    for (const kr_peer *peer = engine->peer; peer != group->peer; peer++)
        track += peer->node.welcome.devices;
    const kr_span span = {.begin_ns = group->sent_ns,
                          .end_ns = kr_engine_now(engine),
                          .op = UINT32_MAX,
                          .kind = KR_OP_ATTEND,
                          .layer = message->header.layer,
                          .micro_batch = message->header.micro_batch,
                          .track = (uint16_t)track,
                          .step = (uint32_t)engine->stats.steps};
    kr_span_add(&engine->spans[track], span);
}

/* The reply to an ATTEND: what is due, or the node's error, or a breach of the protocol. */
static kr_status take_reply(kr_engine *engine, kr_micro_batch *batch, kr_group *group,
                            const kr_message *message, kr_msg_kind due, kr_err *err)
{
    const kr_msg_kind kind = (kr_msg_kind)message->header.kind;
    if (kind == KR_MSG_ERROR)
        return kr_peer_error(group->peer, message, err);
    if (kind != due || message->header.layer >= engine->model.layers)
        return kr_fail(err, KR_E_FORMAT, "memory node %s answered ATTEND with %s for layer %u; %s is due",
                       kr_peer_name(group->peer), kr_msg_name(kind), message->header.layer, kr_msg_name(due));
    if (due == KR_MSG_INDICES)
        return take_indices(engine, batch, group, message, err);
    return take_output(engine, batch, group, message, err);
}

/* Finds whom the message is for, and takes it; consumes the message. */
static kr_status take(kr_engine *engine, kr_peer *peer, kr_message *message, kr_err *err)
{
    const kr_msg_kind due = engine->gather != NULL ? KR_MSG_INDICES : KR_MSG_OUTPUT;
    kr_status status = KR_OK;
    bool held = false;
    for (uint32_t mb = 0; mb < engine->config.micro_batches; mb++) {
        kr_micro_batch *batch = &engine->batch[mb];
        for (uint32_t i = 0; i < batch->groups; i++) {
            kr_group *group = &batch->group[i];
            if (group->sequence == 0 || group->peer != peer || group->sequence != message->header.sequence)
                continue;
            status = take_reply(engine, batch, group, message, due, err);
            if (status == KR_OK)
                add_span(engine, group, message);
            group->sequence = 0;
            batch->due--;
            held = group->indices_held;
        }
    }
    if (!held)
        kr_peer_release(peer, message);
    return status;
}

static bool is_due(const kr_engine *engine, const kr_peer *peer)
{
    for (uint32_t mb = 0; mb < engine->config.micro_batches; mb++)
        for (uint32_t i = 0; i < engine->batch[mb].groups; i++)
            if (engine->batch[mb].group[i].sequence != 0 && engine->batch[mb].group[i].peer == peer)
                return true;
    return false;
}

kr_status kr_exchange_poll(kr_engine *engine, kr_err *err)
{
    for (uint32_t i = 0; i < engine->peers; i++) {
        while (is_due(engine, &engine->peer[i])) {
            kr_message message;
            kr_status status = kr_peer_poll(&engine->peer[i], &message, err);
            if (status == KR_E_DEADLINE)
                break;
            if (status == KR_OK)
                status = take(engine, &engine->peer[i], &message, err);
            if (status != KR_OK)
                return status;
        }
    }
    return KR_OK;
}

kr_status kr_exchange_wait(kr_engine *engine, kr_micro_batch *batch, kr_err *err)
{
    const uint32_t due = batch->due;
    KR_CHECK(due != 0);
    while (batch->due == due) {
        kr_group *group = batch->group;
        while (group->sequence == 0)
            group++;
        kr_message message;
        const uint64_t deadline = group->sent_ns + engine->config.timeout_ns;
        kr_status status = kr_peer_wait(group->peer, &message, deadline, err);
        if (status == KR_OK)
            status = take(engine, group->peer, &message, err);
        if (status != KR_OK)
            return status;
    }
    return KR_OK;
}

void kr_exchange_drop(kr_engine *engine, kr_micro_batch *batch)
{
    (void)engine;
    for (uint32_t i = 0; i < batch->groups; i++) {
        kr_group *group = &batch->group[i];
        if (group->indices_held)
            kr_peer_release(group->peer, &group->indices);
        group->indices_held = false;
        group->sequence = 0;
    }
    batch->due = 0;
}

/* One message to the gather node for the whole micro-batch; counts of all groups come before their
 * indices, groups being in row order. */
static uint32_t put_indices(const kr_engine *engine, kr_micro_batch *batch, uint32_t layer, uint32_t pieces)
{
    uint64_t all = 0;
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < batch->groups; i++) {
            const kr_group *group = &batch->group[i];
            const uint64_t counts = 4ull * group->rows * engine->lists[layer];
            const uint64_t bytes = group->indices.header.payload_bytes;
            batch->piece[pieces++] = pass == 0 ? (kr_piece){group->indices.payload, counts}
                                               : (kr_piece){group->indices.payload + counts, bytes - counts};
            all += batch->piece[pieces - 1].bytes;
        }
    batch->piece[pieces++] = (kr_piece){padding, (8 - all % 8) % 8};
    return pieces;
}

kr_status kr_exchange_gather(kr_engine *engine, kr_micro_batch *batch, uint32_t mb, uint32_t layer,
                             kr_err *err)
{
    const bool selected = !batch->prefill && engine->lists[layer] != 0;
    kr_peer *gather = engine->gather;
    uint32_t pieces = 0;
    put_rows(engine, batch, batch->gather_row, batch->items, 0, batch->rows.rows, &pieces);
    if (selected)
        pieces = put_indices(engine, batch, layer, pieces);
    const kr_msg_header header = header_of(KR_MSG_ATTEND, engine, mb, layer, 0, batch->items,
                                           selected ? KR_MSG_WITH_INDICES : 0);
    uint64_t sequence = 0;
    kr_status status = kr_peer_send(gather, header, batch->piece, pieces, &sequence, err);
    kr_exchange_drop(engine, batch);
    const uint64_t deadline = kr_deadline_after(engine->config.clock, engine->config.timeout_ns);
    kr_group whole = {.peer = gather, .rows = batch->rows.rows};
    for (bool came = false; status == KR_OK && !came;) {
        kr_message message;
        status = kr_peer_wait(gather, &message, deadline, err);
        if (status != KR_OK)
            break;
        came = message.header.sequence == sequence;
        if (came)
            status = take_reply(engine, batch, &whole, &message, KR_MSG_OUTPUT, err);
        kr_peer_release(gather, &message);
    }
    return status;
}
