/* The implementations of each op, best first, scalar last; a list ends with a NULL name. For the
 * probe of device/, tests and benches: methods see kr_ops only. */
#ifndef KR_OPS_VARIANTS_H
#define KR_OPS_VARIANTS_H

#include "ops/ops.h"

typedef struct {
    kr_variant variant;
    kr_attend_tiled_fn run;
} kr_attend_tiled_variant;

typedef struct {
    kr_variant variant;
    kr_page_bounds_fn run;
} kr_page_bounds_variant;

typedef struct {
    kr_variant variant;
    kr_page_score_fn run;
} kr_page_score_variant;

typedef struct {
    kr_variant variant;
    kr_select_topk_fn run;
} kr_select_topk_variant;

typedef struct {
    kr_variant variant;
    kr_attend_rows_fn run;
} kr_attend_rows_variant;

typedef struct {
    kr_variant variant;
    kr_dsa_score_fn run;
} kr_dsa_score_variant;

typedef struct {
    kr_variant variant;
    kr_block_score_fn run;
} kr_block_score_variant;

typedef struct {
    kr_variant variant;
    kr_row_dot_fn run;
} kr_row_dot_variant;

typedef struct {
    kr_variant variant;
    kr_channel_dot_fn run;
} kr_channel_dot_variant;

typedef struct {
    kr_variant variant;
    kr_softmax_fn run;
} kr_softmax_variant;

typedef struct {
    kr_variant variant;
    kr_argmax_fn run;
} kr_argmax_variant;

extern const kr_attend_tiled_variant kr_attend_tiled_variants[];
extern const kr_page_bounds_variant kr_page_bounds_variants[];
extern const kr_page_score_variant kr_page_score_variants[];
extern const kr_select_topk_variant kr_select_topk_variants[];
extern const kr_attend_rows_variant kr_attend_rows_variants[];
extern const kr_dsa_score_variant kr_dsa_score_variants[];
extern const kr_block_score_variant kr_block_score_variants[];
extern const kr_row_dot_variant kr_row_dot_variants[];
extern const kr_channel_dot_variant kr_channel_dot_variants[];
extern const kr_softmax_variant kr_softmax_variants[];
extern const kr_argmax_variant kr_argmax_variants[];

void kr_attend_tiled_scalar(const kr_attend_tiled_args *args);
void kr_page_bounds_scalar(const kr_page_bounds_args *args);
void kr_page_score_scalar(const kr_page_score_args *args);
uint32_t kr_select_topk_scalar(const kr_select_topk_args *args);
void kr_attend_rows_scalar(const kr_attend_rows_args *args);
void kr_dsa_score_scalar(const kr_dsa_score_args *args);
void kr_block_score_scalar(const kr_block_score_args *args);
void kr_row_dot_scalar(const kr_row_dot_args *args);
void kr_channel_dot_scalar(const kr_channel_dot_args *args);
void kr_softmax_scalar(const kr_softmax_args *args);
uint64_t kr_argmax_scalar(const float *score, uint64_t n);

#if defined(__x86_64__)
void kr_attend_tiled_avx2(const kr_attend_tiled_args *args);
void kr_attend_tiled_avx512(const kr_attend_tiled_args *args);
void kr_page_score_avx2(const kr_page_score_args *args);
void kr_page_score_avx512(const kr_page_score_args *args);
uint32_t kr_select_topk_avx512(const kr_select_topk_args *args);
void kr_attend_rows_avx2(const kr_attend_rows_args *args);
void kr_attend_rows_avx512(const kr_attend_rows_args *args);
void kr_dsa_score_avx2(const kr_dsa_score_args *args);
void kr_dsa_score_avx512(const kr_dsa_score_args *args);
void kr_dsa_score_avx512bf16(const kr_dsa_score_args *args);
void kr_block_score_avx2(const kr_block_score_args *args);
void kr_block_score_avx512(const kr_block_score_args *args);
void kr_block_score_avx512bf16(const kr_block_score_args *args);
void kr_row_dot_avx2(const kr_row_dot_args *args);
void kr_row_dot_avx512(const kr_row_dot_args *args);
void kr_channel_dot_avx2(const kr_channel_dot_args *args);
void kr_softmax_avx2(const kr_softmax_args *args);
uint64_t kr_argmax_avx2(const float *score, uint64_t n);
void kr_channel_dot_avx512(const kr_channel_dot_args *args);
void kr_softmax_avx512(const kr_softmax_args *args);
uint64_t kr_argmax_avx512(const float *score, uint64_t n);
#elif defined(__aarch64__)
void kr_attend_tiled_neon(const kr_attend_tiled_args *args);
void kr_page_score_neon(const kr_page_score_args *args);
void kr_attend_rows_neon(const kr_attend_rows_args *args);
void kr_dsa_score_neon(const kr_dsa_score_args *args);
void kr_block_score_neon(const kr_block_score_args *args);
void kr_row_dot_neon(const kr_row_dot_args *args);
void kr_channel_dot_neon(const kr_channel_dot_args *args);
void kr_softmax_neon(const kr_softmax_args *args);
uint64_t kr_argmax_neon(const float *score, uint64_t n);
#endif

#endif
