/* Strict reading of JSON files and objects.
 *
 * Integers end at 2^63 - 1, as jansson's do: a larger literal is an error of the file, never a
 * rounded value. (Traces, whose ids use all 64 bits, have their own scanner.) */
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/text.h"

/* Reads an open regular file of known size into *text, which the caller frees. */
static kr_status read_all(int fd, const char *path, size_t bytes, char **text, kr_err *err)
{
    char *buffer = kr_alloc(bytes);
    if (buffer == NULL)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for %zu bytes", path, bytes);

    size_t have = 0;
    while (have < bytes) {
        const ssize_t n = read(fd, buffer + have, bytes - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            kr_free(buffer);
            return kr_fail(err, KR_E_IO, "%s: cannot read: %s", path,
                           n < 0 ? strerror(errno) : "the file shrank while it was read");
        }
        have += (size_t)n;
    }
    *text = buffer;
    return KR_OK;
}

static kr_status read_file(const char *path, char **text, size_t *bytes, kr_err *err)
{
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */
    if (fd < 0)
        return kr_fail(err, errno == ENOENT ? KR_E_NOT_FOUND : KR_E_IO, "%s: cannot open: %s", path,
                       strerror(errno));

    kr_status status;
    if (fstat(fd, &info) != 0)
        status = kr_fail(err, KR_E_IO, "%s: cannot stat: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = kr_fail(err, KR_E_IO, "%s: not a regular file", path);
    else if (info.st_size > KR_JSON_BYTES_MAX)
        status = kr_fail(err, KR_E_LIMIT, "%s: %lld bytes; a JSON file may have %d", path,
                         (long long)info.st_size, KR_JSON_BYTES_MAX);
    else
        status = read_all(fd, path, (size_t)info.st_size, text, err);
    if (status == KR_OK)
        *bytes = (size_t)info.st_size;
    close(fd);
    return status;
}

/* Deepest nesting of brackets outside strings; jansson itself allows 2048 levels of recursion. */
static unsigned depth_of(const char *text, size_t bytes)
{
    unsigned depth = 0, deepest = 0;
    bool in_string = false;

    for (size_t i = 0; i < bytes; i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > deepest)
                deepest = depth;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
    }
    return deepest;
}

kr_status kr_json_load(const char *path, json_t **root, kr_err *err)
{
    char *text;
    size_t bytes;
    const kr_status status = read_file(path, &text, &bytes, err);
    if (status != KR_OK)
        return status;

    const unsigned depth = depth_of(text, bytes);
    if (depth > KR_JSON_DEPTH_MAX) {
        kr_free(text);
        return kr_fail(err, KR_E_LIMIT, "%s: nested %u levels deep; the limit is %d", path, depth,
                       KR_JSON_DEPTH_MAX);
    }
    json_error_t problem;
    json_t *value = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &problem);
    kr_free(text);
    if (value == NULL) {
        if (json_error_code(&problem) == json_error_out_of_memory)
            return kr_fail(err, KR_E_MEMORY, "%s: no memory for its contents", path);
        return kr_fail(err, KR_E_FORMAT, "%s:%d:%d: %s", path, problem.line, problem.column, problem.text);
    }
    *root = value;
    return KR_OK;
}

static const char *kind_of(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array",     [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a real number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null",
    };
    return names[json_typeof(value)];
}

/* The value of key; *value is NULL when it is absent and not required. */
static kr_status find(kr_json j, const char *key, bool required, const json_t **value, kr_err *err)
{
    if (!json_is_object(j.object))
        return kr_fail(err, KR_E_FORMAT, "%s: must be an object", j.where);
    const json_t *found = json_object_get(j.object, key);
    if (found == NULL && required)
        return kr_fail(err, KR_E_FORMAT, "%s: \"%s\" is missing", j.where, key);
    *value = found;
    return KR_OK;
}

static kr_status wrong_kind(kr_json j, const char *key, const char *want, const json_t *value, kr_err *err)
{
    return kr_fail(err, KR_E_FORMAT, "%s: \"%s\" must be %s, not %s", j.where, key, want, kind_of(value));
}

kr_status kr_json_u64(kr_json j, const char *key, bool required, uint64_t min, uint64_t max, uint64_t *out,
                      kr_err *err)
{
    const json_t *value;
    const kr_status status = find(j, key, required, &value, err);
    if (status != KR_OK || value == NULL)
        return status;
    if (!json_is_integer(value))
        return wrong_kind(j, key, "an integer", value, err);

    const json_int_t number = json_integer_value(value);
    if (number < 0 || (uint64_t)number < min || (uint64_t)number > max)
        return kr_fail(err, KR_E_FORMAT, "%s: \"%s\" is %lld; must be %" PRIu64 " to %" PRIu64, j.where, key,
                       (long long)number, min, max);
    *out = (uint64_t)number;
    return KR_OK;
}

kr_status kr_json_u32(kr_json j, const char *key, bool required, uint32_t min, uint32_t max, uint32_t *out,
                      kr_err *err)
{
    uint64_t wide = *out;
    const kr_status status = kr_json_u64(j, key, required, min, max, &wide, err);
    if (status == KR_OK)
        *out = (uint32_t)wide;
    return status;
}

kr_status kr_json_real(kr_json j, const char *key, bool required, double min, double max, double *out,
                       kr_err *err)
{
    const json_t *value;
    const kr_status status = find(j, key, required, &value, err);
    if (status != KR_OK || value == NULL)
        return status;
    if (!json_is_number(value))
        return wrong_kind(j, key, "a number", value, err);

    const double number = json_number_value(value);
    if (!isfinite(number) || number < min || number > max)
        return kr_fail(err, KR_E_FORMAT, "%s: \"%s\" is %g; must be %g to %g", j.where, key, number, min,
                       max);
    *out = number;
    return KR_OK;
}

kr_status kr_json_bool(kr_json j, const char *key, bool required, bool *out, kr_err *err)
{
    const json_t *value;
    const kr_status status = find(j, key, required, &value, err);
    if (status != KR_OK || value == NULL)
        return status;
    if (!json_is_boolean(value))
        return wrong_kind(j, key, "true or false", value, err);
    *out = json_is_true(value);
    return KR_OK;
}

kr_status kr_json_string(kr_json j, const char *key, bool required, const char **out, kr_err *err)
{
    const json_t *value;
    const kr_status status = find(j, key, required, &value, err);
    if (status != KR_OK || value == NULL)
        return status;
    if (!json_is_string(value))
        return wrong_kind(j, key, "a string", value, err);
    *out = json_string_value(value);
    return KR_OK;
}

kr_status kr_json_only(kr_json j, const char *const *keys, kr_err *err)
{
    if (!json_is_object(j.object))
        return kr_fail(err, KR_E_FORMAT, "%s: must be an object", j.where);

    /* Iteration needs a non-const object but does not change it. */
    json_t *object = (json_t *)(uintptr_t)j.object;
    for (void *i = json_object_iter(object); i != NULL; i = json_object_iter_next(object, i)) {
        const char *key = json_object_iter_key(i);
        const char *const *known = keys;
        while (*known != NULL && strcmp(*known, key) != 0)
            known++;
        if (*known != NULL)
            continue;
        const char *nearest = kr_text_nearest(key, keys);
        if (nearest == NULL)
            return kr_fail(err, KR_E_FORMAT, "%s: unknown key \"%s\"", j.where, key);
        return kr_fail(err, KR_E_FORMAT, "%s: unknown key \"%s\" (nearest: \"%s\")", j.where, key, nearest);
    }
    return KR_OK;
}
