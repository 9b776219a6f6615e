/* A saved session's facts as text and as JSON. */
#include <inttypes.h>
#include <string.h>

#include "base/json.h"
#include "base/num.h"
#include "store/saved_impl.h"

enum { BOUNDARIES_SHOWN = 8 };

static const char *kind_of(const kr_boundary *b) { return b->is_prefill ? "prefill" : "decode"; }

/* The client's data is its log of tokens, four bytes each (engine/session.c). */
/* At most: the client's bytes are its own; an engine keeps four a token, behind what learned methods must
 * remember. */
static uint64_t client_tokens(const kr_saved *s) { return s->header.blob_bytes / sizeof(uint32_t); }

static bool alike(const kr_saved *s, uint32_t a, uint32_t b)
{
    return memcmp((const void *)&s->layer[a], (const void *)&s->layer[b], sizeof s->layer[a]) == 0 &&
           s->record[a].tokens_covered == s->record[b].tokens_covered &&
           s->record[a].body_bytes == s->record[b].body_bytes;
}

/* One line for each run of layers that differ in their numbers alone. */
static void print_layers(const kr_saved *s, FILE *out)
{
    for (uint32_t l = 0, end; l < s->header.layers; l = end) {
        const kr_save_layer *layer = &s->layer[l];

        for (end = l + 1; end < s->header.layers && alike(s, l, end);)
            end++;
        fprintf(out, "  %u-%-8u%s version %u, budget %u, %u heads, %u KV heads, key %u, value %u%s, KV %s, ",
                l, end - 1, layer->config.name, layer->method_version, layer->config.budget, layer->heads,
                layer->kv_heads, layer->key_dim, layer->value_dim, layer->latent ? " inside the key" : "",
                kr_dtype_name((kr_dtype)layer->kv_dtype));
        if (layer->window != 0)
            fprintf(out, "window %u, ", layer->window);
        fprintf(out,
                "group %u, %" PRIu64 " tokens; record of %" PRIu64 " tokens, body of %" PRIu64 " bytes\n",
                layer->group, layer->tokens, s->record[l].tokens_covered, s->record[l].body_bytes);
    }
}

kr_status kr_saved_print(const kr_saved *s, FILE *out, kr_err *err)
{
    const kr_save_header *h = &s->header;

    fprintf(out, "%-12s%s\n", "file", s->reader.name);
    fprintf(out, "%-12ssaved session, version %u\n", "format", h->version);
    fprintf(out, "%-12s%016" PRIx64 "\n", "fingerprint", h->fingerprint);
    fprintf(out, "%-12s%" PRIu64 " with KV, of at most %" PRIu64 "\n", "tokens", s->tokens, h->tokens_max);
    fprintf(out, "%-12sat most %" PRIu64 " tokens, %u bytes\n", "client log", client_tokens(s),
            h->blob_bytes);
    fprintf(out, "%-12s%u\n", "layers", h->layers);
    print_layers(s, out);
    for (uint32_t g = 0; g < h->groups; g++)
        fprintf(out, "%-12sgroup %u: %" PRIu64 " of %" PRIu64 " bytes, from page %" PRIu64 "\n", "pages", g,
                h->count[g] - h->first[g], h->page_bytes[g], h->first[g]);
    fprintf(out, "%-12s%u:", "boundaries", h->boundaries);
    for (uint32_t i = 0; i < h->boundaries && i < BOUNDARIES_SHOWN; i++)
        fprintf(out, "%s %s from %" PRIu64, i > 0 ? "," : "", kind_of(&s->boundary[i]),
                s->boundary[i].first_token);
    fprintf(out, "%s\n", h->boundaries > BOUNDARIES_SHOWN ? ", ..." : "");
    fprintf(out, "%-12s%u, %" PRIu64 " bytes\n", "records", h->layers, h->record_bytes);
    fprintf(out, "%-12s%" PRIu64 " bytes in the file, %" PRIu64 " unpacked\n", "size", s->file_bytes,
            s->unpacked);
    fprintf(out, "%-12sverified: header and %" PRIu64 " frames\n", "checksums", s->frames);
    return ferror(out) ? kr_fail(err, KR_E_IO, "cannot write the description of %s", s->reader.name) : KR_OK;
}

static json_t *json_layer(const kr_saved *s, uint32_t l)
{
    const kr_save_layer *layer = &s->layer[l];

    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s, s:I, s:I, s:I, s:{s:I, s:I}}", "method",
                     layer->config.name, "method_version", (json_int_t)layer->method_version, "budget",
                     (json_int_t)layer->config.budget, "heads", (json_int_t)layer->heads, "kv_heads",
                     (json_int_t)layer->kv_heads, "key_dim", (json_int_t)layer->key_dim, "value_dim",
                     (json_int_t)layer->value_dim, "latent", (int)layer->latent, "kv_type",
                     kr_dtype_name((kr_dtype)layer->kv_dtype), "window_tokens", (json_int_t)layer->window,
                     "group", (json_int_t)layer->group, "tokens", (json_int_t)layer->tokens, "record",
                     "tokens_covered", (json_int_t)s->record[l].tokens_covered, "body_bytes",
                     (json_int_t)s->record[l].body_bytes);
}

kr_status kr_saved_print_json(const kr_saved *s, FILE *out, kr_err *err)
{
    const kr_save_header *h = &s->header;
    json_t *layers = json_array(), *groups = json_array(), *boundaries = json_array();
    char fingerprint[17];
    kr_status status = KR_OK;

    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, h->fingerprint);
    for (uint32_t l = 0; l < h->layers; l++)
        json_array_append_new(layers, json_layer(s, l));
    for (uint32_t g = 0; g < h->groups; g++)
        json_array_append_new(groups, json_pack("{s:I, s:I, s:I}", "first_page", (json_int_t)h->first[g],
                                                "pages", (json_int_t)(h->count[g] - h->first[g]),
                                                "page_bytes", (json_int_t)h->page_bytes[g]));
    for (uint32_t i = 0; i < h->boundaries; i++)
        json_array_append_new(boundaries, json_pack("{s:s, s:I}", "kind", kind_of(&s->boundary[i]),
                                                    "first_token", (json_int_t)s->boundary[i].first_token));
    json_t *root = json_pack(
        "{s:s, s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:I, s:s, s:I}", "file",
        s->reader.name, "format", "saved session", "version", (json_int_t)h->version, "fingerprint",
        fingerprint, "tokens", (json_int_t)s->tokens, "tokens_max", (json_int_t)h->tokens_max,
        "client_tokens", (json_int_t)client_tokens(s), "client_bytes", (json_int_t)h->blob_bytes, "layers",
        layers, "groups", groups, "boundaries", boundaries, "record_bytes", (json_int_t)h->record_bytes,
        "file_bytes", (json_int_t)s->file_bytes, "unpacked_bytes", (json_int_t)s->unpacked, "checksums",
        "verified", "frames", (json_int_t)s->frames);
    if (root == NULL)
        return kr_fail(err, KR_E_INTERNAL,
                       "%s: its description is not valid JSON (a path that is not UTF-8?)", s->reader.name);
    if (json_dumpf(root, out, JSON_INDENT(2)) != 0 || fputc('\n', out) == EOF)
        status = kr_fail(err, KR_E_IO, "cannot write the description of %s", s->reader.name);
    json_decref(root);
    return status;
}
