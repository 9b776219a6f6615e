/* A cluster of compute ranks and memory devices in virtual time: the step program and the policies
 * of sched/ on modelled hardware, under a closed loop of sessions.
 *
 * A closed loop keeps N sessions in flight. A session waits for admission, has its new tokens
 * ingested into its home device, decodes one token a step until its turn ends, thinks, and begins
 * its next turn; when its last turn ends another session takes its place. Steps follow each other
 * while anything decodes; all compute ranks step together, since expert parallelism makes them.
 *
 * What is simplified: prefill is another pool's and takes no time here (its KV crosses the link);
 * ingest shares no link with decode; a session's pages are promised when it is admitted (kr_promise), so
 * it never spills; expert-parallel groups run in lockstep.
 *
 * Time is integer nanoseconds. Nothing reads a clock: the same inputs give the same bytes. */
#ifndef KR_SIM_SIM_H
#define KR_SIM_SIM_H

#include "base/arena.h"
#include "base/status.h"
#include "device/device.h"
#include "program/program.h"
#include "program/record.h"
#include "sched/port.h"

/* One turn: context_tokens lie in the KV cache when decode begins, new_tokens of them were ingested
 * for this turn, output_tokens are then generated one a step. */
typedef struct {
    uint64_t context_tokens, new_tokens, output_tokens;
    uint64_t think_ns; /* between the end of the previous turn and the arrival of this one */
} kr_sim_turn;

typedef struct {
    uint64_t id;             /* of the trace */
    const kr_sim_turn *turn; /* [turns], turns >= 1 */
    uint32_t turns;
} kr_sim_session;

typedef struct {
    const kr_sim_session *session; /* [sessions] */
    uint32_t sessions;
} kr_sim_workload;

typedef struct {
    const kr_device_model *compute; /* one rank is tp of them */
    const kr_device_model *memory;  /* NULL iff the program's placement is all-on-compute */
    uint32_t devices;               /* memory devices in all; ignored without memory */
    uint32_t devices_per_node;      /* >= 1: a page spills inside a node */
    double reserved_share;          /* of a device's memory kept for workspaces, 0..0.9 */
    bool all_to_all_by_bytes;       /* price all-to-alls by bytes over the network, not by a curve */
    uint32_t ranks_per_node;        /* accelerators whose traffic to each other stays inside; 0 = 1 */
    double rank_link;   /* factor on the ranks' end of links to devices, not on their network; 0 = 1 */
    bool link_unshared; /* each request's message as if it had the link to itself */
    bool fast_unshared; /* each layer's index as if it had the devices' fast memory to itself */
    /* All-on-compute with the KV cache in host memory and its hot entries on the accelerator
     * (HiSparse): bytes of it for each rank, 0 = none. The index stays on the accelerator; a share
     * of what Attend reads is missed and crosses the host's link, without overlap. */
    double host_bytes, host_bytes_per_s, host_miss_share;
} kr_sim_hardware;

/* What an admitted session is promised: the pages of its largest turn from here on, so that it never
 * spills; of its largest turn at all; or of its present turn alone, asked for again at each turn without
 * a check, so that a device can be overdrawn (kr_sim_result.overdrawn). */
typedef enum { KR_PROMISE_REST, KR_PROMISE_SESSION, KR_PROMISE_TURN } kr_promise;

typedef struct {
    kr_step_policy policy;
    kr_promise promise;
    bool rebalance;    /* CMR; false: balance by count, keeping assignments */
    bool expanded;     /* every rank and device a worker of its own; false: the slowest of each */
    uint32_t sessions; /* N, in flight at all times */
    uint32_t rows_max; /* decoding at once; 0 = no bound */
    bool first_turns;  /* initial sessions begin at their first turn, not at a random one */
    uint64_t seed;
    /* Share of all (token, expert) pairs that each routed expert gets, in every layer alike, summing to 1;
     * NULL = uniform. Experts lie in order of number, and the rank with the largest share sets the time
     * of the experts, and of measured exchanges by the rows it receives. balance_experts (EPLB): one
     * redundant expert a rank, given to the most loaded experts in turn, replicas packed largest first
     * onto the least loaded rank; their weights take memory. */
    const double *expert_share;
    bool share_by_layer; /* expert_share is [layers][experts]; rows of layers without experts are ignored */
    bool balance_experts;
    uint64_t tokens_max, time_max_ns, steps_max; /* stop at the first reached; 0 = no bound, not all 0 */
    uint32_t warmup_percent; /* of the generated tokens left out of the measured part, 0..90 */
    bool warmup_by_test;     /* leave out what MSER-5 finds instead */
} kr_sim_options;

/* One decode step, for whoever wants more than the sums. */
typedef struct {
    uint64_t begin_ns, end_ns;
    uint32_t step, rows;
    uint64_t context_tokens; /* summed over rows */
    uint64_t digest;         /* of the run up to and with this step */
} kr_sim_step_view;

typedef struct {
    void *context;
    void (*step)(void *context, const kr_sim_step_view *step); /* or NULL */
    /* Or NULL: of every task. Times ascend, but for STARTED of a message, which says when its link
     * takes it. Workers: per cell its ranks, then its devices; after all of them links, the network. */
    void (*event)(void *context, const kr_run_event *event);
} kr_sim_watch;

/* Where power goes; see energy.h for what is left out. */
typedef enum {
    KR_POWER_COMPUTE_IDLE,
    KR_POWER_COMPUTE_UNITS,
    KR_POWER_COMPUTE_MEMORY,
    KR_POWER_DEVICE_IDLE,
    KR_POWER_DEVICE_UNITS,
    KR_POWER_DEVICE_MEMORY,
    KR_POWER_LINKS,
    KR_POWER_NETWORK,
} kr_power_part;

enum { KR_POWER_PARTS = 8 };
/* "compute, idle", ... */
const char *kr_power_name(kr_power_part part);

typedef struct {
    uint64_t steps, tokens, elapsed_ns;
    /* The measured part: after the warm-up share. */
    uint64_t measured_steps, measured_tokens, measured_ns;
    double tokens_per_s, tdp_w, tokens_per_s_per_w;
    double watts[KR_POWER_PARTS], joules_per_token; /* modelled; all 0 when a device states no energy */
    double tokens_per_s_half_width;                 /* 95 % by batch means; infinite below 100 steps */
    bool stationary;                                /* see sim/steady.h; false is a result, not an error */
    uint64_t tbt_p50_ns, tbt_p90_ns, tbt_p99_ns, tbt_max_ns; /* over tokens: a step counts its rows */
    double rows_mean, context_mean;                          /* per step; per row */
    double busy[KR_RESOURCE_COUNT];                          /* share of measured time, mean over instances */
    /* Compute rank idle, by what its next op waited for, as share of measured time. */
    double stall[KR_RESOURCE_COUNT];
    double provenance[KR_PROVENANCE_COUNT]; /* share of all op time by where its figure is from */
    uint64_t admitted, refused, finished, turns;
    uint64_t overdrawn;   /* turns begun on a device without pages for them (KR_PROMISE_TURN) */
    uint32_t in_flight;   /* at the end: decoding, ingesting, thinking, waiting */
    uint32_t waiting_max; /* longest admission queue */
    uint64_t ingests, ingested_bytes;
    uint64_t ingest_wait_ns; /* summed: arrived, but the device ingested another */
    uint64_t events, digest;
    uint32_t events_live_max; /* of a step's ops, in the queue at once */
} kr_sim_result;

/* Runs to the first bound. Memory comes from kr_alloc and is freed before return. KR_E_ARG names
 * the option; KR_E_UNSUPPORTED: the memory holds not even the weights; KR_E_LIMIT: no session of
 * the workload fits any device. watch may be NULL. */
kr_status kr_sim_run(const kr_program *program, const kr_sim_hardware *hardware,
                     const kr_sim_workload *workload, const kr_sim_options *options,
                     const kr_sim_watch *watch, kr_sim_result *result, kr_err *err);

/* Whether the policy of a recorded run, asked at each STARTED event with what the record says had
 * arrived by then, gives the op that was started. *decisions counts events checked. KR_E_CHECKSUM
 * when the record is of another program, KR_E_FORMAT when it contradicts itself, KR_E_STALE at the
 * first different decision, with step, op and what the policy chose. Workers: 0 is the compute
 * rank; others are not checked. */
kr_status kr_sim_replay(const kr_program *program, const kr_run_header *header, const kr_run_event *events,
                        uint64_t count, uint64_t *decisions, kr_err *err);

typedef struct {
    void *context;
    void (*step)(void *context, uint32_t number, uint64_t recorded_ns, uint64_t simulated_ns);
} kr_sim_replay_visitor;

/* Simulates each whole step of a record that kr_sim_replay has taken, with the record's own durations of
 * ops and of what devices answered (replay_steps.c). KR_E_FORMAT, KR_E_MEMORY. */
kr_status kr_sim_replay_steps(const kr_program *program, const kr_run_header *header,
                              const kr_run_event *events, uint64_t count,
                              const kr_sim_replay_visitor *visitor, kr_err *err);

#endif
