/* The small nouns of base: statuses and their lines, arenas and the counted heap, hashes, the
 * clock, log lines, checks, nearest names and span rings. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/span.h"
#include "base/status.h"
#include "base/text.h"
#include "tests/test.h"

static void statuses_have_names_and_lines_are_clean(void **state)
{
    kr_err err;
    char wide[400];
    (void)state;

    assert_string_equal(kr_status_name(KR_E_FULL), "KR_E_FULL");
    assert_string_equal(kr_status_text(KR_E_FULL), "pool full");
    assert_string_equal(kr_status_name((kr_status)12345), "KR_E_UNKNOWN");
    assert_int_equal(kr_fail(NULL, KR_E_IO, "%d", 1), KR_E_IO);

    assert_int_equal(kr_fail(&err, KR_E_FORMAT, "bad\nline\x1b[2J %s", "\xc3\xa9"), KR_E_FORMAT);
    assert_int_equal(err.status, KR_E_FORMAT);
    assert_string_equal(err.text, "bad?line?[2J \xc3\xa9");
    kr_fail(&err, KR_E_IO, "around: %s", err.text); /* the old text may be an argument of the new */
    assert_string_equal(err.text, "around: bad?line?[2J \xc3\xa9");

    memset(wide, 'x', sizeof wide - 1);
    wide[sizeof wide - 1] = '\0';
    kr_fail(&err, KR_E_ARG, "%s", wide);
    assert_int_equal(strlen(err.text), KR_ERR_TEXT_BYTES - 1);
}

static void arenas_hand_out_zeroed_aligned_memory_once(void **state)
{
    kr_arena arena;
    kr_err err;
    (void)state;

    assert_int_equal(kr_arena_init(&arena, 1000, &err), KR_OK);
    uint8_t *a = kr_arena_take(&arena, 1), *b = kr_arena_take(&arena, 65);
    assert_non_null(a);
    assert_ptr_equal(b, a + 64);
    assert_int_equal((uintptr_t)a % 64, 0);
    assert_int_equal(arena.used, 192);
    for (int i = 0; i < 65; i++)
        assert_int_equal(b[i], 0);
    assert_null(kr_arena_take(&arena, 809));
    assert_null(kr_arena_take(&arena, SIZE_MAX));
    assert_int_equal(arena.used, 192);
    assert_non_null(kr_arena_take(&arena, 808));
    assert_int_equal(arena.used, 1000);
    assert_null(kr_arena_take(&arena, 1));
    kr_arena_free(&arena);
    assert_null(arena.base);

    assert_int_equal(kr_arena_init(&arena, 0, &err), KR_OK);
    assert_null(kr_arena_take(&arena, 0));
    kr_arena_free(&arena);
    assert_int_equal(kr_arena_init(&arena, SIZE_MAX / 2, &err), KR_E_MEMORY);
    assert_string_equal(err.text, "cannot reserve 9223372036854775807 bytes of memory");
}

static void heap_calls_are_counted(void **state)
{
    const uint64_t before = kr_alloc_calls();
    (void)state;

    uint8_t *p = kr_alloc(100);
    for (int i = 0; i < 100; i++)
        assert_int_equal(p[i], 0);
    p[99] = 7;
    p = kr_realloc(p, 200);
    assert_int_equal(p[99], 7);
    kr_free(p);
    kr_free(NULL);
    assert_int_equal(kr_alloc_calls() - before, 2);
}

/* The first two values are the published digests of the empty string. */
static void hashes_are_xxh3(void **state)
{
    static const char tokens[300] = "tokens of a page";
    struct {
        kr_hash128 previous;
        char data[sizeof tokens];
    } joined = {.previous = {1, 2}};
    (void)state;

    assert_true(kr_hash64("", 0, 0) == 0x2d06800538d394c2u);
    assert_true(kr_hash64(tokens, sizeof tokens, 9) == XXH3_64bits_withSeed(tokens, sizeof tokens, 9));

    memcpy(joined.data, tokens, sizeof tokens);
    const XXH128_hash_t want = XXH3_128bits(&joined, sizeof(kr_hash128) + sizeof tokens);
    const kr_hash128 got = kr_hash128_link(joined.previous, tokens, sizeof tokens);
    assert_true(got.low == want.low64 && got.high == want.high64);

    assert_true(kr_digest_add(kr_digest_add(0, 1), 2) != kr_digest_add(kr_digest_add(0, 2), 1));
}

static void the_clock_moves_forward_and_deadlines_saturate(void **state)
{
    const uint64_t first = kr_now_ns(&kr_clock_system);
    (void)state;

    usleep(1000);
    assert_true(kr_now_ns(&kr_clock_system) >= first + 1000000);
    assert_true(kr_deadline_after(&kr_clock_system, UINT64_MAX) == UINT64_MAX);
    assert_true(kr_deadline_after(&kr_clock_system, 5) >= first + 5);
}

typedef void (*child_fn)(void);

/* Runs fn in a child, returns its wait status and what it wrote to standard error. */
static int run_child(child_fn fn, char *output, size_t bytes)
{
    int ends[2], status;

    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL); /* cmocka catches it */
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        fn();
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t n; used < bytes - 1 && (n = read(ends[0], output + used, bytes - 1 - used)) > 0;)
        used += (size_t)n;
    output[used] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void log_three_lines(void)
{
    char wide[3000];

    memset(wide, 'w', sizeof wide - 1);
    wide[sizeof wide - 1] = '\0';
    kr_log(KR_LOG_ERROR, "not printed: nobody has asked for lines");
    kr_log_set(KR_LOG_INFO);
    kr_log(KR_LOG_INFO, "loading %d", 3);
    kr_log(KR_LOG_DEBUG, "not printed");
    kr_log_set(KR_LOG_ERROR);
    kr_log(KR_LOG_WARN, "not printed");
    kr_log(KR_LOG_ERROR, "%s", wide);
}

static void break_a_check(void) { KR_CHECK(1 + 1 == 3); }

static void log_lines_and_checks_go_to_standard_error(void **state)
{
    static char output[8192];
    (void)state;

    assert_int_equal(run_child(log_three_lines, output, sizeof output), 0);
    assert_true(strncmp(output, "karat: loading 3\nkarat: error: www", 34) == 0);
    assert_int_equal(strlen(output), 17 + 1024 - 1);
    assert_int_equal(output[strlen(output) - 1], '\n');
    assert_null(strstr(output, "not printed"));

    const int status = run_child(break_a_check, output, sizeof output);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(output, "test_small.c:"));
    assert_non_null(strstr(output, "1 + 1 == 3"));
}

static void nearest_names(void **state)
{
    static const char *const names[] = {"threads", "thread", "memory-node", NULL};
    (void)state;

    assert_string_equal(kr_text_nearest("threads", names), "threads");
    assert_string_equal(kr_text_nearest("thraed", names), "thread");
    assert_string_equal(kr_text_nearest("memorynode", names), "memory-node");
    assert_null(kr_text_nearest("zzz", names));
    assert_null(kr_text_nearest("zzz", names + 3));
    assert_null(
        kr_text_nearest("a-word-much-longer-than-any-name-of-an-option-or-a-key-could-sensibly-be", names));
}

static void span_rings_keep_the_newest(void **state)
{
    kr_span ring[4];
    kr_spans spans = {.ring = ring, .capacity = 4};
    (void)state;

    for (uint32_t i = 0; i < 6; i++)
        kr_span_add(&spans, (kr_span){.step = i});
    assert_int_equal(spans.written, 6);
    assert_int_equal(ring[5 & 3].step, 5);
    assert_int_equal(ring[2].step, 2);
    spans = (kr_spans){0};
    kr_span_add(&spans, (kr_span){.step = 1});
    assert_int_equal(spans.written, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statuses_have_names_and_lines_are_clean),
        cmocka_unit_test(arenas_hand_out_zeroed_aligned_memory_once),
        cmocka_unit_test(heap_calls_are_counted),
        cmocka_unit_test(hashes_are_xxh3),
        cmocka_unit_test(the_clock_moves_forward_and_deadlines_saturate),
        cmocka_unit_test(log_lines_and_checks_go_to_standard_error),
        cmocka_unit_test(nearest_names),
        cmocka_unit_test(span_rings_keep_the_newest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
