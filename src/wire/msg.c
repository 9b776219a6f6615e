/* The message header: its wire form, its checks, its checksum, and the names of the kinds.
 *
 * Nothing here trusts a byte: a header that was read has a known kind, known flags, a row count and
 * a payload length within the stated maxima. */
#include "wire/msg.h"

#include <string.h>

#include "base/check.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structs are sent as they lie in memory");
_Static_assert(sizeof(kr_msg_header) == KR_MSG_HEADER_BYTES, "the header has no padding");
_Static_assert(sizeof(kr_msg_row) == 32, "a row has no padding");
_Static_assert(sizeof(kr_msg_hello) == 136, "HELLO has no padding");
_Static_assert(sizeof(kr_msg_welcome) == 32, "WELCOME has no padding");
_Static_assert(sizeof(kr_msg_configure) == 56, "CONFIGURE has no padding");
_Static_assert(sizeof(kr_msg_layer) == 96, "a layer has no padding");
_Static_assert(sizeof(kr_msg_open) == 24, "OPEN has no padding");
_Static_assert(sizeof(kr_msg_opened) == 24, "the reply to OPEN has no padding");
_Static_assert(sizeof(kr_msg_session) == 24, "TRIM, END_PREFILL and CLOSE have no padding");
_Static_assert(sizeof(kr_msg_file) == 80, "SAVE and RESTORE have no padding");
_Static_assert(sizeof(kr_msg_stats) == 48, "STATS has no padding");
_Static_assert(sizeof(kr_msg_device_stats) == 160, "a device's STATS have no padding");
_Static_assert(sizeof(kr_msg_path) == 16, "PATH has no padding");

void kr_msg_header_write(const kr_msg_header *header, uint8_t bytes[KR_MSG_HEADER_BYTES])
{
    memcpy(bytes, header, KR_MSG_HEADER_BYTES);
}

kr_status kr_msg_header_read(const uint8_t bytes[KR_MSG_HEADER_BYTES], kr_msg_header *header, kr_err *err)
{
    kr_msg_header h;

    memcpy(&h, bytes, sizeof h);
    if (h.magic != KR_MSG_MAGIC)
        return kr_fail(err, KR_E_FORMAT, "peer does not speak karat's protocol (first bytes %08x)", h.magic);
    if (h.version != KR_MSG_VERSION)
        return kr_fail(err, KR_E_VERSION, "peer speaks wire version %u, this build speaks %d", h.version,
                       KR_MSG_VERSION);
    if (h.kind == 0 || h.kind >= KR_MSG_KIND_END)
        return kr_fail(err, KR_E_FORMAT, "message of unknown kind %u", h.kind);
    if ((h.flags & ~(uint32_t)KR_MSG_FLAGS_ALL) != 0 || h.reserved != 0)
        return kr_fail(err, KR_E_FORMAT, "%s message with unknown flags %#x, reserved %#x",
                       kr_msg_name(h.kind), h.flags, h.reserved);
    if (h.rows > KR_MSG_ROWS_MAX)
        return kr_fail(err, KR_E_LIMIT, "%s message of %u rows; at most %d", kr_msg_name(h.kind), h.rows,
                       KR_MSG_ROWS_MAX);
    if (h.layer >= KR_MSG_LAYERS_MAX)
        return kr_fail(err, KR_E_LIMIT, "%s message for layer %u; layers end at %d", kr_msg_name(h.kind),
                       h.layer, KR_MSG_LAYERS_MAX);
    if (h.payload_bytes > KR_MSG_PAYLOAD_MAX)
        return kr_fail(err, KR_E_LIMIT, "%s message of %llu bytes; at most %llu", kr_msg_name(h.kind),
                       (unsigned long long)h.payload_bytes, (unsigned long long)KR_MSG_PAYLOAD_MAX);
    *header = h;
    return KR_OK;
}

uint64_t kr_msg_checksum(const kr_msg_header *header, const uint8_t *payload)
{
    uint8_t bytes[KR_MSG_HEADER_BYTES];
    kr_msg_header h = *header;

    h.checksum = 0;
    kr_msg_header_write(&h, bytes);
    return kr_hash64(payload, h.payload_bytes, kr_hash64(bytes, sizeof bytes, 0));
}

void kr_msg_seal(kr_msg_header *header, const uint8_t *payload, uint64_t payload_bytes,
                 uint8_t bytes[KR_MSG_HEADER_BYTES])
{
    KR_CHECK(header->kind != 0 && header->kind < KR_MSG_KIND_END);
    KR_CHECK(payload_bytes <= KR_MSG_PAYLOAD_MAX);
    header->magic = KR_MSG_MAGIC;
    header->version = KR_MSG_VERSION;
    header->payload_bytes = payload_bytes;
    header->reserved = 0;
    header->checksum = kr_msg_checksum(header, payload);
    kr_msg_header_write(header, bytes);
}

kr_status kr_msg_verify(const kr_msg_header *header, const uint8_t *payload, kr_err *err)
{
    const uint64_t found = kr_msg_checksum(header, payload);

    if (found == header->checksum)
        return KR_OK;
    return kr_fail(err, KR_E_CHECKSUM, "%s message %llu: checksum %016llx, its bytes give %016llx",
                   kr_msg_name(header->kind), (unsigned long long)header->sequence,
                   (unsigned long long)header->checksum, (unsigned long long)found);
}

const char *kr_msg_name(kr_msg_kind kind)
{
    enum { PREFIX = sizeof "KR_MSG_" - 1 };

    switch (kind) {
#define KR_MSG_CASE(name, code) \
    case name:                  \
        return &#name[PREFIX];
        KR_MSG_LIST(KR_MSG_CASE)
#undef KR_MSG_CASE
    default:
        return "?";
    }
}
