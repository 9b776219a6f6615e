/* Number formats of keys, values and weights, and arithmetic on untrusted sizes.
 *
 * All conversions to a narrower format round to nearest, ties to even. E4M3 is the "fn" form:
 * largest finite 448, no infinity, NaN is 0x7f/0xff; encoding saturates, decoding keeps NaN. */
#ifndef KR_BASE_NUM_H
#define KR_BASE_NUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Element type of a stored array. Values are part of the wire and file formats. */
typedef enum {
    KR_F32 = 0,
    KR_F16 = 1,
    KR_BF16 = 2,
    KR_E4M3 = 3,
    KR_I8 = 4,
} kr_dtype;

enum { KR_DTYPE_COUNT = 5 };

/* Bytes of one element; 0 for an unknown type. */
static inline uint32_t kr_dtype_bytes(kr_dtype type)
{
    static const uint8_t bytes[KR_DTYPE_COUNT] = {4, 2, 2, 1, 1};
    return (unsigned)type < KR_DTYPE_COUNT ? bytes[type] : 0;
}

/* "f32", "f16", "bf16", "e4m3", "i8"; "?" for an unknown type. */
const char *kr_dtype_name(kr_dtype type);
/* Parses such a name; false leaves *type alone. */
bool kr_dtype_parse(const char *name, kr_dtype *type);

static inline uint32_t kr_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float kr_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float kr_f32_from_bf16(uint16_t h) { return kr_f32_from_bits((uint32_t)h << 16); }

static inline uint16_t kr_bf16_from_f32(float x)
{
    const uint32_t u = kr_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u); /* quiet NaN, sign kept */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float kr_f32_from_f16(uint16_t h);
uint16_t kr_f16_from_f32(float x);
float kr_f32_from_e4m3(uint8_t b);
uint8_t kr_e4m3_from_f32(float x);

/* Converts n elements between F32 and the given floating type; the arrays must not overlap.
 * Only KR_F32, KR_F16, KR_BF16 and KR_E4M3 are legal. */
void kr_to_f32(kr_dtype type, const void *source, float *target, size_t n);
void kr_from_f32(kr_dtype type, const float *source, void *target, size_t n);

/* *out = a op b; true when the result fits, false (and *out untouched) when it does not. */
static inline bool kr_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline bool kr_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

/* Ascending; none of the values may be NaN. */
void kr_sort_reals(double *value, size_t count);

static inline uint64_t kr_ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
/* Smallest multiple of unit (a power of two) that is >= a; a + unit must not wrap. */
static inline uint64_t kr_align_up(uint64_t a, uint64_t unit) { return (a + unit - 1) & ~(unit - 1); }

#endif
