/* Row operations compiled for AVX2. */
#include "ops/row_ops_variants.h"

#include "ops/row_ops_body.h"

static bool usable(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

const kr_row_ops kr_row_ops_avx2 = {.name = "avx2", .usable = usable, KR_ROW_OPS_ENTRIES};
