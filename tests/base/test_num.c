/* Every value of F16, BF16 and E4M3 against a table of the format's values in double: decoding
 * exactly, encoding to the nearest with ties to the even code, on every value, every midpoint,
 * their float neighbours and random bit patterns. */
#include <math.h>

#include "base/num.h"
#include "tests/test.h"

typedef struct {
    const char *name;
    kr_dtype type;
    uint32_t codes; /* non-negative finite codes are 0..codes-1, in order of value */
    int mantissa_bits, bias;
    uint32_t sign;        /* the sign bit */
    uint32_t overflow;    /* code of what rounds past the largest finite value */
    double overflow_from; /* smallest magnitude that rounds there */
} format;

static const format formats[] = {
    {"f16", KR_F16, 0x7c00, 10, 15, 0x8000, 0x7c00, 65520.0},
    {"bf16", KR_BF16, 0x7f80, 7, 127, 0x8000, 0x7f80, 0x1.ffp127},
    {"e4m3", KR_E4M3, 0x7f, 3, 7, 0x80, 0x7e, 464.0}, /* saturates: the overflow code is 448's own */
};

static double value[0x7f80]; /* of the format under test */

static void fill_values(const format *f)
{
    for (uint32_t code = 0; code < f->codes; code++) {
        const int exponent = (int)(code >> f->mantissa_bits);
        const uint32_t mantissa = code & ((1u << f->mantissa_bits) - 1);
        const uint32_t hidden = exponent != 0 ? 1u << f->mantissa_bits : 0;
        const int power = (exponent != 0 ? exponent : 1) - f->bias - f->mantissa_bits;
        value[code] = ldexp((double)(hidden + mantissa), power);
    }
}

static uint32_t encode(const format *f, float x)
{
    uint16_t half = 0;
    uint8_t byte = 0;

    kr_from_f32(f->type, &x, f->type == KR_E4M3 ? (void *)&byte : (void *)&half, 1);
    return f->type == KR_E4M3 ? byte : half;
}

static float decode(const format *f, uint32_t code)
{
    const uint16_t half = (uint16_t)code;
    const uint8_t byte = (uint8_t)code;
    float x;

    kr_to_f32(f->type, f->type == KR_E4M3 ? (const void *)&byte : (const void *)&half, &x, 1);
    return x;
}

/* The nearest code by search in the table: the specification. */
static uint32_t nearest(const format *f, float x)
{
    const double magnitude = fabs((double)x);
    const uint32_t sign = signbit(x) ? f->sign : 0;
    uint32_t low = 0, high = f->codes - 1;

    if (magnitude >= f->overflow_from)
        return sign | f->overflow;
    if (magnitude >= value[high])
        return sign | high;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (value[middle] <= magnitude)
            low = middle;
        else
            high = middle;
    }
    const double below = magnitude - value[low], above = value[high] - magnitude;
    if (below != above)
        return sign | (below < above ? low : high);
    return sign | (low % 2 == 0 ? low : high);
}

static void check_encoding(const format *f, float x)
{
    const float both[2] = {x, -x};

    for (int i = 0; i < 2; i++) {
        const uint32_t got = encode(f, both[i]), want = nearest(f, both[i]);
        if (got != want)
            fail_msg("%s of %a (bits %08x): got %04x, want %04x", f->name, (double)both[i],
                     kr_f32_bits(both[i]), got, want);
    }
}

static void decoding_is_exact(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof formats / sizeof formats[0]; k++) {
        const format *f = &formats[k];
        fill_values(f);
        for (uint32_t code = 0; code < f->codes; code++) {
            const float positive = decode(f, code), negative = decode(f, code | f->sign);
            if ((double)positive != value[code] || signbit(positive))
                fail_msg("%s code %04x decodes to %a", f->name, code, (double)positive);
            if ((double)negative != -value[code] || !signbit(negative))
                fail_msg("%s code %04x decodes to %a", f->name, code | f->sign, (double)negative);
        }
    }
}

static void encoding_rounds_to_nearest_even(void **state)
{
    kr_rng rng = test_rng("num");
    (void)state;

    for (size_t k = 0; k < sizeof formats / sizeof formats[0]; k++) {
        const format *f = &formats[k];
        fill_values(f);
        for (uint32_t code = 0; code + 1 < f->codes; code++) {
            const float here = (float)value[code];
            const float middle = (float)((value[code] + value[code + 1]) /
                                         2); /* exact but for bf16's smallest */
            check_encoding(f, here);
            check_encoding(f, nextafterf(here, INFINITY));
            check_encoding(f, nextafterf(here, 0.0f));
            check_encoding(f, middle);
            check_encoding(f, nextafterf(middle, INFINITY));
            check_encoding(f, nextafterf(middle, 0.0f));
        }
        check_encoding(f, (float)f->overflow_from);
        check_encoding(f, nextafterf((float)f->overflow_from, 0.0f));
        check_encoding(f, 0x1.fffffep127f);
        check_encoding(f, INFINITY);
        for (int i = 0; i < 300000; i++) {
            const float x = kr_f32_from_bits((uint32_t)kr_rng_next(&rng));
            if (!isnan(x))
                check_encoding(f, x);
        }
    }
}

static void infinities_and_nan(void **state)
{
    (void)state;
    assert_true(isinf(decode(&formats[0], 0x7c00)) && decode(&formats[0], 0x7c00) > 0);
    assert_true(isinf(decode(&formats[0], 0xfc00)) && decode(&formats[0], 0xfc00) < 0);
    for (uint32_t payload = 1; payload < 0x400; payload++)
        assert_true(isnan(decode(&formats[0], 0x7c00 | payload)));
    assert_true(isnan(decode(&formats[2], 0x7f)) && isnan(decode(&formats[2], 0xff)));

    static const uint32_t nans[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0xff800001, 0x7fffffff};
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
        const float x = kr_f32_from_bits(nans[i]);
        for (size_t k = 0; k < sizeof formats / sizeof formats[0]; k++) {
            const uint32_t code = encode(&formats[k], x);
            assert_true(isnan(decode(&formats[k], code)));
            assert_int_equal((code & formats[k].sign) != 0, nans[i] >> 31);
        }
    }
}

static void names_round_trip(void **state)
{
    kr_dtype type = KR_I8;
    (void)state;

    for (int i = 0; i < KR_DTYPE_COUNT; i++) {
        assert_true(kr_dtype_parse(kr_dtype_name((kr_dtype)i), &type));
        assert_int_equal(type, i);
    }
    assert_false(kr_dtype_parse("f64", &type));
    assert_int_equal(type, KR_DTYPE_COUNT - 1);
    assert_string_equal(kr_dtype_name((kr_dtype)99), "?");
    assert_int_equal(kr_dtype_bytes((kr_dtype)-1), 0);
}

static void checked_sizes(void **state)
{
    uint64_t out = 5;
    (void)state;

    assert_false(kr_mul_u64(1ull << 32, 1ull << 32, &out));
    assert_false(kr_add_u64(UINT64_MAX, 1, &out));
    assert_int_equal(out, 5);
    assert_true(kr_mul_u64(1ull << 32, (1ull << 32) - 1, &out));
    assert_true(out == 0xffffffff00000000u);
    assert_int_equal(kr_ceil_div(0, 7), 0);
    assert_int_equal(kr_ceil_div(7, 7), 1);
    assert_int_equal(kr_ceil_div(8, 7), 2);
    assert_true(kr_ceil_div(UINT64_MAX, 2) == 1ull << 63);
    assert_int_equal(kr_align_up(65, 64), 128);
    assert_int_equal(kr_align_up(64, 64), 64);
}

static void reals_are_sorted(void **state)
{
    double v[] = {3.5, -1.0, 1e300, 0.0, -1.0};
    const double want[] = {-1.0, -1.0, 0.0, 3.5, 1e300};
    (void)state;

    kr_sort_reals(v, 5);
    assert_memory_equal(v, want, sizeof v);
    kr_sort_reals(v, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_is_exact),  cmocka_unit_test(encoding_rounds_to_nearest_even),
        cmocka_unit_test(infinities_and_nan), cmocka_unit_test(names_round_trip),
        cmocka_unit_test(checked_sizes),      cmocka_unit_test(reals_are_sorted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
