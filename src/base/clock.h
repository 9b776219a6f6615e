/* Time behind a table, so that tests and the simulator own it. Nanoseconds, monotonic. */
#ifndef KR_BASE_CLOCK_H
#define KR_BASE_CLOCK_H

#include <stdint.h>

typedef struct kr_clock {
    uint64_t (*now_ns)(const struct kr_clock *clock);
    void *context;
} kr_clock;

/* The operating system's monotonic clock. */
extern const kr_clock kr_clock_system;
/* Time the calling thread has run: for measuring code on a crowded machine, never for deadlines. */
extern const kr_clock kr_clock_thread;

static inline uint64_t kr_now_ns(const kr_clock *clock) { return clock->now_ns(clock); }

/* Deadline = now + wait, saturating; KR_NO_DEADLINE is for tests only: every wait has a deadline. */
#define KR_NO_DEADLINE UINT64_MAX
static inline uint64_t kr_deadline_after(const kr_clock *clock, uint64_t wait_ns)
{
    const uint64_t now = kr_now_ns(clock);
    return wait_ns > UINT64_MAX - now ? UINT64_MAX : now + wait_ns;
}

#endif
