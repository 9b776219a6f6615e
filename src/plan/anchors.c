/* DeepSeek-V3 decoding with dense attention, expert parallelism over all GPUs. */
#include "plan/anchors.h"

#include <stdio.h>

/* Sessions of the first three: the source gives 64, 128 and 256 in flight with times to first token of
 * 2.03, 3.64 and 29.6 s and 1,024 tokens out; by Little's law 60.5, 117.7 and 152.6 of them decode.
 * Their context is 8,192 in and half of 1,024 out. H800 differs from H100 only in its links. */
#define INFERENCEX \
    "aiconfigurator-core 0.12.0 systems/silicon_sample.csv, dsr1_h200_sglang_fp8_disagg_8192x1024, cfg434"
#define SGLANG "lm-sys/lm-sys.github.io:blog/2025-05-05-large-scale-ep.md"

const kr_anchor kr_anchors[KR_ANCHORS] = {
    {"SGLang 0.5.8, batch 8 a GPU, 8K/1K", INFERENCEX, "h200", 8, 1, 61, 8704, 34.69},
    {"SGLang 0.5.8, batch 16 a GPU", INFERENCEX, "h200", 8, 1, 118, 8704, 40.62},
    {"SGLang 0.5.8, batch 32 a GPU", INFERENCEX, "h200", 8, 1, 153, 8704, 42.73},
    {"SGLang EP72, batch 256, KV 2,000, one batch", SGLANG ": 22,310 tokens/s a node less 25.5 %", "h100", 72,
     1, 18432, 2000, 115.2},
    {"SGLang EP72, batch 256, KV 2,000, two batches", SGLANG ": 22,282 tokens/s a node", "h100", 72, 2, 18432,
     2000, 91.9},
    {"DeepSeek profile EP128, batch 128, KV 4,096",
     SGLANG ": 18,598 tokens/s a node; deepseek-ai/profile-data", "h100", 128, 2, 16384, 4096, 55.1},
};

enum { PATH_BYTES = 1024, STEPS = 3 };

static kr_status run(const kr_scenario *s, const kr_anchor *a, kr_anchor_result *result, kr_err *err)
{
    const kr_sim_turn turn = {.context_tokens = a->context, .output_tokens = 100};
    const kr_sim_session session = {.turn = &turn, .turns = 1};
    const kr_sim_workload workload = {&session, 1};
    const kr_sim_options options = {.policy = KR_POLICY_SCMS, .sessions = a->sessions, .steps_max = STEPS};
    kr_sim_result r;
    const kr_status status = kr_sim_run(&s->program, &s->hardware, &workload, &options, NULL, &r, err);

    if (status != KR_OK)
        return status;
    result->ms = (double)r.elapsed_ns * 1e-6 / STEPS;
    for (int i = 0; i < KR_PROVENANCE_COUNT; i++)
        result->provenance[i] = r.provenance[i];
    return KR_OK;
}

static kr_status one(const char *data, kr_device_tables *const *tables, uint32_t count, const kr_anchor *a,
                     kr_anchor_result *result, kr_err *err)
{
    char path[PATH_BYTES];
    kr_scenario_options o = {.data = data,
                             .model = "deepseek-v3.2",
                             .system = KR_SYSTEM_GPU_ONLY,
                             .method = "dense",
                             .gpus = a->gpus,
                             .ep = a->gpus,
                             .tp = 1,
                             .micro_batches = a->micro_batches,
                             .compute = path,
                             .exact = true,
                             .factors = KR_PLAN_NO_FACTORS};
    kr_scenario s;
    kr_status status;

    snprintf(path, sizeof path, "%s/devices/%s.json", data, a->device);
    status = kr_scenario_init(&s, &o, a->context + 100, err);
    if (status != KR_OK)
        return status;
    for (uint32_t i = 0; i < count; i++)
        if (kr_device_tables_are_of(tables[i], s.compute.name))
            s.compute.tables = tables[i];
    status = run(&s, a, result, err);
    kr_scenario_free(&s);
    return status;
}

kr_status kr_anchors_run(const char *data, kr_device_tables *const *tables, uint32_t count,
                         kr_anchor_result result[KR_ANCHORS], kr_err *err)
{
    for (int i = 0; i < KR_ANCHORS; i++) {
        const kr_status status = one(data, tables, count, &kr_anchors[i], &result[i], err);

        if (status != KR_OK)
            return status;
    }
    return KR_OK;
}
