/* karat's kernels as plain functions: exact ordered top-k, scores of the lightning indexer (FP8 keys) and
 * of block indexers, attention over lists of units, on arrays of the caller.
 *
 * Each runs on the calling thread alone and may be called from any number of threads at once. Only top-k
 * without scratch and attention allocate, for the call. The fastest variant that this CPU can run is
 * chosen at the first call (about 30 ms); every variant gives the same bits. */
#ifndef KARAT_KERNELS_H
#define KARAT_KERNELS_H

#include "karat/karat.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One line: which variant of each kernel is used. */
KARAT_API const char *karat_kernels(void);

/* ---- selection ---- */

#define KARAT_TOPK_MAX 8192

/* The k best of n scores: score descending, then position ascending. NaN never wins; -0 equals +0; with
 * fewer than k scores that are not NaN all of them are taken.
 * score [n], 1 <= n <= 2^31; 1 <= k <= KARAT_TOPK_MAX, k > n is fine; position [min(k, n)] gets the
 * positions, ascending, *count their number; *nan_count (or null) the NaN scores met. scratch: karat_
 * topk_scratch_bytes(n, k) bytes aligned to 64, or null to allocate them. Outputs must not overlap inputs. */
KARAT_API karat_status karat_topk(const float *score, uint64_t n, uint32_t k, uint32_t *position,
                                  uint32_t *count, uint64_t *nan_count, void *scratch, karat_error *error);
KARAT_API size_t karat_topk_scratch_bytes(uint64_t n, uint32_t k); /* 0 when n or k is out of range */

/* ---- lightning indexer (DeepSeek-V3.2, GLM-5.x) ---- */

/* x [dim] as E4M3 codes and the power-of-two scale that they are divided by, returned: 2^ceil(log2(max(max
 * |x|, 1e-4) / 448)). A NaN or infinite element makes every code NaN. 0 when a pointer is null. */
KARAT_API float karat_quantise_e4m3(const float *x, uint32_t dim, uint8_t *code);

/* score[t] = scale[t] * sum over heads h of weight[h] * max(0, query[h] . key[t]).
 * Keys lie in runs (pages) of run_tokens tokens, the last may be shorter: key[r] is [run_tokens][dim] E4M3,
 * scale[r] is [run_tokens]. One array: run_tokens = tokens rounded up to even, one pointer each. */
typedef struct karat_dsa_scores {
    uint32_t struct_size;      /* sizeof(karat_dsa_scores) */
    uint32_t heads;            /* 1 to 128 */
    uint32_t dim;              /* even, 2 to 128 */
    uint32_t run_tokens;       /* even */
    uint64_t tokens;           /* 1 to 2^31 */
    const uint8_t *query;      /* [heads][dim] E4M3 */
    const float *weight;       /* [heads], with the query's scale and all constants in it */
    const uint8_t *const *key; /* [runs] */
    const float *const *scale; /* [runs] */
    float *score;              /* out [tokens] */
} karat_dsa_scores;

KARAT_API karat_status karat_score_dsa(const karat_dsa_scores *scores, karat_error *error);

/* ---- block indexer (MiniMax-M3) ---- */

/* Where element c of token's index key lies in a block's array of BF16: blocks keep 16 tokens together,
 * [token / 16][dim / 2][16][2], so that one load holds 16 tokens. */
static inline size_t karat_block_key_at(uint32_t token, uint32_t c, uint32_t dim)
{
    return (((size_t)token / 16 * (dim / 2) + c / 2) * 16 + token % 16) * 2 + c % 2;
}

/* score[h][b] = max over the tokens t of block b of query[h] . key[t]; a NaN dot makes it NaN. */
typedef struct karat_block_scores {
    uint32_t struct_size;       /* sizeof(karat_block_scores) */
    uint32_t heads;             /* 1 to 64 */
    uint32_t dim;               /* even, 2 to 256 */
    uint32_t block_tokens;      /* a multiple of 16 */
    uint64_t tokens;            /* 1 to 2^31; only the last block may be partial, its room is whole */
    const float *query;         /* [heads][dim] */
    const uint16_t *const *key; /* [blocks] arrays as karat_block_key_at has them */
    float *score;               /* out [heads][score_stride] */
    uint64_t score_stride;      /* at least the number of blocks */
} karat_block_scores;

KARAT_API karat_status karat_score_blocks(const karat_block_scores *scores, karat_error *error);

/* ---- attention ---- */

/* Softmax attention of one token's heads over lists of units of the caller's own key and value arrays.
 * List l serves query heads [l, l + 1) * heads / lists and reads KV head l * kv_heads / lists. Rows of one
 * KV head that lie together, [kv_head][token][dim], are read fastest. */
typedef struct karat_list_attention {
    uint32_t struct_size; /* sizeof(karat_list_attention) */
    karat_dtype dtype;    /* of keys and values: F32, F16, BF16 */
    uint32_t heads;       /* at most 512; a multiple of kv_heads and of lists */
    uint32_t kv_heads;
    uint32_t key_dim, value_dim; /* 1 to 1,024 */
    float softmax_scale;         /* 0 = 1 / sqrt(key_dim) */
    uint32_t lists;              /* kv_heads or a multiple of it; or 1 for all heads when kv_heads is 1 */
    uint32_t unit_tokens;        /* 1 to 128 */
    uint32_t stride;             /* units between lists */
    uint64_t tokens;             /* in the arrays, 1 to 2^28: the last unit may be partial */
    const void *key;             /* strides count elements; 0 = packed, [tokens][kv_heads][key_dim] */
    uint64_t key_token_stride, key_head_stride;
    const void *value;
    uint64_t value_token_stride, value_head_stride;
    const float *query;    /* [heads][key_dim] */
    const uint32_t *count; /* [lists] units, or null: every token */
    const uint32_t *unit;  /* [lists][stride] ascending */
    float *output;         /* out [heads][value_dim]; zero for an empty list */
} karat_list_attention;

/* KARAT_E_ARG for lists that are not ascending or reach past tokens; KARAT_E_MEMORY. */
KARAT_API karat_status karat_attend_lists(const karat_list_attention *attention, karat_error *error);

#ifdef __cplusplus
}
#endif

#endif
