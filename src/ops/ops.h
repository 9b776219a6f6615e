/* The table of mathematical operations a method may call: one entry an op, filled by device/ with
 * the variants that a probe found fastest on this CPU. Ops take numbers and pointers, never a
 * model; they hold no state, start no threads, allocate nothing and do no I/O.
 *
 * Each op has its own header (score_page.h, attend_tiled.h, ...) that states the formula, shapes,
 * errors and work, a scalar definition that is the specification, and a variant list. This table
 * only collects the function types; a method never names a variant. */
#ifndef KR_OPS_OPS_H
#define KR_OPS_OPS_H

#include "ops/argmax.h"
#include "ops/attend_rows.h"
#include "ops/attend_tiled.h"
#include "ops/block_score.h"
#include "ops/channel_dot.h"
#include "ops/dsa_score.h"
#include "ops/page_bounds.h"
#include "ops/row_dot.h"
#include "ops/select.h"
#include "ops/softmax.h"

typedef struct kr_ops {
    kr_attend_tiled_fn attend_tiled;
    kr_page_bounds_fn page_bounds_append;
    kr_page_score_fn page_score;
    kr_select_topk_fn select_topk;
    kr_attend_rows_fn attend_rows;
    kr_dsa_score_fn dsa_score;
    kr_block_score_fn block_score;
    kr_row_dot_fn row_dot;
    kr_channel_dot_fn channel_dot;
    kr_softmax_fn softmax;
    kr_argmax_fn argmax;
} kr_ops;

/* All entries scalar: the specification. */
extern const kr_ops kr_ops_scalar;

/* One implementation of one op, for tests and benches; usable() looks at the CPU. */
typedef struct {
    const char *name; /* "scalar", "avx2", "avx512", "avx512bf16", "neon" */
    bool (*usable)(void);
} kr_variant;

#endif
