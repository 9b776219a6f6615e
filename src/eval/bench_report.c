/* The results of karat bench as tables, JSON and a picture. */
#include <math.h>
#include <string.h>

#include "eval/bench.h"
#include "report/chart.h"
#include "report/number.h"

static const char *const limit_names[] = {
    [KR_LIMIT_F32] = "F32 FMA",
    [KR_LIMIT_BF16] = "BF16 dot",
    [KR_LIMIT_READ] = "read",
    [KR_LIMIT_ROOFLINE] = "roofline",
    [KR_LIMIT_ROOFLINE_BF16] = "BF16 roofline",
};

static const kr_column kernel_columns[] = {
    {"kernel", NULL, "kernel", 0},
    {"variant", NULL, "variant", 0},
    {"shape", NULL, "shape", 0},
    {"pool", NULL, "pool", 0},
    {"limit", NULL, "limit", 0},
    {"of limit", "%", "share_percent", 1},
    {"p10", "%", "share_p10_percent", 1},
    {"p90", "%", "share_p90_percent", 1},
    {"compute", "GFLOP/s", "gflop_per_s", 1},
    {"read", "GB/s", "gb_per_s", 2},
    {"a token", "ns", "ns_per_token", 2},
    {"limit", "GFLOP/s", "limit_gflop_per_s", 1},
    {"limit", "GB/s", "limit_gb_per_s", 2},
    {"kept", NULL, "kept", 0},
    {"of", NULL, "repeats", 0},
};

static void add_kernels(const kr_bench_result *r, kr_table *t)
{
    const double threads = r->options.threads;

    for (uint32_t i = 0; i < r->rows; i++) {
        const kr_bench_row *row = &r->row[i];

        kr_table_text(t, "%s", row->kernel);
        kr_table_text(t, "%s", row->variant);
        kr_table_text(t, "%s", row->shape);
        kr_table_text(t, "%s", row->cold ? "cold" : "warm");
        kr_table_text(t, "%s", limit_names[row->limit]);
        kr_table_real(t, 100 * row->share);
        kr_table_real(t, 100 * row->share_low);
        kr_table_real(t, 100 * row->share_high);
        kr_table_real(t, row->flops * threads / row->seconds * 1e-9);
        kr_table_real(t, row->bytes * threads / row->seconds * 1e-9);
        kr_table_real(t, row->seconds / row->tokens / threads * 1e9);
        kr_table_real(t, row->limit_flops > 0 ? row->limit_flops * 1e-9 : NAN);
        kr_table_real(t, row->limit_bytes > 0 ? row->limit_bytes * 1e-9 : NAN);
        kr_table_count(t, row->kept);
        kr_table_count(t, row->total);
    }
}

static const kr_column select_columns[] = {
    {"scores", NULL, "scores", 0},
    {"variant", NULL, "variant", 0},
    {"n", NULL, "n", 0},
    {"k", NULL, "k", 0},
    {"an element", "ns", "ns_per_element", 2},
    {"quickselect", "ns", "quickselect_ns_per_element", 2},
    {"faster", "times", "times_faster", 1},
    {"p10", NULL, "times_p10", 1},
    {"p90", NULL, "times_p90", 1},
    {"kept", NULL, "kept", 0},
    {"of", NULL, "repeats", 0},
};

static void add_selection(const kr_bench_result *r, kr_table *t)
{
    for (uint32_t i = 0; i < r->select_rows; i++) {
        const kr_bench_select_row *row = &r->select[i];

        kr_table_text(t, "%s", row->scores);
        kr_table_text(t, "%s", row->variant);
        kr_table_count(t, row->n);
        kr_table_count(t, row->k);
        kr_table_real(t, row->ns_an_element);
        kr_table_real(t, row->peer_ns_an_element);
        kr_table_real(t, row->times);
        kr_table_real(t, row->times_low);
        kr_table_real(t, row->times_high);
        kr_table_count(t, row->kept);
        kr_table_count(t, row->total);
    }
}

static const kr_column context_columns[] = {
    {"scan", NULL, "kernel", 0},     {"variant", NULL, "variant", 0}, {"shape", NULL, "shape", 0},
    {"context", NULL, "context", 0}, {"cold", "ms", "cold_ms", 2},
};

static bool is_scan(const char *kernel) { return strstr(kernel, "attend") == NULL; }

/* Whole contexts, derived from the median cold window: long windows always lose the CPU once. */
static void add_contexts(const kr_bench_result *r, kr_table *t)
{
    for (uint32_t i = 0; i < r->rows; i++)
        for (uint32_t k = 0; k < r->options.context_count; k++) {
            const kr_bench_row *row = &r->row[i];

            if (!row->cold || !is_scan(row->kernel))
                continue;
            kr_table_text(t, "%s", row->kernel);
            kr_table_text(t, "%s", row->variant);
            kr_table_text(t, "%s", row->shape);
            kr_table_count(t, r->options.contexts[k]);
            kr_table_real(t, row->seconds / row->tokens / r->options.threads *
                                 (double)r->options.contexts[k] * 1e3);
        }
}

static const kr_column absent_columns[] = {
    {"kernel", NULL, "kernel", 0},
    {"variant", NULL, "variant", 0},
    {"why", NULL, "why", 0},
};

static void add_absent(const kr_bench_result *r, kr_table *t)
{
    for (uint32_t i = 0; i < r->absent_rows; i++) {
        kr_table_text(t, "%s", r->absent[i].kernel);
        kr_table_text(t, "%s", r->absent[i].variant);
        kr_table_text(t, "%s", r->absent[i].why);
    }
}

#define COUNT(array) (uint32_t)(sizeof array / sizeof *array)

typedef struct {
    const char *title, *key;
    const kr_column *columns;
    uint32_t column_count;
    void (*add)(const kr_bench_result *r, kr_table *t);
} section;

static const section sections[] = {
    {"Kernels beside their limit", "kernels", kernel_columns, COUNT(kernel_columns), add_kernels},
    {"Exact top-k, one thread", "selection", select_columns, COUNT(select_columns), add_selection},
    {"One scan of a whole context, derived from the cold windows", "contexts", context_columns,
     COUNT(context_columns), add_contexts},
    {"Not measured", "absent", absent_columns, COUNT(absent_columns), add_absent},
};

void kr_bench_command(const kr_bench_options *o, char text[KR_BENCH_COMMAND_BYTES])
{
    int used = snprintf(text, KR_BENCH_COMMAND_BYTES, "karat bench --threads %u --seconds %g --pool %lluM",
                        o->threads, o->seconds, (unsigned long long)(o->pool_bytes >> 20));

    for (uint32_t i = 0; i < o->context_count && used < KR_BENCH_COMMAND_BYTES; i++)
        used += snprintf(text + used, KR_BENCH_COMMAND_BYTES - (size_t)used, "%s%llu",
                         i == 0 ? " --contexts " : ",", (unsigned long long)o->contexts[i]);
    if (o->only != NULL && used < KR_BENCH_COMMAND_BYTES)
        snprintf(text + used, KR_BENCH_COMMAND_BYTES - (size_t)used, " --only %s", o->only);
}

kr_status kr_bench_print(const kr_bench_result *result, FILE *out, kr_err *err)
{
    kr_status status = KR_OK;
    char flops[KR_NUMBER_BYTES], bytes[KR_NUMBER_BYTES], pool[KR_NUMBER_BYTES],
        command[KR_BENCH_COMMAND_BYTES];

    kr_number_si(result->f32_flops, flops);
    kr_number_si(result->read_bytes, bytes);
    kr_number_binary((double)result->options.pool_bytes, pool);
    kr_bench_command(&result->options, command);
    fprintf(out, "%s\n%s; %u thread%s; pool of %sB", command, result->cpu, result->options.threads,
            result->options.threads == 1 ? "" : "s", pool);
    if (isfinite(result->f32_flops) && isfinite(result->read_bytes)) /* not when only top-k was asked for */
        fprintf(out, "; F32 FMA %sFLOP/s, cold read %sB/s", flops, bytes);
    fputc('\n', out);
    for (size_t i = 0; i < sizeof sections / sizeof *sections && status == KR_OK; i++) {
        kr_table table;

        kr_table_init(&table, sections[i].title, sections[i].columns, sections[i].column_count);
        sections[i].add(result, &table);
        if (kr_table_rows(&table) > 0) {
            fputc('\n', out);
            status = kr_table_print(&table, out, err);
        }
        kr_table_free(&table);
    }
    return status;
}

kr_status kr_bench_json(const kr_bench_result *result, json_t **root, kr_err *err)
{
    char command[KR_BENCH_COMMAND_BYTES];

    kr_bench_command(&result->options, command);
    json_t *object = json_pack("{s:s, s:s, s:I, s:f, s:f, s:I}", "command", command, "cpu", result->cpu,
                               "threads", (json_int_t)result->options.threads, "f32_flop_per_s",
                               isfinite(result->f32_flops) ? result->f32_flops : 0.0, "read_bytes_per_s",
                               isfinite(result->read_bytes) ? result->read_bytes : 0.0, "pool_bytes",
                               (json_int_t)result->options.pool_bytes);
    kr_status status = object != NULL ? KR_OK : kr_fail(err, KR_E_MEMORY, "bench: no memory for its JSON");

    for (size_t i = 0; i < sizeof sections / sizeof *sections && status == KR_OK; i++) {
        kr_table table;
        json_t *rows = NULL;

        kr_table_init(&table, sections[i].title, sections[i].columns, sections[i].column_count);
        sections[i].add(result, &table);
        status = kr_table_json(&table, &rows, err);
        if (status == KR_OK && json_object_set_new(object, sections[i].key, rows) != 0)
            status = kr_fail(err, KR_E_MEMORY, "bench: no memory for its JSON");
        kr_table_free(&table);
    }
    if (status == KR_OK)
        *root = object;
    else
        json_decref(object);
    return status;
}

kr_status kr_bench_svg(const kr_bench_result *result, FILE *out, kr_err *err)
{
    enum { MOST = KR_CHART_SERIES_MAX - 2, NAME = 64 };
    char name[MOST][NAME], note[KR_BENCH_COMMAND_BYTES + sizeof result->cpu + 4],
        command[KR_BENCH_COMMAND_BYTES];
    const char *names[MOST];
    double intensity[MOST], achieved[MOST];
    kr_roofline chart = {.title = "F32 kernels under the roofline, cold",
                         .note = note,
                         .peak_flops = result->f32_flops,
                         .bandwidth_bytes = result->read_bytes,
                         .names = names,
                         .intensity = intensity,
                         .achieved_flops = achieved};

    kr_bench_command(&result->options, command);
    snprintf(note, sizeof note, "%s: %s", result->cpu, command);
    /* One point a kernel and shape: its fastest variant of those that the F32 roof is for. */
    for (uint32_t i = 0; i < result->rows; i++) {
        const kr_bench_row *row = &result->row[i];
        const double rate = row->flops * result->options.threads / row->seconds;
        uint32_t k = 0;

        if (!row->cold || !isfinite(rate) || row->limit == KR_LIMIT_BF16 ||
            row->limit == KR_LIMIT_ROOFLINE_BF16)
            continue;
        while (k < chart.count && strncmp(name[k], row->shape, NAME - 1) != 0)
            k++;
        if (k == MOST || (k < chart.count && achieved[k] >= rate))
            continue;
        snprintf(name[k], NAME, "%s", row->shape);
        names[k] = name[k];
        intensity[k] = row->flops / row->bytes;
        achieved[k] = rate;
        chart.count += k == chart.count;
    }
    return kr_chart_roofline(&chart, out, err);
}
