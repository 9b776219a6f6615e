/* libFuzzer target: a header, then every payload reader on the bytes after it. Built with the
 * release flags and NDEBUG: the checks must hold there.
 * Property besides memory safety: a message that reads back, re-sealed, reads back the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "wire/msg.h"
#include "wire/payload.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROWS = 64, LISTS = 64, INDICES = 1024 };

static void read_parts(const kr_msg_header *h, const uint8_t *p, uint64_t n)
{
    kr_msg_row rows[ROWS];
    uint32_t counts[LISTS], indices[INDICES];
    uint64_t used = 0;

    if (kr_msg_rows_read(p, n, h->rows % (ROWS + 1), h->step, rows, &used, NULL) == KR_OK) {
        KR_CHECK(used <= n);
        p += used;
        n -= used;
    }
    if (kr_msg_lists_read(p, n, h->device % (LISTS + 1), (uint32_t)h->sequence, counts, indices, INDICES,
                          &used, NULL) == KR_OK)
        KR_CHECK(used <= n);
}

static void read_control(const uint8_t *p, uint64_t n)
{
    static kr_msg_layer layers[KR_MSG_LAYERS_MAX];
    static kr_msg_device_stats devices[KR_MSG_DEVICES_MAX];
    const uint8_t *tail = NULL;
    kr_msg_hello hello;
    kr_msg_proof proof;
    kr_msg_welcome welcome;
    kr_msg_path path;
    kr_msg_configure configure;
    kr_msg_open open;
    kr_msg_session session;
    kr_msg_opened opened;
    kr_msg_file file;
    kr_msg_stats stats;
    kr_err err;
    kr_hash128 last = {0};

    (void)kr_msg_hello_read(p, n, &hello, &err);
    (void)kr_msg_proof_read(p, n, &proof, &err);
    (void)kr_msg_welcome_read(p, n, &welcome, &err);
    (void)kr_msg_path_read(p, n, &path, &tail, &err);
    (void)kr_msg_configure_read(p, n, &configure, layers, &err);
    if (kr_msg_open_read(p, n, &open, &tail, &err) == KR_OK && open.prefix_pages != 0)
        last = kr_msg_prefix_at(tail, open.prefix_pages - 1);
    if (kr_msg_session_read(p, n, &session, &tail, &err) == KR_OK && session.prefix_pages != 0)
        last = kr_msg_prefix_at(tail, session.prefix_pages - 1);
    (void)kr_msg_opened_read(p, n, &opened, &tail, &err);
    (void)kr_msg_file_read(p, n, &file, &tail, &err);
    (void)kr_msg_stats_read(p, n, &stats, devices, &err);
    KR_CHECK(kr_msg_error_read(p, n, &err) < 0);
    volatile uint64_t sink = last.low;
    (void)sink;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[KR_MSG_HEADER_BYTES];
    kr_msg_header h, back;
    kr_err err;

    if (size < KR_MSG_HEADER_BYTES)
        return 0;
    const uint64_t n = size - KR_MSG_HEADER_BYTES;
    /* An exact copy on the heap, so that one byte past the payload is caught. */
    uint8_t *payload = malloc(n != 0 ? n : 1);
    memcpy(payload, data + KR_MSG_HEADER_BYTES, n);
    if (kr_msg_header_read(data, &h, &err) == KR_OK) {
        read_parts(&h, payload, n);
        kr_msg_seal(&h, payload, n, bytes);
        KR_CHECK(kr_msg_header_read(bytes, &back, &err) == KR_OK);
        KR_CHECK(kr_msg_verify(&back, payload, &err) == KR_OK);
        KR_CHECK(memcmp(&h, &back, sizeof h) == 0);
    }
    read_control(payload, n);
    free(payload);
    return 0;
}
