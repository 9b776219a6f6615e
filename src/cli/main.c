/* karat's entry: finds the command and hands it the rest of the line. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "wire/ucx_process.h"

typedef struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} command;

static const command commands[] = {
#define KR_COMMAND_ROW(suffix, name, summary) {name, summary, kr_cmd_##suffix},
    KR_COMMAND_LIST(KR_COMMAND_ROW)
#undef KR_COMMAND_ROW
        {NULL, NULL, NULL},
};

static const char *const command_names[] = {
#define KR_COMMAND_NAME(suffix, name, summary) name,
    KR_COMMAND_LIST(KR_COMMAND_NAME)
#undef KR_COMMAND_NAME
        NULL,
};

static void print_help(FILE *out)
{
    fputs("usage: karat COMMAND [OPTION...]\n"
          "\n"
          "Runs language models with the KV cache on memory nodes, and plans such clusters.\n"
          "\n"
          "commands:\n",
          out);
    for (const command *c = commands; c->name != NULL; c++)
        fprintf(out, "  %-12s  %s\n", c->name, c->summary);
    fputs("\nkarat COMMAND --help tells more; karat --version prints the version.\n", out);
}

/* Buffered output that cannot be written (a full disk) turns success into failure. */
static int finish(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fputs("karat: cannot write to standard output\n", stderr);
    return status != KR_EXIT_OK ? status : KR_EXIT_FAILED;
}

int main(int argc, char **argv)
{
    kr_log_set(KR_LOG_INFO);
    kr_ucx_tame(); /* SIGHUP ends a command again, and a crash is the system's to report */
    if (argc < 2) {
        print_help(stderr);
        return KR_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return finish(KR_EXIT_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("karat " KR_VERSION);
        return finish(KR_EXIT_OK);
    }
    for (const command *c = commands; c->name != NULL; c++)
        if (strcmp(argv[1], c->name) == 0)
            return finish(c->run(argc - 1, argv + 1));

    const char *nearest = kr_text_nearest(argv[1], command_names);
    if (nearest != NULL)
        fprintf(stderr, "karat: unknown command \"%s\" (nearest: %s)\n", argv[1], nearest);
    else
        fprintf(stderr, "karat: unknown command \"%s\"; karat --help lists them\n", argv[1]);
    return KR_EXIT_USAGE;
}
