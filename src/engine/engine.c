/* Making and unmaking an engine: program, weights, step buffers, and the nodes' configuration. */
#include "engine/engine.h"

#include <string.h>

#include "base/check.h"
#include "engine/inside.h"

/* ---- what is asked for, and whether this engine can do it ---- */

static kr_status check_config(const kr_engine_config *c, const kr_model *model, kr_err *err)
{
    if (c->context_max == 0 || c->context_max > model->context)
        return kr_fail(err, KR_E_LIMIT, "context size %llu is not in 1..%u, which the model was made for",
                       (unsigned long long)c->context_max, model->context);
    if (c->rows_max == 0 || c->rows_max > KR_ENGINE_ROWS_MAX)
        return kr_fail(err, KR_E_LIMIT, "rows of a micro-batch: %u is not in 1..%d", c->rows_max,
                       KR_ENGINE_ROWS_MAX);
    if (c->sessions_max == 0 || c->sessions_max > KR_ENGINE_SESSIONS_MAX)
        return kr_fail(err, KR_E_LIMIT, "sessions: %u is not in 1..%d", c->sessions_max,
                       KR_ENGINE_SESSIONS_MAX);
    if (c->micro_batches == 0 || c->micro_batches > 2)
        return kr_fail(err, KR_E_LIMIT, "micro-batches: %u is not 1 or 2", c->micro_batches);
    if (c->threads == 0 || c->threads > KR_TEAM_THREADS_MAX)
        return kr_fail(err, KR_E_LIMIT, "threads: %u is not in 1..%d", c->threads, KR_TEAM_THREADS_MAX);
    if (c->kv_dtype != KR_F32 && c->kv_dtype != KR_F16 && c->kv_dtype != KR_BF16)
        return kr_fail(err, KR_E_UNSUPPORTED, "KV type %s: this engine writes f32, f16 or bf16",
                       kr_dtype_name(c->kv_dtype));
    if (c->placement == KR_PLACE_ALL_ON_COMPUTE)
        return kr_fail(err, KR_E_UNSUPPORTED, "placement %s is for the simulator; the engine runs %s and %s",
                       kr_placement_name(c->placement), kr_placement_name(KR_PLACE_ALL_ON_NODE),
                       kr_placement_name(KR_PLACE_INDICES_ONLY));
    return KR_OK;
}

static kr_status check_nodes(const kr_engine_config *c, kr_err *err)
{
    if (c->node_count == 0 || c->node_count > KR_ENGINE_NODES_MAX)
        return kr_fail(err, KR_E_LIMIT, "memory nodes: %u is not in 1..%d", c->node_count,
                       KR_ENGINE_NODES_MAX);
    if ((c->gather_node != NULL) != (c->placement == KR_PLACE_INDICES_ONLY))
        return kr_fail(err, KR_E_ARG, "a gather node belongs to placement %s and to no other",
                       kr_placement_name(KR_PLACE_INDICES_ONLY));
    if (c->gather_node != NULL && (c->gather_node->drive == NULL || c->gather_node->welcome.devices != 1))
        return kr_fail(err, KR_E_ARG,
                       "the gather node is embedded, driven by the engine, and has one device");
    return KR_OK;
}

/* Compute ops that a step has an arm for, and what devices and links do by themselves. */
static bool executes(const kr_program *program, const kr_op *op)
{
    const bool split = program->parallel.placement == KR_PLACE_INDICES_ONLY;
    switch ((kr_op_kind)op->kind) {
    case KR_OP_EMBED:
    case KR_OP_QKV:
    case KR_OP_O_PROJ:
    case KR_OP_FFN:
    case KR_OP_HEAD:
    case KR_OP_SAMPLE:
    case KR_OP_SEND_QKV:
    case KR_OP_RETURN_INDICES:
    case KR_OP_RETURN_OUT:
        return true;
    case KR_OP_SEND_INDEX:
        return split != program->plan[op->layer].separate_index_query;
    case KR_OP_INDEX_PROJECT:
        return program->method[op->layer]->project != NULL || program->model->layer[op->layer].indexed;
    case KR_OP_Q_UP:
    case KR_OP_ABSORB:
    case KR_OP_V_UP:
    case KR_OP_ROUTER:
    case KR_OP_EXPERTS:
    case KR_OP_SHARED_EXPERT:
        return true;
    case KR_OP_SCORE:
    case KR_OP_SELECT:
        return op->resource == KR_ON_DEVICE;
    case KR_OP_APPEND:
    case KR_OP_GATHER:
    case KR_OP_ATTEND:
        return op->resource == (split ? KR_ON_COMPUTE : KR_ON_DEVICE);
    default:
        return false;
    }
}

static kr_status check_program(const kr_program *program, kr_err *err)
{
    uint32_t selecting = 0;
    for (uint32_t l = 0; l < program->model->layers; l++)
        selecting += !program->plan[l].dense;
    if (program->parallel.placement == KR_PLACE_INDICES_ONLY && selecting == 0)
        return kr_fail(err, KR_E_ARG, "placement %s: every layer is dense, so there is nothing to select",
                       kr_placement_name(program->parallel.placement));
    for (uint32_t l = 0; l < program->model->layers; l++)
        if (program->parallel.placement == KR_PLACE_INDICES_ONLY && program->plan[l].separate_index_query)
            return kr_fail(
                err, KR_E_UNSUPPORTED,
                "placement %s: method %s has index queries of its own (layer %u), which only %s sends",
                kr_placement_name(program->parallel.placement), program->method[l]->name, l,
                kr_placement_name(KR_PLACE_ALL_ON_NODE));
    for (uint32_t i = 0; i < program->count; i++)
        if (!executes(program, &program->ops[i]))
            return kr_fail(
                err, KR_E_UNSUPPORTED, "model %s needs op %s in layer %u, which this engine cannot execute",
                program->model->name, kr_op_name((kr_op_kind)program->ops[i].kind), program->ops[i].layer);
    return KR_OK;
}

/* Lists of a row in each layer, and what a reply's selection needs room for. */
static void count_lists(kr_engine *engine)
{
    const kr_program *p = &engine->program;
    for (uint32_t l = 0; l < engine->model.layers; l++) {
        const kr_method_plan *plan = &p->plan[l];
        if (plan->dense || p->method[l]->lists == NULL)
            continue;
        engine->lists[l] = p->method[l]->lists(&p->config[l], &p->shape[l]);
        const uint64_t tokens = plan->selected_max != 0 ? plan->selected_max : engine->config.context_max;
        const uint64_t lists = (uint64_t)engine->config.rows_max * engine->lists[l];
        const uint64_t units = lists * (kr_ceil_div(tokens, plan->unit_tokens) + 1);
        if (lists > engine->selected_lists)
            engine->selected_lists = lists;
        if (units > engine->selected_max)
            engine->selected_max = units;
    }
}

/* Room for a program of this many layers: every kind of op in every layer would fit. */
static size_t program_arena_bytes(const kr_engine_config *c, const kr_model *model)
{
    const size_t ops = (size_t)c->micro_batches * (model->layers + 1) * KR_OP_KINDS;
    return ops * (sizeof(kr_op) + sizeof(kr_cost_terms)) + model->layers * (sizeof(kr_method_plan) + 256) +
           (1 << 20);
}

kr_status kr_engine_program_of(const kr_engine_config *config, kr_model *model, kr_arena *arena,
                               kr_program *program, kr_err *err)
{
    const kr_parallel parallel = {.tp = 1,
                                  .ep = 1,
                                  .dp = 1,
                                  .micro_batches = config->micro_batches,
                                  .placement = config->placement,
                                  .activation = KR_F32,
                                  .dispatch = KR_F32,
                                  .combine = KR_F32};
    *model = *kr_model_file_model(config->file);
    model->kv_dtype = config->kv_dtype;
    kr_status status = check_config(config, model, err);
    if (status == KR_OK)
        status = kr_project_check(config, model, err);
    if (status == KR_OK)
        status = kr_arena_init(arena, program_arena_bytes(config, model), err);
    if (status != KR_OK)
        return status;
    status = kr_program_build(program, arena, model, config->methods, &parallel, config->context_max, err);
    if (status == KR_OK)
        status = check_program(program, err);
    if (status != KR_OK)
        kr_arena_free(arena);
    return status;
}

static kr_status build(kr_engine *engine, const kr_engine_config *config, kr_err *err)
{
    engine->config = *config;
    engine->config.methods = NULL; /* the program has its own copy */
    kr_status status = kr_engine_program_of(config, &engine->model, &engine->program_arena, &engine->program,
                                            err);
    if (status == KR_OK)
        status = kr_program_memory(&engine->program, config->context_max, config->rows_max, &engine->memory,
                                   err);
    if (status != KR_OK)
        return status;
    status = kr_project_plan(engine, err);
    if (status != KR_OK)
        return status;
    count_lists(engine);
    kr_model_layer_groups(&engine->model, engine->group_of);
    return KR_OK;
}

/* ---- buffers: one list, walked twice: for the size and for the addresses ---- */

typedef struct {
    kr_arena *arena; /* NULL: only count */
    uint64_t bytes;
} taker;

static void *take(taker *t, uint64_t count, uint64_t each)
{
    const uint64_t bytes = kr_align_up(count * each, 64);
    t->bytes += bytes;
    if (t->arena == NULL)
        return NULL;
    void *memory = kr_arena_take(t->arena, bytes);
    KR_CHECK(memory != NULL);
    return memory;
}

/* Index rows of the layer that has the longest. */
static void take_index(const kr_engine *engine, kr_micro_batch *b, taker *t)
{
    const kr_model *m = &engine->model;
    const uint64_t rows = engine->config.rows_max;
    uint64_t query = 0, key = 0;
    for (uint32_t l = 0; l < m->layers; l++) {
        const kr_method_plan *plan = &engine->program.plan[l];
        if (!plan->separate_index_query)
            continue;
        query = plan->index_query_bytes > query ? plan->index_query_bytes : query;
        key = plan->index_key_bytes > key ? plan->index_key_bytes : key;
    }
    b->rows.index_query = take(t, rows, query);
    b->rows.index_key = take(t, rows, key);
    if (engine->project_bytes != 0) {
        b->rows.query_pre_rope = take(t, rows * m->heads * m->head_dim, sizeof(float));
        b->rows.key_pre_rope = take(t, rows * m->kv_heads * m->head_dim, sizeof(float));
    }
}

/* Rows that only latent attention and experts have. */
static void take_special(const kr_engine *engine, kr_micro_batch *b, taker *t)
{
    const kr_model *m = &engine->model;
    const uint64_t rows = engine->config.rows_max;
    if (m->attention == KR_ATTENTION_MLA) {
        b->rows.latent = take(t, rows * m->q_lora, sizeof(float));
        b->rows.expanded = take(
            t, rows * m->heads * (m->head_dim > m->value_dim ? m->head_dim : m->value_dim), sizeof(float));
    }
    if (m->moe.experts != 0) {
        b->rows.ffn_input = take(t, rows * m->hidden, sizeof(float));
        b->rows.expert = take(t, rows * m->moe.active, sizeof(uint32_t));
        b->rows.expert_weight = take(t, rows * m->moe.active, sizeof(float));
    }
}

static void take_batch(const kr_engine *engine, kr_micro_batch *b, taker *t)
{
    const kr_model *m = &engine->model;
    const kr_attention_shape *s = &engine->program.shape[0];
    const uint64_t rows = engine->config.rows_max, element = kr_dtype_bytes(m->kv_dtype);
    b->token = take(t, rows, sizeof *b->token);
    b->position = take(t, rows, sizeof *b->position);
    b->attended = take(t, rows * s->heads * s->value_dim, sizeof(float));
    b->rows.token = b->token;
    b->rows.position = b->position;
    b->rows.attended = b->attended;
    b->rows.hidden = take(t, rows * m->hidden, sizeof(float));
    b->rows.query = take(t, rows * s->heads * s->key_dim, sizeof(float));
    b->rows.key = take(t, rows * s->kv_heads * s->key_dim, element);
    b->rows.value = take(t, s->latent ? 0 : rows * s->kv_heads * s->value_dim, element);
    b->item = take(t, rows, sizeof(kr_step_item *));
    b->row = take(t, rows, sizeof *b->row);
    b->gather_row = take(t, rows, sizeof *b->gather_row);
    b->first_row = take(t, rows, sizeof *b->first_row);
    b->group = take(t, rows, sizeof *b->group);
    b->piece = take(t, 2 * rows + KR_PIECES, sizeof *b->piece);
    b->head_row = take(t, rows, sizeof *b->head_row);
    b->logits = take(t, (uint64_t)engine->head_max * m->vocab, sizeof(float));
    take_index(engine, b, t);
    take_special(engine, b, t);
}

static void take_spans(kr_engine *engine, taker *t)
{
    const kr_engine_config *c = &engine->config;
    engine->tracks = KR_TRACK_DEVICES + (c->gather_node != NULL);
    for (uint32_t i = 0; i < c->node_count; i++)
        engine->tracks += c->nodes[i].welcome.devices;
    engine->spans = take(t, engine->tracks, sizeof *engine->spans);
    for (uint32_t i = 0; i < engine->tracks; i++) {
        kr_span *ring = take(t, c->spans_max, sizeof *ring);
        if (t->arena != NULL)
            engine->spans[i] = (kr_spans){.ring = ring, .capacity = c->spans_max};
    }
}

static uint64_t take_buffers(kr_engine *engine, kr_arena *arena)
{
    const kr_engine_config *c = &engine->config;
    taker t = {.arena = arena};
    engine->head_max = c->rows_max < c->sessions_max ? c->rows_max : c->sessions_max;
    engine->peer = take(&t, c->node_count + 1, sizeof *engine->peer);
    engine->session = take(&t, c->sessions_max, sizeof *engine->session);
    engine->running = take(&t, c->sessions_max, sizeof(kr_session *));
    engine->prefix_home = take(&t, KR_PREFIX_HOMES, sizeof *engine->prefix_home);
    engine->assignment = take(&t, c->sessions_max, sizeof *engine->assignment);
    engine->candidate = take(&t, engine->model.vocab, sizeof *engine->candidate);
    take_spans(engine, &t);
    engine->event = take(&t, c->events_max, sizeof *engine->event);
    if (c->on_selection != NULL) {
        engine->selected_count = take(&t, engine->selected_lists, sizeof *engine->selected_count);
        engine->selected = take(&t, engine->selected_max, sizeof *engine->selected);
    }
    for (uint32_t mb = 0; mb < c->micro_batches; mb++)
        take_batch(engine, &engine->batch[mb], &t);
    return t.bytes;
}

static kr_forward_config forward_config(const kr_engine *engine)
{
    return (kr_forward_config){.file = engine->config.file,
                               .team = engine->team,
                               .rows_max = engine->config.rows_max,
                               .kv_dtype = engine->config.kv_dtype,
                               .weights_f32 = engine->config.weights_f32};
}

/* One micro-batch of one row. */
static void price_token(const kr_engine *engine, kr_engine_needs *needs)
{
    const kr_program *p = &engine->program;
    memset(needs->resource, KR_RESOURCE_COUNT, sizeof needs->resource);
    for (uint32_t i = 0; i < p->first_of_micro_batch[1]; i++) {
        const kr_op *op = &p->ops[i];
        const bool layered = op->layer < p->model->layers;
        kr_load load = layered ? kr_row_load(&p->plan[op->layer], engine->config.context_max)
                               : (kr_load){.rows = 1};
        load.experts = load.expert_rows = p->model->moe.active;
        needs->work[op->kind] = kr_work_add(needs->work[op->kind], kr_op_work(p, op, &load));
        needs->resource[op->kind] = op->resource;
    }
}

kr_status kr_engine_plan(const kr_engine_config *config, kr_engine_needs *needs, kr_err *err)
{
    kr_engine *engine = kr_alloc(sizeof *engine);
    if (engine == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for an engine");
    kr_engine_needs plan = {0};
    kr_status status = build(engine, config, err);
    if (status == KR_OK)
        status = kr_team_create(&engine->team, config->threads, NULL, err);
    const kr_forward_config forward = forward_config(engine);
    if (status == KR_OK)
        status = kr_forward_bytes(&forward, &plan.weight_bytes, &plan.forward_scratch_bytes, err);
    if (status == KR_OK) {
        plan.weight_bytes += engine->project_bytes;
        plan.step_bytes = take_buffers(engine, NULL);
        plan.session_bytes = config->context_max * sizeof(uint32_t) + engine->state_bytes +
                             (config->context_max / KR_PAGE_TOKENS + 1) * sizeof(kr_hash128);
        plan.node = engine->memory;
        uint64_t pages[2];
        kr_program_pages(&engine->program, config->context_max, 2 * config->rows_max, pages);
        plan.session_page_bytes = pages[0] * plan.node.page_bytes[0] + pages[1] * plan.node.page_bytes[1];
        price_token(engine, &plan);
        *needs = plan;
    }
    kr_team_destroy(engine->team);
    kr_arena_free(&engine->program_arena);
    kr_free(engine);
    return status;
}

/* ---- the nodes ---- */

kr_status kr_engine_configure(kr_engine *engine, kr_peer *peer, kr_err *err)
{
    const kr_model *m = &engine->model;
    const kr_attention_shape *s = &engine->program.shape[0];
    kr_msg_layer layer[KR_LAYERS_MAX] = {0};
    kr_msg_configure head = {
        .layers = m->layers,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .key_dim = s->key_dim,
        .value_dim = s->value_dim,
        .latent = s->latent,
        .kv_dtype = s->kv_dtype,
        .softmax_scale = s->softmax_scale,
        .context_max = engine->config.context_max,
        .tokens_max = engine->config.rows_max,
        .groups = 1,
        .fingerprint = kr_model_file_fingerprint(engine->config.file),
    };
    for (uint32_t l = 0; l < m->layers; l++) {
        layer[l].window = m->layer[l].window;
        layer[l].group = engine->group_of[l];
        layer[l].index_owner = engine->program.plan[l].index_owner;
        memcpy(layer[l].method, &engine->program.config[l], sizeof layer[l].method);
        if (layer[l].group + 1 > head.groups)
            head.groups = layer[l].group + 1;
    }
    const kr_piece pieces[] = {{&head, sizeof head}, {layer, m->layers * sizeof *layer}};
    kr_message reply;
    kr_status status = kr_peer_call(peer, KR_MSG_CONFIGURE, 0, pieces, 2, KR_MSG_DONE, &reply, err);
    if (status == KR_OK)
        kr_peer_release(peer, &reply);
    return status;
}

static kr_status connect_peers(kr_engine *engine, kr_err *err)
{
    const kr_engine_config *c = &engine->config;
    kr_status status = KR_OK;
    for (uint32_t i = 0; i < c->node_count + (c->gather_node != NULL) && status == KR_OK; i++) {
        const kr_engine_node *node = i < c->node_count ? &c->nodes[i] : c->gather_node;
        status = kr_peer_init(&engine->peer[i], node, c->clock, c->timeout_ns, err);
        if (status == KR_OK)
            status = kr_engine_configure(engine, &engine->peer[i], err);
        if (status == KR_OK)
            status = kr_peer_ask_stats(&engine->peer[i], err);
        if (status == KR_OK) {
            kr_peer_mark(&engine->peer[i]);
            engine->peers++;
        }
    }
    if (status == KR_OK && c->gather_node != NULL)
        engine->gather = &engine->peer[c->node_count];
    return status;
}

/* ---- create, destroy, look ---- */

static kr_status make(kr_engine *engine, kr_err *err)
{
    const kr_engine_config *c = &engine->config;
    kr_status status = kr_arena_init(&engine->arena, take_buffers(engine, NULL), err);
    if (status != KR_OK)
        return status;
    take_buffers(engine, &engine->arena);
    for (uint32_t i = 0; i < c->sessions_max; i++)
        engine->session[i] = (kr_session){.engine = engine, .number = i};
    status = kr_team_create(&engine->team, c->threads, NULL, err);
    if (status != KR_OK)
        return status;
    const kr_forward_config forward = forward_config(engine);
    status = kr_forward_create(&engine->forward, &forward, c->progress, c->context, err);
    if (status == KR_OK)
        status = kr_project_bind(engine, err);
    if (status != KR_OK)
        return status;
    return connect_peers(engine, err);
}

kr_status kr_engine_create(kr_engine **out, const kr_engine_config *config, kr_err *err)
{
    kr_status status = check_nodes(config, err);
    if (status != KR_OK)
        return status;
    kr_engine *engine = kr_alloc(sizeof *engine);
    if (engine == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for an engine");
    status = build(engine, config, err);
    if (status == KR_OK)
        status = make(engine, err);
    if (status != KR_OK) {
        kr_engine_destroy(engine);
        return status;
    }
    *out = engine;
    return KR_OK;
}

void kr_engine_destroy(kr_engine *engine)
{
    if (engine == NULL)
        return;
    while (engine->running_count != 0)
        kr_session_close(engine->running[engine->running_count - 1]);
    for (uint32_t i = 0; i < engine->peers; i++) {
        uint64_t sequence;
        (void)kr_peer_send(&engine->peer[i], (kr_msg_header){.kind = KR_MSG_BYE}, NULL, 0, &sequence, NULL);
    }
    kr_forward_destroy(engine->forward);
    kr_team_destroy(engine->team);
    kr_arena_free(&engine->arena);
    kr_arena_free(&engine->project_arena);
    kr_arena_free(&engine->program_arena);
    kr_free(engine);
}

const kr_model *kr_engine_model(const kr_engine *engine) { return &engine->model; }
const kr_program *kr_engine_program(const kr_engine *engine) { return &engine->program; }
const kr_clock *kr_engine_clock(const kr_engine *engine) { return engine->config.clock; }

const struct kr_tokenizer *kr_engine_tokenizer(const kr_engine *engine)
{
    return kr_model_file_tokenizer(engine->config.file);
}

const char *kr_engine_path(const kr_engine *engine) { return kr_forward_path(engine->forward); }

static void add_device(const kr_engine *engine, const kr_peer *peer, uint32_t d, kr_engine_stats *stats)
{
    const kr_msg_device_stats *device = &peer->device[d];
    const uint64_t busy = device->busy_ns - peer->busy_before_ns[d];
    uint64_t *bytes = peer == engine->gather ? &stats->gather_kv_bytes : &stats->node_kv_bytes;
    if (busy > stats->device_busy_ns)
        stats->device_busy_ns = busy;
    for (uint32_t s = 0; s < KR_STAGES; s++)
        stats->stage_ns[s] += device->stage_ns[s] - peer->stage_before_ns[d][s];
    for (uint32_t g = 0; g < 2; g++)
        *bytes += device->pages_used[g] * device->page_bytes[g];
}

kr_status kr_engine_ask_stats(kr_engine *engine, kr_err *err)
{
    kr_engine_stats stats = engine->stats;
    stats.device_busy_ns = stats.node_kv_bytes = stats.gather_kv_bytes = 0;
    memset(stats.stage_ns, 0, sizeof stats.stage_ns);
    for (uint32_t i = 0; i < engine->peers; i++) {
        kr_status status = kr_peer_ask_stats(&engine->peer[i], err);
        if (status != KR_OK)
            return status;
        for (uint32_t d = 0; d < engine->peer[i].node.welcome.devices; d++)
            add_device(engine, &engine->peer[i], d, &stats);
    }
    engine->stats = stats;
    return KR_OK;
}

uint64_t kr_engine_both_ns(const kr_engine_stats *stats)
{
    uint64_t both = stats->device_busy_ns;
    for (uint32_t kind = 0; kind < KR_OP_KINDS; kind++)
        if (kind != KR_OP_SEND_QKV && kind != KR_OP_SEND_INDEX)
            both += stats->op_ns[kind];
    return both > stats->step_ns ? both - stats->step_ns : 0;
}

kr_engine_stats kr_engine_get_stats(const kr_engine *engine)
{
    kr_engine_stats stats = engine->stats;
    for (uint32_t i = 0; i < engine->peers; i++) {
        stats.bytes_sent += engine->peer[i].node.link->bytes_sent;
        stats.bytes_received += engine->peer[i].node.link->bytes_received;
        stats.messages_sent += engine->peer[i].node.link->messages_sent;
    }
    return stats;
}

uint32_t kr_engine_peers(const kr_engine *engine) { return engine->peers; }

const kr_peer *kr_engine_peer(const kr_engine *engine, uint32_t i)
{
    KR_CHECK(i < engine->peers);
    return &engine->peer[i];
}

uint32_t kr_engine_tracks(const kr_engine *engine) { return engine->tracks; }

const kr_spans *kr_engine_spans(const kr_engine *engine, uint32_t track)
{
    KR_CHECK(track < engine->tracks);
    return &engine->spans[track];
}

void kr_engine_record(const kr_engine *engine, kr_run_header *header, const kr_run_event **events,
                      uint64_t *count)
{
    *header = (kr_run_header){.policy = engine->config.policy,
                              .workers = 1,
                              .steps = (uint32_t)engine->stats.steps,
                              .micro_batches = engine->config.micro_batches,
                              .program_digest = kr_program_digest(&engine->program),
                              .program = {.context_max = engine->config.context_max,
                                          .kv_dtype = engine->config.kv_dtype,
                                          .placement = engine->config.placement,
                                          .layers = engine->model.layers}};
    memcpy(header->program.model, engine->model.name, sizeof header->program.model);
    memcpy(header->program.method, engine->program.config,
           engine->model.layers * sizeof header->program.method[0]);
    *events = engine->event;
    *count = engine->events;
}
