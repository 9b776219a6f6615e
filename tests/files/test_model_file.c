/* What a model file says of its model: descriptions of every family from both forms, GGUF twins of
 * folders (written by llama.cpp's converter) holding the same weights, split files (pitfall L-11),
 * fingerprints and the printed description. */
#include <jansson.h>
#include <math.h>

#include "files/model_file.h"
#include "files/tokenizer.h"
#include "tests/files/gguf_builder.h"
#include "tests/test.h"

static kr_model_file *open_model(const char *path)
{
    kr_model_file *file = NULL;
    kr_err err;

    if (kr_model_file_open(path, &file, &err) != KR_OK)
        fail_msg("%s", err.text);
    return file;
}

static kr_tensor tensor_of(const kr_model_file *file, kr_role role, uint32_t layer)
{
    kr_tensor t;
    kr_err err;

    if (kr_model_file_tensor(file, role, layer, &t, &err) != KR_OK)
        fail_msg("%s", err.text);
    return t;
}

static void families(void **state)
{
    static const struct {
        const char *path;
        kr_family family;
        bool tied, bias, qk_norm, gemma;
        double theta;
        uint32_t layers;
    } cases[] = {
        {"llama", KR_FAMILY_LLAMA, true, false, false, false, 1e5, 2},
        {"llama.gguf", KR_FAMILY_LLAMA, true, false, false, false, 1e5, 2},
        {"llama3", KR_FAMILY_LLAMA, false, false, false, false, 5e5, 2},
        {"llama3.gguf", KR_FAMILY_LLAMA, false, false, false, false, 5e5, 2},
        {"qwen2", KR_FAMILY_QWEN2, true, true, false, false, 1e6, 2},
        {"qwen2.gguf", KR_FAMILY_QWEN2, true, true, false, false, 1e6, 2},
        {"qwen3", KR_FAMILY_QWEN3, false, false, true, false, 1e6, 2},
        {"qwen3.gguf", KR_FAMILY_QWEN3, false, false, true, false, 1e6, 2},
        {"gemma3", KR_FAMILY_GEMMA3, true, false, true, true, 1e6, 3},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[64];
        snprintf(path, sizeof path, "tests/fixtures/tiny/%s", cases[i].path);
        kr_model_file *file = open_model(path);
        const kr_model *m = kr_model_file_model(file);
        const bool gguf_llama = strstr(path, ".gguf") && cases[i].family == KR_FAMILY_LLAMA;
        assert_int_equal(m->family, cases[i].family);
        assert_int_equal(m->layers, cases[i].layers);
        assert_int_equal(m->tied_embedding, cases[i].tied);
        assert_int_equal(m->qkv_bias, cases[i].bias);
        assert_int_equal(m->qk_norm, cases[i].qk_norm);
        assert_int_equal(m->sandwich_norm, cases[i].gemma);
        assert_int_equal(m->norm_plus_one, cases[i].gemma);
        assert_int_equal(m->activation, cases[i].gemma ? KR_ACT_GELU_TANH : KR_ACT_SILU);
        assert_true(m->embed_scale == (cases[i].gemma ? 8.0 : 1.0));
        assert_true(m->softmax_scale == 1.0 / sqrt(cases[i].gemma ? 24.0 : 16.0));
        assert_true(m->rope[0].theta == cases[i].theta);
        assert_int_equal(m->rope[0].dims, 16);
        assert_int_equal(m->rope[0].layout, gguf_llama ? KR_ROPE_INTERLEAVED : KR_ROPE_HALF);
        assert_int_equal(m->context, 512);
        assert_int_equal(m->head_dim, 16);
        assert_int_equal(m->kv_dtype, KR_BF16);
        kr_model_file_close(file);
    }
}

static void gemma_layers(void **state)
{
    kr_model_file *file = open_model("tests/fixtures/tiny/gemma3");
    const kr_model *m = kr_model_file_model(file);

    (void)state;
    for (uint32_t l = 0; l < 3; l++) {
        assert_int_equal(m->layer[l].window, l == 2 ? 0 : 16);
        assert_int_equal(m->layer[l].rope, l != 2);
    }
    assert_true(m->rope[1].theta == 1e4);
    assert_int_equal(tensor_of(file, KR_ROLE_POST_FFN_NORM, 1).columns, 64);
    kr_model_file_close(file);
}

/* Writes the tiny Gemma as a multimodal checkpoint has it: another prefix before its tensors' names,
 * its configuration inside text_config. */
static void write_multimodal(const char *prefix)
{
    static uint8_t file[1 << 20];
    char command[256], name[128];
    uint64_t bytes;
    const char *key;
    json_t *value, *renamed = json_object();

    snprintf(command, sizeof command, "rm -rf %s/mm && cp -r tests/fixtures/tiny/gemma3 %s/mm",
             temporary_folder, temporary_folder);
    assert_int_equal(system(command), 0);
    FILE *f = fopen("tests/fixtures/tiny/gemma3/model.safetensors", "rb");
    assert_non_null(f);
    const size_t all = fread(file, 1, sizeof file, f);
    fclose(f);
    memcpy(&bytes, file, 8);
    json_t *header = json_loadb((char *)file + 8, bytes, 0, NULL);
    json_object_foreach(header, key, value)
    {
        snprintf(name, sizeof name, "%s%s", prefix, strncmp(key, "model.", 6) == 0 ? key + 6 : key);
        json_object_set(renamed, key[0] == '_' ? key : name, value);
    }
    char *text = json_dumps(renamed, JSON_COMPACT);
    const uint64_t padded = (strlen(text) + 7) / 8 * 8;
    f = fopen(temporary_path("mm/model.safetensors"), "wb");
    assert_non_null(f);
    fwrite(&padded, 8, 1, f);
    fprintf(f, "%-*s", (int)padded, text);
    fwrite(file + 8 + bytes, 1, all - 8 - bytes, f);
    fclose(f);
    json_t *inner = json_load_file("tests/fixtures/tiny/gemma3/config.json", 0, NULL);
    json_t *config = json_pack("{s:s, s:o}", "model_type", "gemma3", "text_config", inner);
    assert_int_equal(json_dump_file(config, temporary_path("mm/config.json"), 0), 0);
    json_decref(config);
    json_decref(header);
    json_decref(renamed);
    free(text);
}

static void multimodal_folders(void **state)
{
    static const char *const prefixes[] = {"language_model.model.", "model.language_model."};
    kr_model_file *plain = open_model("tests/fixtures/tiny/gemma3");

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        write_multimodal(prefixes[i]);
        kr_model_file *file = open_model(temporary_path("mm"));
        assert_int_equal(kr_model_file_model(file)->layer[1].window, 16);
        for (unsigned role = 0; role < KR_ROLES; role++) {
            kr_tensor a, b;
            const kr_status status = kr_model_file_tensor(plain, (kr_role)role, 2, &a, NULL);
            assert_int_equal(kr_model_file_tensor(file, (kr_role)role, 2, &b, NULL), status);
            if (status == KR_OK)
                assert_memory_equal(a.data, b.data, a.bytes);
        }
        kr_model_file_close(file);
    }
    kr_model_file_close(plain);
}

static void real_gemma(void **state)
{
    const char *path = getenv("KARAT_TEST_GEMMA");

    (void)state;
    if (!path) {
        printf("SKIP KARAT_TEST_GEMMA names no file\n");
        skip();
    }
    kr_model_file *file = open_model(path);
    const kr_model *m = kr_model_file_model(file);
    for (uint32_t l = 0; l < 18; l++) { /* global layers 5, 11, 17 */
        assert_int_equal(m->layer[l].window, l % 6 == 5 ? 0 : 512);
        assert_int_equal(m->layer[l].rope, l % 6 != 5);
    }
    assert_true(m->rope[0].theta == 1e6 && m->rope[1].theta == 1e4 && m->softmax_scale == 1.0 / 16.0);
    assert_false(m->norm_plus_one); /* the converter has added the 1 */
    assert_int_equal(kr_model_kv_token_bytes(m), 18432);
    kr_model_file_close(file);
}

/* Row of the folder's q or k that the converter puts at `row`: pairs (i, i + d/2) become (2i, 2i+1). */
static uint64_t unpermuted(uint64_t row, uint32_t head_dim)
{
    const uint64_t head = row / head_dim, in = row % head_dim;
    return head * head_dim + in / 2 + in % 2 * (head_dim / 2);
}

static void check_twin(const kr_model_file *folder, const kr_model_file *gguf, kr_role role, uint32_t layer)
{
    const kr_model *m = kr_model_file_model(folder);
    kr_tensor a, b;
    kr_err err;
    const kr_status status = kr_model_file_tensor(folder, role, layer, &a, &err);

    assert_int_equal(kr_model_file_tensor(gguf, role, layer, &b, &err), status);
    if (status != KR_OK || a.type != b.type) /* the converter keeps norms in F32 */
        return;
    assert_int_equal(a.rows, b.rows);
    assert_int_equal(a.columns, b.columns);
    const bool permuted = m->family == KR_FAMILY_LLAMA && (role == KR_ROLE_Q || role == KR_ROLE_K);
    const uint64_t row_bytes = kr_weight_row_bytes(a.type, a.columns);
    for (uint64_t r = 0; r < a.rows; r++) {
        const uint64_t from = permuted ? unpermuted(r, m->head_dim) : r;
        assert_memory_equal(b.data + r * row_bytes, a.data + from * row_bytes, row_bytes);
    }
}

static void twins(void **state)
{
    static const char *const names[] = {"llama", "llama3", "qwen2", "qwen3"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char a[64], b[64];
        snprintf(a, sizeof a, "tests/fixtures/tiny/%s", names[i]);
        snprintf(b, sizeof b, "tests/fixtures/tiny/%s.gguf", names[i]);
        kr_model_file *folder = open_model(a), *gguf = open_model(b);
        for (unsigned role = 0; role < KR_ROLES; role++)
            for (uint32_t layer = 0; layer < 2 && role != KR_ROLE_ROPE_FACTORS; layer++)
                check_twin(folder, gguf, (kr_role)role, layer);
        assert_int_not_equal(kr_model_file_fingerprint(folder), kr_model_file_fingerprint(gguf));
        kr_model_file_close(folder);
        kr_model_file_close(gguf);
    }
}

/* The factors llama.cpp's converter computed divide the plain frequencies into the scaled ones that
 * the folder's rope parameters give. */
static void rope_factors(void **state)
{
    kr_model_file *folder = open_model("tests/fixtures/tiny/llama3");
    kr_model_file *gguf = open_model("tests/fixtures/tiny/llama3.gguf");
    const kr_rope *scaled = &kr_model_file_model(folder)->rope[0],
                  *plain = &kr_model_file_model(gguf)->rope[0];
    const kr_tensor t = tensor_of(gguf, KR_ROLE_ROPE_FACTORS, 0);
    float want[8], base[8], factor[8];
    bool differ = false;

    (void)state;
    assert_int_equal(scaled->scaling, KR_ROPE_LLAMA3);
    assert_int_equal(plain->scaling, KR_ROPE_PLAIN);
    assert_int_equal(t.columns, 8);
    assert_int_equal(t.type, KR_W_F32);
    memcpy(factor, t.data, sizeof factor);
    kr_rope_frequencies(scaled, want);
    kr_rope_frequencies(plain, base);
    for (int i = 0; i < 8; i++) {
        assert_true(fabsf(base[i] / factor[i] - want[i]) <= 1e-6f * want[i]);
        differ |= factor[i] != 1.0f;
    }
    assert_true(differ);
    kr_model_file_close(folder);
    kr_model_file_close(gguf);
}

/* --- split files --- */

static void put_u16_key(builder *b, const char *key, uint16_t value)
{
    builder_key(b, key, KR_GGUF_U16);
    put_raw(b->keys, &b->key_bytes, &value, sizeof value);
}

/* Part `number` (0-based) of 2: part 0 has the metadata and the embedding, part 1 the rest. */
static builder *part_of(uint16_t number, uint16_t count, int32_t tensors)
{
    builder *b = builder_new();

    put_u16_key(b, "split.no", number);
    put_u16_key(b, "split.count", count);
    builder_key(b, "split.tensors.count", KR_GGUF_I32);
    put_raw(b->keys, &b->key_bytes, &tensors, sizeof tensors);
    return b;
}

static builder *first_part(int32_t tensors)
{
    builder *b = part_of(0, 2, tensors);

    builder_llama_keys(b);
    builder_vocab(b, 300);
    builder_f32_tensor(b, "token_embd.weight", 300, 64);
    return b;
}

static builder *second_part(int32_t tensors)
{
    builder *b = part_of(1, 2, tensors), *whole = builder_new();

    builder_llama_tensors(whole, 300); /* its first entry is the embedding: skip it */
    const size_t skip = 8 + strlen("token_embd.weight") + 4 + 16 + 4 + 8;
    put_raw(b->tensors, &b->tensor_bytes, whole->tensors + skip, whole->tensor_bytes - skip);
    b->tensor_count = whole->tensor_count - 1;
    b->data_bytes = whole->data_bytes;
    free(whole);
    return b;
}

static void write_part(builder *b, const char *name)
{
    builder_write(b, temporary_path(name));
    free(b);
}

static void open_refused(const char *name, kr_status want, const char *text)
{
    kr_model_file *file = NULL;
    kr_err err = {0};
    const kr_status status = kr_model_file_open(temporary_path(name), &file, &err);

    if (status != want || !strstr(err.text, text))
        fail_msg("want %s and \"%s\", got %s: %s", kr_status_name(want), text, kr_status_name(status),
                 err.text);
}

static void split_files(void **state)
{
    static const char one[] = "m-00001-of-00002.gguf", two[] = "m-00002-of-00002.gguf";

    (void)state;
    write_part(first_part(11), one);
    open_refused(one, KR_E_NOT_FOUND, two); /* part 2 is missing */
    write_part(second_part(11), two);
    for (int i = 0; i < 2; i++) { /* either part opens the whole */
        kr_model_file *file = open_model(temporary_path(i ? two : one));
        assert_true(kr_model_file_model(file)->tied_embedding);
        assert_int_equal(tensor_of(file, KR_ROLE_DOWN, 0).rows, 64);
        kr_model_file_close(file);
    }
    /* Whether the output is tied is known only after the last part. */
    builder *b = second_part(12);
    builder_f32_tensor(b, "output.weight", 300, 64);
    write_part(b, two);
    write_part(first_part(12), one);
    kr_model_file *file = open_model(temporary_path(one));
    assert_false(kr_model_file_model(file)->tied_embedding);
    assert_string_equal(tensor_of(file, KR_ROLE_OUTPUT, 0).name, "output.weight");
    kr_model_file_close(file);

    write_part(second_part(11), two);
    open_refused(one, KR_E_FORMAT, "says part 2 of 2 with 11 tensors in all, expected part 2 of 2 with 12");
    write_part(second_part(12), two);
    open_refused(one, KR_E_FORMAT, "split.tensors.count is 12, the 2 parts hold 11 tensors");
    b = second_part(12);
    builder_f32_tensor(b, "token_embd.weight", 300, 64);
    write_part(b, two);
    open_refused(one, KR_E_FORMAT, "tensor token_embd.weight occurs twice (in parts 1 and 2)");
    write_part(second_part(11), one); /* swapped */
    write_part(first_part(11), two);
    open_refused(one, KR_E_FORMAT,
                 "the file says it is part 2 of 2, its name must end in -00002-of-00002.gguf");
    write_part(part_of(2, 2, 11), one);
    open_refused(one, KR_E_FORMAT, "split.no is 2; 0 to 1 allowed");
    write_part(first_part(11), "renamed.gguf");
    open_refused("renamed.gguf", KR_E_FORMAT, "its name must end in -00001-of-00002.gguf");
}

/* --- the rest --- */

static void fingerprints(void **state)
{
    builder *b = builder_new();

    (void)state;
    builder_llama_keys(b);
    builder_vocab(b, 300);
    builder_llama_tensors(b, 300);
    builder_write(b, temporary_path("a.gguf"));
    b->data[0] = 1; /* one weight differs */
    builder_write(b, temporary_path("b.gguf"));
    kr_model_file *a = open_model(temporary_path("a.gguf")), *again = open_model(temporary_path("a.gguf"));
    kr_model_file *other = open_model(temporary_path("b.gguf"));
    assert_int_equal(kr_model_file_fingerprint(a), kr_model_file_fingerprint(again));
    assert_int_not_equal(kr_model_file_fingerprint(a), kr_model_file_fingerprint(other));
    kr_model_file_close(a);
    kr_model_file_close(again);
    kr_model_file_close(other);
    free(b);
}

static void descriptions(void **state)
{
    kr_model_file *file = open_model("tests/fixtures/tiny/llama3.gguf");
    char text[8192] = {0};
    uint64_t by_type[KR_W_TYPES];
    kr_tensor t;
    kr_err err;

    (void)state;
    FILE *out = fmemopen(text, sizeof text, "w");
    assert_int_equal(kr_model_file_describe(file, out, 1, &err), KR_OK);
    fclose(out);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    const json_t *model = json_object_get(root, "model"), *tensors = json_object_get(root, "tensors");
    assert_string_equal(json_string_value(json_object_get(model, "architecture")), "llama");
    assert_int_equal(json_integer_value(json_object_get(model, "kv_bytes_per_token")), 2 * 2 * 2 * 16 * 2);
    assert_string_equal(json_string_value(json_object_get(root, "chat_template")), "llama3");
    kr_model_file_bytes(file, by_type);
    const json_t *f16 = json_object_get(json_object_get(tensors, "types"), "F16");
    assert_int_equal(json_integer_value(json_object_get(f16, "bytes")), by_type[KR_W_F16]);
    assert_true(by_type[KR_W_F16] > 0 && by_type[KR_W_F32] > 0 && by_type[KR_W_Q8_0] == 0);
    json_decref(root);

    out = fmemopen(text, sizeof text, "w");
    assert_int_equal(kr_model_file_describe(file, out, 0, &err), KR_OK);
    fclose(out);
    assert_non_null(strstr(text, "model       llama"));
    assert_non_null(strstr(text, "scaling by rope_freqs.weight"));
    assert_int_equal(kr_model_file_named(file, "rope_freqs.weight", &t, &err), KR_OK);
    assert_int_equal(t.columns, 8);
    assert_int_equal(kr_model_file_named(file, "no.such", &t, &err), KR_E_NOT_FOUND);
    kr_model_file_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families),    cmocka_unit_test(gemma_layers), cmocka_unit_test(multimodal_folders),
        cmocka_unit_test(real_gemma),  cmocka_unit_test(twins),        cmocka_unit_test(rope_factors),
        cmocka_unit_test(split_files), cmocka_unit_test(fingerprints), cmocka_unit_test(descriptions),
    };
    return cmocka_run_group_tests(tests, temporary_make, temporary_remove);
}
