/* Meetings of ranks: each begins with every rank's status, so that one that has failed is heard by those
 * that go on. */
#include "ranks/mpi.h"

#include <limits.h>
#include <mpi.h>

#include "base/check.h"

/* First rank whose status is not 0, or -1; *status is then that status. */
static int meet(const kr_ranks *ranks, int *status)
{
    /* Low word: status; the largest of (failed, smaller rank first) wins. */
    const int mine = *status == 0 ? 0 : (int)(ranks->count - ranks->rank) << 8 | (*status & 0xff);
    int worst = 0;

    MPI_Allreduce(&mine, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    *status = worst & 0xff;
    return worst == 0 ? -1 : (int)ranks->count - (worst >> 8);
}

/* The failure that was heard at a meeting: its rank has left, so nobody may wait for it again. MPI's world
 * is one in a process, and so is this. */
static int heard_rank = -1, heard_status;

static kr_status share(const kr_ranks *ranks, void *items, uint64_t bytes, uint32_t count, kr_err *err)
{
    int status = 0;

    heard_rank = meet(ranks, &status);
    heard_status = status;
    if (heard_rank >= 0)
        return kr_fail(err, KR_E_LOST, "ranks: rank %d has failed", heard_rank);
    KR_CHECK(bytes <= INT_MAX);
    for (uint32_t i = 0; i < count; i++)
        MPI_Bcast((char *)items + bytes * i, (int)bytes, MPI_BYTE, (int)(i % ranks->count), MPI_COMM_WORLD);
    return KR_OK;
}

void kr_ranks_join(kr_ranks *ranks, int *argc, char ***argv)
{
    int rank = 0, count = 1, provided;

    /* Threads compute, only the main one meets others. */
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    *ranks = (kr_ranks){.rank = (uint32_t)rank, .count = (uint32_t)count, .share = share};
}

int kr_ranks_leave(const kr_ranks *ranks, int *status)
{
    if (heard_rank < 0)
        return meet(ranks, status);
    *status = heard_status;
    return heard_rank;
}

void kr_ranks_end(void) { MPI_Finalize(); }
