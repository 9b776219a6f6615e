/* `karat run --dry-run`: bytes by class, and the work of one decode token by op, all from the cost
 * module, before anything large is allocated. */
#include <stdio.h>

#include "base/arena.h"
#include "cli/run.h"
#include "report/table.h"

static const kr_column byte_columns[] = {
    {.title = "class", .key = "class"},
    {.title = "side", .key = "side"},
    {.title = "bytes", .unit = "B", .key = "bytes"},
};

static const kr_column work_columns[] = {
    {.title = "op", .key = "op"},
    {.title = "resource", .key = "resource"},
    {.title = "FLOPs", .key = "flops"},
    {.title = "read", .unit = "B", .key = "read_bytes"},
    {.title = "written", .unit = "B", .key = "write_bytes"},
    {.title = "moved", .unit = "B", .key = "move_bytes"},
};

static void add_bytes(kr_table *table, const char *name, const char *side, uint64_t bytes)
{
    kr_table_text(table, "%s", name);
    kr_table_text(table, "%s", side);
    kr_table_count(table, bytes);
}

static void fill_bytes(const kr_run *run, const kr_engine_needs *b, kr_table *table)
{
    const uint64_t sessions = run->config.sessions_max, context = run->config.context_max;
    const uint64_t index = b->node.index_token_bytes * context;
    add_bytes(table, "weights", "compute", b->weight_bytes);
    add_bytes(table, "operator scratch", "compute", b->forward_scratch_bytes);
    add_bytes(table, "rows, logits and messages of a step", "compute", b->step_bytes);
    add_bytes(table, "token logs of all sessions", "compute", b->session_bytes * sessions);
    add_bytes(table, "pages of all sessions at their longest", "memory node",
              b->session_page_bytes * sessions);
    add_bytes(table, "of which index, at most", "memory node", index * sessions);
    add_bytes(table, "index records of all sessions", "memory node", b->node.record_bytes * sessions);
    add_bytes(table, "stage workspace of a device", "memory node", b->node.workspace_bytes);
    if (run->config.placement == KR_PLACE_INDICES_ONLY)
        add_bytes(table, "pages, records and workspace beside the weights", "compute",
                  (b->session_page_bytes + b->node.record_bytes) * sessions + b->node.workspace_bytes);
}

static const char *resource_name(kr_resource resource)
{
    static const char *const name[KR_RESOURCE_COUNT] = {"compute", "device", "link", "all-to-all"};
    return name[resource];
}

static void fill_work(const kr_engine_needs *needs, kr_table *table)
{
    for (uint32_t kind = 0; kind < KR_OP_KINDS; kind++) {
        if (needs->resource[kind] == KR_RESOURCE_COUNT)
            continue;
        kr_table_text(table, "%s", kr_op_name((kr_op_kind)kind));
        kr_table_text(table, "%s", resource_name((kr_resource)needs->resource[kind]));
        kr_table_count(table, needs->work[kind].flops);
        kr_table_count(table, needs->work[kind].read_bytes);
        kr_table_count(table, needs->work[kind].write_bytes);
        kr_table_count(table, needs->work[kind].move_bytes);
    }
}

static kr_status plan_json(const kr_run *run, const kr_table *bytes, const kr_table *work, json_t **root,
                           kr_err *err)
{
    json_t *byte_rows, *work_rows;
    kr_status status = kr_table_json(bytes, &byte_rows, err);
    if (status != KR_OK)
        return status;
    status = kr_table_json(work, &work_rows, err);
    if (status != KR_OK) {
        json_decref(byte_rows);
        return status;
    }
    *root = json_pack("{s:s,s:I,s:I,s:o,s:o}", "model", kr_model_file_model(run->file)->name,
                      "context_tokens", (json_int_t)run->config.context_max, "sessions",
                      (json_int_t)run->config.sessions_max, "bytes", byte_rows, "work_per_decode_token",
                      work_rows);
    return *root != NULL ? KR_OK : kr_fail(err, KR_E_MEMORY, "no memory for the plan");
}

static kr_status print_text(const kr_run *run, const kr_table *bytes, const kr_table *work, kr_err *err)
{
    printf("%s: %u session(s) of up to %llu tokens\n\n", kr_model_file_model(run->file)->name,
           run->config.sessions_max, (unsigned long long)run->config.context_max);
    kr_status status = kr_table_print(bytes, stdout, err);
    if (status != KR_OK)
        return status;
    printf("\none decode token at that length:\n");
    return kr_table_print(work, stdout, err);
}

int kr_run_print_plan(const kr_run *run, const kr_engine_needs *needs)
{
    kr_err err = {0};
    kr_table bytes, work;
    kr_table_init(&bytes, NULL, byte_columns, sizeof byte_columns / sizeof byte_columns[0]);
    kr_table_init(&work, NULL, work_columns, sizeof work_columns / sizeof work_columns[0]);
    fill_bytes(run, needs, &bytes);
    fill_work(needs, &work);
    json_t *root = NULL;
    kr_status status = run->options->json ? plan_json(run, &bytes, &work, &root, &err)
                                          : print_text(run, &bytes, &work, &err);
    kr_table_free(&bytes);
    kr_table_free(&work);
    if (status != KR_OK)
        return kr_cli_failed("run", &err);
    return root != NULL ? kr_cli_print_json(root) : KR_EXIT_OK;
}
