/* The safetensors reader against the format's rules (pitfalls L-14, L-15), and folders whose parts
 * contradict each other. */
#include <jansson.h>

#include "files/model_file.h"
#include "files/safetensors.h"
#include "tests/files/temporary.h"
#include "tests/test.h"

/* Writes a file of this header and data_bytes bytes after it. */
static void write_safetensors(const char *header, size_t header_bytes, uint64_t said_bytes, size_t data_bytes)
{
    uint8_t *all = calloc(1, 8 + header_bytes + data_bytes);

    memcpy(all, &said_bytes, 8);
    memcpy(all + 8, header, header_bytes);
    write_file(temporary_path("x.safetensors"), all, 8 + header_bytes + data_bytes);
    free(all);
}

static kr_status open_it(kr_tensor_table *table, kr_map *map, kr_err *err)
{
    return kr_safetensors_open(temporary_path("x.safetensors"), 0, map, table, err);
}

static void check_refused(kr_status want, const char *text)
{
    kr_tensor_table table = {0};
    kr_map map = {0};
    kr_err err = {0};
    const kr_status status = open_it(&table, &map, &err);

    if (status != want || !strstr(err.text, text))
        fail_msg("want %s and \"%s\", got %s: %s", kr_status_name(want), text, kr_status_name(status),
                 err.text);
    assert_null(map.data);
    kr_tensor_table_free(&table);
}

static void check_sound(uint32_t tensors)
{
    kr_tensor_table table = {0};
    kr_map map = {0};
    kr_err err = {0};

    if (open_it(&table, &map, &err) != KR_OK)
        fail_msg("%s", err.text);
    assert_int_equal(table.count, tensors);
    kr_map_close(&map);
    kr_tensor_table_free(&table);
}

#define A(offsets) "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":" offsets "}"
#define B(offsets) "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":" offsets "}"

static void rules(void **state)
{
    static const struct {
        const char *header;
        size_t data;
        kr_status status; /* KR_OK: sound */
        const char *text;
    } cases[] = {
        {"{" A("[0,24]") "," B("[24,32]") "}", 32, KR_OK, NULL},
        {"{" B("[24,32]") "," A("[0,24]") "}", 32, KR_OK, NULL},    /* any order in the header */
        {"{" A("[0,24]") "}   ", 24, KR_OK, NULL},                  /* padded with spaces */
        {"{\"__metadata__\":{\"format\":\"pt\"}}", 0, KR_OK, NULL}, /* no tensors */
        {"{\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}", 8, KR_OK, NULL}, /* a scalar */
        {"{" A("[0,24]") "," B("[24,32]") "}", 33, KR_E_FORMAT, "1 bytes after the last tensor"},
        {"{" A("[0,24]") "," B("[24,32]") "}", 31, KR_E_FORMAT, "tensor b ends at byte 32 of 31"},
        {"{" A("[0,24]") "," B("[20,28]") "}", 28, KR_E_FORMAT, "tensor b overlaps the one before it"},
        {"{" A("[0,24]") "," B("[32,40]") "}", 40, KR_E_FORMAT, "tensor b leaves a hole before it"},
        {"{" A("[8,32]") "}", 32, KR_E_FORMAT, "tensor a leaves a hole before it"},
        {"{" A("[0,20]") "}", 20, KR_E_FORMAT, "spans 20 bytes, its shape and dtype need 24"},
        {"{" A("[24,0]") "}", 24, KR_E_FORMAT, "two ascending integers"},
        {"{" A("[-24,0]") "}", 24, KR_E_FORMAT, "two ascending integers"},
        {"{" A("[0,24,48]") "}", 24, KR_E_FORMAT, "two ascending integers"},
        {"{" A("[0.0,24.0]") "}", 24, KR_E_FORMAT, "two ascending integers"},
        {"{" A("[0,18446744073709551615]") "}", 24, KR_E_FORMAT, "too big integer"},
        {"{" A("[0,24]") "," A("[0,24]") "}", 24, KR_E_FORMAT, "duplicate object key"},
        {"{\"a\":{\"dtype\":\"F12\",\"shape\":[6],\"data_offsets\":[0,24]}}", 24, KR_E_UNSUPPORTED,
         "dtype \"F12\", which is not known"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, KR_E_FORMAT,
         "extent 0 is not a positive integer"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,24]}}", 24,
         KR_E_FORMAT, "does not fit 64 bits"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 24,
         KR_E_FORMAT, "does not fit 64 bits"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, KR_E_FORMAT,
         "at most 8 extents"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24],\"x\":1}}", 24, KR_E_FORMAT,
         "nothing else"},
        {"{\"a\":[1,2,3]}", 24, KR_E_FORMAT, "nothing else"},
        {"{\"__metadata__\":{\"n\":1}}", 0, KR_E_FORMAT, "__metadata__.n is not a string"},
        {" {" A("[0,24]") "}", 24, KR_E_FORMAT, "does not begin with {"},
        {"{" A("[0,24]"), 24, KR_E_FORMAT, "header, byte"},
        {"{" A("[0,24]") "}{}", 24, KR_E_FORMAT, "header, byte"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t n = strlen(cases[i].header);
        write_safetensors(cases[i].header, n, n, cases[i].data);
        if (cases[i].status == KR_OK)
            check_sound(cases[i].text                      ? 0
                        : strstr(cases[i].header, "\"b\"") ? 2
                                                           : !strstr(cases[i].header, "meta"));
        else
            check_refused(cases[i].status, cases[i].text);
    }
}

static void header_lengths(void **state)
{
    static const char small[] = "{" A("[0,24]") "}";
    const size_t n = sizeof small - 1;

    (void)state;
    write_safetensors(small, n, n + 25, 24); /* past the end of the file */
    check_refused(KR_E_FORMAT, "does not fit the file");
    write_safetensors(small, n, UINT64_MAX, 24);
    check_refused(KR_E_FORMAT, "does not fit the file");
    write_safetensors(small, n, n - 1, 24); /* lies by one: the text ends early */
    check_refused(KR_E_FORMAT, "header, byte");
    write_safetensors(small, n, 0, 24);
    check_refused(KR_E_FORMAT, "a header of 0 bytes");
    write_file(temporary_path("x.safetensors"), "1234567", 7);
    check_refused(KR_E_FORMAT, "too few");
    for (size_t bytes = 99994; bytes <= 100000; bytes++) { /* L-15 */
        char *padded = malloc(bytes);
        memset(padded, ' ', bytes);
        memcpy(padded, small, n);
        write_safetensors(padded, bytes, bytes, 24);
        check_sound(1);
        write_safetensors(padded, bytes, bytes, 25);
        check_refused(KR_E_FORMAT, "1 bytes after the last tensor");
        free(padded);
    }
}

/* Deep nesting ends in an error, not in the stack's end. */
static void deep_nesting(void **state)
{
    const size_t n = 1 << 20;
    char *text = malloc(n);

    (void)state;
    memset(text, '[', n);
    memcpy(text, "{\"a\":", 5);
    write_safetensors(text, n, n, 0);
    check_refused(KR_E_FORMAT, "header, byte");
    free(text);
}

/* --- folders --- */

static void copy_folder(const char *name)
{
    char command[512];

    snprintf(command, sizeof command, "rm -rf %s/m && cp -r tests/fixtures/tiny/%s %s/m", temporary_folder,
             name, temporary_folder);
    assert_int_equal(system(command), 0);
}

static void folder_refused(kr_status want, const char *text)
{
    kr_model_file *file = NULL;
    kr_err err = {0};
    const kr_status status = kr_model_file_open(temporary_path("m"), &file, &err);

    if (status != want || !strstr(err.text, text))
        fail_msg("want %s and \"%s\", got %s: %s", kr_status_name(want), text, kr_status_name(status),
                 err.text);
    assert_null(file);
}

/* Sets key of a JSON file of the copied folder (value NULL: removes it). */
static void edit(const char *name, const char *key, json_t *value)
{
    char path[256], in[64];
    json_error_t why;

    snprintf(in, sizeof in, "m/%s", name);
    snprintf(path, sizeof path, "%s", temporary_path(in));
    json_t *root = json_load_file(path, 0, &why);
    assert_non_null(root);
    if (value)
        json_object_set_new(root, key, value);
    else
        json_object_del(root, key);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

static void configurations(void **state)
{
    static const struct {
        const char *folder, *key, *value; /* value: JSON text, NULL removes the key */
        kr_status status;
        const char *text;
    } cases[] = {
        {"llama", "model_type", "\"mamba2\"", KR_E_UNSUPPORTED, "architecture \"mamba2\" is not supported"},
        {"llama", "hidden_size", "65", KR_E_FORMAT, "asks for"},
        {"llama", "hidden_size", "\"64\"", KR_E_FORMAT, "\"hidden_size\""},
        {"llama", "num_hidden_layers", "3", KR_E_NOT_FOUND, "no tensor model.layers.2."},
        {"llama", "num_hidden_layers", "1", KR_E_UNSUPPORTED, "not part of a llama model of 1 layers"},
        {"llama", "hidden_act", "\"relu\"", KR_E_UNSUPPORTED, "\"hidden_act\" relu is not supported"},
        {"llama", "tie_word_embeddings", "false", KR_E_NOT_FOUND, "no tensor lm_head.weight"},
        {"llama", "rope_parameters", "{\"rope_type\":\"yarn\",\"factor\":4.0}", KR_E_UNSUPPORTED,
         "rope type \"yarn\" is not supported"},
        {"llama3", "num_attention_heads", NULL, KR_E_FORMAT, "num_attention_heads"},
        {"gemma3", "final_logit_softcapping", "30.0", KR_E_UNSUPPORTED, "\"final_logit_softcapping\""},
        {"gemma3", "layer_types", "[\"full_attention\"]", KR_E_FORMAT, "layer_types has 1 entries"},
        {"gemma3", "layer_types", "[\"full_attention\",\"chunked\",\"x\"]", KR_E_UNSUPPORTED,
         "layer_types[1] is \"chunked\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        copy_folder(cases[i].folder);
        edit("config.json", cases[i].key,
             cases[i].value ? json_loads(cases[i].value, JSON_DECODE_ANY, NULL) : NULL);
        folder_refused(cases[i].status, cases[i].text);
    }
}

static void tokenizers(void **state)
{
    static const struct {
        const char *key, *value;
        kr_status status;
        const char *text;
    } cases[] = {
        {"normalizer", "{\"type\":\"Lowercase\"}", KR_E_UNSUPPORTED, "normalizer \"Lowercase\""},
        {"pre_tokenizer", "{\"type\":\"Whitespace\"}", KR_E_UNSUPPORTED, "pre-tokenizer \"Whitespace\""},
        {"pre_tokenizer",
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":"
         "{\"Regex\":\"(a*)*b\"},\"behavior\":\"Isolated\"}]}",
         KR_E_UNSUPPORTED, "pattern \"(a*)*b\" is not one of the supported"},
        {"model", "{\"type\":\"Unigram\",\"vocab\":[]}", KR_E_UNSUPPORTED, "tokenizer model \"Unigram\""},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}", KR_E_FORMAT,
         "the id of token \"a\""},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":4194304},\"merges\":[]}", KR_E_FORMAT,
         "the id of token"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":9,\"b\":9},\"merges\":[]}", KR_E_FORMAT,
         "both have id 9"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":9},\"merges\":[\"a\"]}", KR_E_FORMAT,
         "merge 0 is neither"},
        {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":9},\"merges\":[[\"a\",\"a\"]]}", KR_E_FORMAT,
         "not all three are tokens"},
        {"added_tokens", "[{\"id\":5,\"content\":\"<x>\",\"rstrip\":true,\"special\":true}]",
         KR_E_UNSUPPORTED, "lstrip, rstrip or single_word"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        copy_folder("llama");
        edit("tokenizer.json", cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        folder_refused(cases[i].status, cases[i].text);
    }
}

/* One of two shards of the tensors in table: those of this parity; names them in weight_map. */
static void write_shard(const kr_tensor_table *table, uint32_t parity, json_t *weight_map)
{
    json_t *header = json_object();
    uint8_t *data = malloc(1 << 20);
    char name[32];
    size_t bytes = 0;

    snprintf(name, sizeof name, "p%u.safetensors", parity);
    for (uint32_t i = parity; i < table->count; i += 2) {
        const kr_tensor_entry *e = &table->entries[i];
        json_t *shape = json_array();
        for (uint32_t d = 0; d < e->dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)e->shape[d]));
        json_object_set_new(header, e->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", e->type_name, "shape", shape,
                                      "data_offsets", (json_int_t)bytes, (json_int_t)(bytes + e->bytes)));
        memcpy(data + bytes, e->data, e->bytes);
        bytes += e->bytes;
        json_object_set_new(weight_map, e->name, json_string(name));
    }
    char *text = json_dumps(header, 0);
    const uint64_t padded = (strlen(text) + 7) / 8 * 8;
    char path[64];
    snprintf(path, sizeof path, "m/%s", name);
    FILE *f = fopen(temporary_path(path), "wb");
    assert_non_null(f);
    fwrite(&padded, 8, 1, f);
    fprintf(f, "%-*s", (int)padded, text);
    fwrite(data, 1, bytes, f);
    assert_int_equal(fclose(f), 0);
    free(text);
    free(data);
    json_decref(header);
}

/* Cuts the tiny Llama's tensors into two shards; returns the index, which is not saved yet. */
static json_t *split_model(void)
{
    json_t *index = json_pack("{s:{}, s:{}}", "metadata", "weight_map");
    kr_tensor_table table = {0};
    kr_map map;
    kr_err err;

    copy_folder("llama");
    assert_int_equal(kr_safetensors_open(temporary_path("m/model.safetensors"), 0, &map, &table, &err),
                     KR_OK);
    write_shard(&table, 0, json_object_get(index, "weight_map"));
    write_shard(&table, 1, json_object_get(index, "weight_map"));
    kr_tensor_table_free(&table);
    kr_map_close(&map);
    assert_int_equal(unlink(temporary_path("m/model.safetensors")), 0);
    return index;
}

static void save_index(json_t *index)
{
    assert_int_equal(json_dump_file(index, temporary_path("m/model.safetensors.index.json"), 0), 0);
}

/* A header of odd length is legal, but its tensors cannot be read where they lie. */
static void unaligned_data(void **state)
{
    static uint8_t file[1 << 20];
    uint64_t header;

    (void)state;
    copy_folder("qwen2"); /* F32 */
    FILE *f = fopen(temporary_path("m/model.safetensors"), "rb");
    assert_non_null(f);
    const size_t bytes = fread(file, 1, sizeof file - 1, f);
    fclose(f);
    memcpy(&header, file, 8);
    memmove(file + 8 + header + 1, file + 8 + header, bytes - 8 - header);
    file[8 + header++] = ' ';
    memcpy(file, &header, 8);
    write_file(temporary_path("m/model.safetensors"), file, bytes + 1);
    folder_refused(KR_E_UNSUPPORTED, "of type F32 does not start at a multiple of 4 bytes");
}

static void map_to(json_t *index, const char *tensor, const char *shard)
{
    json_object_set_new(json_object_get(index, "weight_map"), tensor, json_string(shard));
    save_index(index);
}

static void shards_are_one_model(void **state)
{
    kr_model_file *file, *whole;
    json_t *index = split_model();
    kr_err err;

    (void)state;
    save_index(index);
    if (kr_model_file_open(temporary_path("m"), &file, &err) != KR_OK)
        fail_msg("%s", err.text);
    assert_int_equal(kr_model_file_open("tests/fixtures/tiny/llama", &whole, &err), KR_OK);
    for (unsigned role = 0; role < KR_ROLES; role++) { /* the same bytes by every role */
        kr_tensor a, b;
        const kr_status status = kr_model_file_tensor(whole, (kr_role)role, 1, &a, &err);
        assert_int_equal(kr_model_file_tensor(file, (kr_role)role, 1, &b, &err), status);
        if (status == KR_OK) {
            assert_int_equal(a.bytes, b.bytes);
            assert_memory_equal(a.data, b.data, a.bytes);
        }
    }
    kr_model_file_close(file);
    kr_model_file_close(whole);
    json_decref(index);
}

static void shards_that_contradict(void **state)
{
    char command[256];
    json_t *index = split_model();
    const char *norm = json_string_value(
        json_object_get(json_object_get(index, "weight_map"), "model.norm.weight"));
    const bool in_first = strcmp(norm, "p0.safetensors") == 0;

    (void)state;
    map_to(index, "model.norm.weight", "../m/p0.safetensors");
    folder_refused(KR_E_FORMAT, "weight_map.model.norm.weight is not a plain file name");
    map_to(index, "model.norm.weight", "p2.safetensors");
    folder_refused(KR_E_NOT_FOUND, "p2.safetensors");
    map_to(index, "model.norm.weight", in_first ? "p1.safetensors" : "p0.safetensors"); /* the other one */
    folder_refused(KR_E_FORMAT, "tensor model.norm.weight is not in p");
    map_to(index, "model.norm.weight", in_first ? "p0.safetensors" : "p1.safetensors");
    map_to(index, "model.extra.weight", "p1.safetensors"); /* in no shard */
    folder_refused(KR_E_FORMAT, "tensor model.extra.weight is not in p1.safetensors");
    json_object_del(json_object_get(index, "weight_map"), "model.extra.weight");
    json_object_del(json_object_get(index, "weight_map"), "model.norm.weight"); /* in a shard, not listed */
    save_index(index);
    folder_refused(KR_E_FORMAT, "the shards hold");
    map_to(index, "model.norm.weight", in_first ? "p0.safetensors" : "p1.safetensors");
    snprintf(command, sizeof command, "cp %s/m/p0.safetensors %s/m/p1.safetensors", temporary_folder,
             temporary_folder);
    assert_int_equal(system(command), 0);
    folder_refused(KR_E_FORMAT, "occurs twice (in parts 1 and 2)");
    json_decref(index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules),

        cmocka_unit_test(header_lengths),
        cmocka_unit_test(deep_nesting),
        cmocka_unit_test(configurations),
        cmocka_unit_test(tokenizers),
        cmocka_unit_test(unaligned_data),
        cmocka_unit_test(shards_are_one_model),
        cmocka_unit_test(shards_that_contradict),
    };
    return cmocka_run_group_tests(tests, temporary_make, temporary_remove);
}
