/* What karat bench runs: kernels at the shapes of real models. Internal to eval/bench*. */
#ifndef KR_EVAL_BENCH_CASES_H
#define KR_EVAL_BENCH_CASES_H

#include "eval/bench_window.h"
#include "ops/variants.h"

typedef enum { BENCH_FILL_E4M3, BENCH_FILL_F16, BENCH_FILL_BF16 } bench_fill;

typedef union {
    kr_dsa_score_fn dsa_score;
    kr_block_score_fn block_score;
    kr_attend_rows_fn attend_rows;
    kr_attend_tiled_fn attend_tiled;
    kr_row_dot_fn row_dot;
    kr_channel_dot_fn channel_dot;
    kr_page_score_fn page_score;
} bench_fn;

/* Shape of one case; fields mean what the kernel's args say. */
typedef struct bench_case {
    const char *kernel, *shape, *variant;
    bench_work run; /* context is this case */
    bench_fn fn;
    bench_fill fill;
    kr_bench_limit limit;
    uint32_t heads, dim, value_dim; /* heads: index heads, or query rows that share a list */
    uint32_t tokens;                /* of one window */
    uint32_t run_tokens;            /* contiguous tokens of a page, block or unit; 1 = single rows */
    double flops, bytes;            /* of one window */
} bench_case;

/* Calls visit for each variant (scalar left out) of each kernel at each shape; usable says whether this
 * CPU can run it. */
void bench_each_case(void (*visit)(const bench_case *c, bool usable, void *context), void *context);

/* Scratch a thread needs. */
size_t bench_scratch_bytes(void);

#endif
