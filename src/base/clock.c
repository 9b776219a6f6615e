/* The operating system's monotonic clock behind the clock table. */
#include "base/clock.h"

#include <time.h>

static uint64_t system_now_ns(const kr_clock *clock)
{
    struct timespec t;

    (void)clock;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

const kr_clock kr_clock_system = {.now_ns = system_now_ns};
