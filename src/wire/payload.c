/* Readers of message payloads. take() is the only place that moves bytes out of a payload: it
 * refuses to read past the end, so every reader below is bounds-checked by construction. */
#include "wire/payload.h"

#include <math.h>
#include <string.h>

/* What is left of a payload. */
typedef struct {
    const uint8_t *next;
    uint64_t left;
} reader;

static kr_status take(reader *r, void *out, uint64_t bytes, const char *what, kr_err *err)
{
    if (bytes > r->left)
        return kr_fail(err, KR_E_FORMAT, "%s needs %llu bytes, the message has %llu left", what,
                       (unsigned long long)bytes, (unsigned long long)r->left);
    if (bytes != 0)
        memcpy(out, r->next, bytes);
    r->next += bytes;
    r->left -= bytes;
    return KR_OK;
}

/* The tail of a payload must be exactly bytes long; *tail points at it. */
static kr_status tail(const reader *r, uint64_t bytes, const char *what, const uint8_t **out, kr_err *err)
{
    if (bytes != r->left)
        return kr_fail(err, KR_E_FORMAT, "%s: %llu bytes follow, %llu were announced", what,
                       (unsigned long long)r->left, (unsigned long long)bytes);
    *out = r->next;
    return KR_OK;
}

/* A payload that is one struct and nothing else. */
static kr_status whole(const uint8_t *payload, uint64_t bytes, void *out, uint64_t size, const char *what,
                       kr_err *err)
{
    if (bytes != size)
        return kr_fail(err, KR_E_FORMAT, "%s has %llu bytes, not %llu", what, (unsigned long long)bytes,
                       (unsigned long long)size);
    memcpy(out, payload, size);
    return KR_OK;
}

static kr_status reserved_zero(uint64_t value, const char *what, kr_err *err)
{
    return value == 0 ? KR_OK : kr_fail(err, KR_E_FORMAT, "%s: a reserved field is not zero", what);
}

static kr_status handle_check(uint64_t handle, const char *what, kr_err *err)
{
    if ((uint32_t)handle != 0) /* the slot half is slot + 1 */
        return KR_OK;
    return kr_fail(err, KR_E_FORMAT, "%s: session handle %#llx is not valid", what,
                   (unsigned long long)handle);
}

kr_status kr_msg_rows_read(const uint8_t *payload, uint64_t bytes, uint32_t count, uint64_t tokens_max,
                           kr_msg_row *rows, uint64_t *used, kr_err *err)
{
    reader r = {payload, bytes};
    uint64_t tokens = 0, end;
    kr_status status = KR_OK;

    if ((uint64_t)count * sizeof *rows > bytes)
        return kr_fail(err, KR_E_FORMAT, "%u rows announced in a message of %llu bytes", count,
                       (unsigned long long)bytes);
    for (uint32_t i = 0; i < count && status == KR_OK; i++) {
        kr_msg_row row = {0};
        status = take(&r, &row, sizeof row, "a row", err);
        if (status == KR_OK)
            status = handle_check(row.session, "row", err);
        if (status == KR_OK)
            status = reserved_zero(row.reserved, "row", err);
        if (status != KR_OK)
            return status;
        if (row.tokens == 0 || row.is_prefill > 1 || !kr_add_u64(row.position, row.tokens, &end))
            return kr_fail(err, KR_E_FORMAT, "row %u: %u tokens at position %llu, prefill %u", i, row.tokens,
                           (unsigned long long)row.position, row.is_prefill);
        tokens += row.tokens; /* at most 2^16 rows of 2^32 tokens: cannot wrap */
        if (tokens > tokens_max)
            return kr_fail(err, KR_E_LIMIT, "the message's rows hold more than %llu tokens",
                           (unsigned long long)tokens_max);
    }
    r = (reader){payload, bytes};
    (void)take(&r, rows, (uint64_t)count * sizeof *rows, "rows", err); /* the loop has read them all */
    *used = bytes - r.left;
    return KR_OK;
}

/* One list: count indices from r, ascending and below index_end. */
static kr_status list_check(reader *r, uint32_t list, uint32_t count, uint32_t index_end, kr_err *err)
{
    uint32_t index = 0, least = 0;

    for (uint32_t i = 0; i < count; i++) {
        kr_status status = take(r, &index, sizeof index, "selection", err);
        if (status != KR_OK)
            return status;
        if (index >= index_end || index < least)
            return kr_fail(err, KR_E_FORMAT, "selection list %u: index %u after %u, below %u expected", list,
                           index, least, index_end);
        least = index + 1; /* index < index_end <= 2^32 - 1 */
    }
    return KR_OK;
}

kr_status kr_msg_lists_read(const uint8_t *part, uint64_t bytes, uint32_t lists, uint32_t index_end,
                            uint32_t *counts, uint32_t *indices, uint64_t capacity, uint64_t *used,
                            kr_err *err)
{
    const uint64_t count_bytes = (uint64_t)lists * sizeof(uint32_t);
    reader head = {part, bytes}, body;
    uint64_t total = 0;

    if (count_bytes > bytes)
        return kr_fail(err, KR_E_FORMAT, "%u selection lists announced in %llu bytes", lists,
                       (unsigned long long)bytes);
    body = (reader){part + count_bytes, bytes - count_bytes};
    for (uint32_t i = 0; i < lists; i++) {
        uint32_t count = 0;
        (void)take(&head, &count, sizeof count, "count", err); /* count_bytes were checked */
        total += count;
        if (total > capacity)
            return kr_fail(err, KR_E_LIMIT, "selection of more than %llu indices",
                           (unsigned long long)capacity);
        kr_status status = list_check(&body, i, count, index_end, err);
        if (status != KR_OK)
            return status;
    }
    if (count_bytes != 0)
        memcpy(counts, part, count_bytes);
    if (total != 0)
        memcpy(indices, part + count_bytes, total * sizeof(uint32_t));
    *used = bytes - body.left;
    return KR_OK;
}

kr_status kr_msg_hello_read(const uint8_t *payload, uint64_t bytes, kr_msg_hello *out, kr_err *err)
{
    kr_msg_hello hello = {0};
    kr_status status = whole(payload, bytes, &hello, sizeof hello, "HELLO", err);

    if (status != KR_OK)
        return status;
    if (hello.version_min > hello.version_max)
        return kr_fail(err, KR_E_FORMAT, "HELLO: versions %u to %u", hello.version_min, hello.version_max);
    if (memchr(hello.build, 0, sizeof hello.build) == NULL)
        return kr_fail(err, KR_E_FORMAT, "HELLO: build text is not ended");
    *out = hello;
    return KR_OK;
}

kr_status kr_msg_proof_read(const uint8_t *payload, uint64_t bytes, kr_msg_proof *out, kr_err *err)
{
    return whole(payload, bytes, out, sizeof *out, "PROOF", err);
}

kr_status kr_msg_welcome_read(const uint8_t *payload, uint64_t bytes, kr_msg_welcome *out, kr_err *err)
{
    enum { BEAT_MS_MAX = 600000 };
    kr_msg_welcome w = {0};
    kr_status status = whole(payload, bytes, &w, sizeof w, "WELCOME", err);

    if (status != KR_OK)
        return status;
    if (w.epoch == 0 || w.devices == 0 || w.devices > KR_MSG_DEVICES_MAX)
        return kr_fail(err, KR_E_FORMAT, "WELCOME: epoch %u, %u devices", w.epoch, w.devices);
    if (w.beat_interval_ms == 0 || w.dead_after_ms <= w.beat_interval_ms || w.dead_after_ms > BEAT_MS_MAX)
        return kr_fail(err, KR_E_FORMAT, "WELCOME: a beat every %u ms, dead after %u ms", w.beat_interval_ms,
                       w.dead_after_ms);
    if (w.payload_max == 0 || w.payload_max > KR_MSG_PAYLOAD_MAX)
        return kr_fail(err, KR_E_FORMAT, "WELCOME: payloads of %llu bytes",
                       (unsigned long long)w.payload_max);
    *out = w;
    return KR_OK;
}

kr_status kr_msg_path_read(const uint8_t *payload, uint64_t bytes, kr_msg_path *out, const uint8_t **address,
                           kr_err *err)
{
    reader r = {payload, bytes};
    kr_msg_path path = {0};
    kr_status status = take(&r, &path, sizeof path, "PATH", err);

    if (status != KR_OK)
        return status;
    if (path.transports == 0 || (path.transports & ~(uint32_t)KR_PATH_ALL) != 0)
        return kr_fail(err, KR_E_FORMAT, "PATH: unknown set of transports %#x", path.transports);
    if (path.address_bytes > KR_PATH_ADDRESS_MAX)
        return kr_fail(err, KR_E_LIMIT, "PATH: address of %u bytes; at most %d", path.address_bytes,
                       KR_PATH_ADDRESS_MAX);
    if (path.address_bytes != 0 && (path.transports & (path.transports - 1)) != 0)
        return kr_fail(err, KR_E_FORMAT, "PATH: one address for transports %#x", path.transports);
    status = tail(&r, path.address_bytes, "PATH", address, err);
    if (status == KR_OK)
        *out = path;
    return status;
}

static kr_status configure_check(const kr_msg_configure *c, kr_err *err)
{
    enum { HEADS_MAX = 1 << 12, DIM_MAX = 1 << 14 };
    const uint64_t context_end = (uint64_t)1 << 31; /* positions are 32-bit in selections */

    if (c->layers == 0 || c->layers > KR_MSG_LAYERS_MAX || c->groups == 0 || c->groups > 2 || c->latent > 1)
        return kr_fail(err, KR_E_FORMAT, "CONFIGURE: %u layers in %u groups, latent %u", c->layers, c->groups,
                       c->latent);
    if (c->kv_dtype != KR_F32 && c->kv_dtype != KR_F16 && c->kv_dtype != KR_BF16)
        return kr_fail(err, KR_E_FORMAT, "CONFIGURE: KV type %u is not F32, F16 or BF16", c->kv_dtype);
    if (c->heads == 0 || c->heads > HEADS_MAX || c->kv_heads == 0 || c->kv_heads > c->heads ||
        c->key_dim == 0 || c->key_dim > DIM_MAX || c->value_dim > DIM_MAX)
        return kr_fail(err, KR_E_FORMAT, "CONFIGURE: %u heads, %u KV heads, key %u, value %u wide", c->heads,
                       c->kv_heads, c->key_dim, c->value_dim);
    if (!isfinite(c->softmax_scale) || c->context_max == 0 || c->context_max > context_end ||
        c->tokens_max == 0 || c->tokens_max > KR_MSG_ROWS_MAX)
        return kr_fail(err, KR_E_FORMAT, "CONFIGURE: scale %g, context %llu, %u tokens a message",
                       (double)c->softmax_scale, (unsigned long long)c->context_max, c->tokens_max);
    return KR_OK;
}

kr_status kr_msg_configure_read(const uint8_t *payload, uint64_t bytes, kr_msg_configure *out,
                                kr_msg_layer *layers, kr_err *err)
{
    reader r = {payload, bytes};
    const uint8_t *array = NULL;
    kr_msg_configure c = {0};
    kr_status status = take(&r, &c, sizeof c, "CONFIGURE", err);

    if (status == KR_OK)
        status = configure_check(&c, err);
    if (status == KR_OK)
        status = tail(&r, (uint64_t)c.layers * sizeof *layers, "CONFIGURE layers", &array, err);
    if (status != KR_OK)
        return status;
    for (uint32_t i = 0; i < c.layers; i++) {
        kr_msg_layer layer;
        memcpy(&layer, array + i * sizeof layer, sizeof layer);
        if (layer.group >= c.groups || layer.index_owner >= c.layers || layer.reserved != 0)
            return kr_fail(err, KR_E_FORMAT, "CONFIGURE: layer %u in group %u, index of layer %u", i,
                           layer.group, layer.index_owner);
    }
    memcpy(layers, array, c.layers * sizeof *layers);
    *out = c;
    return KR_OK;
}

/* The hash chain that ends OPEN and END_PREFILL. */
static kr_status prefix_tail(const reader *r, uint32_t pages, const char *what, const uint8_t **prefix,
                             kr_err *err)
{
    if (pages > KR_MSG_PREFIX_PAGES_MAX)
        return kr_fail(err, KR_E_LIMIT, "%s: prefix of %u pages; at most %d", what, pages,
                       KR_MSG_PREFIX_PAGES_MAX);
    return tail(r, (uint64_t)pages * sizeof(kr_hash128), what, prefix, err);
}

kr_status kr_msg_open_read(const uint8_t *payload, uint64_t bytes, kr_msg_open *out, const uint8_t **prefix,
                           kr_err *err)
{
    reader r = {payload, bytes};
    kr_msg_open open = {0};
    kr_status status = take(&r, &open, sizeof open, "OPEN", err);

    if (status == KR_OK)
        status = reserved_zero(open.reserved, "OPEN", err);
    if (status == KR_OK && open.tokens_max == 0)
        status = kr_fail(err, KR_E_FORMAT, "OPEN: a session of 0 tokens");
    if (status == KR_OK)
        status = prefix_tail(&r, open.prefix_pages, "OPEN", prefix, err);
    if (status == KR_OK)
        *out = open;
    return status;
}

kr_status kr_msg_session_read(const uint8_t *payload, uint64_t bytes, kr_msg_session *out,
                              const uint8_t **prefix, kr_err *err)
{
    reader r = {payload, bytes};
    kr_msg_session session = {0};
    kr_status status = take(&r, &session, sizeof session, "session message", err);

    if (status == KR_OK)
        status = handle_check(session.session, "session message", err);
    if (status == KR_OK)
        status = reserved_zero(session.reserved, "session message", err);
    if (status == KR_OK)
        status = prefix_tail(&r, session.prefix_pages, "session message", prefix, err);
    if (status == KR_OK)
        *out = session;
    return status;
}

kr_hash128 kr_msg_prefix_at(const uint8_t *prefix, uint32_t page)
{
    kr_hash128 hash;

    memcpy(&hash, prefix + (size_t)page * sizeof hash, sizeof hash);
    return hash;
}

kr_status kr_msg_opened_read(const uint8_t *payload, uint64_t bytes, kr_msg_opened *out, const uint8_t **blob,
                             kr_err *err)
{
    reader r = {payload, bytes};
    kr_msg_opened opened = {0};
    kr_status status = take(&r, &opened, sizeof opened, "reply to OPEN", err);

    if (status == KR_OK)
        status = handle_check(opened.session, "reply to OPEN", err);
    if (status == KR_OK && opened.device >= KR_MSG_DEVICES_MAX)
        status = kr_fail(err, KR_E_FORMAT, "reply to OPEN: device %u", opened.device);
    if (status == KR_OK)
        status = tail(&r, opened.client_bytes, "reply to OPEN", blob, err);
    if (status == KR_OK)
        *out = opened;
    return status;
}

/* A name that cannot leave the save folder, hide, or hold a control byte. */
kr_status kr_msg_name_check(const char *name, kr_err *err)
{
    static const char legal[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const size_t bytes = strnlen(name, KR_NAME_BYTES);

    if (bytes == 0 || bytes == KR_NAME_BYTES)
        return kr_fail(err, KR_E_FORMAT, "file name is empty or longer than %d bytes", KR_NAME_BYTES - 1);
    if (name[0] == '.' || name[strspn(name, legal)] != 0)
        return kr_fail(err, KR_E_FORMAT, "file name \"%s\": letters, digits, '.', '_', '-', no leading dot",
                       name);
    return KR_OK;
}

kr_status kr_msg_file_read(const uint8_t *payload, uint64_t bytes, kr_msg_file *out, const uint8_t **blob,
                           kr_err *err)
{
    reader r = {payload, bytes};
    kr_msg_file file = {0};
    kr_status status = take(&r, &file, sizeof file, "SAVE or RESTORE", err);

    if (status == KR_OK && file.session != 0)
        status = handle_check(file.session, "SAVE or RESTORE", err);
    if (status == KR_OK)
        status = kr_msg_name_check(file.name, err);
    if (status == KR_OK)
        status = tail(&r, file.client_bytes, "SAVE or RESTORE", blob, err);
    if (status == KR_OK)
        *out = file;
    return status;
}

kr_status kr_msg_stats_read(const uint8_t *payload, uint64_t bytes, kr_msg_stats *out,
                            kr_msg_device_stats *devices, kr_err *err)
{
    reader r = {payload, bytes};
    const uint8_t *array = NULL;
    kr_msg_stats stats = {0};
    kr_status status = take(&r, &stats, sizeof stats, "STATS", err);

    if (status == KR_OK && (stats.devices == 0 || stats.devices > KR_MSG_DEVICES_MAX))
        status = kr_fail(err, KR_E_FORMAT, "STATS of %u devices", stats.devices);
    if (status == KR_OK)
        status = tail(&r, (uint64_t)stats.devices * sizeof *devices, "STATS", &array, err);
    if (status != KR_OK)
        return status;
    memcpy(devices, array, stats.devices * sizeof *devices);
    *out = stats;
    return KR_OK;
}

uint32_t kr_msg_error_write(const kr_err *failure, uint8_t *bytes)
{
    const int32_t status = failure->status;
    const uint32_t length = (uint32_t)strnlen(failure->text, KR_ERR_TEXT_BYTES - 1);

    memcpy(bytes, &status, 4);
    memcpy(bytes + 4, &length, 4);
    memcpy(bytes + 8, failure->text, length);
    return 8 + length;
}

kr_status kr_msg_error_read(const uint8_t *payload, uint64_t bytes, kr_err *err)
{
    reader r = {payload, bytes};
    const uint8_t *text = NULL;
    int32_t code = 0;
    uint32_t length = 0;
    kr_status status = take(&r, &code, 4, "ERROR", err);

    if (status == KR_OK)
        status = take(&r, &length, 4, "ERROR", err);
    if (status == KR_OK && length >= KR_ERR_TEXT_BYTES)
        status = kr_fail(err, KR_E_LIMIT, "ERROR text of %u bytes", length);
    if (status == KR_OK)
        status = tail(&r, length, "ERROR", &text, err);
    if (status != KR_OK)
        return status;
    switch (code) {
#define KR_STATUS_CASE(name, value, words) case value:
        KR_STATUS_LIST(KR_STATUS_CASE)
#undef KR_STATUS_CASE
        if (code < 0)
            return kr_fail(err, (kr_status)code, "%.*s", (int)length, (const char *)text);
        /* fall through */
    default:
        return kr_fail(err, KR_E_FORMAT, "ERROR message with status %d", code);
    }
}
