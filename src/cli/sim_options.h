/* What karat sim and karat plan ask alike: the rows of their options, and the load and tables that these
 * name. A command's options begin with a kr_sim_options_common, so that the rows' offsets are its own. */
#ifndef KR_CLI_SIM_OPTIONS_H
#define KR_CLI_SIM_OPTIONS_H

#include "cli/options.h"
#include "plan/study.h"

typedef struct {
    kr_scenario_options scenario;
    kr_study_options study;
    const char *trace, *tables, *html;
    uint32_t trace_sessions, block_tokens;
    int system;
    double slo_ms, think_mean_s;
    bool json, think, agents;
} kr_sim_common;

/* The load and the measured tables that the options name. */
typedef struct {
    kr_trace trace;
    kr_plan_workload workload;
    kr_device_tables *tables; /* or NULL */
} kr_sim_inputs;

/* Reads them, and completes the scenario and the study from the options. KR_E_ARG when the options
 * contradict each other. kr_sim_inputs_free is due only after KR_OK. */
kr_status kr_sim_inputs_open(kr_sim_common *common, kr_sim_inputs *inputs, kr_err *err);
void kr_sim_inputs_free(kr_sim_inputs *inputs);

#define KR_SIM_AT(field) offsetof(kr_sim_common, field)

/* clang-format off */
#define KR_SIM_OPTIONS_SYSTEM                                                                           \
    {.name = "model", .type = KR_OPT_STRING, .at = KR_SIM_AT(scenario.model), .value = "NAME|FILE",     \
     .help = "a name in data/models, or a descriptor"},                                                 \
    {.name = "system", .type = KR_OPT_CHOICE, .at = KR_SIM_AT(system), .choices = kr_system_names,      \
     .value = "NAME", .help = "what runs it"},                                                          \
    {.name = "method", .type = KR_OPT_STRING, .at = KR_SIM_AT(scenario.method), .value = "NAME",        \
     .help = "attention method; native is the model's own"},                                            \
    {.name = "budget", .type = KR_OPT_U32, .at = KR_SIM_AT(scenario.budget), .min = 1,                  \
     .value = "TOKENS", .help = "tokens attended; without it the method's own number"},                 \
    {.name = "compute", .type = KR_OPT_STRING, .at = KR_SIM_AT(scenario.compute), .value = "FILE",      \
     .help = "descriptor of the compute device instead of the system's"},                               \
    {.name = "memory", .type = KR_OPT_STRING, .at = KR_SIM_AT(scenario.memory), .value = "FILE",        \
     .help = "descriptor of the memory device instead of the system's"},                                \
    {.name = "tables", .type = KR_OPT_STRING, .at = KR_SIM_AT(tables), .value = "FILE",                 \
     .help = "times measured on the compute device (tools/import_aiconfigurator.py)"},                  \
    {.name = "data", .type = KR_OPT_STRING, .at = KR_SIM_AT(scenario.data), .value = "FOLDER",          \
     .help = "folder with models/ and devices/"}

#define KR_SIM_OPTIONS_LOAD                                                                             \
    {.name = "trace", .type = KR_OPT_STRING, .at = KR_SIM_AT(trace), .value = "FILE|FOLDER|NAME",       \
     .help = "trace, or the synthetic swe-pro, swe-chat, kvct-like"},                                   \
    {.name = "trace-sessions", .type = KR_OPT_U32, .at = KR_SIM_AT(trace_sessions), .min = 1,           \
     .max = 1 << 16, .value = "N", .help = "sessions of a synthetic trace"},                            \
    {.name = "block-size", .type = KR_OPT_U32, .at = KR_SIM_AT(block_tokens), .min = 1, .max = 1 << 20, \
     .value = "TOKENS", .help = "block size of a Mooncake trace, which does not state it; without it 512"}, \
    {.name = "think", .type = KR_OPT_FLAG, .at = KR_SIM_AT(think),                                      \
     .help = "keep the trace's think times between turns"},                                             \
    {.name = "think-mean", .type = KR_OPT_REAL, .at = KR_SIM_AT(think_mean_s), .real_max = 3600,        \
     .value = "SECONDS", .help = "think times drawn from an exponential distribution of this mean"},    \
    {.name = "sub-agents", .type = KR_OPT_FLAG, .at = KR_SIM_AT(agents),                                \
     .help = "sub-agents are sessions too"},                                                            \
    {.name = "slo-ms", .alias = "slo", .type = KR_OPT_REAL, .at = KR_SIM_AT(slo_ms), .real_min = 0.1,   \
     .real_max = 1e6, .value = "MS", .help = "P99 time between tokens"}

#define KR_SIM_OPTIONS_RUN                                                                              \
    {.name = "paper-window", .type = KR_OPT_FLAG, .at = KR_SIM_AT(study.paper_window),                  \
     .help = "250K tokens or 300 s, the first 20 % left out; without it the run is long and its "      \
             "warm-up tested"},                                                                        \
    {.name = "steps", .type = KR_OPT_U64, .at = KR_SIM_AT(study.steps_max), .min = 1, .max = 10000000,  \
     .value = "N", .help = "steps of a run without --paper-window"},                                    \
    {.name = "seed", .type = KR_OPT_U64, .at = KR_SIM_AT(study.seed), .value = "N", .help = "first seed"}

#define KR_SIM_OPTIONS_OUTPUT                                                                           \
    {.name = "json", .type = KR_OPT_FLAG, .at = KR_SIM_AT(json), .help = "print one JSON object"},      \
    {.name = "html", .type = KR_OPT_STRING, .at = KR_SIM_AT(html), .value = "FILE",                     \
     .help = "write a page with charts"}
/* clang-format on */

#endif
