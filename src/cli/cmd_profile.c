/* karat profile: measures karat's own runtime on this machine into a table that karat sim runs on, and
 * with --check how far predictions from it are from measurements it does not contain. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/num.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/node_process.h"
#include "cli/output_file.h"
#include "eval/profile_study.h"
#include "report/table.h"
#include "sim/batch.h"

#define TIMEOUT_NS ((uint64_t)60 * 1000000000)

enum { MODELS_MAX = KR_MACHINE_MODES_MAX / KR_MACHINE_MODE_KINDS, FOLDER_BYTES = 4096 };

typedef struct {
    kr_option_strings methods;
    kr_option_sizes budgets, contexts, check_contexts;
    const char *output, *kv_dtype;
    uint32_t rows, steps, rounds, threads, check_budget, dense_layers;
    bool weights_f32, node_process, check, json;
} profile_options;

#define AT(field) .at = offsetof(profile_options, field)

static const kr_option table[] = {
    {.name = "output",
     .letter = 'o',
     .type = KR_OPT_STRING,
     AT(output),
     .value = "FILE",
     .help = "write the table here; karat sim --machine reads it"},
    {.help = "What is measured"},
    KR_OPTION_METHODS(offsetof(profile_options, methods), "beside dense, which always is"),
    KR_OPTION_BUDGETS(offsetof(profile_options, budgets)),
    KR_OPTION_DENSE_LAYERS(offsetof(profile_options, dense_layers)),
    {.name = "contexts",
     .letter = 'c',
     .type = KR_OPT_SIZES,
     AT(contexts),
     .min = 1,
     .max = KR_CONTEXT_MAX,
     .value = "TOKENS,...",
     .help = "ascending"},
    {.name = "rows",
     .type = KR_OPT_U32,
     AT(rows),
     .min = KR_PROFILE_ROWS_MIN,
     .max = KR_PROFILE_ROWS_MAX,
     .value = "N",
     .help = "largest batch"},
    KR_OPTION_KV_DTYPE(offsetof(profile_options, kv_dtype), "bf16, f16 or f32"),
    KR_OPTION_WEIGHTS_F32(offsetof(profile_options, weights_f32)),
    KR_OPTION_THREADS(offsetof(profile_options, threads), "of both sides together (default: the cores)"),
    {.name = "node-process",
     .type = KR_OPT_FLAG,
     AT(node_process),
     .help = "also with the memory node in a process of its own"},
    {.name = "steps",
     .type = KR_OPT_U32,
     AT(steps),
     .min = 1,
     .max = 64,
     .value = "N",
     .help = "undisturbed decode steps of a point and round"},
    {.name = "rounds",
     .type = KR_OPT_U32,
     AT(rounds),
     .min = 1,
     .max = 4,
     .value = "N",
     .help = "times that all points of an engine run in turn"},
    {.help = "Prediction against measurement"},
    {.name = "check",
     .type = KR_OPT_FLAG,
     AT(check),
     .help = "also measure points that the fit does not see, and compare"},
    {.name = "check-contexts",
     .type = KR_OPT_SIZES,
     AT(check_contexts),
     .min = 1,
     .max = KR_CONTEXT_MAX,
     .value = "SHORT,LONG",
     .help = "of these points"},
    {.name = "check-budget",
     .type = KR_OPT_U32,
     AT(check_budget),
     .min = 1,
     .max = 8192,
     .value = "TOKENS",
     .help = "of these points"},
    {.name = "json", .type = KR_OPT_FLAG, AT(json), .help = "print the comparison as one JSON object"},
};

static const kr_command_line line = {
    .command = "profile",
    .arguments = "MODEL...",
    .summary = "Measures karat's runtime on this machine by op, for karat sim --machine.",
    .options = table,
    .option_count = sizeof table / sizeof table[0],
    .arguments_min = 1,
    .arguments_max = MODELS_MAX,
    .example = "karat profile model.gguf -o machine.json\nkarat profile a.gguf b.gguf --check",
};

typedef struct {
    const profile_options *options;
    char folder[FOLDER_BYTES]; /* with the saved sessions of one model */
    kr_node_process node;
    kr_machine machine;
    kr_table checks;
    double error[MODELS_MAX * KR_PROFILE_CHECKS];
    uint32_t errors, points, kept, total;
} profile;

/* ---- the folder ---- */

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status;
    (void)type;
    (void)walk;
    return remove(path);
}

static kr_status make_folder(char folder[FOLDER_BYTES], kr_err *err)
{
    const char *base = getenv("TMPDIR");

    snprintf(folder, FOLDER_BYTES, "%s/karat-profile-XXXXXX", base != NULL && *base != '\0' ? base : "/tmp");
    return mkdtemp(folder) != NULL ? KR_OK : kr_fail(err, KR_E_IO, "%.200s: %s", folder, strerror(errno));
}

static void remove_folder(const char *folder) { (void)nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS); }

/* ---- the check ---- */

static const kr_column check_columns[] = {
    {"model", NULL, "model", 0},
    {"mode", NULL, "mode", 0},
    {"method", NULL, "method", 0},
    {"budget", NULL, "budget", 0},
    {"rows", NULL, "rows", 0},
    {"context", "tokens", "context_tokens", 0},
    {"predicted", "ms", "predicted_ms", 2},
    {"measured", "ms", "measured_ms", 2},
    {"error", "%", "error_percent", 1},
    {"steps kept", NULL, "steps_kept", 0},
};

enum { CHECK_COLUMNS = sizeof check_columns / sizeof check_columns[0] };

static void add_check_row(profile *p, const kr_machine_mode *mode, const kr_profile_run *check,
                          double predicted)
{
    const kr_profile_point *point = &check->point;
    const double measured = point->times.step, error = predicted / measured - 1.0;
    double context = 0.0;

    for (uint32_t i = 0; i < point->rows; i++)
        context += (double)point->context[i] / point->rows;
    kr_table_text(&p->checks, "%s", mode->model);
    kr_table_text(&p->checks, "%s", kr_machine_mode_names[mode->kind]);
    kr_table_text(&p->checks, "%s", check->method.name);
    if (check->method.budget != 0)
        kr_table_count(&p->checks, check->method.budget);
    else
        kr_table_none(&p->checks);
    kr_table_count(&p->checks, point->rows);
    kr_table_count(&p->checks, (uint64_t)(context + 0.5));
    kr_table_real(&p->checks, predicted * 1e3);
    kr_table_real(&p->checks, measured * 1e3);
    kr_table_real(&p->checks, error * 100);
    kr_table_text(&p->checks, "%u of %u", point->kept, point->total);
    p->error[p->errors++] = fabs(error) * 100;
}

static kr_status predict(const kr_profile_setup *setup, const kr_machine_mode *mode,
                         const kr_profile_run *check, double *step_s, kr_err *err)
{
    const kr_profile_point *point = &check->point;
    kr_sim_row row[KR_PROFILE_ROWS_MAX];
    kr_sim_batch_result result;
    kr_program program;
    kr_arena arena;
    kr_model model;
    kr_status status = kr_profile_program(setup, &check->method, check->arrangement, &model, &arena, &program,
                                          err);

    if (status != KR_OK)
        return status;
    for (uint32_t i = 0; i < point->rows; i++)
        row[i] = (kr_sim_row){point->context[i] + point->warm_up, point->micro_batch[i]};
    const kr_sim_batch batch = {
        .row = row, .rows = point->rows, .steps = point->counted, .policy = KR_POLICY_SCMS};
    status = kr_sim_machine_run(&program, mode, &batch, &result, err);
    kr_arena_free(&arena);
    *step_s = result.step_s;
    return status;
}

/* What the simulated steps of the fit's own points lack becomes the mode's remainder. */
static kr_status calibrate(const kr_profile_result *result, kr_machine_mode *mode, kr_err *err)
{
    double ratio[KR_PROFILE_FITTED_MAX];
    int count = 0;

    for (uint32_t i = 0; i < result->fits; i++) {
        const kr_profile_run *run = &result->fitted[i];
        kr_machine_mode_kind kind;
        double predicted = 0.0;

        if (!kr_profile_mode_of(run->arrangement, &kind) || kind != mode->kind)
            continue;
        const kr_status status = predict(&result->setup, mode, run, &predicted, err);
        if (status != KR_OK)
            return status;
        ratio[count++] = run->point.times.step / predicted;
    }
    kr_sort_reals(ratio, count);
    if (count != 0)
        mode->remainder = fmin(fmax(ratio[count / 2], 0.1), 10.0);
    return KR_OK;
}

static kr_status compare(profile *p, const kr_profile_result *result, kr_err *err)
{
    for (uint32_t i = 0; i < result->checks; i++) {
        const kr_profile_run *check = &result->check[i];
        kr_machine_mode_kind kind = KR_MODE_IN_TURN;
        double predicted = 0.0;

        (void)kr_profile_mode_of(check->arrangement, &kind);
        kr_status status = predict(&result->setup, &result->mode[kind], check, &predicted, err);
        if (status != KR_OK)
            return status;
        add_check_row(p, &result->mode[kind], check, predicted);
    }
    return KR_OK;
}

/* ---- models ---- */

static kr_status fill(const profile_options *o, kr_profile_options *run, kr_err *err)
{
    if (o->methods.count > KR_PROFILE_LIST_MAX || o->budgets.count > KR_PROFILE_LIST_MAX ||
        o->contexts.count > KR_PROFILE_LIST_MAX)
        return kr_fail(err, KR_E_LIMIT, "at most %d methods, budgets and contexts", KR_PROFILE_LIST_MAX);
    if (o->check_contexts.count != KR_PROFILE_CHECK_CONTEXTS ||
        o->check_contexts.item[0] >= o->check_contexts.item[1])
        return kr_fail(err, KR_E_ARG, "--check-contexts needs a short and a long one");
    if (!kr_dtype_parse(o->kv_dtype, &run->kv_dtype))
        return kr_fail(err, KR_E_ARG, "--kv-dtype %s is none of bf16, f16, f32", o->kv_dtype);
    for (uint32_t i = 0; i < o->methods.count; i++) {
        const kr_method *method;
        const char *name = kr_option_string_at(&o->methods, i);
        const kr_status status = kr_method_find(name, &method, err);

        if (status != KR_OK)
            return status;
        if (strcmp(name, "dense") != 0)
            run->method[run->methods++] = method->name;
    }
    for (uint32_t i = 0; i < o->budgets.count; i++)
        run->budget[run->budgets++] = (uint32_t)o->budgets.item[i];
    memcpy(run->context, o->contexts.item, o->contexts.count * sizeof run->context[0]);
    memcpy(run->check_context, o->check_contexts.item, sizeof run->check_context);
    run->contexts = o->contexts.count;
    run->dense_layers = o->dense_layers;
    run->weights_f32 = o->weights_f32;
    run->cores = o->threads;
    run->rows_max = o->rows;
    run->steps = o->steps;
    run->rounds = o->rounds;
    run->check = o->check;
    run->check_budget = o->check_budget;
    return KR_OK;
}

static kr_status connect_node(void *context, uint64_t pool_bytes, uint32_t sessions, uint32_t threads,
                              kr_engine_node *node, kr_err *err)
{
    return kr_node_process_start(context, pool_bytes, sessions, threads, node, err);
}

static void disconnect_node(void *context, kr_engine_node *node) { kr_node_process_stop(context, node); }

static kr_status profile_model(profile *p, const char *path, kr_err *err)
{
    kr_profile_result *result = kr_alloc(sizeof *result);
    kr_profile_options run = {0};
    kr_model_file *file = NULL;
    kr_status status = result == NULL ? kr_fail(err, KR_E_MEMORY, "no memory") : fill(p->options, &run, err);

    if (status == KR_OK)
        status = kr_model_file_open(path, &file, err);
    if (status == KR_OK)
        status = make_folder(p->folder, err);
    if (status == KR_OK) {
        run.file = file;
        run.folder = p->folder;
        p->node = (kr_node_process){.save_folder = p->folder, .timeout_ns = TIMEOUT_NS};
        if (p->options->node_process) {
            run.connect = connect_node;
            run.disconnect = disconnect_node;
            run.connect_context = &p->node;
        }
        status = kr_profile_study(&run, result, err);
        remove_folder(p->folder);
    }
    if (status == KR_OK) {
        for (uint32_t m = 0; m < result->modes && status == KR_OK; m++)
            status = calibrate(result, &result->mode[m], err);
        memcpy(p->machine.mode + p->machine.modes, result->mode, result->modes * sizeof result->mode[0]);
        p->machine.modes += result->modes;
        p->points += result->fits;
        p->kept += result->kept;
        p->total += result->total;
        if (status == KR_OK)
            status = compare(p, result, err);
    }
    kr_model_file_close(file);
    kr_free(result);
    return status;
}

/* ---- output ---- */

/* Smallest error that at least percent of the points do not exceed. */
static double error_at(const profile *p, uint32_t percent)
{
    return p->errors != 0 ? p->error[(p->errors * percent + 99) / 100 - 1] : NAN;
}

static void print_modes(const kr_machine *m)
{
    for (uint32_t i = 0; i < m->modes; i++) {
        const kr_machine_mode *mode = &m->mode[i];

        printf("%s, %s: %u + %u threads", mode->model, kr_machine_mode_names[mode->kind],
               mode->compute_threads, mode->device_threads);
        if (mode->kind != KR_MODE_IN_TURN)
            printf("; a wake-up takes the sender %.1f us, the sleeper %.1f us", mode->signal_s * 1e6,
                   mode->memory.link_latency_s * 1e6);
        printf("; steps take %.3f of what is simulated\n", mode->remainder);
    }
}

static kr_status print_text(profile *p, kr_err *err)
{
    printf("%s, %u cores: %u points, %u of %u steps undisturbed\n", p->machine.cpu, p->machine.cores,
           p->points, p->kept, p->total);
    print_modes(&p->machine);
    if (p->errors == 0)
        return KR_OK;
    putchar('\n');
    const kr_status status = kr_table_print(&p->checks, stdout, err);
    printf("error of %u predictions: median %.1f %%, 95th percentile %.1f %%, largest %.1f %%\n", p->errors,
           error_at(p, 50), error_at(p, 95), error_at(p, 100));
    return status;
}

static int print_json(profile *p, kr_err *err)
{
    json_t *rows;

    if (kr_table_json(&p->checks, &rows, err) != KR_OK)
        return kr_cli_failed(line.command, err);
    return kr_cli_print_json(json_pack("{s:s,s:i,s:i,s:i,s:i,s:f,s:f,s:o}", "cpu", p->machine.cpu, "cores",
                                       (int)p->machine.cores, "points", (int)p->points, "steps_kept",
                                       (int)p->kept, "steps", (int)p->total, "median_error_percent",
                                       p->errors != 0 ? error_at(p, 50) : 0.0, "p95_error_percent",
                                       p->errors != 0 ? error_at(p, 95) : 0.0, "check", rows));
}

static kr_status write_machine(const kr_machine *machine, const kr_output_file *out, kr_err *err)
{
    json_t *root = NULL;
    kr_status status = kr_machine_json(machine, &root, err);

    if (status == KR_OK && json_dumpf(root, out->file, JSON_INDENT(1) | JSON_PRESERVE_ORDER) != 0)
        status = kr_fail(err, KR_E_IO, "%.200s: cannot be written", out->path);
    json_decref(root);
    return status;
}

/* The file is made before minutes are spent on what goes into it. */
static kr_status run_all(profile *p, char **models, int count, kr_err *err)
{
    const char *path = p->options->output;
    kr_output_file out;
    kr_status status = path != NULL ? kr_output_open(&out, path, err) : KR_OK;
    kr_cpu_probe probe;
    kr_ops ops;

    if (status != KR_OK)
        return status;
    kr_cpu_choose(1, &ops, &probe);
    snprintf(p->machine.cpu, sizeof p->machine.cpu, "%s", probe.cpu);
    p->machine.cores = probe.cores;
    for (int i = 0; i < count && status == KR_OK; i++)
        status = profile_model(p, models[i], err);
    if (path == NULL)
        return status;
    if (status == KR_OK)
        status = write_machine(&p->machine, &out, err);
    return kr_output_close(&out, status, err);
}

int kr_cmd_profile(int argc, char **argv)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    profile_options o = {.methods = {.text = "quest", .count = 1},
                         .budgets = {.item = {256, 1024}, .count = 2},
                         .contexts = {.item = {256, 1024, 3072}, .count = 3},
                         .check_contexts = {.item = {640, 2048}, .count = 2},
                         .check_budget = 512,
                         .dense_layers = UINT32_MAX,
                         .kv_dtype = "bf16",
                         .node_process = true,
                         .rows = 8,
                         .steps = 16,
                         .rounds = 2,
                         .threads = cores < 1 ? 1 : (uint32_t)cores};
    char **rest;
    int rest_count, status;
    kr_err err = {0};

    if (!kr_options_parse(&line, argc, argv, &o, &rest, &rest_count, &status))
        return status;
    if (o.output == NULL && !o.check)
        return kr_cli_misused(line.command, "nothing to do: give --output, --check or both");
    profile *p = kr_alloc(sizeof *p);
    if (p == NULL)
        return kr_cli_failed(line.command, (kr_fail(&err, KR_E_MEMORY, "no memory"), &err));
    p->options = &o;
    kr_table_init(&p->checks, NULL, check_columns, CHECK_COLUMNS);
    kr_status done = run_all(p, rest, rest_count, &err);
    kr_sort_reals(p->error, p->errors);
    status = KR_EXIT_OK;
    if (done == KR_OK && o.json)
        status = print_json(p, &err);
    else if (done == KR_OK)
        done = print_text(p, &err);
    if (done != KR_OK)
        status = kr_cli_failed(line.command, &err);
    kr_table_free(&p->checks);
    kr_free(p);
    return status;
}
