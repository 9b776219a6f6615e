/* The two forms of `karat sim` about karat's own runtime: sessions on a machine that karat profile has
 * measured, and a recorded run of karat run. */
#ifndef KR_CLI_SIM_OWN_H
#define KR_CLI_SIM_OWN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct {
    const char *model; /* model file, as for karat run */
    const char *machine, *replay, *method, *kv_dtype;
    uint32_t budget, sessions, micro_batches; /* sessions 0: one; micro_batches 0: as karat run chooses */
    uint64_t context, tokens;                 /* in each cache; decoded by each session */
    bool node_process;                        /* the node is another process */
    bool json;
} kr_sim_own_options;

/* Prints what the sessions would get; *code is the exit status on success. */
kr_status kr_sim_own_machine(const kr_sim_own_options *options, int *code, kr_err *err);
/* Replays the record and prints how far it and the simulator agree. KR_E_STALE: not the same decisions. */
kr_status kr_sim_own_replay(const kr_sim_own_options *options, int *code, kr_err *err);

#endif
