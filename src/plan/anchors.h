/* Published times of a decode step beside the simulator's: what absolute figures are worth. */
#ifndef KR_PLAN_ANCHORS_H
#define KR_PLAN_ANCHORS_H

#include "plan/scenario.h"

enum { KR_ANCHORS = 6 };

typedef struct {
    const char *name, *source; /* what was run, and where it was published */
    const char *device;        /* name of a descriptor in data/devices */
    uint32_t gpus, micro_batches;
    uint32_t sessions; /* decoding, on all GPUs together */
    uint64_t context;  /* tokens of each */
    double published_ms;
} kr_anchor;

extern const kr_anchor kr_anchors[KR_ANCHORS];

typedef struct {
    double ms;
    double provenance[KR_PROVENANCE_COUNT]; /* shares of op time */
} kr_anchor_result;

/* Simulates them with the descriptors in data, and with those of tables [count] that are of a device.
 * Expert routing is uniform. KR_E_NOT_FOUND, KR_E_MEMORY. */
kr_status kr_anchors_run(const char *data, kr_device_tables *const *tables, uint32_t count,
                         kr_anchor_result result[KR_ANCHORS], kr_err *err);

#endif
