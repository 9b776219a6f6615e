/* Where an op can run and what it costs: the CPU's probe and the descriptors of other devices.
 *
 * Real: cpu (this machine; later cuda). Modelled: any device described by JSON
 * (data/devices, schema in data/schema/device.schema.json) for the simulator. */
#ifndef KR_DEVICE_DEVICE_H
#define KR_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/num.h"
#include "base/status.h"
#include "model/op.h"
#include "ops/ops.h"

/* A device as pricing sees it; every figure carries its source in the JSON file. */
typedef struct {
    char name[64];
    double flops_f32, flops_bf16, flops_fp8; /* per second, peak; 0 = cannot */
    double memory_bytes_per_s, memory_bytes;
    double link_bytes_per_s, link_latency_s; /* to the other node type, per device */
    double fixed_s;                          /* per op launch */
    double flops_efficiency, memory_efficiency; /* reachable share of peak, 0..1 */
    double tdp_w, idle_w;
    bool can[KR_OP_KINDS];                   /* ops the device supports */
} kr_device_model;

kr_status kr_device_model_load(const char *path, kr_device_model *device, kr_err *err);

/* How far a number can be trusted; reported beside every simulated millisecond. */
typedef enum { KR_MEASURED, KR_INTERPOLATED, KR_EXTRAPOLATED, KR_MODELLED } kr_provenance;

/* What a probe at start found about this CPU; all rates of one thread. */
typedef struct {
    char cpu[96];
    uint32_t cores;
    double f32_fma_flops, bf16_dot_flops, fp16_fma_flops, int8_dot_ops; /* 0 = not present */
    double read_bytes_per_s;
    const char *chosen; /* one line: which variant of each op was taken */
} kr_cpu_probe;

/* Measures for at most budget_ms (about 30 is enough) and fills ops with the fastest usable
 * variant of each op. Never fails: scalar is always usable. */
void kr_cpu_choose(uint32_t budget_ms, kr_ops *ops, kr_cpu_probe *probe);

#endif
