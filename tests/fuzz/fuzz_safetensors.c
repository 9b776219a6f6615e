/* libFuzzer target: a safetensors file. What opens has its tensors side by side over all its data. */
#include <stdint.h>

#include "files/safetensors.h"
#include "tests/fuzz/memory_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kr_tensor_table table = {0};
    kr_map map;
    uint64_t bytes = 0;
    volatile uint8_t sink = 0;

    if (kr_safetensors_open(memory_file(data, size), 0, &map, &table, NULL) == KR_OK) {
        for (uint32_t i = 0; i < table.count; i++) {
            const kr_tensor_entry *e = &table.entries[i];
            KR_CHECK(e->data >= map.data && e->data + e->bytes <= map.data + map.bytes);
            sink = e->data[e->bytes - 1];
            bytes += e->bytes;
        }
        KR_CHECK(bytes < map.bytes);
        (void)sink;
        kr_map_close(&map);
    }
    kr_tensor_table_free(&table);
    return 0;
}
