/* kr_ranks over MPI. Linked into karat-sweep alone, so that nothing else needs MPI. */
#ifndef KR_RANKS_MPI_H
#define KR_RANKS_MPI_H

#include "ranks/ranks.h"

/* Joins the job that mpirun started; argc and argv lose what MPI takes for itself. */
void kr_ranks_join(kr_ranks *ranks, int *argc, char ***argv);
/* Meets all ranks for the last time with this rank's exit status; those that are still sharing learn of a
 * status other than 0. Returns the first rank that failed, or -1, and its status in *status. */
int kr_ranks_leave(const kr_ranks *ranks, int *status);
/* Ends MPI; after everything is printed. */
void kr_ranks_end(void);

#endif
