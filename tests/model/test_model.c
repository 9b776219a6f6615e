/* The descriptors of data/models give the published sizes to the digit, and kr_model_check refuses
 * each broken rule by name. Numbers: the KARAT paper's Table II, parameter counts of the released
 * checkpoints (GLM-5.2's from its safetensors headers), config files of the models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/model.h"

static kr_model load(const char *name)
{
    kr_model model;
    kr_err err;
    char path[128];

    snprintf(path, sizeof path, "data/models/%s.json", name);
    if (kr_model_load(path, &model, &err) != KR_OK)
        fail_msg("%s", err.text);
    return model;
}

static void published_sizes(void **state)
{
    static const struct {
        const char *name;
        uint64_t parameters, kv_token_bytes, index_token_bytes, index_exact;
        uint32_t index_layers;
    } want[] = {
        {"deepseek-v3.2", 671877929216, 70272, 7808, 8052, 61},
        {"glm-5.2", 743377000704, 89856, 2688, 2772, 21},
        {"glm-5", 0, 89856, 9984, 10296, 78},
        {"minimax-m3", 426174565632, 122880, 14592, 14592, 57},
        {"llama-3-70b", 70553706496, 327680, 0, 0, 0},
        {"llama-3.3-70b", 70553706496, 327680, 0, 0, 0},
        {"smollm2-135m", 134515008, 23040, 0, 0, 0},
        {"qwen2.5-0.5b", 494032768, 12288, 0, 0, 0},
        {"qwen3-0.6b", 596049920, 114688, 0, 0, 0},
        {"gemma-3-270m", 268098176, 18432, 0, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const kr_model m = load(want[i].name);
        const kr_parameters p = kr_model_parameters(&m);

        print_message("%s\n", want[i].name);
        if (want[i].parameters != 0)
            assert_int_equal(kr_parameters_total(&p), want[i].parameters);
        assert_int_equal(kr_model_kv_token_bytes(&m), want[i].kv_token_bytes);
        assert_int_equal(kr_model_index_token_bytes(&m, false), want[i].index_token_bytes);
        assert_int_equal(kr_model_index_token_bytes(&m, true), want[i].index_exact);
        assert_int_equal(kr_model_index_layers(&m), want[i].index_layers);
    }
}

static void parameters_by_class(void **state)
{
    const kr_model ds = load("deepseek-v3.2"), glm = load("glm-5.2"), m3 = load("minimax-m3");
    const kr_parameters a = kr_model_parameters(&ds), b = kr_model_parameters(&glm);
    const kr_parameters c = kr_model_parameters(&m3);

    (void)state;
    assert_int_equal(a.attention, 61 * 187105280ull);
    assert_int_equal(a.indexer + a.index_head_weights, 61 * 13959168ull);
    assert_int_equal(a.experts, 58 * 11274289152ull);
    assert_int_equal(a.shared_experts, 58 * 44040192ull);
    assert_int_equal(a.router, 58 * 1835008ull);
    assert_int_equal(a.dense_ffn, 3 * 396361728ull);
    assert_int_equal(b.attention, 78 * 165019648ull);
    assert_int_equal(b.indexer + b.index_head_weights, 21 * 9371648ull);
    assert_int_equal(b.experts, 75 * 9663676416ull);
    assert_int_equal(c.attention, 60 * 106954752ull);
    assert_int_equal(c.indexer, 57 * 3932160ull);
    assert_int_equal(c.experts, 57 * 7247757312ull);
    assert_int_equal(c.head, 1229193216);
}

static void index_sharing(void **state)
{
    const kr_model m = load("glm-5.2");

    (void)state;
    for (uint32_t l = 0; l < m.layers; l++) {
        const uint32_t shifted = l >= 2 ? l - 2 : 0;

        assert_true(m.layer[l].indexed);
        assert_int_equal(m.layer[l].index_owner, l < 2 ? l : l - shifted % 4);
    }
}

static void windows_and_groups(void **state)
{
    const kr_model m = load("gemma-3-270m"), one = load("smollm2-135m");
    uint8_t group_of[KR_LAYERS_MAX];

    (void)state;
    assert_int_equal(kr_model_layer_groups(&m, group_of), 2);
    for (uint32_t l = 0; l < m.layers; l++) {
        const bool global = l == 5 || l == 11 || l == 17;

        assert_int_equal(m.layer[l].window, global ? 0 : 512);
        assert_int_equal(m.layer[l].rope, global ? 0 : 1);
        assert_int_equal(group_of[l], global ? 0 : 1);
    }
    assert_int_equal(kr_model_layer_groups(&one, group_of), 1);
}

#define BROKEN(base, change, words)                                  \
    do {                                                             \
        kr_model m = load(base);                                     \
        kr_err err = {0};                                            \
        assert_int_equal(kr_model_check(&m, &err), KR_OK);           \
        change;                                                      \
        assert_int_equal(kr_model_check(&m, &err), KR_E_FORMAT);     \
        if (strstr(err.text, words) == NULL)                         \
            fail_msg("\"%s\" does not say \"%s\"", err.text, words); \
    } while (0)

static void broken_rules_are_refused(void **state)
{
    (void)state;
    BROKEN("smollm2-135m", m.layers = 257, "layers is 257");
    BROKEN("smollm2-135m", m.layers = 0, "layers is 0");
    BROKEN("smollm2-135m", m.kv_heads = 2, "do not divide");
    BROKEN("smollm2-135m", m.rope[0].dims = 63, "even");
    BROKEN("smollm2-135m", m.rope[0].first = 2, "inside");
    BROKEN("smollm2-135m", m.softmax_scale = 0.0, "softmax_scale");
    BROKEN("smollm2-135m", m.kv_dtype = KR_E4M3, "KV type");
    BROKEN("smollm2-135m", m.layer[3].indexed = true, "no indexer");
    BROKEN("smollm2-135m", m.ffn_width = 0, "ffn_width");
    BROKEN("llama-3.3-70b", m.rope[0].high_freq = 1.0, "high_freq");
    BROKEN("deepseek-v3.2", m.head_dim = 191, "nope + rope");
    BROKEN("deepseek-v3.2", m.moe.active = 257, "active");
    BROKEN("deepseek-v3.2", m.moe.groups_kept = 0, "groups kept");
    BROKEN("deepseek-v3.2", m.moe.active = 129, "do not fit");
    BROKEN("deepseek-v3.2", m.attention = KR_ATTENTION_GQA, "latent query");
    BROKEN("minimax-m3", m.index_heads = 8, "one per KV head");
    BROKEN("gemma-3-270m", m.layer[0].window = 256, "one window");
    /* An index may be shared only with an earlier layer that owns one. */
    BROKEN("glm-5.2", m.layer[2].index_owner = 1, "must be earlier");
    BROKEN("glm-5.2", m.layer[0].index_owner = 1, "must be earlier");
    BROKEN("glm-5.2", m.layer[4].index_owner = 3, "must be earlier");
    BROKEN("glm-5.2", m.layer[2].indexed = false, "must be earlier");
}

/* Writes text to a temporary file and expects the loader to refuse it, naming words. */
static void refused(const char *text, const char *words)
{
    char path[] = "/tmp/karat-model-XXXXXX";
    const int fd = mkstemp(path);
    kr_model untouched, model;
    kr_err err = {0};

    memset(&model, 0x5a, sizeof model);
    memcpy(&untouched, &model, sizeof model);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    assert_int_not_equal(kr_model_load(path, &model, &err), KR_OK);
    unlink(path);
    assert_memory_equal(&model, &untouched, sizeof model);
    if (strstr(err.text, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

#define BASE                                                                                  \
    "\"karat_model\":1,\"name\":\"x\",\"source\":\"s\",\"family\":\"llama\",\"layers\":4,"    \
    "\"hidden\":64,\"vocab\":100,\"context\":128,\"heads\":4,\"kv_heads\":2,\"head_dim\":16," \
    "\"ffn_width\":128,\"activation\":\"silu\",\"norm_eps\":1e-5,"                            \
    "\"rope\":{\"theta\":1e4,\"dims\":16,\"layout\":\"half\"}"

static void broken_files_are_refused(void **state)
{
    (void)state;
    refused("[]", "object");
    refused("{" BASE ",\"colour\":1}", "colour");
    refused("{" BASE ",\"kv_dtype\":\"f8\"}", "kv_dtype");
    refused("{" BASE ",\"window\":{\"tokens\":16}}", "global_every");
    refused("{" BASE ",\"mla\":5}", "mla");
    refused("{" BASE ",\"indexer\":{\"kind\":\"block\",\"heads\":2,\"dim\":8,\"topk\":2,\"block\":16,"
            "\"dtype\":\"bf16\",\"layers\":[2,1]}}",
            "layers[1]");
    refused("{" BASE ",\"indexer\":{\"kind\":\"block\",\"heads\":2,\"dim\":8,\"topk\":2,\"block\":16,"
            "\"dtype\":\"bf16\",\"layers\":[4]}}",
            "layers[0]");
    refused("{" BASE ",\"indexer\":{\"kind\":\"block\",\"heads\":2,\"dim\":8,\"topk\":2,\"block\":16,"
            "\"dtype\":\"bf16\",\"layers\":[1],\"shared_from\":0}}",
            "no earlier layer");
    refused("{" BASE ",\"moe\":{\"experts\":8,\"active\":9,\"shared\":0,\"width\":8,\"first_layer\":1}}",
            "active");
    refused("{\"karat_model\":2}", "karat_model");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_sizes),
        cmocka_unit_test(parameters_by_class),
        cmocka_unit_test(index_sharing),
        cmocka_unit_test(windows_and_groups),
        cmocka_unit_test(broken_rules_are_refused),
        cmocka_unit_test(broken_files_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
