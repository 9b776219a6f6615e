/* What forward_create.c and forward_weights.c share: one walk over all tensors of a model, made three or four
 * times: to plan the matrices, to count bytes (taking without an arena), to take them, and to fill what was
 * taken. */
#ifndef KR_ENGINE_FORWARD_BUILD_H
#define KR_ENGINE_FORWARD_BUILD_H

#include "engine/forward_state.h"

typedef struct {
    kr_arena *arena; /* NULL: count */
    uint64_t bytes;
} kr_forward_taker;

typedef struct {
    kr_forward *f;
    const kr_forward_config *config;
    void (*progress)(void *context, uint32_t done, uint32_t all);
    void *context;
    uint32_t done, matrices; /* packed; to be packed, counted when they are first taken */
    kr_forward_taker weights, scratch;
    kr_err *err;
} kr_forward_builder;

typedef enum { KR_FORWARD_PLAN, KR_FORWARD_TAKE, KR_FORWARD_FILL } kr_forward_walk;

/* Takes from the arena, or only counts when there is none yet. */
void *kr_forward_take(kr_forward_taker *taker, uint64_t bytes);
kr_status kr_forward_weights(kr_forward_builder *builder, kr_forward_walk walk);
/* Every matrix that was planned, the output matrix last. */
void kr_forward_each_matrix(kr_forward *f, void (*visit)(void *context, kr_matrix *m), void *context);

#endif
