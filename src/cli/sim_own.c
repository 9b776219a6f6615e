/* `karat sim --machine` and `karat sim --replay`: the engine's own step program in virtual time. */
#include "cli/sim_own.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/num.h"
#include "cli/options.h"
#include "engine/engine.h"
#include "report/table.h"
#include "sim/batch.h"

enum { EVENTS_MAX = 1 << 22, SESSIONS_MAX = KR_ENGINE_SESSIONS_MAX, STEPS_MAX = 1 << 22 };

static const kr_column columns[] = {
    {"quantity", NULL, "quantity", 0}, {"value", NULL, "value", 3}, {"unit", NULL, "unit", 0}};

static void row(kr_table *t, const char *name, double value, const char *unit)
{
    kr_table_text(t, "%s", name);
    kr_table_real(t, value);
    kr_table_text(t, "%s", unit);
}

/* The table as text or JSON; it is freed. */
static kr_status print(kr_table *t, bool json, int *code, kr_err *err)
{
    json_t *rows = NULL;
    kr_status status = json ? kr_table_json(t, &rows, err) : kr_table_print(t, stdout, err);

    kr_table_free(t);
    if (status == KR_OK && json)
        *code = kr_cli_print_json(json_pack("{s:o}", "quantities", rows));
    return status;
}

/* A config without nodes: of what kr_engine_program_of and kr_engine_plan read. */
static kr_engine_config config_of(const kr_model_file *file, const kr_run_program *program,
                                  uint32_t micro_batches, uint32_t sessions)
{
    return (kr_engine_config){.file = file,
                              .methods = program->method,
                              .placement = program->placement,
                              .kv_dtype = program->kv_dtype,
                              .context_max = program->context_max,
                              .rows_max = sessions,
                              .sessions_max = sessions,
                              .micro_batches = micro_batches,
                              .threads = 1,
                              .timeout_ns = 1,
                              .clock = &kr_clock_system};
}

/* ---- on a measured machine ---- */

static void warn_of_another_machine(const kr_machine *machine)
{
    kr_cpu_probe probe;
    kr_ops ops;

    kr_cpu_choose(1, &ops, &probe);
    if (strcmp(probe.cpu, machine->cpu) != 0 || probe.cores != machine->cores)
        fprintf(stderr, "karat sim: the table was measured on %s with %u cores; this is %s with %u\n",
                machine->cpu, machine->cores, probe.cpu, probe.cores);
}

static kr_status choose_program(const kr_sim_own_options *o, const kr_model_file *file, kr_run_program *p,
                                kr_err *err)
{
    const kr_method *method;
    const kr_status status = kr_method_find(o->method, &method, err);

    if (status != KR_OK && strcmp(o->method, "native") != 0)
        return status;
    *p = (kr_run_program){.context_max = o->context + o->tokens + 1,
                          .layers = kr_model_file_model(file)->layers};
    if (!kr_dtype_parse(o->kv_dtype, &p->kv_dtype))
        return kr_fail(err, KR_E_ARG, "--kv-dtype %s is none of bf16, f16, f32", o->kv_dtype);
    for (uint32_t l = 0; l < p->layers; l++) {
        p->method[l] = (kr_method_config){.budget = o->budget, .dense_layers = UINT32_MAX};
        snprintf(p->method[l].name, sizeof p->method[l].name, "%s", o->method);
    }
    return KR_OK;
}

static kr_status print_machine(const kr_sim_own_options *o, const kr_machine_mode *mode, uint32_t sessions,
                               const kr_engine_needs *needs, const kr_sim_batch_result *r, int *code,
                               kr_err *err)
{
    char name[64];
    kr_table t;

    if (!o->json)
        printf("%s, %s, %u sessions with %llu tokens each, %s: %u compute and %u device threads\n",
               mode->model, o->method, sessions, (unsigned long long)o->context,
               kr_machine_mode_names[mode->kind], mode->compute_threads, mode->device_threads);
    kr_table_init(&t, NULL, columns, 3);
    row(&t, "decode step", r->step_s * 1e3, "ms");
    row(&t, "throughput", sessions / r->step_s, "tokens/s");
    row(&t, "compute side works", 100 * r->busy[0], "%");
    row(&t, "device works", 100 * r->busy[1], "%");
    row(&t, "both work", 100 * r->both, "%");
    row(&t, "pages of all sessions", (double)(sessions * needs->session_page_bytes) * 1e-9, "GB");
    for (int i = 0; i < KR_PROVENANCE_COUNT; i++) {
        snprintf(name, sizeof name, "op time that is %s", kr_provenance_name((kr_provenance)i));
        row(&t, name, 100 * r->provenance[i], "%");
    }
    return print(&t, o->json, code, err);
}

static kr_status run_batch(const kr_sim_own_options *o, const kr_machine_mode *mode, uint32_t sessions,
                           uint32_t micro_batches, const kr_engine_config *config, int *code, kr_err *err)
{
    kr_sim_row *rows = kr_alloc(sessions * sizeof *rows);
    kr_engine_needs needs;
    kr_sim_batch_result result;
    kr_program program;
    kr_arena arena = {0};
    kr_model model;
    kr_status status = rows == NULL ? kr_fail(err, KR_E_MEMORY, "no memory for %u sessions", sessions)
                                    : kr_engine_plan(config, &needs, err);

    if (status == KR_OK)
        status = kr_engine_program_of(config, &model, &arena, &program, err);
    for (uint32_t i = 0; i < sessions && status == KR_OK; i++)
        rows[i] = (kr_sim_row){o->context, i % micro_batches};
    const kr_sim_batch batch = {
        .row = rows, .rows = sessions, .steps = (uint32_t)o->tokens, .policy = KR_POLICY_SCMS};
    if (status == KR_OK)
        status = kr_sim_machine_run(&program, mode, &batch, &result, err);
    if (status == KR_OK)
        status = print_machine(o, mode, sessions, &needs, &result, code, err);
    kr_arena_free(&arena);
    kr_free(rows);
    return status;
}

static kr_status on_machine(const kr_sim_own_options *o, const kr_machine *machine, const kr_model_file *file,
                            int *code, kr_err *err)
{
    const uint32_t sessions = o->sessions != 0 ? o->sessions : 1;
    const bool overlap = sessions > 1 || o->node_process;
    const uint32_t micro_batches = o->micro_batches != 0 ? o->micro_batches : overlap ? 2 : 1;
    const kr_machine_mode_kind kind = o->node_process      ? KR_MODE_REMOTE
                                      : micro_batches == 1 ? KR_MODE_IN_TURN
                                                           : KR_MODE_AT_ONCE;
    const char *name = kr_model_file_model(file)->name;
    const kr_machine_mode *mode = kr_machine_find(machine, kind, name);
    kr_run_program program;

    if (mode == NULL)
        return kr_fail(err, KR_E_NOT_FOUND,
                       "%.200s holds no times of %.100s, %s; karat profile measures them", o->machine, name,
                       kr_machine_mode_names[kind]);
    if (sessions > SESSIONS_MAX || o->tokens > STEPS_MAX)
        return kr_fail(err, KR_E_LIMIT, "at most %d sessions and %d tokens", SESSIONS_MAX, STEPS_MAX);
    warn_of_another_machine(machine);
    kr_status status = choose_program(o, file, &program, err);
    if (status != KR_OK)
        return status;
    const kr_engine_config config = config_of(file, &program, micro_batches, sessions);
    return run_batch(o, mode, sessions, micro_batches, &config, code, err);
}

kr_status kr_sim_own_machine(const kr_sim_own_options *o, int *code, kr_err *err)
{
    kr_machine *machine = kr_alloc(sizeof *machine);
    kr_model_file *file = NULL;
    kr_status status = machine == NULL ? kr_fail(err, KR_E_MEMORY, "no memory")
                                       : kr_machine_load(o->machine, machine, err);

    if (status == KR_OK)
        status = kr_model_file_open(o->model, &file, err);
    if (status == KR_OK)
        status = on_machine(o, machine, file, code, err);
    kr_model_file_close(file);
    kr_free(machine);
    return status;
}

/* ---- a recorded run ---- */

/* Whole steps: what the record and the simulator say of each. */
typedef struct {
    double *recorded_s, *simulated_s, *error; /* [capacity]; error absolute, a share */
    uint64_t count, capacity;
} steps;

static void on_step(void *context, uint32_t number, uint64_t recorded_ns, uint64_t simulated_ns)
{
    steps *s = context;

    (void)number;
    if (s->count == s->capacity || recorded_ns == 0)
        return;
    s->recorded_s[s->count] = (double)recorded_ns * 1e-9;
    s->simulated_s[s->count] = (double)simulated_ns * 1e-9;
    s->error[s->count++] = fabs((double)simulated_ns / (double)recorded_ns - 1.0);
}

static double median(double *value, uint64_t count)
{
    kr_sort_reals(value, count);
    return count != 0 ? value[count / 2] : NAN;
}

static kr_status print_replay(const kr_sim_own_options *o, uint64_t decisions, steps *s, int *code,
                              kr_err *err)
{
    kr_table t;

    if (!o->json)
        printf("%s: the policy decides the same, %llu times\n", o->replay, (unsigned long long)decisions);
    kr_table_init(&t, NULL, columns, 3);
    row(&t, "decisions that agree", (double)decisions, "");
    row(&t, "whole steps", (double)s->count, "");
    row(&t, "step as recorded, median", 1e3 * median(s->recorded_s, s->count), "ms");
    row(&t, "step simulated with the record's op times, median", 1e3 * median(s->simulated_s, s->count),
        "ms");
    row(&t, "error of a step, median", 100 * median(s->error, s->count), "%");
    return print(&t, o->json, code, err);
}

static kr_status replay_program(const kr_sim_own_options *o, const kr_run_header *header,
                                const kr_program *program, const kr_run_event *events, uint64_t count,
                                int *code, kr_err *err)
{
    const uint64_t most = (uint64_t)header->steps + 1;
    steps s = {kr_alloc(most * sizeof(double)), kr_alloc(most * sizeof(double)),
               kr_alloc(most * sizeof(double)), 0, most};
    const kr_sim_replay_visitor visitor = {&s, on_step};
    uint64_t decisions = 0;
    kr_status status = s.recorded_s == NULL || s.simulated_s == NULL || s.error == NULL
                           ? kr_fail(err, KR_E_MEMORY, "no memory for %u steps", header->steps)
                           : kr_sim_replay(program, header, events, count, &decisions, err);

    if (status == KR_OK)
        status = kr_sim_replay_steps(program, header, events, count, &visitor, err);
    if (status == KR_OK)
        status = print_replay(o, decisions, &s, code, err);
    kr_free(s.recorded_s);
    kr_free(s.simulated_s);
    kr_free(s.error);
    return status;
}

static kr_status replay_file(const kr_sim_own_options *o, const kr_run_header *header,
                             const kr_model_file *file, const kr_run_event *events, uint64_t count, int *code,
                             kr_err *err)
{
    const kr_engine_config config = config_of(file, &header->program, header->micro_batches, 1);
    const kr_model *m = kr_model_file_model(file);
    kr_program program;
    kr_arena arena = {0};
    kr_model model;

    if (header->program.layers != m->layers || strcmp(header->program.model, m->name) != 0)
        return kr_fail(err, KR_E_ARG, "%.150s was recorded with %.90s; --model is %.90s", o->replay,
                       header->program.layers != 0 ? header->program.model : "an unnamed model", m->name);
    kr_status status = kr_engine_program_of(&config, &model, &arena, &program, err);
    if (status == KR_OK)
        status = replay_program(o, header, &program, events, count, code, err);
    kr_arena_free(&arena);
    return status;
}

kr_status kr_sim_own_replay(const kr_sim_own_options *o, int *code, kr_err *err)
{
    kr_run_header *header = kr_alloc(sizeof *header);
    kr_run_event *events = NULL;
    kr_model_file *file = NULL;
    uint64_t count = 0;
    kr_status status = header == NULL ? kr_fail(err, KR_E_MEMORY, "no memory")
                                      : kr_run_read(o->replay, header, &events, &count, EVENTS_MAX, err);

    if (status == KR_OK)
        status = kr_model_file_open(o->model, &file, err);
    if (status == KR_OK)
        status = replay_file(o, header, file, events, count, code, err);
    kr_model_file_close(file);
    kr_free(events);
    kr_free(header);
    return status;
}
