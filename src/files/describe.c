/* What `karat inspect` prints about a model: one JSON object, or the same facts as text. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "files/chat_impl.h"
#include "files/model_file_impl.h"

/* How the frequencies of rope set `set` (0: global layers) differ from the plain ones. */
static const char *scaling_name(const kr_model_file *file, uint32_t set)
{
    static const char *const names[] = {"none", "linear", "llama3", "yarn"};
    kr_tensor factors;

    if (set == 0 && kr_model_file_tensor(file, KR_ROLE_ROPE_FACTORS, 0, &factors, NULL) == KR_OK)
        return "by rope_freqs.weight";
    return names[file->model.rope[set].scaling];
}

static const char *tokenizer_kind(const kr_tokenizer *t)
{
    return t->spelling == KR_SPELLING_BYTES ? "byte-level BPE"
           : t->order == KR_ORDER_RANKS     ? "BPE with byte fallback"
                                            : "SentencePiece BPE";
}

static const char *chat_name(const kr_model_file *file)
{
    kr_chat_family family;

    if (!file->chat_template)
        return "none";
    return kr_chat_recognise(file, &family, NULL) == KR_OK ? kr_chat_family_name(family) : "unknown";
}

static uint32_t parts(const kr_model_file *file)
{
    return file->form == KR_FORM_GGUF ? file->gguf_count : file->shard_count;
}

static void form_name(const kr_model_file *file, char text[32])
{
    if (file->form == KR_FORM_GGUF)
        snprintf(text, 32, "GGUF version %u", file->gguf[0].version);
    else
        snprintf(text, 32, "safetensors folder");
}

typedef struct {
    const char *name; /* type */
    uint64_t bytes, tensors;
} type_sum;

enum { TYPE_SUMS_MAX = KR_W_TYPES + 16 };

/* Sums by the file's own type names, so that types karat only describes are listed too. */
static uint32_t sum_types(const kr_model_file *file, type_sum sums[TYPE_SUMS_MAX])
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < file->tensors.count; i++) {
        const kr_tensor_entry *e = &file->tensors.entries[i];
        uint32_t at = 0;
        while (at < count && strcmp(sums[at].name, e->type_name) != 0)
            at++;
        if (at == count && count < TYPE_SUMS_MAX)
            sums[count++] = (type_sum){e->type_name, 0, 0};
        if (at < count) {
            sums[at].bytes += e->bytes;
            sums[at].tensors++;
        }
    }
    return count;
}

static uint32_t window_layers(const kr_model *m, uint32_t *window)
{
    uint32_t count = 0;

    *window = 0;
    for (uint32_t l = 0; l < m->layers; l++)
        if (m->layer[l].window != 0) {
            *window = m->layer[l].window;
            count++;
        }
    return count;
}

static json_t *describe_rope(const kr_model_file *file, uint32_t set)
{
    const kr_rope *rope = &file->model.rope[set];

    return json_pack("{s:f, s:i, s:s, s:s}", "theta", rope->theta, "dims", (int)rope->dims, "layout",
                     rope->layout == KR_ROPE_HALF ? "half" : "interleaved", "scaling",
                     scaling_name(file, set));
}

static json_t *describe_latent(const kr_model *m)
{
    if (m->attention != KR_ATTENTION_MLA)
        return json_null();
    return json_pack("{s:i, s:i, s:i, s:i}", "q_lora", (int)m->q_lora, "kv_lora", (int)m->kv_lora, "nope_dim",
                     (int)m->nope_dim, "rope_dim", (int)m->rope_dim);
}

static json_t *describe_indexer(const kr_model *m)
{
    json_t *owners = json_array();

    for (uint32_t l = 0; l < m->layers; l++)
        if (m->layer[l].indexed && m->layer[l].index_owner == l)
            json_array_append_new(owners, json_integer(l));
    if (m->indexer != KR_INDEXER_NONE)
        return json_pack("{s:s, s:i, s:i, s:i, s:i, s:o}", "method",
                         m->indexer == KR_INDEXER_DSA ? "dsa" : "msa", "heads", (int)m->index_heads, "dim",
                         (int)m->index_dim, "topk", (int)m->index_topk, "block_tokens", (int)m->index_block,
                         "owners", owners);
    json_decref(owners);
    if (m->gates.dim == 0)
        return json_null();
    return json_pack("{s:s, s:i, s:i}", "method", "seer", "dim", (int)m->gates.dim, "block_tokens",
                     (int)m->gates.block);
}

static uint32_t expert_layers(const kr_model *m)
{
    uint32_t count = 0;

    for (uint32_t l = 0; l < m->layers; l++)
        count += m->layer[l].ffn == KR_FFN_MOE;
    return count;
}

static json_t *describe_experts(const kr_model *m)
{
    const kr_moe *moe = &m->moe;

    if (expert_layers(m) == 0)
        return json_null();
    return json_pack("{s:i, s:i, s:i, s:i, s:i}", "experts", (int)moe->experts, "active", (int)moe->active,
                     "shared", (int)moe->shared, "width", (int)moe->width, "layers", (int)expert_layers(m));
}

static json_t *describe_model(const kr_model_file *file)
{
    const kr_model *m = &file->model;
    const kr_parameters p = kr_model_parameters(m);
    uint32_t window;
    const uint32_t local = window_layers(m, &window);
    json_t *rope = json_array();

    json_array_append_new(rope, describe_rope(file, 0));
    if (local > 0 && m->rope[1].dims > 0)
        json_array_append_new(rope, describe_rope(file, 1));
    return json_pack(
        "{s:s, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:i, s:i, s:f, s:o, s:o, s:o, s:o, s:I}",
        "architecture", kr_family_name(m->family), "parameters", (json_int_t)kr_parameters_total(&p),
        "layers", (int)m->layers, "hidden", (int)m->hidden, "ffn_width", (int)m->ffn_width, "heads",
        (int)m->heads, "kv_heads", (int)m->kv_heads, "head_dim", (int)m->head_dim, "vocab", (int)m->vocab,
        "context_tokens", (int)m->context, "tied_embedding", (int)m->tied_embedding, "window_tokens",
        (int)window, "window_layers", (int)local, "softmax_scale", m->softmax_scale, "rope", rope, "latent",
        describe_latent(m), "indexer", describe_indexer(m), "moe", describe_experts(m), "kv_bytes_per_token",
        (json_int_t)kr_model_kv_token_bytes(m));
}

static json_t *describe_tensors(const kr_model_file *file)
{
    type_sum sums[TYPE_SUMS_MAX];
    const uint32_t count = sum_types(file, sums);
    json_t *types = json_object();
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < count; i++) {
        bytes += sums[i].bytes;
        json_object_set_new(types, sums[i].name,
                            json_pack("{s:I, s:I}", "tensors", (json_int_t)sums[i].tensors, "bytes",
                                      (json_int_t)sums[i].bytes));
    }
    return json_pack("{s:i, s:I, s:o}", "count", (int)file->tensors.count, "bytes", (json_int_t)bytes,
                     "types", types);
}

static json_t *describe_tokenizer(const kr_tokenizer *t)
{
    json_t *ends = json_array();

    for (uint32_t i = 0; i < t->ends; i++)
        json_array_append_new(ends, json_integer(t->end[i]));
    return json_pack("{s:s, s:i, s:o, s:b, s:o}", "kind", tokenizer_kind(t), "tokens", (int)t->vocab, "bos",
                     t->bos == KR_SPAN_NONE ? json_null() : json_integer(t->bos), "adds_bos", (int)t->add_bos,
                     "ends", ends);
}

static kr_status describe_json(const kr_model_file *file, FILE *out, kr_err *err)
{
    char form[32], fingerprint[17];
    kr_status status = KR_OK;

    form_name(file, form);
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, file->fingerprint);
    json_t *root = json_pack("{s:s, s:s, s:i, s:s, s:o, s:o, s:o, s:s, s:s}", "file", file->path, "format",
                             form, "parts", (int)parts(file), "name", file->model.name, "model",
                             describe_model(file), "tensors", describe_tensors(file), "tokenizer",
                             describe_tokenizer(file->tokenizer), "chat_template", chat_name(file),
                             "fingerprint", fingerprint);
    if (!root)
        return kr_fail(err, KR_E_INTERNAL,
                       "%s: its description is not valid JSON (a name that is not UTF-8?)", file->path);
    if (json_dumpf(root, out, JSON_INDENT(2)) != 0 || fputc('\n', out) == EOF)
        status = kr_fail(err, KR_E_IO, "cannot write the description of %s", file->path);
    json_decref(root);
    return status;
}

static void print_rope(FILE *out, const char *label, const kr_model_file *file, uint32_t set)
{
    const kr_rope *rope = &file->model.rope[set];

    fprintf(out, "%-12stheta %g over %u dimensions, %s pairs, scaling %s\n", label, rope->theta, rope->dims,
            rope->layout == KR_ROPE_HALF ? "half-split" : "interleaved", scaling_name(file, set));
}

/* Latent attention, what selects, experts: of models that have them. */
static void print_learned(FILE *out, const kr_model *m)
{
    if (m->attention == KR_ATTENTION_MLA)
        fprintf(out, "%-12sof %u for queries, of %u for keys and values beside %u rotated dimensions\n",
                "latents", m->q_lora, m->kv_lora, m->rope_dim);
    if (m->indexer == KR_INDEXER_DSA)
        fprintf(out, "%-12sdsa: %u tokens by %u heads of %u, in %u of %u layers\n", "indexer", m->index_topk,
                m->index_heads, m->index_dim, kr_model_index_layers(m), m->layers);
    if (m->indexer == KR_INDEXER_BLOCK)
        fprintf(out, "%-12smsa: %u blocks of %u tokens by %u heads of %u, in %u of %u layers\n", "indexer",
                m->index_topk, m->index_block, m->index_heads, m->index_dim, kr_model_index_layers(m),
                m->layers);
    if (m->gates.dim > 0)
        fprintf(out, "%-12sseer: one key of %u for %u tokens%s\n", "gates", m->gates.dim, m->gates.block,
                m->gates.norm ? ", normed" : "");
    if (expert_layers(m) > 0)
        fprintf(out, "%-12s%u of %u and %u shared, width %u, in %u of %u layers\n", "experts", m->moe.active,
                m->moe.experts, m->moe.shared, m->moe.width, expert_layers(m), m->layers);
}

static void print_model(FILE *out, const kr_model_file *file)
{
    const kr_model *m = &file->model;
    const kr_parameters p = kr_model_parameters(m);
    uint32_t window;
    const uint32_t local = window_layers(m, &window);

    fprintf(out, "%-12s%s, %.1f M parameters, %u layers, hidden %u, FFN %u\n", "model",
            kr_family_name(m->family), (double)kr_parameters_total(&p) / 1e6, m->layers, m->hidden,
            m->ffn_width);
    fprintf(out, "%-12s%u query heads, %u KV heads, head size %u\n", "attention", m->heads, m->kv_heads,
            m->head_dim);
    print_learned(out, m);
    if (local > 0)
        fprintf(out, "%-12s%u of %u layers see %u tokens\n", "window", local, m->layers, window);
    print_rope(out, "rope", file, 0);
    if (local > 0 && m->rope[1].dims > 0)
        print_rope(out, "local rope", file, 1);
    fprintf(out, "%-12s%u tokens, embedding %s\n", "vocabulary", m->vocab,
            m->tied_embedding ? "shared with the output" : "and output separate");
    fprintf(out, "%-12s%u tokens\n", "context", m->context);
    fprintf(out, "%-12s%" PRIu64 " bytes per token (%s)\n", "KV", kr_model_kv_token_bytes(m),
            kr_dtype_name(m->kv_dtype));
}

static void print_tensors(FILE *out, const kr_model_file *file)
{
    type_sum sums[TYPE_SUMS_MAX];
    const uint32_t count = sum_types(file, sums);
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < count; i++)
        bytes += sums[i].bytes;
    fprintf(out, "%-12s%u, %" PRIu64 " bytes\n", "tensors", file->tensors.count, bytes);
    for (uint32_t i = 0; i < count; i++)
        fprintf(out, "  %-10s%" PRIu64 " tensors, %" PRIu64 " bytes\n", sums[i].name, sums[i].tensors,
                sums[i].bytes);
}

static void print_tokenizer(FILE *out, const kr_tokenizer *t)
{
    fprintf(out, "%-12s%s, %u tokens, ", "tokenizer", tokenizer_kind(t), t->vocab);
    if (t->add_bos)
        fprintf(out, "begins with token %u, ", t->bos);
    fputs("ends with", out);
    for (uint32_t i = 0; i < t->ends; i++)
        fprintf(out, " %u", t->end[i]);
    fputc('\n', out);
}

kr_status kr_model_file_describe(const kr_model_file *file, FILE *out, int as_json, kr_err *err)
{
    char form[32];

    if (as_json)
        return describe_json(file, out, err);
    form_name(file, form);
    fprintf(out, "%-12s%s\n", "file", file->path);
    fprintf(out, "%-12s%s, %u part%s\n", "format", form, parts(file), parts(file) == 1 ? "" : "s");
    fprintf(out, "%-12s%s\n", "name", file->model.name[0] ? file->model.name : "(none)");
    print_model(out, file);
    print_tensors(out, file);
    print_tokenizer(out, file->tokenizer);
    fprintf(out, "%-12s%s\n", "chat", chat_name(file));
    fprintf(out, "%-12s%016" PRIx64 "\n", "fingerprint", file->fingerprint);
    return ferror(out) ? kr_fail(err, KR_E_IO, "cannot write the description of %s", file->path) : KR_OK;
}
