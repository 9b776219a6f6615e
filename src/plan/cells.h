/* Inside plan/: the runs that the KARAT paper's claims are about, by what each is: model, method, trace,
 * system and what is varied.
 *
 * Every figure is throughput per TDP at the most sessions that keep a P99 of 100 ms, in the paper's
 * window, at the power nearest to 64 H200s in whole nodes. A cell holds the best of its candidates:
 * KARAT and GPU-only have the paper's grid of splits and expert parallelism, systems with other memory
 * devices the split nearest in power, all of them every expert parallelism. Around the best cells lie
 * the ablations and sensitivities, and the runs under skewed experts.
 *
 * The same cells can be run again under one change of what the papers leave open, each at the
 * configuration that was best without it. */
#ifndef KR_PLAN_CELLS_H
#define KR_PLAN_CELLS_H

#include "plan/reproduce.h"

enum {
    KR_CELL_MODELS = 3,
    KR_CELL_METHODS = 4, /* of Llama-3-70B */
    KR_CELL_SYSTEMS = 6, /* all but the memory-pipeline paper's pair */
    KR_CELL_SKEWED = 3,  /* KARAT, GPU-only, HiSparse */
    KR_CELL_EPS = 4      /* 8, 16, 32, 64 */
};

enum { KR_CELL_KVCT, KR_CELL_SWE_PRO, KR_CELL_SWE_CHAT };

typedef enum {
    KR_VARY_NO_OFMS,
    KR_VARY_NO_CMR,
    KR_VARY_LINK_HALF,
    KR_VARY_LINK_DOUBLE,
    KR_VARY_LINK_QUARTER,
    KR_VARY_LATENCY_10,
    KR_VARY_LATENCY_100,
    KR_VARY_CORES_26,
    KR_VARY_CORES_10,
    KR_VARIATIONS
} kr_variation;

/* What the papers leave open, moved away from what karat takes. */
typedef enum {
    KR_CHANGE_NONE,
    KR_CHANGE_PROMISE_TURN,
    KR_CHANGE_PROMISE_SESSION,
    KR_CHANGE_RESERVE,
    KR_CHANGE_LINK_UNSHARED,
    KR_CHANGE_NETWORK_MEASURED,
    KR_CHANGE_NETWORK_FLAT,
    KR_CHANGE_TWO_BATCHES,
    KR_CHANGE_DUPLEX_40,
    KR_CHANGE_ABSORB,
    KR_CHANGE_DEVICE_PEAK,
    KR_CHANGE_SPNM_FP8,
    KR_CHANGE_SKEW,
    KR_CHANGE_UNCUT,
    KR_CHANGE_SPREAD,
    KR_CHANGE_TRACE_SEED,
    KR_CHANGES
} kr_change;

typedef struct {
    const char *parameter, *here, *instead;
} kr_change_text;

/* [KR_CHANGES]; entry 0 is empty. */
extern const kr_change_text kr_change_texts[KR_CHANGES];

extern const char *const kr_cell_model_names[KR_CELL_MODELS];
extern const char *const kr_cell_method_names[KR_CELL_METHODS];
extern const char *const kr_cell_trace_names[KR_TRACES];

/* status is KR_E_NOT_FOUND in a cell that the paper has no run for. */
typedef struct {
    kr_study_job native[KR_CELL_MODELS][KR_TRACES][KR_CELL_SYSTEMS];
    kr_study_job trained[KR_CELL_METHODS][KR_TRACES][KR_CELL_SYSTEMS]; /* Llama-3-70B */
    kr_study_job varied[KR_VARIATIONS][KR_CELL_MODELS];                /* KARAT on KVCT */
    kr_study_job skewed[KR_CELL_SKEWED][KR_CELL_MODELS][2];            /* on KVCT; 1: with EPLB */
    double gpu_only_by_ep[KR_CELL_MODELS][KR_TRACES][KR_CELL_EPS];     /* tokens/s/W; NAN: cannot run */
    uint32_t runs;                                                     /* points that were run */
    uint64_t digest;                                                   /* of the runs of all cells */
} kr_cells;

/* Traces: as they are, with contexts cut to what Llama-3 can hold, and SWE traces of another draw. */
typedef struct {
    kr_plan_workload whole[KR_TRACES], cut[KR_TRACES], drawn_again[KR_TRACES];
} kr_cell_traces;

/* Runs all cells. from: cells of an earlier run to start from, NULL with KR_CHANGE_NONE; what the change
 * does not touch is copied. all, if not NULL, gets every candidate that was run: *all [*all_count],
 * from kr_alloc. KR_E_MEMORY. */
kr_status kr_cells_run(const kr_reproduce_options *options, const kr_cell_traces *traces, kr_change change,
                       const kr_cells *from, kr_cells *cells, kr_study_job **all, uint32_t *all_count,
                       kr_err *err);

/* Of a cell; NAN when it could not run. */
double kr_cell_per_watt(const kr_study_job *cell);

/* The paper's claims E-14 to E-45 judged on the cells; returns how many were written. */
uint32_t kr_karat_claims(const kr_cells *cells, kr_claim claims[KR_CLAIMS_MAX]);

#endif
