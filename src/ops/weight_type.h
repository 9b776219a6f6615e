/* Storage types of weights, as model files name them, with block sizes. Quantised types keep the
 * block layout of the GGUF format; ops/quant_*.h multiplies straight from it. */
#ifndef KR_OPS_WEIGHT_TYPE_H
#define KR_OPS_WEIGHT_TYPE_H

#include <stdint.h>

/* X(name, text, elements per block, bytes per block, code in GGUF) */
#define KR_WEIGHT_TYPE_LIST(X)         \
    X(KR_W_F32, "F32", 1, 4, 0)        \
    X(KR_W_F16, "F16", 1, 2, 1)        \
    X(KR_W_Q4_0, "Q4_0", 32, 18, 2)    \
    X(KR_W_Q4_1, "Q4_1", 32, 20, 3)    \
    X(KR_W_Q5_0, "Q5_0", 32, 22, 6)    \
    X(KR_W_Q5_1, "Q5_1", 32, 24, 7)    \
    X(KR_W_Q8_0, "Q8_0", 32, 34, 8)    \
    X(KR_W_Q4_K, "Q4_K", 256, 144, 12) \
    X(KR_W_Q5_K, "Q5_K", 256, 176, 13) \
    X(KR_W_Q6_K, "Q6_K", 256, 210, 14) \
    X(KR_W_BF16, "BF16", 1, 2, 30)

typedef enum {
#define KR_WEIGHT_ENUM(name, text, elements, bytes, code) name,
    KR_WEIGHT_TYPE_LIST(KR_WEIGHT_ENUM)
#undef KR_WEIGHT_ENUM
        KR_W_TYPES
} kr_weight_type;

typedef struct {
    const char *name;
    uint32_t block_elements, block_bytes, gguf_code;
} kr_weight_type_info;

/* Entry of type; type must be below KR_W_TYPES. */
const kr_weight_type_info *kr_weight_type_of(kr_weight_type type);
/* Bytes of one row of n elements; n is a multiple of the block (files/ has checked). */
static inline uint64_t kr_weight_row_bytes(kr_weight_type type, uint64_t n)
{
    const kr_weight_type_info *info = kr_weight_type_of(type);
    return n / info->block_elements * info->block_bytes;
}

#endif
