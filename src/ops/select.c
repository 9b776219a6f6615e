/* The definition of exact top-k: a radix search for the k-th largest key, then one collecting pass.
 * Linear in n whatever the scores. */
#include "ops/select.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "ops/select_scratch.h"
#include "ops/variants.h"

uint64_t kr_select_scratch_bytes(uint64_t n, uint32_t k)
{
    const uint64_t vector = 8 * kr_select_capacity(n, k) + 4 * KR_SELECT_SAMPLE + 128;
    const uint64_t scalar = 4 * KR_SELECT_BINS;

    return kr_align_up(vector > scalar ? vector : scalar, 64);
}

/* Unsigned order of keys = order of scores; -0 and +0 share a key. */
static uint32_t ordered_key(float score)
{
    const uint32_t bits = kr_f32_bits(score + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Key bits are found from the top in three digits. */
typedef struct {
    uint32_t shift, bits;
} digit;

static const digit digits[] = {{21, 11}, {10, 11}, {0, 10}};

/* The k-th largest key; *above = number of larger ones. At least k scores are not NaN. */
static uint32_t kth_key(const kr_select_topk_args *a, uint64_t *above)
{
    uint32_t *bins = a->scratch, prefix = 0, known = 0; /* known: mask of the digits found */

    *above = 0;
    for (size_t d = 0; d < sizeof digits / sizeof digits[0]; d++) {
        const uint32_t mask = (1u << digits[d].bits) - 1;
        uint32_t bin = mask;

        memset(bins, 0, sizeof *bins * KR_SELECT_BINS);
        for (uint64_t i = 0; i < a->n; i++) {
            const uint32_t key = ordered_key(a->score[i]);
            if (!isnan(a->score[i]) && (key & known) == prefix)
                bins[key >> digits[d].shift & mask]++;
        }
        while (*above + bins[bin] < a->k)
            *above += bins[bin--];
        prefix |= bin << digits[d].shift;
        known |= mask << digits[d].shift;
    }
    return prefix;
}

uint32_t kr_select_topk_scalar(const kr_select_topk_args *a)
{
    uint64_t nan = 0, above = 0;
    uint32_t written = 0, least = 0, equal_left = 0;

    for (uint64_t i = 0; i < a->n; i++)
        nan += isnan(a->score[i]);
    *a->nan_count += nan;
    const bool take_all = a->n - nan <= a->k;
    if (!take_all) {
        least = kth_key(a, &above);
        equal_left = a->k - (uint32_t)above;
    }
    for (uint64_t i = 0; i < a->n; i++) {
        if (isnan(a->score[i]))
            continue;
        const uint32_t key = ordered_key(a->score[i]);
        if (take_all || key > least) {
            a->position[written++] = (uint32_t)i;
        } else if (key == least && equal_left > 0) {
            a->position[written++] = (uint32_t)i;
            equal_left--;
        }
    }
    return written;
}
