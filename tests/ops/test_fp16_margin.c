/* Can a scan in FP16 give the exact top-k? docs/fp16-scan.md tells the answer; this is its evidence, with
 * FP16 FMA emulated exactly, so that it runs on any CPU.
 *
 * score = sum over heads of w * max(0, q.k), E4M3 values; the FP16 form sums the products of a segment of
 * dims in FP16 (one rounding an FMA), and segments and heads in F64. Token t is a candidate when its FP16
 * score plus its margin reaches the k-th largest FP16 score minus that token's margin. */
#include <math.h>

#include "ops/ops.h"
#include "ops_random.h"

enum { HEADS = 64, DIM = 128, TOKENS = 2048, K = 64 /* as 2,048 of 65,536 */ };

static float query[HEADS][DIM], key[TOKENS][DIM], weight[HEADS];

/* Nearest FP16 value, ties to even; the tests stay in the range of normal numbers. */
static double round_f16(double x)
{
    int exponent;

    if (x == 0.0)
        return 0.0;
    frexp(x, &exponent);
    const double unit = ldexp(1.0, exponent - 11 < -24 ? -24 : exponent - 11);

    return rint(x / unit) * unit;
}

static double dot_f16(const float *q, const float *k, uint32_t segment)
{
    double sum = 0.0;

    for (uint32_t s = 0; s < DIM; s += segment) {
        double part = 0.0;

        for (uint32_t c = s; c < s + segment; c++)
            part = round_f16(part + (double)q[c] * (double)k[c]); /* the product is exact in F64 */
        sum += part;
    }
    return sum;
}

static double dot_exact(const float *q, const float *k)
{
    double sum = 0.0;

    for (uint32_t c = 0; c < DIM; c++)
        sum += (double)q[c] * (double)k[c];
    return sum;
}

static double relu(double x) { return x > 0.0 ? x : 0.0; }

static double score_f16(const float *k, uint32_t segment)
{
    double sum = 0.0;

    for (uint32_t h = 0; h < HEADS; h++)
        sum += (double)weight[h] * relu(dot_f16(query[h], k, segment));
    return sum;
}

static double score_exact(const float *k)
{
    double sum = 0.0;

    for (uint32_t h = 0; h < HEADS; h++)
        sum += (double)weight[h] * relu(dot_exact(query[h], k));
    return sum;
}

/* Proven: FMA number j of a segment errs by at most u |partial sum after it|, u = 2^-11, and the partial
 * sum is at most |q_1..j| |k_1..j| plus the errors before it, which (1 + u)^segment covers. */
static double margin(const float *k, uint32_t segment)
{
    const double u = 0x1p-11, grow = pow(1.0 + u, segment);
    double all = 0.0;

    for (uint32_t h = 0; h < HEADS; h++) {
        double bound = 0.0;

        for (uint32_t s = 0; s < DIM; s += segment) {
            double qq = 0.0, kk = 0.0;

            for (uint32_t c = s; c < s + segment; c++) {
                qq += (double)query[h][c] * (double)query[h][c];
                kk += (double)k[c] * (double)k[c];
                bound += u * grow * sqrt(qq * kk);
            }
        }
        all += fabs((double)weight[h]) * bound;
    }
    return all;
}

static float e4m3(double x) { return kr_f32_from_e4m3(kr_e4m3_from_f32((float)x)); }

static void draw(kr_rng *rng)
{
    for (uint32_t h = 0; h < HEADS; h++) {
        weight[h] = 1.0f / 64.0f * (kr_rng_below(rng, 4) == 0 ? -1.0f : 1.0f);
        for (uint32_t c = 0; c < DIM; c++)
            query[h][c] = e4m3(4.0 * kr_rng_normal(rng));
    }
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t c = 0; c < DIM; c++)
            key[t][c] = e4m3(4.0 * kr_rng_normal(rng));
}

static int descending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

static double kth(const double *score)
{
    static double copy[TOKENS];

    memcpy(copy, score, sizeof copy);
    qsort(copy, TOKENS, sizeof *copy, descending);
    return copy[K - 1];
}

/* The proven margin holds on every token, and what share of tokens it leaves to be scored again. */
static void proven_margin_is_true_and_too_wide(void **state)
{
    (void)state;
    kr_rng rng = test_rng("fp16 margin");
    static const uint32_t segments[] = {128, 32, 8};
    static double approximate[TOKENS], bound[TOKENS];
    double share[3];

    draw(&rng);
    for (int s = 0; s < 3; s++) {
        uint32_t candidates = 0;

        for (uint32_t t = 0; t < TOKENS; t++) {
            approximate[t] = score_f16(key[t], segments[s]);
            bound[t] = margin(key[t], segments[s]);
            assert_true(fabs(approximate[t] - score_exact(key[t])) <= bound[t]);
        }
        static double lower[TOKENS];
        for (uint32_t t = 0; t < TOKENS; t++)
            lower[t] = approximate[t] - bound[t];
        const double cut = kth(lower); /* at least K tokens surely score this much */
        for (uint32_t t = 0; t < TOKENS; t++)
            candidates += approximate[t] + bound[t] >= cut;
        share[s] = (double)candidates / TOKENS;
        print_message("segments of %u: %.1f %% of the tokens remain (3.1 %% are wanted)\n", segments[s],
                      100 * share[s]);
    }
    assert_true(share[0] > 0.9); /* one accumulator over 128 dims: nearly everything must be scored again */
    assert_true(share[1] > 0.3);
    assert_true(share[2] > 0.05 && share[2] < 0.3);
}

/* A key of ordinary size that an unlucky (or unfriendly) model could hold: the partial sum climbs for half
 * of the dims and falls back, and among near values each element is the one whose rounding adds to the
 * error. */
static void make_climber(float *out)
{
    static const float sizes[] = {2.5f, 3.0f, 3.5f, 4.0f, 4.5f};
    double part = 0.0, error = 0.0;

    for (uint32_t c = 0; c < DIM; c++) {
        const double q = (double)query[0][c], sign = (q < 0.0) == (c < DIM / 2) ? -1.0 : 1.0;
        double best = -HUGE_VAL, next = part;

        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const double sum = part + q * sign * (double)sizes[i], rounded = round_f16(sum);

            if (error + rounded - sum > best) {
                best = error + rounded - sum;
                next = rounded;
                out[c] = (float)(sign * (double)sizes[i]);
            }
        }
        part = next;
        error = best;
    }
}

static double norm(const float *x)
{
    double sum = 0.0;

    for (uint32_t c = 0; c < DIM; c++)
        sum += (double)x[c] * (double)x[c];
    return sqrt(sum);
}

/* Twice the largest error seen on random tokens is no margin: a key no larger than theirs errs by more. */
static void observed_margin_fails(void **state)
{
    (void)state;
    kr_rng rng = test_rng("fp16 observed margin");
    double seen = 0.0, largest = 0.0;
    float climber[DIM];

    draw(&rng);
    /* All heads agree, as heads trained on one strong feature may, so that errors do not average out. */
    for (uint32_t h = 0; h < HEADS; h++) {
        memcpy(query[h], query[0], sizeof query[0]);
        weight[h] = 1.0f / 64.0f;
    }
    for (uint32_t t = 0; t < TOKENS; t++) {
        seen = fmax(seen, fabs(score_f16(key[t], DIM) - score_exact(key[t])));
        largest = fmax(largest, norm(key[t]));
    }
    make_climber(climber);
    const double error = fabs(score_f16(climber, DIM) - score_exact(climber));

    print_message(
        "largest error: %.3g on %d random tokens; %.3g on one made for it, of %.0f %% of their norm\n", seen,
        TOKENS, error, 100 * norm(climber) / largest);
    assert_true(norm(climber) < largest);
    assert_true(error > 2.0 * seen);
    assert_true(error <= margin(climber, DIM));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proven_margin_is_true_and_too_wide),
        cmocka_unit_test(observed_margin_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
