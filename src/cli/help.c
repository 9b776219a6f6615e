/* What commands print about themselves: --help from the option table, errors, JSON. */
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "cli/options.h"

enum { HELP_COLUMN = 30, HELP_WIDTH = 100 };

/* Prints text wrapped to HELP_WIDTH; the cursor is at column, later lines start at HELP_COLUMN. */
static void print_wrapped(const char *text, int column, FILE *out)
{
    if (column >= HELP_COLUMN) {
        fputc('\n', out);
        column = 0;
    }
    fprintf(out, "%*s", HELP_COLUMN - column, "");
    column = HELP_COLUMN;
    while (*text != '\0') {
        const int word = (int)strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + word > HELP_WIDTH) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        }
        if (column > HELP_COLUMN)
            column += fprintf(out, " ");
        column += fprintf(out, "%.*s", word, text);
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

/* 65536 -> "64K". */
static void describe_size(uint64_t value, char *out, size_t bytes)
{
    const char *suffix[] = {"", "K", "M", "G", "T"};
    int unit = 0;

    while (unit < 4 && value != 0 && value % 1024 == 0) {
        value /= 1024;
        unit++;
    }
    snprintf(out, bytes, "%" PRIu64 "%s", value, suffix[unit]);
}

static void describe_sizes(const kr_option_sizes *list, char *out, size_t bytes)
{
    size_t used = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < list->count && used < bytes; i++) {
        char item[32];
        describe_size(list->item[i], item, sizeof item);
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", i > 0 ? "," : "", item);
    }
}

static void describe_strings(const kr_option_strings *list, char *out, size_t bytes)
{
    size_t used = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < list->count && used < bytes; i++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", i > 0 ? "," : "",
                                 kr_option_string_at(list, i));
}

/* A number that the option would refuse is no default but stands for "chosen": what by, help says. */
static bool stands_for_chosen(const kr_option *option, uint64_t value)
{
    return value < option->min || (option->max != 0 && value > option->max);
}

/* The default of an option as text; empty when there is none to speak of. */
static void describe_default(const kr_option *option, const void *defaults, char *out, size_t bytes)
{
    const void *field = (const char *)defaults + option->at;
    const char *text = "";

    out[0] = '\0';
    switch (option->type) {
    case KR_OPT_FLAG:
        text = *(const bool *)field ? "on" : "";
        break;
    case KR_OPT_STRING:
        text = *(const char *const *)field != NULL ? *(const char *const *)field : "";
        break;
    case KR_OPT_CHOICE:
        text = option->choices[*(const int *)field];
        break;
    case KR_OPT_U32:
        if (!stands_for_chosen(option, *(const uint32_t *)field))
            snprintf(out, bytes, "%" PRIu32, *(const uint32_t *)field);
        return;
    case KR_OPT_U64:
        if (!stands_for_chosen(option, *(const uint64_t *)field))
            snprintf(out, bytes, "%" PRIu64, *(const uint64_t *)field);
        return;
    case KR_OPT_SIZE:
        if (!stands_for_chosen(option, *(const uint64_t *)field))
            describe_size(*(const uint64_t *)field, out, bytes);
        return;
    case KR_OPT_REAL:
        snprintf(out, bytes, "%g", *(const double *)field);
        return;
    case KR_OPT_SIZES:
        describe_sizes(field, out, bytes);
        return;
    case KR_OPT_STRINGS:
        describe_strings(field, out, bytes);
        return;
    }
    snprintf(out, bytes, "%s", text);
}

static void print_option(const kr_option *option, const void *defaults, FILE *out)
{
    char text[1024], standard[256], choices[256] = "", variable[80];

    int column = option->letter != 0 ? fprintf(out, "  -%c, ", option->letter) : fprintf(out, "      ");
    column += fprintf(out, "--%s", option->name);
    if (option->alias != NULL)
        column += fprintf(out, ", --%s", option->alias);
    if (option->type != KR_OPT_FLAG)
        column += fprintf(out, " %s", option->value);

    size_t used = 0;
    for (int i = 0; option->type == KR_OPT_CHOICE && option->choices[i] != NULL && used < sizeof choices; i++)
        used += (size_t)snprintf(choices + used, sizeof choices - used, "%s%s", i > 0 ? ", " : ": ",
                                 option->choices[i]);
    describe_default(option, defaults, standard, sizeof standard);
    kr_option_variable(option->name, variable, sizeof variable);
    snprintf(text, sizeof text, "%s%s%s%s%s [%s]", option->help, choices,
             standard[0] != '\0' ? " (default " : "", standard, standard[0] != '\0' ? ")" : "", variable);
    print_wrapped(text, column, out);
}

void kr_options_print_help(const kr_command_line *line, const void *defaults, FILE *out)
{
    fprintf(out, "usage: karat %s [OPTION...]%s%s\n\n%s\n\n", line->command,
            line->arguments != NULL ? " " : "", line->arguments != NULL ? line->arguments : "",
            line->summary);
    for (uint32_t i = 0; i < line->option_count; i++) {
        if (line->options[i].name == NULL)
            fprintf(out, "%s%s\n", i > 0 ? "\n" : "", line->options[i].help);
        else
            print_option(&line->options[i], defaults, out);
    }
    fputs("\n  -h, --help                  print this and stop\n"
          "      --version               print the version and stop\n"
          "\nThe variable in brackets sets an option that the command line does not.\n",
          out);
    if (line->example != NULL) {
        fputs("\nexample:\n", out);
        for (const char *text = line->example; *text != '\0';) {
            const int length = (int)strcspn(text, "\n");
            fprintf(out, "  %.*s\n", length, text);
            text += length + (text[length] == '\n');
        }
    }
}

int kr_cli_failed(const char *command, const kr_err *err)
{
    fprintf(stderr, "karat %s: %s\n", command, err->text);
    return KR_EXIT_FAILED;
}

int kr_cli_misused(const char *command, const char *format, ...)
{
    va_list args;

    fprintf(stderr, "karat %s: ", command);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return KR_EXIT_USAGE;
}

int kr_cli_print_json(json_t *root)
{
    const int written = json_dumpf(root, stdout,
                                   JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));

    json_decref(root);
    if (written != 0 || fputc('\n', stdout) == EOF || fflush(stdout) != 0) {
        if (!ferror(stdout)) /* main tells of that one */
            fputs("karat: no memory for the result\n", stderr);
        return KR_EXIT_FAILED;
    }
    return KR_EXIT_OK;
}
