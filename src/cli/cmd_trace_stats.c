/* karat trace-stats: what a trace is like, and its run-length form. */

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output_file.h"
#include "report/table.h"
#include "workload/generate.h"
#include "workload/stats.h"

typedef struct {
    bool json;
    uint32_t block_tokens, sessions;
    uint64_t seed;
    const char *write_runs;
} stats_options;

static const kr_option table[] = {
    {.name = "json",
     .type = KR_OPT_FLAG,
     .at = offsetof(stats_options, json),
     .help = "print one JSON object"},
    {.name = "block-size",
     .type = KR_OPT_U32,
     .at = offsetof(stats_options, block_tokens),
     .min = 1,
     .max = 1 << 20,
     .value = "TOKENS",
     .help = "block size of a Mooncake trace, which does not state it; without it 512"},
    {.name = "write-runs",
     .type = KR_OPT_STRING,
     .at = offsetof(stats_options, write_runs),
     .value = "FILE",
     .help = "also write the trace in run-length form"},
    {.name = "sessions",
     .type = KR_OPT_U32,
     .at = offsetof(stats_options, sessions),
     .min = 1,
     .max = 1 << 16,
     .value = "N",
     .help = "sessions of a synthetic trace"},
    {.name = "seed",
     .type = KR_OPT_U64,
     .at = offsetof(stats_options, seed),
     .value = "N",
     .help = "seed of a synthetic trace"},
};

static const kr_command_line line = {
    .command = "trace-stats",
    .arguments = "FILE|FOLDER|NAME",
    .summary = "Prints what a trace is like: a KVCT, Mooncake, LLMServingSim, Copilot, Azure, BurstGPT or "
               "run-length trace, a folder of them, or the synthetic swe-pro, swe-chat or kvct-like.",
    .options = table,
    .option_count = sizeof table / sizeof table[0],
    .arguments_min = 1,
    .arguments_max = 1,
    .example = "karat trace-stats traces/ --write-runs traces.runs.jsonl\nkarat trace-stats swe-pro --json",
};

static const kr_column columns[] = {
    {"quantity", NULL, "quantity", 0}, {"count", NULL, "count", 0}, {"mean", NULL, "mean", 1},
    {"p10", NULL, "p10", 1},           {"p50", NULL, "p50", 1},     {"p90", NULL, "p90", 1},
    {"p99", NULL, "p99", 1},           {"max", NULL, "max", 1},
};

static void add(kr_table *t, const char *name, const kr_spread *s)
{
    kr_table_text(t, "%s", name);
    kr_table_count(t, s->count);
    kr_table_real(t, s->mean);
    kr_table_real(t, s->p10);
    kr_table_real(t, s->p50);
    kr_table_real(t, s->p90);
    kr_table_real(t, s->p99);
    kr_table_real(t, s->max);
}

static void fill(kr_table *t, const kr_trace_stats *s)
{
    kr_table_init(t, NULL, columns, sizeof columns / sizeof columns[0]);
    add(t, "turns per session", &s->turns_per_session);
    add(t, "context per turn", &s->context);
    add(t, "context, mean of a session", &s->session_context);
    add(t, "largest context of a session", &s->peak);
    add(t, "context of the first turn", &s->first_context);
    add(t, "prefill tokens by length", &s->prefill_length);
    add(t, "prefill tokens not cached", &s->prefill_cached);
    add(t, "decode tokens", &s->decode);
    add(t, "think time, s", &s->think_s);
    add(t, "API time, s", &s->api_s);
}

static kr_status print_text(const kr_trace *trace, const kr_trace_stats *s, kr_err *err)
{
    kr_table t;
    kr_status status;

    fill(&t, s);
    printf("%s trace, %u sessions of %u turns, digest %016llx\n", kr_trace_format_name(trace->format),
           s->sessions, s->turns, (unsigned long long)trace->digest);
    if (s->agent_sessions > 0)
        printf("beside them %u sub-agents of %u turns, not in the figures below\n", s->agent_sessions,
               s->agent_turns);
    if (trace->failed_requests > 0)
        printf("left out: %llu failed requests\n", (unsigned long long)trace->failed_requests);
    status = kr_table_print(&t, stdout, err);
    kr_table_free(&t);
    if (status != KR_OK)
        return status;
    printf("prompt tokens %.4g, decode tokens %.4g, context of a decoded token %.1f\n", s->input_tokens,
           s->output_tokens, s->context_by_decode);
    printf("reuse: by length, mean of sessions %.2f %%; cached, mean of sessions %.2f %%; cached, by tokens "
           "%.2f %%\n",
           100 * s->reuse_length_session, 100 * s->reuse_cached_session, 100 * s->reuse_cached_tokens);
    printf("turns that shrink %.2f %%, turns without output %llu\n", 100 * s->shrinking,
           (unsigned long long)s->without_output);
    return KR_OK;
}

static int print_json(const kr_trace *trace, const kr_trace_stats *s)
{
    json_t *root, *rows = NULL;
    kr_table t;
    kr_err err;
    char digest[17];
    kr_status status;

    fill(&t, s);
    status = kr_table_json(&t, &rows, &err);
    kr_table_free(&t);
    if (status != KR_OK)
        return kr_cli_failed(line.command, &err);
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)trace->digest);
    root = json_pack(
        "{s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:o}", "format",
        kr_trace_format_name(trace->format), "digest", digest, "sessions", (json_int_t)s->sessions, "turns",
        (json_int_t)s->turns, "sub_agents", (json_int_t)s->agent_sessions, "sub_agent_turns",
        (json_int_t)s->agent_turns, "failed_requests", (json_int_t)trace->failed_requests, "prompt_tokens",
        s->input_tokens, "decode_tokens", s->output_tokens, "context_of_decoded_token", s->context_by_decode,
        "reuse_by_length_session_mean", s->reuse_length_session, "reuse_cached_session_mean",
        s->reuse_cached_session, "reuse_cached_by_tokens", s->reuse_cached_tokens, "shrinking_turns_share",
        s->shrinking, "turns_without_output", (json_int_t)s->without_output, "spreads", rows);
    return kr_cli_print_json(root);
}

static kr_status write_runs(const kr_trace *trace, const char *path, kr_err *err)
{
    kr_output_file out;
    const kr_status status = kr_output_open(&out, path, err);

    return status == KR_OK ? kr_output_close(&out, kr_trace_write_runs(trace, out.file, err), err) : status;
}

int kr_cmd_trace_stats(int argc, char **argv)
{
    stats_options o = {.sessions = 700, .seed = 1};
    const kr_trace_recipe *recipe;
    kr_trace_stats stats;
    kr_trace trace;
    char **rest;
    int rest_count, code = KR_EXIT_OK;
    kr_status status;
    kr_err err;

    if (!kr_options_parse(&line, argc, argv, &o, &rest, &rest_count, &code))
        return code;
    recipe = kr_trace_recipe_find(rest[0]);
    status = recipe != NULL ? kr_trace_generate(&trace, recipe, o.sessions, o.seed, &err)
                            : kr_trace_read(&trace, rest[0], o.block_tokens, &err);
    if (status != KR_OK)
        return kr_cli_failed(line.command, &err);
    status = kr_trace_stats_of(&trace, &stats, &err);
    if (status == KR_OK && o.write_runs != NULL)
        status = write_runs(&trace, o.write_runs, &err);
    if (status == KR_OK && !o.json)
        status = print_text(&trace, &stats, &err);
    if (status != KR_OK)
        code = kr_cli_failed(line.command, &err);
    else if (o.json)
        code = print_json(&trace, &stats);
    kr_trace_free(&trace);
    return code;
}
