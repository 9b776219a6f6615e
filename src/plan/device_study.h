/* The memory device under the KARAT paper's questions: which of its four requirements a device meets
 * (Table III), what memory, cores and link do to it (Figs. 7 and 13, Table IV), and what a node of it is
 * (Table V). */
#ifndef KR_PLAN_DEVICE_STUDY_H
#define KR_PLAN_DEVICE_STUDY_H

#include "plan/batch.h"

enum { KR_DEVICE_MODELS = 3, KR_DEVICE_CLASSES = 5, KR_DEVICE_SWEEP = 8, KR_DEVICE_MEMORIES = 4 };

/* Against the H200: R1 capacity a watt an order of magnitude above, R2 bandwidth a watt at least 0.8 of it
 * (what the paper accepts of LPDDR5X), R3 ridge at least the 128 FLOP/B of the most intense scan, R4 every
 * stage that reads the KV cache. */
typedef struct {
    char name[64];
    double capacity_per_w, bandwidth_per_w; /* over the H200's */
    double ridge;                           /* FLOP/B at the narrowest type it multiplies */
    bool capacity, bandwidth, compute, general;
} kr_device_verdict;

/* Of the paper's Table IV; power as a multiple of the LPDDR5X device's. */
typedef struct {
    const char *name;
    double bytes, bytes_per_s, power;
} kr_memory_type;

extern const kr_memory_type kr_memory_types[KR_DEVICE_MEMORIES];
extern const char *const kr_device_models[KR_DEVICE_MODELS];

typedef struct {
    double at;                       /* cores, or the factor */
    double scan_s[KR_DEVICE_MODELS]; /* Score of one request of 144K tokens in all layers */
    double power_w, area_mm2;        /* while it scans for the first model; 0: not stated */
    kr_study_job job;                /* the cluster with it */
} kr_device_point;

typedef struct {
    kr_device_model device;
    kr_device_verdict verdict[KR_DEVICE_CLASSES + 1]; /* of the classes, then of the device itself */
    struct {
        double devices, power_kw, memory_tb, bandwidth_tb_s, bf16_tflops;
    } node;                                     /* of the power of eight H200s */
    kr_device_point cores[KR_DEVICE_SWEEP];     /* by number of cores */
    kr_device_point link[5];                    /* by factor on the link's bytes a second */
    kr_device_point memory[KR_DEVICE_MEMORIES]; /* by memory type, as many devices as the watts allow */
} kr_device_study;

/* base: model, method, data and the device's descriptor (memory; NULL: KARAT's). The cluster is 16 GPUs and
 * as many devices as 33.6 kW allow, in whole nodes. KR_E_*: what reading data and running returns. */
kr_status kr_device_study_run(const kr_scenario_options *base, const kr_study_options *study,
                              const kr_plan_workload *workload, uint32_t threads, kr_device_study *out,
                              kr_err *err);

kr_device_verdict kr_device_judge(const kr_device_model *device, const kr_device_model *h200);

#endif
