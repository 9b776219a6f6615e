/* What every test file includes: cmocka with the headers it needs, and seeded random numbers. */
#ifndef KR_TESTS_TEST_H
#define KR_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

/* Random numbers of one test: the seed is printed, and KARAT_TEST_SEED repeats a failed run. */
static inline kr_rng test_rng(const char *test)
{
    const char *text = getenv("KARAT_TEST_SEED");
    const uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : 20261130;

    printf("%s: seed %llu\n", test, (unsigned long long)seed);
    return kr_rng_make(seed, 0);
}

#endif
