/* karat plan: which cluster for a power and a limit on the time between tokens; and the memory device. */
#include <math.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/output_file.h"
#include "cli/plan_device.h"
#include "cli/plan_page.h"
#include "cli/sim_options.h"
#include "plan/search.h"
#include "report/page.h"
#include "report/table.h"

typedef struct {
    kr_sim_common common;
    kr_search_options search;
    const char *store;
    double power_kw;
    bool all;
    kr_plan_device_options device;
} plan_options;

#define AT(field) offsetof(plan_options, field)
static const kr_option table[] = {
    {.help = "system"},
    KR_SIM_OPTIONS_SYSTEM,
    {.name = "power-kw",
     .alias = "power",
     .type = KR_OPT_REAL,
     .at = AT(power_kw),
     .real_min = 0.1,
     .real_max = 1e5,
     .value = "KW",
     .help = "TDP of all devices together"},
    {.name = "tp-max",
     .type = KR_OPT_U32,
     .at = AT(search.tp_max),
     .min = 1,
     .max = 64,
     .value = "N",
     .help = "largest tensor parallelism of attention that is tried"},
    {.name = "gpu-only-too",
     .type = KR_OPT_FLAG,
     .at = AT(search.gpu_only_too),
     .help = "try the power in compute devices alone as well"},
    {.name = "swing",
     .type = KR_OPT_REAL,
     .at = AT(search.swing),
     .real_min = 0.01,
     .real_max = 0.9,
     .value = "SHARE",
     .help = "how far the sensitivities move each parameter"},
    {.help = "load"},
    KR_SIM_OPTIONS_LOAD,
    {.help = "measurement"},
    KR_SIM_OPTIONS_RUN,
    {.name = "threads",
     .letter = 't',
     .type = KR_OPT_U32,
     .at = AT(search.threads),
     .min = 1,
     .max = 256,
     .value = "N",
     .help = "threads; they do not change the result"},
    {.help = "output"},
    KR_SIM_OPTIONS_OUTPUT,
    {.name = "all", .type = KR_OPT_FLAG, .at = AT(all), .help = "print rejected points too, with the reason"},
    {.name = "store",
     .type = KR_OPT_STRING,
     .at = AT(store),
     .value = "FILE",
     .help = "append the points to an SQLite file"},
    {.help = "plan device"},
    {.name = "access-trace",
     .type = KR_OPT_STRING,
     .at = AT(device.access_trace),
     .value = "FILE",
     .help = "write the addresses of Score and Gather for a DRAM simulator (Ramulator 2's load-store form)"},
    {.name = "context",
     .type = KR_OPT_U64,
     .at = AT(device.context_tokens),
     .min = 1,
     .max = 1 << 24,
     .value = "TOKENS",
     .help = "context of the session in it"},
    {.name = "access-bytes",
     .type = KR_OPT_U32,
     .at = AT(device.access_bytes),
     .min = 16,
     .max = 4096,
     .value = "N",
     .help = "bytes of one access, a power of two"},
};

static const kr_command_line line = {
    .command = "plan",
    .arguments = "[device]",
    .summary = "Searches the best cluster for a trace under a power and a limit on the time between tokens. "
               "plan device: the memory device's own figures, and sweeps of its cores, link and memory.",
    .options = table,
    .option_count = sizeof table / sizeof table[0],
    .arguments_max = 1,
    .example = "karat plan --model glm-5.2 --trace traces/ --power-kw 44.8 --slo-ms 100 --gpu-only-too\n"
               "karat plan device --memory my-device.json",
};

static const kr_column columns[] = {
    {"point", NULL, "point", 0},
    {"system", NULL, "system", 0},
    {"GPUs", NULL, "gpus", 0},
    {"devices", NULL, "devices", 0},
    {"EP", NULL, "ep", 0},
    {"TP", NULL, "tp", 0},
    {"mb", NULL, "micro_batches", 0},
    {"kW", NULL, "tdp_kw", 1},
    {"sessions", NULL, "sessions", 0},
    {"tokens/s", NULL, "tokens_per_s", 0},
    {"tok/s/W", NULL, "tokens_per_s_per_w", 4},
    {"J/token", NULL, "joules_per_token", 3},
    {"P99 ms", NULL, "p99_ms", 1},
    {"verdict", NULL, "verdict", 0},
};

static void fill(kr_table *t, const kr_search *s, bool all)
{
    kr_table_init(t, NULL, columns, sizeof columns / sizeof columns[0]);
    for (uint32_t i = 0; i < s->points; i++) {
        const kr_study_job *j = &s->job[i];
        const bool ran = j->status == KR_OK;

        if (!all && !s->pareto[i])
            continue;
        kr_table_count(t, i);
        kr_table_text(t, "%s", kr_system_names[j->scenario.system]);
        kr_table_count(t, j->scenario.gpus);
        kr_table_count(t, j->scenario.devices);
        kr_table_count(t, j->scenario.ep);
        kr_table_count(t, j->scenario.tp);
        kr_table_count(t, j->scenario.micro_batches);
        kr_table_real(t, j->tdp_w * 1e-3);
        kr_table_count(t, ran ? j->result.sessions : 0);
        kr_table_real(t, ran ? j->result.tokens_per_s : NAN);
        kr_table_real(t, ran ? j->result.tokens_per_s_per_w : NAN);
        kr_table_real(t,
                      ran && j->result.first.joules_per_token > 0 ? j->result.first.joules_per_token : NAN);
        kr_table_real(t, ran ? j->result.p99_s * 1e3 : NAN);
        kr_table_text(t, "%s%s", i == s->best ? "best" : s->pareto[i] ? "on the front" : "", s->why[i]);
    }
}

static const kr_column swings[] = {{"parameter", NULL, "parameter", 0},
                                   {"lower", "%", "lower_percent", 1},
                                   {"higher", "%", "higher_percent", 1}};

static void fill_swings(kr_table *t, const kr_search *s)
{
    const double base = s->job[s->best].result.tokens_per_s_per_w;

    kr_table_init(t, NULL, swings, 3);
    for (int i = 0; i < KR_PLAN_FACTORS; i++) {
        kr_table_text(t, "%s", s->factor[i]);
        kr_table_real(t, 100 * (s->low[i] / base - 1));
        kr_table_real(t, 100 * (s->high[i] / base - 1));
    }
}

/* What stands between the winner and the next, and so how wrong the model may be. */
static void margin(const kr_search *s, char *out, size_t bytes)
{
    const kr_study_job *a, *b;

    if (s->best == UINT32_MAX) {
        snprintf(out, bytes, "no point keeps the limits; --all says why for each");
        return;
    }
    a = &s->job[s->best];
    if (s->second == UINT32_MAX) {
        snprintf(out, bytes, "point %u is the only split that works; bound: %.120s", s->best,
                 a->result.bound);
        return;
    }
    b = &s->job[s->second];
    snprintf(out, bytes,
             "point %u wins by %.1f %% over point %u, the best of another split: an error of the model that "
             "moves the "
             "two apart by that much changes the winner. What binds: %.120s",
             s->best, 100 * (a->result.tokens_per_s_per_w / b->result.tokens_per_s_per_w - 1), s->second,
             a->result.bound);
}

static kr_status print_text(const plan_options *o, const kr_search *s, kr_err *err)
{
    char text[512];
    kr_table t;
    kr_status status;

    fill(&t, s, o->all);
    printf("%u points of %s on %s under %.1f kW and a P99 of %.1f ms\n", s->points, o->search.base.model,
           o->common.trace, o->power_kw, o->common.slo_ms);
    status = kr_table_print(&t, stdout, err);
    kr_table_free(&t);
    margin(s, text, sizeof text);
    printf("%s\n", text);
    if (status != KR_OK || s->best == UINT32_MAX)
        return status;
    fill_swings(&t, s);
    printf("tokens/s/W of the best when one parameter moves by %.0f %%\n", 100 * o->search.swing);
    status = kr_table_print(&t, stdout, err);
    kr_table_free(&t);
    return status;
}

static int print_json(const kr_search *s)
{
    char text[512];
    json_t *points = NULL, *moves = NULL;
    kr_table t;
    kr_err err;
    kr_status status;

    fill(&t, s, true);
    status = kr_table_json(&t, &points, &err);
    kr_table_free(&t);
    if (status == KR_OK && s->best != UINT32_MAX) {
        fill_swings(&t, s);
        status = kr_table_json(&t, &moves, &err);
        kr_table_free(&t);
    }
    if (status != KR_OK) {
        json_decref(points);
        return kr_cli_failed(line.command, &err);
    }
    margin(s, text, sizeof text);
    return kr_cli_print_json(json_pack("{s:o,s:s,s:o}", "points", points, "margin", text, "sensitivity",
                                       moves != NULL ? moves : json_array()));
}

static kr_status write_html(const plan_options *o, const kr_search *s, kr_err *err)
{
    char text[512];
    kr_table t;
    kr_output_file file;
    kr_status status = kr_output_open(&file, o->common.html, err);

    if (status != KR_OK)
        return status;
    FILE *out = file.file;
    margin(s, text, sizeof text);
    kr_page_begin(out, "karat plan", o->search.base.model);
    kr_page_text(out, "%s, %.1f kW, P99 of %.1f ms. %s", o->common.trace, o->power_kw, o->common.slo_ms,
                 text);
    status = kr_plan_draw(s, out, err);
    fill(&t, s, true);
    if (status == KR_OK)
        status = kr_page_table(out, &t, err);
    kr_table_free(&t);
    if (status == KR_OK)
        status = kr_page_end(out, err);
    return kr_output_close(&file, status, err);
}

/* Not one point could be simulated, all for one reason: a mistake, not an answer. */
static bool none_ran(const kr_search *s)
{
    for (uint32_t i = 0; i < s->points; i++)
        if (s->job[i].status == KR_OK || strcmp(s->job[i].err.text, s->job[0].err.text) != 0)
            return false;
    return s->points > 0;
}

static kr_status search(plan_options *o, int *code, kr_err *err)
{
    kr_search s;
    kr_status status = kr_search_run(&o->search, &s, err);

    if (status != KR_OK)
        return status;
    if (!kr_ranks_speaks(o->search.ranks)) {
        kr_search_free(&s);
        return KR_OK;
    }
    if (none_ran(&s)) {
        *err = s.job[0].err;
        status = s.job[0].status;
        kr_search_free(&s);
        return status;
    }
    if (o->common.html != NULL)
        status = write_html(o, &s, err);
    if (status == KR_OK && o->store != NULL)
        status = kr_search_store(&s, o->store, o->common.trace, err);
    if (status == KR_OK && o->common.json)
        *code = print_json(&s);
    else if (status == KR_OK)
        status = print_text(o, &s, err);
    kr_search_free(&s);
    return status;
}

static kr_status plan(plan_options *o, bool device, int *code, kr_err *err)
{
    kr_sim_inputs in;
    kr_status status = kr_sim_inputs_open(&o->common, &in, err);

    if (status != KR_OK)
        return status;
    o->search.base = o->common.scenario;
    o->search.study = o->common.study;
    o->search.workload = &in.workload;
    if (device && o->search.ranks != NULL) {
        status = kr_fail(err, KR_E_UNSUPPORTED, "plan device is small: run it with karat, not over ranks");
    } else if (device) {
        o->device.search = &o->search;
        o->device.trace = o->common.trace;
        o->device.html = o->common.html;
        o->device.json = o->common.json;
        status = kr_plan_device(&o->device, code, err);
    } else {
        status = search(o, code, err);
    }
    o->search.workload = NULL;
    kr_sim_inputs_free(&in);
    return status;
}

int kr_cmd_plan_on(const kr_ranks *ranks, int argc, char **argv)
{
    plan_options o = {
        .common =
            {.scenario = {.data = "data",
                          .model = "deepseek-v3.2",
                          .method = "native",
                          .factors = KR_PLAN_NO_FACTORS},
             .study = {.policy = KR_POLICY_OFMS, .rebalance = true, .seed = 1, .seeds = 1, .steps_max = 400},
             .trace = "kvct-like",
             .trace_sessions = 300,
             .slo_ms = 100},
        .search = {.tp_max = 1, .threads = 2, .ranks = ranks, .swing = 0.2},
        .power_kw = 44.8,
        .device = {.context_tokens = 131072, .access_bytes = 64}};
    char **rest;
    int rest_count, code = KR_EXIT_OK;
    kr_err err;

    if (!kr_options_parse(&line, argc, argv, &o, &rest, &rest_count, &code))
        return code;
    if (rest_count == 1 && strcmp(rest[0], "device") != 0)
        return kr_cli_misused(line.command, "\"%s\" is not a thing to plan; device is", rest[0]);
    o.search.watts = o.power_kw * 1e3;
    return plan(&o, rest_count == 1, &code, &err) == KR_OK ? code : kr_cli_failed(line.command, &err);
}

int kr_cmd_plan(int argc, char **argv) { return kr_cmd_plan_on(NULL, argc, argv); }
