/* Charts of a search. Points on the front are named as in its table. */
#include "cli/plan_page.h"

#include <string.h>

#include "report/chart.h"

enum { FRONT_MAX = 12, NAME_BYTES = 24 };

/* The front, best first. */
typedef struct {
    const kr_study_job *job[FRONT_MAX];
    char text[FRONT_MAX][NAME_BYTES];
    const char *name[FRONT_MAX];
    uint32_t count;
} front;

static void find_front(const kr_search *s, front *f)
{
    f->count = 0;
    for (uint32_t i = 0; i < s->points; i++) {
        uint32_t at;

        if (!s->pareto[i] || f->count == FRONT_MAX)
            continue;
        for (at = f->count++;
             at > 0 && f->job[at - 1]->result.tokens_per_s_per_w < s->job[i].result.tokens_per_s_per_w; at--)
            f->job[at] = f->job[at - 1];
        f->job[at] = &s->job[i];
    }
    for (uint32_t i = 0; i < f->count; i++) {
        /* The point, its GPUs and its memory devices. */
        snprintf(f->text[i], NAME_BYTES, "%u: %u + %u", (unsigned)(f->job[i] - s->job),
                 f->job[i]->scenario.gpus, f->job[i]->scenario.devices);
        f->name[i] = f->text[i];
    }
}

static kr_status draw_watts(const front *f, FILE *out, kr_err *err)
{
    static const char *const one[] = {"tokens/s/W"};
    double v[FRONT_MAX];

    for (uint32_t i = 0; i < f->count; i++)
        v[i] = f->job[i]->result.tokens_per_s_per_w;
    return kr_chart_bars(&(kr_bar_chart){.title = "Throughput per watt of the front (point: GPUs + devices)",
                                         .y = {.title = "tokens/s/W"},
                                         .categories = f->name,
                                         .category_count = f->count,
                                         .names = one,
                                         .values = v,
                                         .series_count = 1},
                         out, err);
}

static kr_status draw_busy(const front *f, FILE *out, kr_err *err)
{
    static const char *const names[] = {"compute ranks", "memory devices", "links", "expert network"};
    double v[KR_RESOURCE_COUNT * FRONT_MAX];

    for (uint32_t k = 0; k < KR_RESOURCE_COUNT; k++)
        for (uint32_t i = 0; i < f->count; i++)
            v[k * f->count + i] = 100 * f->job[i]->result.first.busy[k];
    return kr_chart_bars(&(kr_bar_chart){.title = "Utilisation",
                                         .y = {.title = "% of the time"},
                                         .categories = f->name,
                                         .category_count = f->count,
                                         .names = names,
                                         .values = v,
                                         .series_count = KR_RESOURCE_COUNT},
                         out, err);
}

static kr_status draw_stalls(const front *f, FILE *out, kr_err *err)
{
    static const char *const names[] = {"busy", "waits for devices", "waits for links",
                                        "waits for the expert network"};
    double v[KR_RESOURCE_COUNT * FRONT_MAX];

    for (uint32_t k = 0; k < KR_RESOURCE_COUNT; k++)
        for (uint32_t i = 0; i < f->count; i++) {
            const kr_sim_result *r = &f->job[i]->result.first;

            v[k * f->count + i] = 100 * (k == KR_ON_COMPUTE ? r->busy[k] : r->stall[k]);
        }
    return kr_chart_bars(&(kr_bar_chart){.title = "Stalls: what compute ranks do and wait for",
                                         .y = {.title = "% of the time"},
                                         .categories = f->name,
                                         .category_count = f->count,
                                         .names = names,
                                         .values = v,
                                         .series_count = KR_RESOURCE_COUNT,
                                         .stacked = true},
                         out, err);
}

/* Kinds of op by share of the best point's step; they overlap, so that the sum may be over 100. */
static kr_status draw_step(const kr_search *s, FILE *out, kr_err *err)
{
    static const char *const one[] = {"busiest rank, device, link or network"};
    const kr_study_job *best = &s->job[s->best];
    const char *names[KR_OP_KINDS];
    double v[KR_OP_KINDS];
    uint32_t count = 0;

    for (int k = 0; k < KR_OP_KINDS; k++)
        if (best->share[k] >= 0.005) {
            names[count] = kr_op_name((kr_op_kind)k);
            v[count++] = 100 * best->share[k];
        }
    if (count == 0)
        return KR_OK;
    return kr_chart_bars(&(kr_bar_chart){.title = "Step of the best point, by op",
                                         .note = "ops on different places overlap",
                                         .y = {.title = "% of the step"},
                                         .categories = names,
                                         .category_count = count,
                                         .names = one,
                                         .values = v,
                                         .series_count = 1},
                         out, err);
}

static kr_status draw_points(const kr_search *s, FILE *out, kr_err *err)
{
    static double x[2][KR_PLAN_POINTS_MAX], y[2][KR_PLAN_POINTS_MAX];
    kr_series series[2] = {{.name = "dominated", .mark = KR_MARK_POINTS, .x = x[0], .y = y[0]},
                           {.name = "on the front", .mark = KR_MARK_POINTS, .x = x[1], .y = y[1]}};

    for (uint32_t i = 0; i < s->points; i++) {
        kr_series *to = &series[s->pareto[i]];

        if (s->job[i].status != KR_OK)
            continue;
        x[s->pareto[i]][to->count] = s->job[i].result.sessions;
        y[s->pareto[i]][to->count++] = s->job[i].result.tokens_per_s_per_w;
    }
    return kr_chart_xy(&(kr_xy_chart){.title = "All points that run",
                                      .x = {.title = "sessions in flight"},
                                      .y = {.title = "tokens/s/W"},
                                      .series = series,
                                      .series_count = 2},
                       out, err);
}

static kr_status draw_tornado(const kr_search *s, FILE *out, kr_err *err)
{
    return kr_chart_tornado(&(kr_tornado){.title = "Sensitivity of the best point",
                                          .x = {.title = "tokens/s/W"},
                                          .base = s->job[s->best].result.tokens_per_s_per_w,
                                          .names = s->factor,
                                          .at_low = s->low,
                                          .at_high = s->high,
                                          .count = KR_PLAN_FACTORS},
                            out, err);
}

kr_status kr_plan_draw(const kr_search *s, FILE *out, kr_err *err)
{
    kr_status status = KR_OK;
    front f;

    find_front(s, &f);
    if (f.count != 0)
        status = draw_watts(&f, out, err);
    if (status == KR_OK)
        status = draw_points(s, out, err);
    if (s->best == UINT32_MAX)
        return status;
    if (status == KR_OK)
        status = draw_step(s, out, err);
    if (status == KR_OK)
        status = draw_stalls(&f, out, err);
    if (status == KR_OK)
        status = draw_busy(&f, out, err);
    return status == KR_OK ? draw_tornado(s, out, err) : status;
}
