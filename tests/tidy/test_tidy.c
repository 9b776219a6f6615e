/* The tree obeys rules.h: arrows between rooms, sizes, banned calls; every header stands alone;
 * sched's objects need nothing outside base and model. Each rule is first shown to fail on a
 * made-up snippet. Every finding is printed as path:line. */
#include <fts.h>
#include <unistd.h>

#include "tests/test.h"
#include "tests/tidy/rules.h"

enum { SYMBOLS_MAX = 4096, NAME_BYTES = 128, COMMAND_BYTES = 65536 };

typedef struct {
    unsigned findings;
    char last[512];
} tally;

static void collect(void *context, const char *path, unsigned line, const char *sentence)
{
    tally *t = context;

    snprintf(t->last, sizeof t->last, "%s:%u: %s", path, line, sentence);
    t->findings++;
}

static void collect_and_print(void *context, const char *path, unsigned line, const char *sentence)
{
    collect(context, path, line, sentence);
    printf("%s\n", ((tally *)context)->last);
}

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");

    if (file == NULL)
        fail_msg("%s: cannot open", path);
    fseek(file, 0, SEEK_END);
    const long bytes = ftell(file);
    rewind(file);
    char *text = malloc((size_t)bytes + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)bytes, file), bytes);
    text[bytes] = '\0';
    fclose(file);
    return text;
}

static bool ends_with(const char *path, const char *end)
{
    const size_t a = strlen(path), b = strlen(end);
    return a >= b && strcmp(path + a - b, end) == 0;
}

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

/* Calls each for every file below the roots (NULL-terminated) whose name ends in .c or .h. */
static void walk(const char *const *roots, void (*each)(const char *path, void *context), void *context)
{
    unsigned files = 0;

    for (; *roots != NULL; roots++) {
        char *one[2] = {(char *)(uintptr_t)*roots, NULL};
        FTS *tree = fts_open(one, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
        assert_non_null(tree);
        for (FTSENT *entry; (entry = fts_read(tree)) != NULL;) {
            if (entry->fts_info != FTS_F ||
                !(ends_with(entry->fts_path, ".c") || ends_with(entry->fts_path, ".h")))
                continue;
            each(entry->fts_path, context);
            files++;
        }
        fts_close(tree);
    }
    assert_true(files > 0); /* run from the repository's root */
}

static void check_file(const char *path, void *context)
{
    char *text = read_text(path);
    source s = {.path = path, .text = text, .sink = collect_and_print, .context = context};

    check_source(&s);
    free(text);
}

static void the_tree_obeys_the_rules(void **state)
{
    static const char *const roots[] = {"src", "include", "tests", "examples", NULL};
    tally t = {0};
    (void)state;

    walk(roots, check_file, &t);
    if (t.findings != 0)
        fail_msg("%u findings, printed above", t.findings);
}

/* ---- the rules can fail */

typedef struct {
    const char *path, *text;
    const char *says; /* NULL: no finding */
} snippet;

static const snippet snippets[] = {
    {"src/sched/a.c", "/* x */\n#include \"model/op.h\"\n#include \"sched/port.h\"\n#include <stdint.h>\n",
     NULL},
    {"src/sched/a.c", "/* x */\n#include \"engine/forward.h\"\n",
     "src/sched/a.c:2: sched may not include \"engine/forward.h\"; it may include: model base"},
    {"src/base/a.c", "/* x */\n#  include  \"model/op.h\"\n", "src/base/a.c:2: base may not include"},
    {"src/method/a.c", "/* x */\n#include \"device/device.h\"\n", "method may not include"},
    {"src/ops/x86/a.c", "/* x */\n#include \"model/model.h\"\n", "ops may not include"},
    {"src/cli/a.c", "/* x */\n#include \"engine/forward.h\"\n#include <jansson.h>\n", NULL},
    {"src/node/a.c", "/* x */\n#include \"state.h\"\n", "must be included by its room: \"node/state.h\""},
    {"src/sim/a.c", "/* x */\n#include <ucp/api/ucp.h>\n", "sim may not include <ucp/api/ucp.h>"},
    {"src/wire/a.c", "/* x */\n#include <ucp/api/ucp.h>\n", NULL},
    {"src/engine/a.c", "/* x */\n#include <immintrin.h>\n", "engine may not include <immintrin.h>"},
    {"src/sched/a.c", "/* x */\n#include <stdio.h>\n", "sched is pure computation"},
    {"src/ops/a.c", "/* x */\n#include <pthread.h>\n", "ops is pure computation"},
    {"src/kitchen/a.c", "/* x */\n", "no such room"},
    {"src/node/a.c", "int x;\n", "opens with a comment"},
    {"src/node/a.c", "/* x */\nint\tx;\n", "src/node/a.c:2: tab"},
    {"src/node/a.c", "/* x */\nint x; \n", "blanks at the end"},
    {"src/node/a.c",
     "/* printf(1), free(p) and exit(2) in \"a comment\" */\nchar c = '\"', *s = \"free(p)\";\n", NULL},
    {"src/node/a.c", "/* x */\nvoid f(void) { printf(\"x\"); }\n", "src/node/a.c:2: printf: only cli prints"},
    {"src/node/a.c", "/* x */\nvoid f(void) { fprintf(stderr, \"x\"); }\n", "stderr: only cli owns"},
    {"src/node/a.c", "/* x */\nvoid f(FILE *out) { fprintf(out, \"x\"); }\n", NULL},
    {"src/cli/a.c", "/* x */\nvoid f(void) { printf(\"x\"); exit(1); getenv(\"X\"); }\n", NULL},
    {"src/node/a.c", "/* x */\nvoid f(void) { exit (1); }\n", "exit: only cli ends the process"},
    {"src/node/a.c", "/* x */\nchar *f(void) { return getenv(\"X\"); }\n", "getenv: only cli reads"},
    {"src/store/a.c", "/* x */\nvoid f(void *p) { free(p); }\n", "free: memory comes from"},
    {"src/store/a.c", "/* x */\nvoid f(t *p) { p->free(p); p->x.malloc (1); }\n", NULL},
    {"src/base/a.c", "/* x */\nvoid f(void *p) { free(p); }\n", NULL},
    {"src/base/a.c", "/* x */\nint f(char *p) { return atoi(p); }\n", "atoi: unbounded"},
    {"src/cli/a.c", "/* x */\nvoid f(char *p) { strcpy(p, \"x\"); }\n", "strcpy: unbounded"},
    {"src/sim/a.c", "/* x */\nint f(void) { return rand(); }\n", "rand: random numbers"},
    {"src/sim/a.c", "/* x */\nint f(void) { return my_rand(); }\n", NULL},
    {"src/sim/a.c", "/* x */\nuint64_t time;\nint t = time(NULL);\n", "src/sim/a.c:3: time: time comes"},
    {"src/sched/a.c", "/* x */\nfloat f(void);\n", "float: sched uses no floating point"},
    {"src/model/a.c", "/* x */\n/* TODO: later */\n", "src/model/a.c:2: TODO"},
    {"src/base/x_y.h", "/* x */\n#ifndef KR_BASE_X_Y_H\n#define KR_BASE_X_Y_H\n#endif\n", NULL},
    {"src/base/x_y.h", "/* x */\n#pragma once\n", "no include guard \"#ifndef KR_BASE_X_Y_H\""},
    {"src/ops/body.h", "/* Included once per variant. */\n", NULL},
    {"tests/a/test_a.c", "/* x */\nvoid f(void) { printf(\"x\"); free(0); }\n", NULL},
};

static void expect(const char *path, const char *text, const char *says)
{
    tally t = {0};
    source s = {.path = path, .text = text, .sink = collect, .context = &t};

    check_source(&s);
    if (says == NULL && t.findings != 0)
        fail_msg("a rule fired on correct text: %s", t.last);
    if (says != NULL && (t.findings != 1 || strstr(t.last, says) == NULL))
        fail_msg("wanted one finding \"%s\"; got %u, the last \"%s\", for:\n%s", says, t.findings, t.last,
                 text);
}

static void every_rule_can_fail(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof snippets / sizeof snippets[0]; i++)
        expect(snippets[i].path, snippets[i].text, snippets[i].says);
}

/* Text of a head, then count copies of unit, then a tail. */
static void expect_repeated(const char *head, const char *unit, int count, const char *tail, const char *says)
{
    const size_t bytes = strlen(head) + strlen(unit) * (size_t)count + strlen(tail) + 1;
    char *text = malloc(bytes), *end = text;

    assert_non_null(text);
    end += snprintf(end, bytes, "%s", head);
    for (int i = 0; i < count; i++)
        end += snprintf(end, bytes - (size_t)(end - text), "%s", unit);
    snprintf(end, bytes - (size_t)(end - text), "%s", tail);
    expect("src/node/a.c", text, says);
    free(text);
}

static void every_size_has_its_edge(void **state)
{
    (void)state;
    expect_repeated("/* x */\n", "\n", FILE_LINES_MAX - 1, "", NULL);
    expect_repeated("/* x */\n", "\n", FILE_LINES_MAX, "", "a file of 801 lines; the limit is 800");
    expect_repeated("/* x */\n// ", "\xc3\xa9", LINE_COLUMNS_MAX - 3, "\n", NULL);
    expect_repeated("/* x */\n// ", "x", LINE_COLUMNS_MAX - 2, "\n", "src/node/a.c:2: 111 columns");
    expect_repeated("/* x */\nvoid f(void)\n{\n", "    x();\n", FUNCTION_LINES_MAX - 2, "}\n", NULL);
    expect_repeated("/* x */\nvoid f(void)\n{\n", "    x();\n", FUNCTION_LINES_MAX - 1, "}\n",
                    "src/node/a.c:3: a function of 71 lines; the limit is 70");
}

/* ---- headers stand alone */

static void add_header(const char *path, void *context)
{
    char *command = context;
    const size_t used = strlen(command);
    char *text = read_text(path);

    /* Headers of one instruction set compile inside the files that are built for it. */
    const bool isa = strncmp(path, "src/ops/x86/", 12) == 0 || strncmp(path, "src/ops/arm/", 12) == 0;
    if (ends_with(path, ".h") && !isa && !is_included_body(text)) {
        assert_true(used + strlen(path) + 2 < COMMAND_BYTES);
        snprintf(command + used, COMMAND_BYTES - used, " %s", path);
    }
    free(text);
}

/* Compiles each header of the list as a program of its own; the compiler names what is missing. */
static int compile_alone(const char *headers)
{
    static char command[COMMAND_BYTES];

    fflush(stdout);
    snprintf(command, sizeof command,
             "${CC:-gcc} -std=c17 -fsyntax-only -Wall -Wextra -Werror -Wno-unused-function -Isrc -Iinclude "
             "-D_GNU_SOURCE -x c %s",
             headers);
    return system(command);
}

static void every_header_compiles_alone(void **state)
{
    static const char *const roots[] = {"src", "include", NULL};
    static char headers[COMMAND_BYTES / 2];
    char broken[] = "/tmp/karat-header-XXXXXX";
    (void)state;

    const int fd = mkstemp(broken);
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    fputs("uint32_t f(void);\n", file);
    fclose(file);
    char quiet[64];
    snprintf(quiet, sizeof quiet, "%s 2>/dev/null", broken);
    const int failure = compile_alone(quiet);
    unlink(broken);
    assert_int_not_equal(failure, 0);

    headers[0] = '\0';
    walk(roots, add_header, headers);
    assert_int_equal(compile_alone(headers), 0);
}

/* ---- sched needs nothing outside base and model */

typedef struct {
    char name[SYMBOLS_MAX][NAME_BYTES];
    unsigned count;
} symbols;

/* Lists the symbols of a room's objects whose nm type letter is among letters. */
static void list_symbols(const char *build, const char *room, const char *letters, symbols *out)
{
    char command[1024], line[1024];

    snprintf(command, sizeof command, "find %s/src/%s -name '*.o' -print0 | xargs -0 -r nm -P", build, room);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    while (fgets(line, sizeof line, pipe) != NULL) {
        char name[NAME_BYTES], type;
        if (sscanf(line, "%127s %c", name, &type) != 2 || strchr(letters, type) == NULL)
            continue;
        assert_true(out->count < SYMBOLS_MAX);
        memcpy(out->name[out->count++], name, NAME_BYTES);
    }
    assert_int_equal(pclose(pipe), 0);
}

static bool is_known(const symbols *known, const char *name)
{
    /* What compilers and sanitizers call on their own. */
    static const char *const generated[] = {
        "memcpy", "memset", "memmove", "memcmp", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"};
    static const char *const sanitizers[] = {"__asan_", "__ubsan_", "__tsan_", "__sanitizer_"};

    for (size_t i = 0; i < sizeof generated / sizeof generated[0]; i++)
        if (strcmp(name, generated[i]) == 0)
            return true;
    for (size_t i = 0; i < sizeof sanitizers / sizeof sanitizers[0]; i++)
        if (strncmp(name, sanitizers[i], strlen(sanitizers[i])) == 0)
            return true;
    for (unsigned i = 0; i < known->count; i++)
        if (strcmp(name, known->name[i]) == 0)
            return true;
    return false;
}

static unsigned unknown_symbols(const char *build, const char *room, const char *const *from, bool print)
{
    static symbols known, needed;
    unsigned unknown = 0;

    known.count = needed.count = 0;
    for (; *from != NULL; from++)
        list_symbols(build, *from, "TDBRVWC", &known);
    list_symbols(build, room, "U", &needed);
    for (unsigned i = 0; i < needed.count; i++) {
        if (is_known(&known, needed.name[i]))
            continue;
        unknown++;
        if (print)
            printf("src/%s needs %s\n", room, needed.name[i]);
    }
    return unknown;
}

static void sched_links_with_base_and_model_alone(void **state)
{
    static const char *const allowed[] = {"base", "model", "sched", NULL};
    static const char *const base_alone[] = {"base", NULL};
    const char *library = getenv("KARAT_LIB");
    char build[512] = "build";
    (void)state;

    if (library != NULL)
        snprintf(build, sizeof build, "%.*s", (int)(strrchr(library, '/') - library), library);
    assert_true(unknown_symbols(build, "base", base_alone, false) >
                0); /* the check can fail: base needs libc */
    if (access("src/sched", F_OK) == 0)
        assert_int_equal(unknown_symbols(build, "sched", allowed, true), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_can_fail),
        cmocka_unit_test(every_size_has_its_edge),
        cmocka_unit_test(the_tree_obeys_the_rules),
        cmocka_unit_test(every_header_compiles_alone),
        cmocka_unit_test(sched_links_with_base_and_model_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
