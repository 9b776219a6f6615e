/* Runs over seeds, and the largest number of sessions under a limit. */
#include "plan/study.h"

#include <math.h>
#include <string.h>

kr_sim_options kr_study_rule(const kr_study_options *o, uint32_t sessions, uint64_t seed)
{
    kr_sim_options s = {
        .policy = o->policy,
        .rebalance = o->rebalance,
        .sessions = sessions,
        .seed = seed,
        .expert_share = o->expert_share,
        .share_by_layer = o->share_by_layer,
        .balance_experts = o->balance_experts,
    };

    if (o->paper_window) {
        s.tokens_max = 250000;
        s.time_max_ns = UINT64_C(300000000000);
        s.warmup_percent = 20;
    } else {
        s.steps_max = o->steps_max;
        s.warmup_by_test = true;
    }
    return s;
}

/* Two-sided 95 % quantile of Student's t; above 30 degrees of freedom the normal's. */
static double student(uint32_t degrees)
{
    static const double t[] = {0,     12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                               2.201, 2.179,  2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080,
                               2.074, 2.069,  2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};

    return degrees < sizeof t / sizeof t[0] ? t[degrees] : 1.960;
}

static kr_status run_one(const kr_scenario *scenario, const kr_plan_workload *workload,
                         const kr_study_options *options, uint32_t sessions, uint64_t seed,
                         kr_sim_result *result, kr_err *err)
{
    const kr_sim_options rule = kr_study_rule(options, sessions, seed);

    return kr_sim_run(&scenario->program, &scenario->hardware, &workload->view, &rule, NULL, result, err);
}

kr_status kr_study_run(const kr_scenario *scenario, const kr_plan_workload *workload,
                       const kr_study_options *options, uint32_t sessions, kr_study_result *result,
                       kr_err *err)
{
    kr_study_result r = {.sessions = sessions, .seeds = options->seeds};
    double rate[KR_STUDY_SEEDS_MAX], sum = 0.0, squares = 0.0;

    if (options->seeds == 0 || options->seeds > KR_STUDY_SEEDS_MAX)
        return kr_fail(err, KR_E_ARG, "plan: %u seeds, must be 1 to %d", options->seeds, KR_STUDY_SEEDS_MAX);
    for (uint32_t i = 0; i < options->seeds; i++) {
        kr_sim_result one;
        const kr_status status = run_one(scenario, workload, options, sessions, options->seed + i, &one, err);
        double p99;

        if (status != KR_OK)
            return status;
        if (i == 0)
            r.first = one;
        p99 = (double)one.tbt_p99_ns * 1e-9;
        r.p99_s = p99 > r.p99_s ? p99 : r.p99_s;
        r.stationary += one.stationary;
        rate[i] = one.tokens_per_s;
        sum += rate[i];
    }
    r.tokens_per_s = sum / options->seeds;
    for (uint32_t i = 0; i < options->seeds; i++)
        squares += (rate[i] - r.tokens_per_s) * (rate[i] - r.tokens_per_s);
    r.half_width = r.first.tokens_per_s_half_width;
    if (options->seeds > 1)
        r.half_width = student(options->seeds - 1) * sqrt(squares / (options->seeds - 1) / options->seeds);
    r.tokens_per_s_per_w = r.tokens_per_s / scenario->tdp_w;
    *result = r;
    return KR_OK;
}

/* KR_OK: holds; KR_E_LIMIT: the time between tokens, or memory, is over; text says which. */
static kr_status holds(const kr_scenario *scenario, const kr_plan_workload *workload,
                       const kr_study_options *options, uint32_t sessions, kr_err *err)
{
    kr_sim_result r;
    const kr_status status = run_one(scenario, workload, options, sessions, options->seed, &r, err);

    if (status != KR_OK)
        return status;
    if ((double)r.tbt_p99_ns * 1e-9 > options->slo_s)
        return kr_fail(err, KR_E_LIMIT, "P99 of %.1f ms with %u sessions, the limit is %.1f ms",
                       (double)r.tbt_p99_ns * 1e-6, sessions, options->slo_s * 1e3);
    if ((r.admitted - r.finished) * 100 < (uint64_t)sessions * 99)
        return kr_fail(err, KR_E_LIMIT, "memory for %llu of %u sessions",
                       (unsigned long long)(r.admitted - r.finished), sessions);
    return KR_OK;
}

kr_status kr_study_find_max(const kr_scenario *scenario, const kr_plan_workload *workload,
                            const kr_study_options *options, kr_study_result *result, kr_err *err)
{
    static const uint32_t SESSIONS_MAX = 1 << 17;
    uint32_t good = 0, bad = 0, next = 256, probes = 0;
    kr_err binding = {0};
    kr_status status;

    while (bad == 0 || (bad - good > 1 && (bad - good) * 50 > good)) {
        kr_err why = {0};

        status = holds(scenario, workload, options, next, &why);
        probes++;
        if (status == KR_OK) {
            good = next;
        } else if (status == KR_E_LIMIT) {
            bad = next;
            binding = why;
        } else {
            return kr_fail(err, status, "%s", why.text);
        }
        if (good == SESSIONS_MAX)
            break;
        next = bad == 0 ? good * 4 : good + (bad - good) / 2;
        if (next > SESSIONS_MAX)
            next = SESSIONS_MAX;
        if (next == 0)
            return kr_fail(err, KR_E_LIMIT, "%s", binding.text);
    }
    status = kr_study_run(scenario, workload, options, good, result, err);
    if (status == KR_OK) {
        result->probes = probes;
        memcpy(result->bound, binding.text, sizeof result->bound);
    }
    return status;
}
