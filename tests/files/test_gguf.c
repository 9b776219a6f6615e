/* The GGUF reader against hostile files (pitfalls L-01 to L-12, T-06): each is refused with a line
 * that names the place and the rule, nothing stays open, and a sound file next to it is read. */
#include <math.h>

#include "files/gguf.h"
#include "files/model_file.h"
#include "files/tokenizer.h"
#include "tests/files/gguf_builder.h"
#include "tests/test.h"

static const char *model_path(void) { return temporary_path("model.gguf"); }

/* The container alone: tensors and keys. */
static void refused_container(builder *b, kr_status want, const char *text)
{
    kr_gguf g = {0};
    kr_tensor_table table = {0};
    kr_err err = {0};

    builder_write(b, model_path());
    const kr_status status = kr_gguf_open(model_path(), 0, &g, &table, &err);
    if (status != want || !strstr(err.text, text))
        fail_msg("want %s and \"%s\", got %s: %s", kr_status_name(want), text, kr_status_name(status),
                 err.text);
    assert_null(g.map.data);
    kr_tensor_table_free(&table);
    free(b);
}

/* A whole model; the builder holds everything the caller wants in it. */
static void refused_model(builder *b, kr_status want, const char *text)
{
    kr_model_file *file = NULL;
    kr_err err = {0};

    builder_write(b, model_path());
    const kr_status status = kr_model_file_open(model_path(), &file, &err);
    if (status != want || !strstr(err.text, text))
        fail_msg("want %s and \"%s\", got %s: %s", kr_status_name(want), text, kr_status_name(status),
                 err.text);
    assert_null(file);
    free(b);
}

static builder *sound_model(uint64_t tokens)
{
    builder *b = builder_new();

    builder_llama_keys(b);
    builder_vocab(b, tokens);
    builder_llama_tensors(b, 300);
    return b;
}

static void sound_models_open(void **state)
{
    kr_model_file *file;
    kr_tensor t;
    kr_err err;

    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        builder *b = sound_model(290); /* fewer tokens than rows: padding */
        b->version = version;
        builder_write(b, model_path());
        if (kr_model_file_open(model_path(), &file, &err) != KR_OK)
            fail_msg("%s", err.text);
        const kr_model *m = kr_model_file_model(file);
        assert_int_equal(m->vocab, 300);
        assert_int_equal(m->head_dim, 32);
        assert_int_equal(m->kv_heads, 2);
        assert_true(m->tied_embedding);
        assert_int_equal(kr_model_file_tensor(file, KR_ROLE_OUTPUT, 0, &t, &err), KR_OK);
        assert_string_equal(t.name, "token_embd.weight");
        assert_int_equal(kr_model_file_tensor(file, KR_ROLE_DOWN, 0, &t, &err), KR_OK);
        assert_int_equal(t.rows, 64);
        assert_int_equal(t.bytes, 64 * 64 * 4);
        assert_int_equal(kr_model_file_tensor(file, KR_ROLE_DOWN, 1, &t, &err), KR_E_ARG);
        assert_int_equal(kr_model_file_tensor(file, KR_ROLE_Q_NORM, 0, &t, &err), KR_E_NOT_FOUND);
        kr_model_file_close(file);
        free(b);
    }
}

/* Every prefix of a sound file is refused, in bounded time, without a crash. */
static void every_truncation(void **state)
{
    builder *b = sound_model(300);
    size_t bytes;
    uint8_t *data = builder_bytes(b, &bytes);
    kr_model_file *file = NULL;
    kr_err err;

    (void)state;
    for (size_t n = 0; n < bytes; n += n < 12000 ? 7 : 9973) {
        write_file(model_path(), data, n);
        const kr_status status = kr_model_file_open(model_path(), &file, &err);
        assert_true(status == KR_E_FORMAT || status == KR_E_NOT_FOUND);
        assert_null(file);
    }
    /* L-12: the padding after the last tensor may be missing; its data may not. */
    builder *c = builder_new();
    const uint64_t extent[1] = {3};
    builder_entry(c, "x", 1, extent, 0, 0);
    c->data_bytes = 12;
    kr_gguf g;
    kr_tensor_table table = {0};
    builder_write(c, model_path());
    assert_int_equal(kr_gguf_open(model_path(), 0, &g, &table, &err), KR_OK);
    assert_int_equal(table.entries[0].bytes, 12);
    kr_gguf_close(&g);
    kr_tensor_table_free(&table);
    c->data_bytes = 11;
    refused_container(c, KR_E_FORMAT, "do not lie in the file");
    free(data);
    free(b);
}

static void bad_shapes(void **state)
{
    static const struct {
        uint32_t dims;
        uint64_t extent[10];
        const char *text;
    } cases[] = {
        {1, {0}, "tensor x has an extent of 0"},                          /* L-01 */
        {2, {32, 0}, "tensor x has an extent of 0"},                      /* L-01 */
        {3, {4194305, 4194305, 211106198978564}, "does not fit 64 bits"}, /* L-03 */
        {9, {1, 1, 1, 1, 1, 1, 1, 1, 1}, "has 9 dimensions; 1 to 4"},     /* L-10 */
        {0, {0}, "has 0 dimensions"},
        {1, {UINT64_MAX}, "does not fit 64 bits"},
        {1, {1u << 30}, "do not lie in the file"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        builder *b = builder_new();
        builder_entry(b, "x", cases[i].dims, cases[i].extent, 0, 0);
        b->data_bytes = 64;
        refused_container(b, KR_E_FORMAT, cases[i].text);
    }
    builder *b = builder_new(); /* n_dims = 2^32 - 1: no loop over it */
    put_text(b->tensors, &b->tensor_bytes, "x");
    put_u32(b->tensors, &b->tensor_bytes, UINT32_MAX);
    b->tensor_bytes += 64;
    b->tensor_count = 1;
    refused_container(b, KR_E_FORMAT, "dimensions; 1 to 4");
}

static void bad_types_and_offsets(void **state)
{
    const uint64_t extent[1] = {32}, odd[1] = {33};
    builder *b = builder_new();

    (void)state;
    builder_entry(b, "x", 1, extent, 16, 0); /* IQ2_XXS */
    b->data_bytes = 64;
    refused_container(b, KR_E_UNSUPPORTED, "has GGUF type 16; supported are F32");
    b = builder_new();
    builder_entry(b, "x", 1, odd, 2, 0); /* Q4_0 wants multiples of 32 */
    b->data_bytes = 64;
    refused_container(b, KR_E_FORMAT, "not a multiple of Q4_0's block of 32");
    b = builder_new();
    builder_entry(b, "x", 1, extent, 0, 16);
    b->data_bytes = 256;
    refused_container(b, KR_E_FORMAT, "not a multiple of the alignment 32");
    b = builder_new();
    builder_entry(b, "x", 1, extent, 0, UINT64_MAX - 31);
    b->data_bytes = 256;
    refused_container(b, KR_E_FORMAT, "do not lie in the file");
    b = builder_new();
    builder_entry(b, "x", 1, extent, 0, 0);
    builder_entry(b, "y", 1, extent, 0, 64); /* x is 128 bytes long */
    b->data_bytes = 256;
    refused_container(b, KR_E_FORMAT, "tensors x and y overlap");
}

static void bad_alignment(void **state) /* L-07 */
{
    static const struct {
        uint32_t alignment;
        bool sound;
    } cases[] = {{0, false}, {3, false}, {12, false}, {1u << 31, false}, {1u << 17, false},
                 {8, true},  {24, true}, {32, true},  {4096, true}};
    const uint64_t extent[1] = {32};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        builder *b = builder_new();
        builder_u32(b, "general.alignment", cases[i].alignment);
        builder_entry(b, "x", 1, extent, 0, 0);
        b->data_bytes = 128;
        if (!cases[i].sound) {
            refused_container(b, KR_E_FORMAT, "it must be a non-zero multiple of 8 and at most 65536");
            continue;
        }
        kr_gguf g;
        kr_tensor_table table = {0};
        kr_err err;
        b->alignment = cases[i].alignment;
        builder_write(b, model_path());
        assert_int_equal(kr_gguf_open(model_path(), 0, &g, &table, &err), KR_OK);
        assert_int_equal((uint64_t)(table.entries[0].data - g.map.data) % cases[i].alignment, 0);
        kr_gguf_close(&g);
        kr_tensor_table_free(&table);
        free(b);
    }
}

static void bad_headers(void **state) /* L-09 */
{
    builder *b = builder_new();

    (void)state;
    b->key_count = 1ull << 32;
    refused_container(b, KR_E_FORMAT, "4294967296 metadata keys do not fit");
    b = builder_new();
    b->tensor_count = UINT64_MAX;
    refused_container(b, KR_E_FORMAT, "tensors do not fit the file");
    b = builder_new();
    builder_array(b, "a", KR_GGUF_STRING, 1ull << 60);
    refused_container(b, KR_E_FORMAT, "truncated");
    b = builder_new();
    builder_array(b, "a", KR_GGUF_U64, 1ull << 61); /* times 8 wraps to 0 */
    refused_container(b, KR_E_FORMAT, "truncated");
    b = builder_new();
    builder_array(b, "a", KR_GGUF_ARRAY, 1);
    refused_container(b, KR_E_FORMAT, "array of element type 9");
    b = builder_new();
    builder_key(b, "a", 77);
    refused_container(b, KR_E_FORMAT, "unknown value type 77");
    b = builder_new();
    builder_bool(b, "a", 2);
    refused_container(b, KR_E_FORMAT, "a bool with value 2");
    b = builder_new();
    builder_u32(b, "a", 1);
    builder_u32(b, "a", 2);
    refused_container(b, KR_E_FORMAT, "key a occurs twice");
    b = builder_new();
    b->version = 1;
    refused_container(b, KR_E_UNSUPPORTED, "GGUF version 1;");
    b = builder_new();
    b->version = 3u << 24;
    refused_container(b, KR_E_UNSUPPORTED, "a big-endian file");
}

static void bad_models(void **state)
{
    builder *b = sound_model(301);

    (void)state;
    refused_model(b, KR_E_FORMAT, "the tokenizer has 301 tokens, tensor token_embd.weight only 300 rows");
    b = builder_new();
    builder_text(b, "general.architecture", "mamba");
    refused_model(b, KR_E_UNSUPPORTED, "architecture \"mamba\" is not supported; supported are llama, qwen2");
    b = sound_model(300);
    builder_f32_tensor(b, "blk.0.attn_output.bias", 0, 64);
    refused_model(b, KR_E_UNSUPPORTED, "tensor blk.0.attn_output.bias is not part of a llama model");
    b = sound_model(300);
    builder_f32_tensor(b, "blk.0.ffn_down.weight", 64, 64);
    refused_model(b, KR_E_FORMAT, "tensor blk.0.ffn_down.weight occurs twice");
    b = builder_new();
    builder_llama_keys(b);
    builder_vocab(b, 300);
    builder_f32_tensor(b, "token_embd.weight", 300, 64);
    builder_f32_tensor(b, "output_norm.weight", 0, 32);
    refused_model(b, KR_E_FORMAT,
                  "tensor output_norm.weight has shape [32], the configuration asks for [1][64]");
    b = builder_new();
    builder_llama_keys(b);
    builder_vocab(b, 300);
    builder_f32_tensor(b, "token_embd.weight", 300, 64);
    refused_model(b, KR_E_NOT_FOUND, "no tensor output_norm.weight");
    b = builder_new();
    builder_text(b, "general.architecture", "llama");
    builder_f32(b, "llama.block_count", 2.0f);
    refused_model(b, KR_E_FORMAT, "key llama.block_count is f32, not an integer");
    b = builder_new();
    builder_text(b, "general.architecture", "llama");
    builder_u32(b, "llama.block_count", 257);
    refused_model(b, KR_E_FORMAT, "key llama.block_count is 257; 1 to 256 allowed");
    b = sound_model(300);
    builder_u32(b, "llama.expert_count", 8);
    refused_model(b, KR_E_UNSUPPORTED, "8 experts is not supported");
    b = sound_model(300);
    builder_text(b, "llama.rope.scaling.type", "yarn");
    refused_model(b, KR_E_UNSUPPORTED, "rope scaling \"yarn\" is not supported");
}

/* A model of the given tokenizer kind with three tokens, to be spoilt by the caller. */
static builder *three_tokens(const char *kind, const char *a, const char *c, const char *d)
{
    builder *b = builder_new();

    builder_llama_keys(b);
    builder_llama_tensors(b, 3);
    builder_text(b, "tokenizer.ggml.model", kind);
    builder_array(b, "tokenizer.ggml.tokens", KR_GGUF_STRING, 3);
    put_text(b->keys, &b->key_bytes, a);
    put_text(b->keys, &b->key_bytes, c);
    put_text(b->keys, &b->key_bytes, d);
    return b;
}

static void put_types(builder *b, uint32_t count, uint32_t type)
{
    builder_array(b, "tokenizer.ggml.token_type", KR_GGUF_I32, count);
    for (uint32_t i = 0; i < count; i++)
        put_u32(b->keys, &b->key_bytes, type);
}

static void put_scores(builder *b, uint32_t count, float score)
{
    builder_array(b, "tokenizer.ggml.scores", KR_GGUF_F32, count);
    for (uint32_t i = 0; i < count; i++)
        put_raw(b->keys, &b->key_bytes, &score, sizeof score);
}

static void bad_vocabularies(void **state) /* L-04, L-06, T-06 */
{
    builder *b = three_tokens("llama", "a", "b", "c");

    (void)state;
    builder_array(b, "tokenizer.ggml.scores", KR_GGUF_STRING, 3);
    for (int i = 0; i < 3; i++)
        put_text(b->keys, &b->key_bytes, "0");
    refused_model(b, KR_E_FORMAT, "key tokenizer.ggml.scores is an array of string, not an array of f32");
    b = three_tokens("llama", "a", "b", "c");
    put_types(b, 2, 1);
    refused_model(b, KR_E_FORMAT, "tokenizer.ggml.token_type has 2 entries, tokenizer.ggml.tokens has 3");
    b = three_tokens("llama", "a", "b", "c");
    put_scores(b, 4, 0.0f);
    refused_model(b, KR_E_FORMAT, "tokenizer.ggml.scores has 4 entries");
    b = three_tokens("llama", "a", "b", "c");
    put_scores(b, 3, (float)NAN);
    refused_model(b, KR_E_FORMAT, "the score of token 0 is not a number");
    b = three_tokens("llama", "a", "b", "c");
    put_types(b, 3, 7);
    refused_model(b, KR_E_FORMAT, "token 0 has type 7; 1 to 6 are defined");
    b = three_tokens("llama", "a", "b", "a");
    refused_model(b, KR_E_FORMAT, "tokens 0 and 2 are both spelt \"a\"");
    b = three_tokens("llama", "a", "b", "c"); /* this kind adds BOS unless told otherwise */
    put_scores(b, 3, 0.0f);
    refused_model(b, KR_E_FORMAT, "wants a BOS token but tokenizer.ggml.bos_token_id is missing");
    b = three_tokens("llama", "a", "b", "c");
    put_scores(b, 3, 0.0f);
    builder_u32(b, "tokenizer.ggml.bos_token_id", 3);
    refused_model(b, KR_E_FORMAT, "tokenizer.ggml.bos_token_id is 3; 0 to 2 allowed");
    b = three_tokens("llama", "<0x41>", "<0x-1>", "c");
    put_types(b, 3, 6);
    refused_model(b, KR_E_FORMAT, "byte token 1 is spelt \"<0x-1>\", not <0xHH>");
    b = three_tokens("llama", "a", "\xff", "c");
    refused_model(b, KR_E_FORMAT, "token 1 is not valid UTF-8");
    b = three_tokens("bert", "a", "b", "c");
    refused_model(b, KR_E_UNSUPPORTED, "tokenizer model \"bert\"; gpt2 and llama are supported");
    b = three_tokens("gpt2", "a", "b", "ab");
    builder_text(b, "tokenizer.ggml.pre", "made-up");
    refused_model(b, KR_E_UNSUPPORTED, "pre-tokenizer \"made-up\" is not supported; known are");
    b = three_tokens("gpt2", "a", "b", "c");
    builder_array(b, "tokenizer.ggml.merges", KR_GGUF_STRING, 1);
    put_text(b->keys, &b->key_bytes, "a b");
    refused_model(b, KR_E_FORMAT, "merge 0 joins \"a\" and \"b\", but not all three are tokens");
    b = three_tokens("gpt2", "a", "b", "ab");
    builder_array(b, "tokenizer.ggml.merges", KR_GGUF_STRING, 1);
    put_text(b->keys, &b->key_bytes, "ab");
    refused_model(b, KR_E_FORMAT, "merge 0 has no space");
}

/* Random damage to a sound file: whatever the reader says, it says it without a crash, and what it
 * accepts can be tokenized with. */
static void random_damage(void **state)
{
    kr_rng rng = test_rng("random_damage");
    builder *b = sound_model(300);
    size_t bytes, accepted = 0;
    uint8_t *data = builder_bytes(b, &bytes), *copy = malloc(bytes);
    const size_t head = 24 + b->key_bytes + b->tensor_bytes;

    (void)state;
    for (int round = 0; round < 800; round++) {
        kr_model_file *file = NULL;
        kr_err err;
        memcpy(copy, data, bytes);
        for (uint64_t n = 1 + kr_rng_below(&rng, 3); n > 0; n--)
            copy[kr_rng_below(&rng, head)] = (uint8_t)kr_rng_next(&rng);
        write_file(model_path(), copy, bytes);
        if (kr_model_file_open(model_path(), &file, &err) == KR_OK) {
            uint32_t ids[64];
            size_t count = 0;
            accepted++;
            kr_tokenize(kr_model_file_tokenizer(file), "t1 t22", 6, 3, ids, 64, &count, &err);
            kr_model_file_close(file);
        }
    }
    assert_true(accepted > 0 && accepted < 800);
    free(copy);
    free(data);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_models_open), cmocka_unit_test(every_truncation),
        cmocka_unit_test(bad_shapes),        cmocka_unit_test(bad_types_and_offsets),
        cmocka_unit_test(bad_alignment),     cmocka_unit_test(bad_headers),
        cmocka_unit_test(bad_models),        cmocka_unit_test(bad_vocabularies),
        cmocka_unit_test(random_damage),
    };
    return cmocka_run_group_tests(tests, temporary_make, temporary_remove);
}
