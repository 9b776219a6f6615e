/* The rules that a compiler does not check: which room may include what, how long files, lines and
 * functions may be, which calls are banned where. docs/architecture.md lists the rooms in short.
 *
 * Rules look at one file's text at a time and report (path, line, sentence) to a sink, so the same
 * code checks the tree and the made-up snippets of its own test. Header only: test_tidy.c is the
 * one user. */
#ifndef KR_TESTS_TIDY_RULES_H
#define KR_TESTS_TIDY_RULES_H

#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_LINES_MAX = 800, LINE_COLUMNS_MAX = 110, FUNCTION_LINES_MAX = 70 };

/* A room: what it may include besides itself, and the outside libraries it may name. */
typedef struct {
    const char *room;
    const char *rooms;    /* space-separated; "*" = all */
    const char *external; /* space-separated beginnings of <header> names */
} room_rule;

static const room_rule room_rules[] = {
    {"base", "", "jansson.h xxhash.h"},
    {"model", "base", ""},
    {"ops", "base", "immintrin.h arm_neon.h"},
    {"method", "ops model base", "dlfcn.h"},
    {"device", "ops model base", "numa hwloc"},
    {"store", "method device model base", "zstd.h"},
    {"program", "method model base", ""},
    {"sched", "model base", ""},
    {"wire", "base", "ucp/ ucs/ uct/ gnutls/"},
    {"ranks", "base", "mpi.h"},
    {"files", "ops model base", "jansson.h pcre2.h zstd.h"},
    {"workload", "model base", "zlib.h"},
    {"node", "store method device sched wire ops model base", ""},
    {"engine", "program sched method wire ranks files device ops model base", "dnnl oneapi/dnnl"},
    {"memory", "engine method files ops model base", ""},
    {"report", "base", ""},
    {"eval", "engine node store method device program wire files ops report model base", ""},
    {"sim", "program sched workload device wire model base", ""},
    {"plan", "sim ranks report workload program model base", "sqlite3.h"},
    {"serve", "engine files report base", "microhttpd.h"},
    {"api", "engine store method device wire ops model base", ""},
    {"cli", "*", "jansson.h"},
};

/* Headers of outside libraries; whatever is not here counts as the C library's. */
static const char *const external_headers[] = {
    "jansson.h", "xxhash.h",    "immintrin.h", "arm_neon.h", "numa",         "hwloc",       "zstd.h",
    "zlib.h",    "ucp/",        "ucs/",        "uct/",       "gnutls/",      "mpi.h",       "pcre2.h",
    "dnnl",      "oneapi/dnnl", "dlfcn.h",     "sqlite3.h",  "microhttpd.h", "x86intrin.h", NULL,
};

/* Rooms of pure computation: nothing of the operating system. */
static const struct {
    const char *room, *headers;
} pure_rooms[] = {
    {"sched", "stdio.h time.h pthread.h threads.h unistd.h signal.h sys/ stdlib.h math.h"},
    {"ops", "stdio.h time.h pthread.h threads.h unistd.h signal.h sys/"},
};

/* A name that may be used only in some rooms or files; "" = nowhere. */
typedef struct {
    const char *names;   /* space-separated */
    const char *allowed; /* space-separated beginnings of paths below src/ */
    bool call;           /* must be followed by '(' */
    const char *why;
} name_rule;

static const name_rule name_rules[] = {
    {"printf puts putchar perror vprintf", "cli/", true,
     "only cli prints; use base/log.h or a FILE * argument"},
    {"stdout stderr stdin", "cli/", false,
     "only cli owns the standard streams; use base/log.h or a FILE * argument"},
    {"exit _exit _Exit quick_exit", "cli/", true, "only cli ends the process; return a status"},
    {"abort", "base/check.c", true, "use KR_CHECK"},
    {"assert", "", true, "use KR_CHECK, which stays on"},
    {"getenv secure_getenv setenv putenv", "cli/", true, "only cli reads the environment"},
    {"malloc calloc realloc free strdup strndup aligned_alloc posix_memalign asprintf vasprintf", "base/",
     true, "memory comes from base/arena.h, which counts"},
    {"clock_gettime gettimeofday time clock", "base/clock.c eval/bench_window.c", true,
     "time comes from a kr_clock"},
    {"rand srand random srandom drand48 arc4random", "", true, "random numbers come from base/rng.h"},
    {"strcpy strcat sprintf vsprintf gets strtok atoi atol atoll atof system popen alloca", "", true,
     "unbounded, unchecked or unsafe"},
    {"TODO FIXME XXX", "", false, "an issue, not a comment"},
};

/* A file under the rules. code is text with comments, strings and characters blanked out; both
 * have the same length and line breaks. */
typedef struct {
    const char *path;
    const char *text;
    char *code;
    void (*sink)(void *context, const char *path, unsigned line, const char *sentence);
    void *context;
} source;

static void report(const source *s, unsigned line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void report(const source *s, unsigned line, const char *format, ...)
{
    char sentence[400];
    va_list args;

    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    s->sink(s->context, s->path, line, sentence);
}

/* Does the space-separated list hold word (exactly), or a beginning of word? */
static bool list_has(const char *list, const char *word, size_t length, bool beginning)
{
    while (*list != '\0') {
        const size_t item = strcspn(list, " ");
        if ((item == length || (beginning && item < length)) && memcmp(list, word, item) == 0)
            return true;
        list += item;
        list += strspn(list, " ");
    }
    return false;
}

/* "src/base/num.c" -> "base/num.c"; NULL for files outside src/. */
static const char *below_src(const char *path) { return strncmp(path, "src/", 4) == 0 ? path + 4 : NULL; }

/* Blanks comments (unless keep_comments), strings and character constants. Caller frees. */
static char *strip(const char *text)
{
    const size_t length = strlen(text);
    char *code = malloc(length + 1);
    enum { CODE, BLOCK, LINE, STRING, CHARACTER } state = CODE;

    if (code == NULL)
        abort();
    for (size_t i = 0; i < length; i++) {
        const char c = text[i], next = text[i + 1];
        const bool blank = state != CODE;
        if (state == CODE && c == '/' && next == '*')
            state = BLOCK;
        else if (state == CODE && c == '/' && next == '/')
            state = LINE;
        else if (state == CODE && c == '"')
            state = STRING;
        else if (state == CODE && c == '\'')
            state = CHARACTER;
        else if (state == BLOCK && c == '/' && i > 0 && text[i - 1] == '*')
            state = CODE;
        else if (state == LINE && c == '\n')
            state = CODE;
        else if ((state == STRING || state == CHARACTER) && c == '\\' && next != '\n' && next != '\0')
            code[i++] = ' ';
        else if ((state == STRING && c == '"') || (state == CHARACTER && c == '\''))
            state = CODE;
        code[i] = (blank || state != CODE) && text[i] != '\n' ? ' ' : text[i];
    }
    code[length] = '\0';
    return code;
}

static void check_include(const source *s, const room_rule *rule, unsigned line, const char *name,
                          size_t length, bool quoted)
{
    const size_t room = strcspn(name, "/\">");

    if (quoted) {
        if (room == length)
            report(s, line, "\"%.*s\" must be included by its room: \"%s/%.*s\"", (int)length, name,
                   rule->room, (int)length, name);
        else if (!list_has("karat", name, room, false) && !list_has(rule->room, name, room, false) &&
                 strcmp(rule->rooms, "*") != 0 && !list_has(rule->rooms, name, room, false))
            report(s, line, "%s may not include \"%.*s\"; it may include: %s", rule->room, (int)length, name,
                   rule->rooms);
        return;
    }
    for (size_t i = 0; i < sizeof pure_rooms / sizeof pure_rooms[0]; i++)
        if (strcmp(pure_rooms[i].room, rule->room) == 0 &&
            list_has(pure_rooms[i].headers, name, length, true))
            report(s, line, "%s is pure computation and may not include <%.*s>", rule->room, (int)length,
                   name);
    for (size_t i = 0; external_headers[i] != NULL; i++)
        if (list_has(external_headers[i], name, length, true) &&
            !list_has(rule->external, name, length, true))
            report(s, line, "%s may not include <%.*s>; its outside headers: %s", rule->room, (int)length,
                   name, rule->external[0] != '\0' ? rule->external : "none");
}

static void check_includes(const source *s)
{
    const char *below = below_src(s->path);
    const room_rule *rule = NULL;
    unsigned line = 1;

    if (below == NULL)
        return;
    for (size_t i = 0; i < sizeof room_rules / sizeof room_rules[0]; i++)
        if (strcspn(below, "/") == strlen(room_rules[i].room) &&
            memcmp(below, room_rules[i].room, strlen(room_rules[i].room)) == 0)
            rule = &room_rules[i];
    if (rule == NULL) {
        report(s, 1, "no such room in the table of tests/tidy/rules.h");
        return;
    }
    for (const char *at = s->text; at != NULL && *at != '\0'; line++) {
        const char *word = at + strspn(at, " \t");
        if (*word == '#') {
            word += 1 + strspn(word + 1, " \t");
            if (strncmp(word, "include", 7) == 0) {
                word += 7 + strspn(word + 7, " \t");
                if (*word == '"' || *word == '<')
                    check_include(s, rule, line, word + 1, strcspn(word + 1, "\">\n"), *word == '"');
            }
        }
        at = strchr(at, '\n');
        at = at != NULL ? at + 1 : NULL;
    }
}

/* Columns of a line: UTF-8 continuation bytes take none. */
static unsigned columns(const char *line, size_t length)
{
    unsigned n = 0;

    for (size_t i = 0; i < length; i++)
        n += ((unsigned char)line[i] & 0xc0) != 0x80;
    return n;
}

/* Lengths and layout. A function body is what lies between a '{' and a '}' in the first column. */
static void check_sizes(const source *s)
{
    unsigned line = 0, body = 0;

    if (strncmp(s->text, "/*", 2) != 0)
        report(s, 1, "a file opens with a comment that says what it owns");
    for (const char *at = s->text; *at != '\0';) {
        const size_t length = strcspn(at, "\n");
        line++;
        if (columns(at, length) > LINE_COLUMNS_MAX)
            report(s, line, "%u columns; the limit is %d", columns(at, length), LINE_COLUMNS_MAX);
        if (memchr(at, '\t', length) != NULL || memchr(at, '\r', length) != NULL)
            report(s, line, "tab or carriage return");
        if (length > 0 && at[length - 1] == ' ')
            report(s, line, "blanks at the end of the line");
        if (length == 1 && *at == '{')
            body = line;
        if (length == 1 && *at == '}' && body != 0) {
            if (line - body + 1 > FUNCTION_LINES_MAX)
                report(s, body, "a function of %u lines; the limit is %d", line - body + 1,
                       FUNCTION_LINES_MAX);
            body = 0;
        }
        at += length + (at[length] == '\n');
    }
    if (line > FILE_LINES_MAX)
        report(s, line, "a file of %u lines; the limit is %d", line, FILE_LINES_MAX);
}

/* Is the word at code[begin] a member (x.free, x->free), which is somebody's own name? */
static bool is_member(const char *code, size_t begin)
{
    while (begin > 0 && code[begin - 1] == ' ')
        begin--;
    return begin > 0 &&
           (code[begin - 1] == '.' || (begin > 1 && code[begin - 1] == '>' && code[begin - 2] == '-'));
}

static void check_word(const source *s, unsigned line, const char *code, size_t begin, size_t length)
{
    const char *below = below_src(s->path), *word = code + begin;

    for (size_t i = 0; i < sizeof name_rules / sizeof name_rules[0]; i++) {
        const name_rule *rule = &name_rules[i];
        const char *after = word + length + strspn(word + length, " ");
        if (!list_has(rule->names, word, length, false) || (rule->call && *after != '('))
            continue;
        if (is_member(code, begin) || list_has(rule->allowed, below, strlen(below), true))
            continue;
        report(s, line, "%.*s: %s", (int)length, word, rule->why);
    }
    const bool real = list_has("float double", word, length, false);
    if (real && strncmp(below, "sched/", 6) == 0)
        report(s, line, "%.*s: sched uses no floating point", (int)length, word);
}

/* Names in code, and in comments only the marks that are not meant to stay. */
static void check_names(const source *s)
{
    unsigned line = 1;

    if (below_src(s->path) == NULL)
        return;
    for (size_t i = 0; s->code[i] != '\0';) {
        size_t length = 0;
        while (isalnum((unsigned char)s->text[i + length]) || s->text[i + length] == '_')
            length++;
        if (length == 0) {
            line += s->text[i] == '\n';
            i++;
            continue;
        }
        const bool in_code = s->code[i] != ' ';
        if (in_code || list_has("TODO FIXME XXX", s->text + i, length, false))
            check_word(s, line, in_code ? s->code : s->text, i, length);
        i += length;
    }
}

/* src/base/num.h is guarded by KR_BASE_NUM_H. A body that is compiled once per variant says
 * "Included ..." or "included by ..." in its opening comment and needs neither guard nor to stand alone. */
static bool is_included_body(const char *text)
{
    const char *end = strstr(text, "*/"), *word = strcasestr(text, "included ");
    return word != NULL && end != NULL && word < end;
}

static void check_guard(const source *s)
{
    const char *below = below_src(s->path);
    char guard[128] = "#ifndef KR_";
    size_t n = strlen(guard);

    if (below == NULL || strcmp(below + strlen(below) - 2, ".h") != 0 || is_included_body(s->text))
        return;
    for (; *below != '\0' && n + 1 < sizeof guard; below++)
        guard[n++] = isalnum((unsigned char)*below) ? (char)toupper((unsigned char)*below) : '_';
    guard[n] = '\0';
    if (strstr(s->code, guard) == NULL)
        report(s, 1, "no include guard \"%s\"", guard);
}

static void check_source(source *s)
{
    s->code = strip(s->text);
    check_includes(s);
    check_sizes(s);
    check_names(s);
    check_guard(s);
    free(s->code);
}

#endif
