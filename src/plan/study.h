/* One question to the simulator: a run under a rule of measurement, over seeds, or the largest number
 * of sessions that keeps a limit. */
#ifndef KR_PLAN_STUDY_H
#define KR_PLAN_STUDY_H

#include "plan/scenario.h"

enum { KR_STUDY_SEEDS_MAX = 64 };

typedef struct {
    kr_step_policy policy;
    kr_promise promise;
    bool rebalance;
    bool paper_window;  /* 250K tokens or 300 s, the first 20 % left out; else to stationarity */
    uint64_t steps_max; /* of a run to stationarity */
    uint64_t seed;      /* of the first run; the next ones follow */
    uint32_t seeds;
    double slo_s;               /* P99 time between tokens */
    const double *expert_share; /* or NULL, see sim.h */
    bool share_by_layer;
    bool balance_experts;
} kr_study_options;

/* The simulator's options for a run of sessions in flight. */
kr_sim_options kr_study_rule(const kr_study_options *options, uint32_t sessions, uint64_t seed);

typedef struct {
    uint32_t sessions, seeds;
    kr_sim_result first;             /* of the first seed */
    double tokens_per_s, half_width; /* mean over seeds, 95 % by Student's t; one seed: batch means */
    double tokens_per_s_per_w;
    double p99_s;                  /* largest of the seeds */
    uint32_t stationary;           /* seeds whose run was */
    uint32_t probes;               /* runs that finding sessions took */
    char bound[KR_ERR_TEXT_BYTES]; /* why not more sessions; empty when that was not asked */
} kr_study_result;

kr_status kr_study_run(const kr_scenario *scenario, const kr_plan_workload *workload,
                       const kr_study_options *options, uint32_t sessions, kr_study_result *result,
                       kr_err *err);

/* The largest number of sessions, to 2 %, at which the first seed's P99 is at most slo_s and at least
 * 99 % of the sessions are held, when the run begins and at its end: more would wait for memory. Both are
 * taken as monotonic in the number; how many memory holds is found first, since one step shows it. Then
 * runs all seeds with it; where a later seed breaks the limit, that shows in p99_s.
 * KR_E_LIMIT: not even one session keeps the limit; the text says which limit binds. */
kr_status kr_study_find_max(const kr_scenario *scenario, const kr_plan_workload *workload,
                            const kr_study_options *options, kr_study_result *result, kr_err *err);

#endif
