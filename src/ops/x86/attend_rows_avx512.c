/* attend_rows: few query rows by tokens and dims, many by 16 rows a vector. */
#include "ops/attend_rows.h"
#include "ops/variants.h"
#include "ops/x86/attend_few.h"
#include "ops/x86/lanes_avx512.h"

#define KR_ATTEND_ROWS_NAME attend_rows_wide
static void attend_rows_wide(const kr_attend_rows_args *a);
#include "ops/attend_rows_lanes.h"

void kr_attend_rows_avx512(const kr_attend_rows_args *a)
{
    if (a->rows <= KR_ATTEND_FEW)
        kr_attend_few_avx512(a);
    else
        attend_rows_wide(a);
}
