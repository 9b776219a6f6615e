/* A link between an engine and its embedded memory node that looks at what passes, and stands in for
 * prompts.
 *
 * Recording: query, key and value rows of a session's prompt are kept, layer by layer.
 * Replaying: when the engine opens a session, the recorded rows are handed to the node, and the engine
 * is told that the node already holds these tokens, as if it had found a shared prefix. So one dense
 * prefill serves every method and budget, and all of them decode over the same keys and values.
 * Measuring: for a decode step the node is asked for its selection; each layer's attention is compared
 * with dense attention over the keys and values seen so far.
 *
 * One embedded, driven node with one device, one micro-batch and one session at a time; layers share
 * one geometry. */
#ifndef KR_EVAL_EVAL_TAP_H
#define KR_EVAL_EVAL_TAP_H

#include "eval/eval_attention.h"
#include "node/embedded.h"
#include "program/program.h"

/* The prompt of one document: per layer query F32 rows, key rows and value rows of the KV type. */
typedef struct {
    uint32_t layers;
    uint64_t capacity, tokens; /* tokens: of the last layer, so of all when a step has ended */
    uint64_t query_bytes, key_bytes, value_bytes; /* of a token in one layer */
    uint8_t *data;
} kr_eval_record;

kr_status kr_eval_record_init(kr_eval_record *record, const kr_program *program, uint64_t tokens,
                              kr_err *err);
void kr_eval_record_free(kr_eval_record *record);

/* Sums over measured steps. */
typedef struct {
    uint32_t layers, heads;
    uint64_t steps;
    kr_eval_head *sum; /* [layers][heads] */
} kr_eval_sums;

typedef struct {
    kr_link link; /* what the engine gets; first member */
    kr_embedded *embedded;
    const kr_clock *clock;
    uint64_t timeout_ns;
    const kr_program *program; /* set when the engine is there */
    uint32_t chunk;            /* prompt rows of a replayed message */

    kr_eval_record *recording;    /* NULL: prompts are not kept */
    const kr_eval_record *replay; /* NULL: sessions open as they are */
    kr_eval_sums *measure;        /* NULL: decode steps pass unseen */

    kr_eval_record tail;    /* rows of the decode steps since the replay */
    kr_msg_header open;     /* of the last OPEN */
    uint64_t due;           /* request number of the ATTEND being measured; 0: none */
    kr_msg_opened opened;   /* the answer to OPEN, as the engine gets it */
    uint32_t *count, *unit; /* selection of one message */
    uint64_t unit_max;
    double *scratch;
    kr_eval_head *head; /* [heads] */
} kr_eval_tap;

/* Rows of up to tail_tokens decode steps are kept. The tap stays where it is until kr_eval_tap_free. */
void kr_eval_tap_init(kr_eval_tap *tap, kr_embedded *embedded, const kr_clock *clock, uint64_t timeout_ns);
/* Between the engine's creation and its first session; context_max as the engine's. */
kr_status kr_eval_tap_bind(kr_eval_tap *tap, const kr_program *program, uint64_t context_max,
                           uint64_t tail_tokens, uint32_t chunk, kr_err *err);
void kr_eval_tap_free(kr_eval_tap *tap);

#endif
