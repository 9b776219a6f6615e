/* A model from a Hugging Face folder: config.json, model.safetensors or the shards that
 * model.safetensors.index.json lists, tokenizer.json, and the optional files that say which tokens
 * end a text and how a chat is written. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/json.h"
#include "files/folder_impl.h"
#include "files/safetensors.h"

/* PATH/name; path was checked to leave room for the names karat knows. */
static void join(char out[PATH_MAX], const kr_model_file *file, const char *name)
{
    snprintf(out, PATH_MAX, "%.*s/%s", PATH_MAX - 300, file->path, name);
}

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* JSON that need not be there: *root is NULL then. Numbers may be larger than 64 bits in these
 * files (model_max_length), so integers are read as reals. */
static kr_status load_optional(const kr_model_file *file, const char *name, json_t **root, kr_err *err)
{
    char path[PATH_MAX];
    json_error_t why;
    kr_map map;
    kr_status status;

    *root = NULL;
    join(path, file, name);
    if (!exists(path))
        return KR_OK;
    status = kr_map_open(path, &map, err);
    if (status != KR_OK)
        return status;
    if (map.bytes <= KR_JSON_BYTES_MAX)
        *root = json_loadb((const char *)map.data, map.bytes,
                           JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &why);
    else
        snprintf(why.text, sizeof why.text, "more than %d bytes", KR_JSON_BYTES_MAX);
    kr_map_close(&map);
    return *root ? KR_OK : kr_fail(err, KR_E_FORMAT, "%s: %s", path, why.text);
}

/* --- weights --- */

/* A shard's name is a plain file name: an index must not reach outside its folder. */
static bool plain_name(const char *name)
{
    return *name && strlen(name) < 200 && !strchr(name, '/') && name[0] != '.';
}

static kr_status open_shard(kr_model_file *file, const char *name, kr_err *err)
{
    char path[PATH_MAX];
    kr_status status;

    join(path, file, name);
    status = kr_safetensors_open(path, file->shard_count, &file->shard[file->shard_count], &file->tensors,
                                 err);
    if (status == KR_OK)
        file->shard_count++;
    return status;
}

/* Opens each shard of weight_map once, in the order of first mention; shard_of maps its name. */
static kr_status open_shards(kr_model_file *file, json_t *weight_map, json_t *shard_of, const char *where,
                             kr_err *err)
{
    const char *tensor;
    json_t *value;
    kr_status status = KR_OK;

    json_object_foreach(weight_map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (!name || !plain_name(name))
            return kr_fail(err, KR_E_FORMAT, "%s: weight_map.%.80s is not a plain file name", where, tensor);
        if (json_object_get(shard_of, name))
            continue;
        if (file->shard_count == KR_PARTS_MAX)
            return kr_fail(err, KR_E_LIMIT, "%s: more than %d shards", where, KR_PARTS_MAX);
        if (json_object_set_new(shard_of, name, json_integer(file->shard_count)) != 0)
            return kr_fail(err, KR_E_MEMORY, "%s: no memory for the list of shards", where);
        status = open_shard(file, name, err);
        if (status != KR_OK)
            return status;
    }
    return KR_OK;
}

/* Index and shards name the same tensors in the same places. */
static kr_status check_index(const kr_model_file *file, json_t *weight_map, const json_t *shard_of,
                             const char *where, kr_err *err)
{
    const char *tensor;
    json_t *value;

    json_object_foreach(weight_map, tensor, value)
    {
        const kr_tensor_entry *e = kr_tensor_table_find(&file->tensors, tensor);
        const char *name = json_string_value(value);
        if (!e || e->part != (uint32_t)json_integer_value(json_object_get(shard_of, name)))
            return kr_fail(err, KR_E_FORMAT, "%s: tensor %.80s is not in %.80s", where, tensor, name);
    }
    if (json_object_size(weight_map) != file->tensors.count)
        return kr_fail(err, KR_E_FORMAT, "%s: lists %zu tensors, the shards hold %u", where,
                       json_object_size(weight_map), file->tensors.count);
    return KR_OK;
}

static kr_status open_index(kr_model_file *file, const char *where, kr_err *err)
{
    json_t *index = NULL, *shard_of = json_object();
    kr_status status = kr_json_load(where, &index, err);
    json_t *weight_map = json_object_get(index, "weight_map");

    if (status == KR_OK && !json_is_object(weight_map))
        status = kr_fail(err, KR_E_FORMAT, "%s: weight_map is not an object", where);
    if (status == KR_OK)
        status = open_shards(file, weight_map, shard_of, where, err);
    if (status == KR_OK)
        status = kr_tensor_table_seal(&file->tensors, where, err);
    if (status == KR_OK)
        status = check_index(file, weight_map, shard_of, where, err);
    json_decref(index);
    json_decref(shard_of);
    return status;
}

static kr_status open_weights(kr_model_file *file, kr_err *err)
{
    char single[PATH_MAX], index[PATH_MAX];
    kr_status status;

    join(single, file, "model.safetensors");
    join(index, file, "model.safetensors.index.json");
    file->shard = kr_alloc(KR_PARTS_MAX * sizeof *file->shard);
    if (!file->shard)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for the list of shards", file->path);
    if (!exists(single) && !exists(index))
        return kr_fail(err, KR_E_NOT_FOUND,
                       "%s: neither model.safetensors nor model.safetensors.index.json is there", file->path);
    if (!exists(single))
        return open_index(file, index, err);
    status = open_shard(file, "model.safetensors", err);
    return status == KR_OK ? kr_tensor_table_seal(&file->tensors, single, err) : status;
}

/* Text models, and the language model inside multimodal ones of either generation. */
static kr_status find_prefix(kr_model_file *file, kr_err *err)
{
    static const char *const prefixes[] = {"model.", "", "language_model.model.", "model.language_model."};

    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        char name[KR_TENSOR_NAME_MAX + 1];
        snprintf(name, sizeof name, "%sembed_tokens.weight", prefixes[i]);
        if (kr_tensor_table_find(&file->tensors, name)) {
            snprintf(file->name_prefix, sizeof file->name_prefix, "%s", prefixes[i]);
            return KR_OK;
        }
    }
    return kr_fail(err, KR_E_NOT_FOUND, "%s: no tensor model.embed_tokens.weight", file->path);
}

/* --- tokens and template --- */

/* "eos_token_id": an id or a list of ids. */
static void add_ends(kr_tokenizer *t, const json_t *config)
{
    const json_t *value = json_object_get(config, "eos_token_id");
    const json_t *item;
    size_t i;

    if (json_is_number(value) && json_number_value(value) >= 0.0 && json_number_value(value) < t->vocab)
        kr_tokenizer_add_end(t, (uint32_t)json_number_value(value));
    json_array_foreach(value, i, item) if (json_is_number(item) && json_number_value(item) >= 0.0 &&
                                           json_number_value(item) < t->vocab)
        kr_tokenizer_add_end(t, (uint32_t)json_number_value(item));
}

/* "chat_template": text, or a list of named texts of which "default" counts. */
static const char *template_of(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template");
    const json_t *item;
    size_t i;

    json_array_foreach(value, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_string_value(json_object_get(item, "template"));
    }
    return json_string_value(value);
}

static kr_status keep_template(kr_model_file *file, const char *text, size_t bytes, kr_err *err)
{
    file->chat_template = kr_alloc(bytes + 1);
    if (!file->chat_template)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for the chat template", file->path);
    memcpy(file->chat_template, text, bytes);
    return KR_OK;
}

static kr_status read_template(kr_model_file *file, const json_t *config, kr_err *err)
{
    char path[PATH_MAX];
    kr_map map;
    const char *text = template_of(config);
    kr_status status;

    if (text)
        return keep_template(file, text, strlen(text), err);
    join(path, file, "chat_template.jinja");
    if (!exists(path))
        return KR_OK;
    status = kr_map_open(path, &map, err);
    if (status != KR_OK)
        return status;
    if (map.bytes > 0)
        status = keep_template(file, (const char *)map.data, map.bytes, err);
    kr_map_close(&map);
    return status;
}

static kr_status read_tokenizer(kr_model_file *file, const json_t *config, kr_err *err)
{
    json_t *settings = NULL, *generation = NULL;
    kr_status status = load_optional(file, "tokenizer_config.json", &settings, err);

    if (status == KR_OK)
        status = load_optional(file, "generation_config.json", &generation, err);
    if (status == KR_OK)
        status = kr_tokenizer_from_folder(file->path, settings, &file->tokenizer, err);
    if (status == KR_OK) {
        add_ends(file->tokenizer, config);
        add_ends(file->tokenizer, generation);
        status = read_template(file, settings, err);
    }
    json_decref(settings);
    json_decref(generation);
    return status;
}

kr_status kr_folder_open(kr_model_file *file, kr_err *err)
{
    char path[PATH_MAX];
    json_t *config = NULL;
    kr_status status;

    join(path, file, "config.json");
    status = kr_json_load(path, &config, err);
    if (status == KR_OK)
        status = open_weights(file, err);
    if (status == KR_OK)
        status = find_prefix(file, err);
    if (status == KR_OK)
        status = kr_folder_config(file, config, path, err);
    if (status == KR_OK)
        status = read_tokenizer(file, config, err);
    json_decref(config);
    return status;
}
