/* karat eval: what the retrieval methods keep of dense attention on a real model, beside their speed.
 *
 * For each context some passages of a text and some prompts with a planted passkey are prefilled densely,
 * once; every method and budget then decodes over exactly these keys and values (eval_tap.h). So a
 * difference to dense comes from decode alone, also for methods that would prefill sparsely.
 *  - A passage goes on for `tokens` forced decode steps: perplexity of their targets, time of a step.
 *  - On `samples` of these steps, in layers that select: dense softmax mass of the selected tokens
 *    (recall), relative L2 error of the attention output, tokens selected, per layer and head.
 *  - The passkey's question and the answer are decode steps too. Only prompts that dense answers count.
 * All figures but times are the same at any number of threads. */
#ifndef KR_EVAL_EVAL_H
#define KR_EVAL_EVAL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/status.h"
#include "eval/eval_tap.h"

enum { KR_EVAL_METHODS_MAX = 16, KR_EVAL_LIST_MAX = 16, KR_EVAL_NEEDLES_MAX = 32 };

typedef struct {
    const char *model_path, *text_path;
    const char *methods[KR_EVAL_METHODS_MAX]; /* "dense" is always there; method_count 0: the model's own
                                                 and the training-free */
    uint32_t method_count;
    uint32_t budgets[KR_EVAL_LIST_MAX];
    uint32_t budget_count;
    uint64_t contexts[KR_EVAL_LIST_MAX]; /* rounded down to whole pages of 128 tokens */
    uint32_t context_count;
    uint32_t passages;     /* of the text, that share no token; figures are means over them */
    uint64_t tokens;       /* scored in each passage */
    uint32_t samples;      /* <= tokens, in each passage */
    uint32_t dense_layers; /* first layers that stay dense; UINT32_MAX = each method's default */
    uint32_t needles;      /* prompts with a passkey for each context */
    uint32_t threads, chunk;
    kr_dtype kv_dtype;
    const kr_clock *clock;
} kr_eval_options;

/* One method, budget and context. */
typedef struct {
    const char *method;
    uint64_t context;
    uint32_t budget; /* 0: dense, or the method has none */
    /* Means over samples, layers that select, and heads; over all layers for dense. */
    kr_eval_head attention;
    kr_eval_sums sums; /* steps counted; sums as means: [layers][heads] */
    bool *selects;     /* [layers] */
    double nll, perplexity;
    /* To dense, nats: mean, sum of squares, standard error of the mean over tokens. */
    double nll_difference, nll_difference_square, nll_difference_error;
    double step_ms; /* median decode step that was not sampled; with one thread its running time */
    uint32_t needles_found, needles_judged;
} kr_eval_row;

typedef struct {
    kr_eval_options options;
    char model[96];
    uint32_t layers, heads;
    kr_eval_row *row; /* [rows], by context, then method, then budget; dense first */
    uint32_t rows;
} kr_eval_result;

/* Minutes to hours; progress goes to base/log. Refuses before anything runs: unknown methods, budgets a
 * method cannot have, learned methods without their tensors (naming one), contexts over the model's,
 * texts that are too short. On success the caller frees. */
kr_status kr_eval_run(const kr_eval_options *options, kr_eval_result *result, kr_err *err);
void kr_eval_free(kr_eval_result *result);

/* ---- eval_report.c ---- */

kr_status kr_eval_print(const kr_eval_result *result, FILE *out, kr_err *err);
kr_status kr_eval_json(const kr_eval_result *result, json_t **root, kr_err *err);
/* One self-contained page: curves and the table. command: how it was made, or NULL. */
kr_status kr_eval_html(const kr_eval_result *result, const char *command, FILE *out, kr_err *err);

#endif
