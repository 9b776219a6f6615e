/* The operating system's clocks behind the clock table. */
#include "base/clock.h"

#include <time.h>

static uint64_t read_clock(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t system_now_ns(const kr_clock *clock)
{
    (void)clock;
    return read_clock(CLOCK_MONOTONIC);
}

static uint64_t thread_now_ns(const kr_clock *clock)
{
    (void)clock;
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

const kr_clock kr_clock_system = {.now_ns = system_now_ns};
const kr_clock kr_clock_thread = {.now_ns = thread_now_ns};
