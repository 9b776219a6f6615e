/* Folders of the families with indexers and experts: what config.json may say, that every tensor the
 * configuration asks for must be there and is named when it is not, and that damage is refused. */
#include <jansson.h>
#include <math.h>

#include "base/rng.h"
#include "files/model_file.h"
#include "tests/files/temporary.h"
#include "tests/test.h"

static void copy_folder(const char *name)
{
    char command[512];

    snprintf(command, sizeof command, "rm -rf %s/m && cp -r tests/fixtures/learned/%s %s/m", temporary_folder,
             name, temporary_folder);
    assert_int_equal(system(command), 0);
}

static void opens(kr_model_file **file)
{
    kr_err err = {0};

    if (kr_model_file_open(temporary_path("m"), file, &err) != KR_OK)
        fail_msg("%s", err.text);
}

static void refused(kr_status want, const char *text)
{
    kr_model_file *file = NULL;
    kr_err err = {0};
    const kr_status status = kr_model_file_open(temporary_path("m"), &file, &err);

    if (status != want || strstr(err.text, text) == NULL)
        fail_msg("want %s and \"%s\", got %s: %s", kr_status_name(want), text, kr_status_name(status),
                 err.text);
    assert_null(file);
}

/* value: JSON text; NULL removes the key. */
static void edit(const char *key, const char *value)
{
    const char *path = temporary_path("m/config.json");
    json_t *root = json_load_file(path, 0, NULL);

    assert_non_null(root);
    if (value != NULL)
        json_object_set_new(root, key, json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_del(root, key);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

static void descriptions(void **state)
{
    static const uint16_t owners[] = {0, 1, 2, 2, 2, 2, 6, 6};
    kr_model_file *file;
    (void)state;

    copy_folder("glm");
    opens(&file);
    const kr_model *m = kr_model_file_model(file);
    for (uint32_t l = 0; l < 8; l++) {
        assert_int_equal(m->layer[l].index_owner, owners[l]);
        assert_int_equal(m->layer[l].ffn, l == 0 ? KR_FFN_DENSE : KR_FFN_MOE);
    }
    assert_int_equal(m->index_rope.layout, KR_ROPE_INTERLEAVED);
    kr_model_file_close(file);
    /* Without the list, the frequency and the offset say the same. */
    edit("indexer_types", NULL);
    opens(&file);
    for (uint32_t l = 0; l < 8; l++)
        assert_int_equal(kr_model_file_model(file)->layer[l].index_owner, owners[l]);
    kr_model_file_close(file);

    copy_folder("deepseek");
    opens(&file);
    m = kr_model_file_model(file);
    assert_int_equal(m->index_rope.layout, KR_ROPE_HALF);
    assert_true(fabs(m->softmax_scale - 1.8738542 / sqrt(24)) < 1e-6); /* mscale of factor 40, squared */
    kr_model_file_close(file);
}

/* MiniMax-M3 as its release spells it: the language model inside, sparse_attention_config, frequencies. */
static void the_release_of_minimax(void **state)
{
    kr_model_file *file;
    (void)state;

    copy_folder("minimax");
    static const char *const gone[] = {"layer_types",        "mlp_layer_types",  "index_n_heads",
                                       "index_head_dim",     "index_block_size", "index_topk_blocks",
                                       "index_local_blocks", "rope_parameters"};
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++)
        edit(gone[i], NULL);
    edit("model_type", "\"minimax_m3\"");
    edit("hidden_act", "\"swigluoai\"");
    edit("rope_theta", "5000000");
    edit("moe_layer_freq", "[0,1,1,1]");
    edit("sparse_attention_config",
         "{\"sparse_num_index_heads\":2,\"sparse_index_dim\":16,\"sparse_block_size\":16,"
         "\"sparse_topk_blocks\":3,\"sparse_local_block\":1,\"sparse_init_block\":0,"
         "\"sparse_attention_freq\":[0,1,1,1]}");
    json_t *text = json_load_file(temporary_path("m/config.json"), 0, NULL);
    json_t *whole = json_pack("{s:s, s:o}", "model_type", "minimax_m3_vl", "text_config", text);
    assert_int_equal(json_dump_file(whole, temporary_path("m/config.json"), 0), 0);
    json_decref(whole);
    opens(&file);
    const kr_model *m = kr_model_file_model(file);
    assert_int_equal(m->family, KR_FAMILY_MINIMAX_M3);
    assert_false(m->layer[0].indexed);
    assert_true(m->layer[1].indexed);
    assert_int_equal(m->layer[0].ffn, KR_FFN_DENSE);
    assert_int_equal(m->layer[3].ffn, KR_FFN_MOE);
    assert_int_equal(m->index_topk, 3);
    assert_int_equal(m->rope[0].dims, 8);
    kr_model_file_close(file);
}

static void configurations(void **state)
{
    static const struct {
        const char *folder, *key, *value;
        kr_status status;
        const char *text;
    } cases[] = {
        {"deepseek", "kv_lora_rank", NULL, KR_E_FORMAT, "\"kv_lora_rank\" is missing"},
        {"deepseek", "kv_lora_rank", "24", KR_E_FORMAT, "kv_a_proj_with_mqa.weight has shape"},
        {"deepseek", "index_head_dim", "24", KR_E_UNSUPPORTED, "index_head_dim 24 is not a power of two"},
        {"deepseek", "n_routed_experts", "9", KR_E_FORMAT, "9 experts"},
        {"deepseek", "num_experts_per_tok", "5", KR_E_FORMAT,
         "5 active of 8 experts do not fit 2 of 4 groups"},
        {"deepseek", "scoring_func", "\"softmax\"", KR_E_UNSUPPORTED, "\"scoring_func\" softmax"},
        {"deepseek", "norm_topk_prob", "false", KR_E_UNSUPPORTED, "\"norm_topk_prob\""},
        {"deepseek", "norm_topk_prob", "0", KR_E_FORMAT, "norm_topk_prob"}, /* of another type: not ignored */
        {"deepseek", "mlp_layer_types", "[\"dense\"]", KR_E_FORMAT, "mlp_layer_types has 1 entries"},
        {"deepseek", "mlp_layer_types", "[\"dense\",\"dense\",\"sparse\"]", KR_E_NOT_FOUND,
         "no tensor model.layers.1.mlp.gate_proj.weight"},
        {"glm", "indexer_types", "[\"full\",\"odd\"]", KR_E_FORMAT, "indexer_types has 2 entries"},
        {"glm", "indexer_types",
         "[\"full\",\"full\",\"full\",\"full\",\"shared\",\"shared\",\"full\",\"shared\"]", KR_E_NOT_FOUND,
         "no tensor model.layers.3.self_attn.indexer.wq_b.weight"},
        {"glm", "indexer_types",
         "[\"shared\",\"full\",\"full\",\"shared\",\"shared\",\"shared\",\"full\",\"shared\"]", KR_E_FORMAT,
         "layer 0 shares an index, but no earlier layer owns one"},
        {"minimax", "index_local_blocks", "2", KR_E_UNSUPPORTED, "2 local and 0 initial blocks"},
        {"minimax", "swiglu_limit", "5.0", KR_E_UNSUPPORTED, "alpha 1.702 and limit 5"},
        {"minimax", "layer_types", "[\"full_attention\",\"lightning\",\"x\",\"y\"]", KR_E_UNSUPPORTED,
         "layer_types[1] is \"lightning\""},
        {"minimax", "index_n_heads", "4", KR_E_FORMAT, "index_heads"},
        {"seer", "seerattn_q_head_pooling_type", "\"Qavgproj\"", KR_E_UNSUPPORTED, "gates with Qavgproj"},
        {"seer", "seerattn_gate_block_size", "0", KR_E_FORMAT, "seerattn_gate_block_size"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        copy_folder(cases[i].folder);
        edit(cases[i].key, cases[i].value);
        refused(cases[i].status, cases[i].text);
    }
}

/* The tensor is there under another name of the same length. */
static void rename_tensor(const char *name, const char *other)
{
    const char *path = temporary_path("m/model.safetensors");
    static char bytes[1 << 20];
    FILE *f = fopen(path, "rb");

    assert_non_null(f);
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    char *at = memmem(bytes, n, name, strlen(name));
    assert_non_null(at);
    memcpy(at, other, strlen(name));
    write_file(path, bytes, n);
}

static void missing_tensors_are_named(void **state)
{
    static const struct {
        const char *folder, *tensor, *other;
    } cases[] = {
        {"deepseek", "model.layers.1.self_attn.kv_b_proj.weight",
         "model.layers.1.self_attn.kv_x_proj.weight"},
        {"deepseek", "model.layers.2.self_attn.indexer.weights_proj.weight",
         "model.layers.2.self_attn.indexer.weights_xxxx.weight"},
        {"deepseek", "model.layers.1.mlp.experts.7.up_proj.weight",
         "model.layers.1.mlp.experts.7.xx_proj.weight"},
        {"glm", "model.layers.6.self_attn.indexer.k_norm.bias",
         "model.layers.6.self_attn.indexer.k_norm.bxxx"},
        {"minimax", "language_model.model.layers.2.self_attn.index_k_norm.weight",
         "language_model.model.layers.2.self_attn.index_x_norm.weight"},
        {"minimax", "language_model.model.layers.3.block_sparse_moe.experts.5.w2.weight",
         "language_model.model.layers.3.block_sparse_moe.experts.5.w9.weight"},
    };
    char text[160];
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        copy_folder(cases[i].folder);
        rename_tensor(cases[i].tensor, cases[i].other);
        snprintf(text, sizeof text, "no tensor %s ", cases[i].tensor);
        refused(KR_E_NOT_FOUND, text);
    }
}

/* What predicts several tokens at once lies behind the last layer, and is passed over. */
static void layers_behind_the_last_are_passed_over(void **state)
{
    kr_model_file *file;
    (void)state;

    copy_folder("glm");
    edit("num_hidden_layers", "6");
    opens(&file);
    assert_int_equal(kr_model_file_model(file)->layers, 6);
    kr_model_file_close(file);
}

/* Any number in config.json changed at random: opened or refused with a line, never worse. */
static void random_configurations(void **state)
{
    static const char *const folders[] = {"deepseek", "glm", "minimax", "seer"};
    kr_rng rng = test_rng("random configurations");
    (void)state;

    for (uint32_t round = 0; round < 120; round++) {
        copy_folder(folders[round % 4]);
        json_t *root = json_load_file(temporary_path("m/config.json"), 0, NULL);
        const uint64_t chosen = kr_rng_below(&rng, json_object_size(root));
        char key[64] = "", value[32];
        const char *name;
        json_t *item;
        uint64_t at = 0;
        json_object_foreach(root, name, item) if (at++ == chosen) snprintf(key, sizeof key, "%s", name);
        snprintf(value, sizeof value, "%lld",
                 (long long)kr_rng_below(&rng, 1ull << kr_rng_below(&rng, 34)) - 1);
        json_decref(root);
        edit(key, value);
        kr_model_file *file = NULL;
        kr_err err = {0};
        if (kr_model_file_open(temporary_path("m"), &file, &err) == KR_OK)
            kr_model_file_close(file);
        else
            assert_true(err.text[0] != '\0' && strchr(err.text, '\n') == NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptions),
        cmocka_unit_test(the_release_of_minimax),
        cmocka_unit_test(configurations),
        cmocka_unit_test(missing_tensors_are_named),
        cmocka_unit_test(layers_behind_the_last_are_passed_over),
        cmocka_unit_test(random_configurations),
    };
    return cmocka_run_group_tests(tests, temporary_make, temporary_remove);
}
