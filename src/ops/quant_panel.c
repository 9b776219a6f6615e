/* Packs blocks into panels; where things lie in a panel is in the header, for kernels too. */
#include "ops/quant_panel.h"

#include <string.h>

#include "base/check.h"

uint64_t kr_panel_bytes(kr_weight_type type, uint64_t columns)
{
    KR_CHECK(columns > 0 && columns % kr_weight_type_of(type)->block_elements == 0);
    return kr_panel_plane_offset(type, columns / KR_QUANT_BLOCK - 1) + kr_panel_plane_bytes(type);
}

/* Puts one output's 32 numbers into the zeroed planes of a block. */
static void pack_planes(kr_weight_type type, const uint8_t q[KR_QUANT_BLOCK], uint32_t output, uint8_t *plane)
{
    const uint32_t bytes = kr_panel_plane_bytes(type);
    uint8_t *high = plane + 4 * KR_PANEL_VECTOR;

    for (uint32_t column = 0; column < KR_QUANT_BLOCK; column++) {
        const uint32_t group = column / 4, at = 4 * output + column % 4;
        if (bytes == 8 * KR_PANEL_VECTOR) {
            plane[group * KR_PANEL_VECTOR + at] = q[column];
            continue;
        }
        plane[group % 4 * KR_PANEL_VECTOR + at] |= (uint8_t)((q[column] & 15) << (group < 4 ? 0 : 4));
        if (bytes == 5 * KR_PANEL_VECTOR)
            high[at] |= (uint8_t)(q[column] >> 4 << group);
        else if (bytes == 6 * KR_PANEL_VECTOR)
            high[group / 4 * KR_PANEL_VECTOR + at] |= (uint8_t)(q[column] >> 4 << 2 * (group % 4));
    }
}

static void pack_scales(kr_weight_type type, const kr_quant_block *block, uint32_t output, uint64_t index,
                        uint8_t *panel)
{
    uint8_t *half = panel + kr_panel_scale_offset(type, index) + output * sizeof(uint16_t);

    memcpy(half, &block->d, sizeof block->d);
    if (kr_quant_has_minimum(type))
        memcpy(half + KR_PANEL_OUTPUTS * sizeof(uint16_t), &block->m, sizeof block->m);
    if (kr_quant_has_parts(type)) {
        uint8_t *part = panel + kr_panel_part_offset(type, index) + output;
        part[0] = block->part[0];
        part[KR_PANEL_OUTPUTS] = block->part[1];
    }
}

void kr_panel_pack(kr_weight_type type, const uint8_t *rows, uint64_t row_bytes, uint32_t outputs,
                   uint64_t columns, uint8_t *panel)
{
    KR_CHECK(kr_weight_is_quantised(type) && outputs <= KR_PANEL_OUTPUTS);
    memset(panel, 0, kr_panel_bytes(type, columns));
    for (uint32_t output = 0; output < outputs; output++) {
        for (uint64_t b = 0; b < columns / KR_QUANT_BLOCK; b++) {
            kr_quant_block block;
            kr_quant_block_read(type, rows + output * row_bytes, b, &block);
            pack_planes(type, block.q, output, panel + kr_panel_plane_offset(type, b));
            pack_scales(type, &block, output, b, panel);
        }
    }
}
