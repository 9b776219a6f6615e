/* Exact top-k with AVX-512: the threshold is found by bisecting the ordered bits of F32 and counting,
 * on the scores themselves when they are few, else on the candidates above a guess that comes from a
 * sample. A guess that is too high, or lets too many pass, falls back to the scalar radix search,
 * so the time stays linear. */
#include <immintrin.h>
#include <math.h>
#include <stddef.h>

#include "base/num.h"
#include "ops/select.h"
#include "ops/select_scratch.h"
#include "ops/variants.h"

/* Up to here one array of scores is bisected directly: it stays in the first-level cache. */
enum { DIRECT_MAX = 4096, KEY_OF_MINUS_INF = 0x007fffff };

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

static uint64_t count_from(const float *score, uint64_t n, float threshold)
{
    const __m512 t = _mm512_set1_ps(threshold);
    uint64_t sum = 0;

    for (uint64_t i = 0; i < n; i += 16)
        sum += (uint64_t)__builtin_popcount(_mm512_cmp_ps_mask(load_scores(score, n, i), t, _CMP_GE_OQ));
    return sum;
}

/* A threshold with fewer than k scores above it and at least k at or above it; n holds at least k
 * scores that are not NaN. */
static float bisect(const float *score, uint64_t n, uint64_t k)
{
    uint32_t key = 0;

    for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
        const uint32_t guess = key | bit;
        const float threshold = kr_f32_from_bits(guess & 0x80000000u ? guess ^ 0x80000000u : ~guess);
        uint64_t reached = k + 1;

        if (guess > KEY_OF_MINUS_INF) /* below it lie only NaN patterns: everything is above */
            reached = count_from(score, n, threshold);
        if (reached >= k)
            key = guess;
        if (reached == k)
            return threshold;
    }
    return kr_f32_from_bits(key & 0x80000000u ? key ^ 0x80000000u : ~key);
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
        /* Compress in a register: compressing to memory is microcoded on some CPUs. */
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
    const float threshold = bisect(score, n, a->k);
    const counts c = count(score, n, threshold);

    return emit(score, name, n, threshold, a->k - c.above, a->k, a->position);
}

/* Copies the scores above threshold and their positions, stopping when more than capacity - 16. */
static counts collect(const kr_select_topk_args *a, float threshold, float *value, uint32_t *position,
                      uint64_t capacity)
{
    const __m512 t = _mm512_set1_ps(threshold);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    counts c = {0, 0, 0};

    for (uint64_t i = 0; i < a->n && c.above + 16 <= capacity; i += 16) {
        const __m512 x = load_scores(a->score, a->n, i);
        const __mmask16 above = _mm512_cmp_ps_mask(x, t, _CMP_GT_OQ);

        c.equal += (uint64_t)__builtin_popcount(_mm512_cmp_ps_mask(x, t, _CMP_EQ_OQ));
        c.nan += (uint64_t)__builtin_popcount(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) & tail_mask(a->n - i));
        if (above == 0)
            continue;
        _mm512_storeu_ps(value + c.above, _mm512_maskz_compress_ps(above, x));
        _mm512_storeu_si512(
            position + c.above,
            _mm512_maskz_compress_epi32(above, _mm512_add_epi32(_mm512_set1_epi32((int)(uint32_t)i), lane)));
        c.above += (uint64_t)__builtin_popcount(above);
    }
    return c;
}

/* One score of each of KR_SELECT_SAMPLE equal stretches, at a place that keeps no step with any
 * pattern in the scores. */
static void take_sample(const kr_select_topk_args *a, float *sample)
{
    for (uint64_t i = 0; i < KR_SELECT_SAMPLE; i++) {
        const uint64_t first = i * a->n / KR_SELECT_SAMPLE, end = (i + 1) * a->n / KR_SELECT_SAMPLE;
        const uint32_t spread = (uint32_t)i * 2654435761u; /* 2^32 / golden ratio */

        sample[i] = a->score[first + ((uint64_t)spread * (end - first) >> 32)];
    }
}

uint32_t kr_select_topk_avx512(const kr_select_topk_args *a)
{
    const uint64_t capacity = kr_select_capacity(a->n, a->k);
    float *value = a->scratch, *sample = value + capacity;
    uint32_t *position = (uint32_t *)(sample + KR_SELECT_SAMPLE);

    if (a->n <= DIRECT_MAX) {
        const counts all = count(a->score, a->n, -INFINITY);

        *a->nan_count += all.nan;
        if (a->n - all.nan <= a->k) /* all that are not NaN: everything above -inf, everything at it */
            return emit(a->score, NULL, a->n, -INFINITY, a->n, a->n, a->position);
        return select_directly(a, a->score, NULL, a->n);
    }

    /* Rank of the guess in the sample: k's share plus four standard deviations. */
    const double share = (double)a->k * KR_SELECT_SAMPLE / (double)a->n;
    const uint64_t rank = (uint64_t)(share + 4.0 * sqrt(share) + 8.0);
    take_sample(a, sample);
    if (count_from(sample, KR_SELECT_SAMPLE, -INFINITY) < rank)
        return kr_select_topk_scalar(a);
    const float guess = bisect(sample, KR_SELECT_SAMPLE, rank);
    const counts c = collect(a, guess, value, position, capacity);
    if (c.above + 16 > capacity || c.above + c.equal < a->k)
        return kr_select_topk_scalar(a);
    *a->nan_count += c.nan;
    if (c.above < a->k)
        return emit(a->score, NULL, a->n, guess, a->k - c.above, a->k, a->position);
    return select_directly(a, value, position, c.above);
}
