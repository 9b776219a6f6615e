/* Row operations compiled for AVX2. */
#include "ops/row_ops_variants.h"

#include "ops/cpu.h"
#include "ops/row_ops_body.h"

const kr_row_ops kr_row_ops_avx2 = {.name = "avx2", .usable = kr_cpu_avx2, KR_ROW_OPS_ENTRIES};
