/* Reading a saved session without a store. Sizes in the header are claims: pages, records and the
 * client's data are unpacked through a small window and counted, never held. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/num.h"
#include "store/saved_impl.h"

enum { WINDOW_BYTES = 1 << 16 };

bool kr_saved_recognise(const char *path)
{
    uint64_t magic = 0;
    struct stat info;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool is = file >= 0 && fstat(file, &info) == 0 && S_ISREG(info.st_mode) &&
                    read(file, &magic, sizeof magic) == (ssize_t)sizeof magic && magic == KR_SAVE_MAGIC;

    if (file >= 0)
        close(file);
    return is;
}

/* Takes the next unpacked bytes of a frame; false when they are malformed. */
typedef bool (*sink)(void *context, const uint8_t *data, size_t bytes);

static bool ignore(void *context, const uint8_t *data, size_t bytes)
{
    (void)context, (void)data, (void)bytes;
    return true;
}

/* The next frame, unpacked to exactly bytes, in pieces to take. */
static kr_status stream_frame(kr_saved *s, kr_save_kind kind, uint64_t index, uint64_t bytes, sink take,
                              void *context, kr_err *err)
{
    uint8_t window[WINDOW_BYTES];
    uint64_t stored, total = 0;
    size_t left = 0;
    kr_status status = kr_save_read_stored(&s->reader, kind, index, bytes, &stored, err);

    if (status != KR_OK)
        return status;
    s->frames++;
    ZSTD_DCtx_reset(s->reader.zstd, ZSTD_reset_session_only);
    ZSTD_inBuffer in = {s->reader.packed, stored, 0};
    bool full = true, sound = true;
    while (sound && (in.pos < in.size || (left != 0 && full))) {
        ZSTD_outBuffer out = {window, sizeof window, 0};
        left = ZSTD_decompressStream(s->reader.zstd, &out, &in);
        full = out.pos == out.size;
        total += out.pos;
        sound = !ZSTD_isError(left) && total <= bytes && take(context, window, out.pos);
    }
    if (!sound || left != 0 || total != bytes)
        return kr_fail(err, KR_E_FORMAT, "saved session %s: frame %u/%llx is malformed or not of %llu bytes",
                       s->reader.name, kind, (unsigned long long)index, (unsigned long long)bytes);
    s->unpacked += bytes;
    return KR_OK;
}

static bool is_name(const char name[16])
{
    size_t n = 0;

    while (n < 16 && isgraph((unsigned char)name[n]) && (unsigned char)name[n] < 0x80)
        n++;
    return n > 0 && n < 16 && name[n] == '\0';
}

static kr_status read_layers(kr_saved *s, kr_err *err)
{
    const kr_save_header *h = &s->header;
    kr_status status = kr_save_read_frame(&s->reader, KR_SAVE_LAYERS, 0, s->layer,
                                          h->layers * sizeof s->layer[0], err);

    for (uint32_t l = 0; l < h->layers && status == KR_OK; l++) {
        const kr_save_layer *layer = &s->layer[l];

        if (!is_name(layer->config.name) || layer->kv_dtype >= KR_DTYPE_COUNT || layer->latent > 1 ||
            layer->group >= h->groups)
            return kr_fail(err, KR_E_FORMAT,
                           "saved session %s: layer %u has KV type %u, group %u, or no method",
                           s->reader.name, l, layer->kv_dtype, layer->group);
        status = kr_save_check_length(&s->reader, h, layer, l, err);
        s->tokens = layer->tokens > s->tokens ? layer->tokens : s->tokens;
    }
    s->frames++;
    s->unpacked += h->layers * sizeof s->layer[0];
    return status;
}

static kr_status read_boundaries(kr_saved *s, kr_err *err)
{
    s->boundary = kr_alloc(s->header.boundaries * sizeof s->boundary[0]); /* at most 1 MiB */
    if (s->boundary == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for %u boundaries", s->header.boundaries);
    s->frames++;
    s->unpacked += s->header.boundaries * sizeof s->boundary[0];
    return kr_save_read_boundaries(&s->reader, &s->header, s->boundary, err);
}

/* ---- records: headers are kept, bodies passed over (the frame's checksum covers them) ---- */

typedef struct {
    kr_saved *saved;
    uint32_t layer; /* of the record that comes next or is being read */
    size_t have;    /* bytes of its header */
    uint64_t skip;  /* bytes to the next header */
} record_reader;

static bool record_fits(const kr_saved *s, const kr_record_header *record, uint32_t l)
{
    return record->magic == KR_RECORD_MAGIC && record->version == KR_RECORD_VERSION && record->layer == l &&
           record->body_bytes <= s->header.record_bytes &&
           record->method_version == s->layer[l].method_version &&
           record->tokens_covered <= s->header.tokens_max &&
           memcmp(record->method, s->layer[l].config.name, sizeof record->method) == 0;
}

static bool take_records(void *context, const uint8_t *data, size_t bytes)
{
    record_reader *r = context;

    while (bytes > 0) {
        if (r->layer == r->saved->header.layers && r->skip == 0)
            return false;
        kr_record_header *record = &r->saved->record[r->skip > 0 ? 0 : r->layer];
        const uint64_t wanted = r->skip > 0 ? r->skip : sizeof *record - r->have;
        const size_t n = wanted < bytes ? (size_t)wanted : bytes;

        if (r->skip > 0) {
            r->skip -= n;
        } else {
            memcpy((uint8_t *)record + r->have, data, n);
            r->have += n;
        }
        if (r->have == sizeof *record) {
            if (!record_fits(r->saved, record, r->layer))
                return false;
            r->skip = kr_align_up(sizeof *record + record->body_bytes, 64) - sizeof *record;
            r->layer++;
            r->have = 0;
        }
        data += n;
        bytes -= n;
    }
    return true;
}

static kr_status read_records(kr_saved *s, kr_err *err)
{
    record_reader r = {.saved = s};
    kr_status status = stream_frame(s, KR_SAVE_RECORDS, 0, s->header.record_bytes, take_records, &r, err);

    if (status == KR_OK && (r.layer != s->header.layers || r.skip != 0))
        status = kr_fail(err, KR_E_FORMAT, "saved session %s: index records of %u layers in %llu bytes",
                         s->reader.name, r.layer, (unsigned long long)s->header.record_bytes);
    return status;
}

static kr_status read_pages(kr_saved *s, kr_err *err)
{
    const kr_save_header *h = &s->header;
    kr_status status = KR_OK;

    for (uint32_t g = 0; g < h->groups; g++)
        for (uint64_t p = h->first[g]; p < h->count[g] && status == KR_OK; p++)
            status = stream_frame(s, KR_SAVE_PAGE, kr_save_page_index(g, p), h->page_bytes[g], ignore, NULL,
                                  err);
    return status;
}

/* Stored bytes of a frame are bounded by its raw bytes, and by what the file has. */
static kr_status make_room(kr_saved *s, kr_err *err)
{
    const kr_save_header *h = &s->header;
    const uint64_t sizes[] = {h->layers * sizeof(kr_save_layer),
                              h->boundaries * sizeof(kr_boundary),
                              h->record_bytes,
                              h->blob_bytes,
                              h->page_bytes[0],
                              h->page_bytes[1]};
    uint64_t most = 0;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        most = sizes[i] > most ? sizes[i] : most;
    most = most < s->file_bytes ? ZSTD_compressBound(most) : s->file_bytes;
    return kr_save_reader_room(&s->reader, most < s->file_bytes ? most : s->file_bytes, err);
}

static kr_status read_all_frames(kr_saved *s, kr_err *err)
{
    kr_status status = kr_save_read_header(&s->reader, &s->header, err);

    if (status == KR_OK)
        status = make_room(s, err);
    if (status == KR_OK)
        status = read_layers(s, err);
    if (status == KR_OK)
        status = read_boundaries(s, err);
    if (status == KR_OK)
        status = read_records(s, err);
    if (status == KR_OK && s->header.blob_bytes > 0)
        status = stream_frame(s, KR_SAVE_BLOB, 0, s->header.blob_bytes, ignore, NULL, err);
    else if (status == KR_OK)
        status = kr_save_read_frame(&s->reader, KR_SAVE_BLOB, 0, NULL, 0, err);
    if (status == KR_OK)
        status = read_pages(s, err);
    return status == KR_OK ? kr_save_read_end(&s->reader, err) : status;
}

kr_status kr_saved_describe(const char *path, FILE *out, bool as_json, kr_err *err)
{
    kr_saved *s = kr_alloc(sizeof *s);
    struct stat info;
    kr_status status;

    if (s == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory to read %s", path);
    s->reader.name = path;
    s->reader.file = open(path, O_RDONLY | O_CLOEXEC);
    if (s->reader.file < 0 || fstat(s->reader.file, &info) != 0) {
        status = kr_fail(err, KR_E_IO, "%s: %s", path, strerror(errno));
    } else {
        s->file_bytes = (uint64_t)info.st_size;
        status = read_all_frames(s, err);
    }
    if (status == KR_OK)
        status = as_json ? kr_saved_print_json(s, out, err) : kr_saved_print(s, out, err);
    if (s->reader.file >= 0)
        close(s->reader.file);
    kr_save_reader_free(&s->reader);
    kr_free(s->boundary);
    kr_free(s);
    return status;
}
