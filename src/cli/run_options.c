/* The options of `karat run`, and the retrieval method they choose for each layer. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cli/engine_options.h"
#include "cli/run.h"
#include "method/outside.h"

#define OFFSET(field) offsetof(kr_run_options, field)
#define AT(field) .at = OFFSET(field)

static const kr_option table[] = {
    {.help = "Prompt"},
    {.name = "prompt",
     .letter = 'p',
     .type = KR_OPT_STRING,
     AT(prompt),
     .value = "TEXT",
     .help = "text to continue; further arguments after MODEL are prompts too"},
    {.name = "prompt-file",
     .alias = "file",
     .letter = 'f',
     .type = KR_OPT_STRING,
     AT(prompt_file),
     .value = "FILE",
     .help = "prompts from a file (- = standard input), separated by lines that hold only ---"},
    {.name = "sessions",
     .letter = 'S',
     .type = KR_OPT_U32,
     AT(sessions),
     .min = 1,
     .max = KR_ENGINE_SESSIONS_MAX,
     .value = "N",
     .help = "run the first N prompts at once (default: all)"},
    {.name = "instruct",
     .type = KR_OPT_FLAG,
     AT(instruct),
     .help = "put each prompt into the model's chat template"},
    {.name = "chat",
     .type = KR_OPT_FLAG,
     AT(chat),
     .help = "talk: read lines from standard input; the session keeps its KV between turns"},
    {.name = "system",
     .type = KR_OPT_STRING,
     AT(system),
     .value = "TEXT",
     .help = "system message of the template"},
    {.name = "chat-template",
     .type = KR_OPT_STRING,
     AT(chat_template),
     .value = "NAME",
     .help = "chatml, llama3 or gemma, when the file's own is not recognised"},
    {.help = "Generation"},
    {.name = "tokens",
     .alias = "n-predict",
     .letter = 'n',
     .type = KR_OPT_U64,
     AT(tokens),
     .min = 1,
     .max = KR_CONTEXT_MAX,
     .value = "N",
     .help = "new tokens at most"},
    {.name = "temperature",
     .alias = "temp",
     .type = KR_OPT_REAL,
     AT(temperature),
     .real_min = 0,
     .real_max = 100,
     .value = "T",
     .help = "0 = always the likeliest token"},
    {.name = "top-p",
     .type = KR_OPT_REAL,
     AT(top_p),
     .real_min = 0,
     .real_max = 1,
     .value = "P",
     .help = "sample among the likeliest tokens that hold this share"},
    {.name = "seed",
     .letter = 's',
     .type = KR_OPT_U64,
     AT(seed),
     .value = "N",
     .help = "of all random choices"},
    {.name = "ignore-end",
     .alias = "ignore-eos",
     .type = KR_OPT_FLAG,
     AT(ignore_end),
     .help = "go on after the model's end token"},
    {.help = "Attention"},
    {.name = "attention",
     .letter = 'a',
     .type = KR_OPT_STRING,
     AT(attention),
     .value = "METHOD",
     .help = "dense, quest, ..., or a file ./my.so; native: the model's own, dense for one without"},
    {.name = "attention-layers",
     .type = KR_OPT_STRINGS,
     AT(attention_layers),
     .value = "A-B=METHOD,...",
     .help = "another method for some layers, counted from 0"},
    {.name = "budget",
     .type = KR_OPT_U32,
     AT(budget),
     .min = 1,
     .value = "TOKENS",
     .help = "tokens a query attends to (default: the method's)"},
    {.name = "attention-mode",
     .type = KR_OPT_U32,
     AT(attention_mode),
     .value = "N",
     .help = "named variant of the method, 0 for its usual one"},
    KR_OPTION_DENSE_LAYERS(OFFSET(dense_layers)),
    {.name = "placement",
     .type = KR_OPT_STRING,
     AT(placement),
     .value = "WHERE",
     .help = "all-on-node, or indices-only: the node selects, the compute side attends"},
    {.help = "Memory node"},
    {.name = "memory-node",
     .type = KR_OPT_STRINGS,
     AT(memory_node),
     .value = "HOST:PORT,...",
     .help = "nodes that hold the KV cache (default: one inside this process)"},
    KR_OPTION_KEY_FILE(OFFSET(key_file), "pre-shared key of the nodes"),
    KR_OPTION_TRANSPORT(OFFSET(transport), "shared memory or TCP; auto takes shared memory on one host"),
    {.name = "timeout",
     .type = KR_OPT_REAL,
     AT(timeout),
     .real_min = 0.001,
     .real_max = 86400,
     .value = "SECONDS",
     .help = "a node that does not answer within this is lost"},
    {.name = "devices",
     .type = KR_OPT_U32,
     AT(devices),
     .min = 1,
     .max = KR_NODE_DEVICES_MAX,
     .value = "N",
     .help = "devices of the node inside this process"},
    {.name = "memory",
     .type = KR_OPT_SIZE,
     AT(memory),
     .min = 1,
     .value = "BYTES",
     .help = "pool of each such device (default: what the sessions need)"},
    {.name = "ctx-size",
     .alias = "max-model-len",
     .letter = 'c',
     .type = KR_OPT_SIZE,
     AT(ctx_size),
     .min = 1,
     .max = KR_CONTEXT_MAX,
     .value = "TOKENS",
     .help = "longest session (default: what the prompts need; chat, restored or on a remote node: 8K)"},
    KR_OPTION_KV_DTYPE(OFFSET(kv_dtype), "bf16, f16 or f32"),
    {.name = "save",
     .type = KR_OPT_STRING,
     AT(save),
     .value = "NAME",
     .help = "keep the session in the node's save folder"},
    {.name = "restore",
     .type = KR_OPT_STRING,
     AT(restore),
     .value = "NAME",
     .help = "go on with a saved session"},
    {.name = "save-folder",
     .type = KR_OPT_STRING,
     AT(save_folder),
     .value = "DIR",
     .help = "save folder of the node inside this process"},
    {.help = "Execution"},
    KR_OPTION_THREADS(OFFSET(threads), "of the compute side (default: its share of the cores)"),
    {.name = "device-threads",
     .type = KR_OPT_U32,
     AT(device_threads),
     .min = 1,
     .max = KR_TEAM_THREADS_MAX,
     .value = "N",
     .help = "of each device inside this process (default: its share of the cores)"},
    KR_OPTION_PREFILL_CHUNK(OFFSET(prefill_chunk)),
    {.name = "micro-batches",
     .type = KR_OPT_U32,
     AT(micro_batches),
     .min = 1,
     .max = 2,
     .value = "N",
     .help = "2 lets compute and device work at once (default: 2 with several sessions or a remote node)"},
    KR_OPTION_WEIGHTS_F32(OFFSET(weights_f32)),
    {.help = "Output"},
    {.name = "json", .type = KR_OPT_FLAG, AT(json), .help = "print one JSON object instead of text"},
    {.name = "dry-run",
     .type = KR_OPT_FLAG,
     AT(dry_run),
     .help = "print bytes and operations by class and stop"},
    {.name = "progress",
     .type = KR_OPT_FLAG,
     AT(progress),
     .help = "show progress even when standard error is no terminal"},
    {.name = "dump-selection",
     .type = KR_OPT_STRING,
     AT(dump_selection),
     .value = "FILE",
     .help = "write each selection as a JSON line"},
    {.name = "record",
     .type = KR_OPT_STRING,
     AT(record),
     .value = "FILE",
     .help = "write the run's decisions for replay in the simulator"},
    {.name = "trace",
     .type = KR_OPT_STRING,
     AT(trace),
     .value = "FILE",
     .help = "write a Chrome trace (Perfetto reads it)"},
};

static const kr_command_line line = {
    .command = "run",
    .arguments = "MODEL [PROMPT...]",
    .summary = "Runs a model with its KV cache on memory nodes.",
    .example = "karat run model.gguf -p 'The capital of France is' -n 16\n"
               "karat run model.gguf --chat --attention quest --budget 1024\n"
               "karat run model.gguf -f prompts.txt --memory-node 10.0.0.2:7420 --json",
    .options = table,
    .option_count = sizeof table / sizeof table[0],
    .arguments_min = 1,
    .arguments_max = 1 + KR_ENGINE_SESSIONS_MAX,
};

bool kr_run_parse(int argc, char **argv, kr_run_options *o, char ***rest, int *rest_count, int *status)
{
    *o = (kr_run_options){.tokens = 128,
                          .top_p = 1,
                          .attention = "native",
                          .kv_dtype = "bf16",
                          .placement = "all-on-node",
                          .dense_layers = UINT32_MAX,
                          .timeout = 60,
                          .devices = 1,
                          .prefill_chunk = 256,
                          .save_folder = "."};
    return kr_options_parse(&line, argc, argv, o, rest, rest_count, status);
}

/* ---- methods ---- */

static kr_status set_method(const kr_run_options *o, const char *name, kr_method_config *config, kr_err *err)
{
    const kr_method *method;
    const bool native = strcmp(name, "native") == 0;
    kr_status status = native ? KR_OK : kr_method_open(name, &method, err);
    if (status != KR_OK)
        return status;
    if (!native)
        name = method->name; /* a file's method has one of its own */
    *config = (kr_method_config){
        .dense_layers = o->dense_layers, .budget = o->budget, .mode = o->attention_mode, .seed = o->seed};
    KR_CHECK(strlen(name) < sizeof config->name);
    memcpy(config->name, name, strlen(name));
    return KR_OK;
}

/* "A=METHOD" or "A-B=METHOD". */
static kr_status set_range(const kr_run_options *o, const char *item, uint32_t layers,
                           kr_method_config *configs, kr_err *err)
{
    char *at;
    const unsigned long first = strtoul(item, &at, 10);
    unsigned long last = first;
    if (*at == '-')
        last = strtoul(at + 1, &at, 10);
    if (*at != '=' || item[0] < '0' || item[0] > '9' || first > last)
        return kr_fail(err, KR_E_ARG, "--attention-layers: \"%s\" is not A-B=METHOD", item);
    if (last >= layers)
        return kr_fail(err, KR_E_LIMIT, "--attention-layers: \"%s\": the model has layers 0 to %u", item,
                       layers - 1);
    for (unsigned long l = first; l <= last; l++) {
        kr_status status = set_method(o, at + 1, &configs[l], err);
        if (status != KR_OK)
            return status;
    }
    return KR_OK;
}

kr_status kr_run_methods(const kr_run_options *o, uint32_t layers, kr_method_config *configs, kr_err *err)
{
    kr_status status = KR_OK;
    for (uint32_t l = 0; l < layers && status == KR_OK; l++)
        status = set_method(o, o->attention, &configs[l], err);
    for (uint32_t i = 0; i < o->attention_layers.count && status == KR_OK; i++)
        status = set_range(o, kr_option_string_at(&o->attention_layers, i), layers, configs, err);
    return status;
}
