/* What a model asks for, as data: layers, heads, indexer, experts, and the sizes derived from
 * them. Filled from a model file (files/) or from a JSON descriptor (data/models, schema in
 * data/schema/model.schema.json). Holds no weights and no behaviour.
 *
 * Invariant: kr_model_check has returned KR_OK before anything else reads a kr_model. */
#ifndef KR_MODEL_MODEL_H
#define KR_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/num.h"
#include "base/status.h"

enum {
    KR_LAYERS_MAX = 256,
    KR_HEADS_MAX = 512,
    KR_HEAD_DIM_MAX = 1024,
    KR_HIDDEN_MAX = 65536,
    KR_VOCAB_MAX = 1 << 22,
    KR_EXPERTS_MAX = 1024,
    KR_CONTEXT_MAX = 1 << 28,
    KR_PAGE_TOKENS = 128 /* tokens of one page; method units of 16, 64, 128 lie inside it */
};

/* Families whose decode math is told apart by code (files/ and engine/ know no other names). */
typedef enum {
    KR_FAMILY_LLAMA,
    KR_FAMILY_QWEN2,
    KR_FAMILY_QWEN3,
    KR_FAMILY_GEMMA3,
    KR_FAMILY_DEEPSEEK_V32,
    KR_FAMILY_GLM_DSA,
    KR_FAMILY_MINIMAX_M3,
} kr_family;

enum { KR_FAMILY_COUNT = 7 };

/* Rotary embedding of one kind of layer. Angles: position * inv_freq[i], i in [0, dims/2). */
typedef enum { KR_ROPE_HALF, KR_ROPE_INTERLEAVED } kr_rope_layout; /* (i, i+d/2) or (2i, 2i+1) */
typedef enum {
    KR_ROPE_PLAIN,
    KR_ROPE_LINEAR, /* frequencies divided by factor */
    KR_ROPE_LLAMA3, /* Llama 3.1's piecewise scaling */
    KR_ROPE_YARN,
} kr_rope_scaling;

typedef struct {
    kr_rope_layout layout;
    kr_rope_scaling scaling;
    uint32_t dims;  /* rotated dimensions of a head, even; 0 = no rope */
    uint32_t first; /* first rotated dimension inside the head */
    double theta;
    double factor;               /* linear, llama3, yarn */
    double low_freq, high_freq;  /* llama3: low_freq_factor, high_freq_factor */
    double beta_fast, beta_slow; /* yarn */
    double mscale, mscale_all_dim;
    uint32_t original_context; /* llama3, yarn: tokens */
} kr_rope;

typedef enum { KR_ATTENTION_GQA, KR_ATTENTION_MLA } kr_attention;
typedef enum {
    KR_INDEXER_NONE,
    KR_INDEXER_DSA,   /* token scores: weighted ReLU sum over index heads, FP8 keys */
    KR_INDEXER_BLOCK, /* block scores per KV head, BF16 keys (MiniMax-M3) */
} kr_indexer;
typedef enum { KR_FFN_DENSE, KR_FFN_MOE } kr_ffn;
typedef enum {
    KR_ACT_SILU,      /* SwiGLU */
    KR_ACT_GELU_TANH, /* GeGLU, Gemma */
    KR_ACT_SWIGLU_OAI /* MiniMax-M3: clamp 7, alpha 1.702, +1 on up */
} kr_activation;

typedef struct {
    uint32_t window;      /* attended tokens, own token included; 0 = whole context */
    uint8_t rope;         /* index into kr_model.rope */
    uint8_t ffn;          /* kr_ffn */
    bool indexed;         /* selection by the model's own indexer */
    uint16_t index_owner; /* layer whose index (keys and selection) is used; own number = full */
} kr_layer;

typedef struct {
    uint32_t experts, active, shared; /* routed, chosen per token, always-on */
    uint32_t width, shared_width;     /* FFN width of one routed / one shared expert */
    uint32_t groups, groups_kept;     /* group-limited routing; 1, 1 = none */
    double routed_scale;              /* multiplies the routed sum */
} kr_moe;

/* SeerAttention-R's gates that came with the model; dim 0 = none. */
typedef struct {
    uint32_t dim, block; /* elements of a gate key; tokens that share one */
    bool norm, rope;     /* on gate queries and keys */
} kr_gates;

typedef struct {
    char name[96];
    kr_family family;
    uint32_t layers, hidden, vocab;
    uint32_t context; /* tokens the model was made for */

    kr_attention attention;
    uint32_t heads, kv_heads;
    uint32_t head_dim;                            /* GQA: q and k width. MLA: nope + rope */
    uint32_t value_dim;                           /* per head, after W_uv for MLA */
    uint32_t q_lora, kv_lora, nope_dim, rope_dim; /* MLA; 0 for GQA */
    double softmax_scale;                         /* everything included (mscale^2, 1/sqrt) */

    kr_indexer indexer;
    uint32_t index_heads, index_dim;
    uint32_t index_topk;  /* tokens (DSA) or blocks (block) */
    uint32_t index_block; /* tokens per block; 1 for DSA */
    kr_rope index_rope;
    kr_gates gates;

    uint32_t ffn_width; /* dense layers */
    kr_moe moe;
    kr_activation activation;

    double norm_eps;
    double latent_norm_eps; /* of MLA's two latents */
    bool norm_plus_one;     /* weight is stored as w, applied as 1 + w */
    bool qkv_bias;          /* Qwen2 */
    bool qk_norm;           /* per-head RMSNorm on q and k before rope */
    bool sandwich_norm;     /* Gemma: norms after attention and after FFN too */
    bool tied_embedding;    /* output matrix = embedding */
    double embed_scale;     /* multiplies the embedding row; 1 or sqrt(hidden) */

    kr_rope rope[2]; /* [0] global layers, [1] local (sliding-window) layers */
    kr_layer layer[KR_LAYERS_MAX];

    kr_dtype kv_dtype;    /* as served; KR_BF16 by default */
    kr_dtype index_dtype; /* KR_E4M3 (DSA) or KR_BF16 */
    /* Bytes per parameter as served, for pricing. wide: what FP8 checkpoints keep in a wider type
     * (embedding, output matrix, router, norms, the index head weights of DSA); 0 = as dense. */
    double weight_bytes_dense, weight_bytes_experts, weight_bytes_wide;
} kr_model;

/* Ranges and cross-field rules: kv_heads divides heads, index owners exist and come earlier (a
 * shared layer without an earlier owner is refused: pitfall S-25), products fit 64 bits. */
kr_status kr_model_check(const kr_model *model, kr_err *err);

/* Reads a JSON descriptor; strict keys; ends with kr_model_check. */
kr_status kr_model_load(const char *path, kr_model *model, kr_err *err);

const char *kr_family_name(kr_family family);

/* inv_freq[0 .. rope->dims/2), computed in double, stored as float. The attention factor that
 * multiplies cos and sin (1 unless yarn's mscales differ) is returned. */
double kr_rope_frequencies(const kr_rope *rope, float *inv_freq);

/* KV elements of one token in one layer: 2*kv_heads*head_dim (with value_dim), or kv_lora+rope. */
uint32_t kr_model_kv_elements(const kr_model *model);
/* Bytes a token occupies over all layers: KV, and the model's own index keys.
 * scales: count the 4-byte scale of FP8 keys too (exact), or not (the paper's accounting). */
uint64_t kr_model_kv_token_bytes(const kr_model *model);
uint64_t kr_model_index_token_bytes(const kr_model *model, bool scales);
uint32_t kr_model_index_layers(const kr_model *model); /* layers that own an index */

/* Parameter counts by class; the whole model without MTP layers. */
typedef struct {
    uint64_t embedding, head;    /* head is 0 when tied */
    uint64_t attention;          /* all layers, indexer excluded */
    uint64_t indexer;            /* all layers, its head weights excluded */
    uint64_t index_head_weights; /* all layers; DSA's weights_proj */
    uint64_t router, experts, shared_experts, dense_ffn, norms;
} kr_parameters;

kr_parameters kr_model_parameters(const kr_model *model);
uint64_t kr_parameters_total(const kr_parameters *parameters);

/* Bytes that parameters of each kind of storage take as served (see weight_bytes_*), rounded to
 * the nearest byte. */
typedef enum { KR_WEIGHT_DENSE, KR_WEIGHT_EXPERT, KR_WEIGHT_WIDE } kr_weight_class;
uint64_t kr_model_weight_bytes(const kr_model *model, kr_weight_class kind, uint64_t parameters);

/* Layers with the same KV geometry and window share one page table: a layer group.
 * groups <= 2: global layers first. Returns the number of groups, fills group_of[layers]. */
uint32_t kr_model_layer_groups(const kr_model *model, uint8_t group_of[KR_LAYERS_MAX]);

#endif
