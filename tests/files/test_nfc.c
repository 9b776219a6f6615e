/* Canonical composition gives what Python's unicodedata gives (tools/make_nfc_fixture.py), changes
 * nothing twice, and leaves every Hangul syllable and its parts the same. */
#include "base/arena.h"
#include "files/tokenizer_impl.h"
#include "files/utf8.h"
#include "tests/test.h"

enum { TEXT = 4096 };

/* Code points in hex up to `end` as UTF-8. */
static size_t encode(const char *hex, const char *end, char *out)
{
    size_t bytes = 0;

    for (char *next; hex < end; hex = next) {
        const uint32_t code = (uint32_t)strtoul(hex, &next, 16);
        if (next == hex)
            break;
        bytes += kr_utf8_encode(code, out + bytes);
    }
    return bytes;
}

static void check(const char *text, size_t bytes, const char *want, size_t want_bytes, const char *line)
{
    char *got;
    size_t got_bytes;

    assert_int_equal(kr_nfc(text, bytes, &got, &got_bytes, NULL), KR_OK);
    const char *result = got ? got : text; /* NULL: nothing to change */
    if (got_bytes != want_bytes || memcmp(result, want, want_bytes) != 0)
        fail_msg("%s", line);
    kr_free(got);
}

static void fixture(void **state)
{
    static char line[TEXT], text[TEXT], want[TEXT];
    FILE *f = fopen("tests/fixtures/nfc.txt", "r");
    unsigned lines = 0;

    (void)state;
    assert_non_null(f);
    for (; fgets(line, sizeof line, f); lines++) {
        const char *equals = strchr(line, '=');
        assert_non_null(equals);
        const size_t bytes = encode(line, equals - 1, text);
        const size_t want_bytes = encode(equals + 1, line + strlen(line), want);
        check(text, bytes, want, want_bytes, line);
        check(want, want_bytes, want, want_bytes, line);
    }
    fclose(f);
    assert_true(lines > 3000);
}

static void hangul(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < 11172; s++) {
        char whole[8], parts[16];
        const size_t n = kr_utf8_encode(0xac00 + s, whole);
        size_t m = kr_utf8_encode(0x1100 + s / 588, parts);
        m += kr_utf8_encode(0x1161 + s % 588 / 28, parts + m);
        if (s % 28 != 0)
            m += kr_utf8_encode(0x11a7 + s % 28, parts + m);
        check(whole, n, whole, n, "a syllable");
        check(parts, m, whole, n, "its parts");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fixture), cmocka_unit_test(hangul)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
