/* Opening a model of either form, the checks that both share, and plain access. */
#include "files/model_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/hash.h"
#include "files/chat_impl.h"
#include "files/model_file_impl.h"

void kr_model_file_close(kr_model_file *file)
{
    if (!file)
        return;
    for (uint32_t i = 0; i < file->gguf_count; i++)
        kr_gguf_close(&file->gguf[i]);
    for (uint32_t i = 0; i < file->shard_count; i++)
        kr_map_close(&file->shard[i]);
    kr_tensor_table_free(&file->tensors);
    kr_tokenizer_free(file->tokenizer);
    kr_free(file->gguf);
    kr_free(file->gguf_path);
    kr_free(file->shard);
    kr_free(file->chat_template);
    kr_free(file);
}

/* The last part of the path, as people name such files and folders. */
static void name_from_path(kr_model_file *file)
{
    size_t end = strlen(file->path), start;

    while (end > 1 && file->path[end - 1] == '/')
        end--;
    for (start = end; start > 0 && file->path[start - 1] != '/'; start--)
        ;
    kr_model_set_name(&file->model, (kr_bytes){file->path + start, (uint32_t)(end - start)});
}

/* The vocabulary's size is what the embedding says; the tokenizer may know fewer tokens (padding),
 * never more, since ids index the embedding. */
static kr_status read_vocab(kr_model_file *file, kr_err *err)
{
    char name[KR_TENSOR_NAME_MAX + 1];

    kr_role_tensor_name(file, KR_ROLE_EMBEDDING, 0, 0, name, sizeof name);
    const kr_tensor_entry *e = kr_tensor_table_find(&file->tensors, name);
    if (!e)
        return kr_fail(err, KR_E_NOT_FOUND, "%s: no tensor %s", file->path, name);
    const uint64_t rows = kr_tensor_entry_rows(e);
    if (rows > KR_VOCAB_MAX)
        return kr_fail(err, KR_E_LIMIT, "%s: tensor %s has %llu rows; at most %d", file->path, name,
                       (unsigned long long)rows, KR_VOCAB_MAX);
    if (kr_tokenizer_vocab(file->tokenizer) > rows)
        return kr_fail(err, KR_E_FORMAT, "%s: the tokenizer has %u tokens, tensor %s only %llu rows",
                       file->path, kr_tokenizer_vocab(file->tokenizer), name, (unsigned long long)rows);
    file->model.vocab = (uint32_t)rows;
    return KR_OK;
}

static void set_weight_bytes(kr_model_file *file)
{
    const kr_parameters p = kr_model_parameters(&file->model);
    uint64_t by_type[KR_W_TYPES], bytes = 0;

    kr_model_file_bytes(file, by_type);
    for (unsigned t = 0; t < KR_W_TYPES; t++)
        bytes += by_type[t];
    file->model.weight_bytes_dense = (double)bytes / (double)kr_parameters_total(&p);
    file->model.weight_bytes_experts = file->model.weight_bytes_dense;
}

static uint64_t add_rope(uint64_t digest, const kr_rope *rope)
{
    const double reals[] = {rope->theta, rope->factor, rope->low_freq, rope->high_freq};

    digest = kr_digest_add(digest, (uint64_t)rope->layout << 40 | (uint64_t)rope->scaling << 32 | rope->dims);
    digest = kr_digest_add(digest, rope->original_context);
    return kr_digest_add(digest, kr_hash64(reals, sizeof reals, 0));
}

/* Everything that makes the KV of a token what it is: shapes, names, and three samples of each
 * tensor's bytes (all of a large model would have to be read otherwise). */
static uint64_t fingerprint(const kr_model_file *file)
{
    enum { SAMPLE = 64 };
    const kr_model *m = &file->model;
    const double reals[] = {m->softmax_scale, m->norm_eps, m->embed_scale};
    uint64_t d = kr_digest_add(m->family, (uint64_t)m->layers << 32 | m->hidden);

    d = kr_digest_add(d, (uint64_t)m->heads << 32 | m->kv_heads);
    d = kr_digest_add(d, (uint64_t)m->head_dim << 32 | m->value_dim);
    d = kr_digest_add(d, kr_hash64(reals, sizeof reals, 0));
    d = add_rope(add_rope(d, &m->rope[0]), &m->rope[1]);
    for (uint32_t l = 0; l < m->layers; l++)
        d = kr_digest_add(d, (uint64_t)m->layer[l].window << 8 | m->layer[l].rope);
    if (m->indexer != KR_INDEXER_NONE)
        d = add_rope(kr_digest_add(d, (uint64_t)m->index_topk << 32 | m->index_block), &m->index_rope);
    if (m->moe.experts != 0) {
        d = kr_digest_add(d, (uint64_t)m->moe.active << 32 | m->moe.groups << 16 | m->moe.groups_kept);
        d = kr_digest_add(d, kr_hash64(&m->moe.routed_scale, sizeof m->moe.routed_scale, 0));
    }
    for (uint32_t i = 0; i < file->tensors.count; i++) {
        const kr_tensor_entry *e = &file->tensors.entries[i];
        const uint64_t sample = e->bytes < SAMPLE ? e->bytes : SAMPLE;
        d = kr_digest_add(d, kr_hash64(e->name, strlen(e->name), e->bytes));
        d = kr_digest_add(d, kr_hash64(e->data, sample, 0));
        d = kr_digest_add(d, kr_hash64(e->data + (e->bytes - sample) / 2, sample, 0));
        d = kr_digest_add(d, kr_hash64(e->data + e->bytes - sample, sample, 0));
    }
    return d;
}

static kr_status open_form(kr_model_file *file, kr_err *err)
{
    struct stat st;

    if (stat(file->path, &st) != 0)
        return kr_fail(err, errno == ENOENT ? KR_E_NOT_FOUND : KR_E_IO, "%s: %s", file->path,
                       strerror(errno));
    file->form = S_ISDIR(st.st_mode) ? KR_FORM_FOLDER : KR_FORM_GGUF;
    const kr_status status = file->form == KR_FORM_FOLDER ? kr_folder_open(file, err)
                                                          : kr_gguf_model_open(file, err);
    if (status != KR_OK || !file->chat_template)
        return status;
    return kr_chat_note_template(file->tokenizer, file->chat_template, err);
}

kr_status kr_model_file_open(const char *path, kr_model_file **file, kr_err *err)
{
    kr_model_file *f = kr_alloc(sizeof *f);
    kr_status status;

    if (!f)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory to open it", path);
    if (strlen(path) + 64 > sizeof f->path) { /* file names are appended to a folder's */
        kr_free(f);
        return kr_fail(err, KR_E_LIMIT, "a path of %zu bytes is too long", strlen(path));
    }
    snprintf(f->path, sizeof f->path, "%s", path);
    status = open_form(f, err);
    if (status == KR_OK && f->model.name[0] == 0)
        name_from_path(f);
    if (status == KR_OK)
        status = read_vocab(f, err);
    if (status == KR_OK) {
        set_weight_bytes(f);
        status = kr_model_check(&f->model, err);
    }
    if (status == KR_OK)
        status = kr_roles_check(f, err);
    if (status == KR_OK) {
        f->fingerprint = fingerprint(f);
        *file = f;
    } else {
        kr_model_file_close(f);
    }
    return status;
}

const kr_model *kr_model_file_model(const kr_model_file *file) { return &file->model; }
const kr_tokenizer *kr_model_file_tokenizer(const kr_model_file *file) { return file->tokenizer; }
uint64_t kr_model_file_fingerprint(const kr_model_file *file) { return file->fingerprint; }

kr_status kr_model_file_named(const kr_model_file *file, const char *name, kr_tensor *tensor, kr_err *err)
{
    const kr_tensor_entry *e = kr_tensor_table_find(&file->tensors, name);

    if (!e)
        return kr_fail(err, KR_E_NOT_FOUND, "%s: no tensor %s", file->path, name);
    const kr_status status = kr_tensor_usable(file, e, err);
    if (status != KR_OK)
        return status;
    *tensor = (kr_tensor){e->type, kr_tensor_entry_rows(e), kr_tensor_entry_columns(e), e->data, e->bytes,
                          e->name};
    return KR_OK;
}

kr_status kr_model_file_layer_tensor(const kr_model_file *file, uint32_t layer, const char *name,
                                     kr_tensor *tensor, kr_err *err)
{
    char whole[KR_TENSOR_NAME_MAX + 1];

    if (file->form == KR_FORM_GGUF)
        snprintf(whole, sizeof whole, "blk.%u.%s", layer, name);
    else
        snprintf(whole, sizeof whole, "%slayers.%u.%s", file->name_prefix, layer, name);
    return kr_model_file_named(file, whole, tensor, err);
}

void kr_model_file_bytes(const kr_model_file *file, uint64_t by_type[KR_W_TYPES])
{
    memset(by_type, 0, KR_W_TYPES * sizeof *by_type);
    for (uint32_t i = 0; i < file->tensors.count; i++)
        if (file->tensors.entries[i].type != KR_W_TYPES)
            by_type[file->tensors.entries[i].type] += file->tensors.entries[i].bytes;
}
