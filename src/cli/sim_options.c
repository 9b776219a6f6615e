/* The load and the tables that options of karat sim and karat plan name. */
#include "cli/sim_options.h"

#include "workload/generate.h"

static kr_status read_trace(const kr_sim_common *c, kr_trace *trace, kr_err *err)
{
    const kr_trace_recipe *recipe = kr_trace_recipe_find(c->trace);

    return recipe != NULL ? kr_trace_generate(trace, recipe, c->trace_sessions, c->study.seed, err)
                          : kr_trace_read(trace, c->trace, c->block_tokens, err);
}

kr_status kr_sim_inputs_open(kr_sim_common *c, kr_sim_inputs *inputs, kr_err *err)
{
    const kr_plan_load load = {.think = c->think              ? KR_THINK_TRACE
                                        : c->think_mean_s > 0 ? KR_THINK_MEAN
                                                              : KR_THINK_NONE,
                               .think_s = c->think_mean_s,
                               .seed = c->study.seed,
                               .sub_agents = c->agents};
    kr_status status;

    *inputs = (kr_sim_inputs){0};
    if (c->think && c->think_mean_s > 0.0)
        return kr_fail(err, KR_E_ARG, "--think and --think-mean: think times are the trace's or drawn");
    status = read_trace(c, &inputs->trace, err);
    if (status != KR_OK)
        return status;
    status = kr_plan_workload_of(&inputs->trace, &load, &inputs->workload, err);
    if (status == KR_OK && c->tables != NULL)
        status = kr_device_tables_load(c->tables, &inputs->tables, err);
    if (status != KR_OK) {
        kr_sim_inputs_free(inputs);
        return status;
    }
    c->scenario.system = (kr_system)c->system;
    c->scenario.tables = inputs->tables;
    c->study.slo_s = c->slo_ms * 1e-3;
    return KR_OK;
}

void kr_sim_inputs_free(kr_sim_inputs *inputs)
{
    kr_device_tables_free(inputs->tables);
    kr_plan_workload_free(&inputs->workload);
    kr_trace_free(&inputs->trace);
    *inputs = (kr_sim_inputs){0};
}
