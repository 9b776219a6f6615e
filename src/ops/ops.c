/* The tables of variants, and the table of ops with nothing but definitions in it. */
#include "ops/ops.h"

#include <stddef.h>

#include "ops/cpu.h"
#include "ops/variants.h"

const kr_ops kr_ops_scalar = {
    .attend_tiled = kr_attend_tiled_scalar,
    .page_bounds_append = kr_page_bounds_scalar,
    .page_score = kr_page_score_scalar,
    .select_topk = kr_select_topk_scalar,
};

const kr_attend_tiled_variant kr_attend_tiled_variants[] = {
#if defined(__x86_64__)
    {{"avx512", kr_cpu_avx512}, kr_attend_tiled_avx512},
    {{"avx2", kr_cpu_avx2}, kr_attend_tiled_avx2},
#endif
    {{"scalar", kr_cpu_always}, kr_attend_tiled_scalar},
    {{NULL, NULL}, NULL},
};

const kr_page_bounds_variant kr_page_bounds_variants[] = {
    {{"scalar", kr_cpu_always}, kr_page_bounds_scalar},
    {{NULL, NULL}, NULL},
};

const kr_page_score_variant kr_page_score_variants[] = {
#if defined(__x86_64__)
    {{"avx512", kr_cpu_avx512}, kr_page_score_avx512},
    {{"avx2", kr_cpu_avx2}, kr_page_score_avx2},
#endif
    {{"scalar", kr_cpu_always}, kr_page_score_scalar},
    {{NULL, NULL}, NULL},
};

const kr_select_topk_variant kr_select_topk_variants[] = {
#if defined(__x86_64__)
    {{"avx512", kr_cpu_avx512}, kr_select_topk_avx512},
#endif
    {{"scalar", kr_cpu_always}, kr_select_topk_scalar},
    {{NULL, NULL}, NULL},
};
