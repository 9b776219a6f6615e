/* Timed windows on a team, and the limits that kernels are measured against. */
#include "eval/bench_window.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/num.h"
#include "ops/probe.h"

/* The results of limit loops, so that no compiler drops them. */
static _Thread_local volatile float sink;

typedef struct {
    const bench_team *team;
    bench_work work;
    const void *context;
} window;

static void run_part(void *context, uint32_t part, uint32_t worker)
{
    const window *w = context;
    bench_thread *t = &w->team->thread[part];
    const uint64_t cpu = kr_now_ns(&kr_clock_thread);

    t->worker = worker;
    t->begin_ns = kr_now_ns(&kr_clock_system);
    w->work(t, w->context);
    t->end_ns = kr_now_ns(&kr_clock_system);
    t->cpu_ns = kr_now_ns(&kr_clock_thread) - cpu;
}

double bench_window(const bench_team *team, bench_work work, const void *context, bool *clean)
{
    window w = {team, work, context};
    uint64_t begin = UINT64_MAX, end = 0, workers = 0;

    kr_team_run(team->team, run_part, &w, team->threads);
    for (uint32_t i = 0; i < team->threads; i++) {
        const bench_thread *t = &team->thread[i];

        begin = t->begin_ns < begin ? t->begin_ns : begin;
        end = t->end_ns > end ? t->end_ns : end;
        workers |= (uint64_t)1 << (t->worker % 64);
        if ((double)t->cpu_ns < KR_BENCH_CLEAN * (double)(t->end_ns - t->begin_ns))
            *clean = false;
    }
    if ((uint32_t)__builtin_popcountll(workers) != team->threads)
        *clean = false;
    return (double)(end - begin) * 1e-9;
}

void bench_probe_work(bench_thread *thread, const void *probe)
{
    float value;

    (void)thread;
    ((const kr_probe *)probe)->run(BENCH_PROBE_ITERATIONS, &value);
    sink = value;
}

void bench_read_work(bench_thread *t, const void *unused)
{
    const uint64_t windows = t->pool_bytes / BENCH_READ_BYTES / t->threads;
    const uint64_t at = t->cold ? t->number * windows + t->read_cursor++ % windows : t->number;

    (void)unused;
    sink = (float)kr_probe_read(t->pool + at * BENCH_READ_BYTES, BENCH_READ_BYTES);
}

double bench_percentile(double *sample, uint32_t n, double q)
{
    if (n == 0)
        return NAN;
    kr_sort_reals(sample, n);
    return sample[(uint32_t)(q * (n - 1) + 0.5)];
}
