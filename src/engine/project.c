/* The project half of methods that bring tensors of their own: their weights, bound once, and the index
 * queries and keys of a micro-batch. A session's rows are projected in order by one thread, sessions at
 * once, so nothing depends on the number of threads or on who else is in the step. */
#include <string.h>

#include "base/check.h"
#include "engine/inside.h"
#include "ops/quant_block.h"

static const kr_method_project *project_of(const kr_engine *engine, uint32_t layer)
{
    return engine->program.plan[layer].dense ? NULL : engine->program.method[layer]->project;
}

static kr_status read_tensor(const kr_weight_source *source, uint32_t layer, const char *name, uint64_t rows,
                             uint64_t columns, float *out, kr_err *err)
{
    kr_tensor tensor;
    const kr_status status = kr_model_file_layer_tensor(source->context, layer, name, &tensor, err);
    if (status != KR_OK)
        return status;
    if (tensor.rows != rows || tensor.columns != columns)
        return kr_fail(err, KR_E_FORMAT, "tensor %s has %llu rows of %llu; %llu of %llu are expected",
                       tensor.name, (unsigned long long)tensor.rows, (unsigned long long)tensor.columns,
                       (unsigned long long)rows, (unsigned long long)columns);
    const uint64_t row_bytes = kr_weight_row_bytes(tensor.type, columns);
    for (uint64_t r = 0; r < rows && out != NULL; r++)
        kr_dequantise(tensor.type, tensor.data + r * row_bytes, out + r * columns, columns);
    return KR_OK;
}

static kr_status bind(const kr_engine *engine, uint32_t layer, void *weights, kr_err *err)
{
    const kr_program *p = &engine->program;
    const kr_weight_source source = {
        .context = engine->config.file, .model = &engine->model, .read = read_tensor};
    kr_err why = {0};
    const kr_status status =
        project_of(engine, layer)->bind(&p->config[layer], &p->shape[layer], &source, weights, &why);
    return status == KR_OK
               ? KR_OK
               : kr_fail(err, status, "method %s is learned: %s", p->method[layer]->name, why.text);
}

static bool has_dsa(const kr_model *m) { return m->indexer == KR_INDEXER_DSA; }
static bool has_blocks(const kr_model *m) { return m->indexer == KR_INDEXER_BLOCK; }
static bool has_gates(const kr_model *m) { return m->gates.dim != 0; }

/* Methods that only models with certain tensors have, and one of these. */
static const struct {
    const char *method, *tensor;
    bool (*fits)(const kr_model *model);
} learned[] = {
    {"dsa", "self_attn.indexer.wq_b.weight", has_dsa},
    {"msa", "self_attn.index_q_proj.weight", has_blocks},
    {"seer", "self_attn.attn_gate.attngate_linear_q.weight", has_gates},
};

kr_status kr_project_check(const kr_engine_config *config, const kr_model *model, kr_err *err)
{
    kr_tensor tensor;
    kr_err why = {0};
    for (uint32_t l = 0; l < model->layers; l++)
        for (size_t i = 0; i < sizeof learned / sizeof learned[0]; i++) {
            const char *name = config->methods[l].name;
            if (strncmp(name, learned[i].method, sizeof config->methods[l].name) != 0 ||
                learned[i].fits(model))
                continue;
            if (kr_model_file_layer_tensor(config->file, l, learned[i].tensor, &tensor, &why) == KR_OK)
                kr_fail(&why, KR_E_UNSUPPORTED, "a %s model has no use for tensor %s",
                        kr_family_name(model->family), tensor.name);
            return kr_fail(err, why.status, "method %s is learned: %s", learned[i].method, why.text);
        }
    return KR_OK;
}

kr_status kr_project_plan(kr_engine *engine, kr_err *err)
{
    const kr_program *p = &engine->program;
    kr_status status = KR_OK;
    for (uint32_t l = 0; l < engine->model.layers && status == KR_OK; l++) {
        const kr_method_project *project = project_of(engine, l);
        engine->state_offset[l] = engine->state_bytes;
        if (project == NULL)
            continue;
        status = bind(engine, l, NULL, err);
        if (status != KR_OK)
            break;
        engine->state_bytes += kr_align_up(project->state_bytes(&p->config[l], &p->shape[l]), 64);
        engine->project_bytes += kr_align_up(project->weight_bytes(&p->config[l], &p->shape[l]), 64);
    }
    return status;
}

kr_status kr_project_bind(kr_engine *engine, kr_err *err)
{
    const kr_program *p = &engine->program;
    kr_status status = KR_OK;
    if (engine->project_bytes == 0)
        return KR_OK;
    status = kr_arena_init(&engine->project_arena, engine->project_bytes, err);
    for (uint32_t l = 0; l < engine->model.layers && status == KR_OK; l++) {
        const kr_method_project *project = project_of(engine, l);
        if (project == NULL)
            continue;
        engine->project_weights[l] = kr_arena_take(&engine->project_arena,
                                                   project->weight_bytes(&p->config[l], &p->shape[l]));
        KR_CHECK(engine->project_weights[l] != NULL);
        status = bind(engine, l, engine->project_weights[l], err);
    }
    return status;
}

typedef struct {
    const kr_engine *engine;
    const kr_micro_batch *batch;
    uint32_t layer;
} project_run;

static void run_item(void *context, uint32_t i, uint32_t worker)
{
    const project_run *run = context;
    const kr_engine *engine = run->engine;
    const kr_micro_batch *batch = run->batch;
    const kr_method_plan *plan = &engine->program.plan[run->layer];
    const kr_model *m = &engine->model;
    const uint64_t row = batch->first_row[i];
    (void)worker;
    project_of(engine, run->layer)
        ->run(&(kr_project_job){
            .weights = engine->project_weights[run->layer],
            .state = batch->item[i]->session->project_state + engine->state_offset[run->layer],
            .rows = batch->item[i]->tokens,
            .first_position = batch->row[i].position,
            .is_prefill = batch->item[i]->prefill,
            .query = batch->rows.query_pre_rope + row * m->heads * m->head_dim,
            .key = batch->rows.key_pre_rope + row * m->kv_heads * m->head_dim,
            .index_query = batch->rows.index_query + row * plan->index_query_bytes,
            .index_key = batch->rows.index_key + row * plan->index_key_bytes,
        });
}

void kr_project_run(kr_engine *engine, kr_micro_batch *batch, uint32_t layer)
{
    project_run run = {engine, batch, layer};
    kr_team_run(engine->team, run_item, &run, batch->items);
}
