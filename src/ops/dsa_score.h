/* Score of the lightning indexer (DeepSeek-V3.2, GLM-5.x): E4M3 keys with one scale a token.
 *
 *   score[t] = scale[t] * sum over heads h of weight[h] * max(0, query[h] . key[t])
 *
 * query[h] . key[t] is one FMA chain over dims in order, in F32, of the decoded E4M3 values. Heads
 * are summed in KR_DSA_LANES interleaved chains (head h in chain h mod 16), then the chains by
 * halves: 8, 4, 2, 1. weight already holds the query's scale and the constants (models: w_h *
 * s_q * heads^-0.5 * dim^-0.5) and may be negative. A key with a NaN byte scores NaN, so that
 * selection counts and drops it.
 *
 * scalar, avx2 and avx512 give the same bits. avx512bf16 multiplies exactly (an E4M3 value is a
 * BF16 value) but adds pairs first, and flushes subnormal sums: its result differs from the others
 * by at most KR_DSA_SUM_ERROR * sum over h of |weight[h]| * sum over c of |query * key|.
 *
 * Work: 2 * tokens * heads * dim FLOPs; dim + 4 bytes a token. */
#ifndef KR_OPS_DSA_SCORE_H
#define KR_OPS_DSA_SCORE_H

#include <stdint.h>

enum { KR_DSA_LANES = 16, KR_DSA_HEADS_MAX = 128, KR_DSA_DIM_MAX = 128 };

/* (dim + heads/16 + 6) roundings of 2^-24, doubled. */
#define KR_DSA_SUM_ERROR ((double)(KR_DSA_DIM_MAX + 16) * 0x1p-23)

typedef struct {
    const uint8_t *query;      /* [heads][dim] E4M3 */
    const float *weight;       /* [heads] */
    const uint8_t *const *key; /* [runs] pointers to [run_tokens][dim] E4M3 */
    const float *const *scale; /* [runs] pointers to [run_tokens] */
    uint32_t run_tokens;       /* tokens of every run but the last, a page: multiple of 2 */
    uint32_t heads, dim;       /* dim even */
    uint64_t tokens;           /* in all runs together */
    float *score;              /* out [tokens] */
} kr_dsa_score_args;

typedef void (*kr_dsa_score_fn)(const kr_dsa_score_args *args);

/* BF16 bits of every E4M3 code (all are exact), NaN kept. */
extern const uint16_t kr_e4m3_bf16[256];

#endif
