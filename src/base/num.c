/* Conversions between F32 and the narrow float formats, and the names of the formats.
 *
 * A subnormal result is rounded by one float addition: adding the power of two whose last
 * mantissa bit equals the format's smallest step leaves the rounded count of steps in the low
 * bits of the sum. It relies on the default rounding mode (nearest, ties to even), as all of karat does. */
#include "base/num.h"

#include <stdlib.h>

#include "base/check.h"

static const char *const names[KR_DTYPE_COUNT] = {"f32", "f16", "bf16", "e4m3", "i8"};

const char *kr_dtype_name(kr_dtype type) { return (unsigned)type < KR_DTYPE_COUNT ? names[type] : "?"; }

bool kr_dtype_parse(const char *name, kr_dtype *type)
{
    for (int i = 0; i < KR_DTYPE_COUNT; i++) {
        if (strcmp(name, names[i]) == 0) {
            *type = (kr_dtype)i;
            return true;
        }
    }
    return false;
}

float kr_f32_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 0x1fu;
    const uint32_t mantissa = h & 0x3ffu;

    if (exponent == 0) {
        const float magnitude = (float)mantissa * 0x1p-24f;
        return kr_f32_from_bits(sign | kr_f32_bits(magnitude));
    }
    if (exponent == 31) {
        const uint32_t quiet = mantissa != 0 ? 0x400000u : 0; /* as the F16C instructions do */
        return kr_f32_from_bits(sign | 0x7f800000u | quiet | mantissa << 13);
    }
    return kr_f32_from_bits(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

uint16_t kr_f16_from_f32(float x)
{
    const uint32_t bits = kr_f32_bits(x);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t u = bits & 0x7fffffffu;

    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((u >> 13) & 0x1ffu));
    if (u >= 0x47800000u) /* 65536 and up */
        return (uint16_t)(sign | 0x7c00u);
    if (u < 0x38800000u) { /* below 2^-14: a count of 2^-24 */
        const uint32_t steps = kr_f32_bits(kr_f32_from_bits(u) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | steps);
    }
    const uint32_t rounded = u + 0xfffu + ((u >> 13) & 1u); /* a carry may reach infinity: correct */
    return (uint16_t)(sign | ((rounded >> 13) - ((127u - 15u) << 10)));
}

float kr_f32_from_e4m3(uint8_t b)
{
    const uint32_t sign = (uint32_t)(b & 0x80u) << 24;
    const uint32_t exponent = (b >> 3) & 0xfu;
    const uint32_t mantissa = b & 7u;

    if (exponent == 0) {
        const float magnitude = (float)mantissa * 0x1p-9f;
        return kr_f32_from_bits(sign | kr_f32_bits(magnitude));
    }
    if (exponent == 15 && mantissa == 7)
        return kr_f32_from_bits(sign | 0x7fc00000u);
    return kr_f32_from_bits(sign | (exponent + 127 - 7) << 23 | mantissa << 20);
}

uint8_t kr_e4m3_from_f32(float x)
{
    const uint32_t bits = kr_f32_bits(x);
    const uint32_t sign = (bits >> 24) & 0x80u;
    const uint32_t u = bits & 0x7fffffffu;

    if (u > 0x7f800000u)
        return (uint8_t)(sign | 0x7fu);
    if (u >= 0x43e00000u) /* 448 and up */
        return (uint8_t)(sign | 0x7eu);
    if (u < 0x3c800000u) { /* below 2^-6: a count of 2^-9 */
        const uint32_t steps = kr_f32_bits(kr_f32_from_bits(u) + 16384.0f) - 0x46800000u;
        return (uint8_t)(sign | steps);
    }
    const uint32_t rounded = u + 0x7ffffu + ((u >> 20) & 1u);
    return (uint8_t)(sign | ((rounded >> 20) - ((127u - 7u) << 3)));
}

void kr_to_f32(kr_dtype type, const void *source, float *target, size_t n)
{
    const uint16_t *half = source;
    const uint8_t *byte = source;

    switch (type) {
    case KR_F32:
        if (n != 0)
            memcpy(target, source, n * sizeof *target);
        return;
    case KR_F16:
        for (size_t i = 0; i < n; i++)
            target[i] = kr_f32_from_f16(half[i]);
        return;
    case KR_BF16:
        for (size_t i = 0; i < n; i++)
            target[i] = kr_f32_from_bf16(half[i]);
        return;
    case KR_E4M3:
        for (size_t i = 0; i < n; i++)
            target[i] = kr_f32_from_e4m3(byte[i]);
        return;
    case KR_I8:
        break;
    }
    KR_CHECK(!"a floating type");
}

void kr_from_f32(kr_dtype type, const float *source, void *target, size_t n)
{
    uint16_t *half = target;
    uint8_t *byte = target;

    switch (type) {
    case KR_F32:
        if (n != 0)
            memcpy(target, source, n * sizeof *source);
        return;
    case KR_F16:
        for (size_t i = 0; i < n; i++)
            half[i] = kr_f16_from_f32(source[i]);
        return;
    case KR_BF16:
        for (size_t i = 0; i < n; i++)
            half[i] = kr_bf16_from_f32(source[i]);
        return;
    case KR_E4M3:
        for (size_t i = 0; i < n; i++)
            byte[i] = kr_e4m3_from_f32(source[i]);
        return;
    case KR_I8:
        break;
    }
    KR_CHECK(!"a floating type");
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void kr_sort_reals(double *value, size_t count) { qsort(value, count, sizeof *value, by_value); }
