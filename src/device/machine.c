/* The file of a measured machine: reading is strict, writing gives what reading takes. */
#include "device/machine.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"

#define SOURCE "karat profile"

enum { WHERE_BYTES = 4200 };

#define TRY(call)                            \
    do {                                     \
        const kr_status try_status = (call); \
        if (try_status != KR_OK)             \
            return try_status;               \
    } while (0)

const char *const kr_machine_mode_names[KR_MACHINE_MODE_KINDS + 1] = {"in-turn", "at-once", "remote", NULL};

/* ---- reading ---- */

static kr_status read_name(kr_json j, const char *key, char out[KR_MACHINE_NAME_BYTES], kr_err *err)
{
    const char *text = NULL;

    TRY(kr_json_string(j, key, true, &text, err));
    if (text[0] == '\0' || strlen(text) >= KR_MACHINE_NAME_BYTES)
        return kr_fail(err, KR_E_FORMAT, "%s: %s must have 1 to %d bytes", j.where, key,
                       KR_MACHINE_NAME_BYTES - 1);
    memcpy(out, text, strlen(text) + 1);
    return KR_OK;
}

static kr_status read_side(kr_json mode, const char *key, kr_device_model *device, kr_err *err)
{
    char where[WHERE_BYTES + 32];

    snprintf(where, sizeof where, "%.4200s %s", mode.where, key);
    return kr_device_model_read((kr_json){json_object_get(mode.object, key), where}, device, err);
}

static kr_status read_kind(kr_json j, kr_machine_mode_kind *kind, kr_err *err)
{
    const char *text = NULL;

    TRY(kr_json_string(j, "mode", true, &text, err));
    for (int k = 0; k < KR_MACHINE_MODE_KINDS; k++)
        if (strcmp(text, kr_machine_mode_names[k]) == 0) {
            *kind = (kr_machine_mode_kind)k;
            return KR_OK;
        }
    return kr_fail(err, KR_E_FORMAT, "%s: mode \"%s\" is unknown", j.where, text);
}

static kr_status read_mode(kr_json j, kr_machine_mode *mode, kr_err *err)
{
    static const char *const keys[] = {"mode",           "model",    "weights",          "compute_threads",
                                       "device_threads", "signal_s", "compute_slowdown", "device_slowdown",
                                       "remainder",      "compute",  "memory",           NULL};

    TRY(kr_json_only(j, keys, err));
    TRY(read_kind(j, &mode->kind, err));
    TRY(read_name(j, "model", mode->model, err));
    TRY(read_name(j, "weights", mode->weights, err));
    TRY(kr_json_u32(j, "compute_threads", true, 1, 4096, &mode->compute_threads, err));
    TRY(kr_json_u32(j, "device_threads", true, 1, 4096, &mode->device_threads, err));
    TRY(kr_json_real(j, "signal_s", true, 0.0, 1.0, &mode->signal_s, err));
    TRY(kr_json_real(j, "remainder", true, 0.1, 10.0, &mode->remainder, err));
    TRY(read_side(j, "compute", &mode->compute, err));
    TRY(read_side(j, "memory", &mode->memory, err));
    if (mode->memory.link_bytes_per_s <= 0.0 || mode->compute.link_bytes_per_s <= 0.0)
        return kr_fail(err, KR_E_FORMAT, "%s: both sides need a link", j.where);
    return KR_OK;
}

static kr_status read_machine(kr_json j, kr_machine *machine, kr_err *err)
{
    static const char *const keys[] = {"karat_machine", "source", "cpu", "cores", "modes", NULL};
    const json_t *list = json_object_get(j.object, "modes");
    const char *source = NULL;
    uint32_t version = 0;
    char where[WHERE_BYTES];

    TRY(kr_json_only(j, keys, err));
    TRY(kr_json_u32(j, "karat_machine", true, 1, 1, &version, err));
    TRY(kr_json_string(j, "source", true, &source, err));
    TRY(read_name(j, "cpu", machine->cpu, err));
    TRY(kr_json_u32(j, "cores", true, 1, 1 << 20, &machine->cores, err));
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > KR_MACHINE_MODES_MAX)
        return kr_fail(err, KR_E_FORMAT, "%s: modes must be a list of 1 to %d", j.where,
                       KR_MACHINE_MODES_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);

        snprintf(where, sizeof where, "%s modes[%zu]", j.where, i);
        if (!json_is_object(item))
            return kr_fail(err, KR_E_FORMAT, "%s: must be an object", where);
        TRY(read_mode((kr_json){item, where}, &machine->mode[machine->modes], err));
        machine->modes++;
    }
    return KR_OK;
}

kr_status kr_machine_load(const char *path, kr_machine *machine, kr_err *err)
{
    static const kr_machine empty;
    json_t *root = NULL;
    kr_status status = kr_json_load(path, &root, err);
    kr_machine *read;

    if (status != KR_OK)
        return status;
    read = kr_alloc(sizeof *read);
    if (read == NULL)
        status = kr_fail(err, KR_E_MEMORY, "%s: no memory for a machine", path);
    else if (!json_is_object(root))
        status = kr_fail(err, KR_E_FORMAT, "%s: must be a JSON object", path);
    if (status == KR_OK) {
        *read = empty;
        status = read_machine((kr_json){root, path}, read, err);
    }
    if (status == KR_OK)
        *machine = *read;
    kr_free(read);
    json_decref(root);
    return status;
}

/* ---- writing ---- */

static json_t *figure(double value) { return json_pack("{s:f,s:s}", "value", value, "source", SOURCE); }

static json_t *curve_json(const kr_device_curve *c)
{
    json_t *j = json_pack("{s:s,s:s,s:f}", "op", kr_op_name(c->op), "model", c->model, "t0_us",
                          c->start_s * 1e6);

    if (c->method[0] != '\0')
        json_object_set_new(j, "method", json_string(c->method));
    json_object_set_new(j, "per_row_us", json_real(c->per_row_s * 1e6));
    json_object_set_new(j, "per_attended_ps", json_real(c->per_attended_s * 1e12));
    json_object_set_new(j, "per_context_ps", json_real(c->per_context_s * 1e12));
    json_object_set_new(j, "rows_max", json_real(c->rows_max));
    json_object_set_new(j, "context_max", json_real(c->context_max));
    json_object_set_new(j, "provenance", json_string(kr_provenance_name(c->provenance)));
    json_object_set_new(j, "source", json_string(SOURCE));
    return j;
}

static json_t *side_json(const kr_device_model *d)
{
    json_t *curves = json_array();

    for (uint32_t i = 0; i < d->curves; i++)
        json_array_append_new(curves, curve_json(&d->curve[i]));
    return json_pack("{s:i,s:s,s:s,s:{s:o,s:o},s:{s:o,s:o},s:{s:o,s:o},s:{s:o},s:o}", "karat_device", 1,
                     "name", d->name, "source", SOURCE, "flops", "f32", figure(d->flops_f32), "bf16",
                     figure(d->flops_bf16), "memory", "bytes", figure(d->memory_bytes), "bytes_per_s",
                     figure(d->memory_bytes_per_s), "link", "bytes_per_s", figure(d->link_bytes_per_s),
                     "latency_s", figure(d->link_latency_s), "power", "tdp_w", figure(d->tdp_w), "curves",
                     curves);
}

static json_t *mode_json(const kr_machine_mode *m)
{
    return json_pack("{s:s,s:s,s:s,s:i,s:i,s:f,s:f,s:o,s:o}", "mode", kr_machine_mode_names[m->kind], "model",
                     m->model, "weights", m->weights, "compute_threads", (int)m->compute_threads,
                     "device_threads", (int)m->device_threads, "signal_s", m->signal_s, "remainder",
                     m->remainder, "compute", side_json(&m->compute), "memory", side_json(&m->memory));
}

kr_status kr_machine_json(const kr_machine *machine, json_t **root, kr_err *err)
{
    json_t *modes = json_array();

    for (uint32_t i = 0; i < machine->modes; i++)
        json_array_append_new(modes, mode_json(&machine->mode[i]));
    *root = json_pack("{s:i,s:s,s:s,s:i,s:o}", "karat_machine", 1, "source", SOURCE " " KR_VERSION, "cpu",
                      machine->cpu, "cores", (int)machine->cores, "modes", modes);
    return *root != NULL && json_array_size(modes) == machine->modes
               ? KR_OK
               : kr_fail(err, KR_E_MEMORY, "no memory for the table of a machine");
}

const kr_machine_mode *kr_machine_find(const kr_machine *machine, kr_machine_mode_kind kind,
                                       const char *model)
{
    for (uint32_t i = 0; i < machine->modes; i++)
        if (machine->mode[i].kind == kind && (model == NULL || strcmp(machine->mode[i].model, model) == 0))
            return &machine->mode[i];
    return NULL;
}
