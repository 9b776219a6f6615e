/* karat reproduce: the papers' experiments beside their claims. */

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output_file.h"
#include "plan/anchors.h"
#include "plan/reproduce.h"
#include "report/table.h"

typedef struct {
    kr_reproduce_options run;
    const char *out;
    kr_option_strings tables;
    bool anchors;
} reproduce_options;

#define AT(field) offsetof(reproduce_options, field)
static const kr_option table[] = {
    {.name = "kvct",
     .type = KR_OPT_STRING,
     .at = AT(run.kvct),
     .value = "FILE|FOLDER",
     .help = "KVCT traces (KVCT JSON or run-length); without them a synthetic trace stands in"},
    {.name = "out",
     .letter = 'o',
     .type = KR_OPT_STRING,
     .at = AT(out),
     .value = "FILE",
     .help = "report to write"},
    {.name = "data",
     .type = KR_OPT_STRING,
     .at = AT(run.data),
     .value = "FOLDER",
     .help = "folder with models/ and devices/"},
    {.name = "seed", .type = KR_OPT_U64, .at = AT(run.seed), .value = "N", .help = "first seed"},
    {.name = "seeds",
     .type = KR_OPT_U32,
     .at = AT(run.seeds),
     .min = 1,
     .max = KR_STUDY_SEEDS_MAX,
     .value = "N",
     .help = "runs of each point's final number of sessions"},
    {.name = "threads",
     .letter = 't',
     .type = KR_OPT_U32,
     .at = AT(run.threads),
     .min = 1,
     .max = 256,
     .value = "N",
     .help = "threads; they do not change the result"},
    {.name = "trace-sessions",
     .type = KR_OPT_U32,
     .at = AT(run.trace_sessions),
     .min = 10,
     .max = 1 << 16,
     .value = "N",
     .help = "sessions of a synthetic trace"},
    {.name = "no-changes",
     .type = KR_OPT_FLAG,
     .at = AT(run.no_changes),
     .help = "leave out the runs under changes of what the papers leave open"},
    {.name = "anchors",
     .type = KR_OPT_FLAG,
     .at = AT(anchors),
     .help = "print published times of a decode step beside the simulator's, and nothing else"},
    {.name = "tables",
     .type = KR_OPT_STRINGS,
     .at = AT(tables),
     .value = "FILE,...",
     .help = "measured tables for --anchors (tools/import_aiconfigurator.py)"},
};

static const kr_command_line line = {
    .command = "reproduce",
    .summary = "Runs the papers' experiments on the simulator and writes each claim beside what came out.",
    .options = table,
    .option_count = sizeof table / sizeof table[0],
    .example = "karat reproduce --kvct traces/ --seeds 5 --out docs/reproduction.md",
};

static const kr_column columns[] = {
    {"anchor", NULL, "anchor", 0},
    {"device", NULL, "device", 0},
    {"published", "ms", "published_ms", 1},
    {"here", "ms", "here_ms", 1},
    {"error", "%", "error_percent", 1},
    {"measured or between", "%", "measured_or_interpolated_percent", 0},
};

static kr_status print_anchors(const char *data, kr_device_tables *const *tables, uint32_t count, kr_err *err)
{
    kr_anchor_result r[KR_ANCHORS];
    kr_status status = kr_anchors_run(data, tables, count, r, err);
    kr_table t;

    if (status != KR_OK)
        return status;
    kr_table_init(&t, NULL, columns, sizeof columns / sizeof columns[0]);
    for (int i = 0; i < KR_ANCHORS; i++) {
        kr_table_text(&t, "%s", kr_anchors[i].name);
        kr_table_text(&t, "%s", kr_anchors[i].device);
        kr_table_real(&t, kr_anchors[i].published_ms);
        kr_table_real(&t, r[i].ms);
        kr_table_real(&t, 100 * (r[i].ms / kr_anchors[i].published_ms - 1));
        kr_table_real(&t, 100 * (r[i].provenance[KR_MEASURED] + r[i].provenance[KR_INTERPOLATED]));
    }
    status = kr_table_print(&t, stdout, err);
    kr_table_free(&t);
    return status;
}

static kr_status anchors(const reproduce_options *o, kr_err *err)
{
    kr_device_tables *tables[KR_OPT_LIST_MAX];
    uint32_t count = 0;
    kr_status status = KR_OK;

    while (count < o->tables.count && status == KR_OK) {
        status = kr_device_tables_load(kr_option_string_at(&o->tables, count), &tables[count], err);
        count += status == KR_OK;
    }
    if (status == KR_OK)
        status = print_anchors(o->run.data, tables, count, err);
    while (count > 0)
        kr_device_tables_free(tables[--count]);
    return status;
}

int kr_cmd_reproduce_on(const kr_ranks *ranks, int argc, char **argv)
{
    reproduce_options o = {
        .run = {.data = "data", .seeds = 5, .threads = 2, .trace_sessions = 300, .seed = 1, .ranks = ranks},
        .out = "reproduction.md"};
    kr_reproduction r;
    char **rest;
    int rest_count, code;
    uint32_t count[4] = {0};
    kr_status status;
    const uint64_t begin_ns = kr_now_ns(&kr_clock_system);
    kr_output_file out;
    kr_err err;

    if (!kr_options_parse(&line, argc, argv, &o, &rest, &rest_count, &code))
        return code;
    if (o.anchors)
        return anchors(&o, &err) == KR_OK ? KR_EXIT_OK : kr_cli_failed(line.command, &err);
    if (kr_reproduce(&o.run, &r, &err) != KR_OK)
        return kr_cli_failed(line.command, &err);
    if (!kr_ranks_speaks(ranks)) {
        kr_reproduction_free(&r);
        return KR_EXIT_OK;
    }
    r.wall_s = (double)(kr_now_ns(&kr_clock_system) - begin_ns) * 1e-9;
    status = kr_output_open(&out, o.out, &err);
    if (status == KR_OK)
        status = kr_output_close(&out, kr_reproduction_write(&o.run, &r, out.file, &err), &err);
    for (uint32_t i = 0; i < r.karat.claims; i++)
        count[kr_claim_verdict(&r.karat.claim[i])]++;
    for (uint32_t i = 0; i < r.pair.claims; i++)
        count[kr_claim_verdict(&r.pair.claim[i])]++;
    if (status == KR_OK)
        printf("%u points run, %u claims: %u hold, %u by sign, %u missed, %u cannot say; %s\n", r.runs,
               r.karat.claims + r.pair.claims, count[0], count[1], count[2], count[3], o.out);
    kr_reproduction_free(&r);
    return status == KR_OK ? KR_EXIT_OK : kr_cli_failed(line.command, &err);
}

int kr_cmd_reproduce(int argc, char **argv) { return kr_cmd_reproduce_on(NULL, argc, argv); }
