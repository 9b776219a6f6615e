/* Command lines: every option type, its range and its error line; flag over variable over
 * default; refusals name the nearest option; help shows names, ranges, defaults and variables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/options.h"

typedef struct {
    bool json, color;
    const char *prompt;
    uint32_t threads, layers;
    uint64_t seed, pool, context;
    double temperature;
    int mode;
    kr_option_sizes contexts;
    kr_option_strings methods;
} options;

static const char *const modes[] = {"embedded", "remote", NULL};

static const kr_option table[] = {
    {.help = "model:"},
    {.name = "json", .type = KR_OPT_FLAG, .at = offsetof(options, json), .help = "print JSON"},
    {.name = "color",
     .type = KR_OPT_FLAG,
     .letter = 'C',
     .at = offsetof(options, color),
     .help = "use colour"},
    {.name = "prompt",
     .alias = "text",
     .letter = 'p',
     .type = KR_OPT_STRING,
     .at = offsetof(options, prompt),
     .value = "TEXT",
     .help = "text to continue"},
    {.name = "threads",
     .letter = 't',
     .type = KR_OPT_U32,
     .at = offsetof(options, threads),
     .min = 1,
     .max = 256,
     .value = "N",
     .help = "threads"},
    {.name = "seed", .type = KR_OPT_U64, .at = offsetof(options, seed), .value = "N", .help = "seed"},
    {.name = "pool-size",
     .type = KR_OPT_SIZE,
     .at = offsetof(options, pool),
     .min = 1024,
     .value = "BYTES",
     .help = "bytes of the pool"},
    {.name = "layers",
     .type = KR_OPT_U32,
     .at = offsetof(options, layers),
     .max = 256,
     .value = "N",
     .help = "dense layers (default: the method's)"},
    {.name = "ctx-size",
     .type = KR_OPT_SIZE,
     .at = offsetof(options, context),
     .min = 1,
     .value = "N",
     .help = "context (default: the prompt's)"},
    {.name = "temperature",
     .type = KR_OPT_REAL,
     .at = offsetof(options, temperature),
     .real_max = 2.0,
     .value = "T",
     .help = "sampling temperature"},
    {.name = "mode",
     .type = KR_OPT_CHOICE,
     .at = offsetof(options, mode),
     .choices = modes,
     .value = "MODE",
     .help = "where the node runs"},
    {.name = "contexts",
     .type = KR_OPT_SIZES,
     .at = offsetof(options, contexts),
     .value = "N,...",
     .help = "contexts"},
    {.name = "methods",
     .type = KR_OPT_STRINGS,
     .at = offsetof(options, methods),
     .value = "NAME,...",
     .help = "methods"},
};

static const kr_command_line line = {
    .command = "try",
    .arguments = "MODEL",
    .summary = "Tries.",
    .example = "karat try a\nkarat try b",
    .options = table,
    .option_count = sizeof table / sizeof table[0],
    .arguments_max = 2,
};

enum { WORDS_MAX = 32, OUTPUT_BYTES = 8192 };

typedef struct {
    options o;
    char *words[WORDS_MAX];
    char **rest;
    int rest_count, status;
    bool go_on;
    char output[OUTPUT_BYTES]; /* what went to standard output and error */
} run;

/* Parses the words with both output streams going to a temporary file. */
static void parse(run *r, const char *const *words)
{
    int count = 1;

    *r = (run){.o = {.threads = 4, .layers = UINT32_MAX, .color = true, .pool = 1 << 20, .temperature = 1.0}};
    r->words[0] = (char *)"try";
    for (; words[count - 1] != NULL; count++)
        r->words[count] = (char *)(uintptr_t)words[count - 1];
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    const int out = dup(1), err = dup(2);
    dup2(fileno(file), 1);
    dup2(fileno(file), 2);
    r->go_on = kr_options_parse(&line, count, r->words, &r->o, &r->rest, &r->rest_count, &r->status);
    fflush(stdout);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    rewind(file);
    r->output[fread(r->output, 1, OUTPUT_BYTES - 1, file)] = '\0';
    fclose(file);
}

#define PARSE(r, ...) parse(r, (const char *const[]){__VA_ARGS__, NULL})

static void every_type_is_read(void **state)
{
    run r;
    (void)state;

    PARSE(&r, "--json", "m", "-p", "hi", "--threads=8", "--seed", "18446744073709551615", "--pool-size", "3g",
          "--temperature", "0.5", "--mode", "remote", "--contexts", "64K,1M,5", "--methods", "dense,quest",
          "n", "--no-color");
    assert_true(r.go_on);
    assert_true(r.o.json);
    assert_false(r.o.color);
    assert_string_equal(r.o.prompt, "hi");
    assert_int_equal(r.o.threads, 8);
    assert_true(r.o.seed == UINT64_MAX);
    assert_true(r.o.pool == 3ull << 30);
    assert_true(r.o.temperature == 0.5);
    assert_int_equal(r.o.mode, 1);
    assert_int_equal(r.o.contexts.count, 3);
    assert_int_equal(r.o.contexts.item[0], 65536);
    assert_int_equal(r.o.contexts.item[1], 1 << 20);
    assert_int_equal(r.o.contexts.item[2], 5);
    assert_int_equal(r.o.methods.count, 2);
    assert_string_equal(kr_option_string_at(&r.o.methods, 0), "dense");
    assert_string_equal(kr_option_string_at(&r.o.methods, 1), "quest");
    assert_int_equal(r.rest_count, 2);
    assert_string_equal(r.rest[0], "m");
    assert_string_equal(r.rest[1], "n");
}

static void short_letters_join_and_take_values(void **state)
{
    run r;
    (void)state;

    PARSE(&r, "-Ct12", "-", "--", "--json");
    assert_true(r.go_on);
    assert_int_equal(r.o.threads, 12);
    assert_false(r.o.json);
    assert_int_equal(r.rest_count, 2);
    assert_string_equal(r.rest[0], "-");
    assert_string_equal(r.rest[1], "--json");
}

static void flag_beats_variable_beats_default(void **state)
{
    run r;
    (void)state;

    setenv("KARAT_THREADS", "7", 1);
    setenv("KARAT_POOL_SIZE", "2K", 1);
    setenv("KARAT_JSON", "yes", 1);
    PARSE(&r, "--threads", "9", "--threads", "10");
    assert_true(r.go_on);
    assert_int_equal(r.o.threads, 10);
    assert_int_equal(r.o.pool, 2048);
    assert_true(r.o.json);
    assert_true(r.o.temperature == 1.0);

    setenv("KARAT_THREADS", "many", 1);
    PARSE(&r, "m");
    assert_false(r.go_on);
    assert_int_equal(r.status, KR_EXIT_USAGE);
    assert_string_equal(r.output, "karat try: KARAT_THREADS: \"many\" is not a whole number\n");
    unsetenv("KARAT_THREADS");
    unsetenv("KARAT_POOL_SIZE");
    unsetenv("KARAT_JSON");
}

static void every_refusal_is_one_line_and_status_2(void **state)
{
    static const struct {
        const char *words[3];
        const char *says;
    } bad[] = {
        {{"--treads", "3"}, "unknown option --treads (nearest: --threads)"},
        {{"--zzzzzzzzz"}, "unknown option --zzzzzzzzz; karat try --help lists them"},
        {{"-q"}, "unknown option -q; karat try --help lists them"},
        {{"--threads"}, "--threads needs a value (N)"},
        {{"-t"}, "-t needs a value (N)"},
        {{"--threads", "0"}, "--threads: 0 is out of range; 1 to 256"},
        {{"--threads", "257"}, "--threads: 257 is out of range; 1 to 256"},
        {{"--threads", "-1"}, "--threads: \"-1\" is not a whole number"},
        {{"--threads", " 1"}, "--threads: \" 1\" is not a whole number"},
        {{"--threads", "1K"}, "--threads: \"1K\" is not a whole number"},
        {{"--threads", ""}, "--threads: \"\" is not a whole number"},
        {{"--seed", "18446744073709551616"}, "--seed: \"18446744073709551616\" is not a whole number"},
        {{"--pool-size", "1"}, "--pool-size: 1 is out of range; 1024 to 18446744073709551615"},
        {{"--pool-size", "16777216T"},
         "--pool-size: \"16777216T\" is not a whole number (K, M, G or T may follow)"},
        {{"--pool-size", "K"}, "--pool-size: \"K\" is not a whole number (K, M, G or T may follow)"},
        {{"--temperature", "2.5"}, "--temperature: 2.5 is out of range; 0 to 2"},
        {{"--temperature", "nan"}, "--temperature: \"nan\" is not a number"},
        {{"--mode", "far"}, "--mode: \"far\" is none of: embedded, remote"},
        {{"--contexts", "1,,2"}, "--contexts: \"\" is not a whole number (K, M, G or T may follow)"},
        {{"--methods", "dense,"}, "--methods: \"dense,\" has an empty item"},
        {{"--json=1"}, "--json takes no value; --no-json turns it off"},
        {{"--no-threads"}, "unknown option --no-threads (nearest: --threads)"},
        {{"a", "b", "c"}, "unexpected argument \"c\""},
    };
    (void)state;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        run r;
        char want[256];
        const char *words[4] = {bad[i].words[0], bad[i].words[1], bad[i].words[2], NULL};
        parse(&r, words);
        snprintf(want, sizeof want, "karat try: %s\n", bad[i].says);
        assert_string_equal(r.output, want);
        assert_false(r.go_on);
        assert_int_equal(r.status, KR_EXIT_USAGE);
    }
}

static void help_shows_the_table(void **state)
{
    static const char *const shown[] = {
        "usage: karat try [OPTION...] MODEL",
        "-t, --threads N",
        "(default 4)",
        "[KARAT_THREADS]",
        "--prompt, --text TEXT",
        "embedded, remote (default embedded)",
        "(default 1M) [KARAT_POOL_SIZE]",
        "seed (default 0) [KARAT_SEED]",
        "(default: the method's) [KARAT_LAYERS]",
        "(default: the prompt's) [KARAT_CTX_SIZE]",
        "  karat try a\n  karat try b\n",
        "model:\n",
    };
    run r;
    (void)state;

    PARSE(&r, "--threads", "0", "--help");
    assert_false(r.go_on);
    assert_int_equal(r.status, KR_EXIT_OK);
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++)
        if (strstr(r.output, shown[i]) == NULL)
            fail_msg("no \"%s\" in:\n%s", shown[i], r.output);

    PARSE(&r, "--version");
    assert_false(r.go_on);
    assert_string_equal(r.output, "karat " KR_VERSION "\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_read),
        cmocka_unit_test(short_letters_join_and_take_values),
        cmocka_unit_test(flag_beats_variable_beats_default),
        cmocka_unit_test(every_refusal_is_one_line_and_status_2),
        cmocka_unit_test(help_shows_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
