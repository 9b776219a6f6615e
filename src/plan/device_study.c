/* Verdicts and sweeps of a memory device. */
#include "plan/device_study.h"

#include <stdio.h>
#include <string.h>

enum { CONTEXT = 144000, GPUS = 16, NODE_DEVICES = 32, PATH_BYTES = 1024, LINKS = 5 };

static const double device_watts = 33.6e3, node_watts = 5600.0;

const char *const kr_device_models[KR_DEVICE_MODELS] = {"deepseek-v3.2", "glm-5.2", "minimax-m3"};

const kr_memory_type kr_memory_types[KR_DEVICE_MEMORIES] = {
    {"DDR5", 512e9, 89.6e9, 0.35},
    {"GDDR6", 32e9, 1536e9, 0.96},
    {"HBM3", 80e9, 4198.4e9, 3.0},
    {"LPDDR5X-8533", 512e9, 1126e9, 1.0},
};

static const char *const classes[KR_DEVICE_CLASSES] = {"h200", "duplex", "attacc", "spnm", "karat"};
static const double cores[KR_DEVICE_SWEEP] = {4, 8, 10, 14, 18, 22, 26, 32};
static const double links[LINKS] = {0.25, 0.5, 1, 2, 4};

static double narrowest_flops(const kr_device_model *d)
{
    return d->flops_fp8 > 0.0 ? d->flops_fp8 : d->flops_bf16 > 0.0 ? d->flops_bf16 : d->flops_f32;
}

kr_device_verdict kr_device_judge(const kr_device_model *d, const kr_device_model *h200)
{
    static const double LEAST_RIDGE = 128.0;
    kr_device_verdict v = {
        .capacity_per_w = d->memory_bytes / d->tdp_w / (h200->memory_bytes / h200->tdp_w),
        .bandwidth_per_w = d->memory_bytes_per_s / d->tdp_w / (h200->memory_bytes_per_s / h200->tdp_w),
        .ridge = narrowest_flops(d) / d->memory_bytes_per_s,
    };

    memcpy(v.name, d->name, sizeof v.name);
    v.capacity = v.capacity_per_w >= 10.0;
    v.bandwidth = v.bandwidth_per_w >= 0.8;
    v.compute = v.ridge >= LEAST_RIDGE;
    v.general = d->can[KR_OP_APPEND] && d->can[KR_OP_SCORE] && d->can[KR_OP_SELECT] && d->can[KR_OP_GATHER] &&
                d->can[KR_OP_ATTEND];
    return v;
}

static kr_status judge_all(const char *data, kr_device_study *s, kr_err *err)
{
    kr_device_model h200 = {0}, device;
    char path[PATH_BYTES];
    kr_status status = KR_OK;

    for (int i = 0; i < KR_DEVICE_CLASSES && status == KR_OK; i++) {
        snprintf(path, sizeof path, "%s/devices/%s.json", data, classes[i]);
        status = kr_device_model_load(path, &device, err);
        if (status != KR_OK)
            return status;
        if (i == 0)
            h200 = device;
        s->verdict[i] = kr_device_judge(&device, &h200);
    }
    s->verdict[KR_DEVICE_CLASSES] = kr_device_judge(&s->device, &h200);
    return KR_OK;
}

/* ---- one request's scan ---- */

/* Score of all layers of a model on the scenario's memory device; *power_w while it runs. */
static kr_status scan(const kr_scenario_options *o, double *seconds, double *power_w, kr_err *err)
{
    kr_scenario s;
    const kr_status status = kr_scenario_init(&s, o, 1 << 20, err);
    double joules = 0.0;

    if (status != KR_OK)
        return status;
    *seconds = 0.0;
    for (uint32_t i = 0; i < s.program.count; i++) {
        const kr_op *op = &s.program.ops[i];
        kr_load load;
        kr_device_job job;

        if (op->kind != KR_OP_SCORE || op->micro_batch != 0)
            continue;
        load = kr_row_load(&s.program.plan[op->layer], CONTEXT);
        job = (kr_device_job){.op = KR_OP_SCORE,
                              .math = s.model.index_dtype,
                              .model = s.model.name,
                              .work = kr_op_work(&s.program, op, &load),
                              .rows = 1,
                              .context_tokens = CONTEXT};
        *seconds += (double)kr_device_op_time(&s.memory, &job).ns * 1e-9;
        joules += kr_device_math_j(&s.memory, job.math, &job.work) + kr_device_memory_j(&s.memory, &job.work);
    }
    *power_w = *seconds > 0.0 ? s.memory.idle_w + joules / *seconds : 0.0;
    kr_scenario_free(&s);
    return KR_OK;
}

static kr_status scan_models(kr_device_point *p, kr_err *err)
{
    kr_status status = KR_OK;

    for (int m = 0; m < KR_DEVICE_MODELS && status == KR_OK; m++) {
        kr_scenario_options o = p->job.scenario;
        double power_w;

        o.model = kr_device_models[m];
        status = scan(&o, &p->scan_s[m], &power_w, err);
        if (m == 0)
            p->power_w = power_w;
    }
    return status;
}

/* ---- sweeps ---- */

static kr_study_job cluster(const kr_scenario_options *base, const kr_study_options *study,
                            const kr_plan_workload *workload, double watts)
{
    kr_study_job job = {.scenario = *base, .study = *study, .workload = workload};

    job.scenario.system = KR_SYSTEM_KARAT;
    job.scenario.gpus = job.scenario.ep = GPUS;
    job.scenario.tp = 1;
    job.scenario.micro_batches = 2;
    job.scenario.devices = (uint32_t)(device_watts / watts / NODE_DEVICES + 1e-9) * NODE_DEVICES;
    return job;
}

static void fill_sweeps(const kr_scenario_options *base, const kr_study_options *study,
                        const kr_plan_workload *workload, kr_device_study *s)
{
    const kr_device_model *d = &s->device;
    const double has_cores = d->cores > 0.0 ? d->cores : 18.0;
    const double fixed_area = d->area_cache_mm2 + d->area_link_mm2 + d->area_memory_mm2;

    for (int i = 0; i < KR_DEVICE_SWEEP; i++) {
        kr_device_point *p = &s->cores[i];

        *p = (kr_device_point){.at = cores[i], .job = cluster(base, study, workload, d->tdp_w)};
        p->job.scenario.factors.cores = cores[i] / has_cores;
        p->area_mm2 = fixed_area > 0.0 ? fixed_area + d->area_core_mm2 * cores[i] / has_cores : 0.0;
    }
    for (int i = 0; i < LINKS; i++) {
        s->link[i] = (kr_device_point){.at = links[i], .job = cluster(base, study, workload, d->tdp_w)};
        s->link[i].job.scenario.factors.link_bytes = links[i];
    }
    for (int i = 0; i < KR_DEVICE_MEMORIES; i++) {
        const kr_memory_type *t = &kr_memory_types[i];
        kr_plan_factors *f;

        s->memory[i] = (kr_device_point){.job = cluster(base, study, workload, d->tdp_w * t->power)};
        f = &s->memory[i].job.scenario.factors;
        f->memory_bytes_per_s = t->bytes_per_s / d->memory_bytes_per_s;
        f->memory_bytes = t->bytes / d->memory_bytes;
        f->memory_watts = t->power;
    }
}

enum { POINTS = KR_DEVICE_SWEEP + LINKS + KR_DEVICE_MEMORIES };

static kr_status run_sweeps(kr_device_study *s, uint32_t threads, kr_err *err)
{
    kr_device_point *point[POINTS];
    kr_study_job *jobs = kr_alloc(POINTS * sizeof *jobs);
    kr_status status = KR_OK;
    int n = 0;

    if (jobs == NULL)
        return kr_fail(err, KR_E_MEMORY, "plan: no memory for %d points", POINTS);
    for (int i = 0; i < KR_DEVICE_SWEEP; i++)
        point[n++] = &s->cores[i];
    for (int i = 0; i < LINKS; i++)
        point[n++] = &s->link[i];
    for (int i = 0; i < KR_DEVICE_MEMORIES; i++)
        point[n++] = &s->memory[i];
    for (int i = 0; i < n && status == KR_OK; i++) {
        status = scan_models(point[i], err);
        jobs[i] = point[i]->job;
    }
    if (status == KR_OK)
        status = kr_study_batch(jobs, (uint32_t)n, threads, NULL, err);
    for (int i = 0; i < n && status == KR_OK; i++)
        point[i]->job = jobs[i];
    kr_free(jobs);
    return status;
}

kr_status kr_device_study_run(const kr_scenario_options *base, const kr_study_options *study,
                              const kr_plan_workload *workload, uint32_t threads, kr_device_study *out,
                              kr_err *err)
{
    char path[PATH_BYTES];
    kr_status status;

    memset(out, 0, sizeof *out);
    snprintf(path, sizeof path, "%s", base->memory != NULL ? base->memory : "");
    if (base->memory == NULL)
        snprintf(path, sizeof path, "%s/devices/karat.json", base->data);
    status = kr_device_model_load(path, &out->device, err);
    if (status != KR_OK)
        return status;
    if (out->device.tdp_w <= 0.0 || out->device.tdp_w * NODE_DEVICES > device_watts)
        return kr_fail(err, KR_E_ARG, "plan: a node of %d devices of %.0f W is over %.1f kW", NODE_DEVICES,
                       out->device.tdp_w, device_watts * 1e-3);
    out->node.devices = (double)(uint32_t)(node_watts / out->device.tdp_w + 1e-9);
    out->node.power_kw = out->node.devices * out->device.tdp_w * 1e-3;
    out->node.memory_tb = out->node.devices * out->device.memory_bytes * 1e-12;
    out->node.bandwidth_tb_s = out->node.devices * out->device.memory_bytes_per_s * 1e-12;
    out->node.bf16_tflops = out->node.devices * out->device.flops_bf16 * 1e-12;
    status = judge_all(base->data, out, err);
    if (status != KR_OK)
        return status;
    fill_sweeps(base, study, workload, out);
    return run_sweeps(out, threads, err);
}
