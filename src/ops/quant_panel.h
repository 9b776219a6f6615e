/* Quantised weights in the order the dot kernels read them: panels of 16 outputs.
 *
 * A panel holds 16 consecutive outputs (matrix rows) over all columns; SIMD lane o of every vector
 * is output o. Per block of 32 columns it has planes of 64-byte vectors; byte j of lane o of the
 * vector of group g is column 4g + j, so that one instruction multiplies a group with four
 * activations common to all lanes:
 *
 *   4-bit plane   4 vectors v: low half of a byte is group v, high half group v + 4
 *   5th-bit plane 1 vector: bit g of byte j belongs to group g             (Q5_*)
 *   2-bit plane   2 vectors t: bits 2f, 2f+1 of byte j belong to group 4t + f   (Q6_K)
 *   8-bit plane   8 vectors, one a group                                     (Q8_0)
 *
 * Behind the planes of all blocks lie the scales: per block d[16], then m[16] where the type has
 * it; for K types per super-block d[16] (and dmin[16]), then per block two rows of 16 bytes
 * (s and t, or the two s of Q6_K). A panel's size is a multiple of 64 bytes. Repacking loses no
 * bit; sizes equal the file's but for Q4_K and Q5_K, whose 6-bit pairs take whole bytes (+2.8 %,
 * +2.3 %), and for the last panel, padded with zero weights. */
#ifndef KR_OPS_QUANT_PANEL_H
#define KR_OPS_QUANT_PANEL_H

#include "ops/quant_block.h"

enum { KR_PANEL_OUTPUTS = 16, KR_PANEL_VECTOR = 64, KR_PANEL_GROUPS = 8 };

static inline bool kr_quant_has_minimum(kr_weight_type type)
{
    return type == KR_W_Q4_1 || type == KR_W_Q5_1 || type == KR_W_Q4_K || type == KR_W_Q5_K;
}

static inline bool kr_quant_has_parts(kr_weight_type type)
{
    return type == KR_W_Q4_K || type == KR_W_Q5_K || type == KR_W_Q6_K;
}

/* Bytes of the planes of one block. */
static inline uint32_t kr_panel_plane_bytes(kr_weight_type type)
{
    switch (type) {
    case KR_W_Q8_0: return 8 * KR_PANEL_VECTOR;
    case KR_W_Q6_K: return 6 * KR_PANEL_VECTOR;
    case KR_W_Q5_0:
    case KR_W_Q5_1:
    case KR_W_Q5_K: return 5 * KR_PANEL_VECTOR;
    default: return 4 * KR_PANEL_VECTOR;
    }
}

/* Bytes of the F16 rows that start a block's (or super-block's) scales. */
static inline uint32_t kr_panel_half_bytes(kr_weight_type type)
{
    return (kr_quant_has_minimum(type) ? 2 : 1) * KR_PANEL_OUTPUTS * sizeof(uint16_t);
}

/* Offset of block b's F16 scale rows from the start of the scales. */
static inline uint64_t kr_panel_half_offset(kr_weight_type type, uint64_t block)
{
    const uint64_t half = kr_panel_half_bytes(type);
    if (!kr_quant_has_parts(type))
        return block * half;
    return block / 8 * (half + 8 * 2 * KR_PANEL_OUTPUTS);
}

/* Offset of block b's two rows of part bytes; only for types that have them. */
static inline uint64_t kr_panel_part_offset(kr_weight_type type, uint64_t block)
{
    return kr_panel_half_offset(type, block) + kr_panel_half_bytes(type) +
           block % 8 * 2 * KR_PANEL_OUTPUTS;
}

/* Bytes of a panel; columns is a multiple of the type's block. */
uint64_t kr_panel_bytes(kr_weight_type type, uint64_t columns);

/* Packs matrix rows [outputs][columns] (outputs <= 16, row_bytes apart) into panel, which is
 * written whole; missing outputs become zero weights. */
void kr_panel_pack(kr_weight_type type, const uint8_t *rows, uint64_t row_bytes, uint32_t outputs,
                   uint64_t columns, uint8_t *panel);

#endif
