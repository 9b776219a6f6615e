/* libFuzzer target: tokenizer.json. What loads is used. */
#include <stdint.h>
#include <stdlib.h>

#include "files/tokenizer_impl.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/use_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/tmp/karat-fuzz-XXXXXX", link_path[64];

static void remove_folder(void)
{
    unlink(link_path);
    rmdir(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = memory_file(data, size);
    kr_tokenizer *t = NULL;

    if (!link_path[0]) {
        KR_CHECK(mkdtemp(folder) != NULL);
        snprintf(link_path, sizeof link_path, "%s/tokenizer.json", folder);
        KR_CHECK(symlink(path, link_path) == 0);
        atexit(remove_folder);
    }
    if (kr_tokenizer_from_folder(folder, NULL, &t, NULL) == KR_OK) {
        use_tokenizer(t, (const char *)data, size);
        kr_tokenizer_free(t);
    }
    return 0;
}
