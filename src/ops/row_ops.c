/* Row operations for any CPU, the list of variants, and rotary tables. */
#include "ops/row_ops.h"

#include "ops/cpu.h"
#include "ops/row_ops_body.h"
#include "ops/row_ops_variants.h"

static const kr_row_ops scalar = {.name = "scalar", .usable = kr_cpu_always, KR_ROW_OPS_ENTRIES};

const kr_row_ops *const kr_row_ops_variants[] = {
#if defined(__x86_64__)
    &kr_row_ops_avx512,
    &kr_row_ops_avx2,
#endif
    &scalar,
};
const uint32_t kr_row_ops_variant_count = sizeof kr_row_ops_variants / sizeof kr_row_ops_variants[0];

const kr_row_ops *kr_row_ops_choose(void)
{
    uint32_t i = 0;

    while (i + 1 < kr_row_ops_variant_count && !kr_row_ops_variants[i]->usable())
        i++;
    return kr_row_ops_variants[i];
}

void kr_rope_table(uint64_t position, const float *inv_freq, uint32_t dims, double factor, bool interleaved,
                   float *table)
{
    float *own = table, *partner = table + dims;

    for (uint32_t i = 0; i < dims / 2; i++) {
        const double angle = (double)position * (double)inv_freq[i];
        const float cosine = (float)(cos(angle) * factor), sine = (float)(sin(angle) * factor);
        const uint32_t a = interleaved ? 2 * i : i, b = interleaved ? a + 1 : i + dims / 2;

        own[a] = own[b] = cosine;
        partner[a] = -sine;
        partner[b] = sine;
    }
}
