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
 * Blocks come in records: 64-byte aligned scales of a few blocks, then the planes of each, so that a
 * matrix is read as one ascending stream (two streams, planes and scales apart, were read from
 * memory at less than half the rate here). A record holds 1 block of Q4_1 and Q5_1 (head d[16],
 * m[16]); 2 blocks of Q4_0, Q5_0 and Q8_0 (d[16] of each); the 8 blocks of a super-block of K types
 * (d[16], then dmin[16] or nothing, then for each block two rows of 16 bytes: s and t, or the two
 * s of Q6_K). A last record may have fewer blocks. Repacking loses no bit. Sizes equal the file's
 * but for the K types, whose heads take whole bytes and lines (Q4_K +2.8 %, Q5_K +2.3 %, Q6_K
 * +1 %), odd counts of 1-scale blocks, and the last panel, padded with zero weights. */
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
    case KR_W_Q8_0:
        return 8 * KR_PANEL_VECTOR;
    case KR_W_Q6_K:
        return 6 * KR_PANEL_VECTOR;
    case KR_W_Q5_0:
    case KR_W_Q5_1:
    case KR_W_Q5_K:
        return 5 * KR_PANEL_VECTOR;
    default:
        return 4 * KR_PANEL_VECTOR;
    }
}

/* Blocks of a record. */
static inline uint32_t kr_panel_record_blocks(kr_weight_type type)
{
    return kr_quant_has_parts(type) ? 8 : kr_quant_has_minimum(type) ? 1 : 2;
}

/* Bytes of a record's head: rows of F16, and for K types 8 times two rows of bytes. */
static inline uint32_t kr_panel_head_bytes(kr_weight_type type)
{
    return kr_quant_has_parts(type) ? 5 * KR_PANEL_VECTOR : KR_PANEL_VECTOR;
}

/* Offset in a panel of the record that holds a block. */
static inline uint64_t kr_panel_record_offset(kr_weight_type type, uint64_t block)
{
    const uint64_t blocks = kr_panel_record_blocks(type);
    return block / blocks * (kr_panel_head_bytes(type) + blocks * kr_panel_plane_bytes(type));
}

/* Offset in a panel of a block's planes, of its d[16] (m[16] or dmin[16] follow), and, for K types
 * only, of its two rows of bytes. */
static inline uint64_t kr_panel_plane_offset(kr_weight_type type, uint64_t block)
{
    return kr_panel_record_offset(type, block) + kr_panel_head_bytes(type) +
           block % kr_panel_record_blocks(type) * kr_panel_plane_bytes(type);
}

static inline uint64_t kr_panel_scale_offset(kr_weight_type type, uint64_t block)
{
    const uint64_t in_record = kr_panel_record_blocks(type) == 2 ? block % 2 : 0;
    return kr_panel_record_offset(type, block) + in_record * KR_PANEL_OUTPUTS * sizeof(uint16_t);
}

static inline uint64_t kr_panel_part_offset(kr_weight_type type, uint64_t block)
{
    return kr_panel_record_offset(type, block) + KR_PANEL_VECTOR + block % 8 * 2 * KR_PANEL_OUTPUTS;
}

/* Bytes of a panel; columns is a multiple of the type's block. */
uint64_t kr_panel_bytes(kr_weight_type type, uint64_t columns);

/* Packs matrix rows [outputs][columns] (outputs <= 16, row_bytes apart) into panel, which is
 * written whole; missing outputs become zero weights. */
void kr_panel_pack(kr_weight_type type, const uint8_t *rows, uint64_t row_bytes, uint32_t outputs,
                   uint64_t columns, uint8_t *panel);

#endif
