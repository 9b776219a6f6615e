/* Inside of a memory node. What may be trusted where:
 *
 *   receive    header checked by the link; payload untrusted
 *   dispatch   kind, epoch, device and layer in range              (node.c)
 *   control    payload read by wire/payload.h                      (control.c, configure.c)
 *   rows       sessions found, positions and sizes right           (rows.c)
 *   stages     everything                                          (stages.c)
 *
 *   node: fresh --CONFIGURE--> configured --CONFIGURE, no session open--> configured anew
 *
 * A message is handled by one thread at a time per device, under the device's work lock: the thread
 * that serves the connection when there is one device (no hand-over), else the device's own thread.
 * A session's messages all go to its home device, so its fields need no lock. */
#ifndef KR_NODE_STATE_H
#define KR_NODE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/team.h"
#include "device/bind.h"
#include "device/device.h"
#include "node/node.h"
#include "store/store.h"
#include "wire/payload.h"

/* Memory that grows to the largest message and is then reused. */
typedef struct {
    uint8_t *data; /* [capacity], 64-byte aligned, zero when new */
    uint64_t capacity;
    void *memory;
} node_buffer;

/* Room for bytes; contents may be lost. KR_E_MEMORY. */
kr_status node_buffer_need(node_buffer *buffer, uint64_t bytes, kr_err *err);
void node_buffer_free(node_buffer *buffer);

/* One run of tokens of one session in one layer, as the stages see it. */
typedef struct {
    kr_job job;
    kr_view view;
    const kr_method *method;
    kr_kv_session *session;
    const uint8_t *key, *value; /* new rows, or NULL */
    uint32_t unindexed; /* tokens before the new rows that append must see too: a cut left their unit open */
} node_job;

/* A stage that another device shall run on its own pages. */
typedef struct stage_run stage_run;

/* A message waiting for a device, or the sender's place in its connection. */
typedef struct node_connection node_connection;

typedef struct node_item {
    kr_message message;
    node_connection *connection;
    struct node_item *next;
} node_item;

/* Micro-batches of a client that may have a selection waiting at once. */
enum { NODE_MICRO_BATCHES = 8 };

/* The selection that an INDEX message left for the ATTEND of its layer, and for those of the layers
 * that share its index: one per client and micro-batch. */
typedef struct {
    bool valid;
    uint64_t client, step, selection_bytes;
    uint32_t micro_batch, layer, rows;
    node_buffer row;       /* [rows] kr_msg_row */
    node_buffer selection; /* counts [tokens * lists], units [tokens * lists][stride] */
} node_pending;

typedef struct {
    kr_node *node;
    uint32_t number;
    kr_team *team;
    pthread_mutex_t work; /* held while a message is handled */
    node_buffer scratch;  /* [threads][scratch_bytes] */
    size_t scratch_bytes;
    node_buffer rows, jobs, starts, workspace, output, counts, indices;
    node_pending *pending; /* [pending_count], as many as were ever valid at once */
    uint32_t pending_count;
    uint64_t workspace_bytes; /* capacity of a wave */
    uint64_t stamp;           /* of the message being handled, to find a session's second row */
    _Atomic uint64_t busy_ns, stage_ns[KR_STAGES];
    uint64_t nan_scores; /* added to by parts at once: __atomic builtins only */

    /* The device's own thread, when the node has several devices and serves. */
    pthread_t thread;
    pthread_mutex_t lock; /* of the fields below */
    pthread_cond_t changed;
    node_item *first, *last; /* messages in order */
    stage_run *help;         /* stages other devices asked for */
    bool stop;
} node_device;

struct kr_node {
    kr_node_config config;
    kr_ops ops;
    kr_cpu_probe probe;
    char save_folder[4096];
    uint32_t epoch;
    uint32_t *cpus;                 /* [devices][threads], NULL: not bound */
    pthread_rwlock_t configuration; /* read while a message is handled, written by CONFIGURE */
    bool configured;
    uint32_t generation;     /* of the last store's handles */
    uint64_t configurations; /* so far: the present one's number */
    kr_msg_configure configure;
    kr_msg_layer layers[KR_MSG_LAYERS_MAX];
    kr_store store;
    node_device *device; /* [devices] */
    uint32_t devices_made;
    pthread_mutex_t start; /* of threaded */
    bool threaded;         /* device threads run */
    _Atomic bool stop;
    _Atomic uint64_t clients, messages, bytes_in, bytes_out;
};

/* One client: its link and the replies still due. */
struct node_connection {
    kr_node *node;
    kr_link *link;
    uint64_t client;
    uint64_t configuration; /* number of the one it has agreed to; of its own thread */
    pthread_mutex_t lock;
    pthread_cond_t idle;
    uint32_t in_flight; /* messages given to device threads */
    bool broken;        /* a reply could not be sent */
};

/* ---- rows.c: INDEX and ATTEND ---- */

/* Checks, stores, runs and answers one INDEX or ATTEND on its device; device->work held. */
kr_status node_attend(kr_node *node, node_device *device, node_connection *connection,
                      const kr_message *message, kr_err *err);

/* ---- pending.c ---- */

/* Keeps the selection of an INDEX message; its micro-batch is below NODE_MICRO_BATCHES. */
kr_status node_pending_keep(node_device *device, const kr_message *index, uint64_t client,
                            const kr_msg_row *row, uint32_t rows, uint64_t selection_bytes,
                            const uint32_t *selection, kr_err *err);
/* Copies it out for an ATTEND of the same client, step and rows. KR_E_ARG when there is none. */
kr_status node_pending_use(const node_device *device, const kr_message *attend, uint64_t client,
                           uint32_t owner, const kr_msg_row *row, uint32_t rows, uint64_t selection_bytes,
                           uint32_t *selection, kr_err *err);
/* Forgets those of client, or (client UINT64_MAX) all; device->work held, or the device unused. */
void node_pending_drop(node_device *device, uint64_t client);

/* ---- stages.c ---- */

/* Runs stage of jobs on device (and, for spilled sessions, on the devices their pages are on). */
void node_run_stage(kr_node *node, node_device *device, kr_stage_kind stage, node_job *jobs, uint32_t count);
/* Copies the new rows of jobs into their pages; counted as append. */
void node_write_rows(kr_node *node, node_device *device, node_job *jobs, uint32_t count);
/* Runs what other devices asked device for; device->lock held, dropped while running. */
void node_run_help(node_device *device);
kr_scratch node_scratch(const node_device *device, uint32_t worker);

/* ---- configure.c ---- */

/* Handles CONFIGURE; replies by itself on success. configuration lock not held. */
kr_status node_configure(kr_node *node, node_connection *connection, const kr_message *message, kr_err *err);
void node_unconfigure(kr_node *node);
/* KR_E_STALE when the node's configuration is not the one that the client of connection asked for. */
kr_status node_check_agreed(const kr_node *node, const node_connection *connection, kr_err *err);
/* The answer to message while nothing is configured. */
kr_status node_not_configured(const node_connection *connection, const kr_message *message, kr_err *err);

/* ---- control.c ---- */

/* Handles any message but INDEX and ATTEND; replies by itself on success. */
kr_status node_control(kr_node *node, node_connection *connection, const kr_message *message, kr_err *err);
void node_close_sessions(kr_node *node, uint64_t client);
/* Home device of the session a session-bound message names, UINT32_MAX when it names none. */
uint32_t node_home_of(kr_node *node, node_connection *connection, const kr_message *message);

/* ---- node.c ---- */

kr_status node_reply(node_connection *connection, const kr_message *request, kr_msg_kind kind, uint32_t rows,
                     const kr_piece *pieces, uint32_t count, kr_err *err);

/* ---- policy.c ---- */

kr_store_policy node_policy(kr_node *node);

#endif
