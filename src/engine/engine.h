/* The compute node: holds the weights, runs the compute ops of the step program, and sends the rows
 * to memory nodes for everything that reads KV or index.
 *
 * An engine has sessions; a session is a log of tokens of which the first kv_tokens have their KV
 * on a memory node; the rest is pending. A step runs pending tokens of some sessions through all
 * layers. Results of a row do not depend on the other rows of the step, the chunking, the
 * micro-batches, the threads or the link.
 *
 * States of a session: open -> (steps) -> closed, or failed: after any error in a step the sessions
 * of that step are failed and answer every further use with the first cause. No token is ever
 * produced from incomplete KV.
 *
 * One thread at a time uses an engine. Nothing here allocates between kr_session_open and
 * kr_session_close (the log and hashes are allocated at open). */
#ifndef KR_ENGINE_ENGINE_H
#define KR_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/span.h"
#include "base/status.h"
#include "engine/peer.h"
#include "engine/sample.h"
#include "files/model_file.h"
#include "method/method.h"
#include "program/program.h"
#include "program/record.h"
#include "sched/port.h"

typedef struct kr_engine kr_engine;
typedef struct kr_session kr_session;

enum { KR_ENGINE_NODES_MAX = 64, KR_ENGINE_SESSIONS_MAX = 4096, KR_ENGINE_ROWS_MAX = 4096 };

/* Selected units of one query row and list in one layer, ascending; valid during the call. */
typedef struct {
    uint64_t step, position;
    const kr_session *session;
    uint32_t layer, list;
    const uint32_t *unit; /* [units] */
    uint32_t units;
} kr_selection;

typedef struct {
    const kr_model_file *file;
    const kr_engine_node *nodes; /* [node_count]: hold KV and index (all-on-node) or index (indices-only) */
    uint32_t node_count;
    const kr_engine_node *gather_node; /* indices-only: one embedded device with drive; else NULL */
    const kr_method_config *methods;   /* [layers]; copied */
    kr_placement placement;            /* all-on-node or indices-only */
    kr_dtype kv_dtype;
    uint64_t context_max; /* tokens of the longest session */
    uint32_t rows_max;    /* tokens of one micro-batch in one step: bounds chunk and batch */
    uint32_t sessions_max;
    uint32_t micro_batches; /* 1 or 2 */
    uint32_t threads;       /* of the compute side, the caller included */
    kr_step_policy policy;
    uint64_t timeout_ns; /* every wait for a memory node */
    bool weights_f32;    /* expand weights, for comparisons */
    uint32_t spans_max;  /* power of two, 0: no trace */
    uint64_t events_max; /* run events kept for a recording, 0: none */
    const kr_clock *clock;
    void (*progress)(void *context, uint32_t done, uint32_t all); /* weights being packed; may be NULL */
    void (*on_selection)(void *context, const kr_selection *selection); /* NULL: not asked for */
    void *context;                                                      /* of the two above */
} kr_engine_config;

/* What an engine and its nodes will occupy and do, before anything large is allocated. */
typedef struct {
    uint64_t weight_bytes, forward_scratch_bytes; /* kr_forward_bytes */
    uint64_t step_bytes;                          /* rows, logits, messages of all micro-batches */
    uint64_t session_bytes;                       /* of one session on the compute side */
    uint64_t session_page_bytes;                  /* pages of a session of context_max, on the nodes */
    kr_memory_plan node;                          /* kr_program_memory */
    /* Work of one decode token at context_max, added up over layers, by kind of op, and where the
     * kind runs; KR_RESOURCE_COUNT: the program has no such op. */
    kr_work work[KR_OP_KINDS];
    uint8_t resource[KR_OP_KINDS];
} kr_engine_needs;

/* The config's nodes may be absent here. Same checks as kr_engine_create. */
kr_status kr_engine_plan(const kr_engine_config *config, kr_engine_needs *needs, kr_err *err);

/* The step program that an engine of this config runs, without an engine: for those who simulate it.
 * *model is the file's with the KV type as served; program points to it and into the arena, which the
 * caller frees on success. Same checks as kr_engine_create. */
kr_status kr_engine_program_of(const kr_engine_config *config, kr_model *model, kr_arena *arena,
                               kr_program *program, kr_err *err);

/* Builds the program, packs weights, configures the nodes. KR_E_UNSUPPORTED names an op that this
 * engine cannot execute; KR_E_ARG and KR_E_LIMIT name the value and its range. */
kr_status kr_engine_create(kr_engine **engine, const kr_engine_config *config, kr_err *err);
/* Closes sessions and says BYE; links stay the caller's. NULL is fine. */
void kr_engine_destroy(kr_engine *engine);

const kr_model *kr_engine_model(const kr_engine *engine);
const kr_program *kr_engine_program(const kr_engine *engine);
const struct kr_tokenizer *kr_engine_tokenizer(const kr_engine *engine);
const kr_clock *kr_engine_clock(const kr_engine *engine);
/* Names the kernels of the compute side. */
const char *kr_engine_path(const kr_engine *engine);

/* ---- sessions ---- */

typedef struct {
    const uint32_t *tokens; /* [count], the first prompt */
    uint64_t count;         /* >= 1 */
    uint64_t growth;        /* tokens that may follow over the session's life; pages are promised */
    kr_sampling sampling;
} kr_session_request;

/* Refuses with counts when count + growth is over context_max; asks the nodes for a place
 * (KR_E_FULL names pages). Pages of an equal prefix are reused: see kr_session_kv_tokens. */
kr_status kr_session_open(kr_engine *engine, const kr_session_request *request, kr_session **session,
                          kr_err *err);
/* Frees its pages (sealed pages that were published stay findable). NULL is fine. */
void kr_session_close(kr_session *session);
/* Appends tokens of the user's next turn, or forced ones; KR_E_LIMIT with counts. */
kr_status kr_session_append(kr_session *session, const uint32_t *tokens, uint64_t count, kr_err *err);
/* Tells the node that the pending prompt has been run: methods that build then do so, and whole
 * pages become shareable. */
kr_status kr_session_end_prefill(kr_session *session, kr_err *err);
const uint32_t *kr_session_tokens(const kr_session *session, uint64_t *count);
uint64_t kr_session_kv_tokens(const kr_session *session);
uint64_t kr_session_reused_tokens(const kr_session *session); /* found on a node at open */
uint64_t kr_session_limit(const kr_session *session);         /* tokens it may hold at most */
uint32_t kr_session_number(const kr_session *session);
/* Writes KV, records and token log under name in the node's save folder, and back: a session that may
 * hold limit tokens in all. */
kr_status kr_session_save(kr_session *session, const char *name, kr_err *err);
kr_status kr_session_restore(kr_engine *engine, const char *name, uint64_t limit, const kr_sampling *sampling,
                             kr_session **session, kr_err *err);

/* ---- steps ---- */

typedef enum {
    KR_WANT_NOTHING,
    KR_WANT_TOKEN, /* sample after the last row; the token is appended to the log */
    KR_WANT_LAST_LOGITS,
    KR_WANT_ALL_LOGITS,
} kr_want;

/* Run the next tokens of one session. The same session may appear once per micro-batch, its
 * chunks in order. */
typedef struct {
    kr_session *session;
    uint32_t tokens; /* >= 1 pending tokens */
    uint32_t micro_batch;
    bool prefill; /* attends densely where the method selects only in decode */
    kr_want want;
    float *logits;  /* [vocab] or [tokens][vocab], for the two LOGITS */
    uint32_t token; /* out, KR_WANT_TOKEN */
} kr_step_item;

/* On an error every session of items is failed with it. */
kr_status kr_engine_step(kr_engine *engine, kr_step_item *items, uint32_t count, kr_err *err);
/* Micro-batch of each open session under the placement policy; called by batchers when the set of
 * sessions changed. */
uint32_t kr_session_micro_batch(const kr_session *session);

/* ---- what happened ---- */

/* Sums since the engine was made. Device times are the nodes' own, other clients' work included. */
typedef struct {
    uint64_t steps, rows;
    uint64_t step_ns;                        /* inside kr_engine_step */
    uint64_t op_ns[KR_OP_KINDS];             /* compute ops and sends */
    uint64_t wait_ns;                        /* for memory nodes */
    uint64_t device_busy_ns;                 /* busiest device; needs kr_engine_ask_stats */
    uint64_t stage_ns[KR_STAGES];            /* summed over devices; needs kr_engine_ask_stats */
    uint64_t node_kv_bytes, gather_kv_bytes; /* pages in use, index included; kr_engine_ask_stats */
    uint64_t bytes_sent, bytes_received, messages_sent;
} kr_engine_stats;

kr_status kr_engine_ask_stats(kr_engine *engine, kr_err *err);
kr_engine_stats kr_engine_get_stats(const kr_engine *engine);
/* Time in steps during which the compute side and the busiest device both worked, at least: both ran
 * inside the steps, so what their sum exceeds the steps' time by was spent at once. */
uint64_t kr_engine_both_ns(const kr_engine_stats *stats);
/* Peers for reports; nodes first, then the gather node if any. */
uint32_t kr_engine_peers(const kr_engine *engine);
const kr_peer *kr_engine_peer(const kr_engine *engine, uint32_t i);
/* Tracks: 0 compute ops, 1 sends, then each device of each peer (sent to answered). */
uint32_t kr_engine_tracks(const kr_engine *engine);
const kr_spans *kr_engine_spans(const kr_engine *engine, uint32_t track);
/* Events so far; header and events stay valid until the next step. */
void kr_engine_record(const kr_engine *engine, kr_run_header *header, const kr_run_event **events,
                      uint64_t *count);

#endif
