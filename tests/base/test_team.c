/* A team runs every part exactly once, never gives one worker number to two parts at a time,
 * does not mix jobs, does not collapse with more threads than cores, and sleeps when idle. */
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/team.h"
#include "tests/test.h"

enum { PARTS_MAX = 64, THREADS = 8 };

typedef struct {
    _Atomic uint32_t ran[PARTS_MAX];
    uint64_t result[PARTS_MAX]; /* plain memory: the sanitizer sees a missing barrier */
    _Atomic uint32_t *busy;     /* [THREADS] shared by all jobs */
    _Atomic uint32_t faults;
    uint64_t salt;
    uint32_t work;
} job;

static void run_part(void *context, uint32_t part, uint32_t worker)
{
    job *j = context;

    if (worker >= THREADS || part >= PARTS_MAX || atomic_fetch_add(&j->busy[worker], 1) != 0) {
        atomic_fetch_add(&j->faults, 1);
        return;
    }
    uint64_t x = j->salt + part;
    for (uint32_t i = 0; i < j->work; i++)
        x = x * 6364136223846793005u + 1442695040888963407u;
    j->result[part] = x;
    atomic_fetch_add(&j->ran[part], 1);
    atomic_fetch_sub(&j->busy[worker], 1);
}

static void every_part_once_in_thousands_of_jobs(void **state)
{
    kr_rng rng = test_rng("team");
    static _Atomic uint32_t busy[THREADS];
    (void)state;

    for (uint32_t threads = 1; threads <= THREADS; threads *= 2) {
        kr_team *team;
        assert_int_equal(kr_team_create(&team, threads, NULL, NULL), KR_OK);
        assert_int_equal(kr_team_threads(team), threads);
        for (int n = 0; n < 2000; n++) {
            job j = {.busy = busy, .salt = kr_rng_next(&rng), .work = (uint32_t)kr_rng_below(&rng, 200)};
            const uint32_t parts = (uint32_t)kr_rng_below(&rng, PARTS_MAX + 1);
            kr_team_run(team, run_part, &j, parts);
            assert_int_equal(j.faults, 0);
            for (uint32_t p = 0; p < PARTS_MAX; p++)
                assert_int_equal(j.ran[p], p < parts);
            for (uint32_t p = 0; p < parts; p++) {
                uint64_t want = j.salt + p;
                for (uint32_t i = 0; i < j.work; i++)
                    want = want * 6364136223846793005u + 1442695040888963407u;
                assert_true(j.result[p] == want);
            }
            if (n % 500 == 499)
                usleep(2000); /* long enough for all to fall asleep */
        }
        kr_team_destroy(team);
    }
    kr_team_destroy(NULL);
}

typedef struct {
    _Atomic uint32_t arrived;
    uint32_t parts;
} meeting;

/* Waits until every part has been started, so no thread can run two of them; then all but the
 * caller dawdle, so that the caller has to sleep and be woken. */
static void meet(void *context, uint32_t part, uint32_t worker)
{
    meeting *m = context;
    const uint64_t deadline = kr_deadline_after(&kr_clock_system, 10000000000u);
    (void)part;

    atomic_fetch_add(&m->arrived, 1);
    while (atomic_load(&m->arrived) % m->parts != 0 && kr_now_ns(&kr_clock_system) < deadline)
        usleep(50);
    if (worker != 0)
        usleep(1000);
}

static void all_threads_work_and_the_caller_is_woken(void **state)
{
    (void)state;
    for (uint32_t threads = 2; threads <= THREADS; threads *= 2) {
        kr_team *team;
        assert_int_equal(kr_team_create(&team, threads, NULL, NULL), KR_OK);
        const uint64_t begin = kr_now_ns(&kr_clock_system);
        for (uint32_t n = 1; n <= 20; n++) {
            meeting m = {.parts = threads};
            kr_team_run(team, meet, &m, threads);
            assert_int_equal(m.arrived, threads);
        }
        assert_true(kr_now_ns(&kr_clock_system) - begin < 10000000000u); /* nobody waited in vain */
        kr_team_destroy(team);
    }
}

static uint64_t time_jobs(uint32_t threads, int jobs)
{
    static _Atomic uint32_t busy[THREADS];
    kr_team *team;

    assert_int_equal(kr_team_create(&team, threads, NULL, NULL), KR_OK);
    const uint64_t begin = kr_now_ns(&kr_clock_system);
    for (int n = 0; n < jobs; n++) {
        job j = {.busy = busy, .work = 5000};
        kr_team_run(team, run_part, &j, THREADS);
    }
    const uint64_t elapsed = kr_now_ns(&kr_clock_system) - begin;
    kr_team_destroy(team);
    return elapsed;
}

/* A team that spins until the scheduler takes the core away pays milliseconds a job: hundreds of
 * times the work itself. Some ten times is allowed, since the machine may be busy. */
static void more_threads_than_cores_do_not_collapse(void **state)
{
    const uint64_t alone = time_jobs(1, 1000), crowd = time_jobs(THREADS, 1000);
    (void)state;

    printf("1000 jobs: 1 thread %.1f ms, %d threads %.1f ms\n", (double)alone * 1e-6, THREADS,
           (double)crowd * 1e-6);
    assert_true(crowd < 12 * alone);
}

static void an_idle_team_sleeps(void **state)
{
    static _Atomic uint32_t busy[THREADS];
    struct timespec before, after;
    job j = {.busy = busy, .work = 1000};
    kr_team *team;
    (void)state;

    /* Two threads: a larger team may find too few cores, and then it never spins at all. */
    assert_int_equal(kr_team_create(&team, 2, NULL, NULL), KR_OK);
    kr_team_run(team, run_part, &j, 8);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(200000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    kr_team_destroy(team);
    const double used = (double)(after.tv_sec - before.tv_sec) +
                        1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    assert_true(used < 0.02);
}

static void limits_are_statuses(void **state)
{
    const uint32_t nowhere[2] = {0, 1000000};
    kr_team *team = (kr_team *)8;
    kr_err err;
    (void)state;

    assert_int_equal(kr_team_create(&team, 0, NULL, &err), KR_E_LIMIT);
    assert_int_equal(kr_team_create(&team, KR_TEAM_THREADS_MAX + 1, NULL, &err), KR_E_LIMIT);
    assert_string_equal(err.text, "257 threads asked for; a team has 1 to 256");
    assert_int_equal(kr_team_create(&team, 2, nowhere, &err), KR_E_ARG);
    assert_string_equal(err.text, "cannot bind a thread to CPU 1000000: not available here");
    assert_ptr_equal(team, (kr_team *)8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_once_in_thousands_of_jobs),
        cmocka_unit_test(all_threads_work_and_the_caller_is_woken),
        cmocka_unit_test(more_threads_than_cores_do_not_collapse),
        cmocka_unit_test(an_idle_team_sleeps),
        cmocka_unit_test(limits_are_statuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
