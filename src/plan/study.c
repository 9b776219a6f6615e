/* Runs over seeds, and the largest number of sessions under a limit. */
#include "plan/study.h"

#include <math.h>
#include <string.h>

kr_sim_options kr_study_rule(const kr_study_options *o, uint32_t sessions, uint64_t seed)
{
    kr_sim_options s = {
        .policy = o->policy,
        .promise = o->promise,
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

/* first: the first seed's run where it is known already, or NULL. */
static kr_status run_seeds(const kr_scenario *scenario, const kr_plan_workload *workload,
                           const kr_study_options *options, uint32_t sessions, const kr_sim_result *first,
                           kr_study_result *result, kr_err *err)
{
    kr_study_result r = {.sessions = sessions, .seeds = options->seeds};
    double rate[KR_STUDY_SEEDS_MAX], sum = 0.0, squares = 0.0;

    if (options->seeds == 0 || options->seeds > KR_STUDY_SEEDS_MAX)
        return kr_fail(err, KR_E_ARG, "plan: %u seeds, must be 1 to %d", options->seeds, KR_STUDY_SEEDS_MAX);
    for (uint32_t i = 0; i < options->seeds; i++) {
        kr_sim_result one;
        kr_status status = KR_OK;
        double p99;

        if (i == 0 && first != NULL)
            one = *first;
        else
            status = run_one(scenario, workload, options, sessions, options->seed + i, &one, err);
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

kr_status kr_study_run(const kr_scenario *scenario, const kr_plan_workload *workload,
                       const kr_study_options *options, uint32_t sessions, kr_study_result *result,
                       kr_err *err)
{
    return run_seeds(scenario, workload, options, sessions, NULL, result, err);
}

/* ---- the largest number ---- */

static bool close_enough(uint32_t good, uint32_t bad) { return bad - good <= 1 || (bad - good) * 50 <= good; }

static bool held(const kr_sim_result *r, uint32_t sessions, kr_err *err)
{
    if ((r->admitted - r->finished) * 100 >= (uint64_t)sessions * 99)
        return true;
    (void)kr_fail(err, KR_E_LIMIT, "memory for %llu of %u sessions",
                  (unsigned long long)(r->admitted - r->finished), sessions);
    return false;
}

/* The most sessions that memory holds when a run begins, which one step shows. */
static kr_status most_held(const kr_scenario *scenario, const kr_plan_workload *workload,
                           const kr_study_options *options, uint32_t *most, kr_err *binding, kr_err *err)
{
    static const uint32_t SESSIONS_MAX = 1 << 17;
    uint32_t good = 0, bad = 0, next = 256;

    while (bad == 0 || !close_enough(good, bad)) {
        kr_sim_options rule = kr_study_rule(options, next, options->seed);
        kr_sim_result r;
        kr_status status;

        rule.steps_max = 1;
        status = kr_sim_run(&scenario->program, &scenario->hardware, &workload->view, &rule, NULL, &r, err);
        if (status != KR_OK)
            return status;
        if (held(&r, next, binding))
            good = next;
        else
            bad = next;
        if (good == SESSIONS_MAX)
            break;
        next = bad == 0 ? (good * 4 < SESSIONS_MAX ? good * 4 : SESSIONS_MAX) : good + (bad - good) / 2;
        if (next == 0)
            return kr_fail(err, KR_E_LIMIT, "%s", binding->text);
    }
    *most = good;
    return KR_OK;
}

/* KR_E_LIMIT: the time between tokens, or memory, is over; text says which. */
static kr_status holds(const kr_scenario *scenario, const kr_plan_workload *workload,
                       const kr_study_options *options, uint32_t sessions, kr_sim_result *r, kr_err *err)
{
    const kr_status status = run_one(scenario, workload, options, sessions, options->seed, r, err);

    if (status != KR_OK)
        return status;
    if ((double)r->tbt_p99_ns * 1e-9 > options->slo_s)
        return kr_fail(err, KR_E_LIMIT, "P99 of %.1f ms with %u sessions, the limit is %.1f ms",
                       (double)r->tbt_p99_ns * 1e-6, sessions, options->slo_s * 1e3);
    return held(r, sessions, err) ? KR_OK : KR_E_LIMIT;
}

/* Between good and bad: where a line through the last two P99s meets the limit, kept off both ends; in the
 * middle when that says nothing. */
static uint32_t next_probe(uint32_t good, double good_s, uint32_t bad, double bad_s, double slo_s)
{
    const uint32_t width = bad - good, edge = width / 8 + 1;
    double at = 0.5;

    if (good == 0 && bad_s > slo_s)
        at = 0.98 * slo_s / bad_s;
    else if (bad_s > slo_s && good_s > 0.0)
        at = (slo_s - good_s) / (bad_s - good_s);
    if (at * width < edge)
        return good + (edge < width ? edge : width / 2);
    return at * width > width - edge ? bad - edge : good + (uint32_t)(at * width);
}

kr_status kr_study_find_max(const kr_scenario *scenario, const kr_plan_workload *workload,
                            const kr_study_options *options, kr_study_result *result, kr_err *err)
{
    uint32_t good = 0, bad = 0, next = 0, probes = 0;
    double good_s = 0.0, bad_s = 0.0;
    kr_sim_result first = {0};
    kr_err binding = {0};
    kr_status status = most_held(scenario, workload, options, &next, &binding, err);

    if (status != KR_OK)
        return status;
    /* Memory may bind: then the largest number that it holds is the answer at once. */
    while (bad == 0 ? good == 0 : !close_enough(good, bad)) {
        kr_sim_result r = {0};
        kr_err why = {0};

        status = holds(scenario, workload, options, next, &r, &why);
        probes++;
        if (status == KR_OK) {
            good = next;
            good_s = (double)r.tbt_p99_ns * 1e-9;
            first = r;
        } else if (status == KR_E_LIMIT) {
            bad = next;
            bad_s = (double)r.tbt_p99_ns * 1e-9;
            binding = why;
        } else {
            return kr_fail(err, status, "%s", why.text);
        }
        if (bad == 1)
            return kr_fail(err, KR_E_LIMIT, "%s", binding.text);
        if (bad != 0)
            next = next_probe(good, good_s, bad, bad_s, options->slo_s);
    }
    status = run_seeds(scenario, workload, options, good, &first, result, err);
    if (status == KR_OK) {
        result->probes = probes;
        memcpy(result->bound, binding.text, sizeof result->bound);
    }
    return status;
}
