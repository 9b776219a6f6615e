/* Builds a step program: for each micro-batch, the layers' ops in topological order.
 *
 * Within a layer, the index query is projected and sent before the rest of the query, so that Score
 * starts while the token's keys and values are on their way; the shared expert fills the wait for
 * the dispatch. Which resource runs the attention stages follows from the placement:
 *
 *   all-on-node     compute: qkv .. absorb | link | device: append score select attend | link | o_proj
 *   indices-only    the node scores and selects, indices come back, compute appends and attends
 *   all-on-compute  no link, no device
 *
 * A layer that attends densely has no selection; with indices-only it runs on compute alone. */
#include <string.h>

#include "base/check.h"
#include "method/layout.h"
#include "method/native.h"
#include "program/terms.h"

enum { NONE = UINT32_MAX };

typedef struct {
    kr_program *program;
    kr_op *ops; /* NULL while counting */
    uint32_t count;
    uint32_t micro_batch;
    uint32_t costs_max;
    uint32_t select_of[KR_LAYERS_MAX]; /* op that makes a layer's selection visible to Attend */
} builder;

/* Index of the terms in the program's table, adding them when they are new. */
static uint32_t intern_terms(builder *b, const kr_cost_terms *terms)
{
    kr_program *p = b->program;
    uint32_t i = 0;

    while (i < p->costs && memcmp(&p->cost[i], terms, sizeof *terms) != 0)
        i++;
    if (i == p->costs) {
        KR_CHECK(p->costs < b->costs_max);
        p->cost[p->costs++] = *terms;
    }
    return i;
}

/* Adds an op that waits for up to four others (NONE entries are skipped) and returns its number. */
static uint32_t emit(builder *b, kr_op_kind kind, uint32_t layer, kr_resource resource, uint32_t d0,
                     uint32_t d1, uint32_t d2, uint32_t d3)
{
    const uint32_t dep[] = {d0, d1, d2, d3};
    const uint32_t number = b->count++;
    kr_op op = {.kind = (uint16_t)kind,
                .layer = (uint16_t)layer,
                .micro_batch = (uint16_t)b->micro_batch,
                .resource = (uint8_t)resource};
    kr_cost_terms terms;

    if (b->ops == NULL)
        return number;
    for (uint32_t i = 0; i < sizeof dep / sizeof dep[0]; i++)
        if (dep[i] != NONE)
            op.dep[op.dep_count++] = dep[i];
    terms = kr_op_terms(b->program, kind, layer);
    op.cost = intern_terms(b, &terms);
    b->ops[number] = op;
    return number;
}

static uint32_t emit_compute(builder *b, kr_op_kind kind, uint32_t layer, uint32_t d0, uint32_t d1)
{
    return emit(b, kind, layer, KR_ON_COMPUTE, d0, d1, NONE, NONE);
}

/* The sum over tensor-parallel ranks; nothing with one rank. */
static uint32_t emit_reduce(builder *b, uint32_t layer, uint32_t op)
{
    if (b->program->parallel.tp == 1)
        return op;
    return emit(b, KR_OP_REDUCE, layer, KR_ON_A2A, op, NONE, NONE, NONE);
}

/* What the attention stages of one layer start from. */
typedef struct {
    uint32_t index; /* index query projected, or the query for methods that score with it */
    uint32_t query; /* query and new key ready to send */
} projected;

static projected emit_projections(builder *b, uint32_t l, uint32_t in0, uint32_t in1)
{
    const kr_program *p = b->program;
    const bool mla = p->model->attention == KR_ATTENTION_MLA;
    const uint32_t qkv = emit_compute(b, KR_OP_QKV, l, in0, in1);
    projected r = {.index = NONE, .query = qkv};

    if (p->plan[l].owns_index && p->plan[l].separate_index_query)
        r.index = emit_compute(b, KR_OP_INDEX_PROJECT, l, qkv, NONE);
    if (mla) {
        r.query = emit_compute(b, KR_OP_Q_UP, l, qkv, NONE);
        if (!p->parallel.absorb_on_memory)
            r.query = emit_compute(b, KR_OP_ABSORB, l, r.query, NONE);
    }
    return r;
}

static bool has_gather_cost(const kr_method_plan *plan)
{
    static const kr_work none;

    return memcmp(&plan->cost[KR_STAGE_GATHER].per_attended_token, &none, sizeof none) != 0 ||
           memcmp(&plan->cost[KR_STAGE_GATHER].fixed, &none, sizeof none) != 0;
}

static uint32_t emit_score_select(builder *b, uint32_t l, kr_resource on, uint32_t after)
{
    const uint32_t score = emit(b, KR_OP_SCORE, l, on, after, NONE, NONE, NONE);

    return emit(b, KR_OP_SELECT, l, on, score, NONE, NONE, NONE);
}

static uint32_t emit_gather_attend(builder *b, uint32_t l, kr_resource on, uint32_t append, bool gather)
{
    const uint32_t select = b->select_of[b->program->plan[l].index_owner];
    const uint32_t selected = b->program->plan[l].dense ? NONE : select;

    if (gather) {
        const uint32_t gathered = emit(b, KR_OP_GATHER, l, on, append, selected, NONE, NONE);

        return emit(b, KR_OP_ATTEND, l, on, gathered, NONE, NONE, NONE);
    }
    return emit(b, KR_OP_ATTEND, l, on, append, selected, NONE, NONE);
}

/* All stages on one side: the node behind its link, or the compute rank itself. */
static uint32_t emit_attention_whole(builder *b, uint32_t l, projected q)
{
    const kr_method_plan *plan = &b->program->plan[l];
    const bool remote = b->program->parallel.placement == KR_PLACE_ALL_ON_NODE;
    const kr_resource on = remote ? KR_ON_DEVICE : KR_ON_COMPUTE;
    uint32_t append, attend;

    if (q.index != NONE) {
        if (remote)
            q.index = emit(b, KR_OP_SEND_INDEX, l, KR_ON_LINK, q.index, NONE, NONE, NONE);
        b->select_of[l] = emit_score_select(b, l, on, q.index);
    }
    if (remote)
        q.query = emit(b, KR_OP_SEND_QKV, l, KR_ON_LINK, q.query, NONE, NONE, NONE);
    append = emit(b, KR_OP_APPEND, l, on, q.query, NONE, NONE, NONE);
    if (!plan->dense && plan->owns_index && q.index == NONE)
        b->select_of[l] = emit_score_select(b, l, on, append);
    attend = emit_gather_attend(b, l, on, append, !plan->dense && has_gather_cost(plan));
    if (!remote)
        return attend;
    return emit(b, KR_OP_RETURN_OUT, l, KR_ON_LINK, attend, NONE, NONE, NONE);
}

/* The node scores and selects on compressed keys; KV stays with the compute rank, which attends on
 * its own in dense layers. */
static uint32_t emit_attention_split(builder *b, uint32_t l, projected q)
{
    const kr_method_plan *plan = &b->program->plan[l];
    uint32_t append;

    if (!plan->dense && plan->owns_index) {
        const uint32_t query = q.index != NONE ? q.index : q.query;
        const uint32_t sent = emit(b, KR_OP_SEND_INDEX, l, KR_ON_LINK, query, NONE, NONE, NONE);
        const uint32_t select = emit_score_select(b, l, KR_ON_DEVICE, sent);

        b->select_of[l] = emit(b, KR_OP_RETURN_INDICES, l, KR_ON_LINK, select, NONE, NONE, NONE);
    }
    append = emit_compute(b, KR_OP_APPEND, l, q.query, NONE);
    return emit_gather_attend(b, l, KR_ON_COMPUTE, append, !plan->dense);
}

static uint32_t emit_attention(builder *b, uint32_t l, projected q)
{
    if (b->program->parallel.placement != KR_PLACE_INDICES_ONLY)
        return emit_attention_whole(b, l, q);
    return emit_attention_split(b, l, q);
}

/* Routed and shared experts; out[2] are the ops whose results add up to the layer's output. */
static void emit_moe(builder *b, uint32_t l, uint32_t in, uint32_t out[2])
{
    const kr_program *p = b->program;
    const uint32_t router = emit_compute(b, KR_OP_ROUTER, l, in, NONE);
    uint32_t sent = router;

    out[1] = NONE;
    if (p->parallel.ep > 1)
        sent = emit(b, KR_OP_DISPATCH, l, KR_ON_A2A, router, NONE, NONE, NONE);
    if (p->model->moe.shared != 0)
        out[1] = emit_reduce(b, l, emit_compute(b, KR_OP_SHARED_EXPERT, l, in, NONE));
    out[0] = emit_compute(b, KR_OP_EXPERTS, l, sent, NONE);
    if (p->parallel.ep > 1)
        out[0] = emit(b, KR_OP_COMBINE, l, KR_ON_A2A, out[0], NONE, NONE, NONE);
}

static void emit_layer(builder *b, uint32_t l, uint32_t io[2])
{
    const kr_model *m = b->program->model;
    const projected q = emit_projections(b, l, io[0], io[1]);
    uint32_t x = emit_attention(b, l, q);

    if (m->attention == KR_ATTENTION_MLA)
        x = emit_compute(b, KR_OP_V_UP, l, x, NONE);
    x = emit_reduce(b, l, emit_compute(b, KR_OP_O_PROJ, l, x, NONE));
    if (m->layer[l].ffn == KR_FFN_MOE) {
        emit_moe(b, l, x, io);
        return;
    }
    io[0] = emit_reduce(b, l, emit_compute(b, KR_OP_FFN, l, x, NONE));
    io[1] = NONE;
}

static void emit_step(builder *b)
{
    kr_program *p = b->program;

    b->count = 0;
    for (b->micro_batch = 0; b->micro_batch < p->parallel.micro_batches; b->micro_batch++) {
        uint32_t io[2];

        if (b->ops != NULL)
            p->first_of_micro_batch[b->micro_batch] = b->count;
        io[0] = emit_compute(b, KR_OP_EMBED, 0, NONE, NONE);
        io[1] = NONE;
        for (uint32_t l = 0; l < p->model->layers; l++)
            emit_layer(b, l, io);
        io[0] = emit_compute(b, KR_OP_HEAD, p->model->layers, io[0], io[1]);
        emit_compute(b, KR_OP_SAMPLE, p->model->layers, io[0], NONE);
    }
    if (b->ops != NULL)
        p->first_of_micro_batch[b->micro_batch] = b->count;
}

static kr_status check_parallel(const kr_model *m, const kr_parallel *p, kr_err *err)
{
    if (p->micro_batches == 0 || p->micro_batches > KR_MICRO_BATCHES_MAX)
        return kr_fail(err, KR_E_ARG, "program: %u micro-batches, must be 1..%d", p->micro_batches,
                       KR_MICRO_BATCHES_MAX);
    if (p->tp == 0 || m->heads % p->tp != 0)
        return kr_fail(err, KR_E_ARG, "program: tp %u must divide %u heads", p->tp, m->heads);
    if (p->dp == 0 || p->ep == 0)
        return kr_fail(err, KR_E_ARG, "program: dp %u and ep %u must be at least 1", p->dp, p->ep);
    if (p->ep > 1 && (m->moe.experts == 0 || p->ep > m->moe.experts))
        return kr_fail(err, KR_E_ARG, "program: ep %u is over the model's %u routed experts", p->ep,
                       m->moe.experts);
    if (kr_dtype_bytes(p->activation) == 0 || kr_dtype_bytes(p->dispatch) == 0 ||
        kr_dtype_bytes(p->combine) == 0)
        return kr_fail(err, KR_E_ARG, "program: activation, dispatch or combine type is unknown");
    return KR_OK;
}

/* A layer that uses another's selection needs an earlier one that makes it (pitfall S-25). */
static kr_status check_owner(const kr_program *p, uint32_t l, kr_err *err)
{
    const kr_method_plan *plan = &p->plan[l];

    if (plan->dense || plan->owns_index)
        return KR_OK;
    if (plan->index_owner >= l || p->plan[plan->index_owner].dense || !p->plan[plan->index_owner].owns_index)
        return kr_fail(err, KR_E_UNSUPPORTED,
                       "program: layer %u (%s) uses the selection of layer %u, which makes none", l,
                       p->config[l].name, plan->index_owner);
    return KR_OK;
}

/* A window bounds what a row attends, whatever the method would take. */
static void apply_window(kr_method_plan *plan, uint32_t window)
{
    if (window == 0)
        return;
    if (plan->selected_max == 0 || plan->selected_max > window)
        plan->selected_max = window;
    plan->attended_fixed = plan->attended_ppm = 0;
}

/* What one rank attends. Where all stages run on compute, tensor parallelism splits the heads; MLA's one
 * latent row is read by every rank. A memory device has all heads of its sessions. */
static kr_attention_shape shape_of_rank(const kr_program *p, uint32_t layer)
{
    kr_attention_shape shape = kr_attention_shape_of(p->model, layer);

    if (p->parallel.placement != KR_PLACE_ALL_ON_COMPUTE)
        return shape;
    shape.heads /= p->parallel.tp;
    shape.kv_heads = (uint32_t)kr_ceil_div(shape.kv_heads, p->parallel.tp);
    return shape;
}

/* A mode that nothing would look at is refused. */
static kr_status check_mode(const kr_program *p, uint32_t l, const kr_method_config *asked, kr_err *err)
{
    const kr_method *method = p->method[l];

    if (asked->mode == p->config[l].mode && asked->mode <= method->modes)
        return KR_OK;
    if (method->modes == 0 || asked->mode != p->config[l].mode)
        return kr_fail(err, KR_E_UNSUPPORTED, "program: layer %u: mode %u of %.15s, which has none", l,
                       asked->mode, asked->name);
    return kr_fail(err, KR_E_UNSUPPORTED, "program: layer %u: mode %u of %.15s, which has 0 to %u", l,
                   asked->mode, asked->name, method->modes);
}

static kr_status plan_layers(kr_program *p, const kr_method_config *configs, uint64_t context_max,
                             kr_err *err)
{
    for (uint32_t l = 0; l < p->model->layers; l++) {
        kr_status status;

        p->shape[l] = shape_of_rank(p, l);
        p->config[l] = kr_native_resolve(&configs[l], p->model, l, p->parallel.paper_accounting);
        if (p->model->indexer == KR_INDEXER_BLOCK && strcmp(p->config[l].name, "msa") == 0)
            p->config[l].parameter[KR_NATIVE_HEADS] = p->shape[l].kv_heads; /* one for each KV head */
        status = kr_method_find(p->config[l].name, &p->method[l], err);
        if (status == KR_OK)
            status = check_mode(p, l, &configs[l], err);
        if (status == KR_OK)
            status = p->method[l]->plan(&p->config[l], &p->shape[l], context_max, &p->plan[l], err);
        apply_window(&p->plan[l], p->shape[l].window);
        if (status == KR_OK)
            status = check_owner(p, l, err);
        if (status != KR_OK)
            return status;
    }
    return KR_OK;
}

static kr_status no_memory(kr_err *err) { return kr_fail(err, KR_E_MEMORY, "program: the arena is full"); }

static kr_status take_layers(kr_program *p, kr_arena *arena, kr_err *err)
{
    const size_t layers = p->model->layers;

    p->method = kr_arena_take(arena, layers * sizeof(const kr_method *));
    p->config = kr_arena_take(arena, layers * sizeof *p->config);
    p->shape = kr_arena_take(arena, layers * sizeof *p->shape);
    p->plan = kr_arena_take(arena, layers * sizeof *p->plan);
    p->first_of_micro_batch = kr_arena_take(arena, (p->parallel.micro_batches + 1) * sizeof(uint32_t));
    if (p->method == NULL || p->config == NULL || p->shape == NULL || p->plan == NULL ||
        p->first_of_micro_batch == NULL)
        return no_memory(err);
    return KR_OK;
}

/* Micro-batches share terms, so one micro-batch's ops bound their number. */
static kr_status take_ops(kr_program *p, kr_arena *arena, builder *b, kr_err *err)
{
    emit_step(b);
    p->count = b->count;
    b->costs_max = b->count / p->parallel.micro_batches;
    p->ops = kr_arena_take(arena, b->count * sizeof *p->ops);
    p->cost = kr_arena_take(arena, b->costs_max * sizeof *p->cost);
    if (p->ops == NULL || p->cost == NULL)
        return no_memory(err);
    b->ops = p->ops;
    emit_step(b);
    return KR_OK;
}

kr_status kr_program_build(kr_program *program, kr_arena *arena, const kr_model *model,
                           const kr_method_config *configs, const kr_parallel *parallel, uint64_t context_max,
                           kr_err *err)
{
    kr_program p = {.model = model, .parallel = *parallel, .context_max = context_max};
    builder b = {.program = &p};
    kr_status status = check_parallel(model, parallel, err);

    if (status == KR_OK && (context_max == 0 || context_max > KR_CONTEXT_MAX))
        status = kr_fail(err, KR_E_LIMIT, "program: context %llu, must be 1..%d tokens",
                         (unsigned long long)context_max, KR_CONTEXT_MAX);
    if (status == KR_OK)
        status = take_layers(&p, arena, err);
    if (status == KR_OK)
        status = plan_layers(&p, configs, context_max, err);
    if (status == KR_OK)
        status = take_ops(&p, arena, &b, err);
    if (status == KR_OK)
        status = kr_program_order(&p, arena, err);
    if (status == KR_OK)
        *program = p;
    return status;
}
