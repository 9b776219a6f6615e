/* What can be rederived exactly (KARAT paper, Tables II to V, III-B and III-D). */
#include "plan/rederive.h"

#include <string.h>

#include "plan/scenario.h"

typedef struct {
    kr_rederived *list;
    unsigned count;
} sheet;

static void add(sheet *s, const char *id, const char *what, const char *unit, double paper, double ours,
                double tolerance)
{
    if (s->count < KR_REDERIVED_MAX)
        s->list[s->count++] = (kr_rederived){id, what, unit, paper, ours, tolerance};
}

/* Bytes over the link for one row in one layer of the kind of op, and over all layers. */
static double move_of(const kr_program *p, kr_op_kind kind, double *all)
{
    double largest = 0.0;

    for (uint32_t i = 0; i < p->first_of_micro_batch[1]; i++) {
        const double bytes = (double)p->cost[p->ops[i].cost].per_row.move_bytes;

        if (p->ops[i].kind != kind)
            continue;
        largest = bytes > largest ? bytes : largest;
        *all += bytes;
    }
    return largest;
}

typedef struct {
    const char *model;
    const char *kv, *index, *oi, *attend, *million, *cut; /* what each line says */
    double kv_kb, index_kb, score_oi, attend_oi, million_gb, ratio;
} published;

static double score_intensity(const kr_model *m)
{
    const double bytes = m->index_dim * (double)kr_dtype_bytes(m->index_dtype);

    return 2.0 * m->index_heads * m->index_dim / bytes;
}

/* Rope dimensions are left out of the FLOPs and counted in the bytes, as the paper does. */
static double attend_intensity(const kr_model *m)
{
    if (m->attention == KR_ATTENTION_MLA)
        return 2.0 * m->heads * (2.0 * m->kv_lora) / (2.0 * (m->kv_lora + m->rope_dim));
    return (double)m->heads / m->kv_heads;
}

/* The paper's cluster of 16 GPUs and 192 devices with contexts of a million tokens. */
static kr_status open_karat(kr_scenario *scenario, const char *data, const char *model,
                            uint32_t micro_batches, kr_err *err)
{
    const kr_scenario_options options = {.data = data,
                                         .model = model,
                                         .system = KR_SYSTEM_KARAT,
                                         .method = "native",
                                         .gpus = 16,
                                         .devices = 192,
                                         .ep = 16,
                                         .tp = 1,
                                         .micro_batches = micro_batches,
                                         .factors = KR_PLAN_NO_FACTORS};

    return kr_scenario_init(scenario, &options, 1 << 20, err);
}

static kr_status of_model(sheet *s, const char *data, const published *p, kr_err *err)
{
    kr_scenario scenario;
    const kr_status status = open_karat(&scenario, data, p->model, 1, err);
    const kr_model *m = &scenario.model;

    if (status != KR_OK)
        return status;
    const double kv = (double)kr_model_kv_token_bytes(m),
                 index = (double)kr_model_index_token_bytes(m, false);
    add(s, "E-4", p->kv, "KB", p->kv_kb, kv * 1e-3, 0.002);
    add(s, "E-4", p->index, "KB", p->index_kb, index * 1e-3, 0.01);
    add(s, "E-2", p->oi, "FLOP/B", p->score_oi, score_intensity(m), 0.001);
    add(s, "E-2", p->attend, "FLOP/B", p->attend_oi, attend_intensity(m), 0.004);
    add(s, "E-12", p->million, "GB", p->million_gb, (kv + index) * 1e-3, 0.002);
    add(s, "E-15", p->cut, "x", p->ratio, kv / index, 0.06);
    kr_scenario_free(&scenario);
    return KR_OK;
}

static kr_status transfers(sheet *s, const char *data, const char *model, bool deepseek, kr_err *err)
{
    kr_scenario scenario;
    double all = 0.0;
    const kr_status status = open_karat(&scenario, data, model, 1, err);

    if (status != KR_OK)
        return status;
    const kr_program *p = &scenario.program;
    const double index = move_of(p, KR_OP_SEND_INDEX, &all), query = move_of(p, KR_OP_SEND_QKV, &all);
    const double output = move_of(p, KR_OP_RETURN_OUT, &all);
    const double kv = (double)kr_model_kv_elements(&scenario.model) * 2;
    add(s, "E-17",
        deepseek ? "DeepSeek-V3.2 index query and key, a layer" : "MiniMax-M3 index query and key, a layer",
        "B", deepseek ? 8576 : 1280, index, 0.01);
    add(s, "E-17",
        deepseek ? "DeepSeek-V3.2 attention query, a layer" : "MiniMax-M3 attention query, a layer", "B",
        deepseek ? 49152 : 16384, query - kv, 0.001);
    add(s, "E-17",
        deepseek ? "DeepSeek-V3.2 attention output, a layer" : "MiniMax-M3 attention output, a layer", "B",
        deepseek ? 131072 : 16384, output, 0.001);
    add(s, "E-18",
        deepseek ? "DeepSeek-V3.2 transfers of a step at 50 GB/s"
                 : "MiniMax-M3 transfers of a step at 50 GB/s",
        "us", deepseek ? 231.74 : 43.24, all / 50e9 * 1e6, 0.01);
    kr_scenario_free(&scenario);
    return KR_OK;
}

static kr_status of_devices(sheet *s, const char *data, kr_err *err)
{
    kr_scenario scenario;
    const kr_status status = open_karat(&scenario, data, "deepseek-v3.2", 2, err);

    if (status != KR_OK)
        return status;
    const kr_device_model *k = &scenario.memory, *h = &scenario.compute;
    add(s, "E-13", "HBM of an 8-GPU node", "TB", 1.13, 8 * h->memory_bytes * 1e-12, 0.01);
    add(s, "E-22", "FP8 peak of 18 cores, by cores and clock of H200", "TFLOPS", 250,
        h->flops_fp8 * 1e-12 * k->cores / h->cores * k->clock_hz / h->clock_hz, 0.01);
    add(s, "E-23", "ridge of the memory device", "FLOP/B", 208, k->flops_fp8 / k->memory_bytes_per_s, 0.01);
    add(s, "E-24", "power of a node of 32 devices", "kW", 5.6, 32 * k->tdp_w * 1e-3, 0.001);
    add(s, "E-24", "memory of a node of 32 devices", "TB", 16, 32 * k->memory_bytes * 1e-12, 0.03);
    add(s, "E-24", "bandwidth of a node of 32 devices", "TB/s", 38.4, 32 * k->memory_bytes_per_s * 1e-12,
        0.001);
    add(s, "E-24", "BF16 peak of a node of 32 devices", "TFLOPS", 4000, 32 * k->flops_bf16 * 1e-12, 0.001);
    add(s, "E-44", "power of 16 GPUs and 192 devices", "kW", 44.8, scenario.tdp_w * 1e-3, 1e-9);
    add(s, "E-19", "LPDDR5X over HBM3, capacity a watt", "x", 19, (512.0 / 1.0) / (80.0 / 3.0), 0.02);
    add(s, "E-19", "LPDDR5X over HBM3, bandwidth a watt", "x", 0.8, (1126.0 / 1.0) / (4198.4 / 3.0), 0.02);
    add(s, "E-27", "AttAcc memory of a node of 32", "TB", 2.2, 32 * 67.2e-3, 0.03);
    kr_scenario_free(&scenario);
    return KR_OK;
}

kr_status kr_rederive(const char *data, kr_rederived *list, unsigned *count, kr_err *err)
{
    static const published models[] = {
        {"deepseek-v3.2", "DeepSeek-V3.2 KV of a token", "DeepSeek-V3.2 index of a token",
         "DeepSeek-V3.2 intensity of Score", "DeepSeek-V3.2 intensity of Attend",
         "DeepSeek-V3.2 KV and index of 1M tokens", "DeepSeek-V3.2 KV over index", 70.3, 7.8, 128, 228, 78.1,
         9.0},
        {"glm-5.2", "GLM-5.2 KV of a token", "GLM-5.2 index of a token", "GLM-5.2 intensity of Score",
         "GLM-5.2 intensity of Attend", "GLM-5.2 KV and index of 1M tokens", "GLM-5.2 KV over index", 89.9,
         2.7, 64, 114, 92.5, 33.4},
        {"minimax-m3", "MiniMax-M3 KV of a token", "MiniMax-M3 index of a token",
         "MiniMax-M3 intensity of Score", "MiniMax-M3 intensity of Attend",
         "MiniMax-M3 KV and index of 1M tokens", "MiniMax-M3 KV over index", 122.9, 14.6, 4, 16, 137.5, 8.4},
    };
    sheet s = {.list = list};
    kr_status status = KR_OK;

    for (int i = 0; i < 3 && status == KR_OK; i++)
        status = of_model(&s, data, &models[i], err);
    if (status == KR_OK)
        status = transfers(&s, data, "deepseek-v3.2", true, err);
    if (status == KR_OK)
        status = transfers(&s, data, "minimax-m3", false, err);
    if (status == KR_OK)
        status = of_devices(&s, data, err);
    if (status == KR_OK)
        *count = s.count;
    return status;
}
