/* A tokenizer from tokenizer.json (the format of Hugging Face's tokenizers library) and the few
 * settings of tokenizer_config.json: BPE over bytes (ByteLevel) or over characters with byte
 * fallback (Replace " " with U+2581, Metaspace). What the file asks for and karat does not do is
 * refused by name, never skipped. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/json.h"
#include "files/tokenizer_impl.h"
#include "model/model.h"

typedef struct {
    const char *path; /* of tokenizer.json */
    kr_tokenizer *t;
    bool byte_level; /* a ByteLevel pre-tokenizer was seen */
    bool metaspace;  /* spaces become U+2581 */
} loader;

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static bool flag_of(const json_t *object, const char *key, bool absent)
{
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : absent;
}

static kr_status unsupported(const loader *l, const char *part, const char *what, kr_err *err)
{
    return kr_fail(err, KR_E_UNSUPPORTED, "%s: %s \"%.60s\" is not supported", l->path, part, what);
}

/* --- vocabulary --- */

/* Largest id of vocab and added tokens plus one, and the bytes of all spellings. */
static kr_status measure(const loader *l, json_t *vocab, const json_t *added, uint64_t *size, uint64_t *bytes,
                         kr_err *err)
{
    const char *piece;
    json_t *value;
    size_t i;
    int64_t last = -1;

    *bytes = 0;
    json_object_foreach(vocab, piece, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) >= KR_VOCAB_MAX)
            return kr_fail(err, KR_E_FORMAT, "%s: the id of token \"%.40s\" is not an integer from 0 to %d",
                           l->path, piece, KR_VOCAB_MAX - 1);
        last = json_integer_value(value) > last ? json_integer_value(value) : last;
        *bytes += strlen(piece);
    }
    json_array_foreach(added, i, value)
    {
        const json_t *id = json_object_get(value, "id");
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= KR_VOCAB_MAX ||
            !json_is_string(json_object_get(value, "content")))
            return kr_fail(err, KR_E_FORMAT, "%s: added token %zu has no valid id and content", l->path, i);
        last = json_integer_value(id) > last ? json_integer_value(id) : last;
        *bytes += json_string_length(json_object_get(value, "content"));
    }
    *size = (uint64_t)(last + 1);
    return KR_OK;
}

static kr_bytes keep(kr_tokenizer *t, uint64_t *used, const char *text)
{
    const kr_bytes piece = {t->blob + *used, (uint32_t)strlen(text)};

    memcpy(t->blob + *used, text, piece.bytes);
    *used += piece.bytes;
    return piece;
}

static kr_status put_piece(loader *l, uint32_t id, const char *text, uint64_t *used, kr_err *err)
{
    kr_tokenizer *t = l->t;

    if (t->piece[id].bytes != 0 && !kr_bytes_equal(t->piece[id], kr_bytes_of(text)))
        return kr_fail(err, KR_E_FORMAT, "%s: tokens \"%.*s\" and \"%.40s\" both have id %u", l->path,
                       (int)(t->piece[id].bytes > 40 ? 40 : t->piece[id].bytes), t->piece[id].text, text, id);
    if (t->piece[id].bytes == 0)
        t->piece[id] = keep(t, used, text);
    return KR_OK;
}

static kr_status read_added(loader *l, const json_t *added, uint64_t *used, kr_err *err)
{
    const json_t *token;
    size_t i;
    kr_status status = KR_OK;

    json_array_foreach(added, i, token)
    {
        const uint32_t id = (uint32_t)json_integer_value(json_object_get(token, "id"));
        const char *content = text_of(token, "content");
        if (flag_of(token, "lstrip", false) || flag_of(token, "rstrip", false) ||
            flag_of(token, "single_word", false))
            return unsupported(l, "lstrip, rstrip or single_word of added token", content, err);
        if (*content == 0)
            return kr_fail(err, KR_E_FORMAT, "%s: added token %u is empty", l->path, id);
        status = put_piece(l, id, content, used, err);
        if (status != KR_OK)
            break;
        l->t->kind[id] = flag_of(token, "special", false) ? KR_TOKEN_CONTROL : KR_TOKEN_USER;
    }
    return status;
}

static bool is_byte_spelling(const char *piece)
{
    return strlen(piece) == 6 && memcmp(piece, "<0x", 3) == 0 && piece[5] == '>';
}

static kr_status read_vocab(loader *l, const json_t *model, const json_t *added, kr_err *err)
{
    json_t *vocab = json_object_get(model, "vocab"), *value;
    const bool fallback = flag_of(model, "byte_fallback", false);
    const char *piece;
    uint64_t size = 0, bytes = 0, used = 0;
    kr_status status;

    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return kr_fail(err, KR_E_FORMAT, "%s: model.vocab is not an object with tokens", l->path);
    status = measure(l, vocab, added, &size, &bytes, err);
    if (status == KR_OK)
        status = kr_tokenizer_new(size, &l->t, err);
    if (status != KR_OK)
        return status;
    l->t->blob = kr_alloc(bytes + 1);
    if (!l->t->blob)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for %llu bytes of tokens", l->path,
                       (unsigned long long)bytes);
    for (uint64_t id = 0; id < size; id++)
        l->t->kind[id] = KR_TOKEN_NORMAL;
    json_object_foreach(vocab, piece, value)
    {
        const uint32_t id = (uint32_t)json_integer_value(value);
        status = put_piece(l, id, piece, &used, err);
        if (status != KR_OK)
            return status;
        if (fallback && is_byte_spelling(piece))
            l->t->kind[id] = KR_TOKEN_BYTE;
    }
    return read_added(l, added, &used, err);
}

/* --- normalizer and pre-tokenizer --- */

typedef kr_status (*step_fn)(loader *l, const json_t *step, kr_err *err);

/* Calls fn for a step, or for each step of a "Sequence" under the key list; null is no step. */
static kr_status each_step(loader *l, const json_t *step, const char *list, step_fn fn, kr_err *err)
{
    const json_t *inner;
    size_t i;
    kr_status status = KR_OK;

    if (!step || json_is_null(step))
        return KR_OK;
    if (strcmp(text_of(step, "type"), "Sequence") != 0)
        return fn(l, step, err);
    json_array_foreach(json_object_get(step, list), i, inner)
    {
        status = fn(l, inner, err);
        if (status != KR_OK)
            break;
    }
    return status;
}

static kr_status read_normalizer(loader *l, const json_t *step, kr_err *err)
{
    const char *type = text_of(step, "type");

    if (strcmp(type, "NFC") == 0) {
        l->t->nfc = true;
        return KR_OK;
    }
    if (strcmp(type, "Replace") == 0 &&
        strcmp(text_of(json_object_get(step, "pattern"), "String"), " ") == 0 &&
        strcmp(text_of(step, "content"), KR_METASPACE) == 0) {
        l->metaspace = true;
        return KR_OK;
    }
    if (strcmp(type, "Prepend") == 0 && strcmp(text_of(step, "prepend"), KR_METASPACE) == 0) {
        l->t->prefix = KR_PREFIX_DOUBLED;
        return KR_OK;
    }
    return unsupported(l, "normalizer", type, err);
}

static kr_status read_metaspace(loader *l, const json_t *step, kr_err *err)
{
    const char *scheme = text_of(step, "prepend_scheme");

    if (flag_of(step, "split", true))
        return unsupported(l, "pre-tokenizer", "Metaspace with split", err);
    if (strcmp(text_of(step, "replacement"), KR_METASPACE) != 0)
        return unsupported(l, "Metaspace replacement", text_of(step, "replacement"), err);
    l->metaspace = true;
    if (strcmp(scheme, "first") == 0)
        l->t->prefix = KR_PREFIX_FIRST;
    else if (strcmp(scheme, "always") == 0 || (*scheme == 0 && flag_of(step, "add_prefix_space", true)))
        l->t->prefix = KR_PREFIX_ALWAYS;
    return KR_OK;
}

static kr_status read_split(loader *l, const json_t *step, kr_err *err)
{
    const json_t *pattern = json_object_get(step, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *behavior = text_of(step, "behavior");

    /* Gemma splits at spaces after its normalizer has replaced them all: it never applies. */
    if (l->metaspace && strcmp(text_of(pattern, "String"), " ") == 0)
        return KR_OK;
    if (!regex)
        return unsupported(l, "pre-tokenizer Split on the string", text_of(pattern, "String"), err);
    if (strcmp(behavior, "Isolated") != 0)
        return unsupported(l, "Split behavior", behavior, err);
    return kr_split_by_pattern(l->t, kr_bytes_of(regex), l->path, err);
}

static kr_status read_pre_tokenizer(loader *l, const json_t *step, kr_err *err)
{
    const char *type = text_of(step, "type");

    if (l->byte_level)
        return unsupported(l, "a pre-tokenizer after ByteLevel:", type, err);
    if (strcmp(type, "ByteLevel") == 0) {
        l->byte_level = true;
        if (flag_of(step, "add_prefix_space", true))
            return unsupported(l, "pre-tokenizer", "ByteLevel with add_prefix_space", err);
        return flag_of(step, "use_regex", true) ? kr_split_by_name(l->t, kr_bytes_of("gpt-2"), l->path, err)
                                                : KR_OK;
    }
    if (strcmp(type, "Split") == 0)
        return read_split(l, step, err);
    if (strcmp(type, "Digits") == 0)
        return kr_split_by_pattern(
            l->t, kr_bytes_of(flag_of(step, "individual_digits", false) ? "\\p{N}" : "\\p{N}+"), l->path,
            err);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(l, step, err);
    return unsupported(l, "pre-tokenizer", type, err);
}

/* --- merges --- */

static kr_status read_merge(loader *l, const json_t *merge, uint32_t rank, kr_err *err)
{
    kr_bytes left = {NULL, 0}, right = {NULL, 0};
    const char *line = json_string_value(merge);

    if (line) {
        const char *space = strchr(line, ' ');
        if (space && !strchr(space + 1, ' ')) {
            left = (kr_bytes){line, (uint32_t)(space - line)};
            right = kr_bytes_of(space + 1);
        }
    } else if (json_array_size(merge) == 2 && json_is_string(json_array_get(merge, 0)) &&
               json_is_string(json_array_get(merge, 1))) {
        left = kr_bytes_of(json_string_value(json_array_get(merge, 0)));
        right = kr_bytes_of(json_string_value(json_array_get(merge, 1)));
    }
    if (left.bytes == 0 || right.bytes == 0)
        return kr_fail(err, KR_E_FORMAT, "%s: merge %u is neither \"left right\" nor [left, right]", l->path,
                       rank);
    return kr_tokenizer_add_merge(l->t, left, right, rank, l->path, err);
}

static kr_status read_merges(loader *l, const json_t *merges, kr_err *err)
{
    const size_t count = json_array_size(merges);
    const json_t *merge;
    size_t rank;
    kr_status status;

    if (!json_is_array(merges) || count > 4u * KR_VOCAB_MAX)
        return kr_fail(err, KR_E_FORMAT, "%s: model.merges is not an array of at most %u pairs", l->path,
                       4u * KR_VOCAB_MAX);
    status = kr_merge_map_init(&l->t->merges, count, err);
    json_array_foreach(merges, rank, merge)
    {
        if (status != KR_OK)
            break;
        status = read_merge(l, merge, (uint32_t)rank, err);
    }
    return status;
}

/* --- the whole --- */

static kr_status check_model(const loader *l, const json_t *model, kr_err *err)
{
    const char *type = text_of(model, "type");

    if (!json_is_object(model))
        return kr_fail(err, KR_E_FORMAT, "%s: model is missing", l->path);
    if (strcmp(type, "BPE") != 0 && *type != 0)
        return unsupported(l, "tokenizer model", type, err);
    if (*text_of(model, "continuing_subword_prefix") || *text_of(model, "end_of_word_suffix"))
        return unsupported(l, "tokenizer model", "BPE with a subword prefix or suffix", err);
    return KR_OK;
}

static uint32_t find(const kr_tokenizer *t, const char *piece)
{
    return kr_span_map_find(&t->by_piece, kr_bytes_of(piece));
}

/* BOS as the template of the post-processor puts it before the text. */
static kr_status read_post_processor(loader *l, const json_t *step, kr_err *err)
{
    const json_t *first = json_array_get(json_object_get(step, "single"), 0);
    const json_t *special = json_object_get(first, "SpecialToken");

    if (strcmp(text_of(step, "type"), "TemplateProcessing") != 0 || !special)
        return KR_OK;
    l->t->bos = find(l->t, text_of(special, "id"));
    if (l->t->bos == KR_SPAN_NONE)
        return kr_fail(err, KR_E_FORMAT, "%s: the post-processor's token \"%.40s\" is not in the vocabulary",
                       l->path, text_of(special, "id"));
    l->t->add_bos = true;
    return KR_OK;
}

static kr_status read_tokenizer(loader *l, const json_t *root, kr_err *err)
{
    const json_t *model = json_object_get(root, "model");
    kr_status s = check_model(l, model, err);

    if (s == KR_OK)
        s = read_vocab(l, model, json_object_get(root, "added_tokens"), err);
    if (s == KR_OK)
        s = each_step(l, json_object_get(root, "normalizer"), "normalizers", read_normalizer, err);
    if (s == KR_OK)
        s = each_step(l, json_object_get(root, "pre_tokenizer"), "pretokenizers", read_pre_tokenizer, err);
    if (s != KR_OK)
        return s;
    if (l->byte_level == l->metaspace)
        return unsupported(l, "a pre-tokenizer that is",
                           l->metaspace ? "both ByteLevel and Metaspace"
                                        : "neither "
                                          "ByteLevel nor Metaspace",
                           err);
    if (l->metaspace && !flag_of(model, "byte_fallback", false))
        return unsupported(l, "tokenizer model", "BPE over characters without byte_fallback", err);
    l->t->spelling = l->byte_level ? KR_SPELLING_BYTES : KR_SPELLING_METASPACE;
    l->t->order = KR_ORDER_RANKS;
    l->t->whole_word_first = flag_of(model, "ignore_merges", false);
    s = kr_tokenizer_index(l->t, l->path, err);
    if (s == KR_OK)
        s = read_merges(l, json_object_get(model, "merges"), err);
    if (s == KR_OK && *text_of(model, "unk_token"))
        l->t->unknown = find(l->t, text_of(model, "unk_token"));
    return s == KR_OK
               ? each_step(l, json_object_get(root, "post_processor"), "processors", read_post_processor, err)
               : s;
}

/* A token of tokenizer_config.json: a string, or an object with "content". */
static const char *config_token(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);
    return json_is_object(value)   ? text_of(value, "content")
           : json_is_string(value) ? json_string_value(value)
                                   : "";
}

static kr_status read_config(loader *l, const json_t *config, kr_err *err)
{
    const char *bos = config_token(config, "bos_token"), *eos = config_token(config, "eos_token");

    l->t->add_bos = flag_of(config, "add_bos_token", l->t->add_bos);
    if (l->t->bos == KR_SPAN_NONE && *bos)
        l->t->bos = find(l->t, bos);
    if (*eos && find(l->t, eos) != KR_SPAN_NONE)
        kr_tokenizer_add_end(l->t, find(l->t, eos));
    if (l->t->add_bos && l->t->bos == KR_SPAN_NONE)
        return kr_fail(err, KR_E_FORMAT, "%s: the tokenizer wants a BOS token but names none it knows",
                       l->path);
    return KR_OK;
}

kr_status kr_tokenizer_from_folder(const char *folder, const json_t *config, kr_tokenizer **tokenizer,
                                   kr_err *err)
{
    char path[PATH_MAX];
    json_t *root = NULL;
    loader l = {.path = path};
    kr_status status;

    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    status = kr_json_load(path, &root, err);
    if (status == KR_OK)
        status = read_tokenizer(&l, root, err);
    if (status == KR_OK)
        status = read_config(&l, config, err);
    json_decref(root);
    if (status == KR_OK)
        *tokenizer = l.t;
    else
        kr_tokenizer_free(l.t);
    return status;
}
