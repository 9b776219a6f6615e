/* Events of a folded run to spans: an op's span goes from STARTED to DONE or ARRIVED on its worker. */
#include "plan/timeline.h"

#include "base/arena.h"
#include "report/chrome.h"

enum { TRACKS = 4 };

typedef struct {
    const kr_program *program;
    uint64_t *started_ns; /* [ops] */
    kr_spans spans[TRACKS];
    uint32_t device_tracks; /* 2 with memory devices (device, link), else 0 */
} recorder;

static void on_event(void *context, const kr_run_event *event)
{
    recorder *r = context;
    const kr_op *op = &r->program->ops[event->op];

    if (event->what == KR_RUN_STARTED) {
        r->started_ns[event->op] = event->time_ns;
        return;
    }
    kr_span_add(&r->spans[event->worker < TRACKS ? event->worker : TRACKS - 1],
                (kr_span){.begin_ns = r->started_ns[event->op],
                          .end_ns = event->time_ns,
                          .op = event->op,
                          .kind = op->kind,
                          .layer = op->layer,
                          .micro_batch = op->micro_batch,
                          .track = event->worker,
                          .step = event->step});
}

static kr_status run(recorder *r, const kr_scenario *scenario, const kr_plan_workload *workload,
                     const kr_study_options *options, uint32_t sessions, uint32_t steps, kr_err *err)
{
    kr_sim_options rule = kr_study_rule(options, sessions, options->seed);
    const kr_sim_watch watch = {.context = r, .event = on_event};
    kr_sim_result result;

    rule.tokens_max = rule.time_max_ns = 0;
    rule.steps_max = steps;
    return kr_sim_run(&scenario->program, &scenario->hardware, &workload->view, &rule, &watch, &result, err);
}

static kr_status write_tracks(const recorder *r, FILE *out, kr_err *err)
{
    const char *kinds[KR_OP_KINDS];
    const kr_chrome_track with[TRACKS] = {{"compute", "slowest rank", &r->spans[0]},
                                          {"memory", "slowest device", &r->spans[1]},
                                          {"memory", "its link", &r->spans[2]},
                                          {"compute", "network of the experts", &r->spans[3]}};
    const kr_chrome_track without[2] = {with[0], {"compute", "network of the experts", &r->spans[1]}};
    const bool remote = r->device_tracks != 0;

    for (int k = 0; k < KR_OP_KINDS; k++)
        kinds[k] = kr_op_name((kr_op_kind)k);
    return kr_chrome_write(&(kr_chrome_trace){.tracks = remote ? with : without,
                                              .track_count = remote ? TRACKS : 2,
                                              .kinds = kinds,
                                              .kind_count = KR_OP_KINDS},
                           out, err);
}

kr_status kr_timeline_write(const kr_scenario *scenario, const kr_plan_workload *workload,
                            const kr_study_options *options, uint32_t sessions, uint32_t steps, FILE *out,
                            kr_err *err)
{
    recorder r = {.program = &scenario->program, .device_tracks = scenario->hardware.memory != NULL ? 2 : 0};
    uint32_t capacity = 1024;
    kr_status status = KR_OK;

    if (steps == 0 || steps > KR_TIMELINE_STEPS_MAX)
        return kr_fail(err, KR_E_ARG, "plan: %u steps to trace, must be 1 to %d", steps,
                       KR_TIMELINE_STEPS_MAX);
    while (capacity < scenario->program.count * steps)
        capacity *= 2;
    r.started_ns = kr_alloc(scenario->program.count * sizeof *r.started_ns);
    for (int i = 0; i < TRACKS; i++)
        r.spans[i] = (kr_spans){.ring = kr_alloc(capacity * sizeof(kr_span)), .capacity = capacity};
    for (int i = 0; i < TRACKS; i++)
        if (r.started_ns == NULL || r.spans[i].ring == NULL)
            status = kr_fail(err, KR_E_MEMORY, "plan: no memory for %u spans", capacity);
    if (status == KR_OK)
        status = run(&r, scenario, workload, options, sessions, steps, err);
    if (status == KR_OK)
        status = write_tracks(&r, out, err);
    kr_free(r.started_ns);
    for (int i = 0; i < TRACKS; i++)
        kr_free(r.spans[i].ring);
    return status;
}
