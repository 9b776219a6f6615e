/* A fixed team of threads that runs numbered parts of one job at a time.
 *
 * Parts are handed out in order from a shared counter, so which thread runs a part is not
 * deterministic and results must not depend on it. Between jobs threads spin briefly, then
 * sleep; they never spin for long (design: a waiting thread leaves its core to the other side).
 * run() is called by one thread at a time; the caller works too, so a team of 1 has no threads. */
#ifndef KR_BASE_TEAM_H
#define KR_BASE_TEAM_H

#include <stdint.h>

#include "base/status.h"

typedef struct kr_team kr_team;

/* Runs one part. worker in [0, threads): index of per-thread scratch. */
typedef void (*kr_team_fn)(void *context, uint32_t part, uint32_t worker);

enum { KR_TEAM_THREADS_MAX = 256 };

/* threads >= 1 counts the caller. cpus, if not NULL, holds [threads] CPU numbers to bind the
 * created threads to (entry 0, the caller, is left alone). KR_E_LIMIT, KR_E_MEMORY. */
kr_status kr_team_create(kr_team **team, uint32_t threads, const uint32_t *cpus, kr_err *err);
void kr_team_destroy(kr_team *team); /* NULL is fine */
uint32_t kr_team_threads(const kr_team *team);
/* Runs parts 0..parts-1 and returns when all have finished (acquire/release around the job). */
void kr_team_run(kr_team *team, kr_team_fn fn, void *context, uint32_t parts);

#endif
