/* DSA: token selection by the lightning indexer of DeepSeek-V3.2, and its reuse by following layers
 * (GLM-5.2's IndexShare).
 *
 * Source: deepseek-ai/DeepSeek-V3.2-Exp inference/model.py; index keys are E4M3 with one F32 scale
 * per key. On the wire a row carries the E4M3 queries of all index heads, one F32 weight a head
 * (query scale folded in), the key and its scale. */
#include "method/cost.h"
#include "method/native.h"

static kr_status check(const kr_method_config *config, const kr_attention_shape *shape, kr_err *err)
{
    const uint32_t heads = config->parameter[KR_NATIVE_HEADS], dim = config->parameter[KR_NATIVE_DIM];

    if (!shape->latent)
        return kr_fail(err, KR_E_UNSUPPORTED, "dsa: layer %u is not MLA", shape->layer);
    if (heads == 0 || heads > KR_HEADS_MAX || dim == 0 || dim > KR_HEAD_DIM_MAX)
        return kr_fail(err, KR_E_SHAPE, "dsa: %u index heads of %u, must be 1..%d of 1..%d", heads, dim,
                       KR_HEADS_MAX, KR_HEAD_DIM_MAX);
    if (config->budget == 0 || config->budget > KR_TOPK_MAX)
        return kr_fail(err, KR_E_LIMIT, "dsa: budget %u, must be 1..%d tokens", config->budget, KR_TOPK_MAX);
    if (config->parameter[KR_NATIVE_OWNER] > shape->layer)
        return kr_fail(err, KR_E_SHAPE, "dsa: layer %u would use the index of a later layer %u", shape->layer,
                       config->parameter[KR_NATIVE_OWNER]);
    return KR_OK;
}

/* Score: 2 FLOPs a multiply-add, and per head a rectifier, a weight and an addition; the scores are
 * written once and read once by Select. */
static void price_index(const kr_method_config *config, kr_method_plan *plan)
{
    const uint64_t heads = config->parameter[KR_NATIVE_HEADS], dim = config->parameter[KR_NATIVE_DIM];
    const bool paper = config->parameter[KR_NATIVE_PAPER] != 0;
    const uint64_t scale = paper ? 0 : sizeof(float);

    plan->separate_index_query = true;
    plan->index_query_bytes = (uint32_t)(heads * (dim + sizeof(float)));
    plan->index_key_bytes = (uint32_t)(dim + scale);
    plan->page_index_bytes = (uint32_t)(KR_PAGE_TOKENS * (dim + scale));
    plan->cost[KR_STAGE_APPEND].fixed.write_bytes += dim + scale;
    plan->cost[KR_STAGE_SCORE].per_context_token = (kr_work){
        .flops = heads * (2 * dim + (paper ? 0 : 3)), .read_bytes = dim + scale,
    };
    if (paper)
        return;
    plan->cost[KR_STAGE_SCORE].per_unit.write_bytes = sizeof(float);
    plan->cost[KR_STAGE_SELECT].per_unit = (kr_work){.flops = 1, .read_bytes = sizeof(float)};
    plan->cost[KR_STAGE_SELECT].fixed.write_bytes = config->budget * sizeof(uint32_t);
}

static kr_status plan_dsa(const kr_method_config *config, const kr_attention_shape *shape,
                          uint64_t context_max, kr_method_plan *plan, kr_err *err)
{
    const kr_status status = check(config, shape, err);
    kr_method_plan p = {
        .keys = KR_KEYS_ROWS,
        .granularity = KR_UNIT_TOKEN,
        .unit_tokens = 1,
        .owns_index = config->parameter[KR_NATIVE_OWNER] == shape->layer,
        .index_owner = (uint16_t)config->parameter[KR_NATIVE_OWNER],
        .selected_max = config->budget,
    };

    (void)context_max;
    if (status != KR_OK)
        return status;
    p.cost[KR_STAGE_APPEND].fixed = kr_append_row_work(shape);
    p.cost[KR_STAGE_ATTEND].per_attended_token = kr_attend_token_work(shape);
    if (config->parameter[KR_NATIVE_PAPER] != 0)
        p.cost[KR_STAGE_ATTEND].per_attended_token.flops = 4 * (uint64_t)shape->heads * shape->value_dim;
    if (p.owns_index)
        price_index(config, &p);
    *plan = p;
    return KR_OK;
}

static uint32_t lists(const kr_method_config *config, const kr_attention_shape *shape)
{
    (void)config;
    (void)shape;
    return 1;
}

const kr_method kr_method_dsa = {
    .abi = KR_METHOD_ABI,
    .version = 1,
    .name = "dsa",
    .summary = "token selection by the model's lightning indexer, own or shared",
    .source = "deepseek-ai/DeepSeek-V3.2-Exp; THUDM GLM-5.2 (index sharing)",
    .plan = plan_dsa,
    .lists = lists,
};
