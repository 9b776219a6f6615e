/* quant_dot with AVX2: a panel is two halves of eight lanes. A group's four products are summed by
 * vpmaddubsw and vpmaddwd. Numbers of up to 6 bits can't overflow its 16 bits (2*63*127 < 2^15);
 * 8-bit ones are taken as signed, their sign moved to the activation (2*128*127 < 2^15). */
#include <immintrin.h>
#include <string.h>

#include "base/check.h"
#include "ops/quant_dot_variants.h"
#include "ops/quant_dot_walk.h"

#define KR_INLINE static inline __attribute__((always_inline))

enum { LANES = 8, HALF_VECTOR = KR_PANEL_VECTOR / 2, ROWS_MAX = 4 };

/* 256-bit shifts move whole words; bits that enter a byte from its neighbour are masked off. */
KR_INLINE __m256i shift_in_byte(__m256i x, int left)
{
    return left >= 0 ? _mm256_slli_epi16(x, left) : _mm256_srli_epi16(x, -left);
}

KR_INLINE __m256i load_vector(const uint8_t *plane, int vector)
{
    return _mm256_loadu_si256((const __m256i *)(plane + vector * KR_PANEL_VECTOR));
}

/* The numbers of one group; plane is already at the half's lanes. */
KR_INLINE __m256i unpack_group(kr_weight_type type, const uint8_t *plane, int g)
{
    const uint32_t bytes = kr_panel_plane_bytes(type);

    if (bytes == 8 * KR_PANEL_VECTOR)
        return _mm256_xor_si256(load_vector(plane, g), _mm256_set1_epi8(-128));
    __m256i w = load_vector(plane, g % 4);
    w = _mm256_and_si256(g < 4 ? w : _mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
    if (bytes == 5 * KR_PANEL_VECTOR) {
        const __m256i high = shift_in_byte(load_vector(plane, 4), 4 - g);
        w = _mm256_or_si256(w, _mm256_and_si256(high, _mm256_set1_epi8(16)));
    } else if (bytes == 6 * KR_PANEL_VECTOR) {
        const __m256i high = shift_in_byte(load_vector(plane, 4 + g / 4), 4 - 2 * (g % 4));
        w = _mm256_or_si256(w, _mm256_and_si256(high, _mm256_set1_epi8(48)));
    }
    return w;
}

KR_INLINE __m256i dot_group(kr_weight_type type, __m256i n, __m256i w, const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, sizeof four);
    const __m256i x = _mm256_set1_epi32(four);
    const __m256i pairs = type == KR_W_Q8_0 ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
                                            : _mm256_maddubs_epi16(w, x);
    return _mm256_add_epi32(n, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

KR_INLINE __m256 load_half(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }

KR_INLINE __m256 load_part(const uint8_t *p, bool is_signed)
{
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)p);
    return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
}

/* Scales of one block: Q6_K has one for each half of the columns, the others scale[0] alone. */
typedef struct {
    __m256 scale[2], minimum;
} scales;

KR_INLINE scales load_scales(kr_weight_type type, const uint8_t *panel, uint64_t block, uint32_t lane)
{
    const uint8_t *half = panel + kr_panel_scale_offset(type, block) + lane * sizeof(uint16_t);
    const uint8_t *second = half + KR_PANEL_OUTPUTS * sizeof(uint16_t);
    scales s = {{load_half(half), _mm256_setzero_ps()}, _mm256_setzero_ps()};

    if (kr_quant_has_minimum(type))
        s.minimum = load_half(second);
    if (kr_quant_has_parts(type)) {
        const uint8_t *part = panel + kr_panel_part_offset(type, block) + lane;
        const __m256 d = s.scale[0];
        s.scale[0] = _mm256_mul_ps(d, load_part(part, type == KR_W_Q6_K));
        if (type == KR_W_Q6_K)
            s.scale[1] = _mm256_mul_ps(d, load_part(part + KR_PANEL_OUTPUTS, true));
        else
            s.minimum = _mm256_xor_ps(_mm256_set1_ps(-0.0f),
                                      _mm256_mul_ps(s.minimum, load_part(part + KR_PANEL_OUTPUTS, false)));
    }
    return s;
}

KR_INLINE __m256 add_scaled(__m256 sum, __m256 w_scale, float row_scale, __m256i n)
{
    return _mm256_fmadd_ps(_mm256_mul_ps(w_scale, _mm256_set1_ps(row_scale)), _mm256_cvtepi32_ps(n), sum);
}

/* One half (8 outputs from lane on) of a panel times rows; out has the panel's row length. */
KR_INLINE void half_of(kr_weight_type type, int rows, uint32_t lane, const kr_quant_dot_args *a,
                       const uint8_t *panel, uint32_t row, float *out)
{
    const uint64_t blocks = a->columns / KR_QUANT_BLOCK;
    const int32_t offset = type == KR_W_Q8_0 ? 0 : kr_quant_offset(type); /* Q8_0 is signed here */
    __m256 sum[ROWS_MAX];

#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        sum[r] = _mm256_setzero_ps();
    for (uint64_t b = 0; b < blocks; b++) {
        const uint8_t *plane = panel + kr_panel_plane_offset(type, b) + lane * 4;
        const scales s = load_scales(type, panel, b, lane);
        __m256i n[ROWS_MAX];
#pragma GCC unroll 8
        for (int g = 0; g < KR_PANEL_GROUPS; g++) {
            const __m256i w = unpack_group(type, plane, g);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const kr_quant_meta *m = &a->meta[(row + (uint64_t)r) * blocks + b];
                const int8_t *q = a->q + (row + (uint64_t)r) * a->columns + b * KR_QUANT_BLOCK;
                const bool second = type == KR_W_Q6_K && g == 4;
                if (second)
                    sum[r] = add_scaled(sum[r], s.scale[0], m->scale, n[r]);
                if (g == 0)
                    n[r] = _mm256_set1_epi32(-offset * (type == KR_W_Q6_K ? m->sum_first : m->sum));
                else if (second)
                    n[r] = _mm256_set1_epi32(-offset * (m->sum - m->sum_first));
                n[r] = dot_group(type, n[r], w, q + 4 * g);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const kr_quant_meta *m = &a->meta[(row + (uint64_t)r) * blocks + b];
            sum[r] = add_scaled(sum[r], s.scale[type == KR_W_Q6_K], m->scale, n[r]);
            if (kr_quant_has_minimum(type))
                sum[r] = _mm256_fmadd_ps(s.minimum, _mm256_set1_ps(m->scaled_sum), sum[r]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        _mm256_store_ps(out + r * KR_PANEL_OUTPUTS + lane, sum[r]);
}

KR_INLINE void tile_of(kr_weight_type type, int rows, const kr_quant_dot_args *a, const uint8_t *panel,
                       uint32_t row, float *out)
{
    for (uint32_t lane = 0; lane < KR_PANEL_OUTPUTS; lane += LANES)
        half_of(type, rows, lane, a, panel, row, out);
}

/* One tile function a type, each with its row counts compiled as constants; 16 registers hold
 * four rows, so eight are done in two goes. */
#define KR_DEFINE_TILE(type)                                                                               \
    static void tile_##type(const kr_quant_dot_args *a, const uint8_t *panel, uint32_t row, uint32_t rows, \
                            float *out)                                                                    \
    {                                                                                                      \
        if (rows == 1) {                                                                                   \
            tile_of(type, 1, a, panel, row, out);                                                          \
        } else if (rows == 2) {                                                                            \
            tile_of(type, 2, a, panel, row, out);                                                          \
        } else {                                                                                           \
            for (uint32_t r = 0; r < rows; r += ROWS_MAX)                                                  \
                tile_of(type, ROWS_MAX, a, panel, row + r, out + r * KR_PANEL_OUTPUTS);                    \
        }                                                                                                  \
    }

KR_QUANTISED_LIST(KR_DEFINE_TILE)

void kr_quant_dot_avx2(const kr_quant_dot_args *args)
{
    static const kr_quant_tile_fn tiles[KR_W_TYPES] = {
#define KR_TILE_ENTRY(type) [type] = tile_##type,
        KR_QUANTISED_LIST(KR_TILE_ENTRY)
#undef KR_TILE_ENTRY
    };
    KR_CHECK((unsigned)args->type < KR_W_TYPES && tiles[args->type] != NULL);
    kr_quant_dot_walk(args, tiles[args->type]);
}
