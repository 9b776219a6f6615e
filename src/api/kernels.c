/* The kernels as plain functions. */
#include "karat/kernels.h"

#include <pthread.h>

#include "api/inside.h"
#include "device/device.h"
#include "ops/index_key.h"

enum { DSA_BYTES = 64, BLOCK_BYTES = 56 /* in the first version of ABI 0 */ };

_Static_assert(sizeof(karat_dsa_scores) >= DSA_BYTES && sizeof(karat_block_scores) >= BLOCK_BYTES,
               "they grow at their ends");
_Static_assert(KARAT_TOPK_MAX == KR_TOPK_MAX, "one limit");

#define POSITIONS_MAX ((uint64_t)1 << 31)

/* ---- the variants in use ---- */

static pthread_once_t chosen = PTHREAD_ONCE_INIT;
static kr_ops ops;
static kr_cpu_probe probe;

static void choose(void)
{
    enum { PROBE_MS = 30 };
    kr_cpu_choose(PROBE_MS, &ops, &probe);
}

const kr_ops *kr_api_ops(void)
{
    pthread_once(&chosen, choose);
    return &ops;
}

const char *karat_kernels(void)
{
    (void)kr_api_ops();
    return probe.chosen;
}

/* Memory aligned to 64 inside an allocation that *whole keeps. */
static void *aligned(size_t bytes, void **whole)
{
    *whole = kr_alloc(bytes + 64);
    return *whole != NULL ? (void *)kr_align_up((uintptr_t)*whole, 64) : NULL;
}

/* ---- selection ---- */

size_t karat_topk_scratch_bytes(uint64_t n, uint32_t k)
{
    return n < 1 || n > POSITIONS_MAX || k < 1 || k > KR_TOPK_MAX ? 0 : kr_select_scratch_bytes(n, k);
}

static kr_status topk(const kr_select_topk_args *given, uint32_t *count, uint64_t *nan_count, kr_err *err)
{
    kr_select_topk_args a = *given;
    void *whole = NULL;
    uint64_t nan = 0;

    if (a.score == NULL || a.position == NULL || count == NULL)
        return kr_fail(err, KR_E_ARG, "%s is null",
                       a.score == NULL      ? "score"
                       : a.position == NULL ? "position"
                                            : "count");
    if (karat_topk_scratch_bytes(a.n, a.k) == 0)
        return kr_fail(err, KR_E_LIMIT, "the best %u of %llu; k is 1 to %d, n 1 to 2^31", a.k,
                       (unsigned long long)a.n, KR_TOPK_MAX);
    if ((uintptr_t)a.scratch % 64 != 0)
        return kr_fail(err, KR_E_ARG, "scratch is not aligned to 64 bytes");
    if (a.scratch == NULL)
        a.scratch = aligned(karat_topk_scratch_bytes(a.n, a.k), &whole);
    if (a.scratch == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for the selection of %u", a.k);
    a.nan_count = &nan;
    *count = kr_api_ops()->select_topk(&a);
    if (nan_count != NULL)
        *nan_count = nan;
    kr_free(whole);
    return KR_OK;
}

karat_status karat_topk(const float *score, uint64_t n, uint32_t k, uint32_t *position, uint32_t *count,
                        uint64_t *nan_count, void *scratch, karat_error *error)
{
    kr_select_topk_args args = {.score = score, .n = n, .k = k, .scratch = scratch};
    kr_err err = {0};

    args.position = position;
    return kr_api_end(topk(&args, count, nan_count, &err), &err, error);
}

/* ---- indexers ---- */

float karat_quantise_e4m3(const float *x, uint32_t dim, uint8_t *code)
{
    return x != NULL && code != NULL ? kr_e4m3_quantise(x, dim, code) : 0.0f;
}

static kr_status score_dsa(const karat_dsa_scores *given, kr_err *err)
{
    karat_dsa_scores a;
    kr_status status = kr_api_struct(given, &a, sizeof a, DSA_BYTES, "karat_dsa_scores", err);

    if (status != KR_OK)
        return status;
    if (a.query == NULL || a.weight == NULL || a.key == NULL || a.scale == NULL || a.score == NULL)
        return kr_fail(err, KR_E_ARG, "karat_dsa_scores: a pointer is null");
    if (a.heads < 1 || a.heads > KR_DSA_HEADS_MAX || a.dim < 2 || a.dim > KR_DSA_DIM_MAX || a.dim % 2 != 0)
        return kr_fail(err, KR_E_SHAPE, "karat_dsa_scores: %u heads of %u; 1 to %d heads of an even 2 to %d",
                       a.heads, a.dim, KR_DSA_HEADS_MAX, KR_DSA_DIM_MAX);
    if (a.tokens < 1 || a.tokens > POSITIONS_MAX || a.run_tokens < 2 || a.run_tokens % 2 != 0)
        return kr_fail(err, KR_E_LIMIT,
                       "karat_dsa_scores: %llu tokens in runs of %u; 1 to 2^31 tokens, an even run",
                       (unsigned long long)a.tokens, a.run_tokens);
    for (uint64_t r = 0; r < kr_ceil_div(a.tokens, a.run_tokens); r++)
        if (a.key[r] == NULL || a.scale[r] == NULL)
            return kr_fail(err, KR_E_ARG, "karat_dsa_scores: key or scale of run %llu is null",
                           (unsigned long long)r);
    kr_api_ops()->dsa_score(&(kr_dsa_score_args){.query = a.query,
                                                 .weight = a.weight,
                                                 .key = a.key,
                                                 .scale = a.scale,
                                                 .run_tokens = a.run_tokens,
                                                 .heads = a.heads,
                                                 .dim = a.dim,
                                                 .tokens = a.tokens,
                                                 .score = a.score});
    return KR_OK;
}

karat_status karat_score_dsa(const karat_dsa_scores *scores, karat_error *error)
{
    kr_err err = {0};
    return kr_api_end(score_dsa(scores, &err), &err, error);
}

static kr_status score_blocks(const karat_block_scores *given, kr_err *err)
{
    karat_block_scores a;
    kr_status status = kr_api_struct(given, &a, sizeof a, BLOCK_BYTES, "karat_block_scores", err);

    if (status != KR_OK)
        return status;
    if (a.query == NULL || a.key == NULL || a.score == NULL)
        return kr_fail(err, KR_E_ARG, "karat_block_scores: a pointer is null");
    if (a.heads < 1 || a.heads > KR_BLOCK_HEADS_MAX || a.dim < 2 || a.dim > KR_BLOCK_DIM_MAX ||
        a.dim % 2 != 0)
        return kr_fail(err, KR_E_SHAPE,
                       "karat_block_scores: %u heads of %u; 1 to %d heads of an even 2 to %d", a.heads, a.dim,
                       KR_BLOCK_HEADS_MAX, KR_BLOCK_DIM_MAX);
    if (a.tokens < 1 || a.tokens > POSITIONS_MAX || a.block_tokens < KR_BLOCK_TILE ||
        a.block_tokens % KR_BLOCK_TILE != 0)
        return kr_fail(err, KR_E_LIMIT,
                       "karat_block_scores: %llu tokens in blocks of %u; 1 to 2^31 tokens, a multiple of %d",
                       (unsigned long long)a.tokens, a.block_tokens, KR_BLOCK_TILE);
    const uint64_t blocks = kr_ceil_div(a.tokens, a.block_tokens);
    if (a.score_stride < blocks)
        return kr_fail(err, KR_E_ARG, "karat_block_scores: score_stride %llu; there are %llu blocks",
                       (unsigned long long)a.score_stride, (unsigned long long)blocks);
    for (uint64_t b = 0; b < blocks; b++)
        if (a.key[b] == NULL)
            return kr_fail(err, KR_E_ARG, "karat_block_scores: key of block %llu is null",
                           (unsigned long long)b);
    kr_api_ops()->block_score(&(kr_block_score_args){.query = a.query,
                                                     .key = a.key,
                                                     .heads = a.heads,
                                                     .dim = a.dim,
                                                     .block_tokens = a.block_tokens,
                                                     .blocks = blocks,
                                                     .tokens = a.tokens,
                                                     .score = a.score,
                                                     .score_stride = a.score_stride});
    return KR_OK;
}

karat_status karat_score_blocks(const karat_block_scores *scores, karat_error *error)
{
    kr_err err = {0};
    return kr_api_end(score_blocks(scores, &err), &err, error);
}
