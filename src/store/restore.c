/* Reading a saved session back: every byte checked, and the whole session or nothing. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "store/pages.h"
#include "store/save_format.h"

enum { PATH_BYTES = 4096 + 128 };

static kr_status check_header(const kr_store *store, const kr_save_reader *r, const kr_save_header *h,
                              kr_err *err)
{
    const kr_geometry *g = &store->geometry;

    if (h->fingerprint != g->fingerprint || h->layers != g->layers || h->groups != g->groups)
        return kr_fail(err, KR_E_SHAPE, "saved session %s is of another model (fingerprint %llx, %u layers)",
                       r->name, (unsigned long long)h->fingerprint, h->layers);
    if (h->tokens_max == 0 || h->tokens_max > g->context_max)
        return kr_fail(err, KR_E_LIMIT,
                       "saved session %s is for %llu tokens; the node is configured for %llu", r->name,
                       (unsigned long long)h->tokens_max, (unsigned long long)g->context_max);
    for (uint32_t i = 0; i < g->groups; i++)
        if ((g->window[i] == 0 && h->first[i] != 0) ||
            h->count[i] - h->first[i] > kr_geometry_pages(g, i, h->tokens_max))
            return kr_fail(err, KR_E_FORMAT, "saved session %s: pages %llu to %llu of group %u", r->name,
                           (unsigned long long)h->first[i], (unsigned long long)h->count[i], i);
    return KR_OK;
}

/* Layers must be the node's; lengths must lie within the pages. */
static kr_status read_layers(const kr_store *store, kr_save_reader *r, const kr_save_header *h,
                             uint64_t *tokens, kr_err *err)
{
    kr_save_layer layer[KR_LAYERS_MAX];
    kr_status status = kr_save_read_frame(r, KR_SAVE_LAYERS, 0, layer, h->layers * sizeof layer[0], err);

    for (uint32_t l = 0; l < h->layers && status == KR_OK; l++) {
        kr_save_layer want = kr_save_layer_of(store, NULL, l);

        want.tokens = layer[l].tokens;
        /* The struct is the file's form, without padding: equal are those whose bytes are. */
        if (memcmp((const void *)&want, (const void *)&layer[l], sizeof want) != 0)
            return kr_fail(err, KR_E_SHAPE,
                           "saved session %s: layer %u has another shape, KV type or method (%.15s)", r->name,
                           l, layer[l].config.name);
        status = kr_save_check_length(r, h, &layer[l], l, err);
        tokens[l] = layer[l].tokens;
    }
    if (status == KR_OK && (h->record_bytes != store->geometry.record_bytes ||
                            memcmp(h->page_bytes, store->geometry.page_bytes, sizeof h->page_bytes) != 0))
        status = kr_fail(err, KR_E_SHAPE, "saved session %s has pages of another size, %llu bytes", r->name,
                         (unsigned long long)h->page_bytes[0]);
    return status;
}

static kr_status read_boundaries(kr_save_reader *r, const kr_save_header *h, kr_kv_session *s, kr_err *err)
{
    kr_boundary *b = kr_realloc(s->boundaries, h->boundaries * sizeof *b);

    if (b == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for %u boundaries of a session", h->boundaries);
    s->boundaries = b;
    s->boundary_count = s->boundary_capacity = h->boundaries;
    return kr_save_read_boundaries(r, h, b, err);
}

static kr_status read_records(const kr_store *store, kr_save_reader *r, kr_kv_session *s, kr_err *err)
{
    const kr_geometry *g = &store->geometry;
    kr_status status = kr_save_read_frame(r, KR_SAVE_RECORDS, 0, s->records, g->record_bytes, err);
    const uint8_t *at = s->records;

    for (uint32_t l = 0; l < g->layers && status == KR_OK; at += kr_geometry_record_bytes(g, l), l++) {
        kr_record_header *record = (kr_record_header *)(uintptr_t)at;
        const uint64_t checksum = record->checksum;

        if (record->magic != KR_RECORD_MAGIC || record->version != KR_RECORD_VERSION || record->layer != l ||
            record->body_bytes != g->plan[l].record_body_bytes ||
            record->method_version != g->method[l]->version ||
            memcmp(record->method, g->config[l].name, sizeof record->method) != 0)
            return kr_fail(err, KR_E_FORMAT, "saved session %s: malformed index record of layer %u", r->name,
                           l);
        record->checksum = 0;
        if (kr_hash64(record, sizeof *record + record->body_bytes, 0) != checksum)
            return kr_fail(err, KR_E_CHECKSUM, "saved session %s: the index record of layer %u is damaged",
                           r->name, l);
    }
    return status;
}

static kr_status read_pages(kr_store *store, kr_save_reader *r, const kr_save_header *h, kr_kv_session *s,
                            kr_err *err)
{
    kr_status status = KR_OK;

    for (uint32_t g = 0; g < h->groups && status == KR_OK; g++) {
        status = kr_pages_begin_at(store, s, g, h->first[g], h->count[g], err);
        for (uint64_t p = h->first[g]; p < h->count[g] && status == KR_OK; p++)
            status = kr_save_read_frame(r, KR_SAVE_PAGE, kr_save_page_index(g, p), s->group[g].base[p],
                                        h->page_bytes[g], err);
    }
    return status;
}

/* Everything after the header, into a session that nobody knows yet. */
static kr_status read_session(kr_store *store, kr_save_reader *r, const kr_save_header *h, kr_kv_session *s,
                              uint8_t *blob, kr_err *err)
{
    uint64_t tokens[KR_LAYERS_MAX];
    kr_status status = read_layers(store, r, h, tokens, err);

    if (status == KR_OK)
        status = read_boundaries(r, h, s, err);
    if (status == KR_OK)
        status = read_records(store, r, s, err);
    if (status == KR_OK)
        status = kr_save_read_frame(r, KR_SAVE_BLOB, 0, blob, h->blob_bytes, err);
    if (status == KR_OK)
        status = read_pages(store, r, h, s, err);
    if (status == KR_OK)
        status = kr_save_read_end(r, err);
    if (status == KR_OK)
        memcpy(s->tokens, tokens, h->layers * sizeof tokens[0]);
    return status;
}

static kr_status make_room(const kr_store *store, kr_save_reader *r, const kr_save_header *h, kr_err *err)
{
    const uint64_t sizes[] = {h->layers * sizeof(kr_save_layer), h->boundaries * sizeof(kr_boundary),
                              store->geometry.record_bytes,      h->blob_bytes,
                              store->geometry.page_bytes[0],     store->geometry.page_bytes[1]};
    uint64_t most = 0;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        most = sizes[i] > most ? sizes[i] : most;
    return kr_save_reader_room(r, ZSTD_compressBound(most), err);
}

/* The file is open. */
static kr_status restore(kr_store *store, kr_save_reader *r, uint64_t client, uint64_t tokens_max,
                         const kr_store_policy *policy, kr_kv_session **session, uint8_t **blob,
                         uint32_t *blob_bytes, kr_err *err)
{
    kr_save_header h;
    kr_kv_session *s = NULL;
    uint8_t *data = NULL;
    kr_status status = kr_save_read_header(r, &h, err);

    if (status == KR_OK)
        status = check_header(store, r, &h, err);
    if (status == KR_OK)
        status = make_room(store, r, &h, err);
    if (status != KR_OK)
        return status;
    data = kr_alloc(h.blob_bytes);
    if (data == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for %u bytes of client data", h.blob_bytes);
    const kr_open_request request = {.tokens_max = tokens_max > h.tokens_max ? tokens_max : h.tokens_max,
                                     .seed = h.seed,
                                     .client = client};
    status = kr_store_open(store, &request, policy, &s, err);
    if (status == KR_OK)
        status = read_session(store, r, &h, s, data, err);
    if (status != KR_OK) {
        if (s != NULL)
            kr_store_close(store, s);
        kr_free(data);
        return status;
    }
    *session = s;
    *blob = data;
    *blob_bytes = h.blob_bytes;
    return KR_OK;
}

kr_status kr_store_restore(kr_store *store, uint64_t client, const char *folder, const char *name,
                           uint64_t tokens_max, const kr_store_policy *policy, kr_kv_session **session,
                           uint8_t **blob, uint32_t *blob_bytes, kr_err *err)
{
    char path[PATH_BYTES];
    kr_save_reader r = {.name = name};
    kr_status status = kr_save_path(path, sizeof path, folder, name, "", err);

    if (status != KR_OK)
        return status;
    r.file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* or a FIFO hangs us */
    if (r.file < 0)
        return kr_fail(err, errno == ENOENT ? KR_E_NOT_FOUND : KR_E_IO, "restoring %s: %s", name,
                       strerror(errno));
    status = restore(store, &r, client, tokens_max, policy, session, blob, blob_bytes, err);
    close(r.file);
    kr_save_reader_free(&r);
    return status;
}
