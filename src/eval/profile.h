/* Measuring decode steps of karat's own runtime, by op: what `karat profile` fits a table to, and what
 * it compares predictions with.
 *
 * A point is a batch of sessions with given contexts in one arrangement of compute side and memory
 * node. Sessions are prefilled once, saved, and restored as often as a batch needs them, so every row
 * has keys and values of its own in memory, as in real use. Steps during which a thread of the process
 * lost its CPU are discarded and counted. */
#ifndef KR_EVAL_PROFILE_H
#define KR_EVAL_PROFILE_H

#include "device/machine.h"
#include "engine/engine.h"

enum {
    KR_PROFILE_ROWS_MIN = 2, /* of the largest batch: at once is a row on each side */
    KR_PROFILE_ROWS_MAX = 32,
};

/* How compute side and memory node share the machine. */
typedef enum {
    KR_ARRANGE_IN_TURN,      /* one thread drives both, teams on all cores; one micro-batch */
    KR_ARRANGE_ALONE,        /* a thread each; one micro-batch, so that one side waits for the other */
    KR_ARRANGE_AT_ONCE,      /* a thread each; two micro-batches, so that both work */
    KR_ARRANGE_REMOTE_ALONE, /* the last two with the node in another process */
    KR_ARRANGE_REMOTE,
} kr_arrangement;

enum { KR_ARRANGEMENTS = 5 };

typedef struct {
    const kr_model_file *file;
    bool weights_f32;
    kr_dtype kv_dtype;
    uint32_t cores;       /* in turn: threads of both; else half of them each */
    uint64_t context_max; /* of the longest session, growth included */
    uint32_t rows_max;    /* of a batch */
    const char *folder;   /* for saved sessions; the caller removes it */
    uint32_t steps;       /* kept of each point and round, at most */
    /* Starts a node of one device in another process, with the same save folder, and connects to it;
     * NULL: nothing is measured with one. */
    kr_status (*connect)(void *context, uint64_t pool_bytes, uint32_t sessions, uint32_t threads,
                         kr_engine_node *node, kr_err *err);
    void (*disconnect)(void *context, kr_engine_node *node);
    void *connect_context;
} kr_profile_setup;

uint32_t kr_profile_compute_threads(const kr_profile_setup *setup, kr_arrangement arrangement);
uint32_t kr_profile_device_threads(const kr_profile_setup *setup, kr_arrangement arrangement);

/* Of one decode step, in seconds: mean of the middle half of the kept steps. */
typedef struct {
    double step, wait, busy; /* busy: of the device, by its own account */
    double op[KR_OP_KINDS];  /* compute ops and sends */
    double stage[KR_STAGES];
} kr_profile_times;

typedef struct {
    uint64_t context[KR_PROFILE_ROWS_MAX]; /* tokens in the cache of each row before the first step */
    uint32_t rows;
    /* ---- out ---- */
    uint32_t micro_batch[KR_PROFILE_ROWS_MAX];
    uint32_t warm_up; /* steps before the first that counts: contexts have grown by them */
    uint32_t counted; /* steps run after them, kept or not */
    uint32_t kept, total;
    kr_profile_times times;
} kr_profile_point;

/* Tokens that a session may grow by while a point is measured. */
uint64_t kr_profile_growth(uint32_t steps);

/* Prefills one session of method to each of contexts (ascending) and saves it as tag-CONTEXT. */
kr_status kr_profile_prefill(const kr_profile_setup *setup, const kr_method_config *method, const char *tag,
                             const uint64_t *contexts, uint32_t count, kr_err *err);

/* The program that points of an arrangement run; as kr_engine_program_of. */
kr_status kr_profile_program(const kr_profile_setup *setup, const kr_method_config *method,
                             kr_arrangement arrangement, kr_model *model, kr_arena *arena,
                             kr_program *program, kr_err *err);

/* Runs all points with one engine, rounds times in turn, and fills what is out. */
kr_status kr_profile_measure(const kr_profile_setup *setup, const kr_method_config *method, const char *tag,
                             kr_arrangement arrangement, uint32_t rounds, kr_profile_point *points,
                             uint32_t count, kr_err *err);

/* ---- profile_fit.c ---- */

/* Layers that attend alike, and what they are asked for in each micro-batch: all rows in one layer,
 * mean over these layers. */
typedef struct {
    uint32_t layers;
    kr_load load[KR_MICRO_BATCHES_MAX];
} kr_profile_layers;

/* A measured point and what its program asked for. Rows are the same in both groups of layers. */
typedef struct {
    kr_profile_times times;
    uint32_t layers, micro_batches, rows[KR_MICRO_BATCHES_MAX];
    kr_profile_layers dense, selecting;
    char method[16]; /* of the layers that select; "dense" when none does */
    bool has_gather; /* the program has the op; else the stage counts as attend */
} kr_profile_sample;

kr_profile_sample kr_profile_sample_of(const kr_profile_point *point, const kr_program *program);

/* Samples of one model. in_turn of KR_ARRANGE_IN_TURN; for mode at-once they tell what messages cost
 * without a wake-up, alone what a wake-up costs, and at_once, of two micro-batches with equally many rows,
 * what ops take when both sides work. For mode in-turn those two are absent. For mode remote in_turn is, and
 * messages are seen from outside: sends as they are, the rest of a wait as the link's latency. Dense samples
 * must be among them: of others, the layers that stay dense are taken off by them. */
typedef struct {
    const kr_profile_sample *in_turn, *alone, *at_once;
    uint32_t in_turns, alones, at_onces;
} kr_profile_samples;

/* Fills the mode's curves, signal and link latency; mode->model, the devices' names and
 * peak rates are the caller's, and so is the remainder, which needs the simulator; it is set to 1.
 * KR_E_LIMIT: too many different numbers of rows or methods. */
kr_status kr_profile_fit(const kr_profile_samples *samples, kr_machine_mode *mode, kr_err *err);

#endif
