/* Numbers and tables: what people and programs read. */
#include <math.h>

#include "report/number.h"
#include "report/page.h"
#include "report/table.h"
#include "tests/test.h"

static void numbers_read_well(void **state)
{
    static const struct {
        double value;
        const char *si, *binary, *fixed1;
    } cases[] = {
        {0, "0", "0", "0.0"},
        {12, "12", "12", "12.0"},
        {999.4, "999", "999", "999.4"},
        {999.6, "1k", "1000", "999.6"},
        {1023.6, "1.02k", "1K", "1,023.6"},
        {-1234567, "-1.23M", "-1.18M", "-1,234,567.0"},
        {65536, "65.5k", "64K", "65,536.0"},
        {1.5 * 1024 * 1024, "1.57M", "1.5M", "1,572,864.0"},
        {0.00123, "1.23m", "0", "0.0"},
        {9.996, "10", "10", "10.0"},
        {INFINITY, "inf", "inf", "-"},
    };
    char out[KR_NUMBER_BYTES];
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kr_number_si(cases[i].value, out);
        assert_string_equal(out, cases[i].si);
        kr_number_binary(cases[i].value, out);
        assert_string_equal(out, cases[i].binary);
        kr_number_fixed(cases[i].value, 1, out);
        assert_string_equal(out, cases[i].fixed1);
    }
    kr_number_fixed(-999999999999999.0, 9, out);
    assert_string_equal(out, "-999,999,999,999,999.000000");
    kr_number_si(NAN, out);
    assert_non_null(strstr(out, "nan"));
}

static const kr_column columns[] = {
    {"method", NULL, "method", 0},
    {"time", "us", "time_us", 1},
    {"rows", NULL, "rows", 0},
    {"note", NULL, NULL, 0},
};

static void fill(kr_table *table)
{
    kr_table_init(table, "Times", columns, 4);
    kr_table_text(table, "dense%s", " & co");
    kr_table_real(table, 1234.56);
    kr_table_count(table, 7);
    kr_table_text(table, "a<b");
    kr_table_text(table, "qu\xc3\xa9st");
    kr_table_real(table, NAN);
    kr_table_count(table, UINT64_MAX);
    kr_table_none(table);
}

static void text_is_aligned(void **state)
{
    char text[1024];
    kr_table table;
    kr_err err;
    (void)state;

    fill(&table);
    FILE *out = tmpfile();
    assert_int_equal(kr_table_print(&table, out, &err), KR_OK);
    rewind(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    fclose(out);
    assert_string_equal(text, "Times\n\n"
                              "method      time, us                  rows  note\n"
                              "dense & co   1,234.6                     7  a<b\n"
                              "qu\xc3\xa9st              -  18446744073709551615  \n");
    kr_table_free(&table);
}

static void json_keeps_all_digits(void **state)
{
    kr_table table;
    kr_err err;
    json_t *rows;
    (void)state;

    fill(&table);
    assert_int_equal(kr_table_json(&table, &rows, &err), KR_OK);
    assert_int_equal(json_array_size(rows), 2);
    json_t *first = json_array_get(rows, 0), *second = json_array_get(rows, 1);
    assert_string_equal(json_string_value(json_object_get(first, "method")), "dense & co");
    assert_true(json_real_value(json_object_get(first, "time_us")) == 1234.56);
    assert_int_equal(json_integer_value(json_object_get(first, "rows")), 7);
    assert_int_equal(json_object_size(first), 3); /* a column without a key stays out */
    assert_true(json_is_null(json_object_get(second, "time_us")));
    json_decref(rows);
    kr_table_free(&table);

    kr_table_init(&table, NULL, columns, 1);
    kr_table_text(&table, "\xff");
    assert_int_equal(kr_table_json(&table, &rows, &err), KR_E_MEMORY);
    kr_table_free(&table);
}

/* A full disk shows: /dev/full refuses every write. */
static void a_failed_write_is_reported(void **state)
{
    kr_table table;
    kr_err err;
    (void)state;

    fill(&table);
    FILE *full = fopen("/dev/full", "w");
    assert_non_null(full);
    setvbuf(full, NULL, _IONBF, 0);
    assert_int_equal(kr_table_print(&table, full, &err), KR_E_IO);
    assert_int_equal(kr_page_end(full, &err), KR_E_IO);
    fclose(full);
    kr_table_free(&table);
}

static void pages_are_escaped_and_self_contained(void **state)
{
    static char text[16384];
    kr_table table;
    kr_err err;
    (void)state;

    fill(&table);
    FILE *out = tmpfile();
    kr_page_begin(out, "a & b", "<sub>");
    kr_page_heading(out, "\"x\"");
    kr_page_text(out, "%d < %d", 1, 2);
    kr_page_code(out, "one\ntwo <3>");
    assert_int_equal(kr_page_table(out, &table, &err), KR_OK);
    assert_int_equal(kr_page_end(out, &err), KR_OK);
    rewind(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    fclose(out);
    kr_table_free(&table);

    static const char *const wanted[] = {
        "<h1>a &amp; b</h1>",
        "&lt;sub&gt;",
        "<h2>&quot;x&quot;</h2>",
        "<p>1 &lt; 2</p>",
        "<pre>one\ntwo &lt;3&gt;</pre>",
        "<td>dense &amp; co</td><td class=\"n\">1,234.6</td>",
        "<small>us</small>",
        "</html>\n",
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (strstr(text, wanted[i]) == NULL)
            fail_msg("no %s in:\n%s", wanted[i], text);
    static const char *const outside[] = {"<script", "src=", "href=", "url(", "@import", "http"};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++)
        assert_null(strstr(text, outside[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_read_well),
        cmocka_unit_test(text_is_aligned),
        cmocka_unit_test(json_keeps_all_digits),
        cmocka_unit_test(a_failed_write_is_reported),
        cmocka_unit_test(pages_are_escaped_and_self_contained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
