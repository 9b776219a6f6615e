/* Reading the container: one pass over the file with a cursor that knows what is left. */
#include "files/gguf.h"

#include <string.h>

#include "base/arena.h"
#include "base/num.h"

/* Bytes of one element; 0 for string and array. */
static uint32_t type_bytes(uint32_t type)
{
    static const uint8_t bytes[KR_GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return bytes[type];
}

/* The unread rest of the file. Every take checks what is left first. */
typedef struct {
    const char *path;
    const uint8_t *start, *at;
    uint64_t left;
} cursor;

static kr_status truncated(const cursor *c, const char *what, uint64_t need, kr_err *err)
{
    return kr_fail(err, KR_E_FORMAT, "%s: truncated at byte %llu: %s needs %llu bytes, %llu are left",
                   c->path, (unsigned long long)(c->at - c->start), what, (unsigned long long)need,
                   (unsigned long long)c->left);
}

/* The next bytes, moved past; NULL with err when they are not there. */
static const uint8_t *take(cursor *c, uint64_t bytes, const char *what, kr_err *err)
{
    const uint8_t *p = c->at;

    if (bytes > c->left) {
        truncated(c, what, bytes, err);
        return NULL;
    }
    c->at += bytes;
    c->left -= bytes;
    return p;
}

static kr_status take_u32(cursor *c, const char *what, uint32_t *out, kr_err *err)
{
    const uint8_t *p = take(c, sizeof *out, what, err);

    if (!p)
        return KR_E_FORMAT;
    memcpy(out, p, sizeof *out);
    return KR_OK;
}

static kr_status take_u64(cursor *c, const char *what, uint64_t *out, kr_err *err)
{
    const uint8_t *p = take(c, sizeof *out, what, err);

    if (!p)
        return KR_E_FORMAT;
    memcpy(out, p, sizeof *out);
    return KR_OK;
}

static kr_status take_string(cursor *c, const char *what, uint64_t bytes_max, kr_bytes *out, kr_err *err)
{
    uint64_t bytes = 0;
    kr_status status = take_u64(c, what, &bytes, err);

    if (status != KR_OK)
        return status;
    if (bytes > bytes_max && bytes <= c->left)
        return kr_fail(err, KR_E_LIMIT, "%s: %s of %llu bytes at byte %llu; at most %llu", c->path, what,
                       (unsigned long long)bytes, (unsigned long long)(c->at - c->start),
                       (unsigned long long)bytes_max);
    const uint8_t *p = take(c, bytes, what, err);
    if (!p)
        return KR_E_FORMAT;
    *out = (kr_bytes){(const char *)p, (uint32_t)bytes};
    return KR_OK;
}

static int key_text(kr_bytes key)
{
    return key.bytes > 80 ? 80 : (int)key.bytes; /* enough of it for a message */
}

static kr_status take_array(cursor *c, kr_gguf_value *v, kr_err *err)
{
    uint32_t item = 0;
    kr_bytes ignored;
    uint64_t bytes;
    kr_status status = take_u32(c, "array type", &item, err);

    if (status == KR_OK)
        status = take_u64(c, "array length", &v->items, err);
    if (status != KR_OK)
        return status;
    if (item >= KR_GGUF_TYPES || item == KR_GGUF_ARRAY)
        return kr_fail(err, KR_E_FORMAT,
                       "%s: key %.*s is an array of element type %u, which is not supported", c->path,
                       key_text(v->key), v->key.text, item);
    v->item = (kr_gguf_type)item;
    v->data = c->at;
    if (item != KR_GGUF_STRING) {
        if (!kr_mul_u64(v->items, type_bytes(item), &bytes))
            bytes = UINT64_MAX;
        return take(c, bytes, "array", err) ? KR_OK : KR_E_FORMAT;
    }
    if (v->items > c->left / sizeof(uint64_t))
        return truncated(c, "array of strings", v->items, err);
    for (uint64_t i = 0; status == KR_OK && i < v->items; i++)
        status = take_string(c, "string", UINT32_MAX, &ignored, err);
    return status;
}

static kr_status take_value(cursor *c, kr_gguf_value *v, kr_err *err)
{
    kr_bytes ignored;
    uint32_t type = 0;
    kr_status status = take_string(c, "key", KR_GGUF_KEY_BYTES_MAX, &v->key, err);

    if (status == KR_OK)
        status = take_u32(c, "value type", &type, err);
    if (status != KR_OK)
        return status;
    if (type >= KR_GGUF_TYPES)
        return kr_fail(err, KR_E_FORMAT, "%s: key %.*s has unknown value type %u", c->path, key_text(v->key),
                       v->key.text, type);
    v->type = v->item = (kr_gguf_type)type;
    v->items = 1;
    if (type == KR_GGUF_ARRAY)
        return take_array(c, v, err);
    v->data = c->at;
    if (type == KR_GGUF_STRING)
        return take_string(c, "string", UINT32_MAX, &ignored, err);
    if (!take(c, type_bytes(type), "value", err))
        return KR_E_FORMAT;
    if (type == KR_GGUF_BOOL && *v->data > 1)
        status = kr_fail(err, KR_E_FORMAT, "%s: key %.*s is a bool with value %u", c->path, key_text(v->key),
                         v->key.text, *v->data);
    return status;
}

static kr_status take_values(cursor *c, kr_gguf *g, uint64_t count, kr_err *err)
{
    enum { VALUE_BYTES_MIN = 8 + 4 + 1 }; /* key length, type, one byte of value */
    kr_status status = KR_OK;

    if (count > KR_GGUF_KEYS_MAX || count > c->left / VALUE_BYTES_MIN)
        return kr_fail(err, KR_E_FORMAT, "%s: %llu metadata keys do not fit the file or the limit of %d",
                       c->path, (unsigned long long)count, KR_GGUF_KEYS_MAX);
    g->values = kr_alloc((count + 1) * sizeof *g->values);
    if (!g->values)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for %llu keys", c->path, (unsigned long long)count);
    status = kr_span_map_init(&g->keys, count, err);
    for (uint32_t i = 0; status == KR_OK && i < count; i++) {
        kr_gguf_value *v = &g->values[g->count];
        status = take_value(c, v, err);
        if (status == KR_OK && kr_span_map_add(&g->keys, v->key, g->count) != KR_SPAN_NONE)
            status = kr_fail(err, KR_E_FORMAT, "%s: key %.*s occurs twice", c->path, key_text(v->key),
                             v->key.text);
        if (status == KR_OK)
            g->count++;
    }
    return status;
}

static const kr_weight_type_info *type_by_code(uint32_t code, kr_weight_type *type)
{
    for (unsigned t = 0; t < KR_W_TYPES; t++)
        if (kr_weight_type_of((kr_weight_type)t)->gguf_code == code) {
            *type = (kr_weight_type)t;
            return kr_weight_type_of((kr_weight_type)t);
        }
    return NULL;
}

/* Bytes of a tensor from its shape; false when a product does not fit 64 bits. */
static bool tensor_bytes(const kr_tensor_entry *e, const kr_weight_type_info *info, uint64_t *bytes)
{
    uint64_t total = 1;

    for (uint32_t d = 0; d < e->dims; d++)
        if (!kr_mul_u64(total, e->shape[d], &total))
            return false;
    return kr_mul_u64(total / info->block_elements, info->block_bytes, bytes);
}

/* The offset from the data section is left in *offset; data is set once the section's start is known. */
static kr_status take_tensor(cursor *c, uint32_t alignment, kr_bytes *name, kr_tensor_entry *e,
                             uint64_t *offset, kr_err *err)
{
    const kr_weight_type_info *info;
    uint32_t code = 0;
    kr_status status = take_string(c, "tensor name", KR_TENSOR_NAME_MAX, name, err);

    if (status == KR_OK)
        status = take_u32(c, "tensor dimensions", &e->dims, err);
    if (status == KR_OK && (e->dims == 0 || e->dims > KR_GGUF_DIMS_MAX))
        status = kr_fail(err, KR_E_FORMAT, "%s: tensor %.*s has %u dimensions; 1 to %d are allowed", c->path,
                         key_text(*name), name->text, e->dims, KR_GGUF_DIMS_MAX);
    for (uint32_t d = 0; status == KR_OK && d < e->dims; d++) {
        uint64_t *extent = &e->shape[e->dims - 1 - d]; /* the file lists the innermost first */
        status = take_u64(c, "tensor shape", extent, err);
        if (status == KR_OK && *extent == 0)
            status = kr_fail(err, KR_E_FORMAT, "%s: tensor %.*s has an extent of 0", c->path, key_text(*name),
                             name->text);
    }
    if (status == KR_OK)
        status = take_u32(c, "tensor type", &code, err);
    if (status == KR_OK)
        status = take_u64(c, "tensor offset", offset, err);
    if (status != KR_OK)
        return status;
    info = type_by_code(code, &e->type);
    if (!info)
        return kr_fail(err, KR_E_UNSUPPORTED,
                       "%s: tensor %.*s has GGUF type %u; supported are F32 F16 BF16 Q8_0 "
                       "Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K",
                       c->path, key_text(*name), name->text, code);
    e->type_name = info->name;
    if (e->shape[e->dims - 1] % info->block_elements != 0 || !tensor_bytes(e, info, &e->bytes))
        return kr_fail(err, KR_E_FORMAT,
                       "%s: tensor %.*s: innermost extent %llu is not a multiple of %s's block of "
                       "%u, or its size does not fit 64 bits",
                       c->path, key_text(*name), name->text, (unsigned long long)e->shape[e->dims - 1],
                       info->name, info->block_elements);
    if (*offset % alignment != 0)
        return kr_fail(err, KR_E_FORMAT,
                       "%s: tensor %.*s starts at offset %llu, not a multiple of the alignment %u", c->path,
                       key_text(*name), name->text, (unsigned long long)*offset, alignment);
    return KR_OK;
}

/* No two of the tensors added since `first` share a byte. */
static kr_status check_overlap(const kr_gguf *g, const kr_tensor_table *table, uint32_t first, kr_err *err)
{
    const uint32_t count = table->count - first;
    uint32_t *order = NULL;
    kr_status status = kr_tensor_table_by_place(table, first, &order, g->path, err);

    for (uint32_t i = 1; i < count && status == KR_OK; i++) {
        const kr_tensor_entry *e = &table->entries[order[i - 1]], *next = &table->entries[order[i]];
        if (e->data + e->bytes > next->data)
            status = kr_fail(err, KR_E_FORMAT, "%s: tensors %s and %s overlap", g->path, e->name, next->name);
    }
    kr_free(order);
    return status;
}

/* Gives the tensors added since `first` their data; offset[i] belongs to entry first + i. */
static kr_status place_tensors(const kr_gguf *g, const cursor *c, kr_tensor_table *table, uint32_t first,
                               const uint64_t *offset, kr_err *err)
{
    const uint64_t header = (uint64_t)(c->at - c->start);
    const uint64_t base = kr_ceil_div(header, g->alignment) * g->alignment;

    for (uint32_t i = first; i < table->count; i++) {
        kr_tensor_entry *e = &table->entries[i];
        uint64_t begin, end;
        if (!kr_add_u64(base, offset[i - first], &begin) || !kr_add_u64(begin, e->bytes, &end) ||
            end > g->map.bytes)
            return kr_fail(err, KR_E_FORMAT,
                           "%s: tensor %s: %llu bytes at offset %llu of the data do not lie in the "
                           "file of %llu bytes (truncated?)",
                           g->path, e->name, (unsigned long long)e->bytes,
                           (unsigned long long)offset[i - first], (unsigned long long)g->map.bytes);
        e->data = g->map.data + begin;
    }
    return check_overlap(g, table, first, err);
}

static kr_status take_tensors(cursor *c, kr_gguf *g, uint64_t count, uint32_t part, kr_tensor_table *table,
                              kr_err *err)
{
    enum { TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8 };
    const uint32_t first = table->count;
    kr_status status = KR_OK;
    uint64_t *offset;

    if (count > KR_TENSORS_MAX || count > c->left / TENSOR_BYTES_MIN)
        return kr_fail(err, KR_E_FORMAT, "%s: %llu tensors do not fit the file or the limit of %d", c->path,
                       (unsigned long long)count, KR_TENSORS_MAX);
    offset = kr_alloc((count + 1) * sizeof *offset);
    if (!offset)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for %llu tensors", c->path,
                       (unsigned long long)count);
    for (uint64_t i = 0; status == KR_OK && i < count; i++) {
        kr_tensor_entry entry = {.part = part};
        kr_bytes name = {NULL, 0};
        status = take_tensor(c, g->alignment, &name, &entry, &offset[i], err);
        if (status == KR_OK)
            status = kr_tensor_table_add(table, name, &entry, c->path, err);
    }
    if (status == KR_OK)
        status = place_tensors(g, c, table, first, offset, err);
    kr_free(offset);
    return status;
}

static kr_status read_alignment(kr_gguf *g, kr_err *err)
{
    uint64_t alignment = 32; /* the format's default */
    const kr_status status = kr_gguf_u64(g, "general.alignment", false, 0, UINT64_MAX, &alignment, err);

    if (status != KR_OK)
        return status;
    if (alignment == 0 || alignment % 8 != 0 || alignment > KR_GGUF_ALIGNMENT_MAX)
        return kr_fail(err, KR_E_FORMAT,
                       "%s: general.alignment is %llu; it must be a non-zero multiple of 8 and at "
                       "most %d",
                       g->path, (unsigned long long)alignment, KR_GGUF_ALIGNMENT_MAX);
    g->alignment = (uint32_t)alignment;
    return KR_OK;
}

static kr_status parse(kr_gguf *g, uint32_t part, kr_tensor_table *table, kr_err *err)
{
    cursor c = {g->path, g->map.data, g->map.data, g->map.bytes};
    const uint8_t *magic = take(&c, 4, "magic", err);
    uint64_t tensors = 0, keys = 0;
    kr_status status;

    if (!magic)
        return KR_E_FORMAT;
    if (memcmp(magic, "GGUF", 4) != 0)
        return kr_fail(
            err, KR_E_FORMAT,
            "%s: not a GGUF file (it does not begin with GGUF); of a Hugging Face model, give the folder",
            g->path);
    status = take_u32(&c, "version", &g->version, err);
    if (status == KR_OK && (g->version < 2 || g->version > 3))
        status = kr_fail(err, KR_E_UNSUPPORTED,
                         "%s: GGUF version %u%s; versions 2 and 3, little endian, are read", g->path,
                         g->version, g->version >> 24 ? " (a big-endian file)" : "");
    if (status == KR_OK)
        status = take_u64(&c, "tensor count", &tensors, err);
    if (status == KR_OK)
        status = take_u64(&c, "key count", &keys, err);
    if (status == KR_OK)
        status = take_values(&c, g, keys, err);
    if (status == KR_OK)
        status = read_alignment(g, err);
    return status == KR_OK ? take_tensors(&c, g, tensors, part, table, err) : status;
}

kr_status kr_gguf_open(const char *path, uint32_t part, kr_gguf *gguf, kr_tensor_table *table, kr_err *err)
{
    kr_gguf g = {.path = path};
    kr_status status = kr_map_open(path, &g.map, err);

    if (status == KR_OK)
        status = parse(&g, part, table, err);
    if (status == KR_OK)
        *gguf = g;
    else
        kr_gguf_close(&g);
    return status;
}

void kr_gguf_close(kr_gguf *gguf)
{
    kr_free(gguf->values);
    kr_span_map_free(&gguf->keys);
    kr_map_close(&gguf->map);
    memset(gguf, 0, sizeof *gguf);
}
