/* The API's statuses are the internal list's, and an error carries the first cause. */
#include "api/api.h"
#include "tests/test.h"

static void every_status_has_its_name(void **state)
{
    (void)state;
#define SAME(name, code, text)                                                       \
    if (code <= 0) { /* in progress, 1, stays inside */                              \
        assert_string_equal(karat_status_name((karat_status)(code)) + 6, #name + 3); \
        assert_string_equal(karat_status_text((karat_status)(code)), text);          \
    }
    KR_STATUS_LIST(SAME)
    assert_string_equal(karat_status_name((karat_status)77), "KARAT_E_UNKNOWN");
    assert_string_equal(karat_status_text((karat_status)77), "unknown status");
}

static void a_failure_is_copied_and_success_writes_nothing(void **state)
{
    karat_error error = {.status = KARAT_E_IO, .text = "before"};
    kr_err err = {0};
    (void)state;

    assert_int_equal(kr_api_end(KR_OK, &err, &error), KARAT_OK);
    assert_string_equal(error.text, "before");
    assert_int_equal(kr_api_end(kr_fail(&err, KR_E_FULL, "%d of %d", 3, 3), &err, &error), KARAT_E_FULL);
    assert_string_equal(error.text, "3 of 3");
    assert_int_equal(error.status, KARAT_E_FULL);
    assert_int_equal(kr_api_end(KR_E_FULL, &err, NULL), KARAT_E_FULL);
}

static void structs_of_other_versions_are_read(void **state)
{
    struct first {
        uint32_t struct_size, a;
    } old = {sizeof old, 1}, back;
    struct grown {
        uint32_t struct_size, a, b;
    } now = {sizeof now, 1, 0}, own;
    kr_err err = {0};
    (void)state;

    assert_int_equal(kr_api_struct(&old, &own, sizeof own, sizeof old, "options", &err), KR_OK);
    assert_int_equal(own.a, 1);
    assert_int_equal(own.b, 0);
    assert_int_equal(kr_api_struct(&now, &back, sizeof back, sizeof back, "options", &err), KR_OK);
    now.b = 7;
    assert_int_equal(kr_api_struct(&now, &back, sizeof back, sizeof back, "options", &err), KR_E_VERSION);
    assert_int_equal(kr_api_struct(NULL, &own, sizeof own, sizeof old, "options", &err), KR_E_ARG);
    assert_string_equal(err.text, "options is null");
    for (uint32_t wrong = 0; wrong < sizeof old; wrong++) {
        old.struct_size = wrong;
        assert_int_equal(kr_api_struct(&old, &own, sizeof own, sizeof old, "options", &err), KR_E_ARG);
    }
    old.struct_size = UINT32_MAX;
    assert_int_equal(kr_api_struct(&old, &own, sizeof own, sizeof old, "options", &err), KR_E_ARG);
}

static void versions_are_those_of_the_header(void **state)
{
    (void)state;
    assert_int_equal(karat_abi(), KARAT_ABI);
    assert_string_equal(karat_version(), KR_VERSION);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_its_name),
        cmocka_unit_test(a_failure_is_copied_and_success_writes_nothing),
        cmocka_unit_test(structs_of_other_versions_are_read),
        cmocka_unit_test(versions_are_those_of_the_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
