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
    .attend_rows = kr_attend_rows_scalar,
    .dsa_score = kr_dsa_score_scalar,
    .block_score = kr_block_score_scalar,
    .row_dot = kr_row_dot_scalar,
    .channel_dot = kr_channel_dot_scalar,
    .softmax = kr_softmax_scalar,
    .argmax = kr_argmax_scalar,
};

const kr_attend_tiled_variant kr_attend_tiled_variants[] = {
#if defined(__x86_64__)
    {{"avx512", kr_cpu_avx512}, kr_attend_tiled_avx512},
    {{"avx2", kr_cpu_avx2}, kr_attend_tiled_avx2},
#elif defined(__aarch64__)
    {{"neon", kr_cpu_always}, kr_attend_tiled_neon},
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
#elif defined(__aarch64__)
    {{"neon", kr_cpu_always}, kr_page_score_neon},
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

const kr_attend_rows_variant kr_attend_rows_variants[] = {
#if defined(__x86_64__)
    {{"avx512", kr_cpu_avx512}, kr_attend_rows_avx512},
    {{"avx2", kr_cpu_avx2}, kr_attend_rows_avx2},
#elif defined(__aarch64__)
    {{"neon", kr_cpu_always}, kr_attend_rows_neon},
#endif
    {{"scalar", kr_cpu_always}, kr_attend_rows_scalar},
    {{NULL, NULL}, NULL},
};

const kr_dsa_score_variant kr_dsa_score_variants[] = {
#if defined(__x86_64__)
    {{"avx512bf16", kr_cpu_avx512bf16}, kr_dsa_score_avx512bf16},
    {{"avx512", kr_cpu_avx512}, kr_dsa_score_avx512},
    {{"avx2", kr_cpu_avx2}, kr_dsa_score_avx2},
#elif defined(__aarch64__)
    {{"neon", kr_cpu_always}, kr_dsa_score_neon},
#endif
    {{"scalar", kr_cpu_always}, kr_dsa_score_scalar},
    {{NULL, NULL}, NULL},
};

const kr_block_score_variant kr_block_score_variants[] = {
#if defined(__x86_64__)
    {{"avx512bf16", kr_cpu_avx512bf16}, kr_block_score_avx512bf16},
    {{"avx512", kr_cpu_avx512}, kr_block_score_avx512},
    {{"avx2", kr_cpu_avx2}, kr_block_score_avx2},
#elif defined(__aarch64__)
    {{"neon", kr_cpu_always}, kr_block_score_neon},
#endif
    {{"scalar", kr_cpu_always}, kr_block_score_scalar},
    {{NULL, NULL}, NULL},
};

const kr_row_dot_variant kr_row_dot_variants[] = {
#if defined(__x86_64__)
    {{"avx512", kr_cpu_avx512}, kr_row_dot_avx512},
    {{"avx2", kr_cpu_avx2}, kr_row_dot_avx2},
#elif defined(__aarch64__)
    {{"neon", kr_cpu_always}, kr_row_dot_neon},
#endif
    {{"scalar", kr_cpu_always}, kr_row_dot_scalar},
    {{NULL, NULL}, NULL},
};

const kr_channel_dot_variant kr_channel_dot_variants[] = {
#if defined(__x86_64__)
    {{"avx512", kr_cpu_avx512}, kr_channel_dot_avx512},
    {{"avx2", kr_cpu_avx2}, kr_channel_dot_avx2},
#elif defined(__aarch64__)
    {{"neon", kr_cpu_always}, kr_channel_dot_neon},
#endif
    {{"scalar", kr_cpu_always}, kr_channel_dot_scalar},
    {{NULL, NULL}, NULL},
};

const kr_softmax_variant kr_softmax_variants[] = {
#if defined(__x86_64__)
    {{"avx512", kr_cpu_avx512}, kr_softmax_avx512},
    {{"avx2", kr_cpu_avx2}, kr_softmax_avx2},
#elif defined(__aarch64__)
    {{"neon", kr_cpu_always}, kr_softmax_neon},
#endif
    {{"scalar", kr_cpu_always}, kr_softmax_scalar},
    {{NULL, NULL}, NULL},
};

const kr_argmax_variant kr_argmax_variants[] = {
#if defined(__x86_64__)
    {{"avx512", kr_cpu_avx512}, kr_argmax_avx512},
    {{"avx2", kr_cpu_avx2}, kr_argmax_avx2},
#elif defined(__aarch64__)
    {{"neon", kr_cpu_always}, kr_argmax_neon},
#endif
    {{"scalar", kr_cpu_always}, kr_argmax_scalar},
    {{NULL, NULL}, NULL},
};
