/* The block layouts of quantised types, byte by byte. */
#include "ops/quant_block.h"

#include <string.h>

#include "base/check.h"
#include "base/num.h"

static uint16_t load_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static uint32_t load_u32(const uint8_t *p) { return load_u16(p) | (uint32_t)load_u16(p + 2) << 16; }

/* 16 bytes hold weights i and i + 16 in their low and high halves. */
static void split_nibbles(const uint8_t *packed, uint8_t q[KR_QUANT_BLOCK])
{
    for (uint32_t i = 0; i < 16; i++) {
        q[i] = packed[i] & 15;
        q[i + 16] = packed[i] >> 4;
    }
}

/* Bit i of high is the fifth bit of weight i. */
static void add_fifth_bits(uint32_t high, uint8_t q[KR_QUANT_BLOCK])
{
    for (uint32_t i = 0; i < KR_QUANT_BLOCK; i++)
        q[i] = (uint8_t)(q[i] | ((high >> i) & 1) << 4);
}

/* Eight 6-bit pairs (s, t) in 12 bytes: the first four pairs whole, the last four as 4 low bits
 * and 2 high bits kept in the top of the first eight bytes. */
static void read_six_bit_pair(const uint8_t packed[12], uint32_t part, uint8_t pair[2])
{
    if (part < 4) {
        pair[0] = packed[part] & 63;
        pair[1] = packed[part + 4] & 63;
    } else {
        pair[0] = (uint8_t)((packed[part + 4] & 15) | packed[part - 4] >> 6 << 4);
        pair[1] = (uint8_t)(packed[part + 4] >> 4 | packed[part] >> 6 << 4);
    }
}

/* Q4_K and Q5_K: {d, dmin, 12 bytes of pairs, [32 fifth bits,] 128 bytes of nibbles}; a run of 32
 * nibble bytes holds an even part in its low and the next odd part in its high halves. */
static void read_k4_k5(const uint8_t *super, uint32_t part, bool fifth, kr_quant_block *block)
{
    const uint8_t *high = super + 16;
    const uint8_t *nibbles = (fifth ? high + 32 : high) + part / 2 * 32;

    block->d = load_u16(super);
    block->m = load_u16(super + 2);
    read_six_bit_pair(super + 4, part, block->part);
    for (uint32_t i = 0; i < KR_QUANT_BLOCK; i++) {
        block->q[i] = part % 2 == 0 ? nibbles[i] & 15 : nibbles[i] >> 4;
        if (fifth)
            block->q[i] = (uint8_t)(block->q[i] | ((high[i] >> part) & 1) << 4);
    }
}

/* Q6_K: {128 bytes of low nibbles, 64 bytes of high bit pairs, 16 scales, d}. Each half of 128
 * weights has 64 nibble bytes (parts 0 and 1 low, 2 and 3 high) and 32 bytes of pairs. */
static void read_k6(const uint8_t *super, uint32_t part, kr_quant_block *block)
{
    const uint32_t half = part / 4, quarter = part % 4;
    const uint8_t *low = super + 64 * half + 32 * (quarter % 2);
    const uint8_t *high = super + 128 + 32 * half;

    for (uint32_t i = 0; i < KR_QUANT_BLOCK; i++) {
        const uint32_t nibble = quarter < 2 ? low[i] & 15 : low[i] >> 4;
        block->q[i] = (uint8_t)(nibble | ((high[i] >> 2 * quarter) & 3) << 4);
    }
    block->d = load_u16(super + 208);
    block->m = 0;
    memcpy(block->part, super + 192 + 2 * part, 2);
}

void kr_quant_block_read(kr_weight_type type, const uint8_t *row, uint64_t index, kr_quant_block *block)
{
    const kr_weight_type_info *info = kr_weight_type_of(type);
    const uint64_t per_block = info->block_elements / KR_QUANT_BLOCK;
    KR_CHECK(per_block != 0);
    const uint8_t *p = row + index / per_block * info->block_bytes;
    const uint32_t part = (uint32_t)(index % per_block);

    block->d = load_u16(p);
    block->m = 0;
    memset(block->part, 0, sizeof block->part);
    switch (type) {
    case KR_W_Q4_0:
        split_nibbles(p + 2, block->q);
        break;
    case KR_W_Q4_1:
        block->m = load_u16(p + 2);
        split_nibbles(p + 4, block->q);
        break;
    case KR_W_Q5_0:
        split_nibbles(p + 6, block->q);
        add_fifth_bits(load_u32(p + 2), block->q);
        break;
    case KR_W_Q5_1:
        block->m = load_u16(p + 2);
        split_nibbles(p + 8, block->q);
        add_fifth_bits(load_u32(p + 4), block->q);
        break;
    case KR_W_Q8_0:
        for (uint32_t i = 0; i < KR_QUANT_BLOCK; i++)
            block->q[i] = p[2 + i] ^ 0x80; /* two's complement + 128 */
        break;
    case KR_W_Q4_K:
    case KR_W_Q5_K:
        read_k4_k5(p, part, type == KR_W_Q5_K, block);
        break;
    default:
        KR_CHECK(type == KR_W_Q6_K);
        read_k6(p, part, block);
        break;
    }
}

static void expand_block(kr_weight_type type, const kr_quant_block *block, float *x)
{
    const float d = kr_f32_from_f16(block->d), m = kr_f32_from_f16(block->m);
    const int32_t offset = kr_quant_offset(type);

    for (uint32_t i = 0; i < KR_QUANT_BLOCK; i++) {
        const float q = (float)(block->q[i] - offset);
        switch (type) {
        case KR_W_Q4_1:
        case KR_W_Q5_1:
            x[i] = d * q + m;
            break;
        case KR_W_Q4_K:
        case KR_W_Q5_K:
            x[i] = d * (float)block->part[0] * q - m * (float)block->part[1];
            break;
        case KR_W_Q6_K:
            x[i] = d * (float)(int8_t)block->part[i / 16] * q;
            break;
        default:
            x[i] = d * q;
            break;
        }
    }
}

void kr_dequantise(kr_weight_type type, const uint8_t *row, float *x, uint64_t n)
{
    if (type == KR_W_F32) {
        memcpy(x, row, n * sizeof *x);
    } else if (!kr_weight_is_quantised(type)) {
        for (uint64_t i = 0; i < n; i++) {
            const uint16_t bits = load_u16(row + 2 * i);
            x[i] = type == KR_W_F16 ? kr_f32_from_f16(bits) : kr_f32_from_bf16(bits);
        }
    } else {
        KR_CHECK(n % KR_QUANT_BLOCK == 0);
        for (uint64_t b = 0; b < n / KR_QUANT_BLOCK; b++) {
            kr_quant_block block;
            kr_quant_block_read(type, row, b, &block);
            expand_block(type, &block, x + b * KR_QUANT_BLOCK);
        }
    }
}
