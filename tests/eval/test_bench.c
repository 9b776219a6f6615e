/* karat bench: percentiles, a tiny run whose figures make sense, its table, JSON and picture. */
#include <math.h>

#include "eval/bench.h"
#include "eval/bench_window.h"
#include "tests/test.h"

static void percentiles(void **state)
{
    (void)state;
    double x[11] = {10, 0, 9, 1, 8, 2, 7, 3, 6, 4, 5};

    assert_true(bench_percentile(x, 11, 0.5) == 5.0);
    assert_true(bench_percentile(x, 11, 0.1) == 1.0);
    assert_true(bench_percentile(x, 11, 0.9) == 9.0);
    assert_true(isnan(bench_percentile(x, 0, 0.5)));
}

static void tiny_run(void **state)
{
    (void)state;
    static kr_bench_result result;
    const kr_bench_options options = {.threads = 1,
                                      .seconds = 0.2,
                                      .pool_bytes = 64 << 20,
                                      .only = "block_score",
                                      .contexts = {8192},
                                      .context_count = 1};
    kr_err err;
    json_t *root;
    char *text;
    size_t size;

    assert_int_equal(kr_bench_run(&options, &result, &err), KR_OK);
    for (uint32_t i = 0; i < result.rows; i++) {
        const kr_bench_row *r = &result.row[i];

        assert_true(r->kept <= r->total && r->total >= 1);
        assert_true(r->bytes == 2.0 * 128 * r->tokens && r->flops == 2.0 * 4 * 128 * r->tokens);
        if (r->kept > 0) /* a machine may be too busy to keep any */
            assert_true(r->share > 0.0 && r->share < 4.0 && r->share_low <= r->share &&
                        r->share <= r->share_high);
    }
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(kr_bench_print(&result, out, &err), KR_OK);
    fclose(out);
#if defined(__x86_64__)
    if (result.rows > 0)
        assert_non_null(strstr(text, "MiniMax-M3"));
    assert_non_null(strstr(text, "Not measured")); /* no CPU has every unit */
#endif
    assert_non_null(strstr(
        text, "karat bench --threads 1 --seconds 0.2 --pool 64M --contexts 8192 --only block_score\n"));
    free(text);
    assert_int_equal(kr_bench_json(&result, &root, &err), KR_OK);
    assert_int_equal(json_array_size(json_object_get(root, "kernels")), result.rows);
    assert_non_null(strstr(json_string_value(json_object_get(root, "command")), "--pool 64M"));
    json_decref(root);
    out = open_memstream(&text, &size);
    assert_int_equal(kr_bench_svg(&result, out, &err), KR_OK);
    fclose(out);
    assert_non_null(strstr(text, "<svg"));
    assert_non_null(strstr(text, "--only block_score"));
    free(text);
}

static void unknown_kernel_is_refused(void **state)
{
    (void)state;
    static kr_bench_result result;
    const kr_bench_options options = {
        .threads = 1, .seconds = 0.01, .pool_bytes = 64 << 20, .only = "no such"};
    kr_err err;

    assert_int_equal(kr_bench_run(&options, &result, &err), KR_E_ARG);
    assert_non_null(strstr(err.text, "no such"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles),
        cmocka_unit_test(tiny_run),
        cmocka_unit_test(unknown_kernel_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
