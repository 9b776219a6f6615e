/* Greedy choice and the nucleus by a heap: the sorted head of the distribution, and no more. */
#include "engine/sample.h"

#include <math.h>
#include <stdbool.h>

#include "base/rng.h"

/* Stream number of token draws, so that other users of a session's seed never share them. */
enum { SAMPLE_STREAM = 0x73616d70 };

kr_status kr_sampling_check(const kr_sampling *sampling, kr_err *err)
{
    if (!(sampling->temperature >= 0.0f && sampling->temperature <= 100.0f))
        return kr_fail(err, KR_E_ARG, "temperature %g is not in 0..100", (double)sampling->temperature);
    if (!(sampling->top_p > 0.0f && sampling->top_p <= 1.0f))
        return kr_fail(err, KR_E_ARG, "top-p %g is not in (0, 1]", (double)sampling->top_p);
    return KR_OK;
}

static bool best_logit(const float *logits, uint32_t vocab, uint32_t *best)
{
    bool found = false;
    for (uint32_t i = 0; i < vocab; i++) {
        if (isnan(logits[i]) || (found && !(logits[i] > logits[*best])))
            continue;
        *best = i;
        found = true;
    }
    return found;
}

/* Weight descending, id ascending. */
static bool before(kr_candidate a, kr_candidate b)
{
    return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

static void sift_down(kr_candidate *heap, uint32_t count, uint32_t i)
{
    for (;;) {
        uint32_t first = i;
        for (uint32_t child = 2 * i + 1; child <= 2 * i + 2 && child < count; child++)
            if (before(heap[child], heap[first]))
                first = child;
        if (first == i)
            return;
        const kr_candidate moved = heap[i];
        heap[i] = heap[first];
        heap[first] = moved;
        i = first;
    }
}

/* Moves the smallest set of leading candidates with at least top_p of the total to the end of heap, first
 * one last; returns its size and its sum. Cost: O(candidates + size * log candidates). */
static uint32_t take_nucleus(kr_candidate *heap, uint32_t count, double enough, double *sum)
{
    for (uint32_t i = count / 2; i-- > 0;)
        sift_down(heap, count, i);
    uint32_t taken = 0;
    *sum = 0;
    while (taken < count && (taken == 0 || *sum < enough)) {
        const kr_candidate top = heap[0];
        taken++;
        heap[0] = heap[count - taken];
        heap[count - taken] = top;
        sift_down(heap, count - taken, 0);
        *sum += top.weight;
    }
    return taken;
}

kr_status kr_sample(const kr_sampling *sampling, const float *logits, uint32_t vocab, uint64_t position,
                    kr_candidate *scratch, uint32_t *token, kr_err *err)
{
    uint32_t best = 0;
    if (!best_logit(logits, vocab, &best))
        return kr_fail(err, KR_E_INTERNAL, "no logit at position %llu is a number",
                       (unsigned long long)position);
    if (sampling->temperature == 0.0f || isinf(logits[best])) {
        *token = best;
        return KR_OK;
    }
    const double scale = 1.0 / (double)sampling->temperature;
    double total = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        const double weight = isnan(logits[i]) ? 0.0
                                               : exp(((double)logits[i] - (double)logits[best]) * scale);
        scratch[i] = (kr_candidate){weight, i};
        total += weight;
    }
    uint32_t first = 0, count = vocab;
    if (sampling->top_p < 1.0f) {
        const uint32_t taken = take_nucleus(scratch, vocab, (double)sampling->top_p * total, &total);
        first = vocab - taken;
        count = taken;
    }
    const double unit = (double)(kr_rng_at(sampling->seed, SAMPLE_STREAM, position) >> 11) * 0x1p-53;
    double left = unit * total;
    *token = best;
    for (uint32_t i = first + count; i-- > first;) {
        if (scratch[i].weight == 0.0)
            continue;
        *token = scratch[i].id; /* rounding may leave a rest: the last possible token takes it */
        left -= scratch[i].weight;
        if (left < 0)
            break;
    }
    return KR_OK;
}
