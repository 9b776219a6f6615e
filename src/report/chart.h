/* Charts as SVG: lines and points over two axes, bars, stacked bars, a roofline, a tornado.
 *
 * A chart is plain data in the caller's memory; one call writes one <svg> element, which stands
 * alone in a file and inside a page (page.h). Same data, same bytes. Values that are not finite,
 * or not positive on a logarithmic axis, are left out and break their line. */
#ifndef KR_REPORT_CHART_H
#define KR_REPORT_CHART_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

enum { KR_CHART_SERIES_MAX = 16, KR_CHART_CATEGORIES_MAX = 64 };

typedef enum {
    KR_SCALE_LINEAR,
    KR_SCALE_LOG10, /* ticks 1, 10, 100, 1k, ... */
    KR_SCALE_LOG2,  /* ticks 1K, 2K, 4K, ...: contexts, sizes */
} kr_scale;

typedef struct {
    const char *title; /* what and unit: "decode throughput, tokens/s" */
    kr_scale scale;
    double min, max; /* both 0: from the data; a linear axis then starts at 0 unless that would
                        waste more than half of it */
} kr_axis;

/* KR_MARK_DASHED_POINTS: hollow points on a dashed line. */
typedef enum {
    KR_MARK_LINE,
    KR_MARK_POINTS,
    KR_MARK_LINE_POINTS,
    KR_MARK_DASHED,
    KR_MARK_DASHED_POINTS,
} kr_mark;

typedef struct {
    const char *name; /* in the legend; NULL = not there */
    kr_mark mark;
    uint32_t count;
    const double *x, *y;       /* [count] */
    const double *low, *high;  /* [count] ends of an error bar in y, or NULL */
    const char *const *labels; /* [count] text beside a point (may be NULL), or NULL */
} kr_series;

typedef struct {
    const char *title, *note; /* note: one grey line below the title, or NULL */
    kr_axis x, y;
    const kr_series *series; /* [series_count] */
    uint32_t series_count;
} kr_xy_chart;

typedef struct {
    const char *title, *note;
    kr_axis y;                     /* linear; starts at 0 */
    const char *const *categories; /* [category_count], along the horizontal axis */
    uint32_t category_count;
    const char *const *names; /* [series_count], in the legend */
    const double *values;     /* [series_count][category_count], >= 0 when stacked */
    const double *low, *high; /* the same shape: error bars of bars side by side, or NULL */
    uint32_t series_count;
    bool stacked; /* else side by side */
} kr_bar_chart;

/* Attainable = min(peak, bandwidth * intensity), and what was achieved. */
typedef struct {
    const char *title, *note;
    double peak_flops;            /* FLOP/s */
    double bandwidth_bytes;       /* bytes/s */
    const char *const *names;     /* [count] */
    const double *intensity;      /* [count] FLOP/byte */
    const double *achieved_flops; /* [count] FLOP/s */
    uint32_t count;               /* <= KR_CHART_SERIES_MAX - 2 */
} kr_roofline;

/* How far a result moves when each parameter moves alone; the caller sorts the rows. */
typedef struct {
    const char *title, *note;
    kr_axis x;                      /* the result; linear */
    double base;                    /* result with no parameter moved */
    const char *const *names;       /* [count] */
    const double *at_low, *at_high; /* [count] result at the parameter's low and high end */
    uint32_t count;                 /* <= KR_CHART_CATEGORIES_MAX */
} kr_tornado;

/* KR_E_LIMIT: more series, categories or points than stated. KR_E_IO: out cannot be written. */
kr_status kr_chart_xy(const kr_xy_chart *chart, FILE *out, kr_err *err);
kr_status kr_chart_bars(const kr_bar_chart *chart, FILE *out, kr_err *err);
kr_status kr_chart_roofline(const kr_roofline *chart, FILE *out, kr_err *err);
kr_status kr_chart_tornado(const kr_tornado *chart, FILE *out, kr_err *err);

#endif
