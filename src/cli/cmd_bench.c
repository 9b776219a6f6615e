/* karat bench: every kernel beside its limit. */
#include <string.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output_file.h"
#include "eval/bench.h"

typedef struct {
    uint32_t threads;
    double seconds;
    uint64_t pool;
    const char *only, *svg;
    kr_option_sizes contexts;
    bool json;
} bench_options;

static const kr_option table[] = {
    {.name = "threads",
     .letter = 't',
     .type = KR_OPT_U32,
     .at = offsetof(bench_options, threads),
     .min = 1,
     .max = 64,
     .value = "N",
     .help = "threads that run a kernel at the same time"},
    {.name = "seconds",
     .type = KR_OPT_REAL,
     .at = offsetof(bench_options, seconds),
     .real_min = 0.01,
     .real_max = 600,
     .value = "S",
     .help = "longest time for a row"},
    {.name = "pool",
     .type = KR_OPT_SIZE,
     .at = offsetof(bench_options, pool),
     .min = 64 << 20,
     .max = (uint64_t)1 << 40,
     .value = "BYTES",
     .help = "memory that cold rows walk through"},
    {.name = "contexts",
     .type = KR_OPT_SIZES,
     .at = offsetof(bench_options, contexts),
     .min = 4096,
     .max = 1 << 22,
     .value = "TOKENS,...",
     .help = "context lengths of selection and whole scans"},
    {.name = "only",
     .type = KR_OPT_STRING,
     .at = offsetof(bench_options, only),
     .value = "TEXT",
     .help = "kernels whose name contains TEXT"},
    {.name = "svg",
     .type = KR_OPT_STRING,
     .at = offsetof(bench_options, svg),
     .value = "FILE",
     .help = "write a roofline picture"},
    {.name = "json",
     .type = KR_OPT_FLAG,
     .at = offsetof(bench_options, json),
     .help = "print one JSON object"},
};

static const kr_command_line line = {
    .command = "bench",
    .summary =
        "Measures every kernel beside its limit in the same process: limit, kernel, limit, in short windows.",
    .options = table,
    .option_count = sizeof table / sizeof table[0],
    .example = "karat bench --threads 2 --svg roofline.svg\nkarat bench --only dsa_score --json",
};

static kr_status write_svg(const char *path, const kr_bench_result *result, kr_err *err)
{
    kr_output_file out;
    const kr_status status = kr_output_open(&out, path, err);

    return status == KR_OK ? kr_output_close(&out, kr_bench_svg(result, out.file, err), err) : status;
}

int kr_cmd_bench(int argc, char **argv)
{
    bench_options o = {.threads = 1,
                       .seconds = 1.0,
                       .pool = 512 << 20,
                       .contexts = {.item = {64 << 10, 256 << 10, 1 << 20}, .count = 3}};
    static kr_bench_result result;
    kr_bench_options run;
    json_t *root;
    char **rest;
    int rest_count, status;
    kr_err err;

    if (!kr_options_parse(&line, argc, argv, &o, &rest, &rest_count, &status))
        return status;
    if (o.contexts.count > KR_BENCH_CONTEXTS_MAX)
        return kr_cli_misused(line.command, "%u contexts; at most %d", o.contexts.count,
                              KR_BENCH_CONTEXTS_MAX);
    run = (kr_bench_options){.threads = o.threads,
                             .seconds = o.seconds,
                             .pool_bytes = o.pool & ~(uint64_t)0xfffff,
                             .only = o.only,
                             .context_count = o.contexts.count};
    memcpy(run.contexts, o.contexts.item, sizeof run.contexts);
    if (kr_bench_run(&run, &result, &err) != KR_OK || (o.svg && write_svg(o.svg, &result, &err) != KR_OK))
        return kr_cli_failed(line.command, &err);
    if (!o.json)
        return kr_bench_print(&result, stdout, &err) == KR_OK ? KR_EXIT_OK
                                                              : kr_cli_failed(line.command, &err);
    return kr_bench_json(&result, &root, &err) == KR_OK ? kr_cli_print_json(root)
                                                        : kr_cli_failed(line.command, &err);
}
