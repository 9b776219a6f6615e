/* Warm-up cut, confidence interval and stationarity of a simulated run's throughput. */
#include "sim/steady.h"

#include <math.h>

enum { MSER_STEPS = 5 };

/* Student's t for 95 % and KR_STEADY_BATCHES - 1 = 19 degrees of freedom. */
static const double student_19 = 2.093;

/* Tokens per second of steps [from, to). */
static double rate(const uint64_t *end_ns, const uint32_t *tokens, uint64_t begin_ns, uint64_t from,
                   uint64_t to)
{
    const uint64_t start = from == 0 ? begin_ns : end_ns[from - 1];
    uint64_t sum = 0;

    for (uint64_t i = from; i < to; i++)
        sum += tokens[i];
    return end_ns[to - 1] > start ? (double)sum / ((double)(end_ns[to - 1] - start) * 1e-9) : 0.0;
}

uint64_t kr_steady_cut(const uint64_t *end_ns, const uint32_t *tokens, uint64_t steps, uint64_t begin_ns)
{
    const uint64_t batches = steps / MSER_STEPS;
    double sum = 0.0, squares = 0.0, best = HUGE_VAL;
    uint64_t cut = 0;

    if (steps < KR_STEADY_STEPS_MIN)
        return 0;
    /* From the end backwards, so that each cut's sums come from the one after it. */
    for (uint64_t b = batches; b-- > 0;) {
        const double x = rate(end_ns, tokens, begin_ns, b * MSER_STEPS, (b + 1) * MSER_STEPS);
        const double n = (double)(batches - b);

        sum += x;
        squares += x * x;
        if (b <= batches / 2) {
            const double error = (squares - sum * sum / n) / (n * n);

            if (error <= best) {
                best = error;
                cut = b;
            }
        }
    }
    return cut * MSER_STEPS;
}

kr_steady kr_steady_mean(const uint64_t *end_ns, const uint32_t *tokens, uint64_t steps, uint64_t begin_ns,
                         uint64_t cut)
{
    const uint64_t kept = steps - cut;
    double half[2] = {0.0, 0.0}, mean = 0.0, variance = 0.0, x[KR_STEADY_BATCHES];
    kr_steady r = {.mean = rate(end_ns, tokens, begin_ns, cut, steps), .half_width = HUGE_VAL};

    if (kept < KR_STEADY_STEPS_MIN)
        return r;
    for (uint64_t b = 0; b < KR_STEADY_BATCHES; b++) {
        x[b] = rate(end_ns, tokens, begin_ns, cut + kept * b / KR_STEADY_BATCHES,
                    cut + kept * (b + 1) / KR_STEADY_BATCHES);
        mean += x[b] / KR_STEADY_BATCHES;
        half[b >= KR_STEADY_BATCHES / 2] += x[b] / (KR_STEADY_BATCHES / 2.0);
    }
    for (int b = 0; b < KR_STEADY_BATCHES; b++)
        variance += (x[b] - mean) * (x[b] - mean) / (KR_STEADY_BATCHES - 1);
    r.half_width = student_19 * sqrt(variance / KR_STEADY_BATCHES);
    /* Each half is a mean of half the batches; rounding makes equal rates differ by an ulp or two. */
    r.stationary = fabs(half[0] - half[1]) <= 3.0 * sqrt(4.0 * variance / KR_STEADY_BATCHES) + 1e-9 * mean &&
                   2 * cut + 2 * MSER_STEPS <= steps;
    return r;
}
