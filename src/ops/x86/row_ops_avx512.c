/* Row operations compiled for AVX-512. */
#include "ops/row_ops_variants.h"

#include "ops/cpu.h"
#include "ops/row_ops_body.h"

const kr_row_ops kr_row_ops_avx512 = {.name = "avx512", .usable = kr_cpu_avx512, KR_ROW_OPS_ENTRIES};
