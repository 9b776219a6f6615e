/* UTF-8: every scalar value round-trips; everything else is refused at the right byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "files/utf8.h"

static void every_scalar_round_trips(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x110000; code++) {
        char text[4];
        uint32_t bytes;
        const uint32_t n = kr_utf8_encode(code, text);
        if (code >= 0xd800 && code < 0xe000) { /* surrogates have no encoding */
            assert_int_equal(kr_utf8_invalid(text, n), 0);
            continue;
        }
        assert_int_equal(kr_utf8_invalid(text, n), n);
        assert_int_equal(kr_utf8_decode(text, &bytes), code);
        assert_int_equal(bytes, n);
        if (n > 1)
            assert_int_equal(kr_utf8_invalid(text, n - 1), 0); /* cut short */
    }
}

static void bad_bytes_are_named(void **state)
{
    static const struct {
        const char *text;
        size_t bytes, bad;
    } cases[] = {
        {"abc\xff", 4, 3},
        {"\xc0\x80", 2, 0}, /* overlong NUL */
        {"\xe0\x9f\xbf", 3, 0},
        {"\xf0\x8f\xbf\xbf", 4, 0}, /* overlong */
        {"\xed\xa0\x80", 3, 0},
        {"\xf4\x90\x80\x80", 4, 0}, /* surrogate, past U+10FFFF */
        {"\xf5\x80\x80\x80", 4, 0},
        {"ok\xe2\x82", 4, 2}, /* cut at the end */
        {"\x80", 1, 0},
        {"\xe2\x28\xa1", 3, 0}, /* continuation missing */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(kr_utf8_invalid(cases[i].text, cases[i].bytes), cases[i].bad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scalar_round_trips),
        cmocka_unit_test(bad_bytes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
