/* Frames of a saved session, read one after another: nothing is unpacked before its checksum is
 * right, and no size is believed before it is compared with what the header allows. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/num.h"
#include "store/save_format.h"

static kr_status read_all(kr_save_reader *r, void *data, uint64_t bytes, kr_err *err)
{
    uint8_t *to = data;

    while (bytes > 0) {
        const ssize_t n = read(r->file, to, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return kr_fail(err, KR_E_IO, "reading saved session %s: %s", r->name, strerror(errno));
        if (n == 0)
            return kr_fail(err, KR_E_FORMAT, "saved session %s ends after %llu bytes, in the middle", r->name,
                           (unsigned long long)r->at);
        to += n;
        r->at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return KR_OK;
}

kr_status kr_save_read_header(kr_save_reader *r, kr_save_header *h, kr_err *err)
{
    kr_status status = read_all(r, h, sizeof *h, err);

    if (status != KR_OK)
        return status;
    if (h->magic != KR_SAVE_MAGIC)
        return kr_fail(err, KR_E_FORMAT, "%s is not a saved session", r->name);
    if (h->version != KR_SAVE_VERSION)
        return kr_fail(err, KR_E_VERSION, "saved session %s has version %u; this karat reads %d", r->name,
                       h->version, KR_SAVE_VERSION);
    if (h->checksum != kr_save_header_checksum(h))
        return kr_fail(err, KR_E_CHECKSUM, "saved session %s: the header is damaged", r->name);
    if (h->layers == 0 || h->layers > KR_LAYERS_MAX || h->groups == 0 || h->groups > KR_GROUPS_MAX)
        return kr_fail(err, KR_E_FORMAT, "saved session %s: %u layers in %u groups", r->name, h->layers,
                       h->groups);
    if (h->tokens_max == 0 || h->tokens_max > KR_CONTEXT_MAX)
        return kr_fail(err, KR_E_LIMIT, "saved session %s is for %llu tokens; at most %d", r->name,
                       (unsigned long long)h->tokens_max, KR_CONTEXT_MAX);
    if (h->boundaries == 0 || h->boundaries > KR_BOUNDARIES_MAX || h->blob_bytes > KR_SAVE_BLOB_MAX ||
        h->reserved != 0)
        return kr_fail(err, KR_E_FORMAT, "saved session %s: %u boundaries, %u bytes of client data", r->name,
                       h->boundaries, h->blob_bytes);
    for (uint32_t i = 0; i < h->groups; i++)
        if (h->first[i] > h->count[i] || h->count[i] > kr_ceil_div(h->tokens_max, KR_PAGE_TOKENS))
            return kr_fail(err, KR_E_FORMAT, "saved session %s: pages %llu to %llu of group %u", r->name,
                           (unsigned long long)h->first[i], (unsigned long long)h->count[i], i);
    return KR_OK;
}

kr_status kr_save_reader_room(kr_save_reader *r, size_t capacity, kr_err *err)
{
    r->capacity = capacity;
    r->packed = kr_alloc(r->capacity);
    r->zstd = ZSTD_createDCtx();
    if (r->packed == NULL || r->zstd == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory to read saved session %s", r->name);
    return KR_OK;
}

void kr_save_reader_free(kr_save_reader *r)
{
    ZSTD_freeDCtx(r->zstd);
    kr_free(r->packed);
}

kr_status kr_save_read_stored(kr_save_reader *r, kr_save_kind kind, uint64_t index, uint64_t bytes,
                              uint64_t *stored, kr_err *err)
{
    kr_save_frame frame;
    kr_status status = read_all(r, &frame, sizeof frame, err);

    if (status != KR_OK)
        return status;
    if (frame.kind != kind || frame.index != index || frame.reserved != 0 ||
        frame.stored_bytes > ZSTD_compressBound(bytes) || frame.stored_bytes > r->capacity ||
        (bytes == 0) != (frame.stored_bytes == 0))
        return kr_fail(err, KR_E_FORMAT, "saved session %s: frame %u/%llx before byte %llu, expected %u/%llx",
                       r->name, frame.kind, (unsigned long long)frame.index, (unsigned long long)r->at, kind,
                       (unsigned long long)index);
    status = read_all(r, r->packed, frame.stored_bytes, err);
    if (status != KR_OK)
        return status;
    if (kr_save_checksum(r->packed, frame.stored_bytes, kind, index) != frame.checksum)
        return kr_fail(err, KR_E_CHECKSUM, "saved session %s: frame %u/%llx is damaged", r->name, kind,
                       (unsigned long long)index);
    *stored = frame.stored_bytes;
    return KR_OK;
}

kr_status kr_save_read_frame(kr_save_reader *r, kr_save_kind kind, uint64_t index, void *raw, uint64_t bytes,
                             kr_err *err)
{
    uint64_t stored;
    kr_status status = kr_save_read_stored(r, kind, index, bytes, &stored, err);

    if (status == KR_OK && bytes > 0 && ZSTD_decompressDCtx(r->zstd, raw, bytes, r->packed, stored) != bytes)
        return kr_fail(err, KR_E_FORMAT, "saved session %s: frame %u/%llx does not unpack to %llu bytes",
                       r->name, kind, (unsigned long long)index, (unsigned long long)bytes);
    return status;
}

kr_status kr_save_read_boundaries(kr_save_reader *r, const kr_save_header *h, kr_boundary *b, kr_err *err)
{
    kr_status status = kr_save_read_frame(r, KR_SAVE_BOUNDARIES, 0, b, h->boundaries * sizeof *b, err);

    for (uint32_t i = 0; i < h->boundaries && status == KR_OK; i++)
        if (b[i].is_prefill > 1 || b[i].reserved != 0 || b[i].first_token > h->tokens_max ||
            b[i].first_token < (i > 0 ? b[i - 1].first_token : 0) || (i == 0 && b[i].first_token != 0))
            status = kr_fail(err, KR_E_FORMAT, "saved session %s: boundary %u at token %llu", r->name, i,
                             (unsigned long long)b[i].first_token);
    return status;
}

kr_status kr_save_read_end(kr_save_reader *r, kr_err *err)
{
    uint8_t past;
    kr_status status = kr_save_read_frame(r, KR_SAVE_END, 0, NULL, 0, err);

    if (status == KR_OK && read(r->file, &past, 1) != 0)
        status = kr_fail(err, KR_E_FORMAT, "saved session %s goes on after its end", r->name);
    return status;
}

kr_status kr_save_check_length(const kr_save_reader *r, const kr_save_header *h, const kr_save_layer *layer,
                               uint32_t number, kr_err *err)
{
    const uint64_t pages = layer->group < h->groups ? h->count[layer->group] : 0;

    if (kr_ceil_div(layer->tokens, KR_PAGE_TOKENS) > pages || layer->tokens > h->tokens_max)
        return kr_fail(err, KR_E_FORMAT, "saved session %s: layer %u has %llu tokens in %llu pages", r->name,
                       number, (unsigned long long)layer->tokens, (unsigned long long)pages);
    return KR_OK;
}
