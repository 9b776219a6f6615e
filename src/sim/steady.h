/* Inside sim/: where a run's start-up ends, whether what follows is stationary, and how well its mean
 * is known. Works on tokens and times of consecutive steps; uses no randomness. */
#ifndef KR_SIM_STEADY_H
#define KR_SIM_STEADY_H

#include <stdbool.h>
#include <stdint.h>

enum { KR_STEADY_BATCHES = 20, KR_STEADY_STEPS_MIN = 100 };

/* Number of leading steps to leave out, by MSER-5 (White 1997): the cut that minimises the squared
 * standard error of the mean of what remains, over means of five steps, among the first half.
 * end_ns is [steps], ascending; begin_ns that of the first step. 0 below KR_STEADY_STEPS_MIN. */
uint64_t kr_steady_cut(const uint64_t *end_ns, const uint32_t *tokens, uint64_t steps, uint64_t begin_ns);

typedef struct {
    double mean, half_width; /* tokens per second; 95 % confidence by batch means */
    /* Enough steps, no trend: the means of the two halves differ by less than three standard errors
     * of their difference, and the cut did not fall on the end of its range. */
    bool stationary;
} kr_steady;

/* Of the steps from cut on. */
kr_steady kr_steady_mean(const uint64_t *end_ns, const uint32_t *tokens, uint64_t steps, uint64_t begin_ns,
                         uint64_t cut);

#endif
