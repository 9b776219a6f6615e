/* Writing a session to a file: complete under its name, or not there at all. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "store/save_format.h"

enum { ZSTD_LEVEL = 1, PATH_BYTES = 4096 + 128 };

kr_save_layer kr_save_layer_of(const kr_store *store, const kr_kv_session *s, uint32_t l)
{
    const kr_attention_shape *shape = &store->geometry.shape[l];

    return (kr_save_layer){
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .key_dim = shape->key_dim,
        .value_dim = shape->value_dim,
        .latent = shape->latent,
        .kv_dtype = shape->kv_dtype,
        .window = shape->window,
        .group = store->geometry.group_of[l],
        .softmax_scale = shape->softmax_scale,
        .method_version = store->geometry.method[l]->version,
        .config = store->geometry.config[l],
        .tokens = s != NULL ? s->tokens[l] : 0,
    };
}

uint64_t kr_save_checksum(const void *stored, uint64_t bytes, kr_save_kind kind, uint64_t index)
{
    return kr_hash64(stored, bytes, (uint64_t)kind << 32 ^ index);
}

uint64_t kr_save_header_checksum(const kr_save_header *header)
{
    kr_save_header h = *header;

    h.checksum = 0;
    return kr_hash64(&h, sizeof h, KR_SAVE_VERSION);
}

kr_status kr_save_path(char *path, size_t bytes, const char *folder, const char *name, const char *suffix,
                       kr_err *err)
{
    /* Names of clients have no leading dot: a temporary name is never one of theirs. */
    const int n = snprintf(path, bytes, "%s/%s%s%s", folder, suffix[0] != 0 ? "." : "", name, suffix);

    if (n < 0 || (size_t)n >= bytes)
        return kr_fail(err, KR_E_LIMIT, "path of saved session %s is too long", name);
    return KR_OK;
}

/* ---- writing ---- */

typedef struct {
    int file;
    const char *name;
    uint8_t *packed; /* [capacity] */
    size_t capacity;
    ZSTD_CCtx *zstd;
} writer;

static kr_status write_all(const writer *w, const void *data, uint64_t bytes, kr_err *err)
{
    const uint8_t *at = data;

    while (bytes > 0) {
        const ssize_t n = write(w->file, at, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return kr_fail(err, KR_E_IO, "saving %s: %s", w->name, strerror(errno));
        at += n;
        bytes -= (uint64_t)n;
    }
    return KR_OK;
}

static kr_status write_frame(writer *w, kr_save_kind kind, uint64_t index, const void *raw, uint64_t bytes,
                             kr_err *err)
{
    kr_save_frame frame = {.kind = kind, .index = index};
    kr_status status;

    if (bytes > 0) {
        const size_t packed = ZSTD_compressCCtx(w->zstd, w->packed, w->capacity, raw, bytes, ZSTD_LEVEL);
        if (ZSTD_isError(packed))
            return kr_fail(err, KR_E_INTERNAL, "saving %s: %s", w->name, ZSTD_getErrorName(packed));
        frame.stored_bytes = packed;
    }
    frame.checksum = kr_save_checksum(w->packed, frame.stored_bytes, kind, index);
    status = write_all(w, &frame, sizeof frame, err);
    return status == KR_OK ? write_all(w, w->packed, frame.stored_bytes, err) : status;
}

static kr_save_header header_of(const kr_store *store, const kr_kv_session *s, uint32_t blob_bytes)
{
    const kr_geometry *g = &store->geometry;
    kr_save_header h = {
        .magic = KR_SAVE_MAGIC,
        .version = KR_SAVE_VERSION,
        .layers = g->layers,
        .groups = g->groups,
        .boundaries = s->boundary_count,
        .fingerprint = g->fingerprint,
        .tokens_max = s->tokens_max,
        .seed = s->seed,
        .record_bytes = g->record_bytes,
        .blob_bytes = blob_bytes,
    };

    for (uint32_t i = 0; i < g->groups; i++) {
        h.first[i] = s->group[i].first;
        h.count[i] = s->group[i].count;
        h.page_bytes[i] = g->page_bytes[i];
    }
    h.checksum = kr_save_header_checksum(&h);
    return h;
}

/* Records with their checksums set. */
static kr_status write_records(writer *w, const kr_store *store, const kr_kv_session *s, kr_err *err)
{
    for (uint32_t l = 0; l < store->geometry.layers; l++) {
        kr_record_header *record = kr_kv_session_record(store, s, l);
        record->checksum = 0;
        record->checksum = kr_hash64(record, sizeof *record + record->body_bytes, 0);
    }
    return write_frame(w, KR_SAVE_RECORDS, 0, s->records, store->geometry.record_bytes, err);
}

static kr_status write_session(writer *w, const kr_store *store, const kr_kv_session *s, const uint8_t *blob,
                               uint32_t blob_bytes, kr_err *err)
{
    const kr_save_header h = header_of(store, s, blob_bytes);
    kr_save_layer layer[KR_LAYERS_MAX];
    kr_status status = write_all(w, &h, sizeof h, err);

    memset(layer, 0, sizeof layer);
    for (uint32_t l = 0; l < h.layers; l++)
        layer[l] = kr_save_layer_of(store, s, l);
    if (status == KR_OK)
        status = write_frame(w, KR_SAVE_LAYERS, 0, layer, h.layers * sizeof layer[0], err);
    if (status == KR_OK)
        status = write_frame(w, KR_SAVE_BOUNDARIES, 0, s->boundaries, h.boundaries * sizeof s->boundaries[0],
                             err);
    if (status == KR_OK)
        status = write_records(w, store, s, err);
    if (status == KR_OK)
        status = write_frame(w, KR_SAVE_BLOB, 0, blob, blob_bytes, err);
    for (uint32_t g = 0; g < h.groups; g++)
        for (uint64_t p = h.first[g]; p < h.count[g] && status == KR_OK; p++)
            status = write_frame(w, KR_SAVE_PAGE, kr_save_page_index(g, p), s->group[g].base[p],
                                 h.page_bytes[g], err);
    return status == KR_OK ? write_frame(w, KR_SAVE_END, 0, NULL, 0, err) : status;
}

/* Makes the renamed file outlive a power cut. */
static void sync_folder(const char *folder)
{
    const int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (file >= 0) {
        (void)fsync(file);
        close(file);
    }
}

static uint64_t largest_frame(const kr_store *store, uint32_t blob_bytes)
{
    const kr_geometry *g = &store->geometry;
    const uint64_t sizes[] = {g->layers * sizeof(kr_save_layer),
                              KR_BOUNDARIES_MAX * sizeof(kr_boundary),
                              g->record_bytes,
                              blob_bytes,
                              g->page_bytes[0],
                              g->page_bytes[1]};
    uint64_t most = 0;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        most = sizes[i] > most ? sizes[i] : most;
    return most;
}

kr_status kr_store_save(kr_store *store, kr_kv_session *s, const char *folder, const char *name,
                        const uint8_t *blob, uint32_t blob_bytes, kr_err *err)
{
    char path[PATH_BYTES], temporary[PATH_BYTES], suffix[32];
    writer w = {.file = -1, .name = name};
    kr_status status;

    if (blob_bytes > KR_SAVE_BLOB_MAX)
        return kr_fail(err, KR_E_LIMIT, "client data of %u bytes; at most %d are saved", blob_bytes,
                       KR_SAVE_BLOB_MAX);
    snprintf(suffix, sizeof suffix, ".%llx", (unsigned long long)s->handle);
    status = kr_save_path(path, sizeof path, folder, name, "", err);
    if (status == KR_OK)
        status = kr_save_path(temporary, sizeof temporary, folder, name, suffix, err);
    if (status != KR_OK)
        return status;
    w.capacity = ZSTD_compressBound(largest_frame(store, blob_bytes));
    w.packed = kr_alloc(w.capacity);
    w.zstd = ZSTD_createCCtx();
    if (w.packed == NULL || w.zstd == NULL) {
        status = kr_fail(err, KR_E_MEMORY, "no memory to save %s", name);
        goto done;
    }
    w.file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (w.file < 0) {
        status = kr_fail(err, KR_E_IO, "saving %s: %s", name, strerror(errno));
        goto done;
    }
    status = write_session(&w, store, s, blob, blob_bytes, err);
    if (status == KR_OK && fsync(w.file) != 0)
        status = kr_fail(err, KR_E_IO, "saving %s: %s", name, strerror(errno));
    if (close(w.file) != 0 && status == KR_OK)
        status = kr_fail(err, KR_E_IO, "saving %s: %s", name, strerror(errno));
    if (status == KR_OK && rename(temporary, path) != 0)
        status = kr_fail(err, KR_E_IO, "saving %s: %s", name, strerror(errno));
    if (status == KR_OK)
        sync_folder(folder);
    else
        (void)unlink(temporary);
done:
    ZSTD_freeCCtx(w.zstd);
    kr_free(w.packed);
    return status;
}
