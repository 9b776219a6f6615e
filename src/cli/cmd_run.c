/* `karat run MODEL`: prompts or a chat, through an engine and its memory nodes.
 *
 * Order: everything that can be refused is refused before anything large is allocated: options, the
 * model file, prompts, the context's length, then the plan of bytes; then nodes, then weights. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "cli/commands.h"
#include "cli/run.h"
#include "method/native.h"

enum { CHAT_CONTEXT = 8192, SPANS = 1 << 18, EVENTS_MAX = 1 << 22 };

static uint32_t cores_online(void)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : (uint32_t)cores;
}

static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

static kr_status open_model(kr_run *run, kr_err *err)
{
    const kr_run_options *o = run->options;
    kr_status status = kr_model_file_open(run->model_path, &run->file, err);
    if (status != KR_OK)
        return status;
    run->tokenizer = kr_model_file_tokenizer(run->file);
    if (!o->chat && !o->instruct)
        return KR_OK;
    if (o->chat_template != NULL)
        return kr_chat_parse(o->chat_template, &run->family, err);
    return kr_chat_recognise(run->file, &run->family, err);
}

/* The longest session that the prompts need. A chat, a restored session and one on a remote node get
 * a common size: clients share a node and its prefixes only when they configure it alike. */
static kr_status choose_context(kr_run *run, kr_err *err)
{
    const kr_run_options *o = run->options;
    const uint64_t limit = kr_model_file_model(run->file)->context;
    uint64_t longest = 0;
    for (uint32_t i = 0; i < run->prompts.count; i++)
        longest = max_u64(longest, run->prompts.prompt[i].count);
    const uint64_t needed = longest + o->tokens;
    run->config.context_max = o->ctx_size;
    if (o->ctx_size == 0 && (o->chat || o->restore != NULL || o->memory_node.count != 0))
        run->config.context_max = max_u64(needed, limit < CHAT_CONTEXT ? limit : CHAT_CONTEXT);
    else if (o->ctx_size == 0)
        run->config.context_max = needed;
    const uint64_t context = run->config.context_max;
    if (o->ctx_size > limit)
        return kr_fail(err, KR_E_LIMIT, "--ctx-size %llu is over the %llu tokens that the model was made for",
                       (unsigned long long)o->ctx_size, (unsigned long long)limit);
    if (context > limit || (longest != 0 && needed > context))
        return kr_fail(err, KR_E_LIMIT,
                       "context over the limit: %llu prompt tokens and %llu to generate make %llu, the "
                       "context holds %llu",
                       (unsigned long long)longest, (unsigned long long)o->tokens, (unsigned long long)needed,
                       (unsigned long long)(o->ctx_size != 0 ? o->ctx_size : limit));
    return KR_OK;
}

/* Compute and device threads: one stream in turn on all cores, else disjoint and summing to them. */
static void choose_threads(kr_run *run, uint32_t *device_threads, bool *driven)
{
    const kr_run_options *o = run->options;
    const uint32_t cores = cores_online(), mbs = run->config.micro_batches;
    const bool remote = o->memory_node.count != 0;
    uint32_t compute = cores;
    *driven = !remote && mbs == 1;
    *device_threads = cores;
    if (!remote && mbs > 1) {
        *device_threads = cores > 1 ? cores / 2 : 1;
        compute = cores > 1 ? cores - *device_threads : 1;
    }
    if (o->device_threads != 0) {
        *device_threads = o->device_threads;
    } else if (o->devices > 1) {
        *device_threads = *device_threads > o->devices ? *device_threads / o->devices : 1;
    }
    run->config.threads = o->threads != 0 ? o->threads : compute;
}

static kr_sampling sampling_of(const kr_run_options *o)
{
    return (kr_sampling){(float)o->temperature, (float)o->top_p, o->seed};
}

/* A budget for layers that all attend densely was meant for something else. */
static kr_status check_budget(const kr_run *run, kr_err *err)
{
    const kr_model *model = kr_model_file_model(run->file);
    for (uint32_t l = 0; l < model->layers; l++)
        if (strcmp(kr_native_resolve(&run->method[l], model, l, false).name, "dense") != 0)
            return KR_OK;
    return run->options->budget == 0 ? KR_OK
                                     : kr_fail(err, KR_E_ARG,
                                               "--budget %u has no effect: all layers attend densely; name a "
                                               "method with --attention",
                                               run->options->budget);
}

static kr_status choose_config(kr_run *run, kr_err *err)
{
    const kr_run_options *o = run->options;
    kr_engine_config *c = &run->config;
    *c = (kr_engine_config){.file = run->file,
                            .methods = run->method,
                            .policy = KR_POLICY_SCMS,
                            .timeout_ns = (uint64_t)(o->timeout * 1e9),
                            .weights_f32 = o->weights_f32,
                            .spans_max = o->trace != NULL ? SPANS : 0,
                            .events_max = o->record != NULL ? EVENTS_MAX : 0,
                            .clock = &kr_clock_system,
                            .progress = run->show_progress ? kr_run_show_packing : NULL,
                            .on_selection = o->dump_selection != NULL ? kr_run_write_selection : NULL,
                            .context = run};
    if (!kr_dtype_parse(o->kv_dtype, &c->kv_dtype))
        return kr_fail(err, KR_E_ARG, "--kv-dtype %s is none of bf16, f16, f32", o->kv_dtype);
    if (!kr_placement_parse(o->placement, &c->placement))
        return kr_fail(err, KR_E_ARG, "--placement %s is none of all-on-node, indices-only", o->placement);
    const kr_sampling sampling = sampling_of(o);
    kr_status status = kr_sampling_check(&sampling, err);
    if (status == KR_OK)
        status = kr_run_methods(o, kr_model_file_model(run->file)->layers, run->method, err);
    if (status == KR_OK)
        status = check_budget(run, err);
    if (status == KR_OK)
        status = choose_context(run, err);
    c->sessions_max = run->prompts.count != 0 ? run->prompts.count : 1;
    const bool overlap = c->sessions_max > 1 || o->memory_node.count != 0;
    c->micro_batches = o->micro_batches != 0 ? o->micro_batches : overlap ? 2 : 1;
    c->rows_max = (uint32_t)max_u64(o->prefill_chunk, kr_ceil_div(c->sessions_max, c->micro_batches));
    return status;
}

/* Pages of one device that hold its share of the sessions at their longest. */
static uint64_t pool_bytes(const kr_run *run, const kr_engine_needs *needs)
{
    if (run->options->memory != 0)
        return run->options->memory;
    return kr_ceil_div(run->config.sessions_max, run->options->devices) * needs->session_page_bytes;
}

/* The gather node has one device and holds every session, however small --memory makes the others. */
static uint64_t gather_pool_bytes(const kr_run *run, const kr_engine_needs *needs)
{
    return run->config.sessions_max * needs->session_page_bytes;
}

static kr_status embed(kr_embedded *embedded, const kr_node_config *config, bool driven, kr_engine_node *node,
                       kr_err *err)
{
    kr_status status = kr_embedded_start(embedded, config, driven, err);
    if (status == KR_OK)
        *node = (kr_engine_node){.link = embedded->client,
                                 .welcome = embedded->welcome,
                                 .drive = driven ? kr_embedded_drive : NULL,
                                 .drive_context = embedded};
    return status;
}

static kr_status start_nodes(kr_run *run, const kr_engine_needs *needs, kr_err *err)
{
    const kr_run_options *o = run->options;
    kr_engine_config *c = &run->config;
    bool driven;
    uint32_t device_threads;
    choose_threads(run, &device_threads, &driven);
    kr_node_config embedded = {.devices = o->devices,
                               .threads_per_device = device_threads,
                               .pool_bytes = pool_bytes(run, needs),
                               .sessions_max = c->sessions_max,
                               .save_folder = o->save_folder,
                               .clock = &kr_clock_system};
    kr_status status = KR_OK;
    c->nodes = run->node;
    for (; c->node_count < o->memory_node.count && status == KR_OK; c->node_count += status == KR_OK)
        status = kr_cli_connect(kr_option_string_at(&o->memory_node, c->node_count),
                                (kr_ucx_transport)o->transport, o->key_file, c->timeout_ns,
                                &run->node[c->node_count], err);
    if (o->memory_node.count == 0)
        status = embed(&run->embedded, &embedded, driven, &run->node[c->node_count++], err);
    if (status != KR_OK || c->placement != KR_PLACE_INDICES_ONLY)
        return status;
    embedded.devices = 1;
    embedded.pool_bytes = gather_pool_bytes(run, needs);
    embedded.threads_per_device = c->threads;
    c->gather_node = &run->node[c->node_count];
    return embed(&run->gather, &embedded, true, &run->node[c->node_count], err);
}

/* How long it is shows only now; what will not fit is refused before it is generated. A chat looks
 * at each turn. */
static kr_status restore_session(kr_run *run, const kr_sampling *sampling, kr_err *err)
{
    const kr_run_options *o = run->options;
    kr_status status = kr_session_restore(run->engine, o->restore, run->config.context_max, sampling,
                                          &run->session[0], err);
    if (status == KR_OK && run->prompts.count != 0)
        status = kr_session_append(run->session[0], run->prompts.prompt[0].token,
                                   run->prompts.prompt[0].count, err);
    if (status != KR_OK || o->chat)
        return status;
    uint64_t tokens;
    kr_session_tokens(run->session[0], &tokens);
    const uint64_t limit = kr_session_limit(run->session[0]);
    if (o->tokens > limit - tokens)
        return kr_fail(err, KR_E_LIMIT,
                       "context over the limit: the session holds %llu tokens and %llu are to be generated, "
                       "its limit is %llu",
                       (unsigned long long)tokens, (unsigned long long)o->tokens, (unsigned long long)limit);
    return KR_OK;
}

static kr_status open_sessions(kr_run *run, kr_err *err)
{
    const kr_run_options *o = run->options;
    const kr_sampling sampling = sampling_of(o);
    if (o->restore != NULL)
        return restore_session(run, &sampling, err);
    for (uint32_t i = 0; i < run->prompts.count; i++) {
        const kr_session_request request = {.tokens = run->prompts.prompt[i].token,
                                            .count = run->prompts.prompt[i].count,
                                            .growth = o->tokens,
                                            .sampling = sampling};
        kr_status status = kr_session_open(run->engine, &request, &run->session[i], err);
        if (status != KR_OK)
            return status;
    }
    return KR_OK;
}

static void on_token(void *context, uint32_t request, uint32_t token)
{
    const kr_run *run = context;
    (void)request;
    if (run->stream)
        kr_run_print_token(run, token);
}

static kr_status generate(kr_run *run, kr_err *err)
{
    const kr_run_options *o = run->options;
    run->session = kr_alloc(run->config.sessions_max * sizeof(kr_session *));
    run->request = kr_alloc(run->config.sessions_max * sizeof *run->request);
    if (run->session == NULL || run->request == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for %u sessions", run->config.sessions_max);
    run->stream = !o->json && run->config.sessions_max == 1;
    run->generation = (kr_generation){.chunk = o->prefill_chunk,
                                      .on_token = on_token,
                                      .context = run,
                                      .on_prefill = run->show_progress ? kr_run_show_prefill : NULL};
    kr_status status = KR_OK;
    if (!o->chat || o->restore != NULL)
        status = open_sessions(run, err);
    if (status == KR_OK && o->chat)
        return kr_run_chat(run, stdin, err);
    for (uint32_t i = 0; i < run->config.sessions_max; i++)
        run->request[i] = (kr_request){
            .session = run->session[i], .tokens_max = o->tokens, .ignore_end = o->ignore_end};
    if (status == KR_OK)
        status = kr_generate(run->engine, run->request, run->config.sessions_max, &run->generation, err);
    return status;
}

static kr_status execute(kr_run *run, const kr_engine_needs *needs, kr_err *err)
{
    const kr_run_options *o = run->options;
    kr_status status = o->save != NULL ? kr_msg_name_check(o->save, err) : KR_OK;
    if (status == KR_OK)
        status = kr_run_open_files(run, err);
    if (status == KR_OK)
        status = start_nodes(run, needs, err);
    if (status == KR_OK)
        status = kr_engine_create(&run->engine, &run->config, err);
    if (status == KR_OK)
        status = generate(run, err);
    if (status == KR_OK && o->save != NULL && run->session[0] != NULL)
        status = kr_session_save(run->session[0], o->save, err);
    if (status == KR_OK)
        status = kr_run_write_files(run, err);
    if (status == KR_OK)
        status = kr_engine_ask_stats(run->engine, err);
    return status;
}

static void clean_up(kr_run *run)
{
    kr_run_close_files(run);
    kr_engine_destroy(run->engine);
    for (uint32_t i = 0; run->options->memory_node.count != 0 && i < run->config.node_count; i++)
        run->node[i].link->close(run->node[i].link);
    kr_embedded_stop(&run->embedded);
    kr_embedded_stop(&run->gather);
    kr_free(run->session);
    kr_free(run->request);
    kr_run_free_prompts(&run->prompts);
    kr_model_file_close(run->file);
    kr_free(run);
}

/* The plan's classes that live in this process; pages and workspaces do when a node is embedded. */
static uint64_t planned_here(const kr_run *run, const kr_engine_needs *needs)
{
    const uint64_t sessions = run->config.sessions_max;
    const uint64_t compute = needs->weight_bytes + needs->forward_scratch_bytes + needs->step_bytes +
                             sessions * needs->session_bytes;
    const uint64_t records = sessions * needs->node.record_bytes, work = needs->node.workspace_bytes;
    uint64_t nodes = 0;
    if (run->options->memory_node.count == 0)
        nodes += run->options->devices * (pool_bytes(run, needs) + work) + records;
    if (run->config.placement == KR_PLACE_INDICES_ONLY)
        nodes += gather_pool_bytes(run, needs) + work + records;
    return compute + nodes;
}

static int run_model(kr_run *run, char **texts, int text_count, kr_err *err)
{
    const kr_run_options *o = run->options;
    kr_engine_needs needs;
    kr_status status = open_model(run, err);
    const bool prompts_wanted = !o->chat &&
                                (o->restore == NULL || o->prompt != NULL || o->prompt_file != NULL);
    if (status == KR_OK && prompts_wanted)
        status = kr_run_read_prompts(o, texts, text_count, run->tokenizer, run->family, &run->prompts, err);
    if (status == KR_OK && o->save != NULL && run->prompts.count > 1)
        status = kr_fail(err, KR_E_ARG, "--save keeps one session, %u prompts are given", run->prompts.count);
    if (status == KR_OK)
        status = choose_config(run, err);
    if (status == KR_OK) {
        run->config.threads = o->threads != 0 ? o->threads : cores_online();
        status = kr_engine_plan(&run->config, &needs, err);
    }
    if (status != KR_OK)
        return kr_cli_failed("run", err);
    if (o->dry_run)
        return kr_run_print_plan(run, &needs);
    run->planned_bytes = planned_here(run, &needs);
    run->resident_before = kr_run_resident();
    status = execute(run, &needs, err);
    if (status != KR_OK) {
        if (run->stream)
            fflush(stdout);
        return kr_cli_failed("run", err);
    }
    if (o->json)
        return kr_run_print_json(run);
    if (!o->chat)
        kr_run_print_texts(run);
    kr_run_print_summary(run);
    return KR_EXIT_OK;
}

/* Options that would have no effect together, or NULL. texts: prompts given as arguments. */
static const char *find_contradiction(const kr_run_options *o, int texts)
{
    const bool remote = o->memory_node.count != 0, templated = o->chat || o->instruct;
    if (o->chat && (o->json || texts > 0 || o->prompt != NULL || o->prompt_file != NULL))
        return "--chat reads its lines from standard input; it takes no prompt and no --json";
    if (o->chat && o->sessions > 1)
        return "--chat is one session; --sessions is for prompts";
    if (o->restore != NULL && (o->sessions > 1 || texts > 1))
        return "--restore goes on with one session";
    if (!templated && (o->system != NULL || o->chat_template != NULL))
        return "--system and --chat-template belong to --chat and --instruct";
    if (!remote && (o->key_file != NULL || o->transport != 0))
        return "--key-file and --transport are for the nodes of --memory-node; none is given";
    if (remote && (o->devices > 1 || o->memory != 0 || o->device_threads != 0))
        return "--devices, --memory and --device-threads are for the node inside this process; a node of "
               "--memory-node has its own";
    return NULL;
}

int kr_cmd_run(int argc, char **argv)
{
    kr_run_options options;
    char **rest;
    int rest_count, status;
    if (!kr_run_parse(argc, argv, &options, &rest, &rest_count, &status))
        return status;
    const char *contradiction = find_contradiction(&options, rest_count - 1);
    if (contradiction != NULL)
        return kr_cli_misused("run", "%s", contradiction);
    kr_err err = {0};
    kr_run *run = kr_alloc(sizeof *run);
    if (run == NULL)
        return kr_cli_failed("run", (kr_fail(&err, KR_E_MEMORY, "no memory"), &err));
    run->options = &options;
    run->model_path = rest[0];
    run->show_progress = options.progress || isatty(STDERR_FILENO);
    status = run_model(run, rest + 1, rest_count - 1, &err);
    clean_up(run);
    return status;
}
