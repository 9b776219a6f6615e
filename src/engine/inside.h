/* The engine's own structures, shared by its files and by nobody else.
 *
 * A step has micro-batches; a micro-batch has rows (tokens), ordered so that the rows whose KV lies
 * on one device of one node are contiguous: a group, which is what one message carries. The compute
 * ops of a micro-batch run in their program order, and so do the others (sends, device ops, returns):
 * two cursors per micro-batch say which are done. */
#ifndef KR_ENGINE_INSIDE_H
#define KR_ENGINE_INSIDE_H

#include "base/arena.h"
#include "base/hash.h"
#include "base/team.h"
#include "engine/engine.h"
#include "engine/forward.h"

struct kr_session {
    kr_engine *engine;
    uint32_t number; /* slot */
    bool open;
    kr_peer *peer; /* node that holds the pages (indices-only: the index) */
    uint64_t handle;
    uint32_t device;        /* inside the node */
    uint64_t gather_handle; /* indices-only: on the gather node */
    uint32_t *token;        /* [limit] the log */
    uint64_t tokens, kv_tokens, limit, reused;
    kr_hash128 *page_hash; /* [limit / KR_PAGE_TOKENS] chain over whole pages of the log */
    uint64_t pages_hashed;
    kr_sampling sampling;
    uint32_t micro_batch;
    uint64_t in_step;       /* tokens of this session in the step being assembled */
    uint8_t *project_state; /* [state_bytes of the engine], by layer; NULL when that is 0 */
    kr_err failed;
};

/* Rows of one micro-batch that live on one device. */
typedef struct {
    kr_peer *peer;
    uint32_t device;
    uint32_t item_first, items;
    uint32_t row_first, rows;
    uint64_t sequence; /* of the request whose reply is due; 0: none */
    uint64_t sent_ns;
    kr_message indices; /* indices-only: INDICES reply, held until the gather node has it */
    bool indices_held;
} kr_group;

/* Pieces of a message beside two a group: four parts and their padding, and that of the lists. */
enum { KR_PIECES = 9 };

typedef struct {
    kr_rows rows;
    uint32_t *token;        /* [rows_max], what rows.token points to */
    uint64_t *position;     /* [rows_max] */
    float *attended;        /* [rows_max][heads][value_dim] */
    kr_step_item **item;    /* [rows_max], sorted by (node, device), in the caller's order within */
    kr_msg_row *row;        /* [rows_max], one an item */
    kr_msg_row *gather_row; /* [rows_max], the same with the gather node's handles */
    uint32_t *first_row;    /* [rows_max], of each item */
    uint32_t items;
    kr_group *group; /* [rows_max] */
    uint32_t groups;
    kr_piece *piece;    /* [2 * rows_max + KR_PIECES] gather list of one message */
    uint32_t *head_row; /* [rows_max] rows that want logits: ALL rows of one item, or last ones */
    float *logits;      /* [head_max][vocab] of the last rows, in item order */
    uint32_t head;      /* compute ops of this micro-batch before it are done */
    uint32_t away;      /* sends, device ops and returns before it are done */
    uint32_t due;       /* groups whose reply is due */
    bool prefill;       /* all items are (indices-only keeps the two apart) */
} kr_micro_batch;

/* A prefix that was published, and on which device (over all nodes). Newer ones push out older ones;
 * a wrong hint costs a search on the wrong node, never a wrong answer. */
typedef struct {
    kr_hash128 chain;
    uint32_t device;
    bool known;
} kr_prefix_home;

enum { KR_PREFIX_HOMES = 4096 };

struct kr_engine {
    kr_engine_config config; /* methods points to the engine's own copy */
    kr_model model;          /* with kv_dtype as served */
    kr_arena program_arena, arena;
    kr_program program;
    uint8_t group_of[KR_LAYERS_MAX];
    uint32_t lists[KR_LAYERS_MAX]; /* selection lists of one row; 0 in dense layers */
    kr_memory_plan memory;
    kr_arena project_arena; /* weights of methods with tensors of their own */
    void *project_weights[KR_LAYERS_MAX];
    uint64_t project_bytes, state_bytes, state_offset[KR_LAYERS_MAX];
    kr_team *team;
    kr_forward *forward;
    kr_peer *peer; /* [peers]: nodes, then the gather node */
    uint32_t peers;
    kr_peer *gather;      /* NULL unless indices-only */
    kr_session *session;  /* [sessions_max] */
    kr_session **running; /* [running_count], ascending by number */
    uint32_t running_count;
    kr_prefix_home *prefix_home; /* [KR_PREFIX_HOMES], by chain value */
    uint8_t *assignment;         /* [sessions_max] scratch of the balancing policy */
    uint32_t head_max;           /* rows of logits a micro-batch keeps */
    kr_candidate *candidate;     /* [vocab] */
    kr_micro_batch batch[KR_MICRO_BATCHES_MAX];
    uint32_t order_position; /* ops of the compute rank's static order before it are done */
    uint32_t *selected_count,
        *selected; /* of one reply, for on_selection: [rows_max][lists][units] at most */
    uint64_t selected_lists, selected_max;
    kr_engine_stats stats;
    kr_spans *spans; /* [tracks] */
    uint32_t tracks;
    kr_run_event *event; /* [config.events_max] */
    uint64_t events, first_event_ns;
};

/* ---- place.c: the policy's view of devices and sessions ---- */
/* Node for a new session, whose prompt's pages are hashed: the one that holds its longest known prefix
 * unless full, else the least occupied. KR_E_FULL with counts when none has room. */
kr_status kr_place_session(kr_engine *engine, const kr_session *session, kr_peer **peer, kr_err *err);
/* The session's first pages whole pages have been published on its device. */
void kr_place_note(kr_engine *engine, const kr_session *session, uint32_t pages);
/* Spreads open sessions over the micro-batches. */
void kr_place_micro_batches(kr_engine *engine);

/* ---- project.c: methods with tensors of their own ---- */
/* Whether the model is of the kind that the learned methods asked for need. */
kr_status kr_project_check(const kr_engine_config *config, const kr_model *model, kr_err *err);
/* Whether the model has every tensor, and what weights and a session's states will take. */
kr_status kr_project_plan(kr_engine *engine, kr_err *err);
kr_status kr_project_bind(kr_engine *engine, kr_err *err);
/* Index queries and keys of a micro-batch in a layer whose method has a project half. */
void kr_project_run(kr_engine *engine, kr_micro_batch *batch, uint32_t layer);

/* ---- exchange.c: the messages of a step ---- */
/* Sends the index queries and keys of a micro-batch for one layer; nothing comes back. */
kr_status kr_exchange_send_index(kr_engine *engine, kr_micro_batch *batch, uint32_t mb, uint32_t layer,
                                 kr_err *err);
/* Sends the rows of a micro-batch for one layer to their nodes. */
kr_status kr_exchange_send(kr_engine *engine, kr_micro_batch *batch, uint32_t mb, uint32_t layer,
                           kr_err *err);
/* indices-only: gathers and attends on the compute side, with the indices that have come. */
kr_status kr_exchange_gather(kr_engine *engine, kr_micro_batch *batch, uint32_t mb, uint32_t layer,
                             kr_err *err);
/* Takes replies that are there; wait: until one reply due to the micro-batch has come. */
kr_status kr_exchange_poll(kr_engine *engine, kr_err *err);
kr_status kr_exchange_wait(kr_engine *engine, kr_micro_batch *batch, kr_err *err);
/* Forgets what is due: after a failed step. */
void kr_exchange_drop(kr_engine *engine, kr_micro_batch *batch);

/* ---- step_port.c ---- */
kr_port kr_step_port(kr_engine *engine);
/* Whether everything the op depends on has finished. */
bool kr_step_ready(const kr_engine *engine, uint32_t op);

enum { KR_TRACK_COMPUTE, KR_TRACK_SENDS, KR_TRACK_DEVICES };

static inline uint64_t kr_engine_now(const kr_engine *engine) { return kr_now_ns(engine->config.clock); }

/* ---- engine.c ---- */

/* Tells a node the configuration of the engine's sessions. KR_E_BUSY: it has others open. */
kr_status kr_engine_configure(kr_engine *engine, kr_peer *peer, kr_err *err);

#endif
