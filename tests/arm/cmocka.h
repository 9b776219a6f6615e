/* The part of cmocka that the tests of ops use, for cross-built test programs: a failed assertion ends the
 * program with its place. */
#ifndef TESTS_ARM_CMOCKA_H
#define TESTS_ARM_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(fn) \
    {                        \
#fn, fn              \
    }
#define print_message printf
#define fail_msg(...) (printf("%s:%d: ", __FILE__, __LINE__), printf(__VA_ARGS__), puts(""), exit(1))
#define assert_true(c) ((c) ? (void)0 : (void)fail_msg("%s", #c))
#define assert_false(c) assert_true(!(c))
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_int_equal(a, b) assert_true((long long)(a) == (long long)(b))
#define assert_memory_equal(a, b, n) assert_true(memcmp(a, b, n) == 0)
#define assert_string_equal(a, b) assert_true(strcmp(a, b) == 0)
#define cmocka_run_group_tests(tests, setup, teardown) run_tests(tests, sizeof tests / sizeof *tests)

static inline int run_tests(const struct CMUnitTest *tests, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        tests[i].run(NULL);
        printf("ok %s\n", tests[i].name);
    }
    return 0;
}

#endif
