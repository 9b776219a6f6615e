/* The memory-pipeline paper's GPU-FPGA pair: one MI210 and one U55C against the MI210 alone.
 *
 * Its sparse-attention methods run on the simulator (placement indices-only), a token at a time: DeepSeek
 * Sparse Attention with the first layer of DeepSeek-V3.2 alone as in the paper, SeerAttention-R on Qwen3-8B,
 * LServe on Llama-3.1-8B. MemAgent (Qwen2.5-7B) is priced in closed form from the same descriptors. Of
 * retrieval-augmented generation and memory as context the paper leaves out every size that a model would
 * need; there its own figures are checked against each other.
 *
 * Energy: a device that works takes its TDP, one that waits its idle power. */
#ifndef KR_PLAN_PAIR_H
#define KR_PLAN_PAIR_H

#include "plan/reproduce.h"

enum { KR_PAIR_METHODS = 4, KR_PAIR_CONTEXTS = 5, KR_PAIR_BATCHES = 5 };

extern const char *const kr_pair_methods[KR_PAIR_METHODS];
extern const uint64_t kr_pair_contexts[KR_PAIR_CONTEXTS];
extern const uint32_t kr_pair_batches[KR_PAIR_BATCHES];

typedef enum {
    KR_PAIR_AS_TAKEN,
    KR_PAIR_GPU_KERNELS, /* the GPU's scan and selection take what App. C.1 says they took */
    KR_PAIR_FAST_UNSHARED,
    KR_PAIR_WEIGHTS_4_BIT,
    KR_PAIR_IDLE_MORE,
    KR_PAIR_ALL_OF_THEM,
    KR_PAIR_CHANGES
} kr_pair_change;

extern const struct kr_pair_text {
    const char *parameter, *here, *instead;
} kr_pair_texts[KR_PAIR_CHANGES];

/* A decode step of the GPU alone and of the pair. */
typedef struct {
    double gpu_s, pair_s;           /* whole step */
    double gpu_scan_s, pair_scan_s; /* score and selection in all layers */
    double link_s;                  /* both directions, all layers */
    double memory_share;            /* of the GPU's step: index, score, selection, append, attention */
    double gpu_j, pair_j;           /* of a token */
    bool falls_back;                /* by the paper's rule the request runs on the GPU alone */
} kr_pair_point;

/* Step and energy of a token of the system that falls back. */
static inline double kr_pair_step_s(const kr_pair_point *p) { return p->falls_back ? p->gpu_s : p->pair_s; }
static inline double kr_pair_token_j(const kr_pair_point *p) { return p->falls_back ? p->gpu_j : p->pair_j; }

typedef struct kr_pair_tables {
    kr_pair_point sparse[KR_PAIR_METHODS][KR_PAIR_CONTEXTS][KR_PAIR_BATCHES];
    double agent_speedup[KR_PAIR_BATCHES]; /* MemAgent, end to end */
    double agent_energy;                   /* at batch 1 */
    /* FLOPs a byte of sparse attention's steps, by method: prepare, relevancy, apply. */
    double intensity[KR_PAIR_METHODS][3];
} kr_pair_tables;

/* Runs everything under one change. tables may be NULL. KR_E_MEMORY, and what reading data returns. */
kr_status kr_pair_run(const kr_reproduce_options *options, kr_pair_change change,
                      kr_claim claims[KR_CLAIMS_MAX], uint32_t *count, kr_pair_tables *tables, kr_err *err);

/* Whether a request goes to the GPU alone: the paper's rules (6.2, 6.4). DeepSeek Sparse Attention and
 * LServe above a million tokens of context, MemAgent above two at once. */
bool kr_pair_falls_back(const char *method, uint64_t context_tokens, uint32_t batch);

#endif
