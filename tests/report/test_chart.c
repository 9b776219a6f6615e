/* Charts: values lie where their axes say, axes end at round numbers, what cannot be drawn is left
 * out, text is escaped, every element is closed, and the same data give the same bytes. */
#include <math.h>

#include "report/svg.h"
#include "tests/test.h"

static char text[1 << 17];

/* Reads back what a chart wrote; checks that it is well-formed XML as far as balance goes. */
static void read_back(FILE *out)
{
    char open[64][16];
    int depth = 0;

    rewind(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    fclose(out);
    for (const char *at = strchr(text, '<'); at != NULL; at = strchr(at + 1, '<')) {
        const char *end = strchr(at, '>');
        char name[16] = "";
        assert_non_null(end);
        sscanf(at + (at[1] == '/' ? 2 : 1), "%15[a-z]", name);
        if (at[1] == '/') {
            assert_true(depth > 0);
            assert_string_equal(open[--depth], name);
        } else if (end[-1] != '/') {
            assert_true(depth < 64);
            memcpy(open[depth++], name, sizeof name);
        }
    }
    assert_int_equal(depth, 0);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
}

static unsigned count_of(const char *what)
{
    unsigned n = 0;

    for (const char *at = strstr(text, what); at != NULL; at = strstr(at + 1, what))
        n++;
    return n;
}

static void fit(kr_svg_axis *axis, kr_scale scale, double low, double high)
{
    const kr_axis wish = {.title = "", .scale = scale};

    kr_svg_fit(axis, &wish, low, high);
    axis->pixel_low = 0;
    axis->pixel_high = 100;
}

static void expect_ticks(const kr_svg_axis *axis, const char *list)
{
    char got[512] = "";
    size_t used = 0;

    for (uint32_t i = 0; i < axis->ticks; i++)
        used += (size_t)snprintf(got + used, sizeof got - used, "%s%s", i > 0 ? " " : "", axis->label[i]);
    assert_string_equal(got, list);
}

static void linear_axes_end_at_round_numbers(void **state)
{
    kr_svg_axis axis;
    (void)state;

    fit(&axis, KR_SCALE_LINEAR, 3, 57);
    expect_ticks(&axis, "0 10 20 30 40 50 60");
    assert_true(kr_svg_at(&axis, 30) == 50);
    fit(&axis, KR_SCALE_LINEAR, 3.4, 7);
    expect_ticks(&axis, "0 2 4 6 8");
    fit(&axis, KR_SCALE_LINEAR, 12.1, 12.9); /* starting at 0 would flatten it */
    expect_ticks(&axis, "12.0 12.2 12.4 12.6 12.8 13.0");
    fit(&axis, KR_SCALE_LINEAR, -3, 4);
    expect_ticks(&axis, "-4 -2 0 2 4");
    fit(&axis, KR_SCALE_LINEAR, 0, 61000);
    expect_ticks(&axis, "0 20k 40k 60k 80k");
    fit(&axis, KR_SCALE_LINEAR, 5, 5);
    assert_true(axis.low < 5 && axis.high > 5 && axis.ticks >= 2);
    fit(&axis, KR_SCALE_LINEAR, INFINITY, -INFINITY); /* no data */
    assert_true(axis.low < axis.high && axis.ticks >= 2);
}

static void logarithmic_axes_have_their_ticks(void **state)
{
    kr_svg_axis axis;
    (void)state;

    fit(&axis, KR_SCALE_LOG2, 1024, 8192);
    expect_ticks(&axis, "1K 2K 4K 8K");
    assert_true(fabs(kr_svg_at(&axis, 2048) - 100.0 / 3) < 1e-9);
    fit(&axis, KR_SCALE_LOG10, 0.5, 3e6);
    expect_ticks(&axis, "100m 1 10 100 1k 10k 100k 1M 10M");
    fit(&axis, KR_SCALE_LOG10, 13, 420);
    expect_ticks(&axis, "10 20 50 100 200 500");
    fit(&axis, KR_SCALE_LOG10, 10, 10);
    assert_true(axis.low <= 10 && axis.high >= 10 && axis.low < axis.high);
    fit(&axis, KR_SCALE_LOG10, 30, 30);
    assert_true(axis.low <= 30 && axis.high >= 30 && axis.low < axis.high);
    assert_false(kr_svg_has(&axis, 0));
    assert_false(kr_svg_has(&axis, -1));
    assert_false(kr_svg_has(&axis, NAN));

    const kr_axis wish = {.title = "", .scale = KR_SCALE_LOG10, .min = 3, .max = 300};
    kr_svg_fit(&axis, &wish, 1, 1000);
    assert_true(axis.low == 3 && axis.high == 300);
    expect_ticks(&axis, "5 10 20 50 100 200");
}

static void many_ranges_stay_within_the_tick_table(void **state)
{
    kr_rng rng = test_rng("chart");
    kr_svg_axis axis;
    (void)state;

    for (int i = 0; i < 20000; i++) {
        const kr_scale scale = (kr_scale)kr_rng_below(&rng, 3);
        const double a = pow(10, 60 * kr_rng_unit(&rng) - 30), b = a * (1 + 1e4 * kr_rng_unit(&rng));
        fit(&axis, scale, a, b);
        assert_true(axis.ticks >= 2 && axis.ticks < KR_TICKS_MAX);
        assert_true(axis.low <= a * (1 + 1e-9) && axis.high >= b * (1 - 1e-9));
        for (uint32_t t = 1; t < axis.ticks; t++)
            assert_true(axis.tick[t] > axis.tick[t - 1]);
    }
}

static void a_line_passes_through_its_points(void **state)
{
    const double x[] = {0, 1, 2, 3, 4}, y[] = {0, 10, NAN, 30, 40};
    const char *const labels[] = {"a&b", NULL, NULL, NULL, NULL};
    const kr_series series = {.name = "<s>",
                              .mark = KR_MARK_LINE_POINTS,
                              .count = 5,
                              .x = x,
                              .y = y,
                              .labels = labels,
                              .low = y,
                              .high = y};
    const kr_xy_chart chart = {
        .title = "T", .x = {.title = "x"}, .y = {.title = "y"}, .series = &series, .series_count = 1};
    static char first[sizeof text];
    kr_err err;
    (void)state;

    FILE *out = tmpfile();
    assert_int_equal(kr_chart_xy(&chart, out, &err), KR_OK);
    read_back(out);
    assert_int_equal(count_of("<circle"), 4 + 1); /* the gap is left out; one in the legend */
    assert_non_null(strstr(text, "&lt;s&gt;: a&amp;b: 0, 0"));
    assert_null(strstr(text, "<s>"));
    /* Two strokes: the line breaks at the gap. The last point is the upper right corner. */
    double p[8];
    const char *path = strstr(text, " d=\"M");
    assert_non_null(path);
    assert_int_equal(sscanf(path, " d=\"M%lf %lfL%lf %lfM%lf %lfL%lf %lf\"", &p[0], &p[1], &p[2], &p[3],
                            &p[4], &p[5], &p[6], &p[7]),
                     8);
    assert_true(fabs((p[6] - p[0]) - 4 * (p[2] - p[0])) < 0.5);
    assert_true(fabs((p[1] - p[7]) - 4 * (p[1] - p[3])) < 0.5);

    memcpy(first, text, sizeof text);
    out = tmpfile();
    assert_int_equal(kr_chart_xy(&chart, out, &err), KR_OK);
    read_back(out);
    assert_string_equal(first, text);
}

static void bars_have_heights_in_proportion(void **state)
{
    static const char *const categories[] = {"one", "two & a half"};
    static const char *const names[] = {"a", "b"};
    const double values[] = {1, 2, 3, 4};
    kr_bar_chart chart = {.title = "T",
                          .y = {.title = "y"},
                          .categories = categories,
                          .category_count = 2,
                          .names = names,
                          .values = values,
                          .series_count = 2};
    kr_err err;
    (void)state;

    for (int stacked = 0; stacked < 2; stacked++) {
        chart.stacked = stacked;
        FILE *out = tmpfile();
        assert_int_equal(kr_chart_bars(&chart, out, &err), KR_OK);
        read_back(out);
        double height[4], top[4];
        int bars = 0;
        for (const char *at = strstr(text, "<rect x="); at != NULL; at = strstr(at + 1, "<rect x=")) {
            double h, y;
            if (strstr(at, "><title>") == NULL || strstr(at, "><title>") > strchr(at, '>'))
                continue; /* a square of the legend */
            assert_int_equal(sscanf(at, "<rect x=\"%*f\" y=\"%lf\" width=\"%*f\" height=\"%lf\"", &y, &h), 2);
            assert_true(bars < 4);
            top[bars] = y;
            height[bars++] = h;
        }
        assert_int_equal(bars, 4);
        /* Order of drawing: both series of a category, then the next category. */
        assert_true(fabs(height[1] - 3 * height[0]) < 0.4);
        assert_true(fabs(height[2] - 2 * height[0]) < 0.4);
        assert_true(fabs(height[3] - 4 * height[0]) < 0.4);
        /* The second bar stands on the first one's top, or beside it on the same ground. */
        assert_true(fabs(top[1] + height[1] - (stacked ? top[0] : top[0] + height[0])) < 0.2);
    }
}

static void the_other_charts_draw_and_limits_hold(void **state)
{
    static const char *const names[] = {"scan", "attend"};
    const double intensity[] = {1, 100}, achieved[] = {1e10, 2e11};
    const kr_roofline roof = {.title = "R",
                              .peak_flops = 3e11,
                              .bandwidth_bytes = 2e10,
                              .names = names,
                              .intensity = intensity,
                              .achieved_flops = achieved,
                              .count = 2};
    const double low[] = {3, NAN}, high[] = {5, 6};
    const kr_tornado tornado = {.title = "S",
                                .x = {.title = "x"},
                                .base = 4,
                                .names = names,
                                .at_low = low,
                                .at_high = high,
                                .count = 2};
    const kr_xy_chart crowd = {.title = "many", .series_count = KR_CHART_SERIES_MAX + 1};
    const kr_bar_chart none = {.title = "none"};
    kr_err err;
    (void)state;

    FILE *out = tmpfile();
    assert_int_equal(kr_chart_roofline(&roof, out, &err), KR_OK);
    read_back(out);
    assert_non_null(strstr(text, "peak 300 GFLOP/s"));
    assert_non_null(strstr(text, "read 20 GB/s"));
    out = tmpfile();
    assert_int_equal(kr_chart_tornado(&tornado, out, &err), KR_OK);
    read_back(out);
    assert_int_equal(count_of("><title>") - 0, 3); /* three ends: one is not finite */

    out = tmpfile();
    assert_int_equal(kr_chart_xy(&crowd, out, &err), KR_E_LIMIT);
    assert_string_equal(err.text, "chart \"many\": 17 series; the limit is 16");
    assert_int_equal(kr_chart_bars(&none, out, &err), KR_E_LIMIT);
    fclose(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_axes_end_at_round_numbers),
        cmocka_unit_test(logarithmic_axes_have_their_ticks),
        cmocka_unit_test(many_ranges_stay_within_the_tick_table),
        cmocka_unit_test(a_line_passes_through_its_points),
        cmocka_unit_test(bars_have_heights_in_proportion),
        cmocka_unit_test(the_other_charts_draw_and_limits_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
