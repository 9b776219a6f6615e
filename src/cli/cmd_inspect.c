/* karat inspect: what a file holds. */
#include "cli/commands.h"
#include "cli/options.h"
#include "files/model_file.h"
#include "store/saved.h"

typedef struct {
    bool json;
} inspect_options;

static const kr_option table[] = {
    {.name = "json",
     .type = KR_OPT_FLAG,
     .at = offsetof(inspect_options, json),
     .help = "print one JSON object"},
};

static const kr_command_line line = {
    .command = "inspect",
    .arguments = "FILE",
    .summary = "Prints what a model file (GGUF, or a Hugging Face folder) or a saved session holds.",
    .options = table,
    .option_count = sizeof table / sizeof table[0],
    .arguments_min = 1,
    .arguments_max = 1,
    .example = "karat inspect model.gguf --json\n"
               "karat inspect saves/turn-1",
};

int kr_cmd_inspect(int argc, char **argv)
{
    inspect_options options = {0};
    char **rest;
    int rest_count, status;
    kr_model_file *file;
    kr_err err;

    if (!kr_options_parse(&line, argc, argv, &options, &rest, &rest_count, &status))
        return status;
    if (kr_saved_recognise(rest[0]))
        return kr_saved_describe(rest[0], stdout, options.json, &err) == KR_OK
                   ? KR_EXIT_OK
                   : kr_cli_failed(line.command, &err);
    if (kr_model_file_open(rest[0], &file, &err) != KR_OK)
        return kr_cli_failed(line.command, &err);
    status = kr_model_file_describe(file, stdout, options.json, &err) == KR_OK
                 ? KR_EXIT_OK
                 : kr_cli_failed(line.command, &err);
    kr_model_file_close(file);
    return status;
}
