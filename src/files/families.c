/* What a family fixes that no file says. */
#include <stdio.h>
#include <string.h>

#include "files/model_file_impl.h"
#include "files/utf8.h"

static const struct {
    const char *gguf, *folder; /* general.architecture; config.json's model_type; NULL: not in this form */
    kr_family family;
} known[] = {
    {"llama", "llama", KR_FAMILY_LLAMA},
    {"qwen2", "qwen2", KR_FAMILY_QWEN2},
    {"qwen3", "qwen3", KR_FAMILY_QWEN3},
    {"gemma3", "gemma3_text", KR_FAMILY_GEMMA3},
    {NULL, "gemma3", KR_FAMILY_GEMMA3},
    {NULL, "deepseek_v32", KR_FAMILY_DEEPSEEK_V32},
    {NULL, "glm_moe_dsa", KR_FAMILY_GLM_DSA},
    {NULL, "minimax_m3", KR_FAMILY_MINIMAX_M3},
    {NULL, "minimax_m3_vl_text", KR_FAMILY_MINIMAX_M3},
    {NULL, "minimax_m3_vl", KR_FAMILY_MINIMAX_M3},
};

kr_status kr_family_of(const char *path, kr_file_form form, kr_bytes name, kr_family *family, kr_err *err)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const char *text = form == KR_FORM_GGUF ? known[i].gguf : known[i].folder;
        if (text != NULL && kr_bytes_equal(name, kr_bytes_of(text))) {
            *family = known[i].family;
            return KR_OK;
        }
    }
    return kr_fail(err, KR_E_UNSUPPORTED,
                   "%s: architecture \"%.*s\" is not supported; supported are llama, qwen2, qwen3, gemma3%s",
                   path, (int)(name.bytes > 60 ? 60 : name.bytes), name.text,
                   form == KR_FORM_GGUF ? "" : ", deepseek_v32, glm_moe_dsa, minimax_m3");
}

void kr_model_set_name(kr_model *model, kr_bytes name)
{
    const size_t room = sizeof model->name - 1;
    const size_t bytes = kr_utf8_invalid(name.text, name.bytes < room ? name.bytes : room);

    snprintf(model->name, sizeof model->name, "%.*s", (int)bytes, bytes ? name.text : "");
}

void kr_model_start(kr_model *model, kr_family family, uint32_t layers)
{
    const bool gemma = family == KR_FAMILY_GEMMA3;

    memset(model, 0, sizeof *model);
    model->family = family;
    model->layers = layers;
    model->attention = family == KR_FAMILY_DEEPSEEK_V32 || family == KR_FAMILY_GLM_DSA ? KR_ATTENTION_MLA
                                                                                       : KR_ATTENTION_GQA;
    model->indexer = KR_INDEXER_NONE;
    model->activation = gemma                            ? KR_ACT_GELU_TANH
                        : family == KR_FAMILY_MINIMAX_M3 ? KR_ACT_SWIGLU_OAI
                                                         : KR_ACT_SILU;
    model->qkv_bias = family == KR_FAMILY_QWEN2;
    model->qk_norm = gemma || family == KR_FAMILY_QWEN3 || family == KR_FAMILY_MINIMAX_M3;
    model->sandwich_norm = gemma;
    model->kv_dtype = KR_BF16;
    model->index_dtype = KR_BF16;
    for (uint32_t l = 0; l < layers; l++)
        model->layer[l] = (kr_layer){.ffn = KR_FFN_DENSE, .index_owner = (uint16_t)l};
}
