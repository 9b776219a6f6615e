/* Studies spread over a team of threads. */
#include "plan/batch.h"

#include <math.h>
#include <string.h>

#include "base/team.h"
#include "plan/shares.h"

enum { BREAKDOWN_STEPS = 4 };

typedef struct {
    const kr_program *program;
    uint64_t *started_ns; /* [ops] */
    double busy_ns[KR_OP_KINDS];
    uint64_t end_ns;
} breakdown;

static void on_event(void *context, const kr_run_event *event)
{
    breakdown *b = context;
    const kr_op *op = &b->program->ops[event->op];

    if (event->what == KR_RUN_STARTED) {
        b->started_ns[event->op] = event->time_ns;
        return;
    }
    b->busy_ns[op->kind] += (double)(event->time_ns - b->started_ns[event->op]);
    if (event->time_ns > b->end_ns)
        b->end_ns = event->time_ns;
}

/* Shares of the time of the first steps. */
static kr_status break_down(const kr_scenario *s, kr_study_job *job, const kr_study_options *study,
                            kr_err *err)
{
    breakdown b = {.program = &s->program, .started_ns = kr_alloc(s->program.count * sizeof(uint64_t))};
    const kr_sim_watch watch = {.context = &b, .event = on_event};
    kr_sim_options rule = kr_study_rule(study, job->result.sessions, study->seed);
    kr_sim_result result;
    kr_status status;

    if (b.started_ns == NULL)
        return kr_fail(err, KR_E_MEMORY, "plan: no memory for %u ops", s->program.count);
    rule.tokens_max = rule.time_max_ns = 0;
    rule.steps_max = BREAKDOWN_STEPS;
    status = kr_sim_run(&s->program, &s->hardware, &job->workload->view, &rule, &watch, &result, err);
    for (int k = 0; k < KR_OP_KINDS && status == KR_OK && b.end_ns > 0; k++)
        job->share[k] = b.busy_ns[k] / (double)b.end_ns;
    kr_free(b.started_ns);
    return status;
}

static kr_status one(kr_study_job *job, kr_scenario *s)
{
    double share[KR_EXPERTS_MAX];
    kr_study_options study = job->study;
    kr_status status;

    job->tdp_w = s->tdp_w;
    job->weight_gb = (double)s->bytes.weight_bytes * 1e-9;
    if (job->skew > 0.0) {
        kr_expert_shares_power_law(share, s->model.moe.experts, job->skew);
        study.expert_share = share;
    }
    status = job->sessions == 0
                 ? kr_study_find_max(s, job->workload, &study, &job->result, &job->err)
                 : kr_study_run(s, job->workload, &study, job->sessions, &job->result, &job->err);
    return status == KR_OK && job->breakdown ? break_down(s, job, &study, &job->err) : status;
}

static void run_job(void *context, uint32_t part, uint32_t worker)
{
    kr_study_job *job = (kr_study_job *)context + part;
    kr_scenario s;

    (void)worker;
    job->status = kr_scenario_init(&s, &job->scenario, job->workload->context_max, &job->err);
    if (job->status != KR_OK)
        return;
    job->status = one(job, &s);
    kr_scenario_free(&s);
}

kr_status kr_study_batch(kr_study_job *jobs, uint32_t count, uint32_t threads, kr_err *err)
{
    kr_team *team;
    const kr_status status = kr_team_create(&team, threads, NULL, err);

    if (status != KR_OK)
        return status;
    kr_team_run(team, run_job, jobs, count);
    kr_team_destroy(team);
    return KR_OK;
}
