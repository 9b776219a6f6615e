/* Runs requests to their end over an engine: prompts in chunks, then decode in batches.
 *
 * Prompts are cut so that each micro-batch of a step has at most chunk rows; a long prompt fills
 * both micro-batches with neighbouring chunks, so that one computes while the other attends. Then
 * all requests decode together, each in the micro-batch that the balancing policy gave it. */
#ifndef KR_ENGINE_GENERATE_H
#define KR_ENGINE_GENERATE_H

#include "engine/engine.h"

typedef enum {
    KR_FINISH_NONE,   /* not yet */
    KR_FINISH_STOP,   /* an end token of the model */
    KR_FINISH_LENGTH, /* tokens_max reached */
} kr_finish;

/* "none", "stop", "length" */
const char *kr_finish_name(kr_finish finish);

/* One request: the session's pending tokens are the prompt. */
typedef struct {
    kr_session *session;
    uint64_t tokens_max; /* new tokens at most, >= 1 */
    bool ignore_end;     /* go on after an end token (measurements) */
    uint64_t produced;   /* out: new tokens, the end token included */
    kr_finish finish;    /* out */
} kr_request;

typedef struct {
    uint64_t prompt_tokens, decode_tokens, decode_steps;
    uint64_t prefill_ns, decode_ns; /* first tokens are part of prefill */
} kr_generate_times;

typedef struct {
    uint32_t chunk; /* prompt rows of a micro-batch in one step, <= the engine's rows_max */
    void (*on_token)(void *context, uint32_t request, uint32_t token);            /* or NULL */
    void (*on_prefill)(void *context, uint64_t tokens_done, uint64_t tokens_all); /* or NULL */
    void *context;
    kr_generate_times times; /* added to */
} kr_generation;

/* Runs all requests; on an error the requests' sessions have failed with it. */
kr_status kr_generate(kr_engine *engine, kr_request *requests, uint32_t count, kr_generation *generation,
                      kr_err *err);

/* Teacher forcing: runs the pending tokens of one session and hands over the logits after each, in
 * order. chunk 0: as decode steps of one token; else as prompt chunks. logits [vocab] belong to the
 * engine's caller: scratch [max(chunk, 1)][vocab]. */
kr_status kr_force(kr_engine *engine, kr_session *session, uint32_t chunk, float *scratch,
                   void (*on_logits)(void *context, uint64_t position, const float *logits), void *context,
                   kr_err *err);

#endif
