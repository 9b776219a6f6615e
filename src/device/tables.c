/* Reading and looking up measured grids. */
#include "device/tables.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/json.h"

enum { WHERE_BYTES = 4200, AXIS_POINTS_MAX = 4096, ANY_MATH = -1 };

#define TRY(call)                            \
    do {                                     \
        const kr_status try_status = (call); \
        if (try_status != KR_OK)             \
            return try_status;               \
    } while (0)

typedef enum { OF_COUNT, OF_IN, OF_OUT, OF_ROWS, OF_CONTEXT, OF_RANKS, OF_EXPERT_ROWS, OF_BYTES } quantity;

static const char *const quantities[] = {"count",   "in",    "out",         "rows",
                                         "context", "ranks", "expert_rows", "bytes"};

typedef struct {
    quantity of;
    double *at; /* [points] ascending */
    uint32_t points;
} axis;

typedef struct {
    kr_op_kind op; /* KR_OP_KINDS: matrix products */
    char model[48];
    char method[16];
    int math; /* kr_dtype or ANY_MATH */
    uint32_t in, out;
    axis axis[KR_TABLE_AXES_MAX];
    uint32_t axes, points;
    double *us;   /* [points] row-major */
    bool *filled; /* [points]: not measured */
} table;

struct kr_device_tables {
    char device[64];
    uint32_t count;
    table table[KR_TABLES_MAX];
};

/* ---- reading ---- */

static kr_status read_name(kr_json j, const char *key, bool required, char *out, size_t bytes, kr_err *err)
{
    const char *text = "";

    TRY(kr_json_string(j, key, required, &text, err));
    if (strlen(text) >= bytes)
        return kr_fail(err, KR_E_FORMAT, "%s: %s is longer than %zu bytes", j.where, key, bytes - 1);
    memcpy(out, text, strlen(text) + 1);
    return KR_OK;
}

static kr_status read_selectors(kr_json j, table *t, kr_err *err)
{
    const char *op = NULL, *math = NULL;
    kr_dtype type;

    TRY(kr_json_string(j, "op", true, &op, err));
    for (t->op = 0; t->op < KR_OP_KINDS && strcmp(op, kr_op_name(t->op)) != 0;)
        t->op++;
    if (t->op == KR_OP_KINDS && strcmp(op, "matrix") != 0)
        return kr_fail(err, KR_E_FORMAT, "%s: op \"%s\" is unknown", j.where, op);
    TRY(read_name(j, "model", false, t->model, sizeof t->model, err));
    TRY(read_name(j, "method", false, t->method, sizeof t->method, err));
    TRY(kr_json_string(j, "math", false, &math, err));
    t->math = ANY_MATH;
    if (math != NULL && !kr_dtype_parse(math, &type))
        return kr_fail(err, KR_E_FORMAT, "%s: math \"%s\" is unknown", j.where, math);
    if (math != NULL)
        t->math = (int)type;
    TRY(kr_json_u32(j, "in", false, 1, 1u << 24, &t->in, err));
    return kr_json_u32(j, "out", false, 1, 1u << 24, &t->out, err);
}

static kr_status read_axis(kr_json j, axis *a, kr_err *err)
{
    static const char *const keys[] = {"of", "at", NULL};
    const json_t *at = json_object_get(j.object, "at");
    const size_t points = json_array_size(at);
    const char *of = NULL;

    TRY(kr_json_only(j, keys, err));
    TRY(kr_json_string(j, "of", true, &of, err));
    for (a->of = 0; a->of <= OF_BYTES && strcmp(of, quantities[a->of]) != 0;)
        a->of++;
    if (a->of > OF_BYTES)
        return kr_fail(err, KR_E_FORMAT, "%s: quantity \"%s\" is unknown", j.where, of);
    if (points == 0 || points > AXIS_POINTS_MAX)
        return kr_fail(err, KR_E_FORMAT, "%s: at must be a list of 1 to %d numbers", j.where,
                       AXIS_POINTS_MAX);
    a->at = kr_alloc(points * sizeof *a->at);
    if (a->at == NULL)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for %zu points", j.where, points);
    for (; a->points < points; a->points++) {
        a->at[a->points] = json_number_value(json_array_get(at, a->points));
        if (!(a->at[a->points] > 0.0) || (a->points > 0 && a->at[a->points] <= a->at[a->points - 1]))
            return kr_fail(err, KR_E_FORMAT, "%s: at[%u] must be above 0 and above the one before", j.where,
                           a->points);
    }
    return KR_OK;
}

static kr_status read_axes(kr_json j, table *t, kr_err *err)
{
    const json_t *axes = json_object_get(j.object, "axes");
    char where[WHERE_BYTES];

    if (json_array_size(axes) == 0 || json_array_size(axes) > KR_TABLE_AXES_MAX)
        return kr_fail(err, KR_E_FORMAT, "%s: axes must be a list of 1 to %d", j.where, KR_TABLE_AXES_MAX);
    t->points = 1;
    while (t->axes < json_array_size(axes)) {
        const json_t *object = json_array_get(axes, t->axes);

        snprintf(where, sizeof where, "%.4000s axes[%u]", j.where, t->axes);
        if (!json_is_object(object))
            return kr_fail(err, KR_E_FORMAT, "%s: must be an object", where);
        /* Counted first: a half-read axis is freed like a whole one. */
        t->axes++;
        TRY(read_axis((kr_json){.object = object, .where = where}, &t->axis[t->axes - 1], err));
        t->points *= t->axis[t->axes - 1].points;
        if (t->points > KR_TABLE_POINTS_MAX)
            return kr_fail(err, KR_E_LIMIT, "%s: more than %d points", j.where, KR_TABLE_POINTS_MAX);
    }
    return KR_OK;
}

/* Value at x on the line through two points, not below the second. */
static double extend(double x0, double y0, double x1, double y1, double x)
{
    return y1 + fmax((y1 - y0) / (x1 - x0), 0.0) * (x - x1);
}

/* Fills what was not measured along the last axis. */
static kr_status fill_line(kr_json j, const axis *a, double *us, const bool *filled, kr_err *err)
{
    uint32_t known = 0, last = 0, before = 0;

    if (filled[0])
        return kr_fail(err, KR_E_FORMAT, "%s: a row of the last axis begins with null", j.where);
    for (uint32_t i = 0; i < a->points; i++) {
        if (!filled[i]) {
            /* A gap between measured points is a line. */
            for (uint32_t g = last + 1; g < i; g++)
                us[g] = us[last] + (us[i] - us[last]) * (a->at[g] - a->at[last]) / (a->at[i] - a->at[last]);
            before = last;
            last = i;
            known++;
        }
    }
    for (uint32_t i = last + 1; i < a->points; i++)
        us[i] = known < 2 ? us[last] * a->at[i] / a->at[last]
                          : extend(a->at[before], us[before], a->at[last], us[last], a->at[i]);
    return KR_OK;
}

static kr_status read_points(kr_json j, table *t, kr_err *err)
{
    const json_t *us = json_object_get(j.object, "us");
    const axis *last = &t->axis[t->axes - 1];

    if (json_array_size(us) != t->points)
        return kr_fail(err, KR_E_FORMAT, "%s: us must be a list of %u", j.where, t->points);
    t->us = kr_alloc(t->points * sizeof *t->us);
    t->filled = kr_alloc(t->points * sizeof *t->filled);
    if (t->us == NULL || t->filled == NULL)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for %u points", j.where, t->points);
    for (uint32_t i = 0; i < t->points; i++) {
        const json_t *value = json_array_get(us, i);

        t->filled[i] = json_is_null(value);
        t->us[i] = json_number_value(value);
        if (!t->filled[i] && !(t->us[i] > 0.0 && t->us[i] < 1e9))
            return kr_fail(err, KR_E_FORMAT, "%s: us[%u] must be null, or above 0 and below 1e9", j.where, i);
    }
    for (uint32_t i = 0; i < t->points; i += last->points)
        TRY(fill_line(j, last, t->us + i, t->filled + i, err));
    return KR_OK;
}

static kr_status read_table(kr_json j, table *t, kr_err *err)
{
    static const char *const keys[] = {"op", "kernel", "model", "math", "method",
                                       "in", "out",    "axes",  "us",   NULL};
    const char *kernel = NULL;

    TRY(kr_json_only(j, keys, err));
    TRY(kr_json_string(j, "kernel", true, &kernel, err));
    TRY(read_selectors(j, t, err));
    TRY(read_axes(j, t, err));
    return read_points(j, t, err);
}

static kr_status read_all(kr_json root, kr_device_tables *all, kr_err *err)
{
    static const char *const keys[] = {"karat_tables", "device", "source", "smoothing", "tables", NULL};
    const json_t *list = json_object_get(root.object, "tables");
    const char *source = NULL;
    char where[WHERE_BYTES];
    uint32_t version = 0;

    TRY(kr_json_only(root, keys, err));
    TRY(kr_json_u32(root, "karat_tables", true, 1, 1, &version, err));
    TRY(kr_json_string(root, "source", true, &source, err));
    TRY(kr_json_string(root, "smoothing", false, &source, err));
    TRY(read_name(root, "device", true, all->device, sizeof all->device, err));
    if (json_array_size(list) == 0 || json_array_size(list) > KR_TABLES_MAX)
        return kr_fail(err, KR_E_FORMAT, "%s: tables must be a list of 1 to %d", root.where, KR_TABLES_MAX);
    while (all->count < json_array_size(list)) {
        const json_t *item = json_array_get(list, all->count);

        snprintf(where, sizeof where, "%s tables[%u]", root.where, all->count);
        if (!json_is_object(item))
            return kr_fail(err, KR_E_FORMAT, "%s: must be an object", where);
        all->count++;
        TRY(read_table((kr_json){.object = item, .where = where}, &all->table[all->count - 1], err));
    }
    return KR_OK;
}

kr_status kr_device_tables_load(const char *path, kr_device_tables **tables, kr_err *err)
{
    kr_device_tables *all = kr_alloc(sizeof *all);
    json_t *root = NULL;
    kr_status status;

    if (all == NULL)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for tables", path);
    status = kr_json_load(path, &root, err);
    if (status == KR_OK && !json_is_object(root))
        status = kr_fail(err, KR_E_FORMAT, "%s: must be a JSON object", path);
    if (status == KR_OK)
        status = read_all((kr_json){.object = root, .where = path}, all, err);
    json_decref(root);
    if (status != KR_OK)
        kr_device_tables_free(all);
    else
        *tables = all;
    return status;
}

void kr_device_tables_free(kr_device_tables *all)
{
    if (all == NULL)
        return;
    for (uint32_t i = 0; i < all->count; i++) {
        for (uint32_t a = 0; a < all->table[i].axes; a++)
            kr_free(all->table[i].axis[a].at);
        kr_free(all->table[i].us);
        kr_free(all->table[i].filled);
    }
    kr_free(all);
}

bool kr_device_tables_are_of(const kr_device_tables *all, const char *name)
{
    return strcmp(all->device, name) == 0;
}

/* ---- looking up ---- */

static bool fits(const table *t, const kr_device_job *job, const kr_matrix *shape)
{
    const kr_op_kind op = shape == &job->kernels->unit ? job->op : KR_OP_KINDS;

    return t->op == op && (t->model[0] == '\0' || strcmp(t->model, job->model) == 0) &&
           (t->method[0] == '\0' || (job->method != NULL && strcmp(t->method, job->method) == 0)) &&
           (t->math == ANY_MATH || t->math == (int)shape->math) && (t->in == 0 || t->in == shape->in) &&
           (t->out == 0 || t->out == shape->out);
}

static double value_of(quantity of, const kr_device_job *job, const kr_matrix *shape)
{
    switch (of) {
    case OF_COUNT:
        return shape->count;
    case OF_IN:
        return shape->in;
    case OF_OUT:
        return shape->out;
    case OF_ROWS:
        return (double)job->rows;
    case OF_CONTEXT:
        return job->rows != 0 ? (double)job->context_tokens / (double)job->rows : 0.0;
    case OF_RANKS:
        return job->ranks;
    case OF_EXPERT_ROWS:
        return (double)job->expert_rows;
    case OF_BYTES:
        return (double)job->work.move_bytes;
    }
    return 0.0;
}

/* Where a value lies on an axis: between points i and i + 1, share of the way; a share above 1 lies
 * beyond the last. */
typedef struct {
    uint32_t i;
    double share;
    bool outside;
} place;

static place find(const axis *a, double x)
{
    uint32_t low = 0, high = a->points - 1;

    if (x <= a->at[0])
        return (place){.outside = x < a->at[0]};
    if (high == 0)
        return (place){.outside = true};
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;

        if (a->at[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    return (place){.i = low,
                   .share = (x - a->at[low]) / (a->at[low + 1] - a->at[low]),
                   .outside = x > a->at[a->points - 1]};
}

/* The time at a place: linear along each axis. trust gets worse where points were not measured. */
static double interpolate(const table *t, const place *p, kr_provenance *trust)
{
    double sum = 0.0;

    for (uint32_t corner = 0; corner < 1u << t->axes; corner++) {
        double weight = 1.0;
        uint32_t at = 0;

        for (uint32_t a = 0; a < t->axes; a++) {
            const bool upper = corner >> a & 1;

            weight *= upper ? p[a].share : 1.0 - p[a].share;
            at = at * t->axis[a].points + p[a].i + (upper && t->axis[a].points > 1);
        }
        if (weight == 0.0)
            continue;
        if (weight != 1.0 && *trust == KR_MEASURED)
            *trust = KR_INTERPOLATED;
        if (t->filled[at])
            *trust = KR_EXTRAPOLATED;
        sum += weight * t->us[at];
    }
    return sum;
}

static double look_up(const table *t, const kr_device_job *job, const kr_matrix *shape, kr_provenance *trust)
{
    place p[KR_TABLE_AXES_MAX], inside[KR_TABLE_AXES_MAX];
    kr_provenance ignored = KR_MEASURED;

    *trust = KR_MEASURED;
    for (uint32_t a = 0; a < t->axes; a++) {
        inside[a] = p[a] = find(&t->axis[a], value_of(t->axis[a].of, job, shape));
        if (p[a].outside)
            *trust = KR_EXTRAPOLATED;
        inside[a].share = fmin(p[a].share, 1.0);
    }
    /* Beyond the grid the plane through its last points may fall: it never goes below the edge. */
    return fmax(interpolate(t, p, trust), interpolate(t, inside, &ignored));
}

bool kr_device_tables_add(const kr_device_tables *all, const kr_device_job *job, const kr_matrix *matrix,
                          kr_device_time *time)
{
    const kr_matrix *shape = matrix;

    if (all == NULL || job->kernels == NULL || (matrix != NULL && matrix->count != 1))
        return false;
    if (shape == NULL)
        shape = &job->kernels->unit;
    for (uint32_t i = 0; i < all->count; i++) {
        kr_provenance trust;
        uint64_t ns;

        if (!fits(&all->table[i], job, shape))
            continue;
        ns = (uint64_t)(look_up(&all->table[i], job, shape, &trust) * 1e3 + 0.5);
        time->ns += ns;
        time->by_ns[trust] += ns;
        return true;
    }
    return false;
}
