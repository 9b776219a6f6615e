/* The results of karat eval as a table, JSON and one page with curves. */
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "eval/eval.h"
#include "eval/eval_methods.h"
#include "report/chart.h"
#include "report/page.h"

static const kr_column columns[] = {
    {"context", "tokens", "context", 0},
    {"method", NULL, "method", 0},
    {"budget", "tokens", "budget", 0},
    {"attended", "tokens", "attended_tokens", 0},
    {"recall", NULL, "recall", 4},
    {"output error", NULL, "output_error", 4},
    {"perplexity", NULL, "perplexity", 4},
    {"to dense", NULL, "perplexity_difference", 4},
    {"ratio", NULL, "perplexity_ratio", 4},
    {"to dense", "nats", "nll_difference", 4},
    {"+-", "nats", "nll_difference_standard_error", 4},
    {"passkeys", NULL, "passkeys_found", 0},
    {"of", NULL, "passkeys_judged", 0},
    {"a step", "ms", "step_ms", 2},
    {"decode", "tokens/s", "decode_tokens_per_s", 1},
    {"speed", "x dense", "speed_to_dense", 2},
};

enum { COLUMNS = sizeof columns / sizeof columns[0] };

/* Dense is the first row of its context. */
static const kr_eval_row *dense_of(const kr_eval_result *r, const kr_eval_row *row)
{
    const kr_eval_row *dense = row;
    while (dense > r->row && dense[-1].context == row->context)
        dense--;
    return dense;
}

static double ratio_of(const kr_eval_row *row) { return exp(row->nll_difference); }

static void add_rows(const kr_eval_result *r, kr_table *t)
{
    for (uint32_t i = 0; i < r->rows; i++) {
        const kr_eval_row *row = &r->row[i], *dense = dense_of(r, row);
        kr_table_count(t, row->context);
        kr_table_text(t, "%s", row->method);
        if (row->budget != 0)
            kr_table_count(t, row->budget);
        else
            kr_table_none(t);
        kr_table_real(t, row->attention.attended);
        kr_table_real(t, row->attention.recall);
        kr_table_real(t, row->attention.error);
        kr_table_real(t, row->perplexity);
        kr_table_real(t, row->perplexity - dense->perplexity);
        kr_table_real(t, ratio_of(row));
        kr_table_real(t, row->nll_difference);
        kr_table_real(t, row->nll_difference_error);
        kr_table_count(t, row->needles_found);
        kr_table_count(t, row->needles_judged);
        kr_table_real(t, row->step_ms);
        kr_table_real(t, 1e3 / row->step_ms);
        kr_table_real(t, dense->step_ms / row->step_ms);
    }
}

/* ---- text ---- */

static bool has_row(const kr_eval_result *r, const char *method)
{
    for (uint32_t i = 0; i < r->rows; i++)
        if (strcmp(r->row[i].method, method) == 0)
            return true;
    return false;
}

kr_status kr_eval_print(const kr_eval_result *r, FILE *out, kr_err *err)
{
    const kr_eval_options *o = &r->options;
    kr_table table;
    fprintf(out,
            "%s; KV %s; %u thread%s; %u passage%s of %llu scored tokens, attention looked at on %u of them; "
            "text %s\n\n",
            r->model, kr_dtype_name(o->kv_dtype), o->threads, o->threads == 1 ? "" : "s", o->passages,
            o->passages == 1 ? "" : "s", (unsigned long long)o->tokens, o->samples, o->text_path);
    kr_table_init(&table, NULL, columns, COLUMNS);
    add_rows(r, &table);
    kr_status status = kr_table_print(&table, out, err);
    kr_table_free(&table);
    for (uint32_t i = 0; i < kr_eval_method_count && status == KR_OK; i++)
        if (kr_eval_methods[i].note != NULL && has_row(r, kr_eval_methods[i].name))
            fprintf(out, "%s\n", kr_eval_methods[i].note);
    return status;
}

/* ---- JSON ---- */

/* Means by layer and head; a layer that stays dense has recall 1. */
static json_t *recall_json(const kr_eval_row *row)
{
    json_t *layers = json_array();
    for (uint32_t l = 0; l < row->sums.layers; l++) {
        json_t *heads = json_array();
        for (uint32_t h = 0; h < row->sums.heads; h++)
            json_array_append_new(heads, json_real(row->sums.sum[l * row->sums.heads + h].recall));
        json_array_append_new(layers, heads);
    }
    return layers;
}

kr_status kr_eval_json(const kr_eval_result *r, json_t **root, kr_err *err)
{
    const kr_eval_options *o = &r->options;
    json_t *rows = NULL;
    kr_table table;
    kr_table_init(&table, NULL, columns, COLUMNS);
    add_rows(r, &table);
    const kr_status status = kr_table_json(&table, &rows, err);
    kr_table_free(&table);
    if (status != KR_OK)
        return status;
    for (uint32_t i = 0; i < r->rows; i++)
        json_object_set_new(json_array_get(rows, i), "recall_by_layer_and_head", recall_json(&r->row[i]));
    json_t *object = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "model", r->model,
                               "text", o->text_path, "kv_dtype", kr_dtype_name(o->kv_dtype), "threads",
                               (json_int_t)o->threads, "passages", (json_int_t)o->passages, "tokens",
                               (json_int_t)o->tokens, "samples", (json_int_t)o->samples, "layers",
                               (json_int_t)r->layers, "heads", (json_int_t)r->heads, "rows", rows);
    if (object == NULL)
        return kr_fail(err, KR_E_MEMORY, "eval: no memory for its JSON");
    *root = object;
    return KR_OK;
}

/* ---- curves ---- */

typedef double (*quantity)(const kr_eval_row *row);

static double loss_of(const kr_eval_row *row) { return row->nll_difference; }
static double recall_of(const kr_eval_row *row) { return row->attention.recall; }
static double error_of(const kr_eval_row *row) { return row->attention.error; }
static double step_ms_of(const kr_eval_row *row) { return row->step_ms; }
/* A method without budget stands where the tokens that it attended put it. */
static double budget_of(const kr_eval_row *row)
{
    return row->budget != 0 ? row->budget : row->attention.attended;
}
static double found_of(const kr_eval_row *row)
{
    return row->needles_judged != 0 ? 100.0 * row->needles_found / row->needles_judged : NAN;
}

typedef struct {
    double x[KR_EVAL_METHODS_MAX][KR_LAYERS_MAX], y[KR_EVAL_METHODS_MAX][KR_LAYERS_MAX];
    kr_series series[KR_EVAL_METHODS_MAX];
    uint32_t count;
} curves;

static kr_status draw(const curves *c, const char *title, const char *note, kr_axis x, kr_axis y, FILE *out,
                      kr_err *err)
{
    const kr_xy_chart chart = {
        .title = title, .note = note, .x = x, .y = y, .series = c->series, .series_count = c->count};
    return kr_chart_xy(&chart, out, err);
}

/* Methods that forget tokens for good are dashed. */
static kr_mark mark_of(const char *method, kr_mark others)
{
    static const char *const forgetting[] = {"snapkv", "h2o", "streamingllm"};
    for (size_t i = 0; i < sizeof forgetting / sizeof forgetting[0]; i++)
        if (strcmp(forgetting[i], method) == 0)
            return KR_MARK_DASHED_POINTS;
    return others;
}

static void add_point(const kr_eval_row *row, quantity x, quantity y, curves *c)
{
    if (c->count == 0 || strcmp(c->series[c->count - 1].name, row->method) != 0) {
        const uint32_t s = c->count++;
        c->series[s] = (kr_series){.name = row->method,
                                   .mark = mark_of(row->method, KR_MARK_LINE_POINTS),
                                   .x = c->x[s],
                                   .y = c->y[s]};
    }
    const uint32_t s = c->count - 1, n = c->series[s].count++;
    c->x[s][n] = x(row);
    c->y[s][n] = y(row);
}

/* One curve a method over its budgets; rows [first, end) are of one context. Dense comes last, so that
 * the others have the same colours everywhere. */
static void collect(const kr_eval_result *r, uint32_t first, uint32_t end, quantity x, quantity y,
                    bool with_dense, curves *c)
{
    static const char *const label[] = {"dense"};
    c->count = 0;
    for (uint32_t i = first + 1; i < end; i++)
        add_point(&r->row[i], x, y, c);
    if (!with_dense)
        return;
    add_point(&r->row[first], x, y, c);
    c->series[c->count - 1].labels = label; /* colours have begun anew by then */
}

/* No other budget of the method in rows [first, end) is nearer to 1,024, and no earlier one as near. */
static bool is_nearest(const kr_eval_result *r, uint32_t first, uint32_t end, uint32_t i)
{
    const double mine = fabs(r->row[i].budget - 1024.0);
    for (uint32_t j = first; j < end; j++) {
        const double other = fabs(r->row[j].budget - 1024.0);
        if (strcmp(r->row[j].method, r->row[i].method) == 0 && (other < mine || (other == mine && j < i)))
            return false;
    }
    return true;
}

/* Recall by layer, mean over heads. */
static void collect_layers(const kr_eval_result *r, uint32_t first, uint32_t end, curves *c)
{
    c->count = 0;
    for (uint32_t i = first + 1; i < end; i++) {
        const kr_eval_row *row = &r->row[i];
        if (!is_nearest(r, first, end, i))
            continue;
        const uint32_t s = c->count++;
        c->series[s] = (kr_series){.name = row->method,
                                   .mark = mark_of(row->method, KR_MARK_LINE),
                                   .x = c->x[s],
                                   .y = c->y[s],
                                   .count = row->sums.layers};
        for (uint32_t l = 0; l < row->sums.layers; l++) {
            c->x[s][l] = l;
            c->y[s][l] = 0;
            for (uint32_t h = 0; h < row->sums.heads; h++)
                c->y[s][l] += row->sums.sum[l * row->sums.heads + h].recall / row->sums.heads;
        }
    }
}

static kr_status draw_context(const kr_eval_result *r, uint32_t first, uint32_t end, curves *c, FILE *out,
                              kr_err *err)
{
    static const struct {
        const char *title, *note;
        quantity x, y;
        bool with_dense;
        kr_axis x_axis, y_axis;
    } chart[] = {
        {"Loss against budget",
         "Logarithm of perplexity over dense; dashed methods forget. One without budget stands at its "
         "attended tokens.",
         budget_of,
         loss_of,
         false,
         {"budget, tokens", KR_SCALE_LOG2, 0, 0},
         {"loss to dense, nats a token", KR_SCALE_LINEAR, 0, 0}},
        {"Recall against budget",
         "Share of the dense softmax that the selected tokens hold.",
         budget_of,
         recall_of,
         false,
         {"budget, tokens", KR_SCALE_LOG2, 0, 0},
         {"recall", KR_SCALE_LINEAR, 0, 1}},
        {"Output error against budget",
         "Relative L2 distance of a layer's attention output to dense.",
         budget_of,
         error_of,
         false,
         {"budget, tokens", KR_SCALE_LOG2, 0, 0},
         {"relative error", KR_SCALE_LINEAR, 0, 0}},
        {"Quality against time",
         "Each point is a budget; down and to the left is better.",
         step_ms_of,
         loss_of,
         true,
         {"decode step, ms", KR_SCALE_LINEAR, 0, 0},
         {"loss to dense, nats a token", KR_SCALE_LINEAR, 0, 0}},
        {"Passkeys found against budget",
         "Of the prompts that dense answers.",
         budget_of,
         found_of,
         false,
         {"budget, tokens", KR_SCALE_LOG2, 0, 0},
         {"found, %", KR_SCALE_LINEAR, 0, 100}},
    };
    kr_status status = KR_OK;
    for (size_t i = 0; i < sizeof chart / sizeof chart[0] && status == KR_OK; i++) {
        if (chart[i].y == found_of && r->row[first].needles_found == 0)
            continue;
        collect(r, first, end, chart[i].x, chart[i].y, chart[i].with_dense, c);
        if (c->count != 0)
            status = draw(c, chart[i].title, chart[i].note, chart[i].x_axis, chart[i].y_axis, out, err);
    }
    collect_layers(r, first, end, c);
    if (status != KR_OK || c->count == 0)
        return status;
    return draw(c, "Recall by layer", "Mean over heads, at the budget nearest to 1,024.",
                (kr_axis){"layer", KR_SCALE_LINEAR, 0, 0}, (kr_axis){"recall", KR_SCALE_LINEAR, 0, 1}, out,
                err);
}

/* ---- the page ---- */

static void write_method(const kr_eval_result *r, FILE *out)
{
    const kr_eval_options *o = &r->options;
    kr_page_text(
        out,
        "Text: %s. %u passage(s) of it are prefilled densely once for each context; every method and "
        "budget then "
        "decodes over the same keys and values (%s), %llu forced tokens a passage, with %u threads.",
        o->text_path, o->passages, kr_dtype_name(o->kv_dtype), (unsigned long long)o->tokens, o->threads);
    kr_page_text(
        out,
        "Recall, output error and attended tokens are means over %u of a passage's steps, over heads and "
        "over the "
        "layers that select. Differences of log-likelihood are paired, token by token; +- is one standard "
        "error, which takes tokens for independent. A step's time is the median of steps that were not "
        "looked at, the whole model included; with one thread it is that thread's running time.",
        o->samples);
    for (uint32_t i = 0; i < kr_eval_method_count; i++)
        if (kr_eval_methods[i].note != NULL && has_row(r, kr_eval_methods[i].name))
            kr_page_text(out, "%s", kr_eval_methods[i].note);
}

static void write_needles(const kr_eval_result *r, uint32_t first, FILE *out)
{
    const kr_eval_row *dense = &r->row[first];
    if (dense->needles_judged != 0)
        kr_page_text(
            out,
            "Passkeys: dense answers %u of %u prompts; the others are asked these. Question and answer are "
            "decode steps.",
            dense->needles_found, dense->needles_judged);
}

kr_status kr_eval_html(const kr_eval_result *r, const char *command, FILE *out, kr_err *err)
{
    curves *c = kr_alloc(sizeof *c);
    kr_table table;
    kr_status status = c != NULL ? KR_OK : kr_fail(err, KR_E_MEMORY, "eval: no memory for its page");
    kr_page_begin(out, "karat eval", r->model);
    if (command != NULL)
        kr_page_code(out, command);
    for (uint32_t first = 0, end = 0; first < r->rows && status == KR_OK; first = end) {
        char heading[64];
        while (end < r->rows && r->row[end].context == r->row[first].context)
            end++;
        snprintf(heading, sizeof heading, "Context %llu", (unsigned long long)r->row[first].context);
        kr_page_heading(out, heading);
        write_needles(r, first, out);
        status = draw_context(r, first, end, c, out, err);
    }
    kr_free(c);
    kr_page_heading(out, "All figures");
    kr_table_init(&table, NULL, columns, COLUMNS);
    add_rows(r, &table);
    if (status == KR_OK)
        status = kr_page_table(out, &table, err);
    kr_table_free(&table);
    kr_page_heading(out, "How it was measured");
    write_method(r, out);
    const kr_status ended = kr_page_end(out, err);
    return status == KR_OK ? ended : status;
}
