/* The first steps of a run as a Chrome trace: one track for the slowest compute rank, the slowest
 * memory device, its link and the network of the experts, with arrows between micro-batches. */
#ifndef KR_PLAN_TIMELINE_H
#define KR_PLAN_TIMELINE_H

#include <stdio.h>

#include "plan/study.h"

enum { KR_TIMELINE_STEPS_MAX = 64 };

/* Runs steps steps with the first seed. KR_E_ARG, KR_E_MEMORY, KR_E_IO, and what the run returns. */
kr_status kr_timeline_write(const kr_scenario *scenario, const kr_plan_workload *workload,
                            const kr_study_options *options, uint32_t sessions, uint32_t steps, FILE *out,
                            kr_err *err);

#endif
