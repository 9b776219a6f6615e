/* JSON files and objects: what is accepted, and that everything else is refused with a line that
 * names the file, the key and the expectation, leaving the output alone. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "tests/test.h"

static char path[] = "/tmp/karat-json-XXXXXX";

static void write_file(const char *text, size_t bytes)
{
    const int fd = open(path, O_WRONLY | O_TRUNC);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, bytes), bytes);
    close(fd);
}

static kr_status load(const char *text, json_t **root, kr_err *err)
{
    write_file(text, strlen(text));
    return kr_json_load(path, root, err);
}

static void refused(const char *text, kr_status want, const char *says)
{
    json_t *root = NULL;
    kr_err err = {0};

    assert_int_equal(load(text, &root, &err), want);
    assert_null(root);
    if (strstr(err.text, path) != err.text || strstr(err.text, says) == NULL)
        fail_msg("no \"%s\" in \"%s\"", says, err.text);
}

static void bad_files_are_refused(void **state)
{
    (void)state;
    refused("", KR_E_FORMAT, ":1:");
    refused("{\"a\": 1", KR_E_FORMAT, ":1:7:");
    refused("{\"a\": 1}x", KR_E_FORMAT, "end of file expected");
    refused("{\"a\": 1, \"a\": 2}", KR_E_FORMAT, "duplicate object key");
    refused("{\"a\": {\"b\": 1, \"c\": 2, \"b\": 3}}", KR_E_FORMAT, "duplicate object key");
    refused("{\"a\": 9223372036854775808}", KR_E_FORMAT, "too big integer");
    refused("{\"a\": 18446744073709551615}", KR_E_FORMAT, "too big integer");
    refused("{\"a\": 1e999}", KR_E_FORMAT, "real number overflow");
    refused("{\"a\": NaN}", KR_E_FORMAT, ":1:");
    refused("{\"a\": 01}", KR_E_FORMAT, ":1:");
    refused("{'a': 1}", KR_E_FORMAT, ":1:");
    refused("{\"a\": \"\xff\"}", KR_E_FORMAT, "unable to decode byte 0xff");
    refused("{\"a\\u0000b\": 1}", KR_E_FORMAT, ":1:");

    json_t *root = NULL;
    kr_err err;
    assert_int_equal(kr_json_load("/nowhere/x.json", &root, &err), KR_E_NOT_FOUND);
    assert_string_equal(err.text, "/nowhere/x.json: cannot open: No such file or directory");
    assert_int_equal(kr_json_load("/tmp", &root, &err), KR_E_IO);
    assert_string_equal(err.text, "/tmp: not a regular file");
    assert_null(root);
}

static void depth_and_size_are_bounded(void **state)
{
    char text[2 * KR_JSON_DEPTH_MAX + 3];
    json_t *root = NULL;
    kr_err err;
    (void)state;

    memset(text, '[', KR_JSON_DEPTH_MAX);
    memset(text + KR_JSON_DEPTH_MAX, ']', KR_JSON_DEPTH_MAX);
    text[2 * KR_JSON_DEPTH_MAX] = '\0';
    assert_int_equal(load(text, &root, &err), KR_OK);
    json_decref(root);
    memset(text, '[', KR_JSON_DEPTH_MAX + 1);
    memset(text + KR_JSON_DEPTH_MAX + 1, ']', KR_JSON_DEPTH_MAX + 1);
    text[2 * KR_JSON_DEPTH_MAX + 2] = '\0';
    refused(text, KR_E_LIMIT, "nested 65 levels deep; the limit is 64");
    assert_int_equal(load("{\"[[\\\"[\": \"{{{\"}", &root, &err), KR_OK); /* brackets in strings are text */
    json_decref(root);

    assert_int_equal(truncate(path, (off_t)KR_JSON_BYTES_MAX + 1), 0);
    assert_int_equal(kr_json_load(path, &root, &err), KR_E_LIMIT);
}

static void getters_check_kind_and_range(void **state)
{
    json_t *root = NULL;
    kr_err err;
    uint64_t u = 77;
    uint32_t u32 = 77;
    double real = 7;
    bool flag = false;
    const char *text = "before";
    (void)state;

    assert_int_equal(
        load("{\"n\": 9223372036854775807, \"minus\": -1, \"r\": 0.5, \"s\": \"x\", \"t\": true}", &root,
             &err),
        KR_OK);
    const kr_json j = {root, "h200.json: memory"};

    assert_int_equal(kr_json_u64(j, "n", true, 0, UINT64_MAX, &u, &err), KR_OK);
    assert_true(u == INT64_MAX);
    assert_int_equal(kr_json_u64(j, "n", true, INT64_MAX, INT64_MAX, &u, &err), KR_OK); /* both ends count */
    assert_int_equal(kr_json_u64(j, "n", true, 0, INT64_MAX - 1, &u, &err), KR_E_FORMAT);
    assert_int_equal(kr_json_u64(j, "n", true, 0, 5, &u, &err), KR_E_FORMAT);
    assert_string_equal(err.text, "h200.json: memory: \"n\" is 9223372036854775807; must be 0 to 5");
    assert_int_equal(kr_json_u64(j, "minus", true, 0, UINT64_MAX, &u, &err), KR_E_FORMAT);
    assert_int_equal(kr_json_u64(j, "r", true, 0, 5, &u, &err), KR_E_FORMAT);
    assert_string_equal(err.text, "h200.json: memory: \"r\" must be an integer, not a real number");
    assert_int_equal(kr_json_u64(j, "absent", true, 0, 5, &u, &err), KR_E_FORMAT);
    assert_string_equal(err.text, "h200.json: memory: \"absent\" is missing");
    assert_int_equal(kr_json_u64(j, "absent", false, 0, 5, &u, &err), KR_OK);
    assert_true(u == INT64_MAX);
    assert_int_equal(kr_json_u32(j, "n", true, 0, UINT32_MAX, &u32, &err), KR_E_FORMAT);
    assert_int_equal(kr_json_u32(j, "absent", false, 0, 5, &u32, &err), KR_OK);
    assert_int_equal(u32, 77);
    assert_int_equal(kr_json_real(j, "r", true, 0, 1, &real, &err), KR_OK);
    assert_true(real == 0.5);
    assert_int_equal(kr_json_real(j, "minus", true, 0, 1, &real, &err), KR_E_FORMAT);
    assert_string_equal(err.text, "h200.json: memory: \"minus\" is -1; must be 0 to 1");
    assert_int_equal(kr_json_real(j, "s", true, 0, 1, &real, &err), KR_E_FORMAT);
    assert_int_equal(kr_json_bool(j, "n", true, &flag, &err), KR_E_FORMAT);
    assert_int_equal(kr_json_bool(j, "t", true, &flag, &err), KR_OK);
    assert_true(flag);
    assert_int_equal(kr_json_string(j, "t", true, &text, &err), KR_E_FORMAT);
    assert_string_equal(err.text, "h200.json: memory: \"t\" must be a string, not true");
    assert_string_equal(text, "before");
    assert_int_equal(kr_json_string(j, "s", true, &text, &err), KR_OK);
    assert_string_equal(text, "x");
    json_decref(root);
}

static void unknown_keys_name_the_nearest(void **state)
{
    static const char *const keys[] = {"layers", "heads", "head_dim", NULL};
    json_t *root = NULL;
    kr_err err;
    (void)state;

    assert_int_equal(load("{\"layers\": 1, \"heads\": 2}", &root, &err), KR_OK);
    assert_int_equal(kr_json_only((kr_json){root, "m"}, keys, &err), KR_OK);
    json_decref(root);
    assert_int_equal(load("{\"layers\": 1, \"head\": 2}", &root, &err), KR_OK);
    assert_int_equal(kr_json_only((kr_json){root, "m"}, keys, &err), KR_E_FORMAT);
    assert_string_equal(err.text, "m: unknown key \"head\" (nearest: \"heads\")");
    json_decref(root);
    assert_int_equal(load("[1]", &root, &err), KR_OK);
    assert_int_equal(kr_json_only((kr_json){root, "m"}, keys, &err), KR_E_FORMAT);
    assert_string_equal(err.text, "m: must be an object");
    json_decref(root);
}

static int make_file(void **state)
{
    (void)state;
    const int fd = mkstemp(path);
    return fd < 0 ? 1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(depth_and_size_are_bounded),
        cmocka_unit_test(getters_check_kind_and_range),
        cmocka_unit_test(unknown_keys_name_the_nearest),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
