/* karat's lightning-indexer scan beside ggml's GGML_OP_LIGHTNING_INDEXER on the same values, one thread,
 * in turns in one process: 64 heads of 128, 8,192 tokens. ggml has no E4M3, so its keys are the same values
 * in F16 (twice the bytes; the scan is compute-bound). Scores must agree to 1e-4 of their size.
 *
 * Not part of the build, since it needs ggml; bench/peers/ggml_indexer.sh compiles and runs it. */
#include <ggml-cpu.h>
#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/num.h"
#include "base/rng.h"
#include "ops/variants.h"

enum { HEADS = 64, DIM = 128, TOKENS = 8192, TURNS = 41 };

static uint8_t query8[HEADS * DIM], key8[TOKENS * DIM];
static float weight[HEADS], scale[TOKENS], score[TOKENS];

static double now(void) { return (double)kr_now_ns(&kr_clock_system) * 1e-9; }

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *x)
{
    qsort(x, TURNS, sizeof *x, ascending);
    return x[TURNS / 2];
}

/* The peer's graph with the decoded values of query8 and key8. */
static struct ggml_cgraph *build(struct ggml_context *ctx, struct ggml_tensor **result)
{
    struct ggml_tensor *q = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, DIM, HEADS, 1, 1);
    struct ggml_tensor *k = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, DIM, 1, TOKENS, 1);
    struct ggml_tensor *w = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, HEADS, 1, 1, 1);
    struct ggml_tensor *m = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, TOKENS, 1, 1, 1);
    struct ggml_cgraph *graph = ggml_new_graph(ctx);

    for (int i = 0; i < HEADS * DIM; i++)
        ((float *)q->data)[i] = kr_f32_from_e4m3(query8[i]);
    for (int i = 0; i < TOKENS * DIM; i++)
        ((ggml_fp16_t *)k->data)[i] = ggml_fp32_to_fp16(kr_f32_from_e4m3(key8[i]));
    memcpy(w->data, weight, sizeof weight);
    memset(m->data, 0, ggml_nbytes(m));
    *result = ggml_lightning_indexer(ctx, q, k, w, m);
    ggml_build_forward_expand(graph, *result);
    return graph;
}

static void run_karat(kr_dsa_score_fn run)
{
    const uint8_t *keys = key8;
    const float *scales = scale;

    run(&(kr_dsa_score_args){query8, weight, &keys, &scales, TOKENS, HEADS, DIM, TOKENS, score});
}

/* Largest difference, in units of the largest score. */
static double difference(const float *peer)
{
    double worst = 0.0, largest = 0.0;

    for (int t = 0; t < TOKENS; t++) {
        worst = fmax(worst, fabs((double)score[t] - (double)peer[t]));
        largest = fmax(largest, fabs((double)peer[t]));
    }
    return worst / largest;
}

int main(void)
{
    kr_rng rng = kr_rng_make(1, 1);
    struct ggml_context *ctx = ggml_init((struct ggml_init_params){.mem_size = 64 << 20});
    struct ggml_tensor *result;
    double ours[TURNS], theirs[TURNS];
    int failed = 0;

    for (int i = 0; i < HEADS * DIM; i++)
        query8[i] = kr_e4m3_from_f32((float)(20.0 * kr_rng_normal(&rng)));
    for (int i = 0; i < TOKENS * DIM; i++)
        key8[i] = kr_e4m3_from_f32((float)(20.0 * kr_rng_normal(&rng)));
    for (int i = 0; i < HEADS; i++)
        weight[i] = (float)(0.01 * kr_rng_normal(&rng));
    for (int t = 0; t < TOKENS; t++)
        scale[t] = 1.0f;
    struct ggml_cgraph *graph = build(ctx, &result);

    for (int v = 0; kr_dsa_score_variants[v].run != NULL; v++) {
        const kr_variant *variant = &kr_dsa_score_variants[v].variant;

        if (!variant->usable() || strcmp(variant->name, "scalar") == 0)
            continue;
        for (int i = 0; i < TURNS; i++) {
            const double a = now();
            run_karat(kr_dsa_score_variants[v].run);
            const double b = now();
            ggml_graph_compute_with_ctx(ctx, graph, 1);
            ours[i] = b - a;
            theirs[i] = now() - b;
        }
        const double off = difference(result->data), us = median(ours), them = median(theirs);

        printf("%-11s %6.1f ns a token, ggml %6.1f ns: %.2f times as fast; scores differ by %.1e\n",
               variant->name, us / TOKENS * 1e9, them / TOKENS * 1e9, them / us, off);
        failed |= off > 1e-4;
    }
    ggml_free(ctx);
    return failed;
}
