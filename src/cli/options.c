/* Parsing of options: words to values, values to fields, fields from argv and the environment. */
#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/num.h"
#include "base/text.h"

enum { NAMES_MAX = 256, VARIABLE_BYTES = 80 };

typedef struct {
    const kr_command_line *line;
    char *target;
} parser;

void kr_option_variable(const char *name, char *out, size_t bytes)
{
    const int head = snprintf(out, bytes, "KARAT_");
    size_t n = (size_t)head;

    for (; *name != '\0' && n + 1 < bytes; name++)
        out[n++] = *name == '-' ? '_' : (char)toupper((unsigned char)*name);
    out[n] = '\0';
}

/* Reads digits and, with suffix, one of K, M, G, T (either case). false: not such a number or
 * over 64 bits. */
static bool read_u64(const char *text, size_t length, bool suffix, uint64_t *out)
{
    char digits[32];
    uint64_t unit = 1;

    if (length == 0 || length >= sizeof digits)
        return false;
    memcpy(digits, text, length);
    digits[length] = '\0';
    const char *suffixes = "KMGT";
    const char *s = suffix ? strchr(suffixes, toupper((unsigned char)digits[length - 1])) : NULL;
    if (s != NULL) {
        unit = 1ull << (10 * (s - suffixes + 1));
        digits[--length] = '\0';
    }
    if (!isdigit((unsigned char)digits[0])) /* strtoull would take signs and blanks */
        return false;
    char *end;
    errno = 0;
    const bool hex = digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X');
    const uint64_t number = strtoull(digits, &end, hex ? 16 : 10);
    return errno == 0 && *end == '\0' && kr_mul_u64(number, unit, out);
}

static uint64_t max_of(const kr_option *option)
{
    if (option->max != 0)
        return option->max;
    return option->type == KR_OPT_U32 ? UINT32_MAX : UINT64_MAX;
}

/* shown: how the option was given ("--ctx-size" or "KARAT_CTX_SIZE"), for error lines. */
static kr_status take_u64(const kr_option *option, const char *shown, const char *text, size_t length,
                          uint64_t *out, kr_err *err)
{
    const bool suffix = option->type == KR_OPT_SIZE || option->type == KR_OPT_SIZES;
    const uint64_t max = max_of(option);
    uint64_t number;

    if (!read_u64(text, length, suffix, &number))
        return kr_fail(err, KR_E_ARG, "%s: \"%.*s\" is not a whole number%s", shown, (int)length, text,
                       suffix ? " (K, M, G or T may follow)" : "");
    if (number < option->min || number > max)
        return kr_fail(err, KR_E_ARG, "%s: %.*s is out of range; %" PRIu64 " to %" PRIu64, shown, (int)length,
                       text, option->min, max);
    *out = number;
    return KR_OK;
}

static kr_status take_real(const kr_option *option, const char *shown, const char *text, double *out,
                           kr_err *err)
{
    char *end;
    const double number = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(number))
        return kr_fail(err, KR_E_ARG, "%s: \"%s\" is not a number", shown, text);
    const bool limited = option->real_min != 0 || option->real_max != 0;
    if (limited && (number < option->real_min || number > option->real_max))
        return kr_fail(err, KR_E_ARG, "%s: %s is out of range; %g to %g", shown, text, option->real_min,
                       option->real_max);
    *out = number;
    return KR_OK;
}

static kr_status take_choice(const kr_option *option, const char *shown, const char *text, int *out,
                             kr_err *err)
{
    for (int i = 0; option->choices[i] != NULL; i++) {
        if (strcmp(option->choices[i], text) == 0) {
            *out = i;
            return KR_OK;
        }
    }
    char list[160] = "";
    size_t used = 0;
    for (int i = 0; option->choices[i] != NULL && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "",
                                 option->choices[i]);
    return kr_fail(err, KR_E_ARG, "%s: \"%s\" is none of: %s", shown, text, list);
}

static kr_status take_flag(const char *shown, const char *text, bool *out, kr_err *err)
{
    static const char *const words[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i]) == 0) {
            *out = i % 2 == 1;
            return KR_OK;
        }
    }
    return kr_fail(err, KR_E_ARG, "%s: \"%s\" is neither 1 nor 0", shown, text);
}

static kr_status take_sizes(const kr_option *option, const char *shown, const char *text,
                            kr_option_sizes *out, kr_err *err)
{
    kr_option_sizes list = {.count = 0};

    for (const char *item = text;; item++) {
        const size_t length = strcspn(item, ",");
        if (list.count == KR_OPT_LIST_MAX)
            return kr_fail(err, KR_E_ARG, "%s: more than %d items", shown, KR_OPT_LIST_MAX);
        const kr_status status = take_u64(option, shown, item, length, &list.item[list.count], err);
        if (status != KR_OK)
            return status;
        list.count++;
        item += length;
        if (*item == '\0')
            break;
    }
    *out = list;
    return KR_OK;
}

static kr_status take_strings(const char *shown, const char *text, kr_option_strings *out, kr_err *err)
{
    const size_t bytes = strlen(text) + 1;

    if (bytes > KR_OPT_LIST_BYTES)
        return kr_fail(err, KR_E_ARG, "%s: longer than %d bytes", shown, KR_OPT_LIST_BYTES - 1);
    memcpy(out->text, text, bytes);
    out->count = 0;
    for (char *item = out->text;; item++) {
        const size_t length = strcspn(item, ",");
        if (length == 0)
            return kr_fail(err, KR_E_ARG, "%s: \"%s\" has an empty item", shown, text);
        if (out->count == KR_OPT_LIST_MAX)
            return kr_fail(err, KR_E_ARG, "%s: more than %d items", shown, KR_OPT_LIST_MAX);
        out->start[out->count++] = (uint16_t)(item - out->text);
        item += length;
        if (*item == '\0')
            return KR_OK;
        *item = '\0';
    }
}

static kr_status take(const parser *p, const kr_option *option, const char *shown, const char *text,
                      kr_err *err)
{
    void *field = p->target + option->at;
    uint64_t number = 0;
    kr_status status = KR_E_INTERNAL;

    switch (option->type) {
    case KR_OPT_FLAG:
        return take_flag(shown, text, field, err);
    case KR_OPT_STRING:
        *(const char **)field = text;
        return KR_OK;
    case KR_OPT_U32:
        status = take_u64(option, shown, text, strlen(text), &number, err);
        if (status == KR_OK)
            *(uint32_t *)field = (uint32_t)number;
        return status;
    case KR_OPT_U64:
    case KR_OPT_SIZE:
        return take_u64(option, shown, text, strlen(text), field, err);
    case KR_OPT_REAL:
        return take_real(option, shown, text, field, err);
    case KR_OPT_CHOICE:
        return take_choice(option, shown, text, field, err);
    case KR_OPT_SIZES:
        return take_sizes(option, shown, text, field, err);
    case KR_OPT_STRINGS:
        return take_strings(shown, text, field, err);
    }
    return status;
}

static kr_status take_environment(const parser *p, kr_err *err)
{
    for (uint32_t i = 0; i < p->line->option_count; i++) {
        const kr_option *option = &p->line->options[i];
        char variable[VARIABLE_BYTES];

        if (option->name == NULL)
            continue;
        kr_option_variable(option->name, variable, sizeof variable);
        const char *text = getenv(variable);
        if (text == NULL || *text == '\0')
            continue;
        const kr_status status = take(p, option, variable, text, err);
        if (status != KR_OK)
            return status;
    }
    return KR_OK;
}

static bool names(const char *name, const char *word, size_t length)
{
    return name != NULL && strlen(name) == length && memcmp(name, word, length) == 0;
}

/* The row called word[0..length), or NULL. *negated: it was a flag's --no-name. */
static const kr_option *find_long(const kr_command_line *line, const char *word, size_t length, bool *negated)
{
    *negated = false;
    for (uint32_t i = 0; i < line->option_count; i++)
        if (names(line->options[i].name, word, length) || names(line->options[i].alias, word, length))
            return &line->options[i];
    if (length <= 3 || memcmp(word, "no-", 3) != 0)
        return NULL;
    for (uint32_t i = 0; i < line->option_count; i++) {
        if (line->options[i].type == KR_OPT_FLAG && names(line->options[i].name, word + 3, length - 3)) {
            *negated = true;
            return &line->options[i];
        }
    }
    return NULL;
}

/* The name or alias that word may have meant, or NULL. */
static const char *nearest_option(const kr_command_line *line, const char *word)
{
    const char *known[NAMES_MAX + 3] = {"help", "version"};
    uint32_t count = 2;

    for (uint32_t i = 0; i < line->option_count && count + 2 < NAMES_MAX; i++) {
        if (line->options[i].name != NULL)
            known[count++] = line->options[i].name;
        if (line->options[i].alias != NULL)
            known[count++] = line->options[i].alias;
    }
    return kr_text_nearest(word, known);
}

static kr_status unknown_option(const kr_command_line *line, const char *word, size_t length, kr_err *err)
{
    char copy[64];

    snprintf(copy, sizeof copy, "%.*s", (int)length, word);
    const char *nearest = nearest_option(line, copy);
    if (nearest == NULL)
        return kr_fail(err, KR_E_ARG, "unknown option --%s; karat %s --help lists them", copy, line->command);
    return kr_fail(err, KR_E_ARG, "unknown option --%s (nearest: --%s)", copy, nearest);
}

/* Handles argv[*i], which starts with "--", and moves *i past it and its value. */
static kr_status take_long(const parser *p, int argc, char **argv, int *i, kr_err *err)
{
    const char *word = argv[*i] + 2;
    const size_t length = strcspn(word, "=");
    const char *value = word[length] == '=' ? word + length + 1 : NULL;
    bool negated;
    const kr_option *option = find_long(p->line, word, length, &negated);
    char shown[72];

    ++*i;
    if (option == NULL)
        return unknown_option(p->line, word, length, err);
    snprintf(shown, sizeof shown, "--%.*s", (int)length, word);
    if (option->type == KR_OPT_FLAG) {
        if (value != NULL)
            return kr_fail(err, KR_E_ARG, "%s takes no value; --no-%s turns it off", shown, option->name);
        return take(p, option, shown, negated ? "0" : "1", err);
    }
    if (value == NULL) {
        if (*i >= argc)
            return kr_fail(err, KR_E_ARG, "%s needs a value (%s)", shown, option->value);
        value = argv[(*i)++];
    }
    return take(p, option, shown, value, err);
}

/* Handles argv[*i], which starts with one '-': flags may be joined, a value may follow its letter. */
static kr_status take_short(const parser *p, int argc, char **argv, int *i, kr_err *err)
{
    const char *letters = argv[(*i)++] + 1;

    for (; *letters != '\0'; letters++) {
        const kr_option *option = NULL;
        for (uint32_t k = 0; k < p->line->option_count && option == NULL; k++)
            if (p->line->options[k].name != NULL && p->line->options[k].letter == *letters)
                option = &p->line->options[k];
        if (option == NULL)
            return kr_fail(err, KR_E_ARG, "unknown option -%c; karat %s --help lists them", *letters,
                           p->line->command);

        const char shown[] = {'-', *letters, '\0'};
        kr_status status;
        if (option->type == KR_OPT_FLAG) {
            status = take(p, option, shown, "1", err);
            if (status != KR_OK)
                return status;
            continue;
        }
        if (letters[1] != '\0')
            return take(p, option, shown, letters + 1, err);
        if (*i >= argc)
            return kr_fail(err, KR_E_ARG, "%s needs a value (%s)", shown, option->value);
        return take(p, option, shown, argv[(*i)++], err);
    }
    return KR_OK;
}

/* Moves the arguments that are no options to argv[1..]; "--" ends the options, "-" is an argument. */
static kr_status take_words(const parser *p, int argc, char **argv, int *rest_count, kr_err *err)
{
    int kept = 1, i = 1;
    bool options_over = false;

    while (i < argc) {
        const char *word = argv[i];
        kr_status status = KR_OK;
        if (options_over || word[0] != '-' || word[1] == '\0') {
            argv[kept++] = argv[i++];
        } else if (strcmp(word, "--") == 0) {
            options_over = true;
            i++;
        } else if (word[1] == '-') {
            status = take_long(p, argc, argv, &i, err);
        } else {
            status = take_short(p, argc, argv, &i, err);
        }
        if (status != KR_OK)
            return status;
    }
    *rest_count = kept - 1;
    return KR_OK;
}

/* --help and --version win over everything else on the line. */
static bool asks_for(int argc, char **argv, const char *word, const char *letter)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], word) == 0 || strcmp(argv[i], letter) == 0)
            return true;
    return false;
}

static kr_status check_count(const kr_command_line *line, int count, char **rest, kr_err *err)
{
    if (count < line->arguments_min)
        return kr_fail(err, KR_E_ARG, "%s is missing; karat %s --help shows how", line->arguments,
                       line->command);
    if (count > line->arguments_max)
        return kr_fail(err, KR_E_ARG, "unexpected argument \"%s\"", rest[line->arguments_max]);
    return KR_OK;
}

static bool is_variable(const kr_command_line *line, const char *text, size_t bytes)
{
    for (uint32_t i = 0; i < line->option_count; i++) {
        char variable[VARIABLE_BYTES];

        if (line->options[i].name == NULL)
            continue;
        kr_option_variable(line->options[i].name, variable, sizeof variable);
        if (names(variable, text, bytes))
            return true;
    }
    return false;
}

/* Says of a variable that is nearly one of the command's that it is none. Others may be another
 * command's, or a script's. */
static void warn_of_variables(const kr_command_line *line)
{
    enum { PREFIX_BYTES = 6, WORD_BYTES_MIN = 4 };

    for (char **entry = environ; *entry != NULL; entry++) {
        const size_t bytes = strcspn(*entry, "=");
        char word[VARIABLE_BYTES] = "", variable[VARIABLE_BYTES];
        bool negated;

        if (strncmp(*entry, "KARAT_", PREFIX_BYTES) != 0 || bytes < PREFIX_BYTES + WORD_BYTES_MIN ||
            bytes >= sizeof word || is_variable(line, *entry, bytes))
            continue;
        for (size_t i = PREFIX_BYTES; i < bytes; i++)
            word[i - PREFIX_BYTES] = (*entry)[i] == '_' ? '-' : (char)tolower((unsigned char)(*entry)[i]);
        const char *nearest = nearest_option(line, word);
        const kr_option *option = nearest != NULL ? find_long(line, nearest, strlen(nearest), &negated)
                                                  : NULL;
        if (option == NULL)
            continue;
        kr_option_variable(option->name, variable, sizeof variable);
        fprintf(stderr, "karat %s: warning: %.*s is no option (nearest: %s)\n", line->command, (int)bytes,
                *entry, variable);
    }
}

bool kr_options_parse(const kr_command_line *line, int argc, char **argv, void *target, char ***rest,
                      int *rest_count, int *status)
{
    const parser p = {.line = line, .target = target};
    kr_err err;
    int count = 0;

    if (asks_for(argc, argv, "--help", "-h")) {
        kr_options_print_help(line, target, stdout);
        *status = KR_EXIT_OK;
        return false;
    }
    if (asks_for(argc, argv, "--version", "--version")) {
        puts("karat " KR_VERSION);
        *status = KR_EXIT_OK;
        return false;
    }
    if (take_environment(&p, &err) != KR_OK || take_words(&p, argc, argv, &count, &err) != KR_OK ||
        check_count(line, count, argv + 1, &err) != KR_OK) {
        *status = kr_cli_misused(line->command, "%s", err.text);
        return false;
    }
    warn_of_variables(line);
    *rest = argv + 1;
    *rest_count = count;
    return true;
}
