/* MSA: block selection of MiniMax-M3. One index query per KV head, one shared BF16 index key per
 * token; a block scores as its best token, each KV head takes its own blocks, and the query's own
 * block is one of them.
 *
 * Source: huggingface/transformers modular_minimax_m3_vl.py; vllm-project/vllm
 * vllm/models/minimax_m3/common/ops/index_topk.py. */
#include <math.h>
#include <string.h>

#include "method/attend_list.h"
#include "method/cost.h"
#include "method/native.h"

enum { INDEX_ELEMENT_BYTES = 2 /* BF16 */ };

static kr_status check(const kr_method_config *config, const kr_attention_shape *shape, kr_err *err)
{
    const uint32_t heads = config->parameter[KR_NATIVE_HEADS], dim = config->parameter[KR_NATIVE_DIM];

    if (shape->latent || heads != shape->kv_heads)
        return kr_fail(err, KR_E_UNSUPPORTED,
                       "msa: layer %u needs GQA and one index head for each of %u KV heads, not %u",
                       shape->layer, shape->kv_heads, heads);
    if (heads > KR_BLOCK_HEADS_MAX || dim == 0 || dim > KR_BLOCK_DIM_MAX || dim % 2 != 0)
        return kr_fail(err, KR_E_SHAPE, "msa: %u index heads of %u, must be at most %d of an even 2..%d",
                       heads, dim, KR_BLOCK_HEADS_MAX, KR_BLOCK_DIM_MAX);
    if (config->unit == 0 || config->unit % KR_BLOCK_TILE != 0 || KR_PAGE_TOKENS % config->unit != 0)
        return kr_fail(err, KR_E_SHAPE,
                       "msa: blocks of %u tokens, must be a multiple of %d that divides a page of %d",
                       config->unit, KR_BLOCK_TILE, KR_PAGE_TOKENS);
    if (config->budget < config->unit || config->budget % config->unit != 0 || config->budget > KR_TOPK_MAX)
        return kr_fail(err, KR_E_LIMIT, "msa: budget %u, must be whole blocks of %u up to %d tokens",
                       config->budget, config->unit, KR_TOPK_MAX);
    return KR_OK;
}

static kr_status plan_msa(const kr_method_config *config, const kr_attention_shape *shape,
                          uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    const kr_status status = check(config, shape, err);
    const uint64_t heads = config->parameter[KR_NATIVE_HEADS], dim = config->parameter[KR_NATIVE_DIM];
    const bool paper = config->parameter[KR_NATIVE_PAPER] != 0;
    kr_method_plan p = {
        .keys = KR_KEYS_ROWS,
        .granularity = KR_UNIT_BLOCK,
        .unit_tokens = config->unit,
        .owns_index = true,
        .index_owner = (uint16_t)shape->layer,
        .separate_index_query = true,
        .index_query_bytes = (uint32_t)(heads * dim * INDEX_ELEMENT_BYTES),
        .index_key_bytes = (uint32_t)(dim * INDEX_ELEMENT_BYTES),
        .page_index_bytes = (uint32_t)(KR_PAGE_TOKENS * dim * INDEX_ELEMENT_BYTES),
        .selected_max = config->budget,
    };

    (void)context_max;
    if (status != KR_OK)
        return status;
    p.cost[KR_STAGE_APPEND].fixed = kr_append_row_work(shape);
    p.cost[KR_STAGE_APPEND].fixed.write_bytes += p.index_key_bytes;
    /* Per token one product a head, and a comparison for the block's maximum. */
    p.cost[KR_STAGE_SCORE].per_context_token = (kr_work){
        .flops = heads * (2 * dim + !paper),
        .read_bytes = p.index_key_bytes,
    };
    if (!paper) {
        p.cost[KR_STAGE_SCORE].per_unit.write_bytes = heads * sizeof(float);
        p.cost[KR_STAGE_SELECT].per_unit = (kr_work){.flops = heads, .read_bytes = heads * sizeof(float)};
    }
    p.cost[KR_STAGE_ATTEND].per_attended_token = kr_attend_token_work(shape);
    *plan = p;
    return KR_OK;
}

static uint32_t lists(const kr_method_config *config, const kr_attention_shape *shape)
{
    (void)config;
    return shape->kv_heads;
}

/* ---- stages ----
 *
 * Page index: per block [unit / 16][dim / 2][16 tokens][2] BF16 keys, the layout of ops/block_score.h.
 * Workspace of a decode row: partial results of Attend, then scores [KV head][block]. Prefill rows
 * score into their thread's scratch: every query row has its own lists. A second turn appends keys
 * like the first: nothing depends on where prefill ends. */

enum { SCORE_BLOCKS = 64 /* blocks one Score part covers */ };

static uint32_t index_dim(const kr_job *job) { return job->config->parameter[KR_NATIVE_DIM]; }
static uint32_t index_heads(const kr_job *job) { return job->config->parameter[KR_NATIVE_HEADS]; }

static uint16_t *block_key(const kr_job *job, uint64_t block)
{
    const uint64_t token = block * job->plan->unit_tokens;

    return (uint16_t *)kr_view_index(job->view, token / KR_PAGE_TOKENS) +
           token % KR_PAGE_TOKENS * index_dim(job);
}

static uint32_t append_parts(const kr_job *job) { return job->index_key != NULL; }

static void append_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    const uint32_t dim = index_dim(job), unit = job->plan->unit_tokens;

    (void)part;
    (void)scratch;
    for (uint32_t r = 0; r < job->queries; r++) {
        const uint8_t *row = (const uint8_t *)job->index_key + (size_t)r * job->plan->index_key_bytes;
        const uint64_t token = job->first_position + r;
        uint16_t *block = block_key(job, token / unit);

        for (uint32_t c = 0; c < dim; c++)
            memcpy(block + kr_block_key_at((uint32_t)(token % unit), c, dim), row + 2 * c, 2);
    }
}

/* Scores of all index heads of query row over blocks [block, block + SCORE_BLOCKS) that it sees. */
static void score_blocks(const kr_job *job, uint32_t query, uint64_t block, float *score, uint64_t stride)
{
    const uint32_t heads = index_heads(job), dim = index_dim(job), unit = job->plan->unit_tokens;
    const uint8_t *row = (const uint8_t *)job->index_query + (size_t)query * job->plan->index_query_bytes;
    const uint64_t tokens = kr_job_visible(job, query) - block * unit, there = kr_ceil_div(tokens, unit);
    const uint64_t blocks = there < SCORE_BLOCKS ? there : SCORE_BLOCKS;
    const uint16_t *key[SCORE_BLOCKS];
    float f32[KR_BLOCK_HEADS_MAX * KR_BLOCK_DIM_MAX];

    kr_to_f32(KR_BF16, row, f32, (size_t)heads * dim);
    for (uint64_t b = 0; b < blocks; b++)
        key[b] = block_key(job, block + b);
    job->ops->block_score(&(kr_block_score_args){
        .query = f32,
        .key = key,
        .heads = heads,
        .dim = dim,
        .block_tokens = unit,
        .blocks = blocks,
        .tokens = tokens,
        .score = score + block,
        .score_stride = stride,
    });
}

static uint64_t blocks_seen(const kr_job *job, uint32_t query)
{
    return kr_ceil_div(kr_job_visible(job, query), job->plan->unit_tokens);
}
static uint32_t blocks_kept(const kr_job *job) { return job->config->budget / job->config->unit; }
/* Few enough blocks: all are taken, unscored. */
static bool takes_all(const kr_job *job, uint32_t query)
{
    return blocks_seen(job, query) <= blocks_kept(job);
}

static float *decode_scores(const kr_job *job) { return kr_attend_list_behind(job, &kr_list_units); }

static uint32_t score_parts(const kr_job *job)
{
    if (job->index_query == NULL || job->is_prefill || takes_all(job, 0))
        return 0;
    return (uint32_t)kr_ceil_div(blocks_seen(job, 0), SCORE_BLOCKS);
}

static void score_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    (void)scratch;
    score_blocks(job, 0, (uint64_t)part * SCORE_BLOCKS, decode_scores(job), blocks_seen(job, 0));
}

/* One list: the query's own block and the best of the others. */
static void select_list(const kr_list_ref *ref, float *score, void *scratch)
{
    const kr_job *job = ref->job;
    const uint64_t blocks = blocks_seen(job, ref->query);
    uint64_t nan = 0;

    score[blocks - 1] = INFINITY;
    *kr_list_count(ref) = job->ops->select_topk(&(kr_select_topk_args){
        .score = score,
        .n = blocks,
        .k = blocks_kept(job),
        .position = kr_list_selected(ref),
        .scratch = scratch,
        .nan_count = &nan,
    });
    /* A tie with another infinite score may have cost the own block its place: it takes the last. */
    if (kr_list_selected(ref)[*kr_list_count(ref) - 1] != blocks - 1)
        kr_list_selected(ref)[*kr_list_count(ref) - 1] = (uint32_t)(blocks - 1);
    kr_count_nan(job, nan);
}

static uint32_t select_parts(const kr_job *job) { return job->index_query != NULL ? job->queries : 0; }

static void select_run(const kr_job *job, uint32_t query, kr_scratch scratch)
{
    const uint32_t heads = index_heads(job);
    const uint64_t blocks = blocks_seen(job, query);
    float *score = decode_scores(job);
    uint8_t *topk = scratch.memory;

    if (job->is_prefill && !takes_all(job, query)) {
        score = scratch.memory;
        topk += kr_align_up(heads * blocks * sizeof(float), 64);
        for (uint64_t b = 0; b < blocks; b += SCORE_BLOCKS)
            score_blocks(job, query, b, score, blocks);
    }
    for (uint32_t list = 0; list < heads; list++) {
        const kr_list_ref ref = {job, heads, list, query, query};

        if (!takes_all(job, query)) {
            select_list(&ref, score + list * blocks, topk);
            continue;
        }
        for (uint32_t b = 0; b < blocks; b++)
            kr_list_selected(&ref)[b] = b;
        *kr_list_count(&ref) = (uint32_t)blocks;
    }
}

static uint32_t attend_parts(const kr_job *job)
{
    return kr_attend_list_parts(job, &kr_list_units, index_heads(job));
}
static void attend_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    kr_attend_list_run(job, &kr_list_units, index_heads(job), part, scratch);
}
static uint32_t merge_parts(const kr_job *job) { return kr_merge_list_parts(job, index_heads(job)); }
static void merge_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    (void)scratch;
    kr_merge_list_run(job, &kr_list_units, index_heads(job), part);
}

static size_t workspace_bytes(const kr_method_plan *plan, const kr_method_config *config,
                              const kr_attention_shape *shape, uint32_t queries, uint64_t context_max)
{
    (void)queries;
    return kr_attend_list_workspace(shape, kr_segments(plan->selected_max)) +
           sizeof(float) * config->parameter[KR_NATIVE_HEADS] * kr_ceil_div(context_max, plan->unit_tokens);
}

static size_t scratch_bytes(const kr_method_plan *plan, const kr_attention_shape *shape, uint64_t context_max)
{
    const uint64_t blocks = kr_ceil_div(context_max, plan->unit_tokens);
    const size_t attend = kr_attend_list_scratch(shape, shape->kv_heads);
    const size_t select = kr_align_up(shape->kv_heads * blocks * sizeof(float), 64) +
                          kr_select_scratch_bytes(blocks, plan->selected_max / plan->unit_tokens);

    return attend > select ? attend : select;
}

const kr_method kr_method_msa = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .name = "msa",
    .summary = "block selection by the model's own index keys, per KV head",
    .source = "MiniMax-AI MiniMax-M3; vllm-project/vllm index_topk.py",
    .plan = plan_msa,
    .workspace_bytes = workspace_bytes,
    .lists = lists,
    .scratch_bytes = scratch_bytes,
    .stage =
        {
            [KR_STAGE_APPEND] = {.parts = append_parts, .run = append_run},
            [KR_STAGE_SCORE] = {.parts = score_parts, .run = score_run},
            [KR_STAGE_SELECT] = {.parts = select_parts, .run = select_run},
            [KR_STAGE_ATTEND] = {.parts = attend_parts, .run = attend_run},
            [KR_STAGE_MERGE] = {.parts = merge_parts, .run = merge_run},
        },
};
