/* Work, memory and digest of a built program. */
#include "program/program.h"

#include <string.h>

#include "base/hash.h"
#include "method/layout.h"

kr_work kr_op_work(const kr_program *program, const kr_op *op, const kr_load *load)
{
    const kr_cost_terms *t = &program->cost[op->cost];
    kr_work w = t->fixed;

    w = kr_work_add(w, kr_work_scale(t->per_row, load->rows));
    w = kr_work_add(w, kr_work_scale(t->per_context_token, load->context_tokens));
    w = kr_work_add(w, kr_work_scale(t->per_unit, load->units));
    w = kr_work_add(w, kr_work_scale(t->per_attended_token, load->attended_tokens));
    w = kr_work_add(w, kr_work_scale(t->per_expert, load->experts));
    return kr_work_add(w, kr_work_scale(t->per_expert_row, load->expert_rows));
}

kr_load kr_row_load(const kr_method_plan *plan, uint64_t context_tokens)
{
    const bool varies = (plan->attended_fixed | plan->attended_ppm) != 0;
    const uint64_t most = varies ? plan->attended_fixed + context_tokens * plan->attended_ppm / 1000000
                                 : plan->selected_max;
    const bool bounded = most != 0 && most < context_tokens;
    kr_load load = {
        .rows = 1,
        .context_tokens = context_tokens,
        .attended_tokens = bounded ? most : context_tokens,
    };

    if (!plan->dense && plan->owns_index)
        load.units = kr_ceil_div(context_tokens, plan->unit_tokens);
    return load;
}

void kr_program_pages(const kr_program *program, uint64_t tokens, uint32_t message_tokens, uint64_t pages[2])
{
    const kr_model *m = program->model;
    const uint64_t all = kr_ceil_div(tokens, KR_PAGE_TOKENS);
    uint8_t group_of[KR_LAYERS_MAX];

    pages[0] = pages[1] = 0;
    (void)kr_model_layer_groups(m, group_of);
    for (uint32_t l = 0; l < m->layers; l++) {
        const uint64_t window = m->layer[l].window;
        /* The window before a message's first token and the message itself, at any alignment. */
        const uint64_t kept = window == 0 ? all
                                          : kr_ceil_div(window - 1 + message_tokens, KR_PAGE_TOKENS) + 1;

        pages[group_of[l]] = kept < all ? kept : all;
    }
}

/* What one compute rank holds: everything but the routed experts is repeated on each data-parallel
 * rank and split over tensor-parallel ones, the routed experts are spread over ep ranks. */
static uint64_t weight_bytes(const kr_program *program)
{
    const kr_model *m = program->model;
    const kr_parallel *p = &program->parallel;
    const kr_parameters n = kr_model_parameters(m);
    const uint64_t split_dense = n.attention + n.dense_ffn + n.shared_experts;
    const uint64_t dense = kr_ceil_div(split_dense, p->tp) + n.indexer;
    const uint64_t wide = kr_ceil_div(n.embedding + n.head, p->tp) + n.router + n.norms +
                          n.index_head_weights;

    return kr_model_weight_bytes(m, KR_WEIGHT_DENSE, dense) + kr_model_weight_bytes(m, KR_WEIGHT_WIDE, wide) +
           kr_model_weight_bytes(m, KR_WEIGHT_EXPERT, kr_ceil_div(n.experts, p->ep));
}

/* F32 rows in flight of all micro-batches: residual, normed input, query, keys and values,
 * attention output, the two FFN halves, and logits. */
static uint64_t activation_bytes(const kr_program *program, uint64_t rows)
{
    const kr_model *m = program->model;
    const uint64_t ffn = m->ffn_width > m->moe.width ? m->ffn_width : m->moe.width;
    const uint64_t row = 2 * (uint64_t)m->hidden + (uint64_t)m->heads * program->shape[0].key_dim +
                         kr_model_kv_elements(m) + (uint64_t)m->heads * program->shape[0].value_dim +
                         2 * ffn + m->vocab;

    return rows * program->parallel.micro_batches * row * sizeof(float);
}

static uint64_t stage_bytes(const kr_program *program, uint32_t layer, uint64_t context_max, uint32_t rows)
{
    const kr_method *method = program->method[layer];
    const kr_method_plan *plan = &program->plan[layer];
    uint64_t bytes = 0;

    if (method->workspace_bytes != NULL)
        bytes += method->workspace_bytes(plan, &program->config[layer], &program->shape[layer], rows,
                                         context_max);
    if (method->scratch_bytes != NULL)
        bytes += method->scratch_bytes(plan, &program->shape[layer], context_max);
    return bytes;
}

kr_status kr_program_memory(const kr_program *program, uint64_t context_max, uint32_t rows_max,
                            kr_memory_plan *memory, kr_err *err)
{
    kr_memory_plan plan = {.weight_bytes = weight_bytes(program),
                           .activation_bytes = activation_bytes(program, rows_max)};
    kr_layout layout[KR_LAYERS_MAX];
    uint8_t group_of[KR_LAYERS_MAX];
    const uint32_t groups = kr_model_layer_groups(program->model, group_of);
    uint64_t index_bytes = 0;

    for (uint32_t g = 0; g < groups; g++) {
        const kr_status status = kr_layout_page(program->shape, program->plan, group_of,
                                                program->model->layers, g, layout, &plan.page_bytes[g], err);

        if (status != KR_OK)
            return status;
    }
    for (uint32_t l = 0; l < program->model->layers; l++) {
        const uint64_t stage = stage_bytes(program, l, context_max, rows_max);

        index_bytes += program->plan[l].page_index_bytes;
        plan.record_bytes += kr_align_up(sizeof(kr_record_header) + program->plan[l].record_body_bytes, 64);
        if (stage > plan.workspace_bytes)
            plan.workspace_bytes = stage;
    }
    plan.index_token_bytes = kr_ceil_div(index_bytes, KR_PAGE_TOKENS);
    plan.kv_token_bytes = kr_ceil_div(plan.page_bytes[0] + plan.page_bytes[1] - index_bytes, KR_PAGE_TOKENS);
    *memory = plan;
    return KR_OK;
}

kr_status kr_program_layout(const kr_program *program, uint32_t layer, kr_layout *layout,
                            uint64_t *page_bytes, kr_err *err)
{
    kr_layout layouts[KR_LAYERS_MAX];
    uint8_t group_of[KR_LAYERS_MAX];
    kr_status status;

    (void)kr_model_layer_groups(program->model, group_of);
    status = kr_layout_page(program->shape, program->plan, group_of, program->model->layers, group_of[layer],
                            layouts, page_bytes, err);
    if (status == KR_OK)
        *layout = layouts[layer];
    return status;
}

uint64_t kr_program_digest(const kr_program *program)
{
    uint64_t d = kr_digest_add(program->count, program->parallel.micro_batches);

    for (uint32_t i = 0; i < program->count; i++) {
        const kr_op *op = &program->ops[i];

        d = kr_digest_add(d, (uint64_t)op->kind << 48 | (uint64_t)op->layer << 32 |
                                 (uint64_t)op->micro_batch << 16 | op->resource);
        for (uint32_t k = 0; k < op->dep_count; k++)
            d = kr_digest_add(d, op->dep[k]);
        d = kr_digest_add(d, op->cost);
    }
    return kr_digest_add(d, kr_hash64(program->cost, program->costs * sizeof *program->cost, 0));
}
