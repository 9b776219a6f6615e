/* Points of a profile: sessions saved and restored, engines made, steps run and judged. */
#include "eval/profile.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/rng.h"
#include "node/embedded.h"

#define TIMEOUT_NS ((uint64_t)60 * 1000000000)

enum {
    WARM_UP = 3,
    CHUNK = 256,
    TOTAL_PER_KEPT = 3,
    NAME_BYTES = 64,
    KEPT_MAX = 256,
    SECONDS_MAX_NS = 1500000000
};

/* An engine over its node. */
typedef struct {
    const kr_profile_setup *remote; /* whose node is another process; NULL: embedded */
    kr_embedded embedded;
    kr_engine_node node;
    kr_method_config methods[KR_LAYERS_MAX];
    kr_engine *engine;
} rig;

static bool is_remote(kr_arrangement arrangement)
{
    return arrangement == KR_ARRANGE_REMOTE_ALONE || arrangement == KR_ARRANGE_REMOTE;
}

static uint32_t micro_batches_of(kr_arrangement arrangement)
{
    return arrangement == KR_ARRANGE_AT_ONCE || arrangement == KR_ARRANGE_REMOTE ? 2 : 1;
}

static bool splits(kr_arrangement arrangement) { return arrangement != KR_ARRANGE_IN_TURN; }

uint32_t kr_profile_device_threads(const kr_profile_setup *setup, kr_arrangement arrangement)
{
    if (!splits(arrangement))
        return setup->cores;
    return setup->cores > 1 ? setup->cores / 2 : 1;
}

uint32_t kr_profile_compute_threads(const kr_profile_setup *setup, kr_arrangement arrangement)
{
    if (!splits(arrangement))
        return setup->cores;
    return setup->cores > 1 ? setup->cores - setup->cores / 2 : 1;
}

static void close_rig(rig *r)
{
    kr_engine_destroy(r->engine);
    kr_embedded_stop(&r->embedded);
    if (r->remote != NULL)
        r->remote->disconnect(r->remote->connect_context, &r->node);
}

/* With one thread for both sides its own running time does not see a crowded machine. */
static const kr_clock *clock_of(const kr_profile_setup *setup, kr_arrangement arrangement)
{
    return setup->cores == 1 && !splits(arrangement) ? &kr_clock_thread : &kr_clock_system;
}

static kr_engine_config config_of(const kr_profile_setup *setup, const kr_method_config *method,
                                  kr_arrangement arrangement, kr_method_config methods[KR_LAYERS_MAX])
{
    for (uint32_t l = 0; l < kr_model_file_model(setup->file)->layers; l++)
        methods[l] = *method;
    return (kr_engine_config){.file = setup->file,
                              .methods = methods,
                              .placement = KR_PLACE_ALL_ON_NODE,
                              .kv_dtype = setup->kv_dtype,
                              .context_max = setup->context_max,
                              .rows_max = setup->rows_max,
                              .sessions_max = setup->rows_max,
                              .micro_batches = micro_batches_of(arrangement),
                              .threads = kr_profile_compute_threads(setup, arrangement),
                              .policy = KR_POLICY_SCMS,
                              .timeout_ns = TIMEOUT_NS,
                              .weights_f32 = setup->weights_f32,
                              .clock = clock_of(setup, arrangement)};
}

kr_status kr_profile_program(const kr_profile_setup *setup, const kr_method_config *method,
                             kr_arrangement arrangement, kr_model *model, kr_arena *arena,
                             kr_program *program, kr_err *err)
{
    kr_method_config methods[KR_LAYERS_MAX];
    const kr_engine_config config = config_of(setup, method, arrangement, methods);

    return kr_engine_program_of(&config, model, arena, program, err);
}

/* On success the caller closes it; r stays where it is. */
static kr_status open_rig(const kr_profile_setup *setup, const kr_method_config *method,
                          kr_arrangement arrangement, uint32_t rows_max, uint32_t sessions, rig *r,
                          kr_err *err)
{
    const bool driven = !splits(arrangement);
    kr_node_config node = {.devices = 1,
                           .threads_per_device = kr_profile_device_threads(setup, arrangement),
                           .sessions_max = sessions,
                           .save_folder = setup->folder,
                           .clock = clock_of(setup, arrangement)};
    kr_engine_needs needs;

    *r = (rig){0};
    kr_engine_config config = config_of(setup, method, arrangement, r->methods);
    config.nodes = &r->node;
    config.node_count = 1;
    config.rows_max = rows_max;
    config.sessions_max = sessions;
    kr_status status = kr_engine_plan(&config, &needs, err);
    if (status != KR_OK)
        return status;
    node.pool_bytes = sessions * needs.session_page_bytes;
    if (is_remote(arrangement)) {
        r->remote = setup;
        status = setup->connect(setup->connect_context, node.pool_bytes, sessions, node.threads_per_device,
                                &r->node, err);
    } else {
        status = kr_embedded_start(&r->embedded, &node, driven, err);
        r->node = (kr_engine_node){.link = r->embedded.client,
                                   .welcome = r->embedded.welcome,
                                   .drive = driven ? kr_embedded_drive : NULL,
                                   .drive_context = &r->embedded};
    }
    if (status == KR_OK)
        status = kr_engine_create(&r->engine, &config, err);
    if (status != KR_OK)
        close_rig(r);
    return status;
}

/* ---- sessions ---- */

static void name_of(const char *tag, uint64_t context, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "%.32s-%llu", tag, (unsigned long long)context);
}

/* One token stays pending, so that a restored session can decode. */
static kr_status prefill_to(kr_session *session, kr_engine *engine, uint64_t context, kr_err *err)
{
    kr_status status = KR_OK;

    while (status == KR_OK && kr_session_kv_tokens(session) < context) {
        const uint64_t left = context - kr_session_kv_tokens(session);
        kr_step_item item = {
            .session = session, .tokens = (uint32_t)(left < CHUNK ? left : CHUNK), .prefill = true};

        status = kr_engine_step(engine, &item, 1, err);
    }
    return status == KR_OK ? kr_session_end_prefill(session, err) : status;
}

static kr_status prefill_all(rig *r, const char *tag, const uint32_t *tokens, const uint64_t *contexts,
                             uint32_t count, kr_err *err)
{
    const uint64_t last = contexts[count - 1];
    const kr_session_request request = {
        .tokens = tokens, .count = contexts[0] + 1, .growth = last - contexts[0], .sampling = {0, 1, 0}};
    kr_session *session = NULL;
    char name[NAME_BYTES];
    kr_status status = kr_session_open(r->engine, &request, &session, err);

    for (uint32_t i = 0; i < count && status == KR_OK; i++) {
        if (i != 0)
            status = kr_session_append(session, tokens + contexts[i - 1] + 1, contexts[i] - contexts[i - 1],
                                       err);
        if (status == KR_OK)
            status = prefill_to(session, r->engine, contexts[i], err);
        name_of(tag, contexts[i], name);
        if (status == KR_OK)
            status = kr_session_save(session, name, err);
    }
    kr_session_close(session);
    return status;
}

kr_status kr_profile_prefill(const kr_profile_setup *setup, const kr_method_config *method, const char *tag,
                             const uint64_t *contexts, uint32_t count, kr_err *err)
{
    const uint32_t vocab = kr_model_file_model(setup->file)->vocab;
    uint32_t *tokens = kr_alloc((setup->context_max + 1) * sizeof *tokens);
    kr_rng rng = kr_rng_make(1, 1);
    rig r;

    KR_CHECK(count != 0 && contexts[count - 1] < setup->context_max);
    if (tokens == NULL)
        return kr_fail(err, KR_E_MEMORY, "profile: no memory for a prompt");
    for (uint64_t i = 0; i <= setup->context_max; i++)
        tokens[i] = (uint32_t)kr_rng_below(&rng, vocab);
    kr_status status = open_rig(setup, method, KR_ARRANGE_IN_TURN, CHUNK, 1, &r, err);
    if (status == KR_OK) {
        status = prefill_all(&r, tag, tokens, contexts, count, err);
        close_rig(&r);
    }
    kr_free(tokens);
    return status;
}

/* ---- steps ---- */

uint64_t kr_profile_growth(uint32_t steps) { return WARM_UP + TOTAL_PER_KEPT * (uint64_t)steps + 1; }

/* Sums so far of what kr_profile_times tells of one step. */
static kr_status look(kr_engine *engine, kr_profile_times *sums, kr_err *err)
{
    kr_status status = kr_engine_ask_stats(engine, err);
    const kr_engine_stats s = kr_engine_get_stats(engine);

    *sums = (kr_profile_times){.step = (double)s.step_ns * 1e-9,
                               .wait = (double)s.wait_ns * 1e-9,
                               .busy = (double)s.device_busy_ns * 1e-9};
    for (int k = 0; k < KR_OP_KINDS; k++)
        sums->op[k] = (double)s.op_ns[k] * 1e-9;
    for (int k = 0; k < KR_STAGES; k++)
        sums->stage[k] = (double)s.stage_ns[k] * 1e-9;
    return status;
}

enum { PARTS = sizeof(kr_profile_times) / sizeof(double) };

static kr_profile_times difference(const kr_profile_times *after, const kr_profile_times *before)
{
    kr_profile_times d;
    const double *a = (const double *)after, *b = (const double *)before;

    for (int i = 0; i < PARTS; i++)
        ((double *)&d)[i] = a[i] - b[i];
    return d;
}

static int by_step(const void *a, const void *b)
{
    const double x = ((const kr_profile_times *)a)->step, y = ((const kr_profile_times *)b)->step;

    return (x > y) - (x < y);
}

/* Parts still add up to the whole, since all are means over the same steps. */
static kr_profile_times middle_half(kr_profile_times *kept, uint32_t count)
{
    const uint32_t first = count / 4, end = count - count / 4;
    kr_profile_times mean = {0};

    qsort(kept, count, sizeof *kept, by_step);
    for (uint32_t i = first; i < end; i++)
        for (int k = 0; k < PARTS; k++)
            ((double *)&mean)[k] += ((const double *)&kept[i])[k] / (end - first);
    return mean;
}

/* What tells of a lost CPU. In turn the calling thread runs or spins all the time, while idle helpers that
 * yield to others count as switched out: its own time shows a loss. Else a thread sleeps where it waits, and
 * none is ever switched out unless another program took its CPU. */
typedef struct {
    uint64_t wall_ns, cpu_ns;
    long switches;
} cpu_state;

static cpu_state look_at_cpu(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (cpu_state){kr_now_ns(&kr_clock_system), kr_now_ns(&kr_clock_thread), usage.ru_nivcsw};
}

static bool kept_cpu(const cpu_state *before, const cpu_state *after, kr_arrangement arrangement)
{
    const double wall = (double)(after->wall_ns - before->wall_ns);

    if (splits(arrangement))
        return after->switches == before->switches;
    return (double)(after->cpu_ns - before->cpu_ns) >= 0.97 * wall;
}

static kr_status step(kr_engine *engine, kr_session *const *session, uint32_t rows, kr_err *err)
{
    kr_step_item item[KR_PROFILE_ROWS_MAX];

    for (uint32_t i = 0; i < rows; i++)
        item[i] = (kr_step_item){.session = session[i],
                                 .tokens = 1,
                                 .micro_batch = kr_session_micro_batch(session[i]),
                                 .want = KR_WANT_TOKEN};
    return kr_engine_step(engine, item, rows, err);
}

/* Steps of all rounds that were kept of a point. */
typedef struct {
    kr_profile_times clean[KEPT_MAX], disturbed[KEPT_MAX];
    uint32_t cleans, disturbeds;
} tally;

static kr_status run_steps(const kr_profile_setup *setup, kr_arrangement arrangement, kr_engine *engine,
                           kr_session *const *session, kr_profile_point *point, tally *t, kr_err *err)
{
    const uint64_t begin = kr_now_ns(&kr_clock_system);
    const uint32_t before_cleans = t->cleans;
    kr_profile_times before, after;
    kr_status status = KR_OK;
    uint32_t counted = 0;

    for (uint32_t i = 0; i < WARM_UP && status == KR_OK; i++)
        status = step(engine, session, point->rows, err);
    if (status == KR_OK)
        status = look(engine, &before, err);
    while (status == KR_OK && t->cleans - before_cleans < setup->steps &&
           counted < TOTAL_PER_KEPT * setup->steps && t->cleans < KEPT_MAX && t->disturbeds < KEPT_MAX &&
           (counted < 4 || kr_now_ns(&kr_clock_system) - begin < SECONDS_MAX_NS)) {
        const cpu_state begun = look_at_cpu();
        status = step(engine, session, point->rows, err);
        const cpu_state ended = look_at_cpu();
        if (status == KR_OK)
            status = look(engine, &after, err);
        const kr_profile_times passed = difference(&after, &before);
        if (kept_cpu(&begun, &ended, arrangement))
            t->clean[t->cleans++] = passed;
        else
            t->disturbed[t->disturbeds++] = passed;
        before = after;
        counted++;
    }
    point->warm_up = WARM_UP;
    point->counted = counted > point->counted ? counted : point->counted;
    return status;
}

static kr_status run_point(const kr_profile_setup *setup, kr_arrangement arrangement, rig *r, const char *tag,
                           kr_profile_point *point, tally *t, kr_err *err)
{
    static const kr_sampling greedy = {0, 1, 0};
    kr_session *session[KR_PROFILE_ROWS_MAX] = {NULL};
    kr_status status = KR_OK;
    char name[NAME_BYTES];
    uint32_t opened = 0;

    for (; opened < point->rows && status == KR_OK; opened += status == KR_OK) {
        name_of(tag, point->context[opened], name);
        status = kr_session_restore(r->engine, name, setup->context_max, &greedy, &session[opened], err);
    }
    for (uint32_t i = 0; i < point->rows && status == KR_OK; i++)
        point->micro_batch[i] = kr_session_micro_batch(session[i]);
    if (status == KR_OK)
        status = run_steps(setup, arrangement, r->engine, session, point, t, err);
    while (opened > 0)
        kr_session_close(session[--opened]);
    return status;
}

/* With too few undisturbed steps the fastest of the others stand in; kept says so. */
static void judge(kr_profile_point *point, tally *t)
{
    enum { CLEAN_MIN = 4 };

    point->kept = t->cleans;
    point->total = t->cleans + t->disturbeds;
    if (t->cleans >= CLEAN_MIN || t->disturbeds == 0) {
        point->times = middle_half(t->clean, t->cleans);
        return;
    }
    qsort(t->disturbed, t->disturbeds, sizeof *t->disturbed, by_step);
    point->times = middle_half(t->disturbed, (t->disturbeds + 3) / 4);
}

kr_status kr_profile_measure(const kr_profile_setup *setup, const kr_method_config *method, const char *tag,
                             kr_arrangement arrangement, uint32_t rounds, kr_profile_point *points,
                             uint32_t count, kr_err *err)
{
    tally *t = kr_alloc(count * sizeof *t);
    rig r;

    if (t == NULL)
        return kr_fail(err, KR_E_MEMORY, "profile: no memory for %u points", count);
    kr_status status = open_rig(setup, method, arrangement, setup->rows_max, setup->rows_max, &r, err);
    if (status != KR_OK) {
        kr_free(t);
        return status;
    }
    for (uint32_t round = 0; round < rounds && status == KR_OK; round++)
        for (uint32_t i = 0; i < count && status == KR_OK; i++)
            status = run_point(setup, arrangement, &r, tag, &points[i], &t[i], err);
    for (uint32_t i = 0; i < count && status == KR_OK; i++)
        judge(&points[i], &t[i]);
    close_rig(&r);
    kr_free(t);
    return status;
}
