/* karat eval: what the methods keep of dense attention on a real model, beside their speed. */
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/output_file.h"
#include "eval/eval.h"
#include "eval/eval_text.h"

enum { COMMAND_BYTES = 2048 };

typedef struct {
    kr_option_strings methods;
    kr_option_sizes budgets, contexts;
    const char *text, *kv_dtype, *html;
    uint64_t tokens;
    uint32_t passages, samples, dense_layers, needles, threads, chunk;
    bool json;
} eval_options;

#define AT(field) .at = offsetof(eval_options, field)

static const kr_option table[] = {
    KR_OPTION_METHODS(
        offsetof(eval_options, methods),
        "methods beside dense, files ./my.so among them (default: the model's own, all that need no "
        "training)"),
    KR_OPTION_BUDGETS(offsetof(eval_options, budgets)),
    {.name = "contexts",
     .letter = 'c',
     .type = KR_OPT_SIZES,
     AT(contexts),
     .min = KR_PAGE_TOKENS,
     .max = KR_CONTEXT_MAX,
     .value = "TOKENS,...",
     .help = "document lengths, in whole pages of 128"},
    {.name = "text",
     .letter = 'f',
     .type = KR_OPT_STRING,
     AT(text),
     .value = "PATH",
     .help = "a file, or a folder whose files follow each other by name"},
    {.name = "passages",
     .type = KR_OPT_U32,
     AT(passages),
     .min = 1,
     .max = 1024,
     .value = "N",
     .help = "passages of the text that are scored"},
    {.name = "tokens",
     .letter = 'n',
     .type = KR_OPT_U64,
     AT(tokens),
     .min = 1,
     .max = 1 << 20,
     .value = "N",
     .help = "tokens scored behind each passage"},
    {.name = "samples",
     .type = KR_OPT_U32,
     AT(samples),
     .min = 1,
     .value = "N",
     .help = "decode steps whose attention is compared with dense"},
    KR_OPTION_DENSE_LAYERS(offsetof(eval_options, dense_layers)),
    {.name = "needles",
     .type = KR_OPT_U32,
     AT(needles),
     .max = KR_EVAL_NEEDLES_MAX,
     .value = "N",
     .help = "prompts with a planted passkey for each context"},
    KR_OPTION_KV_DTYPE(offsetof(eval_options, kv_dtype), "bf16, f16 or f32"),
    KR_OPTION_THREADS(offsetof(eval_options, threads), "of compute side and memory node, which take turns"),
    KR_OPTION_PREFILL_CHUNK(offsetof(eval_options, chunk)),
    {.name = "html", .type = KR_OPT_STRING, AT(html), .value = "FILE", .help = "write one page with curves"},
    {.name = "json", .type = KR_OPT_FLAG, AT(json), .help = "print one JSON object instead of the table"},
};

static const kr_command_line line = {
    .command = "eval",
    .arguments = "MODEL",
    .summary = "Compares retrieval methods with dense attention on a model: attention mass, output error, "
               "perplexity, "
               "passkeys, speed.",
    .options = table,
    .option_count = sizeof table / sizeof table[0],
    .arguments_min = 1,
    .arguments_max = 1,
    .example = "karat eval model.gguf --html eval.html\n"
               "karat eval model.gguf --methods quest,sparq --budgets 256,1K --contexts 2K,6K --json",
};

/* The command line as the page shows it: file names without their folders. */
static void join(int argc, char **argv, char out[COMMAND_BYTES])
{
    size_t used = (size_t)snprintf(out, COMMAND_BYTES, "karat");
    for (int i = 0; i < argc && used < COMMAND_BYTES; i++) {
        const char *slash = strrchr(argv[i], '/');
        used += (size_t)snprintf(out + used, COMMAND_BYTES - used, " %s",
                                 slash != NULL ? slash + 1 : argv[i]);
    }
}

static kr_status write_html(const char *path, const kr_eval_result *result, const char *command, kr_err *err)
{
    kr_output_file out;
    const kr_status status = kr_output_open(&out, path, err);

    return status == KR_OK ? kr_output_close(&out, kr_eval_html(result, command, out.file, err), err)
                           : status;
}

static bool fill(const eval_options *o, const char *model, kr_eval_options *run, kr_err *err)
{
    *run = (kr_eval_options){.model_path = model,
                             .text_path = o->text,
                             .method_count = o->methods.count,
                             .budget_count = o->budgets.count,
                             .context_count = o->contexts.count,
                             .passages = o->passages,
                             .tokens = o->tokens,
                             .samples = o->samples < o->tokens ? o->samples : (uint32_t)o->tokens,
                             .dense_layers = o->dense_layers,
                             .needles = o->needles,
                             .threads = o->threads,
                             .chunk = o->chunk,
                             .clock = &kr_clock_system};
    if (!kr_dtype_parse(o->kv_dtype, &run->kv_dtype)) {
        kr_fail(err, KR_E_ARG, "--kv-dtype %s is none of bf16, f16, f32", o->kv_dtype);
        return false;
    }
    if (o->methods.count > KR_EVAL_METHODS_MAX || o->budgets.count > KR_EVAL_LIST_MAX ||
        o->contexts.count > KR_EVAL_LIST_MAX) {
        kr_fail(err, KR_E_LIMIT, "at most %d methods, %d budgets and %d contexts", KR_EVAL_METHODS_MAX,
                KR_EVAL_LIST_MAX, KR_EVAL_LIST_MAX);
        return false;
    }
    for (uint32_t i = 0; i < o->methods.count; i++)
        run->methods[i] = kr_option_string_at(&o->methods, i);
    for (uint32_t i = 0; i < o->budgets.count; i++)
        run->budgets[i] = (uint32_t)o->budgets.item[i];
    memcpy(run->contexts, o->contexts.item, o->contexts.count * sizeof *run->contexts);
    return true;
}

static int report(const eval_options *o, const kr_eval_result *result, const char *command, kr_err *err)
{
    json_t *root;
    if (o->html != NULL && write_html(o->html, result, command, err) != KR_OK)
        return kr_cli_failed(line.command, err);
    if (!o->json)
        return kr_eval_print(result, stdout, err) == KR_OK ? KR_EXIT_OK : kr_cli_failed(line.command, err);
    return kr_eval_json(result, &root, err) == KR_OK ? kr_cli_print_json(root)
                                                     : kr_cli_failed(line.command, err);
}

int kr_cmd_eval(int argc, char **argv)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    eval_options o = {.budgets = {.item = {256, 512, 1024, 2048}, .count = 4},
                      .contexts = {.item = {2048, 6144}, .count = 2},
                      .text = KR_EVAL_TEXTS,
                      .kv_dtype = "bf16",
                      .passages = 2,
                      .tokens = 256,
                      .samples = 16,
                      .dense_layers = UINT32_MAX,
                      .needles = 5,
                      .threads = cores < 1 ? 1 : (uint32_t)cores,
                      .chunk = 256};
    char command[COMMAND_BYTES];
    kr_eval_options run;
    kr_eval_result result;
    char **rest;
    int rest_count, status;
    kr_err err = {0};
    join(argc, argv, command);
    if (!kr_options_parse(&line, argc, argv, &o, &rest, &rest_count, &status))
        return status;
    if (!fill(&o, rest[0], &run, &err) || kr_eval_run(&run, &result, &err) != KR_OK)
        return kr_cli_failed(line.command, &err);
    status = report(&o, &result, command, &err);
    kr_eval_free(&result);
    return status;
}
