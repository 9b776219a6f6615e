/* karat plan device: what a memory device is, what it meets, and what its parts do to the cluster. */
#include "cli/plan_device.h"

#include <math.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output_file.h"
#include "plan/access_trace.h"
#include "plan/device_study.h"
#include "plan/rederive.h"
#include "report/chart.h"
#include "report/page.h"
#include "report/table.h"

enum { TABLES = 7, LINKS = 5 };

/* ---- tables ---- */

static const kr_column figures[] = {{"id", NULL, "id", 0},
                                    {"figure", NULL, "figure", 0},
                                    {"paper", NULL, "paper", 2},
                                    {"ours", NULL, "ours", 2},
                                    {"unit", NULL, "unit", 0}};
static const kr_column requirements[] = {{"device", NULL, "device", 0},
                                         {"capacity/W over H200", "x", "capacity_per_w", 2},
                                         {"bandwidth/W over H200", "x", "bandwidth_per_w", 2},
                                         {"ridge", "FLOP/B", "ridge_flop_per_byte", 1},
                                         {"R1 capacity", NULL, "capacity", 0},
                                         {"R2 bandwidth", NULL, "bandwidth", 0},
                                         {"R3 compute", NULL, "compute", 0},
                                         {"R4 generality", NULL, "generality", 0}};
static const kr_column nodes[] = {{"devices", NULL, "devices", 0},
                                  {"power", "kW", "power_kw", 2},
                                  {"memory", "TB", "memory_tb", 2},
                                  {"bandwidth", "TB/s", "bandwidth_tb_s", 1},
                                  {"BF16", "TFLOPS", "bf16_tflops", 0}};
static const kr_column sweeps[] = {{"value", NULL, "at", 2},
                                   {"scan DeepSeek-V3.2", "ms", "scan_deepseek_v3_2_ms", 3},
                                   {"scan GLM-5.2", "ms", "scan_glm_5_2_ms", 3},
                                   {"scan MiniMax-M3", "ms", "scan_minimax_m3_ms", 3},
                                   {"power", "W", "power_w", 1},
                                   {"area", "mm2", "area_mm2", 1},
                                   {"devices", NULL, "devices", 0},
                                   {"sessions", NULL, "sessions", 0},
                                   {"tok/s/W", NULL, "tokens_per_s_per_w", 4},
                                   {"devices busy", "%", "device_busy_percent", 1}};

static kr_status fill_figures(kr_table *t, const char *data, kr_err *err)
{
    kr_rederived list[KR_REDERIVED_MAX];
    unsigned count;
    const kr_status status = kr_rederive(data, list, &count, err);

    kr_table_init(t, "The paper's own figures", figures, 5);
    for (unsigned i = 0; status == KR_OK && i < count; i++) {
        kr_table_text(t, "%s", list[i].id);
        kr_table_text(t, "%s", list[i].what);
        kr_table_real(t, list[i].paper);
        kr_table_real(t, list[i].ours);
        kr_table_text(t, "%s", list[i].unit);
    }
    return status;
}

static void fill_requirements(kr_table *t, const kr_device_study *s)
{
    kr_table_init(t, "Requirements (Table III)", requirements, 8);
    for (int i = 0; i <= KR_DEVICE_CLASSES; i++) {
        const kr_device_verdict *v = &s->verdict[i];

        kr_table_text(t, "%s%s", v->name, i == KR_DEVICE_CLASSES ? " (this)" : "");
        kr_table_real(t, v->capacity_per_w);
        kr_table_real(t, v->bandwidth_per_w);
        kr_table_real(t, v->ridge);
        kr_table_text(t, "%s", v->capacity ? "met" : "no");
        kr_table_text(t, "%s", v->bandwidth ? "met" : "no");
        kr_table_text(t, "%s", v->compute ? "met" : "no");
        kr_table_text(t, "%s", v->general ? "met" : "no");
    }
}

static void fill_node(kr_table *t, const kr_device_study *s)
{
    kr_table_init(t, "A node of the power of eight H200s (Table V)", nodes, 5);
    kr_table_real(t, s->node.devices);
    kr_table_real(t, s->node.power_kw);
    kr_table_real(t, s->node.memory_tb);
    kr_table_real(t, s->node.bandwidth_tb_s);
    kr_table_real(t, s->node.bf16_tflops);
}

static void fill_sweep(kr_table *t, const char *title, const kr_device_point *points, int count,
                       bool memory_types)
{
    kr_table_init(t, title, sweeps, sizeof sweeps / sizeof sweeps[0]);
    for (int i = 0; i < count; i++) {
        const kr_device_point *p = &points[i];
        const bool ran = p->job.status == KR_OK;

        if (memory_types)
            kr_table_text(t, "%s", kr_memory_types[i].name);
        else
            kr_table_real(t, p->at);
        for (int m = 0; m < KR_DEVICE_MODELS; m++)
            kr_table_real(t, p->scan_s[m] * 1e3);
        kr_table_real(t, p->power_w > 0.0 ? p->power_w : NAN);
        kr_table_real(t, p->area_mm2 > 0.0 ? p->area_mm2 : NAN);
        kr_table_count(t, p->job.scenario.devices);
        kr_table_count(t, ran ? p->job.result.sessions : 0);
        kr_table_real(t, ran ? p->job.result.tokens_per_s_per_w : NAN);
        kr_table_real(t, ran ? 100 * p->job.result.first.busy[KR_ON_DEVICE] : NAN);
    }
}

static const char *const keys[TABLES] = {"figures", "requirements", "node", "cores", "link", "memory_type"};

/* All tables, in order of keys; returns how many. */
static kr_status fill_all(kr_table t[TABLES], const kr_plan_device_options *o, const kr_device_study *s,
                          int *count, kr_err *err)
{
    const kr_status status = fill_figures(&t[0], o->search->base.data, err);

    fill_requirements(&t[1], s);
    fill_node(&t[2], s);
    fill_sweep(&t[3], "Cores (Figs. 7 and 13); scan: one request of 144K tokens", s->cores, KR_DEVICE_SWEEP,
               false);
    fill_sweep(&t[4], "Bytes a second of the link, as a factor (Fig. 13)", s->link, LINKS, false);
    fill_sweep(&t[5], "Memory types (Table IV), as many devices as 33.6 kW allow", s->memory,
               KR_DEVICE_MEMORIES, true);
    *count = 6;
    return status;
}

static kr_status print_text(kr_table *t, int count, kr_err *err)
{
    kr_status status = KR_OK;

    for (int i = 0; i < count && status == KR_OK; i++) {
        status = kr_table_print(&t[i], stdout, err);
        putchar('\n');
    }
    return status;
}

static int print_json(kr_table *t, int count)
{
    json_t *root = json_object();
    kr_err err;

    for (int i = 0; i < count; i++) {
        json_t *rows = NULL;

        if (kr_table_json(&t[i], &rows, &err) != KR_OK) {
            json_decref(root);
            return kr_cli_failed("plan", &err);
        }
        json_object_set_new(root, keys[i], rows);
    }
    return kr_cli_print_json(root);
}

/* ---- page ---- */

/* Time of the scan over cores, a line a model. */
static kr_status draw_scan(const kr_device_study *s, FILE *out, kr_err *err)
{
    double x[KR_DEVICE_SWEEP], y[KR_DEVICE_MODELS][KR_DEVICE_SWEEP];
    kr_series series[KR_DEVICE_MODELS];

    for (int m = 0; m < KR_DEVICE_MODELS; m++) {
        for (int i = 0; i < KR_DEVICE_SWEEP; i++) {
            x[i] = s->cores[i].at;
            y[m][i] = s->cores[i].scan_s[m] * 1e3;
        }
        series[m] = (kr_series){.name = kr_device_models[m],
                                .mark = KR_MARK_LINE_POINTS,
                                .x = x,
                                .y = y[m],
                                .count = KR_DEVICE_SWEEP};
    }
    return kr_chart_xy(&(kr_xy_chart){.title = "Index scan of one request of 144K tokens",
                                      .note = "beyond the knee the memory's bandwidth decides",
                                      .x = {.title = "cores"},
                                      .y = {.title = "ms"},
                                      .series = series,
                                      .series_count = KR_DEVICE_MODELS},
                       out, err);
}

static kr_status draw_line(const char *title, const char *x_title, kr_scale scale,
                           const kr_device_point *points, int count, FILE *out, kr_err *err)
{
    double x[KR_DEVICE_SWEEP], y[KR_DEVICE_SWEEP];
    const kr_series series = {.mark = KR_MARK_LINE_POINTS, .x = x, .y = y, .count = (uint32_t)count};

    for (int i = 0; i < count; i++) {
        x[i] = points[i].at;
        y[i] = points[i].job.status == KR_OK ? points[i].job.result.tokens_per_s_per_w : NAN;
    }
    return kr_chart_xy(&(kr_xy_chart){.title = title,
                                      .x = {.title = x_title, .scale = scale},
                                      .y = {.title = "tokens/s/W"},
                                      .series = &series,
                                      .series_count = 1},
                       out, err);
}

static kr_status draw_memory(const kr_device_study *s, FILE *out, kr_err *err)
{
    const char *names[KR_DEVICE_MEMORIES];
    static const char *const one[] = {"tokens/s/W"};
    double v[KR_DEVICE_MEMORIES];

    for (int i = 0; i < KR_DEVICE_MEMORIES; i++) {
        names[i] = kr_memory_types[i].name;
        v[i] = s->memory[i].job.status == KR_OK ? s->memory[i].job.result.tokens_per_s_per_w : 0.0;
    }
    return kr_chart_bars(&(kr_bar_chart){.title = "Memory type of the device, at the same power",
                                         .y = {.title = "tokens/s/W"},
                                         .categories = names,
                                         .category_count = KR_DEVICE_MEMORIES,
                                         .names = one,
                                         .values = v,
                                         .series_count = 1},
                         out, err);
}

static kr_status draw_area(const kr_device_study *s, FILE *out, kr_err *err)
{
    static const char *const names[] = {"cores", "cache", "link", "memory interface"};
    static const char *const one[] = {"die"};
    const kr_device_model *d = &s->device;
    const double v[] = {d->area_core_mm2, d->area_cache_mm2, d->area_link_mm2, d->area_memory_mm2};

    if (d->area_core_mm2 <= 0.0)
        return KR_OK;
    return kr_chart_bars(&(kr_bar_chart){.title = "Area of the die, mm2",
                                         .y = {.title = "mm2"},
                                         .categories = one,
                                         .category_count = 1,
                                         .names = names,
                                         .values = v,
                                         .series_count = 4,
                                         .stacked = true},
                         out, err);
}

static kr_status write_html(const kr_plan_device_options *o, const kr_device_study *s, kr_table *t, int count,
                            kr_err *err)
{
    kr_output_file file;
    kr_status status = kr_output_open(&file, o->html, err);

    if (status != KR_OK)
        return status;
    FILE *out = file.file;
    kr_page_begin(out, "karat plan device", s->device.name);
    kr_page_text(out, "%s on 16 GPUs and the devices that 33.6 kW allow, trace %s.", o->search->base.model,
                 o->trace);
    status = draw_scan(s, out, err);
    if (status == KR_OK)
        status = draw_line("Cores of a device", "cores", KR_SCALE_LINEAR, s->cores, KR_DEVICE_SWEEP, out,
                           err);
    if (status == KR_OK)
        status = draw_line("Link of a device", "bytes a second, as a factor", KR_SCALE_LOG2, s->link, LINKS,
                           out, err);
    if (status == KR_OK)
        status = draw_memory(s, out, err);
    if (status == KR_OK)
        status = draw_area(s, out, err);
    for (int i = 1; i < count && status == KR_OK; i++)
        status = kr_page_table(out, &t[i], err);
    if (status == KR_OK)
        status = kr_page_table(out, &t[0], err);
    if (status == KR_OK)
        status = kr_page_end(out, err);
    return kr_output_close(&file, status, err);
}

/* ---- access trace ---- */

static kr_status write_access_trace(const kr_plan_device_options *o, kr_access_sums *sums, kr_err *err)
{
    kr_scenario_options base = o->search->base;
    kr_scenario s;
    kr_status status;
    kr_output_file out;

    base.gpus = base.ep = 16;
    base.devices = 192;
    base.tp = 1;
    base.micro_batches = 2;
    status = kr_scenario_init(&s, &base, o->context_tokens, err);
    if (status != KR_OK)
        return status;
    status = kr_output_open(&out, o->access_trace, err);
    if (status == KR_OK) {
        status = kr_access_trace_write(&s, o->context_tokens, o->access_bytes, o->search->study.seed,
                                       out.file, sums, err);
        status = kr_output_close(&out, status, err);
    }
    kr_scenario_free(&s);
    return status;
}

/* ---- all ---- */

static kr_status report(const kr_plan_device_options *o, const kr_device_study *s, int *code, kr_err *err)
{
    kr_table t[TABLES];
    int count = 0;
    kr_status status = fill_all(t, o, s, &count, err);

    if (status == KR_OK && o->html != NULL)
        status = write_html(o, s, t, count, err);
    if (status == KR_OK && o->json)
        *code = print_json(t, count);
    else if (status == KR_OK)
        status = print_text(t, count, err);
    for (int i = 0; i < count; i++)
        kr_table_free(&t[i]);
    return status;
}

kr_status kr_plan_device(const kr_plan_device_options *o, int *code, kr_err *err)
{
    kr_device_study *s;
    kr_access_sums sums;
    kr_status status = KR_OK;

    /* The trace alone is quick, and is all that is asked for then. */
    if (o->access_trace != NULL) {
        status = write_access_trace(o, &sums, err);
        if (status == KR_OK)
            printf("%s: layer %u, Score %llu bytes, Gather %llu bytes, %llu accesses of %u bytes\n",
                   o->access_trace, sums.layer, (unsigned long long)sums.score_bytes,
                   (unsigned long long)sums.gather_bytes, (unsigned long long)sums.lines, o->access_bytes);
        return status;
    }
    s = kr_alloc(sizeof *s);
    if (s == NULL)
        return kr_fail(err, KR_E_MEMORY, "plan: no memory for the study");
    status = kr_device_study_run(&o->search->base, &o->search->study, o->search->workload, o->search->threads,
                                 s, err);
    if (status == KR_OK)
        status = report(o, s, code, err);
    kr_free(s);
    return status;
}
