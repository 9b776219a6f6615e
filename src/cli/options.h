/* Command lines: one table per command says everything about its options - names, type, range,
 * help - and parsing, the environment, the defaults and --help all read that table.
 *
 * A command keeps its options in one struct. Each table row names a field by offset; the default
 * is what the field holds before parsing. An option is taken from, first match wins: the command
 * line (the last occurrence there), the environment variable KARAT_<NAME> (upper case, '-' as
 * '_'), the default. Use:
 *
 *     typedef struct { uint32_t ctx_size; const char *prompt; bool json; } run_options;
 *     static const kr_option table[] = {
 *         {.name = "ctx-size", .letter = 'c', .type = KR_OPT_U32, .at = offsetof(run_options, ctx_size),
 *          .min = 1, .max = 1 << 20, .value = "TOKENS", .help = "context length"},
 *         {.name = "prompt", .letter = 'p', .type = KR_OPT_STRING, .at = offsetof(run_options, prompt),
 *          .value = "TEXT", .help = "text to continue"},
 *         {.name = "json", .type = KR_OPT_FLAG, .at = offsetof(run_options, json),
 *          .help = "print the result as JSON"},
 *     };
 *     static const kr_command_line line = {
 *         .command = "run", .arguments = "MODEL", .summary = "Runs a model.", .options = table,
 *         .option_count = sizeof table / sizeof table[0], .arguments_min = 1, .arguments_max = 1,
 *         .example = "karat run model.gguf -p 'The capital of France is'"};
 *
 *     int kr_cmd_run(int argc, char **argv)
 *     {
 *         run_options o = {.ctx_size = 4096};
 *         char **rest;                        // the arguments that are not options
 *         int rest_count, status;
 *         if (!kr_options_parse(&line, argc, argv, &o, &rest, &rest_count, &status))
 *             return status;                  // --help or --version was printed (0), or an error (2)
 *         ...
 *         if (work(&o, rest[0], &err) != KR_OK)
 *             return kr_cli_failed(line.command, &err);
 *         return o.json ? kr_cli_print_json(root) : KR_EXIT_OK;
 *     }
 */
#ifndef KR_CLI_OPTIONS_H
#define KR_CLI_OPTIONS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

enum { KR_EXIT_OK = 0, KR_EXIT_FAILED = 1, KR_EXIT_USAGE = 2 };

enum { KR_OPT_LIST_MAX = 64, KR_OPT_LIST_BYTES = 2048 };

/* Target of KR_OPT_SIZES: "64K,256K,1M". */
typedef struct {
    uint64_t item[KR_OPT_LIST_MAX];
    uint32_t count;
} kr_option_sizes;

/* Target of KR_OPT_STRINGS: "dense,quest". text holds offset-terminated copies; item(i) is
 * text + start[i]. An empty item is an error. */
typedef struct {
    char text[KR_OPT_LIST_BYTES];
    uint16_t start[KR_OPT_LIST_MAX];
    uint32_t count;
} kr_option_strings;

static inline const char *kr_option_string_at(const kr_option_strings *list, uint32_t i)
{
    return list->text + list->start[i];
}

typedef enum {
    KR_OPT_FLAG,    /* bool: --name, --no-name; in the environment 1/0, true/false, yes/no, on/off */
    KR_OPT_STRING,  /* const char *, lives as long as argv and the environment */
    KR_OPT_U32,     /* uint32_t, decimal or 0x */
    KR_OPT_U64,     /* uint64_t, decimal or 0x */
    KR_OPT_SIZE,    /* uint64_t with an optional suffix K, M, G, T (powers of 1,024): bytes, tokens */
    KR_OPT_REAL,    /* double */
    KR_OPT_CHOICE,  /* an enum: index into choices */
    KR_OPT_SIZES,   /* kr_option_sizes, comma-separated KR_OPT_SIZE items, each in [min, max] */
    KR_OPT_STRINGS, /* kr_option_strings, comma-separated */
} kr_option_type;

typedef struct {
    const char *name;  /* long name without dashes; NULL: the row is a heading, text in help */
    const char *alias; /* second long name (what peers call it), or NULL */
    char letter;       /* short name, or 0 */
    kr_option_type type;
    size_t at;                  /* offsetof(options struct, field) */
    uint64_t min, max;          /* U32, U64, SIZE, SIZES; max 0 = what the type holds */
                                /* a default outside is a stand-in, which --help does not print */
    double real_min, real_max;  /* REAL; both 0 = any finite number */
    const char *const *choices; /* CHOICE: NULL-terminated names */
    const char *value;          /* what --help calls the value: "N", "HOST:PORT" */
    const char *help;           /* one sentence without a full stop, lower case */
} kr_option;

typedef struct {
    const char *command;   /* "run" */
    const char *arguments; /* "MODEL", or NULL */
    const char *summary;   /* one or two sentences */
    const char *example;   /* one or more command lines, separated by '\n' */
    const kr_option *options;
    uint32_t option_count;
    int arguments_min, arguments_max;
} kr_command_line;

/* Fills the struct at target. true: go on; *rest points at *rest_count arguments inside argv
 * (which is reordered). false: return *status from the command; what had to be printed has been.
 * On false target may be half filled. */
bool kr_options_parse(const kr_command_line *line, int argc, char **argv, void *target, char ***rest,
                      int *rest_count, int *status);

/* Prints "karat COMMAND: text" to standard error; returns KR_EXIT_FAILED. */
int kr_cli_failed(const char *command, const kr_err *err);
/* The same for a contradiction between options that no table can express; returns KR_EXIT_USAGE. */
int kr_cli_misused(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints root as JSON to standard output, keys in insertion order, reals so that they read back
 * the same; takes over the caller's reference. KR_EXIT_OK, or KR_EXIT_FAILED with a line. */
int kr_cli_print_json(json_t *root);

/* The parts of parsing that tests and --help share (options.c, help.c). */
void kr_options_print_help(const kr_command_line *line, const void *defaults, FILE *out);
/* "ctx-size" -> "KARAT_CTX_SIZE"; cut at bytes. */
void kr_option_variable(const char *name, char *out, size_t bytes);

#endif
