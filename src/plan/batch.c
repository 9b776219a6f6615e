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

/* ---- ranks ---- */

/* What a job leaves behind, without pointers, so that other processes can have it. */
typedef struct {
    kr_status status;
    kr_err err;
    kr_study_result result;
    double tdp_w, weight_gb, share[KR_OP_KINDS];
} outcome;

static kr_status share_jobs(kr_study_job *jobs, uint32_t count, const kr_ranks *ranks, kr_err *err)
{
    outcome *all = kr_alloc((count + 1) * sizeof *all);
    kr_status status;

    if (all == NULL)
        return kr_fail(err, KR_E_MEMORY, "plan: no memory for %u points", count);
    for (uint32_t i = 0; i < count; i++) {
        const kr_study_job *j = &jobs[i];

        if (!kr_ranks_owns(ranks, i))
            continue;
        all[i] = (outcome){.status = j->status,
                           .err = j->err,
                           .result = j->result,
                           .tdp_w = j->tdp_w,
                           .weight_gb = j->weight_gb};
        memcpy(all[i].share, j->share, sizeof all[i].share);
    }
    status = ranks->share(ranks, all, sizeof *all, count, err);
    for (uint32_t i = 0; i < count && status == KR_OK; i++) {
        jobs[i].status = all[i].status;
        jobs[i].err = all[i].err;
        jobs[i].result = all[i].result;
        jobs[i].tdp_w = all[i].tdp_w;
        jobs[i].weight_gb = all[i].weight_gb;
        memcpy(jobs[i].share, all[i].share, sizeof jobs[i].share);
    }
    kr_free(all);
    return status;
}

/* Jobs of this rank, one after another. */
typedef struct {
    kr_study_job *jobs;
    uint32_t first, step;
} own_jobs;

static void run_own(void *context, uint32_t part, uint32_t worker)
{
    const own_jobs *own = context;

    run_job(own->jobs, own->first + part * own->step, worker);
}

kr_status kr_study_batch(kr_study_job *jobs, uint32_t count, uint32_t threads, const kr_ranks *ranks,
                         kr_err *err)
{
    own_jobs own = {
        .jobs = jobs, .first = ranks != NULL ? ranks->rank : 0, .step = ranks != NULL ? ranks->count : 1};
    const uint32_t mine = count > own.first ? (count - own.first + own.step - 1) / own.step : 0;
    kr_team *team;
    kr_status status = KR_OK;

    /* A rank that could not come this far is heard before the work, which may take hours. */
    if (ranks != NULL && ranks->count > 1)
        status = ranks->share(ranks, NULL, 0, 0, err);
    if (status == KR_OK)
        status = kr_team_create(&team, threads, NULL, err);
    if (status != KR_OK)
        return status;
    kr_team_run(team, run_own, &own, mine);
    kr_team_destroy(team);
    return ranks != NULL && ranks->count > 1 ? share_jobs(jobs, count, ranks, err) : KR_OK;
}
