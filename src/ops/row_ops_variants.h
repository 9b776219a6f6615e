/* Instances of row_ops.h, for its chooser. */
#ifndef KR_OPS_ROW_OPS_VARIANTS_H
#define KR_OPS_ROW_OPS_VARIANTS_H

#include "ops/row_ops.h"

#if defined(__x86_64__)
extern const kr_row_ops kr_row_ops_avx2, kr_row_ops_avx512;
#endif

#endif
