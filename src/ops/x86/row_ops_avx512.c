/* Row operations compiled for AVX-512. */
#include "ops/row_ops_variants.h"

#include "ops/row_ops_body.h"

static bool usable(void)
{
    return __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512vnni");
}

const kr_row_ops kr_row_ops_avx512 = {.name = "avx512", .usable = usable, KR_ROW_OPS_ENTRIES};
