/* The KARAT paper's result claims (its sections IV-B to IV-E) as values of cells. Causes say what is known
 * of a miss; the runs under changes, in the report, show them. */
#include "plan/cells.h"

#include <math.h>
#include <string.h>

typedef struct {
    const kr_cells *cells;
    kr_claim *claim;
    uint32_t claims;
} book;

enum { GLM = 1, MINIMAX = 2, ALL = 7 };

static const char GPU_CAUSE[] =
    "GPU-only is limited by memory, so the ratio follows from how many sessions it admits (E-37) and from "
    "the time of its step; the paper's op times are unpublished";
static const char SESSIONS_CAUSE[] =
    "the paper states neither admission rule nor reserve; ours promises a session the pages of its largest "
    "turn from here on and keeps 5 % back; see the run below with a promise of the present turn alone";
static const char LLAMA_CAUSE[] =
    "the paper states neither budgets nor how contexts longer than Llama-3 can hold are cut, nor whether a "
    "session's heads may lie on several devices; see below";
static const char LINK_CAUSE[] =
    "by the paper's own payloads (III-B) the outputs of DeepSeek-V3.2 are 8.0 MB a request and step: of "
    "5,055 requests 40 GB, 51 ms for 16 GPUs of 50 GB/s and 101 ms at half of that, over the limit by "
    "itself. Its sweep cannot have shared the link between requests; see the run below in which each has "
    "the link to itself";
static const char OFMS_CAUSE[] =
    "OFMS acts where attention's output is back before the experts' combine. Where memory devices bind, as "
    "for "
    "DeepSeek-V3.2 and MiniMax-M3 here, it comes last, and both orders are the same run; the paper's stage "
    "times are unpublished";
static const char OVERLAP_CAUSE[] = "depends on how stage times compare; the paper's table is unpublished";
static const char SKEW_CAUSE[] =
    "the paper's expert shares are unpublished; ours fall as number^-1.01, as in public MoE tables";

static kr_claim *claim(book *b, const char *id, const char *text, const char *paper, double low, double high,
                       double pivot, const char *unit, const char *cause)
{
    return kr_claim_add(b->claim, &b->claims, id, text, paper, low, high, pivot, unit, cause);
}

static double ratio(const kr_study_job *a, const kr_study_job *b)
{
    return kr_cell_per_watt(a) / kr_cell_per_watt(b);
}

static const kr_study_job *native(const book *b, int m, int t, kr_system y)
{
    return &b->cells->native[m][t][y];
}

/* ---- IV-B: systems ---- */

static void ratios(book *b, kr_claim *c, kr_system x, kr_system y, unsigned models, unsigned traces)
{
    for (int m = 0; m < KR_CELL_MODELS; m++)
        for (int t = 0; t < KR_TRACES; t++)
            if ((models >> m & 1) != 0 && (traces >> t & 1) != 0)
                kr_claim_value(c, ratio(native(b, m, t, x), native(b, m, t, y)));
}

static void native_claims(book *b)
{
    static const struct {
        const char *id, *text, *paper;
        double low, high;
        kr_system x, y;
        unsigned models, traces;
        const char *cause;
    } rows[] = {
        {"E-30", "KARAT over GPU-only, model-native, all", "2.09 to 6.13", 2.09, 6.13, KR_SYSTEM_KARAT,
         KR_SYSTEM_GPU_ONLY, ALL, ALL, GPU_CAUSE},
        {"E-30", "the same on SWE-pro (synthetic)", "2.09 to 2.42", 2.09, 2.42, KR_SYSTEM_KARAT,
         KR_SYSTEM_GPU_ONLY, ALL, 1 << KR_CELL_SWE_PRO, "synthetic trace; as above"},
        {"E-30", "the same on KVCT", "2.98 to 6.13", 2.98, 6.13, KR_SYSTEM_KARAT, KR_SYSTEM_GPU_ONLY, ALL,
         1 << KR_CELL_KVCT, GPU_CAUSE},
        {"E-31", "KARAT over HiSparse", "1.14 to 2.18", 1.14, 2.18, KR_SYSTEM_KARAT, KR_SYSTEM_HISPARSE, ALL,
         ALL, "its swap-in is priced as 5 % of attended bytes over PCIe without overlap"},
        {"E-31", "KARAT over Duplex", "1.61 to 4.83", 1.61, 4.83, KR_SYSTEM_KARAT, KR_SYSTEM_DUPLEX, ALL, ALL,
         "ours has Duplex hold what 48 GPUs hold, beside weights spread over fewer of them than GPU-only's "
         "64; the paper's holds as many sessions as GPU-only"},
        {"E-31", "KARAT over AttAcc (MiniMax-M3)", "2.46 to 9.03", 2.46, 9.03, KR_SYSTEM_KARAT,
         KR_SYSTEM_ATTACC, 1 << MINIMAX, ALL,
         "AttAcc's selection goes back to the GPU over 16 GB/s a device"},
        {"E-32", "SPNM over GPU-only on GLM-5.2 and DeepSeek-V3.2", "0.14 to 0.57", 0.14, 0.57,
         KR_SYSTEM_SPNM, KR_SYSTEM_GPU_ONLY, 3, ALL,
         "the index scan takes SPNM's few FLOP/s; its share of the step depends on the GPU side"},
        {"E-32", "SPNM over GPU-only on MiniMax-M3", "1.50 to 2.42", 1.50, 2.42, KR_SYSTEM_SPNM,
         KR_SYSTEM_GPU_ONLY, 1 << MINIMAX, ALL, GPU_CAUSE},
        {"E-32", "KARAT over SPNM on MiniMax-M3", "1.23 to 1.39", 1.23, 1.39, KR_SYSTEM_KARAT, KR_SYSTEM_SPNM,
         1 << MINIMAX, ALL, "MiniMax's scan needs few FLOPs, so both devices are limited by the same memory"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kr_claim *c = claim(b, rows[i].id, rows[i].text, rows[i].paper, rows[i].low, rows[i].high, 1, "x",
                            rows[i].cause);

        ratios(b, c, rows[i].x, rows[i].y, rows[i].models, rows[i].traces);
    }
}

static void free_claims(book *b)
{
    static const struct {
        const char *id, *text, *paper;
        double low, high;
        kr_system system;
        unsigned methods;
    } rows[] = {
        {"E-33", "Quest, STARC, MagicPIG: KARAT over GPU-only", "1.36 to 3.21", 1.36, 3.21, KR_SYSTEM_KARAT,
         14},
        {"E-33", "MagicPIG: KARAT over GPU-only", "2.09 to 3.21", 2.09, 3.21, KR_SYSTEM_KARAT, 8},
        {"E-34", "Quest and STARC: SPNM over GPU-only", "2.00 to 4.80", 2.00, 4.80, KR_SYSTEM_SPNM, 6},
        {"E-35", "dense: KARAT over GPU-only", "1.24 to 1.32", 1.24, 1.32, KR_SYSTEM_KARAT, 1},
        {"E-35", "dense: AttAcc over GPU-only", "1.79 to 2.05", 1.79, 2.05, KR_SYSTEM_ATTACC, 1},
        {"E-35", "dense: Duplex over GPU-only", "1.38 to 1.46", 1.38, 1.46, KR_SYSTEM_DUPLEX, 1},
        {"E-35", "dense: SPNM over GPU-only", "1.43 to 1.47", 1.43, 1.47, KR_SYSTEM_SPNM, 1},
        {"E-35", "dense: HiSparse over GPU-only", "0.12 to 0.13", 0.12, 0.13, KR_SYSTEM_HISPARSE, 1},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kr_claim *c = claim(b, rows[i].id, rows[i].text, rows[i].paper, rows[i].low, rows[i].high, 1, "x",
                            LLAMA_CAUSE);

        for (int k = 0; k < KR_CELL_METHODS; k++)
            for (int t = 0; t < KR_TRACES && (rows[i].methods >> k & 1) != 0; t++)
                kr_claim_value(c, ratio(&b->cells->trained[k][t][rows[i].system],
                                        &b->cells->trained[k][t][KR_SYSTEM_GPU_ONLY]));
    }
}

static void geomean_claims(book *b)
{
    static const struct {
        kr_system system;
        const char *text, *paper;
        double value;
    } rows[] = {{KR_SYSTEM_KARAT, "geometric mean over GPU-only, all methods: KARAT", "2.23", 2.23},
                {KR_SYSTEM_SPNM, "the same: SPNM", "1.19", 1.19},
                {KR_SYSTEM_DUPLEX, "the same, native and dense: Duplex", "1.12", 1.12},
                {KR_SYSTEM_HISPARSE, "the same, native and dense: HiSparse", "1.09", 1.09}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const kr_system y = rows[i].system;
        double sum = 0.0;
        uint32_t n = 0;

        for (int t = 0; t < KR_TRACES; t++)
            for (int k = 0; k < KR_CELL_MODELS + KR_CELL_METHODS; k++) {
                const kr_study_job(*of)[KR_CELL_SYSTEMS] = k < KR_CELL_MODELS
                                                               ? &b->cells->native[k][t]
                                                               : &b->cells->trained[k - KR_CELL_MODELS][t];
                const double v = ratio(&(*of)[y], &(*of)[KR_SYSTEM_GPU_ONLY]);

                sum += isfinite(v) ? log(v) : 0.0;
                n += isfinite(v);
            }
        kr_claim_value(claim(b, "E-36", rows[i].text, rows[i].paper, rows[i].value, rows[i].value, 1, "x",
                             "a mean of the rows above, with their causes"),
                       n > 0 ? exp(sum / n) : NAN);
    }
}

/* ---- IV-C: what a step consists of ---- */

/* Share of a step in the kinds listed, as a percentage. */
static double share_of(const kr_study_job *job, const kr_op_kind *kinds, size_t count)
{
    double sum = 0.0;

    if (job->status != KR_OK)
        return NAN;
    for (size_t i = 0; i < count; i++)
        sum += 100 * job->share[kinds[i]];
    return sum;
}

static double linear_share(const kr_study_job *job)
{
    static const kr_op_kind kinds[] = {KR_OP_EMBED,         KR_OP_QKV,           KR_OP_Q_UP,   KR_OP_ABSORB,
                                       KR_OP_INDEX_PROJECT, KR_OP_V_UP,          KR_OP_O_PROJ, KR_OP_ROUTER,
                                       KR_OP_EXPERTS,       KR_OP_SHARED_EXPERT, KR_OP_FFN,    KR_OP_HEAD};

    return share_of(job, kinds, sizeof kinds / sizeof kinds[0]);
}

static double indexer_share(const kr_study_job *job)
{
    static const kr_op_kind kinds[] = {KR_OP_SCORE, KR_OP_SELECT};

    return share_of(job, kinds, sizeof kinds / sizeof kinds[0]);
}

static void session_claims(book *b)
{
    static const struct {
        const char *text, *paper;
        kr_system system;
        double low, high;
        unsigned models;
    } rows[] = {
        {"GPU-only sessions on KVCT", "253 to 339", KR_SYSTEM_GPU_ONLY, 253, 339, ALL},
        {"KARAT sessions on KVCT", "4,017 to 5,055", KR_SYSTEM_KARAT, 4017, 5055, ALL},
        {"SPNM sessions on KVCT", "733 to 2,539", KR_SYSTEM_SPNM, 733, 2539, ALL},
        {"Duplex sessions on KVCT", "254 to 354", KR_SYSTEM_DUPLEX, 254, 354, ALL},
        {"AttAcc sessions on KVCT", "164", KR_SYSTEM_ATTACC, 164, 164, 1 << MINIMAX},
        {"HiSparse sessions on KVCT", "674 to 1,340", KR_SYSTEM_HISPARSE, 674, 1340, ALL},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kr_claim *c = claim(b, "E-37", rows[i].text, rows[i].paper, rows[i].low, rows[i].high, NAN,
                            "sessions", SESSIONS_CAUSE);

        for (int m = 0; m < KR_CELL_MODELS; m++) {
            const kr_study_job *job = native(b, m, KR_CELL_KVCT, rows[i].system);

            if ((rows[i].models >> m & 1) != 0)
                kr_claim_value(c, job->status == KR_OK ? job->result.sessions : NAN);
        }
    }
}

static void breakdown_claims(book *b)
{
    static const char CAUSE[] = "kernels' times are public fits and rooflines, not the paper's table";
    kr_claim *c = claim(b, "E-14", "share of linear layers and experts in GPU-only's step, KVCT",
                        "58 to 74 %", 58, 74, NAN, "%", CAUSE);

    for (int m = 0; m < KR_CELL_MODELS; m++)
        kr_claim_value(c, linear_share(native(b, m, KR_CELL_KVCT, KR_SYSTEM_GPU_ONLY)));
    c = claim(b, "E-38", "share of linear layers and experts in KARAT's step, KVCT", "29 to 42 %", 29, 42,
              NAN, "%", CAUSE);
    for (int m = 0; m < KR_CELL_MODELS; m++)
        kr_claim_value(c, linear_share(native(b, m, KR_CELL_KVCT, KR_SYSTEM_KARAT)));
    c = claim(b, "E-38", "share of SPNM's step in which its indexer runs or the GPU stalls, KVCT",
              "33 to 65 %", 33, 65, NAN, "%", CAUSE);
    for (int m = 0; m < KR_CELL_MODELS; m++) {
        const kr_study_job *job = native(b, m, KR_CELL_KVCT, KR_SYSTEM_SPNM);

        kr_claim_value(c, job->status == KR_OK ? 100 * job->result.first.stall[KR_ON_DEVICE] : NAN);
    }
    c = claim(b, "E-38", "share of SPNM's step in which its indexer runs, DeepSeek-V3.2 on KVCT", "42 %", 42,
              42, NAN, "%", CAUSE);
    kr_claim_value(c, indexer_share(native(b, 0, KR_CELL_KVCT, KR_SYSTEM_SPNM)));
}

/* ---- IV-D: around KARAT's best points on KVCT ---- */

static double change_percent(const book *b, kr_variation v, int m)
{
    return 100 * (ratio(&b->cells->varied[v][m], native(b, m, KR_CELL_KVCT, KR_SYSTEM_KARAT)) - 1);
}

static double geomean_percent(const book *b, kr_variation v)
{
    double sum = 0.0;

    for (int m = 0; m < KR_CELL_MODELS; m++)
        sum += log(1 + change_percent(b, v, m) / 100);
    return 100 * (exp(sum / KR_CELL_MODELS) - 1);
}

static void varied_claim(book *b, kr_variation v, const char *id, const char *text, const char *paper,
                         double low, double high, const char *cause)
{
    kr_claim *c = claim(b, id, text, paper, low, high, 0, "%", cause);

    for (int m = 0; m < KR_CELL_MODELS; m++)
        kr_claim_value(c, change_percent(b, v, m));
}

/* Change of a share of busy or stalled time between a variation and the best point, in points. */
static void busy_claim(book *b, kr_variation v, kr_resource on, const char *id, const char *text,
                       const char *paper, double low, double high)
{
    kr_claim *c = claim(b, id, text, paper, low, high, 0, "% points",
                        v == KR_VARY_NO_OFMS ? OFMS_CAUSE : OVERLAP_CAUSE);

    for (int m = 0; m < KR_CELL_MODELS; m++) {
        const kr_study_job *x = &b->cells->varied[v][m], *y = native(b, m, KR_CELL_KVCT, KR_SYSTEM_KARAT);

        kr_claim_value(c, x->status == KR_OK && y->status == KR_OK
                              ? 100 * (x->result.first.busy[on] - y->result.first.busy[on])
                              : NAN);
    }
}

static void schedule_claims(book *b)
{
    kr_claim_value(claim(b, "E-39", "throughput without OFMS, KVCT, geometric mean", "-16 %", -16, -16, 0,
                         "%", OFMS_CAUSE),
                   geomean_percent(b, KR_VARY_NO_OFMS));
    kr_claim_value(claim(b, "E-39", "the same, DeepSeek-V3.2", "-33 %", -33, -33, 0, "%", OFMS_CAUSE),
                   change_percent(b, KR_VARY_NO_OFMS, 0));
    busy_claim(b, KR_VARY_NO_OFMS, KR_ON_COMPUTE, "E-39", "utilisation of GPUs without OFMS",
               "-8.5 to -10.4 %", -10.4, -8.5);
    busy_claim(b, KR_VARY_NO_OFMS, KR_ON_DEVICE, "E-39", "utilisation of memory devices without OFMS",
               "-9.4 to -13.6 %", -13.6, -9.4);
    kr_claim_value(claim(b, "E-40", "throughput without CMR, KVCT, geometric mean", "-5 %", -5, -5, 0, "%",
                         OVERLAP_CAUSE),
                   geomean_percent(b, KR_VARY_NO_CMR));
    kr_claim_value(claim(b, "E-40", "the same, DeepSeek-V3.2", "-21 %", -21, -21, 0, "%", OVERLAP_CAUSE),
                   change_percent(b, KR_VARY_NO_CMR, 0));
    busy_claim(b, KR_VARY_NO_CMR, KR_ON_COMPUTE, "E-40", "utilisation of GPUs without CMR", "0 to -7.2 %",
               -7.2, 0);
}

static void sensitivity_claims(book *b)
{
    varied_claim(b, KR_VARY_LINK_HALF, "E-42", "link at half the bytes a second", "-4 % to 0", -4, 0,
                 LINK_CAUSE);
    varied_claim(b, KR_VARY_LINK_DOUBLE, "E-42", "link at twice the bytes a second", "0 to +4 %", 0, 4,
                 LINK_CAUSE);
    varied_claim(b, KR_VARY_LINK_QUARTER, "E-42", "link at a quarter", "-32 to -8 %", -32, -8, LINK_CAUSE);
    varied_claim(b, KR_VARY_LATENCY_10, "E-42", "latency x10", "about 0", -1, 0.5,
                 "three messages a layer and micro-batch wait for it, two of them in turn");
    varied_claim(b, KR_VARY_LATENCY_100, "E-42", "latency x100", "-6 % to 0", -6, 0,
                 "60 us each way, twice a layer: 61 layers in turn are 7 ms of a step even where the other "
                 "micro-batch fills the wait; the paper's 6 % is 6 ms");
    varied_claim(b, KR_VARY_CORES_26, "E-43", "8 cores more a device (DeepSeek, GLM, MiniMax)",
                 "+3.8 % (geomean); DeepSeek +8 %", 0, 8, OVERLAP_CAUSE);
    kr_claim_value(
        claim(b, "E-43", "8 cores fewer a device, geometric mean", "-27 %", -27, -27, 0, "%",
              "ours scales FLOP/s with cores, memory not: at 10 cores only DeepSeek's scan (128 FLOP/B) "
              "is compute-bound. A loss of 27 % in the mean needs cores that also bound the bandwidth"),
        geomean_percent(b, KR_VARY_CORES_10));
}

static void skew_claims(book *b)
{
    static const char *const eplb[] = {"KARAT with EPLB under skew, over uniform",
                                       "HiSparse with EPLB under skew, over uniform"};
    kr_claim *c = claim(b, "E-41", "skewed experts: KARAT over GPU-only, KVCT", "2.4 to 3.9", 2.4, 3.9, 1,
                        "x", SKEW_CAUSE);

    for (int m = 0; m < KR_CELL_MODELS; m++)
        kr_claim_value(c, ratio(&b->cells->skewed[0][m][0], &b->cells->skewed[1][m][0]));
    c = claim(b, "E-41", "skewed experts: KARAT over HiSparse", "1.2 to 1.8", 1.2, 1.8, 1, "x", SKEW_CAUSE);
    for (int m = 0; m < KR_CELL_MODELS; m++)
        kr_claim_value(c, ratio(&b->cells->skewed[0][m][0], &b->cells->skewed[2][m][0]));
    for (int y = 0; y < 2; y++) {
        c = claim(b, "E-41", eplb[y], "restored (1)", 0.95, 1.0, NAN, "x", SKEW_CAUSE);
        for (int m = 0; m < KR_CELL_MODELS; m++)
            kr_claim_value(c,
                           ratio(&b->cells->skewed[2 * y][m][1],
                                 native(b, m, KR_CELL_KVCT, y == 0 ? KR_SYSTEM_KARAT : KR_SYSTEM_HISPARSE)));
    }
    c = claim(b, "E-41", "GPU-only on GLM-5.2: under skew, and with EPLB, over uniform", "0.80, 0.72", 0.72,
              0.80, 1, "x", SKEW_CAUSE);
    for (int balanced = 0; balanced < 2; balanced++)
        kr_claim_value(
            c, ratio(&b->cells->skewed[1][GLM][balanced], native(b, GLM, KR_CELL_KVCT, KR_SYSTEM_GPU_ONLY)));
    kr_claim_value(
        claim(b, "E-41", "GPU-only on MiniMax-M3 with EPLB over uniform", "0.75", 0.75, 0.75, 1, "x",
              SKEW_CAUSE),
        ratio(&b->cells->skewed[1][MINIMAX][1], native(b, MINIMAX, KR_CELL_KVCT, KR_SYSTEM_GPU_ONLY)));
}

/* ---- IV-E: the grid ---- */

static void search_claims(book *b)
{
    static const uint32_t eps[KR_CELL_EPS] = {8, 16, 32, 64};
    static const char SPLIT_CAUSE[] = "where the GPU side limits, more GPUs win";
    kr_claim *c = claim(b, "E-44", "best expert parallelism of GPU-only", "64", 64, 64, NAN, "",
                        "where the weights of fewer GPUs fit, a smaller group exchanges less");

    for (int m = 0; m < KR_CELL_MODELS; m++)
        for (int t = 0; t < KR_TRACES; t++) {
            const double *of = b->cells->gpu_only_by_ep[m][t];
            int best = 0;

            for (int k = 1; k < KR_CELL_EPS; k++)
                if (isfinite(of[k]) && !(of[best] >= of[k]))
                    best = k;
            kr_claim_value(c, isfinite(of[best]) ? eps[best] : NAN);
        }
    c = claim(b, "E-44", "best expert parallelism of KARAT", "16 to 32", 16, 32, NAN, "",
              "the grid is bounded by the GPUs of a split");
    for (int m = 0; m < KR_CELL_MODELS; m++)
        for (int t = 0; t < KR_TRACES; t++) {
            const kr_study_job *job = native(b, m, t, KR_SYSTEM_KARAT);

            kr_claim_value(c, job->status == KR_OK ? job->scenario.ep : NAN);
        }
    c = claim(b, "E-44", "best of the grid over its all-GPU column", "1.7 to 7.8", 1.7, 7.8, 1, "x",
              GPU_CAUSE);
    ratios(b, c, KR_SYSTEM_KARAT, KR_SYSTEM_GPU_ONLY, ALL, ALL);
    kr_claim_value(claim(b, "E-45", "GPUs of DeepSeek-V3.2's best split on KVCT", "16 (and 192 devices)", 16,
                         16, NAN, "GPUs", SPLIT_CAUSE),
                   native(b, 0, KR_CELL_KVCT, KR_SYSTEM_KARAT)->scenario.gpus);
    c = claim(b, "E-45", "GPUs of DeepSeek-V3.2's best split on SWE traces (synthetic)",
              "32 (and 128 devices)", 32, 32, NAN, "GPUs", SPLIT_CAUSE);
    for (int t = 1; t < KR_TRACES; t++)
        kr_claim_value(c, native(b, 0, t, KR_SYSTEM_KARAT)->scenario.gpus);
    c = claim(b, "E-45", "splits that GLM-5.2 and MiniMax-M3 keep over the traces", "one each", 1, 1, NAN,
              "splits", SPLIT_CAUSE);
    for (int m = GLM; m <= MINIMAX; m++) {
        const uint32_t of[] = {native(b, m, 0, KR_SYSTEM_KARAT)->scenario.gpus,
                               native(b, m, 1, KR_SYSTEM_KARAT)->scenario.gpus,
                               native(b, m, 2, KR_SYSTEM_KARAT)->scenario.gpus};

        kr_claim_value(c, 1 + (of[1] != of[0]) + (of[2] != of[0] && of[2] != of[1]));
    }
}

uint32_t kr_karat_claims(const kr_cells *cells, kr_claim claims[KR_CLAIMS_MAX])
{
    book b = {.cells = cells, .claim = claims};

    native_claims(&b);
    free_claims(&b);
    geomean_claims(&b);
    session_claims(&b);
    breakdown_claims(&b);
    schedule_claims(&b);
    sensitivity_claims(&b);
    skew_claims(&b);
    search_claims(&b);
    return b.claims;
}
