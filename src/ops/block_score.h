/* Block scores of MiniMax-M3's indexer: the best dot in each block of one page.
 *
 *   score[h][b] = max over visible tokens t of block b of query[h] . key[t]
 *
 * The dot is one FMA chain over dims in order, in F32, unscaled: only the order counts. Keys are
 * BF16 in tiles of 16 tokens, pairs of dims together, so that a load holds 16 tokens of a pair:
 * [block tokens / 16][dim / 2][16][2]. A block with a NaN dot scores NaN; one without a visible
 * token scores -inf.
 *
 * scalar, avx2 and avx512 give the same bits. avx512bf16 rounds the query to BF16 (exact for the
 * BF16 queries of M3), adds pairs first and flushes subnormals: its dots differ from the others by at
 * most (dim + 2) * 2^-23 * sum over c of |query * key|.
 *
 * Work: 2 * heads * dim FLOPs and 2 * dim bytes a token. */
#ifndef KR_OPS_BLOCK_SCORE_H
#define KR_OPS_BLOCK_SCORE_H

#include <stddef.h>
#include <stdint.h>

enum { KR_BLOCK_TILE = 16, KR_BLOCK_HEADS_MAX = 64, KR_BLOCK_DIM_MAX = 256 };

typedef struct {
    const float *query;         /* [heads][dim] */
    const uint16_t *const *key; /* [blocks] pointers to [block_tokens/16][dim/2][16][2] BF16 */
    uint32_t heads, dim;        /* dim even */
    uint32_t block_tokens;      /* multiple of 16 */
    uint64_t blocks;
    uint64_t tokens; /* visible, over all blocks; only the last block may be partial */
    float *score;    /* out [heads][score_stride] */
    uint64_t score_stride;
} kr_block_score_args;

typedef void (*kr_block_score_fn)(const kr_block_score_args *args);

/* Element of (token in block, dim) in the layout above. */
static inline size_t kr_block_key_at(uint32_t token, uint32_t c, uint32_t dim)
{
    return (((size_t)token / KR_BLOCK_TILE * (dim / 2) + c / 2) * KR_BLOCK_TILE + token % KR_BLOCK_TILE) * 2 +
           c % 2;
}

#endif
