/* Runs of the pair; what the paper claims of them is in pair_claims.c. */
#include "plan/pair_inside.h"

#include <math.h>
#include <string.h>

enum { OUTPUT_TOKENS = 64, STEPS = 4, SEER_THRESHOLD = 2 };

const char *const kr_pair_methods[KR_PAIR_METHODS] = {"DSA", "Seer threshold", "Seer top-k", "LServe"};
const uint64_t kr_pair_contexts[KR_PAIR_CONTEXTS] = {4096, 16384, 65536, 262144, 1048576};
const uint32_t kr_pair_batches[KR_PAIR_BATCHES] = {1, 2, 4, 8, 32};

static const struct {
    const char *model, *method;
    uint32_t mode;
} runs[KR_PAIR_METHODS] = {
    {"deepseek-v3.2-1", "native", 0},
    {"qwen3-8b", "seer", SEER_THRESHOLD},
    {"qwen3-8b", "seer", 0},
    {"llama-3.1-8b", "lserve", 0},
};

const struct kr_pair_text kr_pair_texts[KR_PAIR_CHANGES] = {
    {"", "", ""},
    {"time of the GPU's scan and selection, and of its decode in MemAgent", "MI210's roofline",
     "as App. C.1 measured: 128 us at 4K tokens to 2,450 us at 1M a layer; 17 s for 1,024 tokens"},
    {"the U55C's 40 MB on chip", "shared by all layers", "whole for each layer"},
    {"weights of MemAgent's model on the U55C", "BF16", "4 bits"},
    {"idle power of the MI210", "40 W", "90 W"},
    {"the four changes above at once", "", "all of them"},
};

bool kr_pair_falls_back(const char *method, uint64_t context_tokens, uint32_t batch)
{
    static const uint64_t MILLION = 1000000;

    if (strcmp(method, "MemAgent") == 0)
        return batch > 2;
    return (strcmp(method, "DSA") == 0 || strcmp(method, "LServe") == 0) && context_tokens > MILLION;
}

/* ---- sparse attention on the simulator ---- */

typedef struct {
    kr_plan_workload workload[KR_PAIR_CONTEXTS];
    kr_sim_session session[KR_PAIR_CONTEXTS];
    kr_sim_turn turn[KR_PAIR_CONTEXTS];
} fixed_contexts;

static void make_contexts(fixed_contexts *f)
{
    for (int c = 0; c < KR_PAIR_CONTEXTS; c++) {
        f->turn[c] = (kr_sim_turn){.context_tokens = kr_pair_contexts[c], .output_tokens = OUTPUT_TOKENS};
        f->session[c] = (kr_sim_session){.turn = &f->turn[c], .turns = 1};
        f->workload[c] = (kr_plan_workload){.view = {.session = &f->session[c], .sessions = 1},
                                            .session = &f->session[c],
                                            .turn = &f->turn[c],
                                            .context_max = kr_pair_contexts[c] + OUTPUT_TOKENS};
    }
}

static bool measured_kernels(kr_pair_change c)
{
    return c == KR_PAIR_GPU_KERNELS || c == KR_PAIR_ALL_OF_THEM;
}

static kr_study_job job_of(const pair_room *r, const fixed_contexts *f, int method, int context, int batch,
                           bool pair)
{
    return (kr_study_job){
        .scenario = {.data = r->options->data,
                     .model = runs[method].model,
                     .method = runs[method].method,
                     .mode = runs[method].mode,
                     .system = pair ? KR_SYSTEM_FPGA : KR_SYSTEM_GPU_ONLY,
                     .compute = r->mi210_path,
                     .gpus = 1,
                     .devices = 1,
                     .ep = 1,
                     .tp = 1,
                     .micro_batches = 1,
                     .fast_unshared = r->change == KR_PAIR_FAST_UNSHARED || r->change == KR_PAIR_ALL_OF_THEM,
                     .unlimited_memory = true,
                     .factors = KR_PLAN_NO_FACTORS},
        .study = {.policy = KR_POLICY_SCMS, .steps_max = STEPS, .seed = 1, .seeds = 1, .slo_s = 1e3},
        .workload = &f->workload[context],
        .sessions = kr_pair_batches[batch],
        .breakdown = true,
    };
}

static double step_s(const kr_study_job *j)
{
    return (double)j->result.first.elapsed_ns * 1e-9 / (double)j->result.first.steps;
}

static double kinds_s(const kr_study_job *j, const op_set kinds)
{
    double share = 0.0;

    for (int k = 0; k < KR_OP_KINDS; k++)
        share += (kinds >> k & 1) != 0 ? j->share[k] : 0.0;
    return share * step_s(j);
}

/* App. C.1's GPU kernels, of a request and layer: 128 us at 4K tokens, 2,450 us at 1M, a line between. */
static double measured_scan_s(int method, uint64_t context, uint32_t batch)
{
    static const double layers[KR_PAIR_METHODS] = {1, 36, 36, 32};
    const double per_token = (2450e-6 - 128e-6) / (1048576.0 - 4096.0);

    return layers[method] * batch * (128e-6 + per_token * ((double)context - 4096.0));
}

static kr_pair_point point_of(const pair_room *r, const kr_study_job *gpu, const kr_study_job *pair,
                              int method, int context, int batch)
{
    static const op_set scan = 1ULL << KR_OP_SCORE | 1ULL << KR_OP_SELECT;
    static const op_set memory = 1ULL << KR_OP_INDEX_PROJECT | 1ULL << KR_OP_APPEND | 1ULL << KR_OP_GATHER |
                                 1ULL << KR_OP_ATTEND;
    static const op_set link = 1ULL << KR_OP_SEND_INDEX | 1ULL << KR_OP_RETURN_INDICES;
    const double rows = kr_pair_batches[batch];
    kr_pair_point p = {.gpu_scan_s = kinds_s(gpu, scan),
                       .pair_scan_s = kinds_s(pair, scan),
                       .link_s = kinds_s(pair, link),
                       .pair_s = step_s(pair),
                       .falls_back = kr_pair_falls_back(kr_pair_methods[method], kr_pair_contexts[context],
                                                        kr_pair_batches[batch])};
    const double rest = step_s(gpu) - p.gpu_scan_s;
    double busy;

    if (measured_kernels(r->change))
        p.gpu_scan_s = measured_scan_s(method, kr_pair_contexts[context], kr_pair_batches[batch]);
    p.gpu_s = rest + p.gpu_scan_s;
    p.memory_share = (kinds_s(gpu, memory) + p.gpu_scan_s) / p.gpu_s;
    busy = fmin(rest, p.pair_s);
    p.gpu_j = r->mi210.tdp_w * p.gpu_s / rows;
    p.pair_j = (r->mi210.tdp_w * busy + r->mi210.idle_w * (p.pair_s - busy) + r->u55c.tdp_w * p.pair_scan_s +
                r->u55c.idle_w * (p.pair_s - p.pair_scan_s)) /
               rows;
    return p;
}

static kr_status run_sparse(pair_room *r, kr_err *err)
{
    enum { ALL = KR_PAIR_METHODS * KR_PAIR_CONTEXTS * KR_PAIR_BATCHES * 2 };
    fixed_contexts *f = kr_alloc(sizeof *f);
    kr_study_job *jobs = kr_alloc(ALL * sizeof *jobs);
    kr_status status = f == NULL || jobs == NULL
                           ? kr_fail(err, KR_E_MEMORY, "plan: no memory for %d points", ALL)
                           : KR_OK;
    uint32_t n = 0;

    if (status == KR_OK)
        make_contexts(f);
    for (int m = 0; m < KR_PAIR_METHODS && status == KR_OK; m++)
        for (int c = 0; c < KR_PAIR_CONTEXTS; c++)
            for (int b = 0; b < KR_PAIR_BATCHES; b++)
                for (int pair = 0; pair < 2; pair++)
                    jobs[n++] = job_of(r, f, m, c, b, pair == 1);
    if (status == KR_OK)
        status = kr_study_batch(jobs, n, r->options->threads, r->options->ranks, err);
    for (uint32_t i = 0; i < n && status == KR_OK; i++)
        if (jobs[i].status != KR_OK)
            status = kr_fail(err, jobs[i].status, "%s", jobs[i].err.text);
    n = 0;
    for (int m = 0; m < KR_PAIR_METHODS && status == KR_OK; m++)
        for (int c = 0; c < KR_PAIR_CONTEXTS; c++)
            for (int b = 0; b < KR_PAIR_BATCHES; b++, n += 2)
                r->tables->sparse[m][c][b] = point_of(r, &jobs[n], &jobs[n + 1], m, c, b);
    kr_free(jobs);
    kr_free(f);
    return status;
}

/* ---- arithmetic intensity ---- */

static double intensity_of(const kr_program *p, op_set kinds, uint64_t context)
{
    kr_work sum = {0};

    for (uint32_t i = 0; i < p->count; i++) {
        kr_load load = {.rows = 1};

        if ((kinds >> p->ops[i].kind & 1) == 0)
            continue;
        if (p->ops[i].layer < p->model->layers)
            load = kr_row_load(&p->plan[p->ops[i].layer], context);
        sum = kr_work_add(sum, kr_op_work(p, &p->ops[i], &load));
    }
    return sum.read_bytes + sum.write_bytes == 0
               ? NAN
               : (double)sum.flops / (double)(sum.read_bytes + sum.write_bytes);
}

static kr_status run_intensities(pair_room *r, kr_err *err)
{
    static const op_set steps[3] = {1ULL << KR_OP_INDEX_PROJECT, 1ULL << KR_OP_SCORE, 1ULL << KR_OP_ATTEND};
    fixed_contexts f;
    kr_status status = KR_OK;

    make_contexts(&f);
    for (int m = 0; m < KR_PAIR_METHODS && status == KR_OK; m++) {
        const kr_study_job job = job_of(r, &f, m, KR_PAIR_CONTEXTS - 1, 0, false);
        kr_scenario s;

        status = kr_scenario_init(&s, &job.scenario, job.workload->context_max, err);
        if (status != KR_OK)
            return status;
        for (int k = 0; k < 3; k++)
            r->tables->intensity[m][k] = intensity_of(&s.program, steps[k],
                                                      kr_pair_contexts[KR_PAIR_CONTEXTS - 1]);
        kr_scenario_free(&s);
    }
    return status;
}

/* ---- MemAgent in closed form ---- */

/* Qwen2.5-7B (config.json): 7.6 G parameters; 28 layers of 4 KV heads of 128. A turn of the agent decodes
 * 1,024 tokens of memory and prefills 5,000 tokens of text with it (the authors' defaults). */
static const double agent_parameters = 7.6e9, agent_kv_bytes = 28 * 2 * 4 * 128 * 2.0;
static const double memory_tokens = 1024, segment_tokens = 5000;

static double agent_decode_s(const kr_device_model *d, double weight_bytes, double batch)
{
    const double bytes = agent_parameters * weight_bytes +
                         batch * (segment_tokens + memory_tokens) * agent_kv_bytes;
    const double flops = 2 * agent_parameters * batch;

    return memory_tokens * fmax(bytes / (d->memory_bytes_per_s * d->memory_efficiency),
                                flops / (d->flops_bf16 * d->flops_efficiency));
}

static void run_agent(pair_room *r)
{
    const kr_device_model *gpu = &r->mi210, *fpga = &r->u55c;
    const bool four = r->change == KR_PAIR_WEIGHTS_4_BIT || r->change == KR_PAIR_ALL_OF_THEM;

    for (int b = 0; b < KR_PAIR_BATCHES; b++) {
        const double batch = kr_pair_batches[b], tokens = segment_tokens + memory_tokens;
        const double prefill = 2 * agent_parameters * batch * tokens /
                               (gpu->flops_bf16 * gpu->flops_efficiency);
        const double move = batch * tokens * agent_kv_bytes / fpga->link_bytes_per_s;
        const double on_fpga = agent_decode_s(fpga, four ? 0.5 : 2, batch);
        double on_gpu = agent_decode_s(gpu, 2, batch);

        /* 17 s for one segment at batch 1; with more at once the same times what the roofline adds. */
        if (measured_kernels(r->change))
            on_gpu *= 17.0 / agent_decode_s(gpu, 2, 1);
        r->tables->agent_speedup[b] = (prefill + on_gpu) / (prefill + move + on_fpga);
        if (b == 0)
            r->tables->agent_energy = gpu->tdp_w * (prefill + on_gpu) /
                                      (gpu->tdp_w * prefill + fpga->idle_w * prefill +
                                       (gpu->idle_w + fpga->tdp_w) * (move + on_fpga));
    }
}

/* ---- all ---- */

static kr_status load_devices(pair_room *r, kr_err *err)
{
    char path[1024];
    kr_status status;

    snprintf(r->mi210_path, sizeof r->mi210_path, "%s/devices/mi210.json", r->options->data);
    snprintf(path, sizeof path, "%s/devices/u55c.json", r->options->data);
    status = kr_device_model_load(r->mi210_path, &r->mi210, err);
    if (status == KR_OK)
        status = kr_device_model_load(path, &r->u55c, err);
    if (r->change == KR_PAIR_IDLE_MORE || r->change == KR_PAIR_ALL_OF_THEM)
        r->mi210.idle_w = 90;
    return status;
}

kr_status kr_pair_run(const kr_reproduce_options *options, kr_pair_change change,
                      kr_claim claims[KR_CLAIMS_MAX], uint32_t *count, kr_pair_tables *tables, kr_err *err)
{
    pair_room *r = kr_alloc(sizeof *r);
    kr_pair_tables *own = kr_alloc(sizeof *own);
    kr_status status = r == NULL || own == NULL ? kr_fail(err, KR_E_MEMORY, "plan: no memory for the pair")
                                                : KR_OK;

    if (status == KR_OK) {
        *r = (pair_room){.options = options, .change = change, .tables = own};
        status = load_devices(r, err);
    }
    if (status == KR_OK)
        status = run_sparse(r, err);
    if (status == KR_OK)
        status = run_intensities(r, err);
    if (status == KR_OK) {
        run_agent(r);
        *count = kr_pair_claims(r, claims);
        if (tables != NULL)
            *tables = *own;
    }
    kr_free(own);
    kr_free(r);
    return status;
}
