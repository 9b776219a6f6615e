/* Fills the cells: candidates of every cell as one batch, the best of each again with all seeds, then
 * what lies around the best. */
#include "plan/cells.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"

enum { JOBS_MAX = 512, SLOTS_MAX = 256, LLAMA_TP = 8 };

static const double watts = 64 * 700.0;
static const uint32_t eps[KR_CELL_EPS] = {8, 16, 32, 64};

const char *const kr_cell_model_names[KR_CELL_MODELS] = {"deepseek-v3.2", "glm-5.2", "minimax-m3"};
const char *const kr_cell_method_names[KR_CELL_METHODS] = {"dense", "quest", "starc", "magicpig"};
const char *const kr_cell_trace_names[KR_TRACES] = {"KVCT", "SWE-pro", "SWE-chat"};
static const kr_system skewed_systems[KR_CELL_SKEWED] = {KR_SYSTEM_KARAT, KR_SYSTEM_GPU_ONLY,
                                                         KR_SYSTEM_HISPARSE};

const kr_change_text kr_change_texts[KR_CHANGES] = {
    {"", "", ""},
    {"admission: pages promised to a session", "its largest turn from here on",
     "its present turn alone, asked for again each turn without a check"},
    {"", "", "its largest turn at all"},
    {"memory kept back", "5 %", "10 %"},
    {"requests on a link to memory devices", "share it", "each has it to itself, as in III-B's 43 to 232 us"},
    {"expert all-to-all", "the paper's 400 GB/s a node, NVLink inside a node", "DeepEP as measured"},
    {"", "", "400 GB/s a node also between GPUs of one node"},
    {"micro-batches of GPU-only and HiSparse", "one", "two"},
    {"Duplex", "48 GPUs (48 kW, nearest whole nodes)", "40 GPUs (40 kW)"},
    {"who multiplies by W_uk, and what is counted", "memory devices; the paper's accounting",
     "GPUs (latent queries); scales and RoPE counted"},
    {"bandwidth that KARAT and SPNM reach", "73 % of peak, as H200's index scan", "100 %"},
    {"FP8 rate of SPNM", "twice BF16's, as the released simulator has it", "as BF16"},
    {"experts' shares under skew fall as number^-s", "s = 1.01", "s = 1.5"},
    {"contexts for Llama-3-70B", "cut to the 131,072 tokens that the model can hold", "as in the traces"},
    {"devices that share out a session's KV heads (Llama-3)", "one", "eight"},
    {"SWE traces (synthetic)", "first draw", "another draw"},
};

typedef struct {
    kr_study_job *cell;
    uint32_t first, count;
} slot;

typedef struct {
    const kr_reproduce_options *options;
    const kr_cell_traces *traces;
    kr_change change;
    const kr_cells *from;
    kr_cells *cells;
    kr_study_job *job; /* [JOBS_MAX] */
    uint32_t jobs;
    slot slot[SLOTS_MAX];
    uint32_t slots;
} room;

double kr_cell_per_watt(const kr_study_job *cell)
{
    return cell->status == KR_OK ? cell->result.tokens_per_s_per_w : NAN;
}

/* ---- changes ---- */

static bool has_devices(kr_system s)
{
    return s == KR_SYSTEM_KARAT || s == KR_SYSTEM_ATTACC || s == KR_SYSTEM_SPNM;
}

/* Whether a change can alter a run, and is tried on it: of those that concern every trace KVCT stands for
 * all. llama: of Llama-3-70B, skew: with skewed experts. */
static bool touches(kr_change change, kr_system s, bool llama, int trace, bool skew)
{
    if (change == KR_CHANGE_TRACE_SEED)
        return trace != KR_CELL_KVCT;
    if (change == KR_CHANGE_UNCUT)
        return llama;
    if (change == KR_CHANGE_SPREAD)
        return llama && has_devices(s);
    if (trace != KR_CELL_KVCT)
        return false;
    switch (change) {
    case KR_CHANGE_NONE:
    case KR_CHANGE_PROMISE_TURN:
    case KR_CHANGE_PROMISE_SESSION:
    case KR_CHANGE_RESERVE:
        return true;
    case KR_CHANGE_LINK_UNSHARED:
    case KR_CHANGE_ABSORB:
        return has_devices(s);
    case KR_CHANGE_NETWORK_MEASURED:
    case KR_CHANGE_NETWORK_FLAT:
        return !llama;
    case KR_CHANGE_TWO_BATCHES:
        return s == KR_SYSTEM_GPU_ONLY || s == KR_SYSTEM_HISPARSE;
    case KR_CHANGE_DUPLEX_40:
        return s == KR_SYSTEM_DUPLEX;
    case KR_CHANGE_DEVICE_PEAK:
        return s == KR_SYSTEM_KARAT || s == KR_SYSTEM_SPNM;
    case KR_CHANGE_SPNM_FP8:
        return s == KR_SYSTEM_SPNM && !llama;
    case KR_CHANGE_SKEW:
        return skew;
    default:
        return false;
    }
}

static void apply(const room *r, int trace, kr_study_job *job)
{
    kr_scenario_options *o = &job->scenario;

    switch (r->change) {
    case KR_CHANGE_PROMISE_TURN:
    case KR_CHANGE_PROMISE_SESSION:
        job->study.promise = r->change == KR_CHANGE_PROMISE_TURN ? KR_PROMISE_TURN : KR_PROMISE_SESSION;
        break;
    case KR_CHANGE_RESERVE:
        o->reserved_share = 0.1;
        break;
    case KR_CHANGE_LINK_UNSHARED:
        o->link_unshared = true;
        break;
    case KR_CHANGE_NETWORK_MEASURED:
        o->all_to_all_by_bytes = false;
        break;
    case KR_CHANGE_NETWORK_FLAT:
        o->flat_network = true;
        break;
    case KR_CHANGE_TWO_BATCHES:
        o->micro_batches = 2;
        break;
    case KR_CHANGE_DUPLEX_40:
        o->gpus = o->ep = 40;
        break;
    case KR_CHANGE_ABSORB:
        o->exact = true;
        break;
    case KR_CHANGE_DEVICE_PEAK:
        o->factors.memory_bytes_per_s *= 1 / 0.73;
        break;
    case KR_CHANGE_SPNM_FP8:
        o->factors.memory_fp8 = 0.5;
        break;
    case KR_CHANGE_SKEW:
        job->skew = 1.5;
        break;
    case KR_CHANGE_UNCUT:
        job->workload = &r->traces->whole[trace];
        break;
    case KR_CHANGE_SPREAD:
        o->spread = 8;
        break;
    case KR_CHANGE_TRACE_SEED:
        job->workload = &r->traces->drawn_again[trace];
        break;
    case KR_CHANGE_NONE:
    case KR_CHANGES:
        break;
    }
}

/* ---- candidates ---- */

static kr_study_job *push(room *r, slot *s)
{
    if (s->count == 0)
        s->first = r->jobs;
    s->count++;
    return &r->job[r->jobs++];
}

static kr_study_job job_of(const room *r, const char *model, const char *method, int trace, kr_system system,
                           uint32_t gpus, uint32_t devices, uint32_t ep, uint32_t tp)
{
    const bool alone = system == KR_SYSTEM_GPU_ONLY || system == KR_SYSTEM_HISPARSE;

    return (kr_study_job){
        .scenario = {.data = r->options->data,
                     .model = model,
                     .system = system,
                     .method = method,
                     .gpus = gpus,
                     .devices = devices,
                     .ep = ep,
                     .tp = tp,
                     .micro_batches = alone ? 1 : 2,
                     .all_to_all_by_bytes = true,
                     .factors = KR_PLAN_NO_FACTORS},
        .study = {.policy = KR_POLICY_OFMS,
                  .rebalance = true,
                  .paper_window = true,
                  .seed = r->options->seed,
                  .seeds = 1,
                  .slo_s = 0.1},
        .trace = kr_cell_trace_names[trace],
        .workload = tp > 1 ? &r->traces->cut[trace] : &r->traces->whole[trace],
    };
}

/* A cell of the change: the earlier run's best configuration, or its result where nothing is touched. */
static void change_cell(room *r, kr_study_job *cell, const kr_study_job *from, bool llama, int trace)
{
    kr_study_job *job;
    slot *s;

    *cell = *from;
    if (from->status != KR_OK || !touches(r->change, from->scenario.system, llama, trace, from->skew > 0.0))
        return;
    s = &r->slot[r->slots++];
    *s = (slot){.cell = cell};
    job = push(r, s);
    *job = *from;
    job->study.seeds = 1;
    job->sessions = 0;
    apply(r, trace, job);
}

/* The same cell of other cells. */
static const kr_study_job *counterpart(const room *r, const kr_study_job *cell)
{
    return (const kr_study_job *)((const char *)r->from + ((const char *)cell - (const char *)r->cells));
}

static void add_eps(room *r, slot *s, const kr_study_job *like, uint32_t gpus, uint32_t devices)
{
    const bool experts = like->scenario.tp == 1;

    for (int e = 0; e <= KR_CELL_EPS; e++) {
        const uint32_t ep = !experts ? gpus : e < KR_CELL_EPS ? eps[e] : gpus;
        const bool listed = e == KR_CELL_EPS && (gpus & (gpus - 1)) == 0; /* a power of two came before */
        kr_study_job *job;

        if (ep > gpus || gpus % ep != 0 || listed)
            continue;
        job = push(r, s);
        *job = *like;
        job->scenario.gpus = gpus;
        job->scenario.devices = devices;
        job->scenario.ep = ep;
        if (!experts)
            return;
    }
}

static void add_cell(room *r, kr_study_job *cell, const char *model, const char *method, int trace,
                     kr_system system, uint32_t tp)
{
    static const uint32_t splits[3][2] = {{16, 192}, {32, 128}, {48, 64}};
    const kr_study_job like = job_of(r, model, method, trace, system, 0, 0, 0, tp);
    uint32_t gpus = 0, devices = 0;
    slot *s;

    if (r->change != KR_CHANGE_NONE) {
        change_cell(r, cell, counterpart(r, cell), tp > 1, trace);
        return;
    }
    s = &r->slot[r->slots++];
    *s = (slot){.cell = cell};
    if (system == KR_SYSTEM_KARAT) {
        for (int i = 0; i < 3; i++)
            add_eps(r, s, &like, splits[i][0], splits[i][1]);
        return;
    }
    kr_system_nearest(system, watts, &gpus, &devices);
    add_eps(r, s, &like, gpus, devices);
}

static void add_systems(room *r)
{
    kr_cells *c = r->cells;

    for (int t = 0; t < KR_TRACES; t++)
        for (int y = 0; y < KR_CELL_SYSTEMS; y++) {
            for (int m = 0; m < KR_CELL_MODELS; m++)
                /* AttAcc has no latent attention: the paper runs it on MiniMax alone. */
                if (y != KR_SYSTEM_ATTACC || m == 2)
                    add_cell(r, &c->native[m][t][y], kr_cell_model_names[m], "native", t, (kr_system)y, 1);
            for (int k = 0; k < KR_CELL_METHODS; k++)
                if (y == KR_SYSTEM_KARAT || y == KR_SYSTEM_GPU_ONLY || y == KR_SYSTEM_SPNM || k == 0)
                    add_cell(r, &c->trained[k][t][y], "llama-3-70b", kr_cell_method_names[k], t, (kr_system)y,
                             LLAMA_TP);
        }
}

static void vary(kr_study_job *job, kr_variation v)
{
    kr_plan_factors *f = &job->scenario.factors;

    job->study.policy = v == KR_VARY_NO_OFMS ? KR_POLICY_SCMS : KR_POLICY_OFMS;
    job->study.rebalance = v != KR_VARY_NO_CMR;
    f->link_bytes = v == KR_VARY_LINK_HALF      ? 0.5
                    : v == KR_VARY_LINK_DOUBLE  ? 2
                    : v == KR_VARY_LINK_QUARTER ? 0.25
                                                : 1;
    f->link_latency = v == KR_VARY_LATENCY_10 ? 10 : v == KR_VARY_LATENCY_100 ? 100 : 1;
    f->cores = v == KR_VARY_CORES_26 ? 26.0 / 18 : v == KR_VARY_CORES_10 ? 10.0 / 18 : 1;
}

/* A cell like another. */
static kr_study_job *add_like(room *r, kr_study_job *cell, const kr_study_job *like)
{
    slot *s = &r->slot[r->slots++];
    kr_study_job *job;

    *s = (slot){.cell = cell};
    job = push(r, s);
    *job = *like;
    job->breakdown = false;
    job->sessions = 0;
    job->study.seeds = 1;
    return job;
}

static void add_around(room *r)
{
    kr_cells *c = r->cells;

    for (int m = 0; m < KR_CELL_MODELS; m++) {
        const kr_study_job *best = &c->native[m][KR_CELL_KVCT][KR_SYSTEM_KARAT];

        for (int v = 0; v < KR_VARIATIONS; v++) {
            kr_study_job *cell = &c->varied[v][m];

            if (r->change != KR_CHANGE_NONE)
                change_cell(r, cell, counterpart(r, cell), false, KR_CELL_KVCT);
            else if (best->status == KR_OK)
                vary(add_like(r, cell, best), (kr_variation)v);
        }
        for (int y = 0; y < KR_CELL_SKEWED; y++)
            for (int balanced = 0; balanced < 2; balanced++) {
                kr_study_job *cell = &c->skewed[y][m][balanced], *job;
                const kr_study_job *like = &c->native[m][KR_CELL_KVCT][skewed_systems[y]];

                if (r->change != KR_CHANGE_NONE) {
                    change_cell(r, cell, counterpart(r, cell), false, KR_CELL_KVCT);
                } else if (like->status == KR_OK) {
                    job = add_like(r, cell, like);
                    job->skew = 1.01;
                    job->study.balance_experts = balanced == 1;
                }
            }
    }
}

/* ---- running ---- */

static const kr_study_job *best_of(const room *r, const slot *s)
{
    const kr_study_job *best = &r->job[s->first];

    for (uint32_t i = s->first; i < s->first + s->count; i++) {
        const kr_study_job *job = &r->job[i];

        if (job->status == KR_OK &&
            (best->status != KR_OK || job->result.tokens_per_s_per_w > best->result.tokens_per_s_per_w))
            best = job;
    }
    return best;
}

/* The best of each slot into its cell, with all seeds and the shares of its step. */
static kr_status settle(room *r, uint32_t first_slot, kr_err *err)
{
    const uint32_t first = r->jobs;
    kr_status status = KR_OK;

    for (uint32_t i = first_slot; i < r->slots; i++) {
        kr_study_job *cell = r->slot[i].cell;

        *cell = *best_of(r, &r->slot[i]);
        if (cell->status != KR_OK || r->change != KR_CHANGE_NONE)
            continue;
        cell->sessions = cell->result.sessions;
        cell->study.seeds = r->options->seeds;
        cell->breakdown = true;
    }
    if (r->change != KR_CHANGE_NONE)
        return KR_OK;
    /* The cells lie apart, and a batch wants them side by side. */
    for (uint32_t i = first_slot; i < r->slots; i++)
        r->job[r->jobs++] = *r->slot[i].cell;
    status = kr_study_batch(&r->job[first], r->jobs - first, r->options->threads, r->options->ranks, err);
    for (uint32_t i = first_slot, k = first; i < r->slots; i++, k++) {
        kr_study_job *cell = r->slot[i].cell;
        char bound[KR_ERR_TEXT_BYTES];

        memcpy(bound, cell->result.bound, sizeof bound);
        *cell = r->job[k];
        memcpy(cell->result.bound, bound, sizeof bound);
    }
    r->jobs = first;
    return status;
}

static kr_status run_slots(room *r, uint32_t first_slot, uint32_t first_job, kr_err *err)
{
    const kr_status status = kr_study_batch(&r->job[first_job], r->jobs - first_job, r->options->threads,
                                            r->options->ranks, err);

    return status == KR_OK ? settle(r, first_slot, err) : status;
}

static void note_gpu_only(room *r)
{
    kr_cells *c = r->cells;

    if (r->from != NULL) {
        memcpy(c->gpu_only_by_ep, r->from->gpu_only_by_ep, sizeof c->gpu_only_by_ep);
        return;
    }
    for (uint32_t i = 0; i < r->slots; i++)
        for (int m = 0; m < KR_CELL_MODELS; m++)
            for (int t = 0; t < KR_TRACES; t++) {
                if (r->slot[i].cell != &c->native[m][t][KR_SYSTEM_GPU_ONLY])
                    continue;
                for (uint32_t k = 0; k < r->slot[i].count && k < KR_CELL_EPS; k++)
                    c->gpu_only_by_ep[m][t][k] = kr_cell_per_watt(&r->job[r->slot[i].first + k]);
            }
}

/* Cells that the paper has no run for keep KR_E_NOT_FOUND. */
static void clear(kr_cells *c)
{
    kr_study_job none = {.status = KR_E_NOT_FOUND};

    memset(c, 0, sizeof *c);
    snprintf(none.err.text, sizeof none.err.text, "not run");
    for (size_t i = 0; i < sizeof c->native / sizeof none; i++)
        (&c->native[0][0][0])[i] = none;
    for (size_t i = 0; i < sizeof c->trained / sizeof none; i++)
        (&c->trained[0][0][0])[i] = none;
    for (size_t i = 0; i < sizeof c->varied / sizeof none; i++)
        (&c->varied[0][0])[i] = none;
    for (size_t i = 0; i < sizeof c->skewed / sizeof none; i++)
        (&c->skewed[0][0][0])[i] = none;
}

kr_status kr_cells_run(const kr_reproduce_options *options, const kr_cell_traces *traces, kr_change change,
                       const kr_cells *from, kr_cells *cells, kr_study_job **all, uint32_t *all_count,
                       kr_err *err)
{
    room r = {.options = options, .traces = traces, .change = change, .from = from, .cells = cells};
    uint32_t slots, jobs;
    kr_status status;

    r.job = kr_alloc(JOBS_MAX * sizeof *r.job);
    if (r.job == NULL)
        return kr_fail(err, KR_E_MEMORY, "plan: no memory for %d points", JOBS_MAX);
    clear(cells);
    add_systems(&r);
    status = run_slots(&r, 0, 0, err);
    if (status == KR_OK) {
        note_gpu_only(&r);
        slots = r.slots;
        jobs = r.jobs;
        add_around(&r);
        status = run_slots(&r, slots, jobs, err);
    }
    cells->runs = r.jobs;
    for (uint32_t i = 0; i < r.jobs; i++)
        cells->digest = kr_digest_add(cells->digest, r.job[i].result.first.digest);
    if (status == KR_OK && all != NULL) {
        *all = r.job;
        *all_count = r.jobs;
    } else {
        kr_free(r.job);
    }
    return status;
}
