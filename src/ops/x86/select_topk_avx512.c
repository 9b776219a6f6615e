/* Exact top-k with AVX-512: the threshold is found by guessing and counting, on the scores themselves
 * when they are few, else on the candidates that reach a first guess, which comes from a sample. A first
 * guess that is too high, or lets too many pass, falls back to the scalar radix search, so the time stays
 * linear. */
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/num.h"
#include "ops/select.h"
#include "ops/select_scratch.h"
#include "ops/variants.h"

enum {
    DIRECT_MAX = 4096, /* up to here the scores are searched directly: they stay in the first-level cache */
    BATCH = 512        /* scores between two looks at the room for candidates */
};

typedef struct {
    uint64_t above, equal, nan;
} counts;

static __mmask16 tail_mask(uint64_t left) { return left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1); }

/* Lanes past the end read as NaN. */
static __m512 load_scores(const float *score, uint64_t n, uint64_t i)
{
    return _mm512_mask_loadu_ps(_mm512_set1_ps(NAN), tail_mask(n - i), score + i);
}

static counts count(const float *score, uint64_t n, float threshold)
{
    const __m512 t = _mm512_set1_ps(threshold);
    counts c = {0, 0, 0};

    for (uint64_t i = 0; i < n; i += 16) {
        const __m512 x = load_scores(score, n, i);

        c.above += (uint64_t)__builtin_popcount(_mm512_cmp_ps_mask(x, t, _CMP_GT_OQ));
        c.equal += (uint64_t)__builtin_popcount(_mm512_cmp_ps_mask(x, t, _CMP_EQ_OQ));
        c.nan += (uint64_t)__builtin_popcount(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) & tail_mask(n - i));
    }
    return c;
}

/* Scores at or above threshold. */
static uint64_t count_from(const float *score, uint64_t n, float threshold)
{
    const __m512 t = _mm512_set1_ps(threshold);
    const __m512i one = _mm512_set1_epi32(1);
    __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    uint64_t i = 0;

    for (; i + 32 <= n; i += 32)
        for (int v = 0; v < 2; v++)
            sum[v] = _mm512_mask_add_epi32(
                sum[v], _mm512_cmp_ps_mask(_mm512_loadu_ps(score + i + v * 16), t, _CMP_GE_OQ), sum[v], one);
    for (; i < n; i += 16)
        sum[0] = _mm512_mask_add_epi32(sum[0], _mm512_cmp_ps_mask(load_scores(score, n, i), t, _CMP_GE_OQ),
                                       sum[0], one);
    return (uint64_t)_mm512_reduce_add_epi32(_mm512_add_epi32(sum[0], sum[1]));
}

/* A bound of the threshold and the number of scores at or above it. */
typedef struct {
    float value;
    uint64_t reached;
} bound;

static bound lowest(const float *score, uint64_t n)
{
    __m512 least = _mm512_set1_ps(INFINITY);

    for (uint64_t i = 0; i < n; i += 16) /* a NaN in the first operand is passed over */
        least = _mm512_min_ps(load_scores(score, n, i), least);
    const float value = _mm512_reduce_min_ps(least);
    return (bound){value, count_from(score, n, value)};
}

static bound highest(const float *score, uint64_t n)
{
    __m512 most = _mm512_set1_ps(-INFINITY);

    for (uint64_t i = 0; i < n; i += 16)
        most = _mm512_max_ps(load_scores(score, n, i), most);
    const float value = _mm512_reduce_max_ps(most);
    return (bound){value, count_from(score, n, value)};
}

/* Unsigned order of keys = order of scores; -0 and +0 share a key. */
static uint32_t ordered_key(float score)
{
    const uint32_t bits = kr_f32_bits(score + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static float score_of_key(uint32_t key)
{
    return kr_f32_from_bits(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

/* A threshold with fewer than k scores above it and at least k at or above it; n holds at least k scores
 * that are not NaN. Guesses interpolate between two bounds and, by turns, halve the keys between them,
 * so that there are at most 64 of them whatever the scores. */
static float find_threshold(const float *score, uint64_t n, uint64_t k)
{
    bound low = lowest(score, n), high = highest(score, n);

    if (high.reached >= k)
        return high.value;
    for (uint32_t step = 0;; step++) {
        const uint32_t floor = ordered_key(low.value), middle = floor + (ordered_key(high.value) - floor) / 2;
        const float share = (float)(low.reached - k) / (float)(low.reached - high.reached);
        bound guess = {low.value + (high.value - low.value) * share, 0};

        if (low.reached == k || middle == floor)
            return low.value;
        if (step % 2 == 1 || !(guess.value > low.value && guess.value < high.value))
            guess.value = score_of_key(middle);
        guess.reached = count_from(score, n, guess.value);
        if (guess.reached >= k)
            low = guess;
        else
            high = guess;
    }
}

/* The lowest `most` set bits of mask. */
static __mmask16 lowest_bits(__mmask16 mask, uint64_t most)
{
    while ((uint64_t)__builtin_popcount(mask) > most)
        mask &= (__mmask16) ~(0x80000000u >> __builtin_clz(mask));
    return mask;
}

/* Writes the numbers of the scores above threshold and of the first `equal` ones at it, `most` in all;
 * number i of a score is name[i], or i when name is NULL. */
static uint32_t emit(const float *score, const uint32_t *name, uint64_t n, float threshold, uint64_t equal,
                     uint64_t most, uint32_t *out)
{
    const __m512 t = _mm512_set1_ps(threshold);
    uint32_t written = 0;

    for (uint64_t i = 0; i < n && written < most; i += 16) {
        const __m512 x = load_scores(score, n, i);
        const __mmask16 at = equal == 0 ? 0 : lowest_bits(_mm512_cmp_ps_mask(x, t, _CMP_EQ_OQ), equal);
        const __mmask16 taken = _mm512_cmp_ps_mask(x, t, _CMP_GT_OQ) | at;
        const uint32_t count_taken = (uint32_t)__builtin_popcount(taken);
        const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        __m512i number = _mm512_add_epi32(_mm512_set1_epi32((int)(uint32_t)i), lane);

        equal -= (uint64_t)__builtin_popcount(at);
        if (taken == 0)
            continue;
        if (name != NULL)
            number = _mm512_maskz_loadu_epi32(tail_mask(n - i), name + i);
        _mm512_mask_storeu_epi32(out + written, tail_mask(count_taken),
                                 _mm512_maskz_compress_epi32(taken, number));
        written += count_taken;
    }
    return written;
}

/* Among n scores, of which exactly or at least k are not NaN. */
static uint32_t select_directly(const kr_select_topk_args *a, const float *score, const uint32_t *name,
                                uint64_t n)
{
    const float threshold = find_threshold(score, n, a->k);
    const counts c = count(score, n, threshold);

    return emit(score, name, n, threshold, a->k - c.above, a->k, a->position);
}

/* Candidates: values and their positions, ascending. */
typedef struct {
    float *value;
    uint32_t *position;
    uint64_t capacity;
} candidates;

/* Copies the scores at or above threshold; no branch in the inner loop depends on a score. Stops when
 * more than capacity - BATCH were found: then *found is past it. Returns the number of NaN. */
static uint64_t collect_from(const kr_select_topk_args *a, float threshold, candidates c, uint64_t *found)
{
    const __m512 t = _mm512_set1_ps(threshold);
    const __m512i one = _mm512_set1_epi32(1);
    __m512i at = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    uint64_t n = 0, nan = 0;

    for (uint64_t first = 0; first < a->n && n + BATCH <= c.capacity; first += BATCH) {
        const uint64_t end = a->n - first < BATCH ? a->n : first + BATCH;
        __m512i bad = _mm512_setzero_si512();

        for (uint64_t i = first; i < end; i += 16) {
            const __m512 x = load_scores(a->score, a->n, i);
            const __mmask16 taken = _mm512_cmp_ps_mask(x, t, _CMP_GE_OQ);

            bad = _mm512_mask_add_epi32(bad, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bad, one);
            /* Compress in a register: compressing to memory is microcoded on some CPUs. */
            _mm512_storeu_ps(c.value + n, _mm512_maskz_compress_ps(taken, x));
            _mm512_storeu_si512(c.position + n, _mm512_maskz_compress_epi32(taken, at));
            n += (uint64_t)__builtin_popcount(taken);
            at = _mm512_add_epi32(at, _mm512_set1_epi32(16));
        }
        nan += (uint64_t)_mm512_reduce_add_epi32(bad);
        if (end == a->n)
            nan -= (16 - a->n % 16) % 16; /* lanes past the end */
    }
    *found = n;
    return nan;
}

/* The same above threshold, with the scores at it counted: for rows where many share the guess. */
static counts collect_above(const kr_select_topk_args *a, float threshold, candidates out)
{
    const __m512 t = _mm512_set1_ps(threshold);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    counts c = {0, 0, 0};

    for (uint64_t i = 0; i < a->n && c.above + 16 <= out.capacity; i += 16) {
        const __m512 x = load_scores(a->score, a->n, i);
        const __mmask16 above = _mm512_cmp_ps_mask(x, t, _CMP_GT_OQ);

        c.equal += (uint64_t)__builtin_popcount(_mm512_cmp_ps_mask(x, t, _CMP_EQ_OQ));
        c.nan += (uint64_t)__builtin_popcount(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) & tail_mask(a->n - i));
        if (above == 0)
            continue;
        _mm512_storeu_ps(out.value + c.above, _mm512_maskz_compress_ps(above, x));
        _mm512_storeu_si512(
            out.position + c.above,
            _mm512_maskz_compress_epi32(above, _mm512_add_epi32(_mm512_set1_epi32((int)(uint32_t)i), lane)));
        c.above += (uint64_t)__builtin_popcount(above);
    }
    return c;
}

/* One score of each of KR_SELECT_SAMPLE equal stretches, at a place that keeps no step with any pattern
 * in the scores. */
static void take_sample(const kr_select_topk_args *a, float *sample)
{
    for (uint64_t i = 0; i < KR_SELECT_SAMPLE; i++) {
        const uint64_t first = i * a->n / KR_SELECT_SAMPLE, end = (i + 1) * a->n / KR_SELECT_SAMPLE;
        const uint32_t spread = (uint32_t)i * 2654435761u; /* 2^32 / golden ratio */

        sample[i] = a->score[first + ((uint64_t)spread * (end - first) >> 32)];
    }
}

/* A guess of the threshold that about k and some more reach; false when too few of the sample are
 * numbers. */
static bool guess_threshold(const kr_select_topk_args *a, float *sample, float *guess)
{
    /* Its rank in the sample: k's share plus four standard deviations. */
    const double share = (double)a->k * KR_SELECT_SAMPLE / (double)a->n;
    const uint64_t rank = (uint64_t)(share + 4.0 * sqrt(share) + 8.0);

    take_sample(a, sample);
    if (count_from(sample, KR_SELECT_SAMPLE, -INFINITY) < rank)
        return false;
    *guess = find_threshold(sample, KR_SELECT_SAMPLE, rank);
    return true;
}

/* All scores are few: no sample. */
static uint32_t select_few(const kr_select_topk_args *a)
{
    const counts all = count(a->score, a->n, -INFINITY);

    *a->nan_count += all.nan;
    if (a->n - all.nan <= a->k) /* all that are not NaN: everything above -inf, everything at it */
        return emit(a->score, NULL, a->n, -INFINITY, a->n, a->n, a->position);
    return select_directly(a, a->score, NULL, a->n);
}

uint32_t kr_select_topk_avx512(const kr_select_topk_args *a)
{
    candidates c = {.value = a->scratch, .capacity = kr_select_capacity(a->n, a->k)};
    float *sample = c.value + c.capacity, guess;
    uint64_t found, nan;

    c.position = (uint32_t *)(sample + KR_SELECT_SAMPLE);
    if (a->n <= DIRECT_MAX)
        return select_few(a);
    if (!guess_threshold(a, sample, &guess))
        return kr_select_topk_scalar(a);
    nan = collect_from(a, guess, c, &found);
    if (found + BATCH <= c.capacity && found >= a->k) {
        *a->nan_count += nan;
        return select_directly(a, c.value, c.position, found);
    }
    const counts above = collect_above(a, guess, c);

    if (above.above + 16 > c.capacity || above.above + above.equal < a->k)
        return kr_select_topk_scalar(a);
    *a->nan_count += above.nan;
    if (above.above < a->k)
        return emit(a->score, NULL, a->n, guess, a->k - above.above, a->k, a->position);
    return select_directly(a, c.value, c.position, above.above);
}
