/* Inside sim/: the closed loop of sessions as the policies of sched/ see it. */
#ifndef KR_SIM_LOOP_H
#define KR_SIM_LOOP_H

#include "base/rng.h"
#include "sim/price.h"

/* WAITING for admission -> INGESTING its context -> DECODING a turn -> THINKING -> INGESTING the new
 * tokens -> DECODING ... The end of the last turn makes the slot a new session, WAITING. A device
 * ingests in the order in which turns arrive. */

typedef struct {
    uint64_t id; /* ascending in order of creation */
    const kr_sim_session *session;
    uint32_t turn;
    uint32_t device;
    uint32_t rank;           /* of this batch: ranks hold no KV, so any of the cell will do */
    uint32_t micro_batch;    /* UINT32_MAX: not assigned */
    bool resident;           /* admitted at time 0, its context is there already */
    uint64_t context_tokens; /* in the cache */
    uint64_t tokens_left;    /* of the turn */
    uint64_t peak_tokens;    /* largest context of the turns it will run */
    uint64_t pages;          /* promised on its device */
} kr_request;

typedef struct {
    const kr_program *program;
    const kr_sim_hardware *hardware;
    const kr_sim_workload *workload;
    const kr_sim_options *options;
    uint32_t ranks, devices; /* devices: of memory, or the ranks themselves */
    uint32_t cells;          /* ranks / cells ranks talk to devices / cells devices */
    uint64_t token_bytes;    /* that cross the link for an ingested token */
    double ingest_bytes_per_s, ingest_latency_s;
    kr_device_view *device;   /* [devices] */
    uint64_t *ingest_free_ns; /* [devices] */
    uint32_t *rank_next;      /* [cells][micro_batches]: of the next request, inside the cell */
    kr_request *request;      /* [sessions] slots */
    uint32_t *waiting;        /* [sessions] ring of slots in order of arrival */
    uint32_t waiting_first;
    uint32_t *decoding; /* [sessions] slots in order of id */
    uint32_t waiting_count, decoding_count, admitted_count;
    kr_heap thinking, ingesting; /* slots by the time at which the turn arrives, may decode */
    kr_heap_item *thinking_items, *ingesting_items; /* [sessions] */
    uint8_t *micro_batch;                           /* [sessions] scratch of rebalancing */
    kr_sched_slot *scratch;                         /* [sessions] */
    uint64_t page_bytes[2];
    uint64_t record_token_bytes; /* of index records */
    kr_port port;
    kr_rng draw, start; /* which session comes next; where an initial one begins */
    uint64_t next_id;
    bool changed;          /* the decoding set, since the last rebalancing */
    kr_sim_result *result; /* counters */
    uint64_t digest;
} kr_loop;

/* Fills the slots; all wait for admission. kr_loop_free is due even when it fails. */
kr_status kr_loop_init(kr_loop *loop, const kr_program *program, const kr_sim_hardware *hardware,
                       const kr_sim_workload *workload, const kr_sim_options *options, uint32_t ranks,
                       uint32_t devices, kr_sim_result *result, kr_err *err);
void kr_loop_free(kr_loop *loop);

/* Wakes, admits and assigns micro-batches. Returns the time at which a step can begin: now, or when
 * the first sleeper wakes. KR_E_LIMIT: every session drawn was refused. */
kr_status kr_loop_prepare(kr_loop *loop, uint64_t *now_ns, kr_err *err);
/* One token for every decoding request; ends turns and sessions. */
void kr_loop_advance(kr_loop *loop, uint64_t now_ns);

#endif
