/* Frame, axes and text of charts. Pixels are written with one decimal, so that the same data give
 * the same bytes. */
#include "report/svg.h"

#include <math.h>
#include <string.h>

#include "report/number.h"

enum { TITLE_SIZE = 16, NOTE_SIZE = 12, LABEL_SIZE = 12, LEGEND_SIZE = 12 };
enum { LEGEND_LINE = 20, LEGEND_WIDTH_MAX = 330, MARGIN = 14, LINEAR_TICKS = 6 };
static const char ink[] = "#1f2933", grey[] = "#52606d", grid[] = "#e4e7eb", edge[] = "#9aa5b1";

bool kr_svg_has(const kr_svg_axis *axis, double value)
{
    return isfinite(value) && (axis->scale == KR_SCALE_LINEAR || value > 0);
}

static double transform(kr_scale scale, double value)
{
    return scale == KR_SCALE_LINEAR ? value : log2(value);
}

double kr_svg_at(const kr_svg_axis *axis, double value)
{
    const double low = transform(axis->scale, axis->low), high = transform(axis->scale, axis->high);
    const double share = (transform(axis->scale, value) - low) / (high - low);

    return axis->pixel_low + share * (axis->pixel_high - axis->pixel_low);
}

static void add_tick(kr_svg_axis *axis, double value, const char *label)
{
    if (axis->ticks == KR_TICKS_MAX)
        return;
    axis->tick[axis->ticks] = value;
    snprintf(axis->label[axis->ticks], KR_TICK_LABEL_BYTES, "%s", label);
    axis->ticks++;
}

/* Steps of 1, 2 or 5 times a power of ten, about LINEAR_TICKS of them. */
static void fit_linear(kr_svg_axis *axis, bool fixed)
{
    const double span = axis->high - axis->low, rough = span / LINEAR_TICKS;
    const double power = pow(10, floor(log10(rough))), part = rough / power;
    const double step = power * (part <= 1.0 ? 1 : part <= 2.0 ? 2 : part <= 5.0 ? 5 : 10);
    const double largest = fmax(fabs(axis->low), fabs(axis->high));

    if (!fixed) {
        axis->low = floor(axis->low / step + 1e-9) * step;
        axis->high = ceil(axis->high / step - 1e-9) * step;
    }
    axis->si = largest >= 1e4 || largest < 1e-3;
    const int decimals = step < 1 ? (int)ceil(-log10(step) - 1e-9) : 0;
    const double first = ceil(axis->low / step - 1e-9);
    for (int i = 0; (first + i) * step <= axis->high + step * 1e-6; i++) {
        char label[KR_NUMBER_BYTES];
        const double value = first + i == 0 ? 0 : (first + i) * step; /* no "-0" */
        if (axis->si)
            kr_number_si(value, label);
        else
            snprintf(label, sizeof label, "%.*f", decimals < 6 ? decimals : 6, value);
        add_tick(axis, value, label);
    }
}

static void fit_log(kr_svg_axis *axis, bool fixed)
{
    const double base = axis->scale == KR_SCALE_LOG2 ? 2 : 10;
    const double unit = log2(base);
    int first = (int)floor(log2(axis->low) / unit + 1e-9), last = (int)ceil(log2(axis->high) / unit - 1e-9);

    if (first == last)
        last++;
    /* Short decimal axes get ticks at 2 and 5 as well, and end at one of these. */
    const bool between = base == 10 && last - first <= 3 && axis->high > axis->low;
    const int stride = 1 + (last - first) / 11;
    const double low = axis->low, high = axis->high;
    if (!fixed) {
        axis->low = pow(base, first);
        axis->high = pow(base, last);
    }
    static const double parts[] = {1, 2, 5};
    for (int e = first; e <= last; e += stride) {
        for (int k = 0; k < (between ? 3 : 1); k++) {
            const double value = parts[k] * pow(base, e);
            char label[KR_NUMBER_BYTES];
            if (!fixed && between && value <= low * (1 + 1e-9))
                axis->low = value;
            if (base == 2)
                kr_number_binary(value, label);
            else
                kr_number_si(value, label);
            if (value >= axis->low * (1 - 1e-9) && value <= axis->high * (1 + 1e-9))
                add_tick(axis, value, label);
            if (!fixed && between && value >= high * (1 - 1e-9)) {
                axis->high = value;
                return;
            }
        }
    }
}

/* Ticks found before the axis was narrowed to start at a later one fall off. */
static void drop_early_ticks(kr_svg_axis *axis)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < axis->ticks; i++) {
        if (axis->tick[i] < axis->low - 1e-9 * fabs(axis->low))
            continue;
        axis->tick[kept] = axis->tick[i];
        memmove(axis->label[kept], axis->label[i], KR_TICK_LABEL_BYTES);
        kept++;
    }
    axis->ticks = kept;
}

void kr_svg_fit(kr_svg_axis *axis, const kr_axis *wish, double low, double high)
{
    const bool fixed = wish->min != 0 || wish->max != 0;

    *axis = (kr_svg_axis){.scale = wish->scale};
    if (fixed) {
        low = wish->min;
        high = wish->max;
    }
    if (wish->scale != KR_SCALE_LINEAR) {
        if (!(low > 0) || !(high >= low))
            low = high = 1;
        axis->low = low;
        axis->high = high;
        fit_log(axis, fixed && high > low);
        drop_early_ticks(axis);
        return;
    }
    if (!(high >= low))
        low = high = 0;
    if (!fixed && low > 0 && low <= high / 2)
        low = 0;
    if (!fixed && high < 0 && high >= low / 2)
        high = 0;
    if (high == low) {
        low -= low != 0 ? fabs(low) / 2 : 0;
        high += high != 0 ? fabs(high) / 2 : 1;
    }
    axis->low = low;
    axis->high = high;
    fit_linear(axis, fixed);
}

const char *kr_svg_colour(uint32_t i)
{
    static const char *const colours[] = {
        "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d00", "#4b5563",
        "#7b2d8e", "#b91c1c", "#65a30d", "#0f766e", "#1e3a8a", "#f472b6", "#78350f", "#94a3b8",
    };
    return colours[i % (sizeof colours / sizeof colours[0])];
}

double kr_svg_text_width(const char *text, double size)
{
    double n = 0;

    for (; *text != '\0'; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n * size * 7 / 12;
}

void kr_svg_escape(const char *text, FILE *out)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '&':
            fputs("&amp;", out);
            break;
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            fputc((unsigned char)*text < 0x20 || *text == 0x7f ? ' ' : *text, out);
        }
    }
}

void kr_svg_text(FILE *out, double x, double y, const char *anchor, double size, const char *fill,
                 const char *text)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%g\" fill=\"%s\">", x, y, anchor,
            size, fill);
    kr_svg_escape(text, out);
    fputs("</text>\n", out);
}

static void write_key(FILE *out, const kr_svg_key *key, double x, double y)
{
    const char *colour = kr_svg_colour(key->colour);

    if (key->box) {
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x + 4, y - 10,
                colour);
    } else {
        if (key->mark != KR_MARK_POINTS)
            fprintf(out,
                    "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                    "stroke-width=\"2\"%s/>\n",
                    x, y - 4, x + 20, y - 4, colour,
                    key->mark >= KR_MARK_DASHED ? " stroke-dasharray=\"5 4\"" : "");
        const bool hollow = key->mark == KR_MARK_DASHED_POINTS;
        if (key->mark != KR_MARK_LINE && key->mark != KR_MARK_DASHED)
            fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\" stroke=\"%s\"/>\n", x + 10,
                    y - 4, hollow ? "white" : colour, colour);
    }
    kr_svg_text(out, x + 26, y, "start", LEGEND_SIZE, ink, key->name);
}

void kr_svg_begin(kr_svg_frame *frame, FILE *out, double height, const char *title, const char *note,
                  const kr_svg_key *keys, uint32_t key_count, double label_width, double label_height)
{
    double legend = 0;

    for (uint32_t i = 0; i < key_count; i++)
        legend = fmax(legend, kr_svg_text_width(keys[i].name, LEGEND_SIZE) + 26 + MARGIN);
    legend = fmin(legend, LEGEND_WIDTH_MAX);
    *frame = (kr_svg_frame){
        .out = out,
        .width = KR_SVG_WIDTH,
        .height = height,
        .left = MARGIN + label_width,
        .right = KR_SVG_WIDTH - MARGIN - 10 - legend,
        .top = note != NULL ? 62 : 46,
        .bottom = height - MARGIN - label_height,
    };
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" "
            "role=\"img\" "
            "font-family=\"system-ui, 'Liberation Sans', Helvetica, Arial, sans-serif\">\n<title>",
            frame->width, height, frame->width, height);
    kr_svg_escape(title, out);
    fprintf(out, "</title>\n<rect width=\"%g\" height=\"%g\" fill=\"white\"/>\n", frame->width, height);
    fprintf(out, "<g font-weight=\"600\">");
    kr_svg_text(out, MARGIN, 24, "start", TITLE_SIZE, ink, title);
    fputs("</g>\n", out);
    if (note != NULL)
        kr_svg_text(out, MARGIN, 43, "start", NOTE_SIZE, grey, note);
    for (uint32_t i = 0; i < key_count; i++)
        write_key(out, &keys[i], frame->right + 18, frame->top + 10 + LEGEND_LINE * (double)i);
}

double kr_svg_label_width(const kr_svg_axis *axis)
{
    double widest = 0;

    for (uint32_t i = 0; i < axis->ticks; i++)
        widest = fmax(widest, kr_svg_text_width(axis->label[i], LABEL_SIZE));
    return widest + 8 + LABEL_SIZE + 10;
}

void kr_svg_vertical(kr_svg_frame *f, kr_svg_axis *axis, const char *title)
{
    axis->pixel_low = f->bottom;
    axis->pixel_high = f->top;
    for (uint32_t i = 0; i < axis->ticks; i++) {
        const double y = kr_svg_at(axis, axis->tick[i]);
        fprintf(f->out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", f->left, y,
                f->right, y, grid);
        kr_svg_text(f->out, f->left - 8, y + 4, "end", LABEL_SIZE, grey, axis->label[i]);
    }
    const double x = 16, middle = (f->top + f->bottom) / 2;
    fprintf(f->out, "<g transform=\"rotate(-90 %.1f %.1f)\">", x, middle);
    kr_svg_text(f->out, x, middle + 4, "middle", LABEL_SIZE, ink, title);
    fputs("</g>\n", f->out);
}

void kr_svg_horizontal(kr_svg_frame *f, kr_svg_axis *axis, const char *title)
{
    double free_from = f->left - 40;

    axis->pixel_low = f->left;
    axis->pixel_high = f->right;
    for (uint32_t i = 0; i < axis->ticks; i++) {
        const double x = kr_svg_at(axis, axis->tick[i]),
                     half = kr_svg_text_width(axis->label[i], LABEL_SIZE) / 2;
        fprintf(f->out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x, f->top,
                x, f->bottom, grid);
        if (x - half < free_from) /* a label that would run into the one before it */
            continue;
        kr_svg_text(f->out, x, f->bottom + 18, "middle", LABEL_SIZE, grey, axis->label[i]);
        free_from = x + half + 6;
    }
    fprintf(f->out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", f->left,
            f->bottom, f->right, f->bottom, edge);
    kr_svg_text(f->out, (f->left + f->right) / 2, f->bottom + 38, "middle", LABEL_SIZE, ink, title);
}

void kr_svg_end(kr_svg_frame *frame) { fputs("</svg>\n", frame->out); }
