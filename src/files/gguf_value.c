/* Typed reading of a validated GGUF file's metadata. */
#include <string.h>

#include "files/gguf.h"

static const char *const type_name[KR_GGUF_TYPES] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                     "bool", "string", "array", "u64", "i64", "f64"};

const kr_gguf_value *kr_gguf_find(const kr_gguf *gguf, const char *key)
{
    const uint32_t at = kr_span_map_find(&gguf->keys, kr_bytes_of(key));
    return at == KR_SPAN_NONE ? NULL : &gguf->values[at];
}

static kr_status wrong_type(const kr_gguf *g, const char *key, const kr_gguf_value *v, const char *want,
                            kr_err *err)
{
    return kr_fail(err, KR_E_FORMAT, "%s: key %s is %s%s, not %s", g->path, key,
                   v->type == KR_GGUF_ARRAY ? "an array of " : "", type_name[v->item], want);
}

/* *value is NULL when the key is absent and not required. */
static kr_status lookup(const kr_gguf *g, const char *key, bool required, const kr_gguf_value **value,
                        kr_err *err)
{
    *value = kr_gguf_find(g, key);
    if (!*value && required)
        return kr_fail(err, KR_E_NOT_FOUND, "%s: key %s is missing", g->path, key);
    return KR_OK;
}

static bool is_integer(kr_gguf_type type)
{
    return type != KR_GGUF_F32 && type != KR_GGUF_F64 && type != KR_GGUF_BOOL && type != KR_GGUF_STRING &&
           type != KR_GGUF_ARRAY;
}

kr_status kr_gguf_u64(const kr_gguf *gguf, const char *key, bool required, uint64_t min, uint64_t max,
                      uint64_t *out, kr_err *err)
{
    const kr_gguf_value *v;
    const kr_status status = lookup(gguf, key, required, &v, err);

    if (status != KR_OK || !v)
        return status;
    if (!is_integer(v->type))
        return wrong_type(gguf, key, v, "an integer", err);
    const int64_t x = kr_gguf_item_int(v, 0);
    if ((x < 0 && v->type != KR_GGUF_U64) || (uint64_t)x < min || (uint64_t)x > max)
        return kr_fail(err, KR_E_FORMAT, "%s: key %s is %lld; %llu to %llu allowed", gguf->path, key,
                       (long long)x, (unsigned long long)min, (unsigned long long)max);
    *out = (uint64_t)x;
    return KR_OK;
}

kr_status kr_gguf_u32(const kr_gguf *gguf, const char *key, bool required, uint32_t min, uint32_t max,
                      uint32_t *out, kr_err *err)
{
    uint64_t wide = *out;
    const kr_status status = kr_gguf_u64(gguf, key, required, min, max, &wide, err);
    if (status == KR_OK)
        *out = (uint32_t)wide;
    return status;
}

kr_status kr_gguf_real(const kr_gguf *gguf, const char *key, bool required, double min, double max,
                       double *out, kr_err *err)
{
    const kr_gguf_value *v;
    double x;
    const kr_status status = lookup(gguf, key, required, &v, err);

    if (status != KR_OK || !v)
        return status;
    if (v->type == KR_GGUF_F32)
        x = (double)kr_gguf_item_f32(v, 0);
    else if (v->type == KR_GGUF_F64)
        memcpy(&x, v->data, sizeof x);
    else
        return wrong_type(gguf, key, v, "a real number", err);
    if (!(x >= min && x <= max)) /* NaN fails too */
        return kr_fail(err, KR_E_FORMAT, "%s: key %s is %g; %g to %g allowed", gguf->path, key, x, min, max);
    *out = x;
    return KR_OK;
}

kr_status kr_gguf_bool(const kr_gguf *gguf, const char *key, bool required, bool *out, kr_err *err)
{
    const kr_gguf_value *v;
    const kr_status status = lookup(gguf, key, required, &v, err);

    if (status != KR_OK || !v)
        return status;
    if (v->type != KR_GGUF_BOOL)
        return wrong_type(gguf, key, v, "a bool", err);
    *out = *v->data != 0;
    return KR_OK;
}

kr_status kr_gguf_string(const kr_gguf *gguf, const char *key, bool required, kr_bytes *out, kr_err *err)
{
    const kr_gguf_value *v;
    const uint8_t *at;
    const kr_status status = lookup(gguf, key, required, &v, err);

    if (status != KR_OK || !v)
        return status;
    if (v->type != KR_GGUF_STRING)
        return wrong_type(gguf, key, v, "a string", err);
    at = v->data;
    *out = kr_gguf_next_string(&at);
    return KR_OK;
}

kr_status kr_gguf_array(const kr_gguf *gguf, const char *key, bool required, kr_gguf_type item,
                        const kr_gguf_value **out, kr_err *err)
{
    const kr_gguf_value *v;
    const kr_status status = lookup(gguf, key, required, &v, err);

    if (status != KR_OK)
        return status;
    if (v && (v->type != KR_GGUF_ARRAY || v->item != item))
        return kr_fail(err, KR_E_FORMAT, "%s: key %s is %s%s, not an array of %s", gguf->path, key,
                       v->type == KR_GGUF_ARRAY ? "an array of " : "", type_name[v->item], type_name[item]);
    *out = v;
    return KR_OK;
}

kr_bytes kr_gguf_next_string(const uint8_t **at)
{
    uint64_t bytes;

    memcpy(&bytes, *at, sizeof bytes);
    const kr_bytes s = {(const char *)*at + sizeof bytes, (uint32_t)bytes};
    *at += sizeof bytes + bytes;
    return s;
}

int64_t kr_gguf_item_int(const kr_gguf_value *value, uint64_t i)
{
#define ITEM(tag, type)                                   \
    case tag: {                                           \
        type x;                                           \
        memcpy(&x, value->data + i * sizeof x, sizeof x); \
        return (int64_t)x;                                \
    }
    switch (value->item) {
        ITEM(KR_GGUF_U8, uint8_t)
        ITEM(KR_GGUF_I8, int8_t)
        ITEM(KR_GGUF_BOOL, uint8_t)
        ITEM(KR_GGUF_U16, uint16_t)
        ITEM(KR_GGUF_I16, int16_t)
        ITEM(KR_GGUF_U32, uint32_t)
        ITEM(KR_GGUF_I32, int32_t)
        ITEM(KR_GGUF_U64, uint64_t)
        ITEM(KR_GGUF_I64, int64_t)
    default:
        return 0;
    }
#undef ITEM
}

float kr_gguf_item_f32(const kr_gguf_value *value, uint64_t i)
{
    float x;
    memcpy(&x, value->data + i * sizeof x, sizeof x);
    return x;
}
