/* Bars side by side or stacked, and the tornado. */
#include <math.h>
#include <string.h>

#include "report/number.h"
#include "report/svg.h"

enum { CATEGORY_SIZE = 12, VALUES_SHOWN_MAX = 32, TILTED_LABEL_MAX = 150 };
enum { TORNADO_ROW = 26 };

static double value_at(const kr_bar_chart *c, uint32_t series, uint32_t category)
{
    const double v = c->values[(uint64_t)series * c->category_count + category];
    return isfinite(v) ? v : 0;
}

/* A bar's value: with a suffix where the axis has them, so that both read alike. */
static void label_value(const kr_svg_axis *y, double value, char out[KR_NUMBER_BYTES])
{
    if (y->si)
        kr_number_si(value, out);
    else
        snprintf(out, KR_NUMBER_BYTES, "%.3g", value);
}

static double highest_of(const kr_bar_chart *c)
{
    double highest = 0;

    for (uint32_t k = 0; k < c->category_count; k++) {
        double sum = 0;
        for (uint32_t s = 0; s < c->series_count; s++) {
            const double v = value_at(c, s, k);
            sum = c->stacked ? sum + v : fmax(sum, v);
            if (c->high != NULL && !c->stacked && isfinite(c->high[(uint64_t)s * c->category_count + k]))
                sum = fmax(sum, c->high[(uint64_t)s * c->category_count + k]);
        }
        highest = fmax(highest, sum);
    }
    return highest;
}

static double lowest_of(const kr_bar_chart *c)
{
    double lowest = 0;

    for (uint32_t s = 0; s < c->series_count && !c->stacked; s++)
        for (uint32_t k = 0; k < c->category_count; k++)
            lowest = fmin(lowest, value_at(c, s, k));
    return lowest;
}

static void draw_bar(const kr_bar_chart *c, FILE *out, uint32_t series, uint32_t category, double left,
                     double width, double from, double to)
{
    fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"><title>", left,
            fmin(from, to), width, fabs(from - to), kr_svg_colour(series));
    kr_svg_escape(c->categories[category], out);
    if (c->names != NULL) {
        fputs(", ", out);
        kr_svg_escape(c->names[series], out);
    }
    fprintf(out, ": %.6g</title></rect>\n", value_at(c, series, category));
}

static void draw_group(const kr_bar_chart *c, const kr_svg_axis *y, FILE *out, uint32_t k, double left,
                       double width)
{
    const double each = width / c->series_count;

    for (uint32_t s = 0; s < c->series_count; s++) {
        const double v = value_at(c, s, k), x = left + each * s, top = kr_svg_at(y, v);
        const uint64_t at = (uint64_t)s * c->category_count + k;
        draw_bar(c, out, s, k, x, fmax(each - 2, 1), kr_svg_at(y, 0), top);
        double label_y = v >= 0 ? top - 5 : top + 14;
        if (c->low != NULL && c->high != NULL && isfinite(c->low[at]) && isfinite(c->high[at])) {
            const double middle = x + fmax(each - 2, 1) / 2;
            fprintf(out, "<path stroke=\"#1f2933\" fill=\"none\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n", middle,
                    kr_svg_at(y, c->low[at]), middle, kr_svg_at(y, c->high[at]));
            label_y = fmin(label_y, kr_svg_at(y, c->high[at]) - 5);
        }
        char text[KR_NUMBER_BYTES];
        label_value(y, v, text);
        if (c->series_count * c->category_count <= VALUES_SHOWN_MAX && kr_svg_text_width(text, 11) < each + 6)
            kr_svg_text(out, x + each / 2 - 1, label_y, "middle", 11, "#52606d", text);
    }
}

static void draw_stack(const kr_bar_chart *c, const kr_svg_axis *y, FILE *out, uint32_t k, double left,
                       double width)
{
    double sum = 0;
    char text[KR_NUMBER_BYTES];

    for (uint32_t s = 0; s < c->series_count; s++) {
        const double v = value_at(c, s, k);
        draw_bar(c, out, s, k, left, width, kr_svg_at(y, sum), kr_svg_at(y, sum + v));
        sum += v;
    }
    label_value(y, sum, text);
    if (c->category_count <= VALUES_SHOWN_MAX && kr_svg_text_width(text, 11) < width + 8)
        kr_svg_text(out, left + width / 2, kr_svg_at(y, sum) - 5, "middle", 11, "#52606d", text);
}

/* Category names below the axis; tilted when the widest does not fit its slot. */
static void draw_category(const kr_svg_frame *f, double middle, bool tilted, const char *name)
{
    if (!tilted) {
        kr_svg_text(f->out, middle, f->bottom + 18, "middle", CATEGORY_SIZE, "#1f2933", name);
        return;
    }
    fprintf(f->out, "<g transform=\"rotate(-40 %.1f %.1f)\">", middle, f->bottom + 14);
    kr_svg_text(f->out, middle, f->bottom + 14, "end", CATEGORY_SIZE, "#1f2933", name);
    fputs("</g>\n", f->out);
}

kr_status kr_chart_bars(const kr_bar_chart *c, FILE *out, kr_err *err)
{
    kr_svg_key keys[KR_CHART_SERIES_MAX];
    kr_svg_axis y;
    kr_svg_frame frame;
    double widest = 0;

    if (c->series_count == 0 || c->series_count > KR_CHART_SERIES_MAX || c->category_count == 0 ||
        c->category_count > KR_CHART_CATEGORIES_MAX)
        return kr_fail(err, KR_E_LIMIT, "chart \"%s\": %u series of %u bars; the limits are %d and %d",
                       c->title, c->series_count, c->category_count, KR_CHART_SERIES_MAX,
                       KR_CHART_CATEGORIES_MAX);
    kr_svg_fit(&y, &c->y, lowest_of(c), highest_of(c));
    for (uint32_t s = 0; s < c->series_count; s++)
        keys[s] = (kr_svg_key){.name = c->names != NULL ? c->names[s] : "", .colour = s, .box = true};
    for (uint32_t k = 0; k < c->category_count; k++)
        widest = fmax(widest, kr_svg_text_width(c->categories[k], CATEGORY_SIZE));

    const double slot_guess = (KR_SVG_WIDTH - 250.0) / c->category_count;
    const bool tilted = widest > slot_guess - 6;
    const double label_height = tilted ? fmin(widest, TILTED_LABEL_MAX) * 0.65 + 24 : 28;
    kr_svg_begin(&frame, out, KR_SVG_HEIGHT + (tilted ? 60 : 0), c->title, c->note, keys,
                 c->names != NULL ? c->series_count : 0, kr_svg_label_width(&y), label_height);
    kr_svg_vertical(&frame, &y, c->y.title);
    const double slot = (frame.right - frame.left) / c->category_count;
    for (uint32_t k = 0; k < c->category_count; k++) {
        const double left = frame.left + slot * k + slot * 0.12, width = slot * 0.76;
        if (c->stacked)
            draw_stack(c, &y, out, k, left, width);
        else
            draw_group(c, &y, out, k, left, width);
        draw_category(&frame, left + width / 2, tilted, c->categories[k]);
    }
    const double zero = kr_svg_at(&y, 0);
    fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#9aa5b1\"/>\n", frame.left,
            zero, frame.right, zero);
    kr_svg_end(&frame);
    return ferror(out) ? kr_fail(err, KR_E_IO, "cannot write chart \"%s\"", c->title) : KR_OK;
}

kr_status kr_chart_tornado(const kr_tornado *c, FILE *out, kr_err *err)
{
    static const kr_svg_key keys[2] = {{.name = "at its low end", .colour = 0, .box = true},
                                       {.name = "at its high end", .colour = 1, .box = true}};
    kr_svg_axis x;
    kr_svg_frame frame;
    double low = c->base, high = c->base, widest = 0;

    if (c->count == 0 || c->count > KR_CHART_CATEGORIES_MAX)
        return kr_fail(err, KR_E_LIMIT, "chart \"%s\": %u rows; the limit is %d", c->title, c->count,
                       KR_CHART_CATEGORIES_MAX);
    for (uint32_t i = 0; i < c->count; i++) {
        low = fmin(low, fmin(c->at_low[i], c->at_high[i])); /* fmin and fmax pass over NaN */
        high = fmax(high, fmax(c->at_low[i], c->at_high[i]));
        widest = fmax(widest, kr_svg_text_width(c->names[i], CATEGORY_SIZE));
    }
    kr_axis wish = c->x;
    wish.scale = KR_SCALE_LINEAR;
    kr_svg_fit(&x, &wish, low, high);
    kr_svg_begin(&frame, out, 120 + TORNADO_ROW * (double)c->count, c->title, c->note, keys, 2, widest + 12,
                 44);
    kr_svg_horizontal(&frame, &x, c->x.title);
    const double row = (frame.bottom - frame.top) / c->count;
    for (uint32_t i = 0; i < c->count; i++) {
        const double top = frame.top + row * i + row * 0.15, ends[2] = {c->at_low[i], c->at_high[i]};
        for (uint32_t k = 0; k < 2; k++) {
            if (!isfinite(ends[k]))
                continue;
            const double a = kr_svg_at(&x, c->base), b = kr_svg_at(&x, ends[k]);
            fprintf(out,
                    "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                    "fill=\"%s\"><title>%.6g</title></rect>\n",
                    fmin(a, b), top, fabs(a - b), row * 0.7, kr_svg_colour(k), ends[k]);
        }
        kr_svg_text(out, frame.left - 8, top + row * 0.35 + 4, "end", CATEGORY_SIZE, "#1f2933", c->names[i]);
    }
    const double base = kr_svg_at(&x, c->base);
    fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#1f2933\"/>\n", base,
            frame.top, base, frame.bottom);
    kr_svg_end(&frame);
    return ferror(out) ? kr_fail(err, KR_E_IO, "cannot write chart \"%s\"", c->title) : KR_OK;
}
