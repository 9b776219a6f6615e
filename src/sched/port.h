/* The world as a scheduling policy may see it, and the orders it may give.
 *
 * engine/ (real hardware) and sim/ (virtual time) both implement this port, so what was simulated
 * is what runs. Policies are pure: no clock, no I/O, no allocation, no floating point; equal
 * candidates are decided by the smaller id. A policy may read only what is asked here.
 *
 * Ids: request and session numbers are the world's, stable for the life of a request; devices are
 * numbered over all nodes (node_of gives the node); ops are numbers in the step program. */
#ifndef KR_SCHED_PORT_H
#define KR_SCHED_PORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "model/op.h"

#define KR_NO_OP UINT32_MAX
#define KR_NO_DEVICE UINT32_MAX

/* State of an op in the step that is running. */
typedef enum {
    KR_OP_WAITING, /* a dependency has not finished (or not arrived over its link) */
    KR_OP_READY,
    KR_OP_RUNNING,
    KR_OP_DONE,
} kr_op_state;

/* A request as admission, placement and CMR see it. Tokens, not bytes: pages are the unit. */
typedef struct {
    uint64_t id;
    uint64_t context_tokens; /* KV present now */
    uint64_t prompt_tokens;  /* new tokens of this turn still to be ingested */
    uint64_t max_new_tokens; /* bound on growth by decode */
    uint32_t device;         /* home device, or KR_NO_DEVICE */
    uint32_t micro_batch;    /* current assignment */
    uint32_t prefix_device;  /* device that holds the longest known prefix, or KR_NO_DEVICE */
    uint64_t prefix_tokens;  /* tokens of that prefix */
} kr_request_view;

typedef struct {
    uint64_t pages_total, pages_used; /* pages of the session's layer-group set, see below */
    uint64_t pages_reserved;          /* promised to admitted requests, not yet used */
    uint32_t node;
    bool up; /* false: lost or draining; never chosen */
} kr_device_view;

/* The questions. context is the world's; no function changes anything. */
typedef struct kr_port {
    void *context;

    /* ---- devices and requests: placement, spill, admission, CMR ---- */
    uint32_t (*device_count)(const struct kr_port *port);
    kr_device_view (*device)(const struct kr_port *port, uint32_t device);
    uint32_t (*running_count)(const struct kr_port *port);              /* admitted requests */
    kr_request_view (*running)(const struct kr_port *port, uint32_t i); /* i ascending by id */
    uint32_t (*waiting_count)(const struct kr_port *port);
    kr_request_view (*waiting)(const struct kr_port *port, uint32_t i); /* arrival order */
    /* Pages a context of tokens occupies (all layer groups, windows counted). Monotonic. */
    uint64_t (*pages_for)(const struct kr_port *port, uint64_t tokens);
    uint32_t (*rows_max)(const struct kr_port *port); /* largest batch in rows */
    uint32_t (*micro_batches)(const struct kr_port *port);

    /* ---- one worker's queues: SCMS, OFMS ----
     * A worker (compute rank or device) sees the heads of its own per-micro-batch queues only. */
    uint32_t (*queue_head)(const struct kr_port *port, uint32_t worker, uint32_t micro_batch);
    kr_op_state (*op_state)(const struct kr_port *port, uint32_t op);
    kr_op_kind (*op_kind)(const struct kr_port *port, uint32_t op);
    uint32_t (*op_layer)(const struct kr_port *port, uint32_t op);
    uint32_t (*op_micro_batch)(const struct kr_port *port, uint32_t op);
    /* The static order of the worker in this step: SCMS's plan, position -> op. */
    uint32_t (*static_next)(const struct kr_port *port, uint32_t worker);
    /* True while worker has nothing running. */
    bool (*idle)(const struct kr_port *port, uint32_t worker);
    /* The kind of op the worker's static next op is waiting for (COMBINE, RETURN_OUT, ...). */
    kr_op_kind (*waits_for)(const struct kr_port *port, uint32_t op);
} kr_port;

/* ---- the orders, as return values: a policy never acts by itself ---- */

typedef struct {
    enum { KR_ADMIT, KR_DEFER, KR_REFUSE } verdict;
    uint32_t device;        /* KR_ADMIT: home device */
    uint64_t pages_needed;  /* at most, for the message of a refusal */
    uint64_t pages_largest; /* what the largest device could ever give */
} kr_admission;

/* Home device of a new session: the one that holds its longest prefix unless full, else the least
 * occupied (used + reserved pages), ties by id. KR_NO_DEVICE when none has a free page. */
uint32_t kr_sched_place(const kr_port *port, const kr_request_view *request);

/* Where the next page of a session whose home is full goes: least-occupied device of the same node
 * with a free page; KR_NO_DEVICE when the node is full. */
uint32_t kr_sched_spill(const kr_port *port, uint32_t home);

/* Whether the request may start now. REFUSE when it can never fit (context + prompt + growth over
 * the largest device's total), DEFER when it may fit later, in arrival order (no overtaking). */
kr_admission kr_sched_admit(const kr_port *port, const kr_request_view *request);

typedef enum { KR_POLICY_SCMS, KR_POLICY_OFMS } kr_step_policy;

/* The op that worker should start now, or KR_NO_OP to wait. Called whenever the worker is idle and
 * something changed. */
uint32_t kr_sched_next(const kr_port *port, kr_step_policy policy, uint32_t worker);

/* What rebalancing keeps of a request while it sorts them. */
typedef struct {
    uint64_t place, id; /* place: device ascending, then context descending */
    uint32_t index;     /* of the request */
} kr_sched_slot;

/* CMR: writes micro_batch[i] for running request i (order of port->running). scratch holds
 * [running_count] slots; contexts are below 2^40 tokens, devices below 2^24. Called when a request was
 * admitted or finished. */
void kr_sched_rebalance(const kr_port *port, uint8_t *micro_batch, kr_sched_slot *scratch);
/* The baseline: keep present assignments, put new ones (micro_batch = UINT32_MAX) where fewer
 * requests are on their device; ties: fewer over all, then the smaller number. */
void kr_sched_balance_count(const kr_port *port, uint8_t *micro_batch);

const char *kr_step_policy_name(kr_step_policy policy);

#endif
