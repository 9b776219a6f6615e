/* A model on disk, opened for reading: description, tensors by role, tokenizer and chat family.
 *
 * GGUF (one file or all parts of a split) or a Hugging Face folder (config.json, safetensors,
 * tokenizer.json). Files are mapped, not read; every offset, count and type is validated against
 * the file's size before it is used, and a tensor handed out here is known to lie inside the map,
 * to have the shape the architecture asks for, to be of a supported type and, for F32, F16 and
 * BF16, to start at a multiple of its element size. */
#ifndef KR_FILES_MODEL_FILE_H
#define KR_FILES_MODEL_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "model/model.h"
#include "ops/weight_type.h"

/* Roles of tensors in the supported architectures; per-layer ones take a layer number, those of experts
 * the expert's number too. */
#define KR_ROLE_LIST(X)                                                                           \
    X(KR_ROLE_EMBEDDING)      /* [vocab][hidden] */                                               \
    X(KR_ROLE_FINAL_NORM)     /* [hidden] */                                                      \
    X(KR_ROLE_OUTPUT)         /* [vocab][hidden]; the embedding when tied */                      \
    X(KR_ROLE_ATTN_NORM)      /* [hidden] */                                                      \
    X(KR_ROLE_Q)              /* [heads*head_dim][hidden] */                                      \
    X(KR_ROLE_K)              /* [kv_heads*head_dim][hidden] */                                   \
    X(KR_ROLE_V)              /* [kv_heads*value_dim][hidden] */                                  \
    X(KR_ROLE_Q_BIAS)         /* [heads*head_dim] */                                              \
    X(KR_ROLE_K_BIAS)         /* [kv_heads*head_dim] */                                           \
    X(KR_ROLE_V_BIAS)         /* [kv_heads*value_dim] */                                          \
    X(KR_ROLE_Q_NORM)         /* [head_dim] */                                                    \
    X(KR_ROLE_K_NORM)         /* [head_dim] */                                                    \
    X(KR_ROLE_O)              /* [hidden][heads*value_dim] */                                     \
    X(KR_ROLE_POST_ATTN_NORM) /* Gemma: after attention, before residual */                       \
    X(KR_ROLE_FFN_NORM)       /* before FFN */                                                    \
    X(KR_ROLE_GATE)           /* [ffn][hidden] */                                                 \
    X(KR_ROLE_UP)             /* [ffn][hidden] */                                                 \
    X(KR_ROLE_DOWN)           /* [hidden][ffn] */                                                 \
    X(KR_ROLE_POST_FFN_NORM)  /* Gemma */                                                         \
    X(KR_ROLE_ROPE_FACTORS)   /* GGUF rope_freqs.weight: divides inv_freq, [dims/2]; optional */  \
    X(KR_ROLE_Q_A)            /* MLA: [q_lora][hidden] */                                         \
    X(KR_ROLE_Q_A_NORM)       /* MLA: [q_lora] */                                                 \
    X(KR_ROLE_Q_B)            /* MLA: [heads*head_dim][q_lora] */                                 \
    X(KR_ROLE_KV_A)           /* MLA: [kv_lora+rope_dim][hidden] */                               \
    X(KR_ROLE_KV_A_NORM)      /* MLA: [kv_lora] */                                                \
    X(KR_ROLE_KV_B)           /* MLA: [heads*(nope_dim+value_dim)][kv_lora] */                    \
    X(KR_ROLE_INDEX_Q)        /* index owners: [index_heads*index_dim][q_lora (DSA) or hidden] */ \
    X(KR_ROLE_INDEX_K)        /* index owners: [index_dim][hidden] */                             \
    X(KR_ROLE_INDEX_W)        /* DSA: [index_heads][hidden] */                                    \
    X(KR_ROLE_INDEX_Q_NORM)   /* MiniMax: [index_dim] */                                          \
    X(KR_ROLE_INDEX_K_NORM)   /* index owners: [index_dim] */                                     \
    X(KR_ROLE_INDEX_K_BIAS)   /* DSA: [index_dim] */                                              \
    X(KR_ROLE_ROUTER)         /* experts: [experts][hidden] */                                    \
    X(KR_ROLE_ROUTER_BIAS)    /* experts: [experts] */                                            \
    X(KR_ROLE_SHARED_GATE)    /* [shared*shared_width][hidden] */                                 \
    X(KR_ROLE_SHARED_UP)      /* [shared*shared_width][hidden] */                                 \
    X(KR_ROLE_SHARED_DOWN)    /* [hidden][shared*shared_width] */                                 \
    X(KR_ROLE_EXPERT_GATE)    /* of one expert: [width][hidden] */                                \
    X(KR_ROLE_EXPERT_UP)      /* [width][hidden] */                                               \
    X(KR_ROLE_EXPERT_DOWN)    /* [hidden][width] */

typedef enum {
#define KR_ROLE_ENUM(name) name,
    KR_ROLE_LIST(KR_ROLE_ENUM)
#undef KR_ROLE_ENUM
        KR_ROLES
} kr_role;

/* A weight matrix [rows][columns] in its stored type; norm and bias vectors have rows = 1. */
typedef struct {
    kr_weight_type type;
    uint64_t rows, columns;
    const uint8_t *data; /* mapped; lives as long as the kr_model_file */
    uint64_t bytes;
    const char *name; /* as in the file, for messages */
} kr_tensor;

typedef struct kr_model_file kr_model_file;
struct kr_tokenizer;

/* KR_E_IO, KR_E_FORMAT, KR_E_UNSUPPORTED, KR_E_LIMIT; err names file, place and rule. */
kr_status kr_model_file_open(const char *path, kr_model_file **file, kr_err *err);
void kr_model_file_close(kr_model_file *file);

/* The description; norm_plus_one is false when the file stores Gemma norms with the 1 added
 * (GGUF) and true when it does not (safetensors). rope layouts are the file's: GGUF permutes
 * Llama's q and k rows to interleaved pairs, safetensors keeps half-split. */
const kr_model *kr_model_file_model(const kr_model_file *file);
/* KR_E_NOT_FOUND when the architecture has no such tensor here (tied output returns embedding). */
kr_status kr_model_file_tensor(const kr_model_file *file, kr_role role, uint32_t layer, kr_tensor *tensor,
                               kr_err *err);
kr_status kr_model_file_expert(const kr_model_file *file, kr_role role, uint32_t layer, uint32_t expert,
                               kr_tensor *tensor, kr_err *err);
/* Any tensor by the name it has in the file, and one of a layer without what precedes it there
 * ("model.layers.3." or "blk.3."): learned methods ask for theirs. */
kr_status kr_model_file_named(const kr_model_file *file, const char *name, kr_tensor *tensor, kr_err *err);
kr_status kr_model_file_layer_tensor(const kr_model_file *file, uint32_t layer, const char *name,
                                     kr_tensor *tensor, kr_err *err);
const struct kr_tokenizer *kr_model_file_tokenizer(const kr_model_file *file);
/* XXH3 over description, tensor table and sampled data: prefixes are shared only within it. */
uint64_t kr_model_file_fingerprint(const kr_model_file *file);
/* Total bytes of tensor data by weight type, [KR_W_TYPES]. */
void kr_model_file_bytes(const kr_model_file *file, uint64_t by_type[KR_W_TYPES]);
/* What `karat inspect` prints: text or one JSON object. */
kr_status kr_model_file_describe(const kr_model_file *file, FILE *out, int as_json, kr_err *err);

#endif
