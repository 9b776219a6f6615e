/* One row a method. */
#include "eval/eval_methods.h"

#include <string.h>

#include "method/outside.h"
#include "method/quest.h"
#include "method/trained.h"

/* RetroInfer takes shares of the clusters, in thousandths; estimation keeps its 232 while there is room. */
static void share_of_clusters(kr_method_config *config, uint32_t budget, uint64_t context,
                              const kr_model *model)
{
    (void)model;
    enum { WHOLE = 1000, ESTIMATION = 232 };
    const uint64_t retrieval = budget * (uint64_t)WHOLE / context;
    config->parameter[3] = retrieval < 1 ? 1 : retrieval < WHOLE - 1 ? (uint32_t)retrieval : WHOLE - 1;
    config->parameter[4] = WHOLE - config->parameter[3] < ESTIMATION ? WHOLE - config->parameter[3]
                                                                     : ESTIMATION;
}

/* 32 channels, or half of a narrow head. */
static void half_of_narrow_heads(kr_method_config *config, uint32_t budget, uint64_t context,
                                 const kr_model *model)
{
    enum { RANK = 32 };
    (void)context;
    config->budget = budget;
    config->parameter[0] = model->head_dim < 2 * RANK ? model->head_dim / 2 : RANK;
}

/* Published chunks are for contexts of millions: here four chunks make the budget. */
static void four_chunks(kr_method_config *config, uint32_t budget, uint64_t context, const kr_model *model)
{
    (void)context;
    (void)model;
    config->budget = budget;
    config->unit = budget / 4;
}

/* Sparse from the first token, with a local window that leaves something to select. */
static void short_window(kr_method_config *config, uint32_t budget, uint64_t context, const kr_model *model)
{
    (void)context;
    (void)model;
    config->budget = budget;
    config->parameter[2] = 256;
    config->parameter[3] = 1;
}

const kr_eval_method kr_eval_methods[] = {
    {.name = "dense", .training_free = true},
    {.name = "quest",
     .training_free = true,
     .has_budget = true,
     .note = "quest: the evaluation's rule, where the newest page competes like any other; quest-kernel: the "
             "kernels' rule, which always takes it."},
    {.name = "quest-kernel",
     .variant = "quest",
     .mode = KR_QUEST_KERNEL,
     .training_free = true,
     .has_budget = true},
    {.name = "sparq",
     .training_free = true,
     .has_budget = true,
     .apply = half_of_narrow_heads,
     .note = "sparq: recall is of its exact tokens; the mean value stands in for the rest of the mass, which "
             "only "
             "the output error shows."},
    {.name = "starc", .training_free = true, .has_budget = true},
    {.name = "retroinfer",
     .training_free = true,
     .has_budget = true,
     .apply = share_of_clusters,
     .note =
         "retroinfer: the budget sets the share of clusters that are attended exactly (budget / context); "
         "its 68 "
         "steady tokens and those not indexed come on top, and recall is of exact tokens only: the estimated "
         "clusters show in the output error. Contexts below 1,092 tokens are dense."},
    {.name = "magicpig",
     .training_free = true,
     .note = "magicpig: it samples (K 10, L 150) and has no budget; recall is of the sampled tokens, whose "
             "weights "
             "correct for the rest."},
    {.name = "lserve", .training_free = true, .has_budget = true},
    {.name = "snapkv",
     .training_free = true,
     .has_budget = true,
     .note = "snapkv: what is kept is chosen at the end of the document, before the continuation or the "
             "question is "
             "seen; generated tokens are kept on top of the budget."},
    {.name = "h2o", .training_free = true, .has_budget = true},
    {.name = "streamingllm",
     .training_free = true,
     .has_budget = true,
     .note = "streamingllm: keys keep their positions, and the prompt is prefilled densely like everyone's."},
    {.name = "moba",
     .has_budget = true,
     .apply = four_chunks,
     .note = "moba: made for models trained with it; chunks of a quarter of the budget."},
    {.name = "infllm2",
     .has_budget = true,
     .apply = short_window,
     .note = "infllm2: made for models trained with it; local window 256, on top of the budget."},
    {.name = "seer", .has_budget = true},
    {.name = "seer-threshold",
     .variant = "seer",
     .mode = KR_SEER_THRESHOLD,
     .note = "seer-threshold: blocks whose share of the gate's softmax is over 0.004; no budget."},
    {.name = "dsa", .has_budget = true, .note = "dsa: the model's own selection, in the prompt too."},
    {.name = "msa",
     .has_budget = true,
     .note = "msa: the model's own selection, in the prompt too; the budget is whole blocks."},
};

const uint32_t kr_eval_method_count = sizeof kr_eval_methods / sizeof kr_eval_methods[0];

kr_status kr_eval_method_find(const char *name, kr_eval_method *outside, const kr_eval_method **method,
                              kr_err *err)
{
    const kr_method *known;
    for (uint32_t i = 0; i < kr_eval_method_count; i++)
        if (strcmp(kr_eval_methods[i].name, name) == 0) {
            *method = &kr_eval_methods[i];
            return KR_OK;
        }
    const kr_status status = kr_method_open(name, &known, err);
    if (status != KR_OK)
        return status;
    if (!kr_method_is_file(name))
        return kr_fail(err, KR_E_UNSUPPORTED, "eval knows no budget for method %s", name);
    *outside = (kr_eval_method){.name = known->name, .training_free = true, .has_budget = true};
    *method = outside;
    return KR_OK;
}

bool kr_eval_method_is_default(const kr_eval_method *method, const kr_model *model)
{
    if (method->training_free)
        return model->attention == KR_ATTENTION_GQA;
    if (strcmp(method->name, "dsa") == 0)
        return model->indexer == KR_INDEXER_DSA;
    if (strcmp(method->name, "msa") == 0)
        return model->indexer == KR_INDEXER_BLOCK;
    return strncmp(method->name, "seer", 4) == 0 && model->gates.dim != 0;
}

kr_method_config kr_eval_method_config(const kr_eval_method *method, uint32_t budget, uint64_t context,
                                       const kr_model *model)
{
    kr_method_config config = {0};
    const char *name = method->variant != NULL ? method->variant : method->name;
    memcpy(config.name, name, strlen(name));
    config.mode = method->mode;
    if (method->apply != NULL)
        method->apply(&config, budget, context, model);
    else if (method->has_budget)
        config.budget = budget;
    return config;
}
