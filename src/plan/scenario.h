/* A system under study, ready to simulate: model, method, devices, step program, hardware, and the
 * sessions of a trace. What the systems are is in scenario.c; what the devices are is in data/. */
#ifndef KR_PLAN_SCENARIO_H
#define KR_PLAN_SCENARIO_H

#include "base/arena.h"
#include "sim/sim.h"
#include "workload/trace.h"

/* ---- sessions ---- */

typedef struct {
    kr_sim_workload view;
    kr_sim_session *session;
    kr_sim_turn *turn;
    uint64_t context_max;   /* largest context + output of a turn */
    uint64_t dropped_turns; /* that decode nothing */
} kr_plan_workload;

typedef enum { KR_THINK_NONE, KR_THINK_TRACE, KR_THINK_MEAN } kr_think;

typedef struct {
    kr_think think;  /* between turns: not at all; as the trace has it (none stated = 0); exponential */
    double think_s;  /* mean of KR_THINK_MEAN, 0..3600 */
    uint64_t seed;   /* of those times, which belong to (session, turn): the same for every system */
    bool sub_agents; /* sub-agents are sessions of their own; else left out */
} kr_plan_load;

/* Rules: turns without output are left out, and sessions without any other; the turns' uncached input
 * is ingested; nobody thinks longer than an hour. KR_E_ARG; KR_E_MEMORY; KR_E_FORMAT when nothing is
 * left. */
kr_status kr_plan_workload_of(const kr_trace *trace, const kr_plan_load *load, kr_plan_workload *workload,
                              kr_err *err);
/* The same sessions with no context and output over tokens: turns that are longer begin later in them. */
kr_status kr_plan_workload_cut(const kr_plan_workload *from, uint64_t tokens, kr_plan_workload *workload,
                               kr_err *err);
void kr_plan_workload_free(kr_plan_workload *workload);

/* ---- systems ---- */

typedef enum {
    KR_SYSTEM_KARAT,
    KR_SYSTEM_GPU_ONLY,
    KR_SYSTEM_HISPARSE,
    KR_SYSTEM_DUPLEX,
    KR_SYSTEM_ATTACC,
    KR_SYSTEM_SPNM,
    KR_SYSTEM_FPGA,
} kr_system;

enum { KR_SYSTEMS = 7 };
extern const char *const kr_system_names[KR_SYSTEMS + 1]; /* NULL-terminated */

/* Factors on what a device descriptor says: 1 leaves it; measured tables stay. For sensitivities, never for
 * fitting. */
typedef struct {
    double link_bytes, link_latency;      /* between ranks and memory devices; the experts' network stays */
    double cores, memory_bytes_per_s;     /* of memory devices */
    double compute_flops, compute_memory; /* of compute ranks: rooflines and matrix products */
    double curves;                        /* time by fitted curves and fixed costs of kernels */
    double memory_fp8;                    /* FP8 rate of memory devices, beside cores */
    double memory_bytes, memory_watts;    /* of memory devices */
} kr_plan_factors;

#define KR_PLAN_NO_FACTORS           \
    {                                \
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1 \
    }

typedef struct {
    const char *data;  /* folder with models/ and devices/ */
    const char *model; /* "deepseek-v3.2", or a path that ends in .json */
    kr_system system;
    const char *method;     /* "native", "dense", "quest", ... */
    uint32_t budget;        /* tokens attended; 0 = the method's default */
    uint32_t mode;          /* the method's named variant; 0 = its default */
    uint32_t gpus, devices; /* devices: ignored by systems without or with built-in ones */
    uint32_t ep, tp;        /* ep 0: all compute ranks, at most the model's experts */
    uint32_t micro_batches;
    const char *compute, *memory;      /* descriptor paths instead of the system's own, or NULL */
    const kr_device_tables *tables;    /* measured on the compute device, or NULL; not owned */
    bool exact;                        /* own accounting and absorbed queries, not the paper's */
    bool all_to_all_by_bytes;          /* the paper's 400 GB/s a node instead of the measured curves */
    double reserved_share;             /* of a device's memory, kept back; 0 = 5 % */
    uint32_t spread;                   /* memory devices that share out the KV heads of a session; 0 = 1 */
    bool flat_network;                 /* experts' exchanges inside a node cross the network too */
    bool link_unshared, fast_unshared; /* see kr_sim_hardware */
    bool unlimited_memory;             /* sessions always fit: for questions of time alone */
    kr_plan_factors factors;
} kr_scenario_options;

typedef struct {
    kr_model model;
    kr_device_model compute, memory;
    kr_arena arena;
    kr_program program;
    kr_sim_hardware hardware;
    kr_memory_plan bytes;
    double tdp_w;
} kr_scenario;

/* KR_E_ARG, KR_E_UNSUPPORTED (why the point cannot be), KR_E_NOT_FOUND. A scenario must not be copied. */
kr_status kr_scenario_init(kr_scenario *scenario, const kr_scenario_options *options, uint64_t context_max,
                           kr_err *err);
void kr_scenario_free(kr_scenario *scenario);

/* Devices that with gpus H200s come nearest to watts, in whole nodes; the paper's rule. For systems
 * without memory devices of their own, gpus is what changes: then 0 is returned and *gpus set. */
uint32_t kr_system_devices_for(kr_system system, double watts, uint32_t *gpus);
/* The numbers of GPUs and memory devices, at least a node of each where the system has both, whose TDP is
 * nearest to watts; of equals the one with most memory devices. */
void kr_system_nearest(kr_system system, double watts, uint32_t *gpus, uint32_t *devices);

#endif
