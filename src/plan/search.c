/* Enumeration, dominance and sensitivity. Points are numbered in the order of enumeration, and ties go
 * to the smaller number. */
#include "plan/search.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { NODE_GPUS = 8 };

const char *kr_plan_factor(kr_plan_factors *factors, int n, double by)
{
    static const struct {
        const char *name;
        size_t at;
    } rows[KR_PLAN_FACTORS] = {
        {"link bytes a second", offsetof(kr_plan_factors, link_bytes)},
        {"link latency", offsetof(kr_plan_factors, link_latency)},
        {"cores of a memory device", offsetof(kr_plan_factors, cores)},
        {"bandwidth of a memory device", offsetof(kr_plan_factors, memory_bytes_per_s)},
        {"FLOP/s of compute", offsetof(kr_plan_factors, compute_flops)},
        {"bandwidth of compute", offsetof(kr_plan_factors, compute_memory)},
        {"times of the fitted table", offsetof(kr_plan_factors, curves)},
    };

    *(double *)((char *)factors + rows[n].at) *= by;
    return rows[n].name;
}

static void push(const kr_search_options *o, kr_search *s, kr_scenario_options point)
{
    kr_study_job *job;

    if (s->points == KR_PLAN_POINTS_MAX)
        return;
    job = &s->job[s->points++];
    *job = (kr_study_job){.scenario = point, .study = o->study, .workload = o->workload};
    job->study.seeds = 1;
}

/* All parallelism of one split. */
static void add_split(const kr_search_options *o, kr_search *s, kr_system system, uint32_t gpus,
                      uint32_t devices)
{
    kr_scenario_options p = o->base;

    p.system = system;
    p.gpus = gpus;
    p.devices = devices;
    for (p.tp = 1; p.tp <= o->tp_max && p.tp <= gpus; p.tp *= 2)
        for (p.ep = NODE_GPUS; p.ep <= gpus; p.ep *= 2)
            for (p.micro_batches = 1; p.micro_batches <= 2; p.micro_batches++)
                push(o, s, p);
}

/* Splits in whole nodes: compute nodes doubling, the rest of the power in memory nodes rounded down. */
static void enumerate(const kr_search_options *o, kr_search *s)
{
    for (uint32_t nodes = 1; nodes * NODE_GPUS * 700.0 <= o->watts;
         nodes = nodes < 4 ? nodes + 1 : nodes + 2) {
        const uint32_t gpus = nodes * NODE_GPUS;
        uint32_t same = gpus, devices = kr_system_devices_for(o->base.system, o->watts, &same);

        while (devices >= 32 && gpus * 700.0 + devices * 175.0 > o->watts &&
               o->base.system == KR_SYSTEM_KARAT)
            devices -= 32;
        if (devices > 0)
            add_split(o, s, o->base.system, gpus, devices);
        if (o->gpu_only_too && (nodes + 1) * NODE_GPUS * 700.0 > o->watts)
            add_split(o, s, KR_SYSTEM_GPU_ONLY, gpus, 0);
    }
}

static bool worked(const kr_study_job *job) { return job->status == KR_OK; }

/* a is nowhere worse than b and somewhere better. */
static bool dominates(const kr_study_job *a, const kr_study_job *b)
{
    const kr_study_result *x = &a->result, *y = &b->result;

    return x->tokens_per_s_per_w >= y->tokens_per_s_per_w && x->p99_s <= y->p99_s &&
           x->sessions >= y->sessions &&
           (x->tokens_per_s_per_w > y->tokens_per_s_per_w || x->p99_s < y->p99_s ||
            x->sessions > y->sessions);
}

static void judge_one(const kr_search_options *o, kr_search *s, uint32_t i)
{
    const kr_study_job *job = &s->job[i];

    if (!worked(job)) {
        snprintf(s->why[i], sizeof s->why[i], "%s", job->err.text);
        return;
    }
    if (job->tdp_w > o->watts) {
        snprintf(s->why[i], sizeof s->why[i], "takes %.1f kW of %.1f", job->tdp_w * 1e-3, o->watts * 1e-3);
        return;
    }
    for (uint32_t k = 0; k < s->points; k++)
        if (worked(&s->job[k]) && s->job[k].tdp_w <= o->watts && dominates(&s->job[k], job)) {
            snprintf(s->why[i], sizeof s->why[i], "point %u has %.3g x the tokens/s/W at no cost", k,
                     s->job[k].result.tokens_per_s_per_w / job->result.tokens_per_s_per_w);
            return;
        }
    s->pareto[i] = true;
}

static bool same_split(const kr_study_job *a, const kr_study_job *b)
{
    return a->scenario.system == b->scenario.system && a->scenario.gpus == b->scenario.gpus &&
           a->scenario.devices == b->scenario.devices;
}

static uint32_t best_of(const kr_search_options *o, const kr_search *s, uint32_t but_not_split_of)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t i = 0; i < s->points; i++)
        if (worked(&s->job[i]) && s->job[i].tdp_w <= o->watts &&
            (but_not_split_of == UINT32_MAX || !same_split(&s->job[i], &s->job[but_not_split_of])) &&
            (best == UINT32_MAX ||
             s->job[i].result.tokens_per_s_per_w > s->job[best].result.tokens_per_s_per_w))
            best = i;
    return best;
}

static kr_status tornado(const kr_search_options *o, kr_search *s, kr_err *err)
{
    kr_study_job *jobs = kr_alloc(2 * KR_PLAN_FACTORS * sizeof *jobs);
    kr_status status;

    if (jobs == NULL)
        return kr_fail(err, KR_E_MEMORY, "plan: no memory for the sensitivities");
    for (int i = 0; i < 2 * KR_PLAN_FACTORS; i++) {
        jobs[i] = s->job[s->best];
        s->factor[i / 2] = kr_plan_factor(&jobs[i].scenario.factors, i / 2,
                                          i % 2 == 0 ? 1 - o->swing : 1 + o->swing);
    }
    status = kr_study_batch(jobs, 2 * KR_PLAN_FACTORS, o->threads, o->ranks, err);
    for (int i = 0; i < KR_PLAN_FACTORS && status == KR_OK; i++) {
        s->low[i] = worked(&jobs[2 * i]) ? jobs[2 * i].result.tokens_per_s_per_w : 0.0;
        s->high[i] = worked(&jobs[2 * i + 1]) ? jobs[2 * i + 1].result.tokens_per_s_per_w : 0.0;
    }
    kr_free(jobs);
    return status;
}

/* What the best point's step consists of, for its picture: a run of a few steps more. */
static kr_status break_down_best(const kr_search_options *o, kr_search *s, kr_err *err)
{
    kr_study_job job = s->job[s->best];
    kr_status status;

    job.breakdown = true;
    job.sessions = job.result.sessions;
    status = kr_study_batch(&job, 1, 1, o->ranks, err);
    if (status == KR_OK)
        memcpy(s->job[s->best].share, job.share, sizeof job.share);
    return status;
}

kr_status kr_search_run(const kr_search_options *options, kr_search *search, kr_err *err)
{
    kr_search s = {.job = kr_alloc(KR_PLAN_POINTS_MAX * sizeof *s.job),
                   .pareto = kr_alloc(KR_PLAN_POINTS_MAX * sizeof *s.pareto),
                   .why = kr_alloc(KR_PLAN_POINTS_MAX * sizeof *s.why)};
    kr_status status = KR_OK;

    if (s.job == NULL || s.pareto == NULL || s.why == NULL)
        status = kr_fail(err, KR_E_MEMORY, "plan: no memory for %d points", KR_PLAN_POINTS_MAX);
    if (status == KR_OK) {
        enumerate(options, &s);
        if (s.points == 0)
            status = kr_fail(err, KR_E_ARG, "plan: %.1f kW hold no node of %d GPUs with a memory node",
                             options->watts * 1e-3, NODE_GPUS);
    }
    if (status == KR_OK)
        status = kr_study_batch(s.job, s.points, options->threads, options->ranks, err);
    for (uint32_t i = 0; i < s.points && status == KR_OK; i++)
        judge_one(options, &s, i);
    if (status == KR_OK) {
        s.best = best_of(options, &s, UINT32_MAX);
        s.second = s.best != UINT32_MAX ? best_of(options, &s, s.best) : UINT32_MAX;
        if (s.best != UINT32_MAX)
            status = tornado(options, &s, err);
        if (status == KR_OK && s.best != UINT32_MAX)
            status = break_down_best(options, &s, err);
    }
    if (status != KR_OK)
        kr_search_free(&s);
    else
        *search = s;
    return status;
}

void kr_search_free(kr_search *search)
{
    kr_free(search->job);
    kr_free(search->pareto);
    kr_free(search->why);
    *search = (kr_search){0};
}
