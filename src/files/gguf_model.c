/* A model from GGUF: all parts of a split opened and checked against each other, the description
 * from the metadata of part 1, tokenizer and chat template. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "files/model_file_impl.h"

/* --- parts --- */

typedef struct {
    uint32_t number, count; /* split.no (0-based), split.count; 0, 1 = not split */
    uint64_t tensors;       /* split.tensors.count; 0 = not said */
} split_info;

static kr_status read_split(const kr_gguf *g, split_info *split, kr_err *err)
{
    kr_status status;

    *split = (split_info){0, 1, 0};
    status = kr_gguf_u32(g, "split.count", false, 0, KR_PARTS_MAX, &split->count, err);
    if (split->count == 0)
        split->count = 1;
    if (status == KR_OK)
        status = kr_gguf_u32(g, "split.no", false, 0, split->count - 1, &split->number, err);
    if (status == KR_OK)
        status = kr_gguf_u64(g, "split.tensors.count", false, 0, KR_TENSORS_MAX, &split->tensors, err);
    return status;
}

/* Length of path without its "-00001-of-0000N.gguf", which must name part number+1 of count. */
static kr_status split_stem(const char *path, const split_info *split, size_t *stem, kr_err *err)
{
    char tail[64];

    snprintf(tail, sizeof tail, "-%05u-of-%05u.gguf", split->number + 1, split->count);
    const size_t bytes = strlen(path), tail_bytes = strlen(tail);
    if (bytes < tail_bytes || strcmp(path + bytes - tail_bytes, tail) != 0)
        return kr_fail(err, KR_E_FORMAT, "%s: the file says it is part %u of %u, its name must end in %s",
                       path, split->number + 1, split->count, tail);
    *stem = bytes - tail_bytes;
    return KR_OK;
}

static kr_status open_part(kr_model_file *file, uint32_t part, const split_info *want, kr_err *err)
{
    split_info found;
    kr_status status = kr_gguf_open(file->gguf_path[part], part, &file->gguf[part], &file->tensors, err);

    if (status != KR_OK)
        return status;
    file->gguf_count = part + 1;
    status = read_split(&file->gguf[part], &found, err);
    if (status == KR_OK &&
        (found.number != part || found.count != want->count || found.tensors != want->tensors))
        status = kr_fail(err, KR_E_FORMAT,
                         "%s: says part %u of %u with %llu tensors in all, expected part %u of %u "
                         "with %llu",
                         file->gguf_path[part], found.number + 1, found.count,
                         (unsigned long long)found.tensors, part + 1, want->count,
                         (unsigned long long)want->tensors);
    return status;
}

/* What the given file says about its place in a split. */
static kr_status probe(const char *path, split_info *split, kr_err *err)
{
    kr_gguf g;
    kr_tensor_table ignored = {0};
    kr_status status = kr_gguf_open(path, 0, &g, &ignored, err);

    if (status == KR_OK) {
        status = read_split(&g, split, err);
        kr_gguf_close(&g);
    }
    kr_tensor_table_free(&ignored);
    return status;
}

static kr_status open_parts(kr_model_file *file, kr_err *err)
{
    split_info split = {0, 1, 0};
    size_t stem = 0;
    kr_status status = probe(file->path, &split, err);

    if (status == KR_OK && split.count > 1)
        status = split_stem(file->path, &split, &stem, err);
    if (status != KR_OK)
        return status;
    file->gguf = kr_alloc(split.count * sizeof *file->gguf);
    file->gguf_path = kr_alloc(split.count * sizeof *file->gguf_path);
    if (!file->gguf || !file->gguf_path)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for %u parts", file->path, split.count);
    for (uint32_t part = 0; part < split.count && status == KR_OK; part++) {
        char *path = file->gguf_path[part];
        if (split.count == 1)
            snprintf(path, PATH_MAX, "%s", file->path);
        else
            snprintf(path, PATH_MAX, "%.*s-%05u-of-%05u.gguf", (int)stem, file->path, part + 1, split.count);
        status = open_part(file, part, &split, err);
    }
    if (status == KR_OK && split.tensors != 0 && split.tensors != file->tensors.count)
        status = kr_fail(err, KR_E_FORMAT, "%s: split.tensors.count is %llu, the %u parts hold %u tensors",
                         file->path, (unsigned long long)split.tensors, split.count, file->tensors.count);
    return status == KR_OK ? kr_tensor_table_seal(&file->tensors, file->path, err) : status;
}

/* --- description --- */

/* Metadata under the architecture's own prefix. */
typedef struct {
    const kr_gguf *gguf;
    char prefix[32];
} arch_keys;

/* A buffer for "ARCH.key", by value so that it can be used inside a call. */
typedef struct {
    char text[128];
} arch_key;

static arch_key key_of(const arch_keys *a, const char *key)
{
    arch_key k;
    snprintf(k.text, sizeof k.text, "%s.%s", a->prefix, key);
    return k;
}

static kr_status arch_u32(const arch_keys *a, const char *key, bool required, uint32_t min, uint32_t max,
                          uint32_t *out, kr_err *err)
{
    return kr_gguf_u32(a->gguf, key_of(a, key).text, required, min, max, out, err);
}

static kr_status arch_real(const arch_keys *a, const char *key, bool required, double min, double max,
                           double *out, kr_err *err)
{
    return kr_gguf_real(a->gguf, key_of(a, key).text, required, min, max, out, err);
}

static kr_status read_sizes(const arch_keys *a, kr_model *m, kr_err *err)
{
    uint32_t experts = 0;
    kr_status s = arch_u32(a, "embedding_length", true, 1, KR_HIDDEN_MAX, &m->hidden, err);

    if (s == KR_OK)
        s = arch_u32(a, "context_length", true, 1, KR_CONTEXT_MAX, &m->context, err);
    if (s == KR_OK)
        s = arch_u32(a, "feed_forward_length", true, 1, UINT32_MAX, &m->ffn_width, err);
    if (s == KR_OK)
        s = arch_u32(a, "attention.head_count", true, 1, KR_HEADS_MAX, &m->heads, err);
    m->kv_heads = m->heads;
    if (s == KR_OK)
        s = arch_u32(a, "attention.head_count_kv", false, 1, KR_HEADS_MAX, &m->kv_heads, err);
    if (s == KR_OK && kr_gguf_find(a->gguf, key_of(a, "attention.key_length").text) == NULL &&
        m->hidden % m->heads != 0)
        s = kr_fail(err, KR_E_FORMAT, "%s: %u heads do not divide the hidden size %u and %s is missing",
                    a->gguf->path, m->heads, m->hidden, key_of(a, "attention.key_length").text);
    if (s != KR_OK)
        return s;
    m->head_dim = m->hidden / m->heads;
    s = arch_u32(a, "attention.key_length", false, 1, KR_HEAD_DIM_MAX, &m->head_dim, err);
    m->value_dim = m->head_dim;
    if (s == KR_OK)
        s = arch_u32(a, "attention.value_length", false, 1, KR_HEAD_DIM_MAX, &m->value_dim, err);
    if (s == KR_OK)
        s = arch_real(a, "attention.layer_norm_rms_epsilon", true, 0.0, 1.0, &m->norm_eps, err);
    if (s == KR_OK)
        s = arch_u32(a, "expert_count", false, 0, UINT32_MAX, &experts, err);
    if (s == KR_OK && experts > 0)
        s = kr_fail(err, KR_E_UNSUPPORTED, "%s: a %s model with %u experts is not supported, only dense ones",
                    a->gguf->path, a->prefix, experts);
    return s;
}

static kr_status read_rope(const arch_keys *a, kr_model *m, kr_err *err)
{
    kr_rope *rope = &m->rope[0];
    kr_bytes scaling = kr_bytes_of("none");
    kr_status s;

    *rope = (kr_rope){.layout = m->family == KR_FAMILY_LLAMA ? KR_ROPE_INTERLEAVED : KR_ROPE_HALF,
                      .dims = m->head_dim,
                      .theta = m->family == KR_FAMILY_GEMMA3 ? 1e6 : 1e4};
    s = arch_u32(a, "rope.dimension_count", false, 2, KR_HEAD_DIM_MAX, &rope->dims, err);
    if (s == KR_OK)
        s = arch_real(a, "rope.freq_base", false, 1.0, 1e12, &rope->theta, err);
    if (s == KR_OK)
        s = kr_gguf_string(a->gguf, key_of(a, "rope.scaling.type").text, false, &scaling, err);
    if (s != KR_OK || kr_bytes_equal(scaling, kr_bytes_of("none")))
        return s;
    if (!kr_bytes_equal(scaling, kr_bytes_of("linear")))
        return kr_fail(err, KR_E_UNSUPPORTED,
                       "%s: rope scaling \"%.*s\" is not supported; none, linear and Llama "
                       "3's rope_freqs.weight are",
                       a->gguf->path, (int)(scaling.bytes > 40 ? 40 : scaling.bytes), scaling.text);
    rope->scaling = KR_ROPE_LINEAR;
    return arch_real(a, "rope.scaling.factor", true, 1e-3, 1e6, &rope->factor, err);
}

/* Gemma 3: every sixth layer is global, the others see a window and use their own rope base. */
static kr_status read_gemma(const arch_keys *a, kr_model *m, kr_err *err)
{
    enum { PATTERN = 6, LAYERS_27B = 62 };
    uint32_t window = 0;
    double cap = 0.0;
    kr_status s = arch_u32(a, "attention.sliding_window", false, 0, KR_CONTEXT_MAX, &window, err);

    m->rope[1] = (kr_rope){.layout = KR_ROPE_HALF, .dims = m->rope[0].dims, .theta = 1e4};
    if (s == KR_OK)
        s = arch_real(a, "rope.freq_base_swa", false, 1.0, 1e12, &m->rope[1].theta, err);
    if (s == KR_OK)
        s = arch_real(a, "final_logit_softcapping", false, 0.0, 1e6, &cap, err);
    if (s == KR_OK && cap != 0.0)
        return kr_fail(err, KR_E_UNSUPPORTED, "%s: final_logit_softcapping %g is not supported",
                       a->gguf->path, cap);
    for (uint32_t l = 0; l < m->layers && window > 0; l++)
        if ((l + 1) % PATTERN != 0) {
            m->layer[l].window = window;
            m->layer[l].rope = 1;
        }
    m->embed_scale = sqrt((double)m->hidden);
    /* query_pre_attn_scalar is head_dim in every size but 27B, and GGUF has no key for it. */
    if (m->layers == LAYERS_27B)
        m->softmax_scale = 1.0 / sqrt((double)m->hidden / m->heads);
    return s;
}

static kr_status read_model(kr_model_file *file, kr_err *err)
{
    const kr_gguf *g = &file->gguf[0];
    kr_bytes arch = {NULL, 0}, name = {NULL, 0};
    arch_keys a = {.gguf = g};
    kr_model *m = &file->model;
    kr_family family = KR_FAMILY_LLAMA;
    uint32_t layers = 0;
    kr_status s = kr_gguf_string(g, "general.architecture", true, &arch, err);

    if (s == KR_OK)
        s = kr_family_of(g->path, KR_FORM_GGUF, arch, &family, err);
    if (s != KR_OK)
        return s;
    snprintf(a.prefix, sizeof a.prefix, "%.*s", (int)arch.bytes, arch.text);
    s = arch_u32(&a, "block_count", true, 1, KR_LAYERS_MAX, &layers, err);
    if (s == KR_OK)
        s = kr_gguf_string(g, "general.name", false, &name, err);
    if (s != KR_OK)
        return s;
    kr_model_start(m, family, layers);
    kr_model_set_name(m, name);
    m->embed_scale = 1.0;
    s = read_sizes(&a, m, err);
    m->softmax_scale = 1.0 / sqrt((double)m->head_dim);
    if (s == KR_OK)
        s = read_rope(&a, m, err);
    if (s == KR_OK && family == KR_FAMILY_GEMMA3)
        s = read_gemma(&a, m, err);
    m->tied_embedding = kr_tensor_table_find(&file->tensors, "output.weight") == NULL;
    if (kr_tensor_table_find(&file->tensors, "blk.0.attn_q.bias"))
        m->qkv_bias = true; /* some Llama derivatives have one too */
    return s;
}

static kr_status read_template(kr_model_file *file, kr_err *err)
{
    kr_bytes text = {NULL, 0};
    const kr_status status = kr_gguf_string(&file->gguf[0], "tokenizer.chat_template", false, &text, err);

    if (status != KR_OK || !text.text)
        return status;
    file->chat_template = kr_alloc((size_t)text.bytes + 1);
    if (!file->chat_template)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for the chat template", file->path);
    memcpy(file->chat_template, text.text, text.bytes);
    return KR_OK;
}

kr_status kr_gguf_model_open(kr_model_file *file, kr_err *err)
{
    kr_status status = open_parts(file, err);

    if (status == KR_OK)
        status = read_model(file, err);
    if (status == KR_OK)
        status = kr_tokenizer_from_gguf(&file->gguf[0], &file->tokenizer, err);
    return status == KR_OK ? read_template(file, err) : status;
}
