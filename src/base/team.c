/* A team of threads around one 64-bit ticket.
 *
 * The ticket holds (job number, parts left). A thread takes a part by decrementing it with
 * compare-and-swap, so a thread that wakes late for job j can neither take a part of job j + 1
 * with j's function nor be waited for: nobody waits for threads that have no part.
 *
 *   ticket  (job << 32 | left)   left > 0 implies that fn, context and parts belong to that job,
 *                                because the next job is written only after all parts are done
 *   job     changes with each job; idle threads sleep on it
 *   done    parts finished of the current job; the caller sleeps on it
 *
 * Sleeping is announced before the last look at the word (sequentially consistent on both
 * sides), so either the sleeper sees the change or the changer sees the sleeper. */
#include "base/team.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/clock.h"

enum { SPIN_NS = 30000, PAUSES_PER_LOOK = 16 };
enum { CACHE_LINE = 64 };

typedef struct {
    kr_team *team;
    pthread_t thread;
    uint32_t worker;
} team_member;

struct kr_team {
    _Alignas(CACHE_LINE) _Atomic uint64_t ticket;
    _Alignas(CACHE_LINE) _Atomic uint32_t done;
    _Atomic uint32_t caller_sleeps;
    _Alignas(CACHE_LINE) _Atomic uint32_t job;
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    _Atomic(kr_team_fn) fn;
    _Atomic(void *) context;
    _Atomic uint32_t parts;
    uint32_t threads;
    uint64_t spin_ns;     /* 0 when there are more threads than CPUs to run them */
    void *memory;         /* the allocation this struct was aligned in */
    team_member member[]; /* [threads]; entry 0, the caller, has no thread */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t while_equal)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_equal, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, uint32_t threads)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads > INT_MAX ? INT_MAX : (int)threads, NULL, NULL, 0);
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spins until *word differs from value, at most spin_ns; yields the core between looks, since the
 * thread waited for may need it. */
static bool spin_while_equal(const _Atomic uint32_t *word, uint32_t value, uint64_t spin_ns)
{
    if (atomic_load_explicit(word, memory_order_acquire) != value)
        return true;
    if (spin_ns == 0)
        return false;
    const uint64_t deadline = kr_deadline_after(&kr_clock_system, spin_ns);
    do {
        for (int i = 0; i < PAUSES_PER_LOOK; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value)
                return true;
            pause_cpu();
        }
        sched_yield();
    } while (kr_now_ns(&kr_clock_system) < deadline);
    return atomic_load_explicit(word, memory_order_acquire) != value;
}

/* Takes and runs parts until none is left. */
static void work(kr_team *team, uint32_t worker)
{
    uint64_t ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);

    while ((uint32_t)ticket != 0) {
        const uint32_t parts = atomic_load_explicit(&team->parts, memory_order_relaxed);
        const kr_team_fn fn = atomic_load_explicit(&team->fn, memory_order_relaxed);
        void *context = atomic_load_explicit(&team->context, memory_order_relaxed);

        /* Success proves that the job was still open, hence that the three values above are its own. */
        if (!atomic_compare_exchange_weak_explicit(&team->ticket, &ticket, ticket - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        fn(context, parts - (uint32_t)ticket, worker);
        if (atomic_fetch_add(&team->done, 1) + 1 == parts && atomic_load(&team->caller_sleeps) != 0)
            futex_wake(&team->done, 1);
        ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);
    }
}

static void *member_main(void *argument)
{
    team_member *me = argument;
    kr_team *team = me->team;
    uint32_t seen = 0;

    for (;;) {
        if (!spin_while_equal(&team->job, seen, team->spin_ns)) {
            atomic_fetch_add(&team->sleepers, 1);
            while (atomic_load(&team->job) == seen)
                futex_wait(&team->job, seen);
            atomic_fetch_sub(&team->sleepers, 1);
        }
        seen = atomic_load(&team->job);
        if (atomic_load(&team->stop))
            return NULL;
        work(team, me->worker);
    }
}

/* Makes idle threads look again: a new job or the end. */
static void announce(kr_team *team, uint32_t threads)
{
    atomic_fetch_add(&team->job, 1);
    if (atomic_load(&team->sleepers) != 0)
        futex_wake(&team->job, threads);
}

static uint64_t choose_spin_ns(uint32_t threads)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return SPIN_NS; /* more CPUs than the set holds: surely enough */
    return threads <= (uint32_t)CPU_COUNT(&set) ? SPIN_NS : 0;
}

static int start_member(team_member *member, const uint32_t *cpu)
{
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);

    if (error != 0)
        return error;
    if (cpu != NULL) {
        cpu_set_t set;
        CPU_ZERO(&set);
        if (*cpu < CPU_SETSIZE)
            CPU_SET(*cpu, &set);
        error = pthread_attr_setaffinity_np(&attributes, sizeof set, &set);
    }
    if (error == 0)
        error = pthread_create(&member->thread, &attributes, member_main, member);
    pthread_attr_destroy(&attributes);
    return error;
}

static void stop_members(kr_team *team, uint32_t started)
{
    atomic_store(&team->stop, true);
    announce(team, started);
    for (uint32_t i = 1; i < started; i++)
        KR_CHECK(pthread_join(team->member[i].thread, NULL) == 0);
}

kr_status kr_team_create(kr_team **team, uint32_t threads, const uint32_t *cpus, kr_err *err)
{
    if (threads == 0 || threads > KR_TEAM_THREADS_MAX)
        return kr_fail(err, KR_E_LIMIT, "%u threads asked for; a team has 1 to %d", threads,
                       KR_TEAM_THREADS_MAX);

    const size_t bytes = sizeof(kr_team) + threads * sizeof(team_member);
    void *memory = kr_alloc(bytes + CACHE_LINE - 1);
    if (memory == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a team of %u threads", threads);
    kr_team *t = (kr_team *)(((uintptr_t)memory + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1));
    t->memory = memory;
    t->threads = threads;
    t->spin_ns = choose_spin_ns(threads);

    /* Signals are the caller's business: its threads are born deaf to them. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    uint32_t started = 1;
    while (started < threads && error == 0) {
        t->member[started].team = t;
        t->member[started].worker = started;
        error = start_member(&t->member[started], cpus != NULL ? &cpus[started] : NULL);
        started += error == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);

    if (error != 0) {
        stop_members(t, started);
        kr_free(memory);
        if (error == EINVAL && cpus != NULL)
            return kr_fail(err, KR_E_ARG, "cannot bind a thread to CPU %u: not available here",
                           cpus[started]);
        return kr_fail(err, KR_E_MEMORY, "cannot start thread %u of %u: the system refused", started,
                       threads);
    }
    *team = t;
    return KR_OK;
}

void kr_team_destroy(kr_team *team)
{
    if (team == NULL)
        return;
    stop_members(team, team->threads);
    kr_free(team->memory);
}

uint32_t kr_team_threads(const kr_team *team) { return team->threads; }

void kr_team_run(kr_team *team, kr_team_fn fn, void *context, uint32_t parts)
{
    if (team->threads == 1 || parts <= 1) {
        for (uint32_t part = 0; part < parts; part++)
            fn(context, part, 0);
        return;
    }

    const uint64_t number = (atomic_load_explicit(&team->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store_explicit(&team->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&team->context, context, memory_order_relaxed);
    atomic_store_explicit(&team->parts, parts, memory_order_relaxed);
    atomic_store_explicit(&team->done, 0, memory_order_relaxed);
    atomic_store_explicit(&team->ticket, number << 32 | parts, memory_order_release);
    announce(team, parts - 1);
    work(team, 0);

    for (;;) {
        const uint32_t done = atomic_load_explicit(&team->done, memory_order_acquire);
        if (done == parts)
            return;
        if (spin_while_equal(&team->done, done, team->spin_ns))
            continue;
        atomic_store(&team->caller_sleeps, 1);
        if (atomic_load(&team->done) == done)
            futex_wait(&team->done, done);
        atomic_store(&team->caller_sleeps, 0);
    }
}
