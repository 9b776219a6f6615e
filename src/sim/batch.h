/* A fixed batch on one machine: the step program of one compute rank and one memory device in virtual
 * time, for sessions that all decode from the first step to the last.
 *
 * On a measured machine (device/machine.h) it costs a sender time to wake a receiver that sleeps. Who
 * sleeps is settled by repetition: simulate, see which share of the messages found their receiver idle,
 * lengthen the ops that send by that, simulate again. A few rounds settle it. */
#ifndef KR_SIM_BATCH_H
#define KR_SIM_BATCH_H

#include "device/machine.h"
#include "sim/sim.h"

/* One decoding session. */
typedef struct {
    uint64_t context_tokens; /* in the cache before the first step */
    uint32_t micro_batch;
} kr_sim_row;

typedef struct {
    const kr_sim_row *row; /* [rows] */
    uint32_t rows, steps;
    kr_step_policy policy;
} kr_sim_batch;

typedef struct {
    uint64_t elapsed_ns; /* of all steps */
    double step_s;       /* mean */
    double busy[2];      /* share of the time that the compute side, the device worked */
    double both;         /* share of the time that both did */
    double asleep[2];    /* share of the messages for compute, device that woke it */
    double provenance[KR_PROVENANCE_COUNT];
} kr_sim_batch_result;

/* Devices as they are. KR_E_ARG: a micro-batch that the program lacks, no rows or no steps;
 * placement all-on-node only. watch may be NULL. */
kr_status kr_sim_batch_run(const kr_program *program, const kr_device_model *compute,
                           const kr_device_model *memory, const kr_sim_batch *batch,
                           const kr_sim_watch *watch, kr_sim_batch_result *result, kr_err *err);

/* On a measured machine. */
kr_status kr_sim_machine_run(const kr_program *program, const kr_machine_mode *mode,
                             const kr_sim_batch *batch, kr_sim_batch_result *result, kr_err *err);

#endif
