/* What all charts share: the frame (title, plot area, legend), axes with ticks, escaped text. */
#ifndef KR_REPORT_SVG_H
#define KR_REPORT_SVG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "report/chart.h"

enum { KR_TICKS_MAX = 32, KR_TICK_LABEL_BYTES = 32 };

/* An axis fitted to data: where values lie in pixels, and its ticks in ascending order. */
typedef struct {
    kr_scale scale;
    double low, high;             /* ends, in values */
    double pixel_low, pixel_high; /* where the ends lie; on a vertical axis pixel_low > pixel_high */
    bool si;                      /* labels carry suffixes (12k) */
    uint32_t ticks;
    double tick[KR_TICKS_MAX];
    char label[KR_TICKS_MAX][KR_TICK_LABEL_BYTES];
} kr_svg_axis;

/* Fits to [low, high] of the data (low > high: no data) under the caller's wishes. */
void kr_svg_fit(kr_svg_axis *axis, const kr_axis *wish, double low, double high);
/* Can value be drawn on this axis: finite, positive when logarithmic? */
bool kr_svg_has(const kr_svg_axis *axis, double value);
double kr_svg_at(const kr_svg_axis *axis, double value);

/* The colour of the i-th series: eight that people with colour-blindness tell apart (Okabe and
 * Ito, 2008, the yellow darkened for white paper), then again. */
const char *kr_svg_colour(uint32_t i);

/* Pixels a text takes in the given font size, estimated (7/12 of the size a character). */
double kr_svg_text_width(const char *text, double size);
/* Escapes for HTML and SVG; control bytes become spaces. */
void kr_svg_escape(const char *text, FILE *out);

/* One legend entry: a name with its series' colour. */
typedef struct {
    const char *name;
    uint32_t colour;
    kr_mark mark;
    bool box; /* bars: a square instead of a line or a point */
} kr_svg_key;

typedef struct {
    FILE *out;
    double width, height;            /* of the whole picture */
    double left, right, top, bottom; /* of the plot area */
} kr_svg_frame;

enum { KR_SVG_WIDTH = 820, KR_SVG_HEIGHT = 430 };

/* Opens <svg>, writes the title and note and the legend at the right; leaves label_width pixels for
 * the labels of the vertical axis and label_height for the horizontal one's. */
void kr_svg_begin(kr_svg_frame *frame, FILE *out, double height, const char *title, const char *note,
                  const kr_svg_key *keys, uint32_t key_count, double label_width, double label_height);
/* Grid lines, tick labels and title of one axis. The axis' pixels are set here. */
void kr_svg_vertical(kr_svg_frame *frame, kr_svg_axis *axis, const char *title);
void kr_svg_horizontal(kr_svg_frame *frame, kr_svg_axis *axis, const char *title);
void kr_svg_end(kr_svg_frame *frame);

/* Room that the widest tick label of a vertical axis and its title need. */
double kr_svg_label_width(const kr_svg_axis *axis);

/* <text> with an anchor ("start", "middle", "end"), a font size and a fill. */
void kr_svg_text(FILE *out, double x, double y, const char *anchor, double size, const char *fill,
                 const char *text);

#endif
