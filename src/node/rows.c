/* INDEX and ATTEND: from untrusted rows to jobs, through the stages, to the reply.
 *
 * Rows are worked in waves: a prefill row whole in one, a decode row one token a wave, since a
 * token's selection may depend on the index the token before it has left. A wave holds as many
 * rows as the workspace does; which rows share a wave changes no result. */
#include <string.h>

#include "base/check.h"
#include "node/state.h"

/* A row on its way through the waves. */
typedef struct {
    kr_kv_session *session;
    uint64_t position;
    uint32_t tokens, done;
    uint32_t first_token; /* of the row, counted over the message */
    bool is_prefill;
} row_state;

/* One INDEX or ATTEND message, read and checked. */
typedef struct {
    kr_node *node;
    node_device *device;
    const kr_message *message;
    const kr_geometry *geometry;
    uint32_t layer, rows, tokens, flags;
    bool is_index, append;
    bool indexed_before;                    /* an INDEX message has run append, score and select */
    row_state *row;                         /* [rows] */
    kr_msg_row *wire_row;                   /* [rows] as they came */
    const uint8_t *query, *key, *value;     /* ATTEND; key NULL: nothing new */
    const uint8_t *index_query, *index_key; /* INDEX */
    uint32_t lists, stride;      /* selection lists of a token, room of a list; 0 in a dense layer */
    uint32_t *counts, *selected; /* [tokens * lists], [tokens * lists][stride] */
    float *output;               /* [tokens][heads][value_dim] */
} attend;

kr_status node_buffer_need(node_buffer *buffer, uint64_t bytes, kr_err *err)
{
    enum { ALIGNMENT = 64 };
    const uint64_t capacity = bytes + bytes / 4;
    uint8_t *memory;

    if (bytes <= buffer->capacity)
        return KR_OK;
    memory = kr_alloc(capacity + ALIGNMENT);
    if (memory == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for %llu bytes of a message's rows",
                       (unsigned long long)bytes);
    node_buffer_free(buffer);
    buffer->memory = memory;
    buffer->data = memory + (ALIGNMENT - (uintptr_t)memory % ALIGNMENT) % ALIGNMENT;
    buffer->capacity = capacity;
    return KR_OK;
}

void node_buffer_free(node_buffer *buffer)
{
    kr_free(buffer->memory);
    *buffer = (node_buffer){0};
}

/* ---- reading and checking ---- */

static uint64_t row_end(const row_state *row) { return row->position + row->tokens; }

static kr_status check_position(const attend *a, const row_state *row, uint32_t i, kr_err *err)
{
    const uint64_t length = row->session->tokens[a->layer];
    const uint32_t group = a->geometry->group_of[a->layer];

    if (a->append) {
        if (row->position != length)
            return kr_fail(err, KR_E_ARG,
                           "row %u: position %llu, but the session has %llu tokens in layer %u", i,
                           (unsigned long long)row->position, (unsigned long long)length, a->layer);
        return KR_OK;
    }
    if (row_end(row) > length ||
        (a->lists != 0 && !row->is_prefill && (row->tokens != 1 || row_end(row) != length)))
        return kr_fail(err, KR_E_ARG, "row %u: query of %u tokens at %llu over %llu stored ones in layer %u",
                       i, row->tokens, (unsigned long long)row->position, (unsigned long long)length,
                       a->layer);
    if (kr_geometry_first_page(a->geometry, group, row->position) < row->session->group[group].first)
        return kr_fail(err, KR_E_UNSUPPORTED, "row %u: position %llu needs pages that left its window", i,
                       (unsigned long long)row->position);
    return KR_OK;
}

static kr_status find_rows(attend *a, uint64_t client, const kr_msg_row *row, kr_err *err)
{
    a->device->stamp++;
    for (uint32_t i = 0; i < a->rows; i++) {
        row_state *r = &a->row[i];
        kr_status status;

        *r = (row_state){.position = row[i].position,
                         .tokens = row[i].tokens,
                         .first_token = a->tokens,
                         .is_prefill = row[i].is_prefill != 0};
        status = kr_store_find(&a->node->store, row[i].session, client, &r->session, err);
        if (status != KR_OK)
            return status;
        if (r->session->home != a->device->number)
            return kr_fail(err, KR_E_ARG,
                           "row %u: the session's home is device %u, the message is for device %u", i,
                           r->session->home, a->device->number);
        if (r->session->stamp == a->device->stamp)
            return kr_fail(err, KR_E_ARG, "row %u: the session has another row in the same message", i);
        r->session->stamp = a->device->stamp;
        if ((a->flags & KR_MSG_WITH_INDICES) != 0 && (a->lists == 0 || r->is_prefill))
            return kr_fail(err, KR_E_ARG, "row %u: indices come with decode rows of layers that select", i);
        status = check_position(a, r, i, err);
        if (status != KR_OK)
            return status;
        a->tokens += r->tokens;
    }
    return KR_OK;
}

static kr_status read_rows(attend *a, uint64_t client, uint64_t *used, kr_err *err)
{
    const kr_message *m = a->message;
    kr_msg_row *row;

    if (a->rows > a->geometry->tokens_max)
        return kr_fail(err, KR_E_LIMIT, "message of %u rows; the node is configured for %u tokens", a->rows,
                       a->geometry->tokens_max);
    kr_status status = node_buffer_need(&a->device->rows, a->rows * (sizeof *row + sizeof *a->row), err);
    if (status != KR_OK)
        return status;
    a->row = (row_state *)(void *)a->device->rows.data;
    row = a->wire_row = (kr_msg_row *)(void *)(a->row + a->rows);
    status = kr_msg_rows_read(m->payload, m->header.payload_bytes, a->rows, a->geometry->tokens_max, row,
                              used, err);
    return status == KR_OK ? find_rows(a, client, row, err) : status;
}

/* Points a part of the payload out; parts start at multiples of 8 bytes. */
static const uint8_t *take_part(const attend *a, uint64_t bytes, uint64_t *used)
{
    const uint8_t *part = a->message->payload + *used;

    *used += kr_align_up(bytes, 8);
    return part;
}

/* The selection that came with the message, into counts and selected. */
static kr_status read_lists(attend *a, uint64_t offset, uint64_t *used, kr_err *err)
{
    const uint32_t lists = a->tokens * a->lists, unit = a->geometry->plan[a->layer].unit_tokens;
    uint32_t *indices, at = 0;
    uint64_t bytes;
    kr_status status = node_buffer_need(&a->device->indices, 4ull * lists * a->stride, err);

    if (status != KR_OK)
        return status;
    indices = (uint32_t *)(void *)a->device->indices.data;
    status = kr_msg_lists_read(a->message->payload + offset, a->message->header.payload_bytes - offset, lists,
                               UINT32_MAX, a->counts, indices, (uint64_t)lists * a->stride, &bytes, err);
    if (status != KR_OK)
        return status;
    *used += kr_align_up(bytes, 8);
    for (uint32_t r = 0; r < a->rows; r++)
        for (uint32_t i = 0; i < a->row[r].tokens * a->lists; i++) {
            const uint32_t list = a->row[r].first_token * a->lists + i, count = a->counts[list];
            const uint64_t units = kr_ceil_div(a->row[r].position + i / a->lists + 1, unit);

            if (count > a->stride || (count > 0 && indices[at + count - 1] >= units))
                return kr_fail(err, KR_E_ARG, "row %u: a list of %u units, at most %u below %llu expected", r,
                               count, a->stride, (unsigned long long)units);
            memcpy(a->selected + (uint64_t)list * a->stride, indices + at, 4ull * count);
            at += count;
        }
    return KR_OK;
}

static kr_status make_room(attend *a, kr_err *err)
{
    const kr_attention_shape *s = &a->geometry->shape[a->layer];
    const uint64_t lists = (uint64_t)a->tokens * a->lists;
    node_device *d = a->device;
    kr_status status = node_buffer_need(&d->output, 4ull * a->tokens * s->heads * s->value_dim, err);

    if (status == KR_OK)
        status = node_buffer_need(&d->counts, 4 * lists + 4 * lists * a->stride, err);
    if (status == KR_OK)
        status = node_buffer_need(&d->jobs, a->rows * sizeof(node_job), err);
    if (status == KR_OK)
        status = node_buffer_need(&d->starts, (a->rows + 1) * sizeof(uint32_t), err);
    if (status != KR_OK)
        return status;
    a->output = (float *)(void *)d->output.data;
    a->counts = (uint32_t *)(void *)d->counts.data;
    a->selected = a->counts + lists;
    if (lists != 0)
        memset(a->counts, 0, 4 * lists);
    return KR_OK;
}

/* The rows' data; *used moves on to the end of it. */
static void take_data(attend *a, uint64_t *used)
{
    const kr_attention_shape *s = &a->geometry->shape[a->layer];
    const kr_method_plan *plan = &a->geometry->plan[a->layer];
    const uint64_t tokens = a->tokens, row = tokens * s->kv_heads * kr_dtype_bytes(s->kv_dtype);

    if (a->is_index) {
        a->index_query = take_part(a, tokens * plan->index_query_bytes, used);
        a->index_key = take_part(a, tokens * plan->index_key_bytes, used);
        return;
    }
    a->query = take_part(a, 4 * tokens * s->heads * s->key_dim, used);
    if (a->append) {
        a->key = take_part(a, row * s->key_dim, used);
        a->value = take_part(a, s->latent ? 0 : row * s->value_dim, used);
    }
}

static kr_status wrong_length(const attend *a, uint64_t expected, kr_err *err)
{
    return kr_fail(err, KR_E_FORMAT, "%s of %u tokens in %llu bytes; %llu expected",
                   kr_msg_name((kr_msg_kind)a->message->header.kind), a->tokens,
                   (unsigned long long)a->message->header.payload_bytes, (unsigned long long)expected);
}

static uint64_t selection_bytes(const attend *a)
{
    return 4ull * a->tokens * a->lists * (1 + (uint64_t)a->stride);
}

static kr_status read_payload(attend *a, uint64_t client, kr_err *err)
{
    const kr_method_plan *plan = &a->geometry->plan[a->layer];
    uint64_t used = 0;
    kr_status status = read_rows(a, client, &used, err);

    if (status != KR_OK)
        return status;
    take_data(a, &used);
    if (used > a->message->header.payload_bytes)
        return wrong_length(a, used, err);
    status = make_room(a, err);
    if (status == KR_OK && (a->flags & KR_MSG_WITH_INDICES) != 0)
        status = read_lists(a, used, &used, err);
    if (status == KR_OK && a->message->header.payload_bytes != used)
        return wrong_length(a, used, err);
    if (status == KR_OK && a->indexed_before)
        status = node_pending_use(a->device, a->message, client, plan->index_owner, a->wire_row, a->rows,
                                  selection_bytes(a), a->counts, err);
    return status;
}

/* Pages for all new tokens, before anything is written. */
static kr_status grow(attend *a, kr_err *err)
{
    kr_status status = KR_OK;

    if (!a->append)
        return KR_OK;
    for (uint32_t i = 0; i < a->rows && status == KR_OK; i++)
        status = kr_store_grow(&a->node->store, a->row[i].session, a->layer, a->row[i].position,
                               a->row[i].tokens, err);
    for (uint32_t i = 0; i < a->rows && status == KR_OK; i++)
        status = kr_kv_session_boundary(a->row[i].session, a->row[i].position, a->row[i].is_prefill, err);
    return status;
}

/* ---- waves ---- */

/* Tokens of the open unit before position that an index of keys does not cover any more. An index of
 * keys that came with the rows has one entry a token and loses nothing by a cut. */
static uint32_t unindexed(const attend *a, const row_state *row, uint64_t position)
{
    const kr_method_plan *plan = &a->geometry->plan[a->layer];
    const uint64_t covered = kr_kv_session_record(&a->node->store, row->session, a->layer)->tokens_covered;

    if (!a->append || row->done != 0 || plan->index_key_bytes != 0 || covered >= position ||
        covered < position - position % plan->unit_tokens)
        return 0;
    return (uint32_t)(position - covered);
}

/* The next job of a row; *workspace = bytes it needs. */
static node_job make_job(const attend *a, const row_state *row, uint64_t *workspace)
{
    const kr_geometry *g = a->geometry;
    const kr_attention_shape *s = &g->shape[a->layer];
    const uint32_t queries = row->is_prefill ? row->tokens : 1, token = row->first_token + row->done;
    const uint64_t element = kr_dtype_bytes(s->kv_dtype), position = row->position + row->done;
    const kr_method_plan *plan = &g->plan[a->layer];
    const uint64_t present = a->append ? position + queries : row->session->tokens[a->layer];
    const uint64_t list = (uint64_t)token * a->lists;
    node_job j = {
        .method = g->method[a->layer], .session = row->session, .unindexed = unindexed(a, row, position)};

    j.view = kr_kv_session_view(&a->node->store, row->session, a->layer, present);
    if (a->key != NULL) {
        j.key = a->key + element * token * s->kv_heads * s->key_dim;
        j.value = a->value + element * token * s->kv_heads * s->value_dim;
    }
    j.job = (kr_job){
        .plan = plan,
        .config = &g->config[a->layer],
        .ops = &a->node->ops,
        .first_position = position,
        .queries = queries,
        .is_prefill = row->is_prefill,
        .query = a->is_index
                     ? NULL
                     : (const float *)(const void *)a->query + (uint64_t)token * s->heads * s->key_dim,
        .index_query = a->is_index ? a->index_query + (uint64_t)token * plan->index_query_bytes : NULL,
        .index_key = a->is_index ? a->index_key + (uint64_t)token * plan->index_key_bytes : NULL,
        .selected = a->selected + list * a->stride,
        .selected_count = a->counts + list,
        .selected_stride = a->stride,
        .output = a->output + (uint64_t)token * s->heads * s->value_dim,
        .nan_count = &a->device->nan_scores,
        .step = a->message->header.step,
    };
    *workspace = kr_align_up(j.method->workspace_bytes(plan, &g->config[a->layer], s, queries, present), 64);
    return j;
}

/* Fills jobs with the next wave; 0 when every row is done. */
static uint32_t next_wave(attend *a, node_job *jobs)
{
    uint64_t used = 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < a->rows; i++) {
        row_state *row = &a->row[i];
        uint64_t bytes;

        if (row->done == row->tokens)
            continue;
        jobs[count] = make_job(a, row, &bytes);
        if (used + bytes > a->device->workspace_bytes) {
            KR_CHECK(count > 0); /* CONFIGURE made room for the largest job */
            break;
        }
        jobs[count].job.workspace = a->device->workspace.data + used;
        used += bytes;
        row->done += jobs[count].job.queries;
        count++;
    }
    for (uint32_t j = 0; j < count; j++)
        jobs[j].job.view = &jobs[j].view;
    return count;
}

static void run_append(attend *a, node_job *jobs, uint32_t count)
{
    for (uint32_t j = 0; j < count; j++) {
        jobs[j].job.first_position -= jobs[j].unindexed;
        jobs[j].job.queries += jobs[j].unindexed;
    }
    node_run_stage(a->node, a->device, KR_STAGE_APPEND, jobs, count);
    for (uint32_t j = 0; j < count; j++) {
        jobs[j].job.first_position += jobs[j].unindexed;
        jobs[j].job.queries -= jobs[j].unindexed;
    }
}

static void run_wave(attend *a, node_job *jobs, uint32_t count)
{
    if (a->key != NULL)
        node_write_rows(a->node, a->device, jobs, count);
    if (a->append && !a->indexed_before)
        run_append(a, jobs, count);
    if ((a->flags & KR_MSG_WITH_INDICES) == 0 && !a->indexed_before) {
        node_run_stage(a->node, a->device, KR_STAGE_SCORE, jobs, count);
        node_run_stage(a->node, a->device, KR_STAGE_SELECT, jobs, count);
    }
    if (a->is_index || (a->flags & KR_MSG_INDICES_ONLY) != 0)
        return;
    node_run_stage(a->node, a->device, KR_STAGE_GATHER, jobs, count);
    node_run_stage(a->node, a->device, KR_STAGE_ATTEND, jobs, count);
    node_run_stage(a->node, a->device, KR_STAGE_MERGE, jobs, count);
}

static void run(attend *a)
{
    node_job *jobs = (node_job *)(void *)a->device->jobs.data;
    uint32_t count;

    while ((count = next_wave(a, jobs)) != 0)
        run_wave(a, jobs, count);
    if (a->key == NULL)
        return;
    for (uint32_t i = 0; i < a->rows; i++) {
        const row_state *row = &a->row[i];
        row->session->tokens[a->layer] = row_end(row);
        kr_kv_session_record(&a->node->store, row->session, a->layer)->tokens_covered = row_end(row);
    }
}

/* ---- the reply ---- */

/* Moves the lists together; returns the number of indices. */
static uint64_t compact(attend *a)
{
    uint64_t at = 0;

    for (uint64_t list = 0; list < (uint64_t)a->tokens * a->lists; list++) {
        memmove(a->selected + at, a->selected + list * a->stride, 4ull * a->counts[list]);
        at += a->counts[list];
    }
    return at;
}

static kr_status reply(attend *a, node_connection *connection, kr_err *err)
{
    static const uint8_t padding[8];
    const kr_attention_shape *s = &a->geometry->shape[a->layer];
    const bool indices_only = (a->flags & KR_MSG_INDICES_ONLY) != 0;
    const uint64_t bytes = 4ull * a->tokens * s->heads * s->value_dim, lists = (uint64_t)a->tokens * a->lists;
    kr_piece piece[4];
    uint32_t pieces = 0;

    if (!indices_only) {
        piece[pieces++] = (kr_piece){a->output, bytes};
        piece[pieces++] = (kr_piece){padding, kr_align_up(bytes, 8) - bytes};
    }
    if (lists != 0 && (a->flags & (KR_MSG_INDICES_ONLY | KR_MSG_WANT_SELECTION)) != 0) {
        const uint64_t indices = compact(a);
        piece[pieces++] = (kr_piece){a->counts, 4 * lists};
        piece[pieces++] = (kr_piece){a->selected, 4 * indices};
    }
    return node_reply(connection, a->message, indices_only ? KR_MSG_INDICES : KR_MSG_OUTPUT, a->rows, piece,
                      pieces, err);
}

/* What the layer's method makes of the message's kind and flags. */
static kr_status begin_attend(attend *a, kr_err *err)
{
    const kr_geometry *g = a->geometry;
    const kr_method_plan *plan = &g->plan[a->layer];
    const bool with_indices = (a->flags & KR_MSG_WITH_INDICES) != 0;
    const bool indices_only = (a->flags & KR_MSG_INDICES_ONLY) != 0;

    if (with_indices && indices_only)
        return kr_fail(err, KR_E_ARG, "ATTEND with indices cannot ask for indices only");
    if (!plan->dense && g->method[a->layer]->lists != NULL) {
        const uint64_t most = plan->selected_max != 0 ? plan->selected_max : g->context_max;
        a->lists = g->method[a->layer]->lists(&g->config[a->layer], &g->shape[a->layer]);
        a->stride = (uint32_t)kr_ceil_div(most, plan->unit_tokens);
    }
    a->is_index = a->message->header.kind == KR_MSG_INDEX;
    a->append = (a->flags & KR_MSG_NO_APPEND) == 0;
    a->indexed_before = !a->is_index && !with_indices && (plan->separate_index_query || !plan->owns_index);
    if (a->is_index && (!plan->separate_index_query || !plan->owns_index))
        return kr_fail(err, KR_E_UNSUPPORTED, "INDEX: layer %u has no index query of its own", a->layer);
    if (a->is_index && (a->flags & ~(uint32_t)KR_MSG_INDICES_ONLY) != 0)
        return kr_fail(err, KR_E_ARG, "INDEX with flags %#x; it may only ask for indices", a->flags);
    if (a->indexed_before && indices_only)
        return kr_fail(err, KR_E_ARG, "layer %u: ask for indices in its INDEX message", a->layer);
    if ((a->is_index || a->indexed_before) && a->message->header.micro_batch >= NODE_MICRO_BATCHES)
        return kr_fail(err, KR_E_LIMIT, "micro-batch %u; at most %d", a->message->header.micro_batch,
                       NODE_MICRO_BATCHES);
    return KR_OK;
}

kr_status node_attend(kr_node *node, node_device *device, node_connection *connection,
                      const kr_message *message, kr_err *err)
{
    const kr_geometry *g = &node->store.geometry;
    attend a = {.node = node,
                .device = device,
                .message = message,
                .geometry = g,
                .layer = message->header.layer,
                .rows = message->header.rows,
                .flags = message->header.flags};
    const uint64_t begin = kr_now_ns(node->config.clock);
    kr_status status;

    status = begin_attend(&a, err);
    if (status == KR_OK)
        status = read_payload(&a, connection->client, err);
    if (status == KR_OK)
        status = grow(&a, err);
    if (status != KR_OK)
        return status;
    run(&a);
    device->busy_ns += kr_now_ns(node->config.clock) - begin;
    if (a.is_index) {
        status = node_pending_keep(device, message, connection->client, a.wire_row, a.rows,
                                   selection_bytes(&a), a.counts, err);
        if (status != KR_OK || (a.flags & KR_MSG_INDICES_ONLY) == 0)
            return status; /* no reply of its own */
    }
    return reply(&a, connection, err);
}
