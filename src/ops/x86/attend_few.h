/* The form of attend_rows_avx512 for few query rows; its scratch is attend_rows's. */
#ifndef KR_OPS_X86_ATTEND_FEW_H
#define KR_OPS_X86_ATTEND_FEW_H

#include "ops/attend_rows.h"

enum { KR_ATTEND_FEW = 14 };

void kr_attend_few_avx512(const kr_attend_rows_args *args);

#endif
