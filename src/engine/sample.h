/* The next token from logits: greedy, or temperature and top-p from a seeded stream.
 *
 * Deterministic: the draw is keyed by (seed, position), ties go to the smaller id, and sums run in
 * a fixed order in double precision. NaN logits never win. */
#ifndef KR_ENGINE_SAMPLE_H
#define KR_ENGINE_SAMPLE_H

#include <stdint.h>

#include "base/status.h"

typedef struct {
    float temperature; /* 0: greedy */
    float top_p;       /* (0, 1]; 1: the whole distribution */
    uint64_t seed;
} kr_sampling;

/* KR_E_ARG names the value and its range. */
kr_status kr_sampling_check(const kr_sampling *sampling, kr_err *err);

/* A token id with its weight; scratch of kr_sample. */
typedef struct {
    double weight;
    uint32_t id;
} kr_candidate;

/* Draws the token that stands at position. scratch [vocab]. KR_E_INTERNAL when no logit is a
 * number: the model or its input is broken, and no token would be honest. */
kr_status kr_sample(const kr_sampling *sampling, const float *logits, uint32_t vocab, uint64_t position,
                    kr_candidate *scratch, uint32_t *token, kr_err *err);

#endif
