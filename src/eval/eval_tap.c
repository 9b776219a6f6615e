/* The tap's link: every call goes on to the embedded node's end, some with a look or an answer first. */
#include "eval/eval_tap.h"

#include <string.h>

#include "base/arena.h"
#include "wire/payload.h"

/* Request numbers of replayed messages: none that an engine counts up to. */
#define REPLAY_SEQUENCE ((uint64_t)1 << 62)

enum { ROWS = 0, QUERY, KEY, VALUE, PARTS };

/* ---- records ---- */

static uint64_t token_bytes(const kr_eval_record *r)
{
    return r->query_bytes + r->key_bytes + r->value_bytes;
}

kr_status kr_eval_record_init(kr_eval_record *record, const kr_program *program, uint64_t tokens, kr_err *err)
{
    const kr_attention_shape *s = &program->shape[0];
    const uint64_t element = kr_dtype_bytes(s->kv_dtype);
    kr_eval_record r = {.layers = program->model->layers,
                        .capacity = tokens,
                        .query_bytes = sizeof(float) * (uint64_t)s->heads * s->key_dim,
                        .key_bytes = element * s->kv_heads * s->key_dim,
                        .value_bytes = s->latent ? 0 : element * s->kv_heads * s->value_dim};
    r.data = kr_alloc(r.layers * tokens * token_bytes(&r));
    if (r.data == NULL)
        return kr_fail(err, KR_E_MEMORY, "eval: no memory for the rows of %llu tokens (%llu bytes)",
                       (unsigned long long)tokens, (unsigned long long)(r.layers * tokens * token_bytes(&r)));
    *record = r;
    return KR_OK;
}

void kr_eval_record_free(kr_eval_record *record)
{
    kr_free(record->data);
    *record = (kr_eval_record){0};
}

/* Rows of a layer from token on; the three areas of a layer lie behind each other. */
static uint8_t *area(const kr_eval_record *r, uint32_t layer, int part, uint64_t token)
{
    uint8_t *at = r->data + layer * r->capacity * token_bytes(r);
    if (part == QUERY)
        return at + token * r->query_bytes;
    at += r->capacity * r->query_bytes;
    return part == KEY ? at + token * r->key_bytes : at + r->capacity * r->key_bytes + token * r->value_bytes;
}

/* Copies bytes at offset of the payload that the pieces make up. */
static void read_pieces(const kr_piece *piece, uint32_t count, uint64_t offset, void *out, uint64_t bytes)
{
    uint8_t *to = out;
    for (uint32_t i = 0; i < count && bytes != 0; i++) {
        if (offset >= piece[i].bytes) {
            offset -= piece[i].bytes;
            continue;
        }
        const uint64_t left = piece[i].bytes - offset, n = left < bytes ? left : bytes;
        memcpy(to, (const uint8_t *)piece[i].data + offset, n);
        to += n;
        bytes -= n;
        offset = 0;
    }
}

/* Writes an ATTEND's rows, whose first token stands at index of the record. */
static void keep_rows(const kr_eval_record *r, uint32_t layer, uint64_t index, uint32_t tokens,
                      const kr_piece *piece, uint32_t count)
{
    const uint64_t query = tokens * r->query_bytes, key = tokens * r->key_bytes;
    uint64_t at = sizeof(kr_msg_row);
    read_pieces(piece, count, at, area(r, layer, QUERY, index), query);
    at += kr_align_up(query, 8);
    read_pieces(piece, count, at, area(r, layer, KEY, index), key);
    at += kr_align_up(key, 8);
    read_pieces(piece, count, at, area(r, layer, VALUE, index), tokens * r->value_bytes);
}

/* ---- looking at ATTEND ---- */

static kr_status see_attend(kr_eval_tap *tap, kr_msg_header *header, const kr_piece *piece, uint32_t count,
                            kr_err *err)
{
    const bool replayed = tap->replay != NULL;
    kr_msg_row row = {0};
    read_pieces(piece, count, 0, &row, sizeof row);
    if (header->rows != 1)
        return kr_fail(err, KR_E_INTERNAL, "eval: a message of %u sessions; one is measured", header->rows);
    const uint64_t first = replayed ? tap->replay->tokens : 0;
    kr_eval_record *to = row.is_prefill ? tap->recording : replayed ? &tap->tail : NULL;
    if (to == NULL)
        return KR_OK;
    if (row.position < first || row.position - first + row.tokens > to->capacity)
        return kr_fail(err, KR_E_INTERNAL, "eval: rows at %llu do not follow the recorded prompt",
                       (unsigned long long)row.position);
    to->tokens = row.position - first + row.tokens;
    keep_rows(to, header->layer, row.position - first, row.tokens, piece, count);
    if (tap->measure != NULL && !row.is_prefill && row.tokens == 1) {
        header->flags |= KR_MSG_WANT_SELECTION;
        tap->due = header->sequence;
    }
    return KR_OK;
}

static uint32_t lists_of(const kr_program *p, uint32_t layer)
{
    const kr_method *method = p->method[layer];
    return p->plan[layer].dense || method->lists == NULL ? 0
                                                         : method->lists(&p->config[layer], &p->shape[layer]);
}

/* Compares the layer's output with dense attention and adds to the sums. */
static kr_status see_output(kr_eval_tap *tap, const kr_message *message, kr_err *err)
{
    const uint32_t layer = message->header.layer, lists = lists_of(tap->program, layer);
    const kr_attention_shape *s = &tap->program->shape[layer];
    const uint64_t bytes = sizeof(float) * (uint64_t)s->heads * s->value_dim, skip = kr_align_up(bytes, 8);
    const kr_eval_record *prompt = tap->replay, *tail = &tap->tail;
    uint64_t used;
    if (message->header.payload_bytes < (lists != 0 ? skip : bytes))
        return kr_fail(err, KR_E_FORMAT, "eval: an OUTPUT of layer %u is short", layer);
    if (lists != 0) {
        const kr_status status = kr_msg_lists_read(message->payload + skip,
                                                   message->header.payload_bytes - skip, lists, UINT32_MAX,
                                                   tap->count, tap->unit, tap->unit_max, &used, err);
        if (status != KR_OK)
            return status;
    }
    const kr_eval_row_view view = {
        .shape = s,
        .query = (const float *)(const void *)area(tail, layer, QUERY, tail->tokens - 1),
        .output = (const float *)(const void *)message->payload,
        .key = {area(prompt, layer, KEY, 0), area(tail, layer, KEY, 0)},
        .value = {area(prompt, layer, VALUE, 0), area(tail, layer, VALUE, 0)},
        .first = prompt->tokens,
        .tokens = prompt->tokens + tail->tokens,
        .lists = lists,
        .unit_tokens = tap->program->plan[layer].unit_tokens,
        .count = tap->count,
        .unit = tap->unit};
    kr_eval_attention(&view, tap->scratch, tap->scratch + view.tokens, tap->head);
    kr_eval_head *sum = tap->measure->sum + (size_t)layer * s->heads;
    for (uint32_t h = 0; h < s->heads; h++) {
        sum[h].recall += tap->head[h].recall;
        sum[h].error += tap->head[h].error;
        sum[h].attended += tap->head[h].attended;
    }
    tap->measure->steps += layer + 1 == tap->program->model->layers;
    return KR_OK;
}

/* ---- standing in for prompts ---- */

/* A request of the tap's own, and the answer that is due; the answer is dropped. */
static kr_status ask(kr_eval_tap *tap, kr_msg_header header, const kr_piece *piece, uint32_t pieces,
                     kr_msg_kind due, kr_err *err)
{
    kr_link *inner = tap->embedded->client;
    const uint64_t deadline = kr_deadline_after(tap->clock, tap->timeout_ns);
    kr_message reply;
    header.epoch = tap->open.epoch;
    header.sequence = REPLAY_SEQUENCE;
    kr_status status = inner->send(inner, header, piece, pieces, deadline, err);
    if (status == KR_OK)
        status = kr_embedded_drive(tap->embedded, deadline, err);
    if (status == KR_OK)
        status = inner->receive(inner, &reply, deadline, err);
    if (status != KR_OK)
        return status;
    if (reply.header.kind == KR_MSG_ERROR)
        status = kr_msg_error_read(reply.payload, reply.header.payload_bytes, err);
    else if (reply.header.kind != due)
        status = kr_fail(err, KR_E_FORMAT, "eval: the node answered with %s; %s is due",
                         kr_msg_name((kr_msg_kind)reply.header.kind), kr_msg_name(due));
    inner->release(inner, &reply);
    return status;
}

/* Methods whose Gather stage keeps state see the whole of a prompt's attention; for the others the rows
 * are stored and nothing is attended. */
static bool only_appends(const kr_program *p, uint32_t layer)
{
    return p->method[layer]->stage[KR_STAGE_GATHER].run == NULL;
}

static kr_status replay_rows(kr_eval_tap *tap, uint32_t layer, uint64_t position, uint32_t tokens,
                             kr_err *err)
{
    static const uint8_t padding[8];
    const kr_eval_record *r = tap->replay;
    const kr_msg_row row = {
        .session = tap->opened.session, .position = position, .tokens = tokens, .is_prefill = 1};
    const uint64_t bytes[PARTS] = {sizeof row, tokens * r->query_bytes, tokens * r->key_bytes,
                                   tokens * r->value_bytes};
    const bool appends = only_appends(tap->program, layer);
    kr_piece piece[2 * PARTS];
    for (int part = ROWS; part < PARTS; part++) {
        const void *data = part == ROWS ? (const void *)&row : area(r, layer, part, position);
        piece[2 * part] = (kr_piece){data, bytes[part]};
        piece[2 * part + 1] = (kr_piece){padding, kr_align_up(bytes[part], 8) - bytes[part]};
    }
    const kr_msg_header header = {.kind = KR_MSG_ATTEND,
                                  .layer = (uint16_t)layer,
                                  .device = tap->opened.device,
                                  .rows = 1,
                                  .flags = appends ? KR_MSG_INDICES_ONLY : 0};
    return ask(tap, header, piece, 2 * PARTS, appends ? KR_MSG_INDICES : KR_MSG_OUTPUT, err);
}

static kr_status replay(kr_eval_tap *tap, kr_err *err)
{
    const kr_eval_record *r = tap->replay;
    kr_status status = KR_OK;
    for (uint64_t at = 0; at < r->tokens && status == KR_OK; at += tap->chunk)
        for (uint32_t layer = 0; layer < r->layers && status == KR_OK; layer++)
            status = replay_rows(tap, layer, at,
                                 r->tokens - at < tap->chunk ? (uint32_t)(r->tokens - at) : tap->chunk, err);
    const kr_msg_session end = {.session = tap->opened.session, .tokens = r->tokens};
    const kr_piece piece = {&end, sizeof end};
    const kr_msg_header header = {.kind = KR_MSG_END_PREFILL, .device = tap->opened.device};
    return status == KR_OK ? ask(tap, header, &piece, 1, KR_MSG_DONE, err) : status;
}

/* The answer to OPEN: the node gets the prompt, and the engine hears that it is there. */
static kr_status see_opened(kr_eval_tap *tap, kr_message *message, kr_err *err)
{
    const uint8_t *blob;
    kr_status status = kr_msg_opened_read(message->payload, message->header.payload_bytes, &tap->opened,
                                          &blob, err);
    if (status == KR_OK && tap->opened.tokens != 0)
        status = kr_fail(err, KR_E_INTERNAL, "eval: the node holds a prefix that was not replayed");
    if (status == KR_OK)
        status = replay(tap, err);
    if (status != KR_OK)
        return status;
    tap->tail.tokens = 0;
    tap->opened.tokens = tap->replay->tokens;
    message->payload = (const uint8_t *)&tap->opened;
    return KR_OK;
}

/* ---- the link ---- */

static kr_link *inner_of(const kr_link *link) { return ((const kr_eval_tap *)link)->embedded->client; }

static kr_status tap_send(kr_link *link, kr_msg_header header, const kr_piece *pieces, uint32_t count,
                          uint64_t deadline_ns, kr_err *err)
{
    kr_eval_tap *tap = (kr_eval_tap *)link;
    kr_link *inner = inner_of(link);
    kr_status status = KR_OK;
    if (header.kind == KR_MSG_OPEN)
        tap->open = header;
    if (header.kind == KR_MSG_ATTEND)
        status = see_attend(tap, &header, pieces, count, err);
    if (status == KR_OK)
        status = inner->send(inner, header, pieces, count, deadline_ns, err);
    link->bytes_sent = inner->bytes_sent;
    link->messages_sent = inner->messages_sent;
    return status;
}

static kr_status tap_receive(kr_link *link, kr_message *message, uint64_t deadline_ns, kr_err *err)
{
    kr_eval_tap *tap = (kr_eval_tap *)link;
    kr_link *inner = inner_of(link);
    kr_status status = inner->receive(inner, message, deadline_ns, err);
    link->bytes_received = inner->bytes_received;
    link->messages_received = inner->messages_received;
    if (status != KR_OK)
        return status;
    if (message->header.kind == KR_MSG_OPEN && tap->replay != NULL)
        status = see_opened(tap, message, err);
    if (message->header.kind == KR_MSG_OUTPUT && tap->due != 0 && message->header.sequence == tap->due) {
        tap->due = 0;
        status = see_output(tap, message, err);
    }
    if (status != KR_OK)
        inner->release(inner, message);
    return status;
}

static void tap_release(kr_link *link, kr_message *message)
{
    kr_link *inner = inner_of(link);
    inner->release(inner, message);
}

/* The node's end stays its owner's. */
static void tap_close(kr_link *link) { (void)link; }

static const char *tap_describe(const kr_link *link)
{
    const kr_link *inner = inner_of(link);
    return inner->describe(inner);
}

void kr_eval_tap_init(kr_eval_tap *tap, kr_embedded *embedded, const kr_clock *clock, uint64_t timeout_ns)
{
    *tap = (kr_eval_tap){.embedded = embedded, .clock = clock, .timeout_ns = timeout_ns};
    tap->link.send = tap_send;
    tap->link.receive = tap_receive;
    tap->link.release = tap_release;
    tap->link.close = tap_close;
    tap->link.describe = tap_describe;
}

kr_status kr_eval_tap_bind(kr_eval_tap *tap, const kr_program *program, uint64_t context_max,
                           uint64_t tail_tokens, uint32_t chunk, kr_err *err)
{
    const kr_attention_shape *s = &program->shape[0];
    uint32_t lists = 1;
    for (uint32_t l = 0; l < program->model->layers; l++)
        lists = lists_of(program, l) > lists ? lists_of(program, l) : lists;
    tap->program = program;
    tap->chunk = chunk;
    tap->unit_max = lists * (context_max + 1);
    tap->count = kr_alloc(lists * sizeof *tap->count);
    tap->unit = kr_alloc(tap->unit_max * sizeof *tap->unit);
    tap->scratch = kr_alloc((context_max + s->value_dim) * sizeof *tap->scratch);
    tap->head = kr_alloc(s->heads * sizeof *tap->head);
    if (tap->count == NULL || tap->unit == NULL || tap->scratch == NULL || tap->head == NULL)
        return kr_fail(err, KR_E_MEMORY, "eval: no memory for selections over %llu tokens",
                       (unsigned long long)context_max);
    return kr_eval_record_init(&tap->tail, program, tail_tokens, err);
}

void kr_eval_tap_free(kr_eval_tap *tap)
{
    kr_eval_record_free(&tap->tail);
    kr_free(tap->count);
    kr_free(tap->unit);
    kr_free(tap->scratch);
    kr_free(tap->head);
}
