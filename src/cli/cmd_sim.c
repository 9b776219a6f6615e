/* karat sim: one system, one model, one trace in virtual time. */
#include <math.h>

#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/output_file.h"
#include "cli/sim_options.h"
#include "cli/sim_own.h"
#include "plan/shares.h"
#include "plan/timeline.h"
#include "report/chart.h"
#include "report/page.h"
#include "report/table.h"

typedef struct {
    kr_sim_common common;
    kr_sim_own_options own;
    const char *trace_out, *expert_shares;
    int policy, cmr;
    uint32_t sessions, trace_steps;
    double expert_skew;
    bool find_max;
} sim_options;

static const char *const policies[] = {"scms", "ofms", NULL};
static const char *const on_off[] = {"off", "on", NULL};

#define AT(field) offsetof(sim_options, field)
static const kr_option table[] = {
    {.help = "system"},
    KR_SIM_OPTIONS_SYSTEM,
    {.name = "gpus",
     .type = KR_OPT_U32,
     .at = AT(common.scenario.gpus),
     .min = 1,
     .max = 4096,
     .value = "N",
     .help = "compute devices"},
    {.name = "devices",
     .type = KR_OPT_U32,
     .at = AT(common.scenario.devices),
     .max = 16384,
     .value = "N",
     .help = "memory devices"},
    {.name = "ep",
     .type = KR_OPT_U32,
     .at = AT(common.scenario.ep),
     .max = 4096,
     .value = "N",
     .help = "expert parallelism, 0 for all compute devices"},
    {.name = "tp",
     .type = KR_OPT_U32,
     .at = AT(common.scenario.tp),
     .min = 1,
     .max = 64,
     .value = "N",
     .help = "tensor parallelism of attention"},
    {.name = "micro-batches",
     .type = KR_OPT_U32,
     .at = AT(common.scenario.micro_batches),
     .min = 1,
     .max = 8,
     .value = "N",
     .help = "micro-batches in flight (default: 2; one session with --machine: 1)"},
    {.name = "policy",
     .type = KR_OPT_CHOICE,
     .at = AT(policy),
     .choices = policies,
     .value = "NAME",
     .help = "order of a step's ops"},
    {.name = "cmr",
     .type = KR_OPT_CHOICE,
     .at = AT(cmr),
     .choices = on_off,
     .value = "on|off",
     .help = "context-aware rebalancing of micro-batches"},
    {.name = "expert-shares",
     .type = KR_OPT_STRING,
     .at = AT(expert_shares),
     .value = "FILE",
     .help = "what share of the work each expert gets, CSV or JSON, one row or one a layer; without it "
             "all get the same"},
    {.name = "expert-skew",
     .type = KR_OPT_REAL,
     .at = AT(expert_skew),
     .real_min = 0,
     .real_max = 10,
     .value = "EXPONENT",
     .help = "shares that fall as rank^-EXPONENT over a fixed shuffle; 0 is even"},
    {.name = "balance-experts",
     .alias = "eplb",
     .type = KR_OPT_FLAG,
     .at = AT(common.study.balance_experts),
     .help = "one redundant expert a rank, given to the most loaded (with uneven shares)"},
    {.name = "exact",
     .type = KR_OPT_FLAG,
     .at = AT(common.scenario.exact),
     .help = "own accounting and absorbed queries, not the paper's"},
    {.name = "network-by-bytes",
     .type = KR_OPT_FLAG,
     .at = AT(common.scenario.all_to_all_by_bytes),
     .help = "all-to-alls at the link's bytes per second, as the paper has it, not as measured"},
    {.help = "load"},
    KR_SIM_OPTIONS_LOAD,
    {.name = "sessions",
     .letter = 'n',
     .type = KR_OPT_U32,
     .at = AT(sessions),
     .min = 1,
     .max = 1 << 17,
     .value = "N",
     .help = "sessions in flight (default: 256; with --machine 1)"},
    {.name = "find-max",
     .type = KR_OPT_FLAG,
     .at = AT(find_max),
     .help = "find the most sessions that keep --slo-ms"},
    {.help = "karat's own runtime; --model is a model file"},
    {.name = "machine",
     .type = KR_OPT_STRING,
     .at = AT(own.machine),
     .value = "FILE",
     .help = "sessions on a machine that karat profile has measured"},
    {.name = "node-process",
     .type = KR_OPT_FLAG,
     .at = AT(own.node_process),
     .help = "with --machine: the memory node is a process of its own"},
    {.name = "context",
     .letter = 'c',
     .type = KR_OPT_SIZE,
     .at = AT(own.context),
     .min = 1,
     .max = KR_CONTEXT_MAX,
     .value = "TOKENS",
     .help = "with --machine: in each session's cache before the first step"},
    {.name = "tokens",
     .type = KR_OPT_U64,
     .at = AT(own.tokens),
     .min = 1,
     .max = 1 << 20,
     .value = "N",
     .help = "with --machine: tokens that each session decodes"},
    KR_OPTION_KV_DTYPE(AT(own.kv_dtype), "with --machine: bf16, f16 or f32"),
    {.name = "replay",
     .type = KR_OPT_STRING,
     .at = AT(own.replay),
     .value = "FILE",
     .help = "a record of karat run --record: the policy, asked again, must decide the same"},
    {.help = "measurement"},
    KR_SIM_OPTIONS_RUN,
    {.name = "seeds",
     .type = KR_OPT_U32,
     .at = AT(common.study.seeds),
     .min = 1,
     .max = KR_STUDY_SEEDS_MAX,
     .value = "N",
     .help = "runs"},
    {.help = "output"},
    KR_SIM_OPTIONS_OUTPUT,
    {.name = "trace-out",
     .type = KR_OPT_STRING,
     .at = AT(trace_out),
     .value = "FILE",
     .help = "write the first steps as a Chrome trace"},
    {.name = "trace-steps",
     .type = KR_OPT_U32,
     .at = AT(trace_steps),
     .min = 1,
     .max = KR_TIMELINE_STEPS_MAX,
     .value = "N",
     .help = "steps in it"},
};

static const kr_command_line line = {
    .command = "sim",
    .summary = "Simulates a cluster of compute and memory devices that serves a trace's sessions.",
    .options = table,
    .option_count = sizeof table / sizeof table[0],
    .example = "karat sim --model deepseek-v3.2 --gpus 16 --devices 192 --trace kvct-like --find-max "
               "--paper-window\nkarat sim --system gpu-only --gpus 64 --trace traces/ -n 300 --json\n"
               "karat sim --machine machine.json --model model.gguf -n 16 --context 6K --method quest\n"
               "karat sim --replay run.jsonl --model model.gguf",
};

static const kr_column columns[] = {
    {"quantity", NULL, "quantity", 0}, {"value", NULL, "value", 3}, {"unit", NULL, "unit", 0}};

static void row(kr_table *t, const char *name, double value, const char *unit)
{
    kr_table_text(t, "%s", name);
    kr_table_real(t, value);
    kr_table_text(t, "%s", unit);
}

static const char *const resources[] = {"compute ranks", "memory devices", "links", "network of the experts"};

/* Modelled power, where all devices state their energy. */
static void fill_power(kr_table *t, const kr_sim_result *f)
{
    char name[64];
    double sum = 0.0;

    if (f->joules_per_token <= 0.0)
        return;
    for (int i = 0; i < KR_POWER_PARTS; i++)
        sum += f->watts[i];
    row(t, "energy of a token", f->joules_per_token, "J");
    row(t, "power drawn", sum * 1e-3, "kW");
    row(t, "throughput per W drawn", f->tokens_per_s / sum, "tokens/s/W");
    for (int i = 0; i < KR_POWER_PARTS; i++) {
        snprintf(name, sizeof name, "power: %s", kr_power_name((kr_power_part)i));
        row(t, name, f->watts[i] * 1e-3, "kW");
    }
}

static void fill(kr_table *t, const kr_scenario *s, const kr_study_result *r)
{
    const kr_sim_result *f = &r->first;
    char name[64];

    kr_table_init(t, NULL, columns, 3);
    row(t, "throughput", r->tokens_per_s, "tokens/s");
    row(t, "95 % confidence, half width", r->half_width, "tokens/s");
    row(t, "throughput per TDP", r->tokens_per_s_per_w, "tokens/s/W");
    row(t, "TDP", s->tdp_w / 1e3, "kW");
    fill_power(t, f);
    row(t, "sessions in flight", r->sessions, "");
    row(t, "time between tokens, mean", f->tokens_per_s > 0 ? f->rows_mean / f->tokens_per_s * 1e3 : 0, "ms");
    row(t, "time between tokens, p50", (double)f->tbt_p50_ns * 1e-6, "ms");
    row(t, "time between tokens, p99, worst seed", r->p99_s * 1e3, "ms");
    row(t, "decoding at once, mean", f->rows_mean, "sessions");
    row(t, "context of a decoding session, mean", f->context_mean / 1e3, "K tokens");
    for (int i = 0; i < KR_RESOURCE_COUNT; i++) {
        snprintf(name, sizeof name, "busy: %s", resources[i]);
        row(t, name, 100 * f->busy[i], "%");
    }
    for (int i = KR_ON_DEVICE; i < KR_RESOURCE_COUNT; i++) {
        snprintf(name, sizeof name, "compute waits for: %s", resources[i]);
        row(t, name, 100 * f->stall[i], "%");
    }
    for (int i = 0; i < KR_PROVENANCE_COUNT; i++) {
        snprintf(name, sizeof name, "op time that is %s", kr_provenance_name((kr_provenance)i));
        row(t, name, 100 * f->provenance[i], "%");
    }
    row(t, "weights of a rank", (double)s->bytes.weight_bytes * 1e-9, "GB");
    row(t, "KV and index of a token", (double)(s->bytes.kv_token_bytes + s->bytes.index_token_bytes) / 1e3,
        "KB");
    row(t, "steps simulated, first seed", (double)f->steps, "");
    row(t, "events, first seed", (double)f->events, "");
    row(t, "simulated time, first seed", (double)f->elapsed_ns * 1e-9, "s");
}

static void verdicts(const kr_study_result *r, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s: %u of %u runs are%s%s",
             r->stationary == r->seeds ? "stationary" : "not stationary", r->stationary, r->seeds,
             r->bound[0] != '\0' ? "; more sessions fail with " : "", r->bound);
}

static kr_status print_text(const sim_options *o, const kr_scenario *s, const kr_trace *trace,
                            const kr_study_result *r, kr_err *err)
{
    char text[2 * KR_ERR_TEXT_BYTES];
    kr_table t;
    kr_status status;

    printf("%s on %s, %s trace (%u sessions), %s\n", s->model.name, kr_system_names[o->common.system],
           kr_trace_format_name(trace->format), trace->sessions,
           o->common.study.paper_window ? "the paper's window" : "warm-up by MSER-5");
    fill(&t, s, r);
    status = kr_table_print(&t, stdout, err);
    kr_table_free(&t);
    verdicts(r, text, sizeof text);
    printf("%s\nrun digest %016llx, program %016llx, trace %016llx\n", text,
           (unsigned long long)r->first.digest, (unsigned long long)kr_program_digest(&s->program),
           (unsigned long long)trace->digest);
    return status;
}

static int print_json(const sim_options *o, const kr_scenario *s, const kr_trace *trace,
                      const kr_study_result *r)
{
    char digest[17], trace_digest[17];
    json_t *rows = NULL, *root;
    kr_table t;
    kr_err err;

    fill(&t, s, r);
    if (kr_table_json(&t, &rows, &err) != KR_OK) {
        kr_table_free(&t);
        return kr_cli_failed(line.command, &err);
    }
    kr_table_free(&t);
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)r->first.digest);
    snprintf(trace_digest, sizeof trace_digest, "%016llx", (unsigned long long)trace->digest);
    root = json_pack("{s:s,s:s,s:s,s:s,s:s,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:b,s:s,s:o}", "model", s->model.name,
                     "system", kr_system_names[o->common.system], "trace_format",
                     kr_trace_format_name(trace->format), "trace_digest", trace_digest, "run_digest", digest,
                     "sessions", (json_int_t)r->sessions, "seeds", (json_int_t)r->seeds, "tokens_per_s",
                     r->tokens_per_s, "tokens_per_s_per_w", r->tokens_per_s_per_w, "p99_ms", r->p99_s * 1e3,
                     "tdp_w", s->tdp_w, "joules_per_token", r->first.joules_per_token, "stationary",
                     r->stationary == r->seeds, "bound", r->bound, "quantities", rows);
    return kr_cli_print_json(root);
}

static kr_status write_html(const sim_options *o, const kr_scenario *s, const kr_trace *trace,
                            const kr_study_result *r, kr_err *err)
{
    static const char *const waits[] = {"busy", "waits for devices", "waits for links",
                                        "waits for the network"};
    const kr_sim_result *f = &r->first;
    const double share[] = {100 * f->busy[0], 100 * f->stall[1], 100 * f->stall[2], 100 * f->stall[3]};
    const double busy[] = {100 * f->busy[0], 100 * f->busy[1], 100 * f->busy[2], 100 * f->busy[3]};
    static const char *const used[] = {"busy"}, *const one[] = {"compute ranks"};
    char text[2 * KR_ERR_TEXT_BYTES], title[256];
    kr_table t;
    kr_output_file file;
    kr_status status = kr_output_open(&file, o->common.html, err);

    if (status != KR_OK)
        return status;
    FILE *out = file.file;
    snprintf(title, sizeof title, "%s on %s", s->model.name, kr_system_names[o->common.system]);
    kr_page_begin(out, title, "karat sim");
    verdicts(r, text, sizeof text);
    kr_page_text(out, "Trace digest %016llx (%s), run digest %016llx. %s", (unsigned long long)trace->digest,
                 kr_trace_format_name(trace->format), (unsigned long long)f->digest, text);
    fill(&t, s, r);
    status = kr_page_table(out, &t, err);
    kr_table_free(&t);
    if (status == KR_OK)
        status = kr_chart_bars(&(kr_bar_chart){.title = "Utilisation",
                                               .y = {.title = "% of time"},
                                               .categories = resources,
                                               .category_count = 4,
                                               .names = used,
                                               .values = busy,
                                               .series_count = 1},
                               out, err);
    if (status == KR_OK)
        status = kr_chart_bars(&(kr_bar_chart){.title = "Where the compute ranks' time goes",
                                               .y = {.title = "% of time"},
                                               .categories = one,
                                               .category_count = 1,
                                               .names = waits,
                                               .values = share,
                                               .series_count = 4,
                                               .stacked = true},
                               out, err);
    if (status == KR_OK)
        status = kr_page_end(out, err);
    return kr_output_close(&file, status, err);
}

static kr_status write_timeline(const sim_options *o, const kr_scenario *s, const kr_plan_workload *w,
                                uint32_t sessions, kr_err *err)
{
    kr_output_file out;
    kr_status status = kr_output_open(&out, o->trace_out, err);

    if (status != KR_OK)
        return status;
    status = kr_timeline_write(s, w, &o->common.study, sessions, o->trace_steps, out.file, err);
    return kr_output_close(&out, status, err);
}

static kr_status study(sim_options *o, kr_scenario *s, const kr_plan_workload *w, const kr_trace *trace,
                       int *code, kr_err *err)
{
    kr_study_result r;
    kr_status status = o->find_max ? kr_study_find_max(s, w, &o->common.study, &r, err)
                                   : kr_study_run(s, w, &o->common.study, o->sessions, &r, err);

    if (status == KR_E_LIMIT && o->find_max) {
        kr_err why = *err;
        status = kr_fail(err, KR_E_LIMIT, "no number of sessions fits: %.180s", why.text);
    }
    if (status == KR_OK && o->common.html != NULL)
        status = write_html(o, s, trace, &r, err);
    if (status == KR_OK && o->trace_out != NULL)
        status = write_timeline(o, s, w, r.sessions, err);
    if (status == KR_OK && o->common.json)
        *code = print_json(o, s, trace, &r);
    else if (status == KR_OK)
        status = print_text(o, s, trace, &r, err);
    return status;
}

static kr_status simulate(sim_options *o, int *code, kr_err *err)
{
    double skewed[KR_EXPERTS_MAX];
    kr_expert_shares shares = {0};
    kr_sim_inputs in;
    kr_scenario s;
    kr_status status = kr_sim_inputs_open(&o->common, &in, err);

    if (status != KR_OK)
        return status;
    status = kr_scenario_init(&s, &o->common.scenario, in.workload.context_max, err);
    if (status != KR_OK) {
        kr_sim_inputs_free(&in);
        return status;
    }
    if (o->expert_shares != NULL)
        status = kr_expert_shares_load(o->expert_shares, &s.model, &shares, err);
    else if (o->expert_skew > 0.0)
        kr_expert_shares_power_law(skewed, s.model.moe.experts, o->expert_skew);
    o->common.study.expert_share = o->expert_skew > 0.0 ? skewed : shares.share;
    o->common.study.share_by_layer = shares.by_layer;
    if (status == KR_OK)
        status = study(o, &s, &in.workload, &in.trace, code, err);
    o->common.study.expert_share = NULL;
    kr_expert_shares_free(&shares);
    kr_scenario_free(&s);
    kr_sim_inputs_free(&in);
    return status;
}

static int simulate_own(sim_options *o)
{
    const kr_scenario_options *scenario = &o->common.scenario;
    kr_sim_own_options *own = &o->own;
    int code = KR_EXIT_OK;
    kr_err err;

    if (own->machine != NULL && own->replay != NULL)
        return kr_cli_misused(line.command, "--machine and --replay are two questions; ask one");
    own->model = scenario->model;
    own->method = scenario->method;
    own->budget = scenario->budget;
    own->micro_batches = scenario->micro_batches;
    own->sessions = o->sessions;
    own->json = o->common.json;
    const kr_status status = own->machine != NULL ? kr_sim_own_machine(own, &code, &err)
                                                  : kr_sim_own_replay(own, &code, &err);
    return status == KR_OK ? code : kr_cli_failed(line.command, &err);
}

int kr_cmd_sim(int argc, char **argv)
{
    sim_options o = {.common = {.scenario = {.data = "data",
                                             .model = "deepseek-v3.2",
                                             .method = "native",
                                             .gpus = 16,
                                             .devices = 192,
                                             .ep = 16,
                                             .tp = 1,
                                             .factors = KR_PLAN_NO_FACTORS},
                                .study = {.steps_max = 2000, .seed = 1, .seeds = 1},
                                .trace = "kvct-like",
                                .trace_sessions = 700,
                                .slo_ms = 100},
                     .policy = KR_POLICY_OFMS,
                     .cmr = 1,
                     .own = {.context = 2048, .tokens = 128, .kv_dtype = "bf16"},
                     .trace_steps = 2};
    char **rest;
    int rest_count, code = KR_EXIT_OK;
    kr_err err;

    if (!kr_options_parse(&line, argc, argv, &o, &rest, &rest_count, &code))
        return code;
    if (o.own.machine != NULL || o.own.replay != NULL)
        return simulate_own(&o);
    if (o.sessions == 0)
        o.sessions = 256;
    if (o.common.scenario.micro_batches == 0)
        o.common.scenario.micro_batches = 2;
    o.common.study.policy = (kr_step_policy)o.policy;
    o.common.study.rebalance = o.cmr == 1;
    if (o.expert_shares != NULL && o.expert_skew > 0.0)
        return kr_cli_misused(line.command, "--expert-shares and --expert-skew both say what experts get");
    if (o.common.study.balance_experts && o.expert_shares == NULL && o.expert_skew <= 0.0)
        return kr_cli_misused(line.command, "--balance-experts needs --expert-shares or --expert-skew");
    return simulate(&o, &code, &err) == KR_OK ? code : kr_cli_failed(line.command, &err);
}
