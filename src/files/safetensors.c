/* Header, shapes and ranges, then one check that the ranges cover the data exactly. */
#include "files/safetensors.h"

#include <jansson.h>
#include <string.h>

#include "base/arena.h"
#include "base/num.h"

/* Element types with whole bytes. Types karat does not compute with keep KR_W_TYPES: their tensors
 * are checked and counted like the others, and refused when something asks for them. */
static const struct {
    const char *name;
    uint32_t bytes;
    kr_weight_type type;
} dtypes[] = {
    {"F32", 4, KR_W_F32},    {"F16", 2, KR_W_F16},       {"BF16", 2, KR_W_BF16},     {"F64", 8, KR_W_TYPES},
    {"I64", 8, KR_W_TYPES},  {"I32", 4, KR_W_TYPES},     {"I16", 2, KR_W_TYPES},     {"I8", 1, KR_W_TYPES},
    {"U64", 8, KR_W_TYPES},  {"U32", 4, KR_W_TYPES},     {"U16", 2, KR_W_TYPES},     {"U8", 1, KR_W_TYPES},
    {"BOOL", 1, KR_W_TYPES}, {"F8_E4M3", 1, KR_W_TYPES}, {"F8_E5M2", 1, KR_W_TYPES},
};

typedef struct {
    const char *path;
    const uint8_t *data; /* of the file, after the header */
    uint64_t bytes;
    uint32_t part;
} section;

static kr_status read_dtype(const section *s, const char *name, const json_t *tensor, kr_tensor_entry *e,
                            uint32_t *element_bytes, kr_err *err)
{
    const char *dtype = json_string_value(json_object_get(tensor, "dtype"));

    for (size_t i = 0; dtype && i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtype, dtypes[i].name) == 0) {
            e->type = dtypes[i].type;
            e->type_name = dtypes[i].name;
            *element_bytes = dtypes[i].bytes;
            return KR_OK;
        }
    return kr_fail(err, KR_E_UNSUPPORTED, "%s: tensor %.80s has dtype \"%.20s\", which is not known", s->path,
                   name, dtype ? dtype : "");
}

static kr_status read_shape(const section *s, const char *name, const json_t *tensor, kr_tensor_entry *e,
                            uint64_t *elements, kr_err *err)
{
    const json_t *shape = json_object_get(tensor, "shape");
    const size_t dims = json_array_size(shape);

    *elements = 1;
    if (!json_is_array(shape) || dims > KR_TENSOR_DIMS_MAX)
        return kr_fail(err, KR_E_FORMAT, "%s: tensor %.80s: shape must be an array of at most %d extents",
                       s->path, name, KR_TENSOR_DIMS_MAX);
    e->dims = (uint32_t)dims;
    for (size_t d = 0; d < dims; d++) {
        const json_t *extent = json_array_get(shape, d);
        if (!json_is_integer(extent) || json_integer_value(extent) <= 0)
            return kr_fail(err, KR_E_FORMAT, "%s: tensor %.80s: extent %zu is not a positive integer",
                           s->path, name, d);
        e->shape[d] = (uint64_t)json_integer_value(extent);
        if (!kr_mul_u64(*elements, e->shape[d], elements))
            return kr_fail(err, KR_E_FORMAT,
                           "%s: tensor %.80s: the product of its extents does not fit 64 bits", s->path,
                           name);
    }
    return KR_OK;
}

static kr_status read_range(const section *s, const char *name, const json_t *tensor, uint64_t bytes,
                            kr_tensor_entry *e, kr_err *err)
{
    const json_t *offsets = json_object_get(tensor, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);

    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
        json_integer_value(first) < 0 || json_integer_value(last) < json_integer_value(first))
        return kr_fail(err, KR_E_FORMAT, "%s: tensor %.80s: data_offsets must be two ascending integers",
                       s->path, name);
    const uint64_t begin = (uint64_t)json_integer_value(first), end = (uint64_t)json_integer_value(last);
    if (end > s->bytes)
        return kr_fail(err, KR_E_FORMAT,
                       "%s: tensor %.80s ends at byte %llu of %llu bytes of data (truncated?)", s->path, name,
                       (unsigned long long)end, (unsigned long long)s->bytes);
    if (end - begin != bytes)
        return kr_fail(err, KR_E_FORMAT, "%s: tensor %.80s spans %llu bytes, its shape and dtype need %llu",
                       s->path, name, (unsigned long long)(end - begin), (unsigned long long)bytes);
    e->data = s->data + begin;
    e->bytes = bytes;
    return KR_OK;
}

static kr_status read_tensor(const section *s, const char *name, const json_t *tensor, kr_tensor_table *table,
                             kr_err *err)
{
    kr_tensor_entry e = {.part = s->part};
    uint32_t element_bytes = 0;
    uint64_t elements = 0, bytes;
    kr_status status;

    if (!json_is_object(tensor) || json_object_size(tensor) != 3)
        return kr_fail(err, KR_E_FORMAT,
                       "%s: tensor %.80s must have dtype, shape and data_offsets, nothing else", s->path,
                       name);
    status = read_dtype(s, name, tensor, &e, &element_bytes, err);
    if (status == KR_OK)
        status = read_shape(s, name, tensor, &e, &elements, err);
    if (status == KR_OK && !kr_mul_u64(elements, element_bytes, &bytes))
        status = kr_fail(err, KR_E_FORMAT, "%s: tensor %.80s: its size does not fit 64 bits", s->path, name);
    if (status == KR_OK)
        status = read_range(s, name, tensor, bytes, &e, err);
    return status == KR_OK ? kr_tensor_table_add(table, kr_bytes_of(name), &e, s->path, err) : status;
}

/* The tensors added since `first`, in the order of their place, cover the data exactly. */
static kr_status check_cover(const section *s, const kr_tensor_table *table, uint32_t first, kr_err *err)
{
    const uint32_t count = table->count - first;
    const uint8_t *at = s->data;
    uint32_t *order = NULL;
    kr_status status = kr_tensor_table_by_place(table, first, &order, s->path, err);

    for (uint32_t i = 0; i < count && status == KR_OK; i++) {
        const kr_tensor_entry *e = &table->entries[order[i]];
        if (e->data != at)
            status = kr_fail(err, KR_E_FORMAT, "%s: tensor %s %s", s->path, e->name,
                             e->data < at ? "overlaps the one before it" : "leaves a hole before it");
        at = e->data + e->bytes;
    }
    if (status == KR_OK && at != s->data + s->bytes)
        status = kr_fail(err, KR_E_FORMAT, "%s: %llu bytes after the last tensor", s->path,
                         (unsigned long long)(s->data + s->bytes - at));
    kr_free(order);
    return status;
}

static kr_status read_metadata(const section *s, json_t *metadata, kr_err *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata))
        return kr_fail(err, KR_E_FORMAT, "%s: __metadata__ is not an object", s->path);
    json_object_foreach(metadata, key, value) if (!json_is_string(value)) return kr_fail(
        err, KR_E_FORMAT, "%s: __metadata__.%.60s is not a string", s->path, key);
    return KR_OK;
}

static kr_status read_header(const section *s, const char *text, size_t bytes, kr_tensor_table *table,
                             kr_err *err)
{
    const uint32_t first = table->count;
    json_error_t why;
    const char *name;
    json_t *tensor;
    kr_status status = KR_OK;
    json_t *root = text[0] == '{' ? json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why) : NULL;

    if (text[0] != '{')
        return kr_fail(err, KR_E_FORMAT, "%s: not a safetensors file (its header does not begin with {)",
                       s->path);
    if (!root)
        return kr_fail(err, KR_E_FORMAT, "%s: header, byte %d: %s", s->path, why.position, why.text);
    json_object_foreach(root, name, tensor)
    {
        status = strcmp(name, "__metadata__") == 0 ? read_metadata(s, tensor, err)
                                                   : read_tensor(s, name, tensor, table, err);
        if (status != KR_OK)
            break;
    }
    json_decref(root);
    return status == KR_OK ? check_cover(s, table, first, err) : status;
}

static kr_status parse(const char *path, uint32_t part, const kr_map *map, kr_tensor_table *table,
                       kr_err *err)
{
    uint64_t header;

    if (map->bytes <= sizeof header)
        return kr_fail(err, KR_E_FORMAT, "%s: %llu bytes are too few for a safetensors file", path,
                       (unsigned long long)map->bytes);
    memcpy(&header, map->data, sizeof header);
    if (header < 2 || header > map->bytes - sizeof header)
        return kr_fail(err, KR_E_FORMAT, "%s: a header of %llu bytes does not fit the file of %llu bytes",
                       path, (unsigned long long)header, (unsigned long long)map->bytes);
    if (header > KR_SAFETENSORS_HEADER_MAX)
        return kr_fail(err, KR_E_LIMIT, "%s: a header of %llu bytes; at most %d are read", path,
                       (unsigned long long)header, KR_SAFETENSORS_HEADER_MAX);
    const section s = {path, map->data + sizeof header + header, map->bytes - sizeof header - header, part};
    return read_header(&s, (const char *)map->data + sizeof header, header, table, err);
}

kr_status kr_safetensors_open(const char *path, uint32_t part, kr_map *map, kr_tensor_table *table,
                              kr_err *err)
{
    kr_map m;
    kr_status status = kr_map_open(path, &m, err);

    if (status != KR_OK)
        return status;
    status = parse(path, part, &m, table, err);
    if (status == KR_OK)
        *map = m;
    else
        kr_map_close(&m);
    return status;
}
