/* Timed windows on a team of threads: the clock of karat bench. Internal to eval/bench*. */
#ifndef KR_EVAL_BENCH_WINDOW_H
#define KR_EVAL_BENCH_WINDOW_H

#include "base/team.h"
#include "eval/bench.h"

/* What a thread of the bench owns. */
typedef struct {
    uint32_t number, threads;
    uint64_t cursor; /* windows done: cold kernels walk the pool with it */
    uint64_t read_cursor;
    const float *queries; /* shared: [BENCH_QUERIES] normal values for queries, weights and such */
    uint8_t *pool;        /* shared, read only while kernels run */
    uint64_t pool_bytes;
    bool cold;
    void *scratch; /* private, 64-byte aligned, of scratch_bytes */
    size_t scratch_bytes;
    uint64_t begin_ns, end_ns, cpu_ns;
    uint32_t worker;
} bench_thread;

typedef void (*bench_work)(bench_thread *thread, const void *context);

typedef struct {
    kr_team *team;
    bench_thread *thread; /* [threads] */
    uint32_t threads;
} bench_team;

/* Runs work once on every thread at the same time. Returns the wall time in seconds; *clean says whether
 * each thread was a thread of its own and kept its CPU. */
double bench_window(const bench_team *team, bench_work work, const void *context, bool *clean);

/* The limits, as work: a loop of independent F32 or BF16 multiply-adds, and a sequential read. context of
 * the first two: a kr_probe. */
void bench_probe_work(bench_thread *thread, const void *probe);
void bench_read_work(bench_thread *thread, const void *unused);

enum { BENCH_QUERIES = 1 << 18, BENCH_PROBE_ITERATIONS = 20000, BENCH_READ_BYTES = 4 << 20 };

/* Median, and the 10th and 90th percentile, of n samples, which it sorts. NaN when n is 0. */
double bench_percentile(double *sample, uint32_t n, double q);

#endif
