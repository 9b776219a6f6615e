/* libFuzzer target: a saved session described, as it is and with its checksums set right, so that
 * what is changed behind them reaches the reader too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "store/save_format.h"
#include "store/saved.h"
#include "tests/fuzz/memory_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Sets the checksums of the header and of every frame that can be found. */
static void seal(uint8_t *data, size_t size)
{
    kr_save_header header;
    kr_save_frame frame;
    size_t at = sizeof header;

    if (size < sizeof header)
        return;
    memcpy(&header, data, sizeof header);
    header.magic = KR_SAVE_MAGIC;
    header.version = KR_SAVE_VERSION;
    header.checksum = kr_save_header_checksum(&header);
    memcpy(data, &header, sizeof header);
    while (size - at >= sizeof frame) {
        memcpy(&frame, data + at, sizeof frame);
        if (frame.stored_bytes > size - at - sizeof frame)
            return;
        frame.checksum = kr_save_checksum(data + at + sizeof frame, frame.stored_bytes,
                                          (kr_save_kind)frame.kind, frame.index);
        memcpy(data + at, &frame, sizeof frame);
        at += sizeof frame + frame.stored_bytes;
    }
}

static void describe(const uint8_t *data, size_t size)
{
    static FILE *nowhere;
    const char *path = memory_file(data, size);
    kr_err err;

    if (nowhere == NULL)
        nowhere = fopen("/dev/null", "w");
    const kr_status text = kr_saved_describe(path, nowhere, false, &err);
    KR_CHECK(kr_saved_describe(path, nowhere, true, &err) == text);
    KR_CHECK(text != KR_OK || kr_saved_recognise(path));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size + 1);

    if (copy == NULL)
        return 0;
    memcpy(copy, data, size);
    describe(copy, size);
    seal(copy, size);
    describe(copy, size);
    free(copy);
    return 0;
}
