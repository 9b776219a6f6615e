/* karat bench: every kernel beside its limit, measured in the same process.
 *
 * A repeat is limit, kernel, limit, in windows of a few milliseconds. It is kept only when every thread
 * had its CPU for at least KR_BENCH_CLEAN of each window's wall time; shares are of the two limits' mean
 * in the same repeat, so clock changes and neighbours cancel. Results are medians with the 10th and 90th
 * percentile, and how many repeats were kept of how many. */
#ifndef KR_EVAL_BENCH_H
#define KR_EVAL_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "report/table.h"

#define KR_BENCH_CLEAN 0.985

enum { KR_BENCH_CONTEXTS_MAX = 8, KR_BENCH_REPEATS_MAX = 61, KR_BENCH_REPEATS_ENOUGH = 15 };

typedef struct {
    uint32_t threads;
    double seconds;      /* at most this long a row; less when KR_BENCH_REPEATS_ENOUGH are kept */
    uint64_t pool_bytes; /* cold rows walk through this much memory a thread set; >= 512 MiB to mean it */
    const char *only;    /* kernels whose name contains it, or NULL */
    uint64_t contexts[KR_BENCH_CONTEXTS_MAX];
    uint32_t context_count;
} kr_bench_options;

typedef enum {
    KR_LIMIT_F32,           /* FMA peak of the widest F32 unit */
    KR_LIMIT_BF16,          /* BF16 dot peak */
    KR_LIMIT_READ,          /* sequential read of the same pool */
    KR_LIMIT_ROOFLINE,      /* the larger of F32 time and read time */
    KR_LIMIT_ROOFLINE_BF16, /* the same with the BF16 dot */
} kr_bench_limit;

/* One measured row. Rates are of all threads together; share = attainable time / kernel time. */
typedef struct {
    const char *kernel, *variant, *shape;
    bool cold;
    kr_bench_limit limit;
    double flops, bytes, tokens; /* of one window of one thread */
    double share, share_low, share_high;
    double seconds;                  /* median window */
    double limit_flops, limit_bytes; /* per second, 0 where not measured */
    uint32_t kept, total;
} kr_bench_row;

/* Exact top-k against quickselect on a copy (what std::nth_element does). */
typedef struct {
    const char *scores, *variant;
    uint64_t n;
    uint32_t k;
    double ns_an_element, peer_ns_an_element, times, times_low, times_high;
    uint32_t kept, total;
} kr_bench_select_row;

/* What this CPU cannot run, or karat does not have: named, so that no row is missing without a word. */
typedef struct {
    const char *kernel, *variant, *why;
} kr_bench_absent;

enum { KR_BENCH_ROWS_MAX = 96, KR_BENCH_ABSENT_MAX = 32 };

typedef struct {
    kr_bench_options options;
    char cpu[96];
    double f32_flops, read_bytes; /* medians over all rows, all threads */
    kr_bench_row row[KR_BENCH_ROWS_MAX];
    uint32_t rows;
    kr_bench_select_row select[KR_BENCH_ROWS_MAX];
    uint32_t select_rows;
    kr_bench_absent absent[KR_BENCH_ABSENT_MAX];
    uint32_t absent_rows;
} kr_bench_result;

/* Takes minutes; progress goes to base/log. KR_E_MEMORY names the pool, KR_E_ARG an unknown kernel. */
kr_status kr_bench_run(const kr_bench_options *options, kr_bench_result *result, kr_err *err);

/* The command line that measures the same again, into text. */
enum { KR_BENCH_COMMAND_BYTES = 256 };
void kr_bench_command(const kr_bench_options *options, char text[KR_BENCH_COMMAND_BYTES]);

/* Tables (kernels; selection; time of whole contexts; what is absent), and the same as one JSON object,
 * with the command. */
kr_status kr_bench_print(const kr_bench_result *result, FILE *out, kr_err *err);
kr_status kr_bench_json(const kr_bench_result *result, json_t **root, kr_err *err);
/* A roofline picture: achieved against intensity. */
kr_status kr_bench_svg(const kr_bench_result *result, FILE *out, kr_err *err);

#endif
