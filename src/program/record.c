/* Recorded runs as JSON lines. Reading bounds lines, events and every number; times must ascend. */
#include "program/record.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/json.h"

enum { LINE_BYTES = 256, WHERE_BYTES = 4200 };

kr_status kr_run_write(FILE *file, const kr_run_header *header, const kr_run_event *events, uint64_t count,
                       kr_err *err)
{
    fprintf(file,
            "{\"karat_run\":1,\"policy\":%" PRIu32 ",\"program_digest\":\"%016" PRIx64
            "\",\"workers\":%" PRIu32 ",\"steps\":%" PRIu32 ",\"micro_batches\":%" PRIu32 "}\n",
            header->policy, header->program_digest, header->workers, header->steps, header->micro_batches);
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

/* The next line as an object; *root is NULL at the end of the file. */
static kr_status next_object(reader *r, json_t **root, kr_err *err)
{
    char text[LINE_BYTES];
    json_error_t cause;

    *root = NULL;
    if (fgets(text, sizeof text, r->file) == NULL)
        return ferror(r->file) ? kr_fail(err, KR_E_IO, "%s: cannot be read", r->path) : KR_OK;
    r->line++;
    snprintf(r->where, sizeof r->where, "%s line %" PRIu64, r->path, r->line);
    if (strchr(text, '\n') == NULL)
        return kr_fail(err, KR_E_FORMAT, "%s: longer than %d bytes or cut off", r->where, LINE_BYTES - 2);
    *root = json_loads(text, JSON_REJECT_DUPLICATES, &cause);
    if (!json_is_object(*root)) {
        json_decref(*root);
        *root = NULL;
        return kr_fail(err, KR_E_FORMAT, "%s: not a JSON object", r->where);
    }
    return KR_OK;
}

static kr_status read_header(kr_json j, kr_run_header *h, kr_err *err)
{
    static const char *const keys[] = {"karat_run",     "policy", "program_digest", "workers", "steps",
                                       "micro_batches", NULL};
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
    return s;
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
        json_t *root;
        kr_status s = next_object(r, &root, err);

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

kr_status kr_run_read(const char *path, kr_run_header *header, kr_run_event **events, uint64_t *count,
                      uint64_t events_max, kr_err *err)
{
    reader r = {.path = path, .file = fopen(path, "r")};
    event_list list = {.max = events_max};
    kr_run_header h = {0};
    json_t *root = NULL;
    kr_status s;

    if (r.file == NULL)
        return kr_fail(err, KR_E_IO, "%s: cannot be opened", path);
    s = next_object(&r, &root, err);
    if (s == KR_OK && root == NULL)
        s = kr_fail(err, KR_E_FORMAT, "%s: empty", path);
    if (s == KR_OK)
        s = read_header((kr_json){.object = root, .where = r.where}, &h, err);
    json_decref(root);
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
