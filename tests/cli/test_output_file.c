/* A command's file has its name when it is whole; a failure leaves what was there. */
#include "cli/output_file.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/test.h"

static char folder[] = "/tmp/karat-output-XXXXXX", path[64], part[80];

static void expect(const char *text)
{
    char got[64] = "";
    FILE *f = fopen(path, "r");

    assert_non_null(f);
    (void)fread(got, 1, sizeof got - 1, f);
    fclose(f);
    assert_string_equal(got, text);
    assert_int_not_equal(access(part, F_OK), 0);
}

static void it_appears_when_it_is_whole(void **state)
{
    (void)state;
    kr_output_file out;
    kr_err err;

    assert_int_equal(kr_output_open(&out, path, &err), KR_OK);
    fputs("one", out.file);
    fflush(out.file);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(kr_output_close(&out, KR_OK, &err), KR_OK);
    expect("one");
}

static void a_failure_leaves_what_was_there(void **state)
{
    (void)state;
    kr_output_file out;
    kr_err err;

    assert_int_equal(kr_output_open(&out, path, &err), KR_OK);
    fputs("two", out.file);
    kr_fail(&err, KR_E_SHAPE, "its own cause");
    assert_int_equal(kr_output_close(&out, KR_E_SHAPE, &err), KR_E_SHAPE);
    assert_string_equal(err.text, "its own cause");
    expect("one");
    assert_int_equal(unlink(path), 0);
}

static void what_cannot_be_written_is_named(void **state)
{
    (void)state;
    char name[5000];
    kr_output_file out;
    kr_err err;

    assert_int_equal(kr_output_open(&out, "/dev/full", &err), KR_OK);
    fputs("three", out.file);
    assert_int_equal(kr_output_close(&out, KR_OK, &err), KR_E_IO);
    assert_string_equal(err.text, "/dev/full: No space left on device");
    assert_int_equal(kr_output_open(&out, "/dev/null", &err), KR_OK);
    fputs("four", out.file);
    assert_int_equal(kr_output_close(&out, KR_OK, &err), KR_OK);
    struct stat there;
    assert_int_equal(lstat("/dev/null", &there), 0);
    assert_true(S_ISCHR(there.st_mode)); /* not replaced by a file */
    assert_int_equal(kr_output_open(&out, folder, &err), KR_E_IO);
    memset(name, 'a', sizeof name - 1), name[sizeof name - 1] = '\0';
    assert_int_equal(kr_output_open(&out, name, &err), KR_E_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_appears_when_it_is_whole),
        cmocka_unit_test(a_failure_leaves_what_was_there),
        cmocka_unit_test(what_cannot_be_written_is_named),
    };

    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(part, sizeof part, "%s.part", path);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
