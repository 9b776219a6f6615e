/* Modelled devices: reading a descriptor (data/devices, data/schema/device.schema.json). */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "device/device.h"

enum { WHERE_BYTES = 4200 };

#define TRY(call)                            \
    do {                                     \
        const kr_status try_status = (call); \
        if (try_status != KR_OK)             \
            return try_status;               \
    } while (0)

/* A nested object; absent ones have object NULL. */
typedef struct {
    kr_json json;
    char where[WHERE_BYTES];
} nested;

static kr_status nested_open(nested *child, kr_json parent, const char *key, bool required, kr_err *err)
{
    json_t *object = json_object_get(parent.object, key);

    snprintf(child->where, sizeof child->where, "%s %s", parent.where, key);
    child->json = (kr_json){.object = object, .where = child->where};
    if (object == NULL && !required)
        return KR_OK;
    if (!json_is_object(object))
        return kr_fail(err, KR_E_FORMAT, "%s: must be an object", child->where);
    return KR_OK;
}

/* {"value": number, "source": text}: a figure without a source is refused. */
static kr_status read_figure(kr_json parent, const char *key, bool required, double max, double *out,
                             kr_err *err)
{
    static const char *const keys[] = {"value", "source", NULL};
    const char *source = NULL;
    double value = 0.0;
    nested figure;

    TRY(nested_open(&figure, parent, key, required, err));
    if (figure.json.object == NULL)
        return KR_OK;
    TRY(kr_json_only(figure.json, keys, err));
    TRY(kr_json_real(figure.json, "value", true, 0.0, max, &value, err));
    TRY(kr_json_string(figure.json, "source", true, &source, err));
    if (source[0] == '\0')
        return kr_fail(err, KR_E_FORMAT, "%s: the source is empty", figure.where);
    *out = value;
    return KR_OK;
}

static kr_status read_link(kr_json root, const char *key, double *bytes_per_s, double *latency_s, kr_err *err)
{
    static const char *const keys[] = {"bytes_per_s", "latency_s", NULL};
    nested link;

    TRY(nested_open(&link, root, key, false, err));
    if (link.json.object == NULL)
        return KR_OK;
    TRY(kr_json_only(link.json, keys, err));
    TRY(read_figure(link.json, "bytes_per_s", true, 1e18, bytes_per_s, err));
    TRY(read_figure(link.json, "latency_s", true, 10.0, latency_s, err));
    if (*bytes_per_s <= 0.0)
        return kr_fail(err, KR_E_FORMAT, "%s: bytes_per_s must be above 0", link.where);
    return KR_OK;
}

static kr_status read_rates(kr_json root, kr_device_model *d, kr_err *err)
{
    static const char *const flops_keys[] = {"f32", "bf16", "fp8", NULL};
    static const char *const memory_keys[] = {"bytes", "bytes_per_s", "efficiency", "fast", NULL};
    static const char *const fast_keys[] = {"bytes", "bytes_per_s", NULL};
    nested flops, memory, fast;

    TRY(nested_open(&flops, root, "flops", true, err));
    TRY(kr_json_only(flops.json, flops_keys, err));
    TRY(read_figure(flops.json, "f32", false, 1e21, &d->flops_f32, err));
    TRY(read_figure(flops.json, "bf16", false, 1e21, &d->flops_bf16, err));
    TRY(read_figure(flops.json, "fp8", false, 1e21, &d->flops_fp8, err));
    if (d->flops_f32 <= 0.0 && d->flops_bf16 <= 0.0)
        return kr_fail(err, KR_E_FORMAT, "%s: needs f32 or bf16 above 0", flops.where);
    TRY(nested_open(&memory, root, "memory", true, err));
    TRY(kr_json_only(memory.json, memory_keys, err));
    TRY(read_figure(memory.json, "bytes", true, 1e18, &d->memory_bytes, err));
    TRY(read_figure(memory.json, "bytes_per_s", true, 1e18, &d->memory_bytes_per_s, err));
    TRY(read_figure(memory.json, "efficiency", false, 1.0, &d->memory_efficiency, err));
    if (d->memory_bytes_per_s <= 0.0 || d->memory_efficiency <= 0.0)
        return kr_fail(err, KR_E_FORMAT, "%s: bytes_per_s and efficiency must be above 0", memory.where);
    TRY(nested_open(&fast, memory.json, "fast", false, err));
    if (fast.json.object != NULL) {
        TRY(kr_json_only(fast.json, fast_keys, err));
        TRY(read_figure(fast.json, "bytes", true, 1e15, &d->fast_bytes, err));
        TRY(read_figure(fast.json, "bytes_per_s", true, 1e18, &d->fast_bytes_per_s, err));
        if (d->fast_bytes_per_s <= 0.0)
            return kr_fail(err, KR_E_FORMAT, "%s: bytes_per_s must be above 0", fast.where);
    }
    TRY(read_link(root, "link", &d->link_bytes_per_s, &d->link_latency_s, err));
    return read_link(root, "peers", &d->peer_bytes_per_s, &d->peer_latency_s, err);
}

static bool op_of_name(const char *name, kr_op_kind *op)
{
    for (unsigned k = 0; k < KR_OP_KINDS; k++) {
        if (strcmp(name, kr_op_name((kr_op_kind)k)) == 0) {
            *op = (kr_op_kind)k;
            return true;
        }
    }
    return false;
}

static kr_status read_can(kr_json root, kr_device_model *d, kr_err *err)
{
    const json_t *list = json_object_get(root.object, "can");

    for (unsigned k = 0; k < KR_OP_KINDS; k++)
        d->can[k] = list == NULL;
    if (list == NULL)
        return KR_OK;
    if (!json_is_array(list))
        return kr_fail(err, KR_E_FORMAT, "%s: can must be a list of op names", root.where);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        kr_op_kind op;

        if (name == NULL || !op_of_name(name, &op))
            return kr_fail(err, KR_E_FORMAT, "%s: can[%zu] is not an op name", root.where, i);
        d->can[op] = true;
    }
    return KR_OK;
}

static kr_status read_provenance(kr_json j, kr_provenance *out, kr_err *err)
{
    const char *text = NULL;

    TRY(kr_json_string(j, "provenance", true, &text, err));
    for (unsigned p = 0; p < KR_PROVENANCE_COUNT; p++) {
        if (strcmp(text, kr_provenance_name((kr_provenance)p)) == 0) {
            *out = (kr_provenance)p;
            return KR_OK;
        }
    }
    return kr_fail(err, KR_E_FORMAT, "%s: provenance \"%s\" is unknown", j.where, text);
}

static kr_status read_curve(kr_json j, kr_device_curve *out, kr_err *err)
{
    static const char *const keys[] = {
        "op",
        "model",
        "method",
        "kernel",
        "key_width",
        "heads",
        "ranks",
        "t0_us",
        "per_row_us",
        "per_attended_ps",
        "per_context_ps",
        "per_expert_us",
        "rows_max",
        "context_max",
        "per_expert_row_us",
        "compute_share",
        "median_error",
        "p90_error",
        "provenance",
        "source",
        NULL,
    };
    kr_device_curve c = {0};
    const char *text = NULL, *model = "", *method = "";

    TRY(kr_json_only(j, keys, err));
    TRY(kr_json_string(j, "source", true, &text, err));
    TRY(kr_json_string(j, "kernel", false, &text, err));
    TRY(kr_json_string(j, "op", true, &text, err));
    if (!op_of_name(text, &c.op))
        return kr_fail(err, KR_E_FORMAT, "%s: op \"%s\" is unknown", j.where, text);
    TRY(kr_json_string(j, "model", false, &model, err));
    if (strlen(model) >= sizeof c.model)
        return kr_fail(err, KR_E_FORMAT, "%s: model is longer than %zu bytes", j.where, sizeof c.model - 1);
    memcpy(c.model, model, strlen(model));
    TRY(kr_json_string(j, "method", false, &method, err));
    if (strlen(method) >= sizeof c.method)
        return kr_fail(err, KR_E_FORMAT, "%s: method is longer than %zu bytes", j.where, sizeof c.method - 1);
    memcpy(c.method, method, strlen(method));
    TRY(kr_json_u32(j, "ranks", false, 1, 1u << 20, &c.ranks, err));
    TRY(kr_json_u32(j, "key_width", false, 1, 1u << 20, &c.key_width, err));
    TRY(kr_json_u32(j, "heads", false, 1, 1u << 20, &c.heads, err));
    TRY(kr_json_real(j, "t0_us", true, -1e9, 1e9, &c.start_s, err));
    TRY(kr_json_real(j, "per_expert_us", false, 0.0, 1e9, &c.per_expert_s, err));
    TRY(kr_json_real(j, "per_expert_row_us", false, 0.0, 1e9, &c.per_expert_row_s, err));
    TRY(kr_json_real(j, "compute_share", false, 0.0, 1.0, &c.compute_share, err));
    TRY(kr_json_real(j, "per_row_us", false, -1e9, 1e9, &c.per_row_s, err));
    TRY(kr_json_real(j, "per_attended_ps", false, 0.0, 1e12, &c.per_attended_s, err));
    TRY(kr_json_real(j, "per_context_ps", false, 0.0, 1e12, &c.per_context_s, err));
    TRY(kr_json_real(j, "rows_max", false, 0.0, 1e12, &c.rows_max, err));
    TRY(kr_json_real(j, "context_max", false, 0.0, 1e15, &c.context_max, err));
    TRY(read_provenance(j, &c.provenance, err));
    c.start_s *= 1e-6;
    c.per_row_s *= 1e-6;
    c.per_expert_s *= 1e-6;
    c.per_expert_row_s *= 1e-6;
    c.per_attended_s *= 1e-12;
    c.per_context_s *= 1e-12;
    *out = c;
    return KR_OK;
}

static kr_status read_curves(kr_json root, kr_device_model *d, kr_err *err)
{
    const json_t *list = json_object_get(root.object, "curves");
    char where[WHERE_BYTES];

    if (list == NULL)
        return KR_OK;
    if (!json_is_array(list) || json_array_size(list) > KR_DEVICE_CURVES_MAX)
        return kr_fail(err, KR_E_FORMAT, "%s: curves must be a list of at most %d", root.where,
                       KR_DEVICE_CURVES_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);

        snprintf(where, sizeof where, "%s curves[%zu]", root.where, i);
        if (!json_is_object(item))
            return kr_fail(err, KR_E_FORMAT, "%s: must be an object", where);
        TRY(read_curve((kr_json){.object = item, .where = where}, &d->curve[d->curves], err));
        d->curves++;
    }
    return KR_OK;
}

static kr_status read_matrix(kr_json j, kr_device_matrix *out, kr_err *err)
{
    static const char *const keys[] = {"math",        "kernel",   "t0_us",    "flops",
                                       "bytes_per_s", "depth_ps", "rows_max", "median_error",
                                       "p90_error",   "source",   NULL};
    kr_device_matrix m = {0};
    const char *text = NULL;

    TRY(kr_json_only(j, keys, err));
    TRY(kr_json_string(j, "source", true, &text, err));
    TRY(kr_json_string(j, "math", true, &text, err));
    if (!kr_dtype_parse(text, &m.math))
        return kr_fail(err, KR_E_FORMAT, "%s: math \"%s\" is unknown", j.where, text);
    TRY(kr_json_real(j, "t0_us", true, 0.0, 1e9, &m.start_s, err));
    TRY(kr_json_real(j, "flops", true, 1.0, 1e21, &m.flops, err));
    TRY(kr_json_real(j, "bytes_per_s", true, 1.0, 1e18, &m.bytes_per_s, err));
    TRY(kr_json_real(j, "rows_max", true, 1.0, 1e12, &m.rows_max, err));
    TRY(kr_json_real(j, "depth_ps", false, 0.0, 1e9, &m.depth_s, err));
    m.start_s *= 1e-6;
    m.depth_s *= 1e-12;
    *out = m;
    return KR_OK;
}

/* What the kernels of an op cost one by one: matrix products by type, and small kernels. */
static kr_status read_kernels(kr_json root, kr_device_model *d, kr_err *err)
{
    static const char *const keys[] = {"matrix", "small_s", NULL};
    const json_t *list;
    char where[WHERE_BYTES];
    nested kernels;

    TRY(nested_open(&kernels, root, "kernels", false, err));
    if (kernels.json.object == NULL)
        return KR_OK;
    TRY(kr_json_only(kernels.json, keys, err));
    TRY(read_figure(kernels.json, "small_s", true, 1.0, &d->small_kernel_s, err));
    list = json_object_get(kernels.json.object, "matrix");
    if (json_array_size(list) == 0 || json_array_size(list) > KR_DEVICE_MATRICES_MAX)
        return kr_fail(err, KR_E_FORMAT, "%s: matrix must be a list of 1 to %d", kernels.where,
                       KR_DEVICE_MATRICES_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);

        snprintf(where, sizeof where, "%.4000s matrix[%zu]", kernels.where, i);
        if (!json_is_object(item))
            return kr_fail(err, KR_E_FORMAT, "%s: must be an object", where);
        TRY(read_matrix((kr_json){.object = item, .where = where}, &d->matrix[d->matrices], err));
        d->matrices++;
    }
    return KR_OK;
}

static kr_status read_energy(kr_json root, kr_device_model *d, kr_err *err)
{
    static const char *const keys[] = {"memory_pj_per_byte", "f32_pj_per_flop", "bf16_pj_per_flop",
                                       "fp8_pj_per_flop",    "link_pj_per_bit", NULL};
    double *const to[] = {&d->memory_j_per_byte, &d->f32_j_per_flop, &d->bf16_j_per_flop, &d->fp8_j_per_flop,
                          &d->link_j_per_byte};
    nested energy;

    TRY(nested_open(&energy, root, "energy", false, err));
    if (energy.json.object == NULL)
        return KR_OK;
    TRY(kr_json_only(energy.json, keys, err));
    for (size_t i = 0; keys[i] != NULL; i++) {
        TRY(read_figure(energy.json, keys[i], i == 0, 1e9, to[i], err));
        *to[i] *= 1e-12;
    }
    d->link_j_per_byte *= 8;
    return KR_OK;
}

static kr_status read_power_cores_area(kr_json root, kr_device_model *d, kr_err *err)
{
    static const char *const power_keys[] = {"tdp_w", "idle_w", NULL};
    static const char *const core_keys[] = {"count", "clock_hz", NULL};
    static const char *const area_keys[] = {"core", "cache", "link", "memory_phy", NULL};
    nested power, cores, area;
    double *mm2[] = {&d->area_core_mm2, &d->area_cache_mm2, &d->area_link_mm2, &d->area_memory_mm2};

    TRY(nested_open(&power, root, "power", true, err));
    TRY(kr_json_only(power.json, power_keys, err));
    TRY(read_figure(power.json, "tdp_w", true, 1e6, &d->tdp_w, err));
    TRY(read_figure(power.json, "idle_w", false, 1e6, &d->idle_w, err));
    TRY(nested_open(&cores, root, "cores", false, err));
    if (cores.json.object != NULL) {
        TRY(kr_json_only(cores.json, core_keys, err));
        TRY(read_figure(cores.json, "count", true, 1e6, &d->cores, err));
        TRY(read_figure(cores.json, "clock_hz", true, 1e12, &d->clock_hz, err));
    }
    TRY(nested_open(&area, root, "area", false, err));
    if (area.json.object == NULL)
        return KR_OK;
    TRY(kr_json_only(area.json, area_keys, err));
    for (size_t i = 0; area_keys[i] != NULL; i++)
        TRY(read_figure(area.json, area_keys[i], false, 1e6, mm2[i], err));
    return KR_OK;
}

static kr_status read_device(kr_json root, kr_device_model *d, kr_err *err)
{
    static const char *const keys[] = {"karat_device", "name", "source", "flops",   "flops_efficiency",
                                       "memory",       "link", "peers",  "fixed_s", "power",
                                       "cores",        "area", "can",    "curves",  "energy",
                                       "kernels",      NULL};
    const char *name = NULL, *source = NULL;
    uint32_t version = 0;

    TRY(kr_json_only(root, keys, err));
    TRY(kr_json_u32(root, "karat_device", true, 1, 1, &version, err));
    TRY(kr_json_string(root, "source", true, &source, err));
    TRY(kr_json_string(root, "name", true, &name, err));
    if (name[0] == '\0' || strlen(name) >= sizeof d->name)
        return kr_fail(err, KR_E_FORMAT, "%s: name must have 1 to %zu bytes", root.where, sizeof d->name - 1);
    memcpy(d->name, name, strlen(name) + 1);
    TRY(read_rates(root, d, err));
    TRY(read_figure(root, "flops_efficiency", false, 1.0, &d->flops_efficiency, err));
    if (d->flops_efficiency <= 0.0)
        return kr_fail(err, KR_E_FORMAT, "%s: flops_efficiency must be above 0", root.where);
    TRY(read_figure(root, "fixed_s", false, 10.0, &d->fixed_s, err));
    TRY(read_power_cores_area(root, d, err));
    TRY(read_energy(root, d, err));
    TRY(read_kernels(root, d, err));
    TRY(read_can(root, d, err));
    return read_curves(root, d, err);
}

kr_status kr_device_model_read(kr_json json, kr_device_model *device, kr_err *err)
{
    kr_device_model read = {.flops_efficiency = 1.0, .memory_efficiency = 1.0};

    if (!json_is_object(json.object))
        return kr_fail(err, KR_E_FORMAT, "%s: must be a JSON object", json.where);
    TRY(read_device(json, &read, err));
    *device = read;
    return KR_OK;
}

kr_status kr_device_model_load(const char *path, kr_device_model *device, kr_err *err)
{
    json_t *root = NULL;
    kr_status status = kr_json_load(path, &root, err);

    if (status != KR_OK)
        return status;
    status = kr_device_model_read((kr_json){.object = root, .where = path}, device, err);
    json_decref(root);
    return status;
}
