/* What one session holds: lengths, boundaries, records, the view a method gets, and writing rows. */
#include "store/store.h"

#include "base/check.h"

uint64_t kr_kv_session_tokens(const kr_store *store, const kr_kv_session *s)
{
    uint64_t most = 0;

    for (uint32_t l = 0; l < store->geometry.layers; l++)
        most = s->tokens[l] > most ? s->tokens[l] : most;
    return most;
}

kr_record_header *kr_kv_session_record(const kr_store *store, const kr_kv_session *s, uint32_t layer)
{
    uint8_t *at = s->records;

    for (uint32_t l = 0; l < layer; l++)
        at += kr_geometry_record_bytes(&store->geometry, l);
    return (kr_record_header *)(void *)at;
}

kr_status kr_kv_session_boundary(kr_kv_session *s, uint64_t position, bool is_prefill, kr_err *err)
{
    if (s->boundaries[s->boundary_count - 1].is_prefill == is_prefill)
        return KR_OK;
    if (s->boundary_count == s->boundary_capacity) {
        const uint32_t capacity = 2 * s->boundary_capacity;
        kr_boundary *more;

        if (capacity > KR_BOUNDARIES_MAX)
            return kr_fail(err, KR_E_LIMIT, "session has %u prompt segments; open a new one",
                           s->boundary_count / 2);
        more = kr_realloc(s->boundaries, sizeof *more * capacity);
        if (more == NULL)
            return kr_fail(err, KR_E_MEMORY, "no memory for %u boundaries of a session", capacity);
        s->boundaries = more;
        s->boundary_capacity = capacity;
    }
    s->boundaries[s->boundary_count++] = (kr_boundary){.first_token = position, .is_prefill = is_prefill};
    return KR_OK;
}

kr_view kr_kv_session_view(const kr_store *store, const kr_kv_session *s, uint32_t layer, uint64_t tokens)
{
    const kr_kv_session_group *p = &s->group[store->geometry.group_of[layer]];

    return (kr_view){
        .shape = &store->geometry.shape[layer],
        .layout = &store->geometry.layout[layer],
        .pages = p->base,
        .page_device = p->device,
        .home = s->home,
        .page_count = p->count,
        .first_page = p->first,
        .tokens = tokens,
        .record = kr_kv_session_record(store, s, layer),
        .boundaries = s->boundaries,
        .boundary_count = s->boundary_count,
    };
}

/* Tokens [first, first + count) of a tile, as columns: source rows are stride elements apart. */
#define DEFINE_TRANSPOSE(NAME, TYPE)                                                                  \
    static void NAME(void *tile, const void *source, uint64_t stride, uint32_t first, uint32_t count, \
                     uint32_t dim)                                                                    \
    {                                                                                                 \
        for (uint32_t c = 0; c < dim; c++) {                                                          \
            TYPE *column = (TYPE *)tile + (uint64_t)c * KR_TILE_TOKENS + first;                       \
                                                                                                      \
            for (uint32_t t = 0; t < count; t++)                                                      \
                column[t] = ((const TYPE *)source)[t * stride + c];                                   \
        }                                                                                             \
    }

DEFINE_TRANSPOSE(transpose16, uint16_t)
DEFINE_TRANSPOSE(transpose32, uint32_t)

/* Keys of one KV head of tokens [token, token + count), which lie in one page. */
static void write_keys(const kr_view *v, uint32_t head, uint64_t token, uint32_t count, const uint8_t *key)
{
    const kr_attention_shape *s = v->shape;
    const uint32_t element = kr_dtype_bytes(s->kv_dtype);
    const uint64_t stride = (uint64_t)s->kv_heads * s->key_dim;

    key += (uint64_t)head * s->key_dim * element;
    for (uint32_t t = 0, n; t < count; t += n) {
        const uint32_t lane = (uint32_t)((token + t) % KR_TILE_TOKENS);
        const uint8_t *source = key + t * stride * element;

        n = 1;
        if (v->layout->keys == KR_KEYS_ROWS) {
            memcpy((void *)(uintptr_t)kr_view_key_row(v, head, token + t), source,
                   (size_t)s->key_dim * element);
            continue;
        }
        n = count - t < KR_TILE_TOKENS - lane ? count - t : KR_TILE_TOKENS - lane;
        (element == 4 ? transpose32 : transpose16)((void *)(uintptr_t)kr_view_key_tile(v, head, token + t),
                                                   source, stride, lane, n, s->key_dim);
    }
}

void kr_kv_session_write(const kr_store *store, const kr_kv_session *session, uint32_t layer,
                         uint64_t position, uint32_t count, uint64_t page, const uint8_t *key,
                         const uint8_t *value)
{
    const kr_view v = kr_kv_session_view(store, session, layer, position + count);
    const kr_attention_shape *s = v.shape;
    const uint64_t element = kr_dtype_bytes(s->kv_dtype), page_first = page * KR_PAGE_TOKENS;
    const uint64_t begin = position > page_first ? position : page_first;
    const uint64_t end = position + count < page_first + KR_PAGE_TOKENS ? position + count
                                                                        : page_first + KR_PAGE_TOKENS;
    const uint64_t value_row = (uint64_t)s->kv_heads * s->value_dim * element;

    KR_CHECK(begin < end && page < v.page_count && page >= v.first_page);
    key += (begin - position) * s->kv_heads * s->key_dim * element;
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        write_keys(&v, h, begin, (uint32_t)(end - begin), key);
        for (uint64_t t = begin; t < end && !s->latent; t++)
            memcpy((void *)(uintptr_t)kr_view_value_row(&v, h, t),
                   value + (t - position) * value_row + (uint64_t)h * s->value_dim * element,
                   s->value_dim * element);
    }
}
