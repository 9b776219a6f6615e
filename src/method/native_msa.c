/* MSA: block selection of MiniMax-M3. One index query per KV head, one shared BF16 index key per
 * token; a block scores as its best token, each KV head takes its own blocks, and the query's own
 * block is one of them.
 *
 * Source: huggingface/transformers modular_minimax_m3_vl.py; vllm-project/vllm
 * vllm/models/minimax_m3/common/ops/index_topk.py. */
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
    if (dim == 0 || dim > KR_HEAD_DIM_MAX)
        return kr_fail(err, KR_E_SHAPE, "msa: index keys of %u, must be 1..%d", dim, KR_HEAD_DIM_MAX);
    if (config->unit == 0 || KR_PAGE_TOKENS % config->unit != 0)
        return kr_fail(err, KR_E_SHAPE, "msa: blocks of %u tokens do not divide a page of %d", config->unit,
                       KR_PAGE_TOKENS);
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
        .flops = heads * (2 * dim + !paper), .read_bytes = p.index_key_bytes,
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

const kr_method kr_method_msa = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .name = "msa",
    .summary = "block selection by the model's own index keys, per KV head",
    .source = "MiniMax-AI MiniMax-M3; vllm-project/vllm index_topk.py",
    .plan = plan_msa,
    .lists = lists,
};
