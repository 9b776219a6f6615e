/* Runs a fuzz target without libFuzzer: every file of the given corpora, then fixed mutations of
 * each (cuts, flipped bits, spliced extremes), so that `make test` exercises the parsers' refusals
 * with any compiler. The mutations are the same on every run. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

enum { PATH_BYTES = 4096, INPUT_BYTES_MAX = 1 << 20, MUTATIONS = 200 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A copy of exactly the input's size, so that a sanitizer sees a read past its end. */
static void try_input(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes != 0 ? bytes : 1);

    if (copy == NULL)
        abort();
    if (bytes != 0)
        memcpy(copy, data, bytes);
    LLVMFuzzerTestOneInput(copy, bytes);
    free(copy);
}

static size_t mutate(uint8_t *data, size_t bytes, kr_rng *rng)
{
    static const uint8_t extremes[][8] = {
        {0},
        {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
        {0, 0, 0, 0, 0, 0, 0, 0x80},
        {0xff, 0xff, 0xff, 0x7f},
    };
    const uint64_t edits = 1 + kr_rng_below(rng, 4);

    for (uint64_t e = 0; e < edits && bytes > 0; e++) {
        const size_t at = (size_t)kr_rng_below(rng, bytes);
        switch (kr_rng_below(rng, 3)) {
        case 0:
            data[at] ^= (uint8_t)(1u << kr_rng_below(rng, 8));
            break;
        case 1:
            memcpy(data + at, extremes[kr_rng_below(rng, 4)], bytes - at < 8 ? bytes - at : 8);
            break;
        default:
            bytes = at;
            break;
        }
    }
    return bytes;
}

static unsigned run_file(const char *path, kr_rng *rng)
{
    static uint8_t original[INPUT_BYTES_MAX], changed[INPUT_BYTES_MAX];
    FILE *file = fopen(path, "rb");

    if (file == NULL) {
        perror(path);
        exit(1);
    }
    const size_t bytes = fread(original, 1, sizeof original, file);
    fclose(file);
    try_input(original, bytes);
    for (int i = 0; i < MUTATIONS; i++) {
        memcpy(changed, original, bytes);
        try_input(changed, mutate(changed, bytes, rng));
    }
    return 1 + MUTATIONS;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* scandir's alphasort depends on the locale */
}

int main(int argc, char **argv)
{
    kr_rng rng = kr_rng_make(1, 0);
    unsigned inputs = 0;

    for (int i = 1; i < argc; i++) {
        struct dirent **entries;
        const int count = scandir(argv[i], &entries, NULL, by_name);
        for (int k = 0; k < count; k++) {
            char path[PATH_BYTES];
            snprintf(path, sizeof path, "%s/%s", argv[i], entries[k]->d_name);
            if (entries[k]->d_name[0] != '.')
                inputs += run_file(path, &rng);
            free(entries[k]);
        }
        if (count >= 0)
            free(entries);
    }
    printf("%u inputs\n", inputs);
    return inputs == 0; /* a target without a corpus is a mistake */
}
