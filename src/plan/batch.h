/* Many studies at once: independent points spread over threads, results by index, so that the outcome
 * does not depend on the threads. */
#ifndef KR_PLAN_BATCH_H
#define KR_PLAN_BATCH_H

#include "plan/study.h"
#include "ranks/ranks.h"

typedef struct {
    kr_scenario_options scenario;
    kr_study_options study;
    const kr_plan_workload *workload;
    const char *trace; /* its name in reports, or NULL */
    double skew;       /* expert shares fall as number^-skew over a fixed shuffle; 0 = uniform */
    uint32_t sessions; /* 0: find the most that keep the limit */
    bool breakdown;    /* shares of a step's time too */
    /* Out. */
    kr_status status; /* why the point cannot be is in err */
    kr_err err;
    kr_study_result result;
    double tdp_w, weight_gb;
    double share[KR_OP_KINDS]; /* of a step's time, ops of the slowest rank (compute) or device (others);
                                  only with breakdown */
} kr_study_job;

/* Runs jobs [count] on threads, and shares them out over ranks (NULL: none). KR_E_MEMORY, KR_E_LOST;
 * failures of single points are in the jobs. */
kr_status kr_study_batch(kr_study_job *jobs, uint32_t count, uint32_t threads, const kr_ranks *ranks,
                         kr_err *err);

#endif
