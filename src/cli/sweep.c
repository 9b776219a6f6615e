/* karat-sweep: karat plan and karat reproduce on the ranks of an MPI job.
 *
 *     mpirun -n 4 karat-sweep plan --model glm-5.2 --trace traces/ --html plan.html
 *
 * Rank 0 writes everything. What other ranks say on their error streams is kept; if one of them fails where
 * rank 0 does not, its text is shown with its number, and the job ends with its status. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "ranks/mpi.h"

static int run(const kr_ranks *ranks, int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "plan") == 0)
        return kr_cmd_plan_on(ranks, argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "reproduce") == 0)
        return kr_cmd_reproduce_on(ranks, argc - 1, argv + 1);
    fputs("karat-sweep: usage: mpirun -n N karat-sweep plan|reproduce [OPTION...], options as karat's\n",
          stderr);
    return KR_EXIT_USAGE;
}

/* Silences a rank: its output goes nowhere, its errors into the file that is returned. */
static FILE *keep_quiet(int *errors)
{
    FILE *kept = tmpfile(), *nowhere = freopen("/dev/null", "w", stdout);

    *errors = dup(STDERR_FILENO);
    if (kept == NULL || nowhere == NULL || *errors < 0 || dup2(fileno(kept), STDERR_FILENO) < 0)
        return NULL;
    return kept;
}

static void tell(FILE *kept, int errors, uint32_t rank)
{
    char line[1024];

    fflush(stderr);
    rewind(kept);
    while (fgets(line, sizeof line, kept) != NULL)
        dprintf(errors, "rank %u: %s", rank, line);
}

int main(int argc, char **argv)
{
    kr_ranks ranks;
    int status, failed, errors = -1;
    FILE *kept = NULL;

    kr_log_set(KR_LOG_INFO);
    kr_ranks_join(&ranks, &argc, &argv);
    if (ranks.rank != 0)
        kept = keep_quiet(&errors);
    status = run(&ranks, argc, argv);
    fflush(stdout);
    failed = kr_ranks_leave(&ranks, &status);
    if (failed == (int)ranks.rank && kept != NULL)
        tell(kept, errors, ranks.rank);
    kr_ranks_end();
    return status;
}
