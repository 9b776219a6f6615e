/* A retrieval method outside karat's tree: blocks by their mean key, with sinks and a recent window.
 *
 * The context is cut into blocks of `unit` tokens (default 16). The index of a block and KV head is the
 * mean of its keys in F32. A decode step scores each block by the largest dot of its mean key with a query
 * of the head's group, and takes the best `budget` / unit blocks (default budget 1,024), among them always
 * the first block (attention sinks) and those of the newest `parameter[0]` tokens (default 64).
 *
 *     cc -shared -fPIC -O2 -I../include my_method.c -o my_method.so
 *     karat run MODEL --attention ./my_method.so --budget 512 */
#include <karat/method.h>

#include <math.h>
#include <stdio.h>

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint32_t recent_blocks(const karat_method_options *o, uint32_t unit)
{
    return ((o->parameter[0] != 0 ? o->parameter[0] : 64) + unit - 1) / unit;
}

static karat_status plan(const karat_method_shape *shape, const karat_method_options *o, uint64_t context_max,
                         karat_method_plan *plan, karat_error *error)
{
    const uint32_t unit = o->unit != 0 ? o->unit : 16, budget = o->budget != 0 ? o->budget : 1024;
    const uint32_t kept = recent_blocks(o, unit) + 1;

    (void)context_max;
    if (budget / unit < kept || budget / unit > KARAT_METHOD_TOPK_MAX) {
        snprintf(error->text, sizeof error->text, "budget %u, must be %u to %u tokens", budget, kept * unit,
                 KARAT_METHOD_TOPK_MAX * unit);
        return KARAT_E_LIMIT;
    }
    plan->unit_tokens = unit;
    plan->unit_bytes = 4 * shape->key_dim;
    plan->tokens_max = budget / unit * unit;
    plan->unit_flops = 2ull * shape->heads * shape->key_dim;
    return KARAT_OK;
}

/* A row of F32 for append; a score per block for each head of a group, and the largest. */
static uint64_t scratch_bytes(const karat_method_shape *shape, const karat_method_plan *plan,
                              uint64_t context_max)
{
    const uint64_t blocks = context_max / plan->unit_tokens + 1, group = shape->heads / shape->kv_heads;

    return 4 * (shape->key_dim + blocks * (group + 1));
}

/* Means of the blocks that got tokens, each from its first token on, so that chunks change nothing. */
static void append(const karat_method_call *call, uint32_t kv_head)
{
    const karat_method_shape *s = call->shape;
    const uint32_t unit = call->plan->unit_tokens;
    const size_t row_bytes = s->key_dim * karat_element_bytes(s->dtype);
    float *row = call->scratch;

    for (uint64_t block = call->first / unit; block * unit < call->tokens; block++) {
        const uint64_t begin = block * unit, end = least(begin + unit, call->tokens),
                       page = begin / KARAT_PAGE_TOKENS;
        const char *keys = karat_page_keys(call, kv_head, page);
        float *mean = (float *)karat_page_index(call, kv_head, page) +
                      begin % KARAT_PAGE_TOKENS / unit * s->key_dim;

        for (uint32_t c = 0; c < s->key_dim; c++)
            mean[c] = 0;
        for (uint64_t t = begin; t < end; t++) {
            call->tools->to_f32(s->dtype, keys + t % KARAT_PAGE_TOKENS * row_bytes, row, s->key_dim);
            for (uint32_t c = 0; c < s->key_dim; c++)
                mean[c] += row[c];
        }
        for (uint32_t c = 0; c < s->key_dim; c++)
            mean[c] /= (float)(end - begin);
    }
}

static uint32_t choose(const karat_method_call *call, uint32_t kv_head, uint32_t *block)
{
    const karat_method_shape *s = call->shape;
    const uint32_t unit = call->plan->unit_tokens, group = s->heads / s->kv_heads;
    const uint64_t blocks = (call->tokens + unit - 1) / unit, page_blocks = KARAT_PAGE_TOKENS / unit;
    const uint64_t recent = least(recent_blocks(call->options, unit), blocks);
    float *dots = call->scratch, *score = dots + blocks * group; /* [group][blocks], [blocks] */

    for (uint64_t first = 0; first < blocks; first += page_blocks)
        call->tools->dot(call, call->query + (size_t)kv_head * group * s->key_dim, group, KARAT_F32,
                         karat_page_index(call, kv_head, first / page_blocks),
                         least(page_blocks, blocks - first), s->key_dim, dots + first, blocks);
    for (uint64_t b = 0; b < blocks; b++) {
        score[b] = dots[b];
        for (uint32_t h = 1; h < group; h++)
            score[b] = dots[h * blocks + b] > score[b] ? dots[h * blocks + b] : score[b];
        if (b == 0 || b >= blocks - recent)
            score[b] = INFINITY;
    }
    return call->tools->topk(call, score, blocks, (uint32_t)(call->plan->tokens_max / unit), block);
}

KARAT_METHOD_EXPORT const karat_method_table karat_method = {
    .abi = KARAT_METHOD_ABI,
    .version = 1,
    .name = "meankey",
    .summary = "blocks by their mean key, the first and the newest always",
    .lists = KARAT_LIST_PER_KV_HEAD,
    .plan = plan,
    .scratch_bytes = scratch_bytes,
    .append = append,
    .select = choose,
};
