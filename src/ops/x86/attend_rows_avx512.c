/* attend_rows, 16 query rows a vector. Up to 8 rows are left to the avx2 form, which gives the same
 * bits and does not waste half of each vector. */
#include "ops/attend_rows.h"
#include "ops/variants.h"
#include "ops/x86/lanes_avx512.h"

#define KR_ATTEND_ROWS_NAME attend_rows_wide
static void attend_rows_wide(const kr_attend_rows_args *a);
#include "ops/attend_rows_lanes.h"

void kr_attend_rows_avx512(const kr_attend_rows_args *a)
{
    if (a->rows <= 8)
        kr_attend_rows_avx2(a);
    else
        attend_rows_wide(a);
}
