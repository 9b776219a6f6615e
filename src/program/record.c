/* Recorded runs as JSON lines. Reading bounds lines, events and every number; times must ascend. */
#include "program/record.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/json.h"

enum {
    LINE_BYTES = 256,
    HEADER_BYTES = 1 << 16, /* a method for each of KR_LAYERS_MAX layers fits */
    WHERE_BYTES = 4200,
    CONFIG_BYTES = sizeof(kr_method_config),
};

static void to_hex(const kr_method_config *config, char out[2 * CONFIG_BYTES + 1])
{
    for (int i = 0; i < CONFIG_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", ((const uint8_t *)config)[i]);
}

static json_t *program_json(const kr_run_program *p)
{
    json_t *methods = json_array();

    for (uint32_t l = 0, run; l < p->layers; l += run) {
        char hex[2 * CONFIG_BYTES + 1];

        for (run = 1; l + run < p->layers; run++)
            if (memcmp(&p->method[l + run], &p->method[l], CONFIG_BYTES) != 0)
                break;
        to_hex(&p->method[l], hex);
        json_array_append_new(methods, json_pack("{s:i,s:s}", "layers", (int)run, "method", hex));
    }
    return json_pack("{s:s,s:I,s:s,s:s,s:o}", "model", p->model, "context_max", (json_int_t)p->context_max,
                     "kv_dtype", kr_dtype_name(p->kv_dtype), "placement", kr_placement_name(p->placement),
                     "methods", methods);
}

static kr_status write_header(FILE *file, const kr_run_header *h, kr_err *err)
{
    char digest[17];
    json_t *root;

    snprintf(digest, sizeof digest, "%016" PRIx64, h->program_digest);
    root = json_pack("{s:i,s:I,s:s,s:I,s:I,s:I}", "karat_run", 1, "policy", (json_int_t)h->policy,
                     "program_digest", digest, "workers", (json_int_t)h->workers, "steps",
                     (json_int_t)h->steps, "micro_batches", (json_int_t)h->micro_batches);
    if (root != NULL && h->program.layers != 0)
        json_object_set_new(root, "program", program_json(&h->program));
    const int failure = root == NULL ? -1 : json_dumpf(root, file, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(root);
    fputc('\n', file);
    return failure == 0 ? KR_OK : kr_fail(err, KR_E_IO, "recorded run: its first line cannot be written");
}

kr_status kr_run_write(FILE *file, const kr_run_header *header, const kr_run_event *events, uint64_t count,
                       kr_err *err)
{
    const kr_status status = write_header(file, header, err);

    if (status != KR_OK)
        return status;
    for (uint64_t i = 0; i < count; i++)
        fprintf(file,
                "{\"t\":%" PRIu64 ",\"step\":%" PRIu32 ",\"op\":%" PRIu32 ",\"worker\":%u,\"what\":%u}\n",
                events[i].time_ns, events[i].step, events[i].op, events[i].worker, events[i].what);
    if (fflush(file) != 0 || ferror(file))
        return kr_fail(err, KR_E_IO, "recorded run: writing failed after up to %" PRIu64 " events", count);
    return KR_OK;
}

/* A file being read by lines; where names file and line in messages. */
typedef struct {
    FILE *file;
    const char *path;
    uint64_t line;
    char where[WHERE_BYTES];
} reader;

/* The next line, of less than bytes, as an object; *root is NULL at the end of the file. */
static kr_status next_object(reader *r, char *text, int bytes, json_t **root, kr_err *err)
{
    json_error_t cause;

    *root = NULL;
    if (fgets(text, bytes, r->file) == NULL)
        return ferror(r->file) ? kr_fail(err, KR_E_IO, "%s: cannot be read", r->path) : KR_OK;
    r->line++;
    snprintf(r->where, sizeof r->where, "%s line %" PRIu64, r->path, r->line);
    if (strchr(text, '\n') == NULL)
        return kr_fail(err, KR_E_FORMAT, "%s: longer than %d bytes or cut off", r->where, bytes - 2);
    *root = json_loads(text, JSON_REJECT_DUPLICATES, &cause);
    if (!json_is_object(*root)) {
        json_decref(*root);
        *root = NULL;
        return kr_fail(err, KR_E_FORMAT, "%s: not a JSON object", r->where);
    }
    return KR_OK;
}

static bool from_hex(const char *hex, kr_method_config *out)
{
    if (strlen(hex) != 2 * CONFIG_BYTES || strspn(hex, "0123456789abcdef") != 2 * CONFIG_BYTES)
        return false;
    for (int i = 0; i < CONFIG_BYTES; i++) {
        const char digits[] = {hex[2 * i], hex[2 * i + 1], '\0'};

        ((uint8_t *)out)[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return memchr(out->name, '\0', sizeof out->name) != NULL;
}

static kr_status read_methods(kr_json j, kr_run_program *p, kr_err *err)
{
    static const char *const keys[] = {"layers", "method", NULL};
    const json_t *list = json_object_get(j.object, "methods");

    for (size_t i = 0; i < json_array_size(list); i++) {
        const kr_json item = {json_array_get(list, i), j.where};
        const char *hex = NULL;
        uint32_t layers = 0;
        kr_status s = json_is_object(item.object) ? kr_json_only(item, keys, err)
                                                  : kr_fail(err, KR_E_FORMAT, "%s: methods", j.where);

        if (s == KR_OK)
            s = kr_json_u32(item, "layers", true, 1, KR_LAYERS_MAX - p->layers, &layers, err);
        if (s == KR_OK)
            s = kr_json_string(item, "method", true, &hex, err);
        if (s == KR_OK && !from_hex(hex, &p->method[p->layers]))
            s = kr_fail(err, KR_E_FORMAT, "%s: a method is not %d bytes in hexadecimal", j.where,
                        CONFIG_BYTES);
        if (s != KR_OK)
            return s;
        for (uint32_t l = 1; l < layers; l++)
            p->method[p->layers + l] = p->method[p->layers];
        p->layers += layers;
    }
    return p->layers != 0 ? KR_OK : kr_fail(err, KR_E_FORMAT, "%s: methods must name layers", j.where);
}

static kr_status read_program(kr_json j, kr_run_program *p, kr_err *err)
{
    static const char *const keys[] = {"model", "context_max", "kv_dtype", "placement", "methods", NULL};
    const char *model = NULL, *kv = NULL, *placement = NULL;
    kr_status s = json_is_object(j.object) ? kr_json_only(j, keys, err)
                                           : kr_fail(err, KR_E_FORMAT, "%s: program", j.where);

    if (s == KR_OK)
        s = kr_json_string(j, "model", true, &model, err);
    if (s == KR_OK)
        s = kr_json_u64(j, "context_max", true, 1, KR_CONTEXT_MAX, &p->context_max, err);
    if (s == KR_OK)
        s = kr_json_string(j, "kv_dtype", true, &kv, err);
    if (s == KR_OK)
        s = kr_json_string(j, "placement", true, &placement, err);
    if (s == KR_OK && (!kr_dtype_parse(kv, &p->kv_dtype) || !kr_placement_parse(placement, &p->placement) ||
                       strlen(model) >= sizeof p->model))
        s = kr_fail(err, KR_E_FORMAT, "%s: model, kv_dtype or placement", j.where);
    if (s == KR_OK)
        memcpy(p->model, model, strlen(model) + 1);
    return s == KR_OK ? read_methods(j, p, err) : s;
}

static kr_status read_header(kr_json j, kr_run_header *h, kr_err *err)
{
    static const char *const keys[] = {"karat_run", "policy",        "program_digest", "workers",
                                       "steps",     "micro_batches", "program",        NULL};
    const json_t *program = json_object_get(j.object, "program");
    uint32_t version = 0;
    const char *digest = NULL;
    kr_status s = kr_json_only(j, keys, err);

    if (s == KR_OK)
        s = kr_json_u32(j, "karat_run", true, 1, 1, &version, err);
    if (s == KR_OK)
        s = kr_json_u32(j, "policy", true, 0, 1, &h->policy, err);
    if (s == KR_OK)
        s = kr_json_u32(j, "workers", true, 1, UINT16_MAX, &h->workers, err);
    if (s == KR_OK)
        s = kr_json_u32(j, "steps", true, 0, UINT32_MAX, &h->steps, err);
    if (s == KR_OK)
        s = kr_json_u32(j, "micro_batches", true, 1, UINT16_MAX, &h->micro_batches, err);
    if (s == KR_OK)
        s = kr_json_string(j, "program_digest", true, &digest, err);
    if (s == KR_OK && (strlen(digest) != 16 || strspn(digest, "0123456789abcdefABCDEF") != 16))
        s = kr_fail(err, KR_E_FORMAT, "%s: program_digest must be 16 hexadecimal digits", j.where);
    if (s == KR_OK)
        h->program_digest = strtoull(digest, NULL, 16);
    return s == KR_OK && program != NULL ? read_program((kr_json){program, j.where}, &h->program, err) : s;
}

static kr_status read_event(kr_json j, const kr_run_header *h, kr_run_event *e, kr_err *err)
{
    static const char *const keys[] = {"t", "step", "op", "worker", "what", NULL};
    uint32_t worker = 0, what = 0;
    kr_status s = kr_json_only(j, keys, err);

    if (s == KR_OK)
        s = kr_json_u64(j, "t", true, 0, INT64_MAX, &e->time_ns, err);
    if (s == KR_OK)
        s = kr_json_u32(j, "step", true, 0, UINT32_MAX, &e->step, err);
    if (s == KR_OK)
        s = kr_json_u32(j, "op", true, 0, UINT32_MAX - 1, &e->op, err);
    if (s == KR_OK)
        s = kr_json_u32(j, "worker", true, 0, h->workers - 1, &worker, err);
    if (s == KR_OK)
        s = kr_json_u32(j, "what", true, KR_RUN_ARRIVED, KR_RUN_DONE, &what, err);
    e->worker = (uint16_t)worker;
    e->what = (uint16_t)what;
    return s;
}

/* Events so far, grown by doubling up to the caller's limit. */
typedef struct {
    kr_run_event *items;
    uint64_t count, capacity, max;
} event_list;

static kr_status append_event(event_list *list, const kr_run_event *event, const char *where, kr_err *err)
{
    if (list->count == list->max)
        return kr_fail(err, KR_E_LIMIT, "%s: more than %" PRIu64 " events", where, list->max);
    if (list->count == list->capacity) {
        const uint64_t capacity = list->capacity == 0 ? 1024 : 2 * list->capacity;
        kr_run_event *grown = kr_realloc(list->items, capacity * sizeof *grown);

        if (grown == NULL)
            return kr_fail(err, KR_E_MEMORY, "%s: no memory for %" PRIu64 " events", where, capacity);
        list->items = grown;
        list->capacity = capacity;
    }
    list->items[list->count++] = *event;
    return KR_OK;
}

static kr_status read_events(reader *r, const kr_run_header *header, event_list *list, kr_err *err)
{
    for (;;) {
        kr_run_event event = {0};
        char text[LINE_BYTES];
        json_t *root;
        kr_status s = next_object(r, text, sizeof text, &root, err);

        if (s != KR_OK || root == NULL)
            return s;
        s = read_event((kr_json){.object = root, .where = r->where}, header, &event, err);
        json_decref(root);
        if (s == KR_OK && list->count != 0 && event.time_ns < list->items[list->count - 1].time_ns)
            s = kr_fail(err, KR_E_FORMAT, "%s: time goes back", r->where);
        if (s == KR_OK)
            s = append_event(list, &event, r->where, err);
        if (s != KR_OK)
            return s;
    }
}

static kr_status read_first(reader *r, kr_run_header *h, kr_err *err)
{
    static const kr_run_header empty;
    char *text = kr_alloc(HEADER_BYTES);
    json_t *root = NULL;
    kr_status s;

    if (text == NULL)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory", r->path);
    s = next_object(r, text, HEADER_BYTES, &root, err);
    if (s == KR_OK && root == NULL)
        s = kr_fail(err, KR_E_FORMAT, "%s: empty", r->path);
    *h = empty;
    if (s == KR_OK)
        s = read_header((kr_json){.object = root, .where = r->where}, h, err);
    json_decref(root);
    kr_free(text);
    return s;
}

kr_status kr_run_read(const char *path, kr_run_header *header, kr_run_event **events, uint64_t *count,
                      uint64_t events_max, kr_err *err)
{
    reader r = {.path = path, .file = fopen(path, "r")};
    event_list list = {.max = events_max};
    kr_run_header h;
    kr_status s;

    if (r.file == NULL)
        return kr_fail(err, KR_E_IO, "%s: cannot be opened", path);
    s = read_first(&r, &h, err);
    if (s == KR_OK)
        s = read_events(&r, &h, &list, err);
    fclose(r.file);
    if (s != KR_OK) {
        kr_free(list.items);
        return s;
    }
    *header = h;
    *events = list.items;
    *count = list.count;
    return KR_OK;
}
