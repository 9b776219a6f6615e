/* The list of a profile's points, and the order in which they run. */
#include "eval/profile_study.h"

#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/log.h"

enum { ENTRIES_MAX = 32, POINTS_MAX = 96, TAG_BYTES = 16 };

/* A method with a budget: its saved sessions, and whether the fit sees it. */
typedef struct {
    kr_method_config config;
    char tag[TAG_BYTES];
    bool fitted, checked;
} entry;

typedef struct {
    const kr_profile_options *options;
    kr_profile_result *result;
    entry entry[ENTRIES_MAX];
    uint32_t entries;
    kr_profile_sample *sample[KR_ARRANGEMENTS]; /* [samples] */
    uint32_t samples[KR_ARRANGEMENTS];
} study;

/* ---- the check ---- */

/* Contexts by number; unequal: rows alternate between both. */
typedef struct {
    kr_arrangement arrangement;
    bool selecting, unequal;
    uint32_t rows, context;
} check_point;

static const check_point checks[KR_PROFILE_CHECKS] = {
    {KR_ARRANGE_IN_TURN, false, false, 1, 1}, {KR_ARRANGE_IN_TURN, false, false, 3, 0},
    {KR_ARRANGE_IN_TURN, true, false, 1, 1},  {KR_ARRANGE_IN_TURN, true, false, 4, 0},
    {KR_ARRANGE_AT_ONCE, false, false, 2, 0}, {KR_ARRANGE_AT_ONCE, false, false, 6, 1},
    {KR_ARRANGE_AT_ONCE, false, true, 5, 0},  {KR_ARRANGE_AT_ONCE, true, false, 3, 1},
    {KR_ARRANGE_AT_ONCE, true, false, 8, 0},  {KR_ARRANGE_AT_ONCE, true, true, 6, 1},
    {KR_ARRANGE_REMOTE, false, false, 4, 1},  {KR_ARRANGE_REMOTE, true, true, 6, 0},
};

static void fill_contexts(kr_profile_point *point, uint32_t rows, uint64_t a, uint64_t b)
{
    *point = (kr_profile_point){.rows = rows};
    for (uint32_t i = 0; i < rows; i++)
        point->context[i] = i / 2 % 2 == 0 ? a : b; /* each micro-batch gets both */
}

static void list_checks(study *s)
{
    const kr_profile_options *o = s->options;

    for (uint32_t i = 0; i < KR_PROFILE_CHECKS && o->check; i++) {
        const check_point *c = &checks[i];
        kr_profile_run *to = &s->result->check[s->result->checks];
        const uint64_t context = o->check_context[c->context];
        const uint64_t other = o->check_context[c->unequal ? 1 - c->context : c->context];

        if ((c->selecting && o->methods == 0) || c->rows > o->rows_max ||
            (c->arrangement == KR_ARRANGE_REMOTE && o->connect == NULL))
            continue;
        *to = (kr_profile_run){.arrangement = c->arrangement};
        fill_contexts(&to->point, c->rows, context, other);
        for (uint32_t e = 0; e < s->entries; e++)
            if (s->entry[e].checked && (strcmp(s->entry[e].config.name, "dense") != 0) == c->selecting)
                to->method = s->entry[e].config;
        s->result->checks++;
    }
}

/* ---- what is measured ---- */

static const char *const arrangement_names[KR_ARRANGEMENTS] = {
    "in turn", "one side waiting", "at once", "one side waiting, node in a process of its own",
    "at once, node in a process of its own"};

static void add_entry(study *s, const char *method, uint32_t budget, bool fitted, bool checked)
{
    entry *e = &s->entry[s->entries];

    *e = (entry){.config = {.budget = budget, .dense_layers = s->options->dense_layers},
                 .fitted = fitted,
                 .checked = checked};
    snprintf(e->config.name, sizeof e->config.name, "%s", method);
    snprintf(e->tag, sizeof e->tag, "e%u", s->entries++);
}

static void list_entries(study *s)
{
    const kr_profile_options *o = s->options;

    add_entry(s, "dense", 0, true, o->check);
    for (uint32_t m = 0; m < o->methods; m++)
        for (uint32_t b = 0; b < o->budgets && s->entries + 1 < ENTRIES_MAX; b++)
            add_entry(s, o->method[m], o->budget[b], true, false);
    if (o->check && o->methods != 0)
        add_entry(s, o->method[0], o->check_budget, false, true);
}

/* Contexts of both kinds that the entry's sessions are saved at, ascending, each once. */
static uint32_t list_contexts(const study *s, const entry *e, uint64_t out[])
{
    const kr_profile_options *o = s->options;
    uint32_t count = 0, f = 0, c = 0;
    const uint32_t fits = e->fitted ? o->contexts : 0, wanted = e->checked ? KR_PROFILE_CHECK_CONTEXTS : 0;

    while (f < fits || c < wanted) {
        const bool first = c == wanted || (f < fits && o->context[f] <= o->check_context[c]);
        const uint64_t next = first ? o->context[f++] : o->check_context[c++];

        if (count == 0 || out[count - 1] != next)
            out[count++] = next;
    }
    return count;
}

/* Points of an entry that the fit sees. */
static uint32_t list_points(const study *s, const entry *e, kr_arrangement arrangement, kr_profile_point *out)
{
    const kr_profile_options *o = s->options;
    const bool alone = arrangement == KR_ARRANGE_ALONE || arrangement == KR_ARRANGE_REMOTE_ALONE;
    const uint32_t micro_batches = alone || arrangement == KR_ARRANGE_IN_TURN ? 1 : 2;
    const bool dense = strcmp(e->config.name, "dense") == 0;
    uint32_t count = 0;

    if (!e->fitted || (alone && !dense))
        return 0; /* what a wake-up costs is the same for all methods */
    for (uint32_t c = 0; c < o->contexts; c++)
        for (uint32_t rows = micro_batches; rows <= o->rows_max && count < POINTS_MAX - KR_PROFILE_CHECKS;
             rows += micro_batches) {
            const bool all = dense && c == 0 && !alone;

            if (all || (rows & (rows - 1)) == 0)
                fill_contexts(&out[count++], rows, o->context[c], o->context[c]);
        }
    return count;
}

static bool is_of(const kr_profile_run *check, const entry *e, kr_arrangement arrangement)
{
    return e->checked && check->arrangement == arrangement &&
           memcmp(&check->method, &e->config, sizeof e->config) == 0;
}

/* Fitted and unfitted points of one entry in one arrangement, in one engine. */
static kr_status measure(study *s, const entry *e, kr_arrangement arrangement, kr_err *err)
{
    kr_profile_result *r = s->result;
    kr_profile_point point[POINTS_MAX];
    const uint32_t fitted = list_points(s, e, arrangement, point);
    uint32_t count = fitted;
    kr_program program;
    kr_arena arena = {0};
    kr_model model;

    for (uint32_t i = 0; i < r->checks; i++)
        if (is_of(&r->check[i], e, arrangement))
            point[count++] = r->check[i].point;
    if (count == 0)
        return KR_OK;
    if (r->fits + fitted > KR_PROFILE_FITTED_MAX)
        return kr_fail(err, KR_E_LIMIT, "profile: more than %d points", KR_PROFILE_FITTED_MAX);
    kr_log(KR_LOG_INFO, "profile: %s, budget %u: %u points, %s", e->config.name, e->config.budget, count,
           arrangement_names[arrangement]);
    kr_status status = kr_profile_measure(&r->setup, &e->config, e->tag, arrangement, s->options->rounds,
                                          point, count, err);
    if (status == KR_OK)
        status = kr_profile_program(&r->setup, &e->config, arrangement, &model, &arena, &program, err);
    if (status != KR_OK)
        return status;
    for (uint32_t i = 0; i < fitted; i++) {
        s->sample[arrangement][s->samples[arrangement]++] = kr_profile_sample_of(&point[i], &program);
        r->kept += point[i].kept;
        r->total += point[i].total;
        r->fitted[r->fits++] = (kr_profile_run){point[i], arrangement, e->config};
    }
    kr_arena_free(&arena);
    count = fitted;
    for (uint32_t i = 0; i < r->checks; i++)
        if (is_of(&r->check[i], e, arrangement))
            r->check[i].point = point[count++];
    return KR_OK;
}

static kr_status measure_all(study *s, kr_err *err)
{
    kr_status status = KR_OK;

    for (uint32_t e = 0; e < s->entries && status == KR_OK; e++) {
        uint64_t contexts[KR_PROFILE_LIST_MAX + KR_PROFILE_CHECK_CONTEXTS];
        const uint32_t count = list_contexts(s, &s->entry[e], contexts);

        kr_log(KR_LOG_INFO, "profile: %s, budget %u: prefill of %llu tokens", s->entry[e].config.name,
               s->entry[e].config.budget, (unsigned long long)contexts[count - 1]);
        status = kr_profile_prefill(&s->result->setup, &s->entry[e].config, s->entry[e].tag, contexts, count,
                                    err);
        const int arrangements = s->options->connect != NULL ? KR_ARRANGEMENTS : KR_ARRANGE_REMOTE_ALONE;
        for (int a = 0; a < arrangements && status == KR_OK; a++)
            status = measure(s, &s->entry[e], (kr_arrangement)a, err);
    }
    return status;
}

/* ---- modes ---- */

bool kr_profile_mode_of(kr_arrangement arrangement, kr_machine_mode_kind *kind)
{
    if (arrangement == KR_ARRANGE_ALONE || arrangement == KR_ARRANGE_REMOTE_ALONE)
        return false;
    *kind = arrangement == KR_ARRANGE_IN_TURN   ? KR_MODE_IN_TURN
            : arrangement == KR_ARRANGE_AT_ONCE ? KR_MODE_AT_ONCE
                                                : KR_MODE_REMOTE;
    return true;
}

static void describe_mode(const study *s, kr_machine_mode_kind kind, kr_arrangement arrangement,
                          const kr_cpu_probe *probe, kr_machine_mode *mode)
{
    const kr_profile_setup *setup = &s->result->setup;
    const double bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    kr_device_model *side[] = {&mode->compute, &mode->memory};
    const uint32_t threads[] = {kr_profile_compute_threads(setup, arrangement),
                                kr_profile_device_threads(setup, arrangement)};

    *mode = (kr_machine_mode){.kind = kind, .compute_threads = threads[0], .device_threads = threads[1]};
    snprintf(mode->model, sizeof mode->model, "%s", kr_model_file_model(setup->file)->name);
    snprintf(mode->weights, sizeof mode->weights, "%s", setup->weights_f32 ? "f32" : "as stored");
    for (int i = 0; i < 2; i++) {
        *side[i] = (kr_device_model){.flops_f32 = probe->f32_fma_flops * threads[i],
                                     .flops_bf16 = probe->bf16_dot_flops * threads[i],
                                     .flops_efficiency = 1.0,
                                     .memory_bytes = bytes,
                                     .memory_bytes_per_s = probe->read_bytes_per_s,
                                     .memory_efficiency = 1.0,
                                     .link_bytes_per_s = 1e12}; /* what messages cost lies in the curves */
        memset(side[i]->can, true, sizeof side[i]->can);
        snprintf(side[i]->name, sizeof side[i]->name, "%u %s thread%s", threads[i],
                 i == 0 ? "compute" : "device", threads[i] == 1 ? "" : "s");
    }
}

static kr_status fit_all(study *s, kr_err *err)
{
    kr_profile_samples samples = {.in_turn = s->sample[KR_ARRANGE_IN_TURN],
                                  .in_turns = s->samples[KR_ARRANGE_IN_TURN]};
    kr_machine_mode *mode = s->result->mode;
    kr_cpu_probe probe;
    kr_ops ops;
    kr_status status;

    kr_cpu_choose(30, &ops, &probe);
    describe_mode(s, KR_MODE_IN_TURN, KR_ARRANGE_IN_TURN, &probe, &mode[0]);
    describe_mode(s, KR_MODE_AT_ONCE, KR_ARRANGE_AT_ONCE, &probe, &mode[1]);
    describe_mode(s, KR_MODE_REMOTE, KR_ARRANGE_REMOTE, &probe, &mode[2]);
    s->result->modes = s->options->connect != NULL ? 3 : 2;
    status = kr_profile_fit(&samples, &mode[0], err);
    samples.alone = s->sample[KR_ARRANGE_ALONE];
    samples.alones = s->samples[KR_ARRANGE_ALONE];
    samples.at_once = s->sample[KR_ARRANGE_AT_ONCE];
    samples.at_onces = s->samples[KR_ARRANGE_AT_ONCE];
    if (status == KR_OK)
        status = kr_profile_fit(&samples, &mode[1], err);
    const kr_profile_samples remote = {.alone = s->sample[KR_ARRANGE_REMOTE_ALONE],
                                       .alones = s->samples[KR_ARRANGE_REMOTE_ALONE],
                                       .at_once = s->sample[KR_ARRANGE_REMOTE],
                                       .at_onces = s->samples[KR_ARRANGE_REMOTE]};
    return status == KR_OK && s->result->modes == 3 ? kr_profile_fit(&remote, &mode[2], err) : status;
}

static kr_status check_options(const kr_profile_options *o, uint64_t context_max, kr_err *err)
{
    const kr_model *m = kr_model_file_model(o->file);

    if (o->rows_max < KR_PROFILE_ROWS_MIN || o->rows_max > KR_PROFILE_ROWS_MAX)
        return kr_fail(err, KR_E_LIMIT, "profile: batches of up to %u rows, must be %d to %d", o->rows_max,
                       KR_PROFILE_ROWS_MIN, KR_PROFILE_ROWS_MAX);
    if (context_max > m->context)
        return kr_fail(err, KR_E_LIMIT,
                       "profile: the longest context and what it grows by make %llu tokens; the model was "
                       "made for %u",
                       (unsigned long long)context_max, m->context);
    for (uint32_t i = 1; i < o->contexts; i++)
        if (o->context[i] <= o->context[i - 1])
            return kr_fail(err, KR_E_ARG, "profile: contexts must ascend");
    return KR_OK;
}

kr_status kr_profile_study(const kr_profile_options *o, kr_profile_result *result, kr_err *err)
{
    study *s = kr_alloc(sizeof *s);
    uint64_t longest = o->context[o->contexts - 1];
    kr_status status = KR_OK;

    if (s == NULL)
        return kr_fail(err, KR_E_MEMORY, "profile: no memory");
    for (int i = 0; i < KR_PROFILE_CHECK_CONTEXTS && o->check; i++)
        longest = o->check_context[i] > longest ? o->check_context[i] : longest;
    *s = (study){.options = o, .result = result};
    *result = (kr_profile_result){.setup = {.file = o->file,
                                            .weights_f32 = o->weights_f32,
                                            .kv_dtype = o->kv_dtype,
                                            .cores = o->cores,
                                            .context_max = longest + kr_profile_growth(o->steps),
                                            .rows_max = o->rows_max,
                                            .folder = o->folder,
                                            .steps = o->steps,
                                            .connect = o->connect,
                                            .disconnect = o->disconnect,
                                            .connect_context = o->connect_context}};
    for (int a = 0; a < KR_ARRANGEMENTS; a++) {
        s->sample[a] = kr_alloc(KR_PROFILE_FITTED_MAX * sizeof *s->sample[a]);
        if (s->sample[a] == NULL)
            status = kr_fail(err, KR_E_MEMORY, "profile: no memory for samples");
    }
    if (status == KR_OK)
        status = check_options(o, result->setup.context_max, err);
    if (status == KR_OK) {
        list_entries(s);
        list_checks(s);
        status = measure_all(s, err);
    }
    if (status == KR_OK)
        status = fit_all(s, err);
    for (int a = 0; a < KR_ARRANGEMENTS; a++)
        kr_free(s->sample[a]);
    kr_free(s);
    return status;
}
