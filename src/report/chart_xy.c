/* Lines and points over two axes, and the roofline drawn with them. */
#include <math.h>
#include <string.h>

#include "report/number.h"
#include "report/svg.h"

enum { LABELS_MAX = 128, POINT_LABEL_SIZE = 11 };

/* Rectangles already taken by point labels. */
typedef struct {
    struct {
        double left, right, top, bottom;
    } box[LABELS_MAX];
    uint32_t count;
} label_boxes;

/* The span of the drawable values of all series, along x (values = x) or y with error bars. */
static void measure(const kr_xy_chart *chart, bool along_x, const kr_svg_axis *scale, double *low,
                    double *high)
{
    *low = INFINITY;
    *high = -INFINITY;
    for (uint32_t s = 0; s < chart->series_count; s++) {
        const kr_series *series = &chart->series[s];
        const double *sets[3] = {along_x ? series->x : series->y, along_x ? NULL : series->low,
                                 along_x ? NULL : series->high};
        for (int k = 0; k < 3; k++) {
            for (uint32_t i = 0; sets[k] != NULL && i < series->count; i++) {
                if (!kr_svg_has(scale, sets[k][i]))
                    continue;
                *low = fmin(*low, sets[k][i]);
                *high = fmax(*high, sets[k][i]);
            }
        }
    }
}

static void draw_line(const kr_svg_frame *f, const kr_svg_axis *x, const kr_svg_axis *y,
                      const kr_series *series, const char *colour)
{
    bool pen_down = false;

    fprintf(f->out, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\" stroke-linejoin=\"round\"%s d=\"",
            colour, series->mark >= KR_MARK_DASHED ? " stroke-dasharray=\"5 4\"" : "");
    for (uint32_t i = 0; i < series->count; i++) {
        const bool drawable = kr_svg_has(x, series->x[i]) && kr_svg_has(y, series->y[i]);
        if (drawable)
            fprintf(f->out, "%s%.1f %.1f", pen_down ? "L" : "M", kr_svg_at(x, series->x[i]),
                    kr_svg_at(y, series->y[i]));
        pen_down = drawable;
    }
    fputs("\"/>\n", f->out);
}

static void draw_whisker(const kr_svg_frame *f, const kr_svg_axis *y, double at, double low, double high,
                         const char *colour)
{
    if (!kr_svg_has(y, low) || !kr_svg_has(y, high))
        return;
    const double a = kr_svg_at(y, low), b = kr_svg_at(y, high);
    fprintf(f->out,
            "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.2\" "
            "d=\"M%.1f %.1fL%.1f %.1fM%.1f %.1fL%.1f %.1fM%.1f %.1fL%.1f %.1f\"/>\n",
            colour, at, a, at, b, at - 4, a, at + 4, a, at - 4, b, at + 4, b);
}

/* Right of the point, else left, above or below; nowhere when all are taken (the tooltip stays). */
static void draw_label(const kr_svg_frame *f, label_boxes *taken, double x, double y, const char *text)
{
    const double width = kr_svg_text_width(text, POINT_LABEL_SIZE), height = POINT_LABEL_SIZE + 2;
    const double left[4] = {x + 8, x - 8 - width, x - width / 2, x - width / 2};
    const double bottom[4] = {y + 5, y + 5, y - 8, y + 8 + height};

    for (int k = 0; k < 4 && taken->count < LABELS_MAX; k++) {
        bool free = left[k] >= f->left && left[k] + width <= f->width && bottom[k] <= f->bottom;
        for (uint32_t i = 0; free && i < taken->count; i++)
            free = left[k] >= taken->box[i].right || left[k] + width <= taken->box[i].left ||
                   bottom[k] <= taken->box[i].top || bottom[k] - height >= taken->box[i].bottom;
        if (!free)
            continue;
        fputs("<g paint-order=\"stroke\" stroke=\"white\" stroke-width=\"3\" stroke-linejoin=\"round\">",
              f->out);
        kr_svg_text(f->out, left[k], bottom[k] - 2, "start", POINT_LABEL_SIZE, "#52606d", text);
        fputs("</g>\n", f->out);
        taken->box[taken->count].left = left[k];
        taken->box[taken->count].right = left[k] + width;
        taken->box[taken->count].top = bottom[k] - height;
        taken->box[taken->count].bottom = bottom[k];
        taken->count++;
        return;
    }
}

static void draw_points(const kr_svg_frame *f, const kr_svg_axis *x, const kr_svg_axis *y,
                        const kr_series *series, const char *colour, label_boxes *taken)
{
    for (uint32_t i = 0; i < series->count; i++) {
        if (!kr_svg_has(x, series->x[i]) || !kr_svg_has(y, series->y[i]))
            continue;
        const double px = kr_svg_at(x, series->x[i]), py = kr_svg_at(y, series->y[i]);
        const char *label = series->labels != NULL ? series->labels[i] : NULL;
        if (series->low != NULL && series->high != NULL)
            draw_whisker(f, y, px, series->low[i], series->high[i], colour);
        const bool hollow = series->mark == KR_MARK_DASHED_POINTS;
        fprintf(f->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\" stroke=\"%s\"><title>", px, py,
                hollow ? "white" : colour, hollow ? colour : "white");
        const char *parts[2] = {series->name, label};
        for (int k = 0; k < 2; k++) {
            if (parts[k] != NULL) {
                kr_svg_escape(parts[k], f->out);
                fputs(": ", f->out);
            }
        }
        fprintf(f->out, "%.6g, %.6g</title></circle>\n", series->x[i], series->y[i]);
        if (label != NULL)
            draw_label(f, taken, px, py, label);
    }
}

static kr_status check_limits(const kr_xy_chart *chart, kr_err *err)
{
    if (chart->series_count > KR_CHART_SERIES_MAX)
        return kr_fail(err, KR_E_LIMIT, "chart \"%s\": %u series; the limit is %d", chart->title,
                       chart->series_count, KR_CHART_SERIES_MAX);
    return KR_OK;
}

kr_status kr_chart_xy(const kr_xy_chart *chart, FILE *out, kr_err *err)
{
    kr_svg_key keys[KR_CHART_SERIES_MAX];
    kr_svg_axis x = {.scale = chart->x.scale}, y = {.scale = chart->y.scale};
    kr_svg_frame frame;
    label_boxes taken = {.count = 0};
    uint32_t key_count = 0;
    double low, high;
    const kr_status status = check_limits(chart, err);

    if (status != KR_OK)
        return status;
    measure(chart, true, &x, &low, &high);
    kr_svg_fit(&x, &chart->x, low, high);
    measure(chart, false, &y, &low, &high);
    kr_svg_fit(&y, &chart->y, low, high);
    for (uint32_t s = 0; s < chart->series_count; s++)
        if (chart->series[s].name != NULL)
            keys[key_count++] = (kr_svg_key){
                .name = chart->series[s].name, .colour = s, .mark = chart->series[s].mark};

    kr_svg_begin(&frame, out, KR_SVG_HEIGHT, chart->title, chart->note, keys, key_count,
                 kr_svg_label_width(&y), 44);
    kr_svg_vertical(&frame, &y, chart->y.title);
    kr_svg_horizontal(&frame, &x, chart->x.title);
    /* A fixed range may cut data off: nothing is drawn outside the plot area. */
    fprintf(out,
            "<svg x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" viewBox=\"%.1f %.1f %.1f %.1f\">\n",
            frame.left - 5, frame.top - 5, frame.right - frame.left + 10, frame.bottom - frame.top + 10,
            frame.left - 5, frame.top - 5, frame.right - frame.left + 10, frame.bottom - frame.top + 10);
    for (uint32_t s = 0; s < chart->series_count; s++)
        if (chart->series[s].mark != KR_MARK_POINTS)
            draw_line(&frame, &x, &y, &chart->series[s], kr_svg_colour(s));
    fputs("</svg>\n", out);
    for (uint32_t s = 0; s < chart->series_count; s++)
        if (chart->series[s].mark != KR_MARK_LINE && chart->series[s].mark != KR_MARK_DASHED)
            draw_points(&frame, &x, &y, &chart->series[s], kr_svg_colour(s), &taken);
    kr_svg_end(&frame);
    return ferror(out) ? kr_fail(err, KR_E_IO, "cannot write chart \"%s\"", chart->title) : KR_OK;
}

/* ("peak", 3e11, "FLOP/s") -> "peak 300 GFLOP/s": the suffix belongs to the unit. */
static void name_limit(const char *what, double value, const char *unit, char *out, size_t bytes)
{
    char number[KR_NUMBER_BYTES];

    kr_number_si(value, number);
    const size_t digits = strspn(number, "0123456789.-");
    snprintf(out, bytes, "%s %.*s %s%s", what, (int)digits, number, number + digits, unit);
}

kr_status kr_chart_roofline(const kr_roofline *chart, FILE *out, kr_err *err)
{
    kr_series series[KR_CHART_SERIES_MAX];
    const double ridge = chart->peak_flops / chart->bandwidth_bytes;
    double low = ridge / 8, high = ridge * 8, lowest = INFINITY;

    if (chart->count > KR_CHART_SERIES_MAX - 2)
        return kr_fail(err, KR_E_LIMIT, "roofline \"%s\": %u points; the limit is %d", chart->title,
                       chart->count, KR_CHART_SERIES_MAX - 2);
    for (uint32_t i = 0; i < chart->count; i++) {
        if (chart->intensity[i] > 0) {
            low = fmin(low, chart->intensity[i] / 2);
            high = fmax(high, chart->intensity[i] * 2);
        }
        if (chart->achieved_flops[i] > 0)
            lowest = fmin(lowest, chart->achieved_flops[i]);
        series[i] = (kr_series){.name = chart->names[i],
                                .mark = KR_MARK_POINTS,
                                .count = 1,
                                .x = &chart->intensity[i],
                                .y = &chart->achieved_flops[i]};
    }
    const double slope_x[2] = {low, ridge}, slope_y[2] = {low * chart->bandwidth_bytes, chart->peak_flops};
    const double roof_x[2] = {ridge, high}, roof_y[2] = {chart->peak_flops, chart->peak_flops};
    char roof_name[64], slope_name[64];
    name_limit("peak", chart->peak_flops, "FLOP/s", roof_name, sizeof roof_name);
    name_limit("read", chart->bandwidth_bytes, "B/s", slope_name, sizeof slope_name);
    series[chart->count] = (kr_series){
        .name = roof_name, .mark = KR_MARK_LINE, .count = 2, .x = roof_x, .y = roof_y};
    series[chart->count + 1] = (kr_series){
        .name = slope_name, .mark = KR_MARK_DASHED, .count = 2, .x = slope_x, .y = slope_y};

    const kr_xy_chart xy = {
        .title = chart->title,
        .note = chart->note,
        .x = {.title = "operational intensity, FLOP/byte", .scale = KR_SCALE_LOG10, .min = low, .max = high},
        .y = {.title = "FLOP/s",
              .scale = KR_SCALE_LOG10,
              .min = fmin(lowest, slope_y[0]) / 1.5,
              .max = chart->peak_flops * 2},
        .series = series,
        .series_count = chart->count + 2,
    };
    return kr_chart_xy(&xy, out, err);
}
