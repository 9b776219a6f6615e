/* Where an op can run and what it costs: the CPU's probe and the descriptors of other devices.
 *
 * Real: cpu (this machine; later cuda). Modelled: any device described by JSON
 * (data/devices, schema in data/schema/device.schema.json) for the simulator. */
#ifndef KR_DEVICE_DEVICE_H
#define KR_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "base/num.h"
#include "base/status.h"
#include "model/op.h"
#include "ops/ops.h"

/* How far a number can be trusted; reported beside every simulated millisecond. */
typedef enum { KR_MEASURED, KR_INTERPOLATED, KR_EXTRAPOLATED, KR_MODELLED } kr_provenance;

enum { KR_PROVENANCE_COUNT = 4, KR_DEVICE_CURVES_MAX = 128, KR_DEVICE_MATRICES_MAX = 4 };

const char *kr_provenance_name(kr_provenance provenance);

/* A formula fitted to measurements of one op: seconds = start + per_row * rows
 * + per_attended * attended tokens + per_context * context tokens + per_expert * experts with a row
 * + per_expert_row * (row, expert) pairs; sums over the batch. Several curves of one op in ascending
 * domains make a table: between two measured numbers of rows lies the line through them. */
typedef struct {
    kr_op_kind op;
    char model[48];  /* kr_model.name it was measured on; "" = any */
    char method[16]; /* retrieval method it was measured with; "" = any that has no curve of its own */
    uint32_t ranks;  /* all-to-all: ranks that took part; 0 for other ops */
    uint32_t key_width, heads; /* attend: of the kernel measured, heads of one accelerator; 0 = any */
    double start_s, per_row_s, per_attended_s, per_context_s, per_expert_s, per_expert_row_s;
    double rows_max, context_max; /* measured domain, context summed over the batch; 0 = no bound */
    double compute_share;         /* all-to-all: part of its time that keeps the compute units busy */
    kr_provenance provenance;     /* inside the domain */
} kr_device_curve;

/* A formula fitted to matrix products of one type: seconds = start + max(FLOPs / flops,
 * bytes / bytes_per_s, depth_s * in), bytes being the matrix, rows in and, as BF16, rows out. The last
 * term is what a product too small for all units takes to walk along a row. */
typedef struct {
    kr_dtype math;
    double start_s, flops, bytes_per_s, depth_s;
    double rows_max; /* measured domain */
} kr_device_matrix;

/* Measured times on grids of shapes, read on request beside a descriptor (device/tables.h). */
typedef struct kr_device_tables kr_device_tables;

/* A device as pricing sees it; every figure carries its source in the JSON file. */
typedef struct {
    char name[64];
    double flops_f32, flops_bf16, flops_fp8; /* per second, peak; 0 = cannot */
    double memory_bytes_per_s, memory_bytes;
    double fast_bytes, fast_bytes_per_s;        /* on-chip memory that holds index keys; 0 = none */
    double link_bytes_per_s, link_latency_s;    /* to the other node type, per device */
    double peer_bytes_per_s, peer_latency_s;    /* to devices of its own node; 0 = not stated */
    double fixed_s;                             /* per op launch */
    double flops_efficiency, memory_efficiency; /* reachable share of peak, 0..1 */
    double tdp_w, idle_w;
    /* Energy above idle: of a byte read or written, with its way to the units; of a FLOP; of a byte
     * over the link. All 0 = not stated. */
    double memory_j_per_byte, f32_j_per_flop, bf16_j_per_flop, fp8_j_per_flop, link_j_per_byte;
    double cores, clock_hz;                                               /* 0 = not stated */
    double area_core_mm2, area_cache_mm2, area_link_mm2, area_memory_mm2; /* all cores; 0 = not stated */
    bool can[KR_OP_KINDS];                                                /* ops the device supports */
    kr_device_curve curve[KR_DEVICE_CURVES_MAX];
    uint32_t curves;
    kr_device_matrix matrix[KR_DEVICE_MATRICES_MAX];
    uint32_t matrices;
    double small_kernel_s;          /* of a kernel that only passes rows through; 0 = not stated */
    const kr_device_tables *tables; /* or NULL; not owned */
} kr_device_model;

kr_status kr_device_model_load(const char *path, kr_device_model *device, kr_err *err);
/* The same from an object that is part of a larger file. */
kr_status kr_device_model_read(kr_json json, kr_device_model *device, kr_err *err);

/* The form of the file is in device/tables.h. The caller owns *tables. KR_E_FORMAT names the table. */
kr_status kr_device_tables_load(const char *path, kr_device_tables **tables, kr_err *err);
void kr_device_tables_free(kr_device_tables *tables);
/* Whether they were measured on a device of this name. */
bool kr_device_tables_are_of(const kr_device_tables *tables, const char *name);

/* One op to be priced on a modelled device. */
typedef struct {
    kr_op_kind op;
    kr_dtype math;      /* what the multiplications run in: KR_E4M3, KR_BF16, KR_F32, ... */
    const char *model;  /* kr_model.name */
    const char *method; /* of the stages of a retrieval method; NULL for other ops */
    uint32_t ranks;     /* all-to-all: ranks taking part */
    kr_work work;
    uint64_t fast_read_bytes; /* of what is read: lies in the device's fast memory */
    uint64_t rows, context_tokens, attended_tokens, experts, expert_rows;
    const kr_op_kernels *kernels; /* or NULL: nothing is known but the work */
} kr_device_job;

/* How long an op takes, and how much of that rests on what; the parts sum to ns. */
typedef struct {
    uint64_t ns;
    uint64_t by_ns[KR_PROVENANCE_COUNT];
} kr_device_time;

/* The first of these that the device has: a measured table of the op (device/tables.h); a curve, the
 * first whose domain holds the job, else the last, whose time is then extrapolated, and of an all-to-all
 * that of the smallest measured group that is not smaller; its kernels, each matrix by table or fitted
 * formula, each small one by its constant; the roofline
 * fixed + max(FLOPs / reachable FLOP/s, bytes / reachable bytes/s), which is modelled. A type that the
 * device cannot multiply runs at the rate of the next wider one it can. Link ops are not
 * priced here. */
kr_device_time kr_device_op_time(const kr_device_model *device, const kr_device_job *job);
/* Whether a table or a curve, not kernels or the roofline, prices the op. */
bool kr_device_measured(const kr_device_model *device, const kr_device_job *job);
/* Whether the op never gets shorter when there is more of anything: not said of measured points. */
bool kr_device_monotone(const kr_device_model *device, const kr_device_job *job);
/* Part of an all-to-all's time in which it keeps the compute units busy, 0..1. */
double kr_device_compute_share(const kr_device_model *device, const kr_device_job *job);

/* Energy above idle of work on the device, by part. */
double kr_device_math_j(const kr_device_model *device, kr_dtype math, const kr_work *work);
double kr_device_memory_j(const kr_device_model *device, const kr_work *work);

/* What a probe at start found about this CPU; all rates of one thread. */
typedef struct {
    char cpu[96];
    uint32_t cores;
    double f32_fma_flops, bf16_dot_flops, fp16_fma_flops, int8_dot_ops; /* 0 = not present */
    double read_bytes_per_s;
    char chosen[320]; /* one line: which variant of each op was taken */
} kr_cpu_probe;

/* Measures for about budget_ms of the thread's own time (30 is enough) and fills ops with the fastest
 * usable variant of each op, of those that give the scalar form's bits: the choice never changes a
 * result. What the budget does not reach keeps the first usable variant, or a rate of 0. Never fails:
 * scalar is always usable. */
void kr_cpu_choose(uint32_t budget_ms, kr_ops *ops, kr_cpu_probe *probe);

#endif
