/* quant_dot with AVX-512 VNNI: one lane an output, one vpdpbusd a group of four columns and a row.
 * The weights of a block are unpacked once into eight registers and used by up to eight rows. */
#include <immintrin.h>
#include <string.h>

#include "base/check.h"
#include "ops/quant_dot_variants.h"
#include "ops/quant_dot_walk.h"

#define KR_INLINE static inline __attribute__((always_inline))

/* 512-bit shifts move whole words; bits that enter a byte from its neighbour are masked off. */
KR_INLINE __m512i shift_in_byte(__m512i x, int left)
{
    return left >= 0 ? _mm512_slli_epi16(x, (unsigned)left) : _mm512_srli_epi16(x, (unsigned)-left);
}

KR_INLINE __m512i load_vector(const uint8_t *plane, int vector)
{
    return _mm512_loadu_si512(plane + vector * KR_PANEL_VECTOR);
}

/* a | (b & mask) in one instruction. */
KR_INLINE __m512i or_masked(__m512i a, __m512i b, __m512i mask)
{
    return _mm512_ternarylogic_epi64(a, b, mask, 0xf8);
}

KR_INLINE void unpack(kr_weight_type type, const uint8_t *plane, __m512i w[KR_PANEL_GROUPS])
{
    const uint32_t bytes = kr_panel_plane_bytes(type);
    const __m512i low = _mm512_set1_epi8(15);

    if (bytes == 8 * KR_PANEL_VECTOR) {
#pragma GCC unroll 8
        for (int g = 0; g < KR_PANEL_GROUPS; g++)
            w[g] = load_vector(plane, g);
        return;
    }
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        const __m512i pair = load_vector(plane, v);
        w[v] = _mm512_and_si512(pair, low);
        w[v + 4] = _mm512_and_si512(_mm512_srli_epi16(pair, 4), low);
    }
    if (bytes == 5 * KR_PANEL_VECTOR) {
        const __m512i bit = _mm512_set1_epi8(16), high = load_vector(plane, 4);
#pragma GCC unroll 8
        for (int g = 0; g < KR_PANEL_GROUPS; g++)
            w[g] = or_masked(w[g], shift_in_byte(high, 4 - g), bit);
    } else if (bytes == 6 * KR_PANEL_VECTOR) {
        const __m512i bits = _mm512_set1_epi8(48);
#pragma GCC unroll 8
        for (int g = 0; g < KR_PANEL_GROUPS; g++)
            w[g] = or_masked(w[g], shift_in_byte(load_vector(plane, 4 + g / 4), 4 - 2 * (g % 4)), bits);
    }
}

KR_INLINE __m512 load_half(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

KR_INLINE __m512 load_part(const uint8_t *p, bool is_signed)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return _mm512_cvtepi32_ps(is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
}

/* Scales of one block: Q6_K has one for each half of the columns, the others scale[0] alone. */
typedef struct {
    __m512 scale[2], minimum;
} scales;

KR_INLINE scales load_scales(kr_weight_type type, const uint8_t *panel, uint64_t block)
{
    const uint8_t *half = panel + kr_panel_scale_offset(type, block);
    const uint8_t *second = half + KR_PANEL_OUTPUTS * sizeof(uint16_t);
    scales s = {{load_half(half), _mm512_setzero_ps()}, _mm512_setzero_ps()};

    if (kr_quant_has_minimum(type))
        s.minimum = load_half(second);
    if (kr_quant_has_parts(type)) {
        const uint8_t *part = panel + kr_panel_part_offset(type, block);
        const __m512 d = s.scale[0];
        s.scale[0] = _mm512_mul_ps(d, load_part(part, type == KR_W_Q6_K));
        if (type == KR_W_Q6_K)
            s.scale[1] = _mm512_mul_ps(d, load_part(part + KR_PANEL_OUTPUTS, true));
        else
            s.minimum = _mm512_xor_ps(_mm512_set1_ps(-0.0f),
                                      _mm512_mul_ps(s.minimum, load_part(part + KR_PANEL_OUTPUTS, false)));
    }
    return s;
}

/* Groups [first, first + count) of a row's block, on top of the offset's share. */
KR_INLINE __m512i dot_groups(__m512i n, const __m512i w[KR_PANEL_GROUPS], const int8_t *q, int first,
                             int count)
{
#pragma GCC unroll 8
    for (int g = first; g < first + count; g++) {
        int32_t four;
        memcpy(&four, q + 4 * g, sizeof four);
        n = _mm512_dpbusd_epi32(n, w[g], _mm512_set1_epi32(four));
    }
    return n;
}

KR_INLINE __m512 add_scaled(__m512 sum, __m512 w_scale, float row_scale, __m512i n)
{
    return _mm512_fmadd_ps(_mm512_mul_ps(w_scale, _mm512_set1_ps(row_scale)), _mm512_cvtepi32_ps(n), sum);
}

KR_INLINE void tile_of(kr_weight_type type, int rows, const kr_quant_dot_args *a, const uint8_t *panel,
                       uint32_t row, float *out)
{
    const uint64_t blocks = a->columns / KR_QUANT_BLOCK;
    const int8_t *q = a->q + (uint64_t)row * a->columns;
    const kr_quant_meta *meta = a->meta + row * blocks;
    const int32_t offset = kr_quant_offset(type);
    __m512 sum[KR_DOT_ROWS];

#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        sum[r] = _mm512_setzero_ps();
    for (uint64_t b = 0; b < blocks; b++) {
        __m512i w[KR_PANEL_GROUPS];
        unpack(type, panel + kr_panel_plane_offset(type, b), w);
        const scales s = load_scales(type, panel, b);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const kr_quant_meta *m = &meta[(uint64_t)r * blocks + b];
            const int8_t *row_q = q + (uint64_t)r * a->columns + b * KR_QUANT_BLOCK;
            if (type == KR_W_Q6_K) {
                const __m512i n0 = _mm512_set1_epi32(-offset * m->sum_first);
                const __m512i n1 = _mm512_set1_epi32(-offset * (m->sum - m->sum_first));
                sum[r] = add_scaled(sum[r], s.scale[0], m->scale, dot_groups(n0, w, row_q, 0, 4));
                sum[r] = add_scaled(sum[r], s.scale[1], m->scale, dot_groups(n1, w, row_q, 4, 4));
            } else {
                const __m512i n0 = _mm512_set1_epi32(-offset * m->sum);
                sum[r] = add_scaled(sum[r], s.scale[0], m->scale, dot_groups(n0, w, row_q, 0, 8));
            }
            if (kr_quant_has_minimum(type))
                sum[r] = _mm512_fmadd_ps(s.minimum, _mm512_set1_ps(m->scaled_sum), sum[r]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        _mm512_store_ps(out + r * KR_PANEL_OUTPUTS, sum[r]);
}

/* One tile function a type, each with its four row counts compiled as constants. */
#define KR_DEFINE_TILE(type)                                                                               \
    static void tile_##type(const kr_quant_dot_args *a, const uint8_t *panel, uint32_t row, uint32_t rows, \
                            float *out)                                                                    \
    {                                                                                                      \
        switch (rows) {                                                                                    \
        case 8:                                                                                            \
            tile_of(type, 8, a, panel, row, out);                                                          \
            break;                                                                                         \
        case 4:                                                                                            \
            tile_of(type, 4, a, panel, row, out);                                                          \
            break;                                                                                         \
        case 2:                                                                                            \
            tile_of(type, 2, a, panel, row, out);                                                          \
            break;                                                                                         \
        default:                                                                                           \
            tile_of(type, 1, a, panel, row, out);                                                          \
            break;                                                                                         \
        }                                                                                                  \
    }

KR_QUANTISED_LIST(KR_DEFINE_TILE)

void kr_quant_dot_avx512(const kr_quant_dot_args *args)
{
    static const kr_quant_tile_fn tiles[KR_W_TYPES] = {
#define KR_TILE_ENTRY(type) [type] = tile_##type,
        KR_QUANTISED_LIST(KR_TILE_ENTRY)
#undef KR_TILE_ENTRY
    };
    KR_CHECK((unsigned)args->type < KR_W_TYPES && tiles[args->type] != NULL);
    kr_quant_dot_walk(args, tiles[args->type]);
}
