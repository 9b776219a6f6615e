/* A recorded run: what a worker could see and what it started, so that the simulator can replay
 * the engine's run and must come to the same decisions.
 *
 * File: JSON lines. First line: {"karat_run":1,"policy","program_digest","workers","steps",
 * "micro_batches", "program"}; then one event a line {"t","step","op","worker","what"}, times ascending.
 * Written by engine/, read by sim/. */
#ifndef KR_PROGRAM_RECORD_H
#define KR_PROGRAM_RECORD_H

#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "method/method.h"
#include "model/model.h"

typedef enum {
    KR_RUN_ARRIVED = 1, /* op's result became visible to the worker (link, all-to-all) */
    KR_RUN_STARTED = 2, /* the policy chose op */
    KR_RUN_DONE = 3,
} kr_run_what;

typedef struct {
    uint64_t time_ns; /* since the first event */
    uint32_t step, op;
    uint16_t worker;
    uint16_t what; /* kr_run_what */
} kr_run_event;

/* What a program is built from, beside the model: enough to build the recorded one again. In the file
 * methods are their bytes in hexadecimal, which is their wire form, once for layers that have the same. */
typedef struct {
    char model[96]; /* kr_model.name */
    uint64_t context_max;
    kr_dtype kv_dtype;
    kr_placement placement;
    uint32_t layers; /* 0: not recorded */
    kr_method_config method[KR_LAYERS_MAX];
} kr_run_program;

typedef struct {
    uint32_t policy; /* kr_step_policy */
    uint32_t workers, steps;
    uint32_t micro_batches;
    uint64_t program_digest;
    kr_run_program program;
} kr_run_header;

kr_status kr_run_write(FILE *file, const kr_run_header *header, const kr_run_event *events, uint64_t count,
                       kr_err *err);
/* Events are allocated with kr_alloc and owned by the caller; at most events_max of them. */
kr_status kr_run_read(const char *path, kr_run_header *header, kr_run_event **events, uint64_t *count,
                      uint64_t events_max, kr_err *err);

#endif
