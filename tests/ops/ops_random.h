/* Random and adversarial rows shared by the tests of ops. */
#ifndef TESTS_OPS_RANDOM_H
#define TESTS_OPS_RANDOM_H

#include <inttypes.h>
#include <math.h>

#include "base/num.h"
#include "tests/test.h"

static inline float test_normal(kr_rng *rng) { return (float)kr_rng_normal(rng); }

/* n elements of type from standard normals times size. */
static inline void test_fill(kr_rng *rng, kr_dtype type, void *out, size_t n, float size)
{
    for (size_t i = 0; i < n; i++) {
        const float x = test_normal(rng) * size;
        kr_from_f32(type, &x, (uint8_t *)out + i * kr_dtype_bytes(type), 1);
    }
}

static inline void *test_alloc(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    assert_non_null(p);
    memset(p, 0xa5, (bytes + 63) / 64 * 64 + 64);
    return p;
}

/* Equal bits, or both NaN. */
static inline void assert_same_floats(const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (kr_f32_bits(got[i]) != kr_f32_bits(want[i]) && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s: element %zu is %.9g (%08x), expected %.9g (%08x)", what, i, (double)got[i],
                     kr_f32_bits(got[i]), (double)want[i], kr_f32_bits(want[i]));
}

#endif
