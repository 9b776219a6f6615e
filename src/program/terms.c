/* What one op costs: the only place where a model's shapes become FLOPs and bytes.
 *
 * A matrix is read once an op whatever the rows; each row is read and written in the activation
 * type. Tensor parallelism splits heads, FFN widths and the output matrix over tp ranks; MLA's
 * down-projections, the indexer and the router are repeated on each. Terms are those of one rank. */
#include "program/terms.h"

#include "method/cost.h"

typedef struct {
    const kr_model *m;
    const kr_parallel *p;
    uint64_t act; /* bytes of an activation element */
} pricing;

/* out = W in, W of in_width x out_width as stored in the given class. */
static kr_cost_terms matrix(const pricing *c, kr_weight_class kind, uint64_t in_width, uint64_t out_width)
{
    const uint64_t parameters = in_width * out_width;

    return (kr_cost_terms){
        .fixed.read_bytes = kr_model_weight_bytes(c->m, kind, parameters),
        .per_row = {.flops = 2 * parameters,
                    .read_bytes = in_width * c->act,
                    .write_bytes = out_width * c->act},
    };
}

/* Gate, up and down projections. */
static kr_cost_terms gated_ffn(const pricing *c, uint64_t width)
{
    const uint64_t hidden = c->m->hidden, parameters = 3 * hidden * width;

    return (kr_cost_terms){
        .fixed.read_bytes = kr_model_weight_bytes(c->m, KR_WEIGHT_DENSE, parameters),
        .per_row = {.flops = 2 * parameters, .read_bytes = hidden * c->act, .write_bytes = hidden * c->act},
    };
}

static kr_cost_terms routed_experts(const pricing *c)
{
    const uint64_t hidden = c->m->hidden, parameters = 3 * hidden * c->m->moe.width;

    return (kr_cost_terms){
        .per_expert.read_bytes = kr_model_weight_bytes(c->m, KR_WEIGHT_EXPERT, parameters),
        .per_expert_row = {.flops = 2 * parameters,
                           .read_bytes = hidden * c->act,
                           .write_bytes = hidden * c->act},
    };
}

static kr_cost_terms index_project(const pricing *c)
{
    const kr_model *m = c->m;
    const bool dsa = m->indexer == KR_INDEXER_DSA;
    const uint64_t width = (uint64_t)m->index_heads * m->index_dim;
    kr_cost_terms terms = matrix(c, KR_WEIGHT_DENSE, dsa ? m->q_lora : m->hidden, width);
    const kr_cost_terms key = matrix(c, KR_WEIGHT_DENSE, m->hidden, m->index_dim);
    const kr_cost_terms weights = matrix(c, KR_WEIGHT_WIDE, m->hidden, dsa ? m->index_heads : 0);

    terms.fixed = kr_work_add(terms.fixed, kr_work_add(key.fixed, weights.fixed));
    terms.per_row = kr_work_add(terms.per_row, kr_work_add(key.per_row, weights.per_row));
    if (dsa)
        terms.per_row.read_bytes -= m->hidden * c->act; /* both read the same hidden row */
    return terms;
}

static kr_cost_terms qkv(const pricing *c)
{
    const kr_model *m = c->m;
    const uint64_t tp = c->p->tp;

    if (m->attention == KR_ATTENTION_MLA)
        return matrix(c, KR_WEIGHT_DENSE, m->hidden, m->q_lora + m->kv_lora + m->rope_dim);
    return matrix(c, KR_WEIGHT_DENSE, m->hidden,
                  m->heads / tp * m->head_dim +
                      kr_ceil_div(m->kv_heads, tp) * (m->head_dim + (uint64_t)m->value_dim));
}

/* One stage of the layer's method: its fixed part is per query row. */
static kr_cost_terms stage(const kr_method_plan *plan, kr_stage_kind kind)
{
    return (kr_cost_terms){
        .per_row = plan->cost[kind].fixed,
        .per_context_token = plan->cost[kind].per_context_token,
        .per_unit = plan->cost[kind].per_unit,
        .per_attended_token = plan->cost[kind].per_attended_token,
    };
}

/* With absorb_on_memory the node multiplies by W_uk before it attends. The paper moves un-absorbed
 * queries without charging for that, so its accounting leaves it out. */
static kr_cost_terms attend(const pricing *c, const kr_method_plan *plan)
{
    kr_cost_terms terms = stage(plan, KR_STAGE_ATTEND);
    const kr_cost_terms merge = stage(plan, KR_STAGE_MERGE);
    const uint64_t w_uk = (uint64_t)c->m->heads * c->m->nope_dim * c->m->kv_lora;

    terms.per_row = kr_work_add(terms.per_row, merge.per_row);
    terms.per_attended_token = kr_work_add(terms.per_attended_token, merge.per_attended_token);
    if (c->m->attention == KR_ATTENTION_MLA && c->p->absorb_on_memory && !c->p->paper_accounting) {
        terms.fixed.read_bytes += kr_model_weight_bytes(c->m, KR_WEIGHT_DENSE, w_uk);
        terms.per_row.flops += 2 * w_uk;
    }
    return terms;
}

static kr_cost_terms moved(uint64_t bytes_per_row)
{
    return (kr_cost_terms){.per_row.move_bytes = bytes_per_row};
}

/* Query as it leaves the compute rank: absorbed for MLA unless the node absorbs. */
static uint64_t query_bytes(const pricing *c, const kr_attention_shape *shape)
{
    const bool plain = c->m->attention == KR_ATTENTION_MLA && c->p->absorb_on_memory;

    return (uint64_t)c->m->heads * (plain ? c->m->head_dim : shape->key_dim) * c->act;
}

static uint64_t index_message_bytes(const pricing *c, const kr_program *program, uint32_t layer)
{
    const kr_method_plan *plan = &program->plan[layer];
    const kr_attention_shape *shape = &program->shape[layer];

    if (plan->separate_index_query)
        return (uint64_t)plan->index_query_bytes + plan->index_key_bytes;
    /* A method that scores with the attention query itself: query and the new keys. */
    return query_bytes(c, shape) +
           (uint64_t)shape->kv_heads * shape->key_dim * kr_dtype_bytes(shape->kv_dtype);
}

static uint64_t indices_bytes(const kr_program *program, uint32_t layer)
{
    const kr_method_plan *plan = &program->plan[layer];
    const kr_method *method = program->method[layer];
    const uint64_t lists = method->lists != NULL
                               ? method->lists(&program->config[layer], &program->shape[layer])
                               : 1;

    return lists * kr_ceil_div(plan->selected_max, plan->unit_tokens) * sizeof(uint32_t);
}

/* One hidden row to (or from) each active expert; FP8 carries one F32 scale per 128 elements. */
static uint64_t expert_message_bytes(const pricing *c, kr_dtype type)
{
    uint64_t row = (uint64_t)c->m->hidden * kr_dtype_bytes(type);

    if (type == KR_E4M3 && !c->p->paper_accounting)
        row += kr_ceil_div(c->m->hidden, 128) * sizeof(float);
    return c->m->moe.active * row;
}

static kr_cost_terms embed(const pricing *c)
{
    return (kr_cost_terms){
        .per_row = {.read_bytes = kr_model_weight_bytes(c->m, KR_WEIGHT_WIDE, c->m->hidden),
                    .write_bytes = c->m->hidden * c->act},
    };
}

static kr_cost_terms head(const pricing *c)
{
    kr_cost_terms terms = matrix(c, KR_WEIGHT_WIDE, c->m->hidden, kr_ceil_div(c->m->vocab, c->p->tp));

    terms.per_row.write_bytes = kr_ceil_div(c->m->vocab, c->p->tp) * sizeof(float);
    return terms;
}

static kr_cost_terms compute_terms(const pricing *c, kr_op_kind kind)
{
    const kr_model *m = c->m;
    const uint64_t heads = m->heads / c->p->tp;

    switch (kind) {
    case KR_OP_EMBED:
        return embed(c);
    case KR_OP_QKV:
        return qkv(c);
    case KR_OP_Q_UP:
        return matrix(c, KR_WEIGHT_DENSE, m->q_lora, heads * m->head_dim);
    /* One small matrix a head: FLOPs are heads * nope * kv_lora, not the product of the widths. */
    case KR_OP_ABSORB: {
        kr_cost_terms t = matrix(c, KR_WEIGHT_DENSE, heads * m->nope_dim, m->kv_lora);
        t.per_row.write_bytes *= heads;
        return t;
    }
    case KR_OP_V_UP: {
        kr_cost_terms t = matrix(c, KR_WEIGHT_DENSE, m->kv_lora, heads * m->value_dim);
        t.per_row.read_bytes *= heads;
        return t;
    }
    case KR_OP_INDEX_PROJECT:
        return index_project(c);
    case KR_OP_O_PROJ:
        return matrix(c, KR_WEIGHT_DENSE, heads * m->value_dim, m->hidden);
    case KR_OP_ROUTER:
        return matrix(c, KR_WEIGHT_WIDE, m->hidden, m->moe.experts);
    case KR_OP_EXPERTS:
        return routed_experts(c);
    case KR_OP_SHARED_EXPERT:
        return gated_ffn(c, kr_ceil_div((uint64_t)m->moe.shared * m->moe.shared_width, c->p->tp));
    case KR_OP_FFN:
        return gated_ffn(c, kr_ceil_div(m->ffn_width, c->p->tp));
    case KR_OP_HEAD:
        return head(c);
    case KR_OP_SAMPLE:
        return (kr_cost_terms){.per_row = {.flops = m->vocab, .read_bytes = m->vocab * sizeof(float)}};
    default:
        return (kr_cost_terms){0};
    }
}

kr_cost_terms kr_op_terms(const kr_program *program, kr_op_kind kind, uint32_t layer)
{
    const pricing c = {program->model, &program->parallel, kr_dtype_bytes(program->parallel.activation)};
    const kr_model *m = c.m;

    switch (kind) {
    case KR_OP_SEND_INDEX:
        return moved(index_message_bytes(&c, program, layer));
    case KR_OP_SEND_QKV:
        return moved(query_bytes(&c, &program->shape[layer]) + kr_kv_row_bytes(&program->shape[layer]));
    case KR_OP_RETURN_OUT:
        return moved((uint64_t)m->heads * program->shape[layer].value_dim * c.act);
    case KR_OP_RETURN_INDICES:
        return moved(indices_bytes(program, layer));
    case KR_OP_DISPATCH:
        return moved(expert_message_bytes(&c, c.p->dispatch));
    case KR_OP_COMBINE:
        return moved(expert_message_bytes(&c, c.p->combine));
    case KR_OP_REDUCE:
        return moved(2 * (c.p->tp - 1) * (uint64_t)m->hidden * c.act / c.p->tp);
    case KR_OP_APPEND:
        return stage(&program->plan[layer], KR_STAGE_APPEND);
    case KR_OP_SCORE:
        return stage(&program->plan[layer], KR_STAGE_SCORE);
    case KR_OP_SELECT:
        return stage(&program->plan[layer], KR_STAGE_SELECT);
    case KR_OP_GATHER:
        return stage(&program->plan[layer], KR_STAGE_GATHER);
    case KR_OP_ATTEND:
        return attend(&c, &program->plan[layer]);
    default:
        return compute_terms(&c, kind);
    }
}
