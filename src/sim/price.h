/* Inside sim/: how long each op of a step takes on each rank and device, from the cost module's work
 * and the device models.
 *
 * Ops that always take the same time share a price: the same kind, cost terms, and way of attending
 * (class). A place is a rank or a device; its load in a micro-batch is kept by class, since layers
 * that attend in different ways meet different numbers of tokens on the same requests. */
#ifndef KR_SIM_PRICE_H
#define KR_SIM_PRICE_H

#include "sim/route.h"
#include "sim/step.h"

enum { KR_LOAD_CLASSES_MAX = 8 };

/* Requests of one micro-batch on one place. load[class].rows are equal in all classes. */
typedef struct {
    kr_load load[KR_LOAD_CLASSES_MAX];
} kr_place_load;

typedef struct {
    kr_op op; /* the first op with this price */
    uint32_t load_class;
    const char *method; /* of a stage: whose curve prices it; NULL for other ops */
    uint32_t uses;      /* ops a micro-batch has with it */
    kr_dtype math;
    kr_op_kernels kernels;
    const double *slowest; /* EXPERTS: shares of the experts on the most loaded rank; NULL: uniform */
    bool by_rows;          /* depends on rows alone, and not less with more of them */
    bool monotone;         /* never less with more of anything */
} kr_price;

typedef struct {
    const kr_program *program;
    const kr_sim_hardware *hardware;
    kr_price *price;    /* [prices] */
    uint32_t *price_of; /* [ops] */
    uint32_t prices;
    const kr_method_plan *class_plan[KR_LOAD_CLASSES_MAX];
    uint32_t classes;
    uint32_t ranks, devices; /* of the cluster */
    double *slowest;         /* [layers or 1][slowest_experts] */
    uint32_t slowest_experts;
    bool share_by_layer;
} kr_pricer;

kr_status kr_pricer_init(kr_pricer *pricer, const kr_program *program, const kr_sim_hardware *hardware,
                         const kr_sim_options *options, uint32_t ranks, uint32_t devices, kr_err *err);
void kr_pricer_free(kr_pricer *pricer);

/* Adds one decoding request with context tokens (own new token included) to a place's load. */
void kr_pricer_add(const kr_pricer *pricer, kr_place_load *place, uint64_t context_tokens);

/* Routed experts of an accelerator when all ranks together decode rows tokens: its share of the (token,
 * expert) pairs of its group, and how many of its experts any token is expected to choose. slowest: shares
 * of its experts, or NULL for uniform routing. */
void kr_pricer_experts(const kr_pricer *pricer, const double *slowest, uint64_t rows, kr_load *load);

/* Fills times for all micro-batches. rank is [ranks][micro_batches], device
 * [devices][micro_batches]. Expanded: an entry for each; else entry 0 is the slowest of all.
 * provenance_ns gets, by where each figure is from, the time of all ops of a step. */
void kr_pricer_fill(const kr_pricer *pricer, const kr_place_load *rank, const kr_place_load *device,
                    bool expanded, kr_step_times *times, uint64_t provenance_ns[KR_PROVENANCE_COUNT]);

#endif
