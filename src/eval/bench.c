/* Runs the cases of bench_cases.c and the selection rows; tables are in bench_report.c. */
#include "eval/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/num.h"
#include "base/rng.h"
#include "device/device.h"
#include "eval/bench_cases.h"
#include "ops/probe.h"

enum { FILL_BLOCK = 1 << 20, SELECT_K = 2048 };

typedef struct {
    kr_bench_options options;
    kr_bench_result *result;
    bench_team team;
    kr_arena pool, memory;
    float *queries;
    bench_fill filled;
    bool has_fill;
    uint32_t matched;
} bench;

static uint64_t now(void) { return kr_now_ns(&kr_clock_system); }

/* The widest probe of a unit. */
static const kr_probe *probe_of(kr_probe_unit unit)
{
    const kr_probe *p = kr_probes;

    while (p->name != NULL && (p->unit != unit || !p->usable()))
        p++;
    return p->name != NULL ? p : NULL;
}

/* A block of normal values of the type, repeated: caches see addresses, not values. */
static void fill_pool(bench *b, bench_fill fill)
{
    kr_rng rng = kr_rng_make(2, 2);

    if (b->has_fill && b->filled == fill)
        return;
    for (size_t i = 0; i < FILL_BLOCK; i += 2) {
        const float x = (float)kr_rng_normal(&rng), y = (float)kr_rng_normal(&rng);
        const uint16_t half = fill == BENCH_FILL_F16 ? kr_f16_from_f32(x) : kr_bf16_from_f32(x);

        if (fill != BENCH_FILL_E4M3) {
            memcpy(b->pool.base + i, &half, 2);
        } else {
            b->pool.base[i] = kr_e4m3_from_f32(20.0f * x);
            b->pool.base[i + 1] = kr_e4m3_from_f32(20.0f * y);
        }
    }
    for (uint64_t at = FILL_BLOCK; at + FILL_BLOCK <= b->options.pool_bytes; at += FILL_BLOCK)
        memcpy(b->pool.base + at, b->pool.base, FILL_BLOCK);
    b->filled = fill;
    b->has_fill = true;
}

/* Rates of the limits, all threads together, from one clean window each; 0 where not asked for. */
typedef struct {
    double flops, bytes;
} limits;

static limits measure_limits(bench *b, kr_bench_limit limit, bool *clean)
{
    const bool bf16 = limit == KR_LIMIT_BF16 || limit == KR_LIMIT_ROOFLINE_BF16;
    const kr_probe *probe = probe_of(bf16 ? KR_PROBE_BF16_DOT : KR_PROBE_F32_FMA);
    limits l = {0};
    float ignored;

    if (limit != KR_LIMIT_READ) {
        /* run() returns its operations; ask for one iteration to know an iteration's. */
        const double ops = probe->run(1, &ignored) * BENCH_PROBE_ITERATIONS;
        l.flops = ops * b->team.threads / bench_window(&b->team, bench_probe_work, probe, clean);
    }
    if (limit != KR_LIMIT_F32 && limit != KR_LIMIT_BF16)
        l.bytes = (double)BENCH_READ_BYTES * b->team.threads /
                  bench_window(&b->team, bench_read_work, NULL, clean);
    return l;
}

/* Seconds that the limits allow for one window of every thread. */
static double attainable(const bench_case *c, limits l, uint32_t threads)
{
    const double compute = l.flops > 0 ? c->flops * threads / l.flops : 0;
    const double read = l.bytes > 0 ? c->bytes * threads / l.bytes : 0;

    return compute > read ? compute : read;
}

typedef struct {
    double share[KR_BENCH_REPEATS_MAX], seconds[KR_BENCH_REPEATS_MAX];
    double flops[KR_BENCH_REPEATS_MAX], bytes[KR_BENCH_REPEATS_MAX];
} samples;

static void measure_case(bench *b, const bench_case *c, bool cold)
{
    kr_bench_result *r = b->result;
    samples s;
    kr_bench_row row = {.kernel = c->kernel,
                        .variant = c->variant,
                        .shape = c->shape,
                        .cold = cold,
                        .limit = c->limit,
                        .flops = c->flops,
                        .bytes = c->bytes,
                        .tokens = c->tokens};
    bool warm_up = true;

    for (uint32_t i = 0; i < b->team.threads; i++)
        b->team.thread[i].cold = cold;
    fill_pool(b, c->fill);
    bench_window(&b->team, c->run, c, &warm_up);
    const uint64_t begin = now(), most = (uint64_t)(b->options.seconds * 1e9);

    while (row.kept < KR_BENCH_REPEATS_MAX && (now() - begin < most || row.total == 0)) {
        bool clean = true;
        const limits before = measure_limits(b, c->limit, &clean);
        const double seconds = bench_window(&b->team, c->run, c, &clean);
        const limits after = measure_limits(b, c->limit, &clean);
        const limits mean = {(before.flops + after.flops) / 2, (before.bytes + after.bytes) / 2};

        row.total++;
        if (!clean)
            continue;
        s.share[row.kept] = attainable(c, mean, b->team.threads) / seconds;
        s.seconds[row.kept] = seconds;
        s.flops[row.kept] = mean.flops;
        s.bytes[row.kept++] = mean.bytes;
        if (row.kept >= KR_BENCH_REPEATS_ENOUGH && now() - begin > most / 2)
            break;
    }
    row.seconds = bench_percentile(s.seconds, row.kept, 0.5);
    row.limit_flops = bench_percentile(s.flops, row.kept, 0.5);
    row.limit_bytes = bench_percentile(s.bytes, row.kept, 0.5);
    row.share_low = bench_percentile(s.share, row.kept, 0.1);
    row.share_high = bench_percentile(s.share, row.kept, 0.9);
    row.share = bench_percentile(s.share, row.kept, 0.5);
    if (row.kept == 0)
        kr_log(KR_LOG_WARN, "bench: %s %s, %s, %s: no thread kept its CPU in any of %u repeats", c->kernel,
               c->variant, c->shape, cold ? "cold" : "warm", row.total);
    else
        kr_log(KR_LOG_INFO, "bench: %s %s, %s, %s: %.0f %% of its limit, %u of %u repeats kept", c->kernel,
               c->variant, c->shape, cold ? "cold" : "warm", 100 * row.share, row.kept, row.total);
    if (r->rows < KR_BENCH_ROWS_MAX)
        r->row[r->rows++] = row;
}

static void note_absent(bench *b, const char *kernel, const char *variant, const char *why)
{
    kr_bench_result *r = b->result;
    const kr_bench_absent *last = r->absent_rows > 0 ? &r->absent[r->absent_rows - 1] : NULL;

    if (last != NULL && strcmp(last->kernel, kernel) == 0 && strcmp(last->variant, variant) == 0)
        return; /* at another shape */
    if (r->absent_rows < KR_BENCH_ABSENT_MAX)
        r->absent[r->absent_rows++] = (kr_bench_absent){kernel, variant, why};
}

/* Units that no kernel can be held against here, and the FP16 kernels that do not exist. */
static void note_units(bench *b)
{
    static const char *const no_fp16 = "karat does no arithmetic in FP16: its top-k would not be exact "
                                       "(docs/fp16-scan.md); F16 caches are widened to F32";

    for (const kr_probe *p = kr_probes; p->name != NULL; p++)
        if (!p->usable())
            note_absent(b, "unit", p->name, "not on this CPU");
    if (b->options.only == NULL || strstr("dsa_score", b->options.only) != NULL)
        note_absent(b, "dsa_score", "fp16", no_fp16);
    if (b->options.only == NULL || strstr("attend_rows", b->options.only) != NULL)
        note_absent(b, "attend_rows", "fp16", no_fp16);
}

static void visit_case(const bench_case *c, bool usable, void *context)
{
    bench *b = context;

    if (b->options.only != NULL && strstr(c->kernel, b->options.only) == NULL)
        return;
    b->matched++;
    if (!usable) {
        note_absent(b, c->kernel, c->variant, "not on this CPU");
        return;
    }
    measure_case(b, c, true);
    measure_case(b, c, false);
}

/* ---- selection ---- */

/* Hoare's selection of the k largest, on a copy: the peer. */
static void quickselect(float *x, int64_t n, int64_t k)
{
    int64_t low = 0, high = n - 1;

    while (low < high) {
        const float pivot = x[low + (high - low) / 2];
        int64_t i = low, j = high;

        while (i <= j) {
            while (x[i] > pivot)
                i++;
            while (x[j] < pivot)
                j--;
            if (i <= j) {
                const float t = x[i];
                x[i++] = x[j], x[j--] = t;
            }
        }
        if (k - 1 <= j)
            high = j;
        else if (k - 1 >= i)
            low = i;
        else
            return;
    }
}

typedef struct {
    const float *score; /* [rows][n]: a new row each window, so that none is in the nearest cache */
    float *copy;
    uint64_t n, rows;
    uint32_t *position;
    void *scratch;
    kr_select_topk_fn run;
    uint64_t taken;
} selection;

static void run_select(bench_thread *t, const void *context)
{
    const selection *s = context;
    uint64_t nan = 0;

    s->run(&(kr_select_topk_args){.score = s->score + t->cursor++ % s->rows * s->n,
                                  .n = s->n,
                                  .k = SELECT_K,
                                  .position = s->position,
                                  .scratch = s->scratch,
                                  .nan_count = &nan});
}

static void run_quickselect(bench_thread *t, const void *context)
{
    const selection *s = context;

    memcpy(s->copy, s->score + t->cursor++ % s->rows * s->n, s->n * sizeof(float));
    quickselect(s->copy, (int64_t)s->n, SELECT_K);
}

static const char *const score_kinds[] = {"normal", "all equal", "ascending", "8 values", NULL};

static float score_at(kr_rng *rng, int kind, uint64_t i)
{
    switch (kind) {
    case 0:
        return (float)kr_rng_normal(rng);
    case 1:
        return 1.0f;
    case 2:
        return (float)i;
    default:
        return (float)kr_rng_below(rng, 8);
    }
}

static void measure_select(bench *b, uint64_t n, int kind, const kr_select_topk_variant *variant)
{
    const bench_team one = {b->team.team, b->team.thread, 1};
    kr_rng rng = kr_rng_make(3, (uint64_t)kind);
    kr_bench_select_row row = {
        .scores = score_kinds[kind], .variant = variant->variant.name, .n = n, .k = SELECT_K};
    float *score = (float *)(void *)b->pool.base;
    samples s;
    selection sel = {.score = score, .n = n, .run = variant->run};

    sel.rows = 16 * 1048576 / sizeof(float) / n + 1; /* at least 16 MiB of scores go round */
    sel.copy = score + sel.rows * n;
    sel.position = (uint32_t *)(sel.copy + n);
    sel.scratch = (void *)kr_align_up((uintptr_t)(sel.position + SELECT_K + 16), 64);
    for (uint64_t i = 0; i < sel.rows * n; i++)
        score[i] = score_at(&rng, kind, i % n);
    b->has_fill = false;
    const uint64_t begin = now(), most = (uint64_t)(b->options.seconds * 1e9);

    while (row.kept < KR_BENCH_REPEATS_MAX && (now() - begin < most || row.total == 0)) {
        bool clean = true;
        const double before = bench_window(&one, run_quickselect, &sel, &clean);
        const double seconds = bench_window(&one, run_select, &sel, &clean);
        const double after = bench_window(&one, run_quickselect, &sel, &clean);

        row.total++;
        if (!clean)
            continue;
        s.share[row.kept] = (before + after) / 2 / seconds;
        s.seconds[row.kept] = seconds;
        s.flops[row.kept++] = (before + after) / 2;
    }
    row.ns_an_element = bench_percentile(s.seconds, row.kept, 0.5) * 1e9 / (double)n;
    row.peer_ns_an_element = bench_percentile(s.flops, row.kept, 0.5) * 1e9 / (double)n;
    row.times_low = bench_percentile(s.share, row.kept, 0.1);
    row.times_high = bench_percentile(s.share, row.kept, 0.9);
    row.times = bench_percentile(s.share, row.kept, 0.5);
    kr_log(KR_LOG_INFO, "bench: select_topk %s, %llu %s scores: %.2f ns an element, %u of %u repeats kept",
           row.variant, (unsigned long long)n, row.scores, row.ns_an_element, row.kept, row.total);
    if (b->result->select_rows < KR_BENCH_ROWS_MAX)
        b->result->select[b->result->select_rows++] = row;
}

static void measure_selection(bench *b)
{
    if (b->options.only != NULL && strstr("select_topk", b->options.only) == NULL)
        return;
    b->matched++;
    for (int v = 0; kr_select_topk_variants[v].run != NULL; v++)
        for (uint32_t i = 0; i < b->options.context_count && kr_select_topk_variants[v].variant.usable(); i++)
            /* Worst cases at one size, and not for the definition, which is no candidate. */
            for (int kind = 0; score_kinds[kind] != NULL && (kind == 0 || (i == 0 && v == 0)); kind++)
                if (b->options.contexts[i] > SELECT_K)
                    measure_select(b, b->options.contexts[i], kind, &kr_select_topk_variants[v]);
}

/* ---- whole ---- */

static kr_status take_memory(bench *b, kr_err *err)
{
    const uint32_t threads = b->options.threads;
    const size_t scratch = kr_align_up(bench_scratch_bytes(), 64);
    kr_rng rng = kr_rng_make(1, 1);
    kr_status status = kr_arena_init(&b->pool, b->options.pool_bytes, err);

    if (status == KR_OK)
        status = kr_arena_init(
            &b->memory,
            threads * (scratch + sizeof(bench_thread) + 64) + BENCH_QUERIES * sizeof(float) + 4096, err);
    if (status == KR_OK)
        status = kr_team_create(&b->team.team, threads, NULL, err);
    if (status != KR_OK)
        return status;
    b->team.threads = threads;
    b->team.thread = kr_arena_take(&b->memory, threads * sizeof(bench_thread));
    b->queries = kr_arena_take(&b->memory, BENCH_QUERIES * sizeof(float));
    for (size_t i = 0; i < BENCH_QUERIES; i++)
        b->queries[i] = (float)kr_rng_normal(&rng);
    for (uint32_t i = 0; i < threads; i++)
        b->team.thread[i] = (bench_thread){.number = i,
                                           .threads = threads,
                                           .queries = b->queries,
                                           .pool = b->pool.base,
                                           .pool_bytes = b->options.pool_bytes,
                                           .scratch = kr_arena_take(&b->memory, scratch),
                                           .scratch_bytes = scratch};
    return KR_OK;
}

static double median_limit(const kr_bench_result *r, bool flops)
{
    double value[KR_BENCH_ROWS_MAX];
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->rows; i++) {
        const double x = flops ? r->row[i].limit_flops : r->row[i].limit_bytes;

        if (x > 0 &&
            (!flops || (r->row[i].limit != KR_LIMIT_BF16 && r->row[i].limit != KR_LIMIT_ROOFLINE_BF16)) &&
            (flops || r->row[i].cold))
            value[n++] = x;
    }
    return bench_percentile(value, n, 0.5);
}

kr_status kr_bench_run(const kr_bench_options *options, kr_bench_result *result, kr_err *err)
{
    bench b = {.options = *options, .result = result};
    kr_cpu_probe probe;
    kr_ops ops;
    kr_status status = take_memory(&b, err);

    *result = (kr_bench_result){.options = *options};
    kr_cpu_choose(1, &ops, &probe);
    memcpy(result->cpu, probe.cpu, sizeof result->cpu);
    if (status == KR_OK) {
        note_units(&b);
        bench_each_case(visit_case, &b);
        measure_selection(&b);
        if (b.matched == 0)
            status = kr_fail(err, KR_E_ARG, "no kernel's name contains \"%.40s\"", options->only);
    }
    result->f32_flops = median_limit(result, true);
    result->read_bytes = median_limit(result, false);
    kr_team_destroy(b.team.team);
    kr_arena_free(&b.memory);
    kr_arena_free(&b.pool);
    return status;
}
