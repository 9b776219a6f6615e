/* Inside sim/: one decode step as events on workers, links and all-to-alls.
 *
 * The cluster is cells of ranks and devices: any rank of a cell talks to any device of it and to
 * none outside. Within a cell an op has one task per rank (compute), per device (device, link); an
 * all-to-all is one task for the whole cluster, begun when every cell is ready for it. An op is
 * done in a cell when all its tasks there are; between two ops of the same worker only its own tasks
 * matter. Workers (ranks and devices) run one task at a time
 * and are asked what to start through kr_port; a link carries messages of one direction in the order
 * in which they became ready (the two directions at once), and so does the all-to-all network.
 *
 * At each instant all completions are applied, then messages that became ready start, in ascending
 * op and cell, until nothing more arrives at that instant; then workers to which something happened
 * are asked, in ascending id, and if they started tasks that take no time, all this is repeated. */
#ifndef KR_SIM_STEP_H
#define KR_SIM_STEP_H

#include "base/heap.h"
#include "sim/sim.h"

typedef struct {
    uint32_t cells, ranks, devices; /* ranks and devices per cell; devices may be 0 */
} kr_step_shape;

/* Durations in ns, by price: ops that always take the same time share one.
 * compute [micro_batches][prices][cells * ranks], device and link
 * [micro_batches][prices][cells * devices], all_to_all [micro_batches][prices]: the places that start
 * an op at about the same time lie side by side. A link is taken for
 * its duration, and the message arrives link_latency_ns later; an empty one takes no time. */
typedef struct {
    const uint32_t *price; /* [ops] */
    uint32_t prices;
    uint64_t *compute, *device, *link, *all_to_all;
    uint64_t link_latency_ns;
} kr_step_times;

typedef struct kr_step kr_step;

typedef struct {
    uint64_t busy_ns[KR_RESOURCE_COUNT];  /* summed over instances */
    uint64_t stall_ns[KR_RESOURCE_COUNT]; /* of compute ranks, by what they waited for */
    uint64_t events;
    uint32_t live_max; /* events in the queue at once */
} kr_step_sums;

kr_status kr_step_create(kr_step **step, const kr_program *program, const kr_step_shape *shape, kr_err *err);
void kr_step_destroy(kr_step *step);

/* Runs a whole step that begins at begin_ns; returns when it ends. sums are added to. */
uint64_t kr_step_run(kr_step *step, const kr_step_times *times, kr_step_policy policy, uint64_t begin_ns,
                     uint32_t number, const kr_sim_watch *watch, kr_step_sums *sums);

#endif
