/* Measured tables: times on, between and beyond grid points by hand, holes, what a table is of, files
 * that are refused, and prices of an op kernel by kernel. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/tables.h"

static kr_status load_text(const char *text, kr_device_tables **tables, kr_err *err)
{
    char path[] = "/tmp/karat-tables-XXXXXX";
    const int fd = mkstemp(path);
    kr_status status;

    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    status = kr_device_tables_load(path, tables, err);
    unlink(path);
    return status;
}

#define FILE_OF(list) "{\"karat_tables\":1,\"device\":\"D\",\"source\":\"s\",\"tables\":[" list "]}"
#define MATRIX                                                         \
    "{\"op\":\"matrix\",\"math\":\"e4m3\",\"kernel\":\"k\",\"axes\":[" \
    "{\"of\":\"in\",\"at\":[100,200]},{\"of\":\"rows\",\"at\":[1,2,4]}],\"us\":[10,10,20,20,30,null]}"
#define ATTEND                                                                       \
    "{\"op\":\"attend\",\"method\":\"dense\",\"in\":576,\"kernel\":\"k\",\"axes\":[" \
    "{\"of\":\"context\",\"at\":[10,20]}],\"us\":[1,2]}"

/* One product of the shape, as the table has it. */
static kr_device_time product(const kr_device_tables *t, uint32_t in, uint64_t rows)
{
    const kr_op_kernels kernels = {.matrix = {{in, 7, 1, KR_E4M3}}, .matrices = 1};
    const kr_device_job job = {.op = KR_OP_QKV, .model = "m", .rows = rows, .kernels = &kernels};
    kr_device_time time = {0};

    assert_true(kr_device_tables_add(t, &job, &kernels.matrix[0], &time));
    return time;
}

static void check(kr_device_time time, uint64_t ns, kr_provenance from)
{
    assert_int_equal(time.ns, ns);
    assert_int_equal(time.by_ns[from], ns);
}

static void by_hand(void **state)
{
    kr_device_tables *t = NULL;
    kr_err err;

    (void)state;
    if (load_text(FILE_OF(MATRIX "," ATTEND), &t, &err) != KR_OK)
        fail_msg("%s", err.text);
    assert_true(kr_device_tables_are_of(t, "D") && !kr_device_tables_are_of(t, "E"));
    check(product(t, 100, 1), 10000, KR_MEASURED);
    check(product(t, 200, 2), 30000, KR_MEASURED);
    check(product(t, 100, 3), 15000, KR_INTERPOLATED);
    check(product(t, 150, 2), 20000, KR_INTERPOLATED);
    check(product(t, 150, 1), 15000, KR_INTERPOLATED);
    check(product(t, 200, 4), 50000, KR_EXTRAPOLATED); /* a hole: on the line through 20 and 30 */
    check(product(t, 200, 3), 40000, KR_EXTRAPOLATED);
    check(product(t, 100, 8), 40000, KR_EXTRAPOLATED); /* beyond: 10 to 20 in 2 rows, 4 rows more */
    check(product(t, 50, 1), 10000, KR_EXTRAPOLATED);  /* below: the first */
    check(product(t, 300, 1), 30000, KR_EXTRAPOLATED);
    kr_device_tables_free(t);
}

static void falling_edge(void **state)
{
    kr_device_tables *t = NULL;
    kr_err err;

    (void)state;
    assert_int_equal(load_text(FILE_OF("{\"op\":\"matrix\",\"kernel\":\"k\",\"axes\":[{\"of\":\"rows\","
                                       "\"at\":[1,2,4]}],\"us\":[10,30,20]}"),
                               &t, &err),
                     KR_OK);
    check(product(t, 1, 64), 20000, KR_EXTRAPOLATED); /* never below the edge */
    check(product(t, 1, 3), 25000, KR_INTERPOLATED);
    kr_device_tables_free(t);
}

static void what_it_is_of(void **state)
{
    kr_device_tables *t = NULL;
    kr_op_kernels k = {.unit = {576, 512, 128, KR_BF16}};
    kr_device_job job = {
        .op = KR_OP_ATTEND, .model = "m", .method = "dense", .rows = 2, .context_tokens = 30, .kernels = &k};
    kr_device_time time = {0};
    kr_err err;

    (void)state;
    assert_int_equal(load_text(FILE_OF(ATTEND), &t, &err), KR_OK);
    assert_true(kr_device_tables_add(t, &job, NULL, &time));
    check(time, 1500, KR_INTERPOLATED); /* the mean context of a row is 15 */
    job.method = "dsa";
    assert_false(kr_device_tables_add(t, &job, NULL, &time));
    job.method = "dense";
    k.unit.in = 192;
    assert_false(kr_device_tables_add(t, &job, NULL, &time));
    k.unit.in = 576;
    job.op = KR_OP_SCORE;
    assert_false(kr_device_tables_add(t, &job, NULL, &time));
    assert_false(kr_device_tables_add(t, &job, &k.unit, &time)); /* side by side: no table of products */
    assert_int_equal(time.ns, 1500);
    kr_device_tables_free(t);
}

/* 2 products and 3 small kernels: one product by table, the other by the fitted formula. */
static void kernel_by_kernel(void **state)
{
    const kr_op_kernels k = {
        .matrix = {{100, 7, 1, KR_E4M3}, {1000, 500, 2, KR_BF16}}, .matrices = 2, .small = 3};
    kr_device_model d = {
        .flops_bf16 = 1e12,
        .memory_bytes_per_s = 1e11,
        .flops_efficiency = 1,
        .memory_efficiency = 1,
        .small_kernel_s = 2e-6,
        .matrix = {{.math = KR_BF16, .start_s = 5e-6, .flops = 1e12, .bytes_per_s = 1e12, .rows_max = 10},
                   {.math = KR_E4M3, .start_s = 1e-6, .flops = 1e12, .bytes_per_s = 1e12, .rows_max = 10}},
        .matrices = 2};
    kr_device_job job = {.op = KR_OP_SHARED_EXPERT, .math = KR_BF16, .model = "m", .rows = 2, .kernels = &k};
    kr_device_tables *t = NULL;
    kr_device_time time;
    kr_err err;

    (void)state;
    assert_int_equal(load_text(FILE_OF(MATRIX), &t, &err), KR_OK);
    d.tables = t;
    time = kr_device_op_time(&d, &job);
    /* FLOPs: 2 x 2 x 500,000 x 2 rows = 4 us; bytes: 2 x (1e6 + 2 rows x 3,000) = 2.0 us. */
    assert_int_equal(time.by_ns[KR_MEASURED], 10000);
    assert_int_equal(time.by_ns[KR_INTERPOLATED], 5000 + 4000);
    assert_int_equal(time.by_ns[KR_MODELLED], 6000);
    assert_int_equal(time.ns, 25000);
    d.tables = NULL;
    assert_int_equal(kr_device_op_time(&d, &job).by_ns[KR_INTERPOLATED], 1003 + 9000);
    job.rows = 11;
    assert_int_equal(kr_device_op_time(&d, &job).by_ns[KR_INTERPOLATED], 0);
    d.matrices = 1; /* a type without a formula: the roofline */
    assert_int_equal(kr_device_op_time(&d, &job).by_ns[KR_MODELLED], kr_device_op_time(&d, &job).ns);
    kr_device_tables_free(t);
}

static void refused(const char *text, const char *words)
{
    kr_device_tables *t = NULL;
    kr_err err = {0};

    assert_int_not_equal(load_text(text, &t, &err), KR_OK);
    assert_null(t);
    if (strstr(err.text, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

#define ONE(op, axes, us) FILE_OF("{\"op\":\"" op "\",\"kernel\":\"k\",\"axes\":[" axes "],\"us\":[" us "]}")
#define AT(of, at) "{\"of\":\"" of "\",\"at\":[" at "]}"

static void broken_files(void **state)
{
    (void)state;
    refused("[]", "object");
    refused("{\"karat_tables\":2,\"device\":\"D\",\"source\":\"s\",\"tables\":[]}", "karat_tables");
    refused("{\"karat_tables\":1,\"device\":\"D\",\"source\":\"s\",\"tables\":[]}", "list of 1");
    refused(FILE_OF("3"), "object");
    refused(ONE("fly", AT("rows", "1"), "1"), "fly");
    refused(ONE("matrix", AT("wings", "1"), "1"), "wings");
    refused(ONE("matrix", "", ""), "axes");
    refused(ONE("matrix", AT("rows", ""), ""), "at must");
    refused(ONE("matrix", AT("rows", "2,1"), "1,2"), "above the one before");
    refused(ONE("matrix", AT("rows", "0,1"), "1,2"), "above 0");
    refused(ONE("matrix", AT("rows", "1,2"), "1"), "list of 2");
    refused(ONE("matrix", AT("rows", "1,2"), "1,-1"), "us[1]");
    refused(ONE("matrix", AT("rows", "1,2"), "1,\"a\""), "us[1]");
    refused(ONE("matrix", AT("rows", "1,2"), "null,1"), "begins with null");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),          cmocka_unit_test(falling_edge), cmocka_unit_test(what_it_is_of),
        cmocka_unit_test(kernel_by_kernel), cmocka_unit_test(broken_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
