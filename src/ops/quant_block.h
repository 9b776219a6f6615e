/* Blocks of quantised weights as model files store them (GGUF), taken apart and expanded.
 *
 * A row of a quantised matrix is a sequence of blocks of 32 weights with an F16 scale d, or of
 * super-blocks of 256 whose 32-weight parts have 6- or 8-bit scales of their own. The formulas,
 * with q an unsigned number of the type's bits:
 *
 *   Q4_0, Q5_0, Q8_0   w = d * (q - offset)              offset 8, 16, 128
 *   Q4_1, Q5_1         w = d * q + m                     m is F16
 *   Q4_K, Q5_K         w = (d * s) * q - (dmin * t)      s, t 6-bit, one pair for 32 weights
 *   Q6_K               w = (d * s) * (q - 32)            s 8-bit signed, one for 16 weights
 *
 * Source: the format as gguf-py (gguf/quants.py) reads it; products and differences are rounded
 * to F32 one by one, as there. Any bytes are a legal block: a scale may be zero, infinite or NaN
 * and then so are its weights. */
#ifndef KR_OPS_QUANT_BLOCK_H
#define KR_OPS_QUANT_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/weight_type.h"

enum { KR_QUANT_BLOCK = 32, KR_QUANT_SUPER = 256 };

/* The quantised types, for what is compiled once for each. */
#define KR_QUANTISED_LIST(X) \
    X(KR_W_Q4_0) X(KR_W_Q4_1) X(KR_W_Q5_0) X(KR_W_Q5_1) X(KR_W_Q8_0) X(KR_W_Q4_K) X(KR_W_Q5_K) X(KR_W_Q6_K)

/* 32 consecutive weights: numbers and scales. */
typedef struct {
    uint8_t q[KR_QUANT_BLOCK]; /* unsigned; Q8_0's are stored value + 128 */
    uint16_t d;                /* F16 bits */
    uint16_t m;                /* F16 bits: Q4_1 and Q5_1 m, Q4_K and Q5_K dmin; else 0 */
    uint8_t part[2];           /* Q4_K, Q5_K: s, t; Q6_K: s of each 16 weights; else 0 */
} kr_quant_block;

/* Block-quantised: not F32, F16 or BF16. */
static inline bool kr_weight_is_quantised(kr_weight_type type)
{
    return type != KR_W_F32 && type != KR_W_F16 && type != KR_W_BF16;
}

/* Subtracted from q; 0 where a minimum is added instead. */
static inline int32_t kr_quant_offset(kr_weight_type type)
{
    switch (type) {
    case KR_W_Q4_0:
        return 8;
    case KR_W_Q5_0:
        return 16;
    case KR_W_Q6_K:
        return 32;
    case KR_W_Q8_0:
        return 128;
    default:
        return 0;
    }
}

/* The index-th 32 weights of a row; type is quantised. */
void kr_quant_block_read(kr_weight_type type, const uint8_t *row, uint64_t index, kr_quant_block *block);

/* Expands n weights of a row to F32; any type; n is a multiple of 32 for quantised ones. */
void kr_dequantise(kr_weight_type type, const uint8_t *row, float *x, uint64_t n);

#endif
