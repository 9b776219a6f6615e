/* libFuzzer target: a GGUF file opened as a model. What opens is described, all its tensors are
 * read at both ends, and its tokenizer is used. */
#include <stdint.h>
#include <stdio.h>

#include "files/model_file.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/use_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_tensors(const kr_model_file *file)
{
    const kr_model *m = kr_model_file_model(file);
    volatile uint8_t sink;
    kr_tensor t;

    for (unsigned role = 0; role < KR_ROLES; role++)
        for (uint32_t layer = 0; layer < m->layers; layer++)
            if (kr_model_file_tensor(file, (kr_role)role, layer, &t, NULL) == KR_OK) {
                KR_CHECK(t.bytes == t.rows * kr_weight_row_bytes(t.type, t.columns));
                sink = t.data[0];
                sink = t.data[t.bytes - 1];
            }
    (void)sink;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static FILE *nowhere;
    kr_model_file *file = NULL;
    kr_err err;

    if (!nowhere)
        nowhere = fopen("/dev/null", "w");
    if (kr_model_file_open(memory_file(data, size), &file, &err) != KR_OK) {
        KR_CHECK(file == NULL);
        return 0;
    }
    read_tensors(file);
    kr_model_file_describe(file, nowhere, 0, &err);
    kr_model_file_describe(file, nowhere, 1, &err);
    use_tokenizer(kr_model_file_tokenizer(file), (const char *)data, size);
    kr_model_file_close(file);
    return 0;
}
