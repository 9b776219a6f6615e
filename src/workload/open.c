/* Opening a trace: a file or a folder of files, and which format it is.
 *
 * The format is told by the name (.csv), and by the first key of the first JSON object that only one
 * format has. JSON may be packed with gzip. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "workload/read.h"

enum { FILES_MAX = 1 << 16 };

static const struct {
    const char *key;
    kr_trace_format format;
} signs[] = {
    {"karat_trace", KR_TRACE_RUNS}, {"block_size", KR_TRACE_KVCT},       {"hash_id_scope", KR_TRACE_KVCT},
    {"requests", KR_TRACE_KVCT},    {"input_length", KR_TRACE_MOONCAKE}, {"hash_ids", KR_TRACE_MOONCAKE},
    {"input_toks", KR_TRACE_LSS},   {"sub_requests", KR_TRACE_LSS},      {"arrival_time_ns", KR_TRACE_LSS},
    {"turns", KR_TRACE_COPILOT},
};

static kr_status by_keys(kr_scan *s, kr_trace_format *format, kr_err *err)
{
    kr_status status = kr_scan_expect(s, KR_SCAN_OBJECT, "an object (or a CSV file named .csv)", err);

    while (status == KR_OK) {
        status = kr_scan_next(s, err);
        if (status != KR_OK || s->kind != KR_SCAN_KEY)
            break;
        for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
            if (strcmp(s->text, signs[i].key) == 0) {
                *format = signs[i].format;
                return KR_OK;
            }
        status = kr_scan_skip(s, err);
    }
    if (status != KR_OK)
        return status;
    return kr_fail(err, KR_E_FORMAT,
                   "%s: the first object has none of the keys by which KVCT, run-length, Mooncake, "
                   "LLMServingSim or Copilot traces are known",
                   s->path);
}

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);

    return n >= m && strcmp(name + n - m, end) == 0;
}

static bool is_csv(const char *path) { return ends_with(path, ".csv") || ends_with(path, ".csv.gz"); }

/* Empty files, and what is not unpacked on the way, are told before anything is parsed. */
static kr_status look(const char *path, kr_err *err)
{
    unsigned char head[2];
    FILE *in = fopen(path, "rb");
    size_t n;

    if (in == NULL)
        return kr_fail(err, KR_E_NOT_FOUND, "%s: %s", path, strerror(errno));
    n = fread(head, 1, sizeof head, in);
    fclose(in);
    if (n == 0)
        return kr_fail(err, KR_E_FORMAT, "%s: empty", path);
    if (n == 2 && head[0] == 0x1f && head[1] == 0x8b && is_csv(path))
        return kr_fail(err, KR_E_UNSUPPORTED, "%s: a CSV packed with gzip; unpack it with gunzip first",
                       path);
    return KR_OK;
}

static kr_status by_format(kr_scan *s, kr_trace_format format, kr_trace *trace, uint32_t block_tokens,
                           kr_err *err)
{
    if (format == KR_TRACE_KVCT)
        return kr_read_kvct(s, trace, err);
    if (format == KR_TRACE_RUNS)
        return kr_read_runs(s, trace, err);
    if (format == KR_TRACE_MOONCAKE)
        return kr_read_mooncake(s, trace, block_tokens, err);
    return format == KR_TRACE_LSS ? kr_read_lss(s, trace, err) : kr_read_copilot(s, trace, err);
}

static kr_status read_json(kr_scan *s, const char *path, kr_trace *trace, uint32_t block_tokens, kr_err *err)
{
    kr_trace_format format = KR_TRACE_AUTO;
    kr_status status = kr_scan_open(s, path, err);

    if (status != KR_OK)
        return status;
    status = by_keys(s, &format, err);
    kr_scan_close(s);
    if (status == KR_OK && trace->format != KR_TRACE_AUTO && trace->format != format)
        status = kr_fail(err, KR_E_FORMAT, "%s: a %s trace among %s traces", path,
                         kr_trace_format_name(format), kr_trace_format_name(trace->format));
    if (status != KR_OK)
        return status;
    trace->format = format;
    status = kr_scan_open(s, path, err);
    if (status != KR_OK)
        return status;
    status = by_format(s, format, trace, block_tokens, err);
    kr_scan_close(s);
    return status;
}

static kr_status read_file(const char *path, kr_trace *trace, uint32_t block_tokens, kr_err *err)
{
    kr_scan *scan;
    kr_status status = look(path, err);

    if (status != KR_OK)
        return status;
    if (is_csv(path))
        return kr_read_csv(path, trace, err);
    scan = kr_alloc(sizeof *scan);
    if (scan == NULL)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory to read", path);
    status = read_json(scan, path, trace, block_tokens, err);
    kr_free(scan);
    return status;
}

static bool is_trace(const char *name)
{
    return ends_with(name, ".json") || ends_with(name, ".jsonl") || ends_with(name, ".json.gz") ||
           ends_with(name, ".jsonl.gz") || is_csv(name);
}

typedef char file_name[256];

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

/* Fills names, which holds FILES_MAX, with the folder's trace files. */
static kr_status list_folder(const char *path, file_name *names, uint32_t *count, kr_err *err)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;
    kr_status status = KR_OK;

    if (folder == NULL)
        return kr_fail(err, KR_E_IO, "%s: %s", path, strerror(errno));
    *count = 0;
    while (status == KR_OK && (entry = readdir(folder)) != NULL) {
        if (!is_trace(entry->d_name))
            continue;
        if (*count == FILES_MAX)
            status = kr_fail(err, KR_E_LIMIT, "%s: more than %d files", path, FILES_MAX);
        else
            snprintf(names[(*count)++], sizeof *names, "%s", entry->d_name);
    }
    closedir(folder);
    if (status == KR_OK && *count == 0)
        status = kr_fail(err, KR_E_NOT_FOUND, "%s: no file named *.json, *.jsonl, *.csv or these with .gz",
                         path);
    return status;
}

static kr_status read_folder(const char *path, kr_trace *trace, uint32_t block_tokens, kr_err *err)
{
    file_name *names = kr_alloc(FILES_MAX * sizeof *names);
    uint32_t count = 0;
    kr_status status;

    if (names == NULL)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for the names of its files", path);
    status = list_folder(path, names, &count, err);
    qsort(names, count, sizeof *names, by_name);
    for (uint32_t i = 0; i < count && status == KR_OK; i++) {
        char file[4096];

        if (snprintf(file, sizeof file, "%s/%s", path, names[i]) >= (int)sizeof file)
            status = kr_fail(err, KR_E_ARG, "%s: a path longer than 4 KB", path);
        if (status == KR_OK)
            status = read_file(file, trace, block_tokens, err);
    }
    kr_free(names);
    return status;
}

kr_status kr_trace_read(kr_trace *trace, const char *path, uint32_t block_tokens, kr_err *err)
{
    kr_trace t = {0};
    struct stat about;
    kr_status status;

    *trace = t;
    if (stat(path, &about) != 0)
        return kr_fail(err, KR_E_NOT_FOUND, "%s: %s", path, strerror(errno));
    status = S_ISDIR(about.st_mode) ? read_folder(path, &t, block_tokens, err)
                                    : read_file(path, &t, block_tokens, err);
    if (status == KR_OK && t.sessions == 0)
        status = kr_fail(err, KR_E_FORMAT, "%s: holds no session", path);
    if (status == KR_OK)
        status = kr_trace_seal(&t, path, err);
    if (status == KR_OK)
        *trace = t;
    else
        kr_trace_free(&t);
    return status;
}
