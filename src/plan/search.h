/* The configuration search: every split of the power between compute and memory devices, every expert
 * and tensor parallelism and number of micro-batches, at the most sessions that keep the limit. */
#ifndef KR_PLAN_SEARCH_H
#define KR_PLAN_SEARCH_H

#include <stdio.h>

#include "plan/batch.h"

enum { KR_PLAN_POINTS_MAX = 1024, KR_PLAN_FACTORS = 7 };

typedef struct {
    kr_scenario_options base; /* system, model, method, data; the searched fields are overwritten */
    kr_study_options study;
    const kr_plan_workload *workload;
    double watts;      /* bound on TDP */
    uint32_t tp_max;   /* 1, 2, 4, ... up to it */
    bool gpu_only_too; /* also points without memory devices, for comparison */
    uint32_t threads;
    const kr_ranks *ranks; /* that share the points, or NULL */
    double swing;          /* of each factor of the tornado, 0.2 = +-20 % */
} kr_search_options;

typedef struct {
    kr_study_job *job;              /* [points]; share is set for the best alone */
    bool *pareto;                   /* [points]: none better in tokens/s/W, P99 and sessions together */
    char (*why)[KR_ERR_TEXT_BYTES]; /* [points]: why rejected; empty on the front */
    uint32_t points;
    uint32_t best,
        second; /* by tokens/s/W; UINT32_MAX when there is none; second: of another system or split */
    /* Tornado around the best: its tokens/s/W with one factor at 1 - swing and 1 + swing. */
    const char *factor[KR_PLAN_FACTORS];
    double low[KR_PLAN_FACTORS], high[KR_PLAN_FACTORS];
} kr_search;

/* KR_E_ARG, KR_E_MEMORY; a search in which nothing fits is no error: best is UINT32_MAX. */
kr_status kr_search_run(const kr_search_options *options, kr_search *search, kr_err *err);
void kr_search_free(kr_search *search);

/* The n-th factor's name, and the scenario with it multiplied. */
const char *kr_plan_factor(kr_plan_factors *factors, int n, double by);

/* Appends all points to the table runs of an SQLite file, which is made where it is not there.
 * KR_E_IO. */
kr_status kr_search_store(const kr_search *search, const char *path, const char *trace, kr_err *err);

#endif
