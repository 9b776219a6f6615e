/* The definitions of what makes an index key; there are no variants. */
#include "ops/index_key.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/num.h"

static const float amax_floor = 1e-4f, e4m3_largest_inverse = 1.0f / 448.0f;

void kr_layer_norm(float *x, const float *weight, const float *bias, uint32_t dim, double eps)
{
    double mean = 0.0, variance = 0.0;

    for (uint32_t i = 0; i < dim; i++)
        mean += (double)x[i];
    mean /= dim;
    for (uint32_t i = 0; i < dim; i++)
        variance += ((double)x[i] - mean) * ((double)x[i] - mean);
    const double inverse = 1.0 / sqrt(variance / dim + eps);

    for (uint32_t i = 0; i < dim; i++)
        x[i] = (float)(((double)x[i] - mean) * inverse * (double)weight[i] + (double)bias[i]);
}

void kr_rope_first(float *x, const float *inv_freq, uint32_t dims, uint64_t position, bool interleaved)
{
    const uint32_t half = dims / 2;

    for (uint32_t i = 0; i < half; i++) {
        const double angle = (double)position * (double)inv_freq[i], c = cos(angle), s = sin(angle);
        float *a = interleaved ? x + 2 * i : x + i, *b = interleaved ? a + 1 : a + half;
        const double first = (double)*a, second = (double)*b;

        *a = (float)(first * c - second * s);
        *b = (float)(first * s + second * c);
    }
}

void kr_hadamard(float *x, uint32_t dim)
{
    KR_CHECK(dim != 0 && (dim & (dim - 1)) == 0);
    for (uint32_t half = 1; half < dim; half *= 2)
        for (uint32_t block = 0; block < dim; block += 2 * half)
            for (uint32_t i = block; i < block + half; i++) {
                const float sum = x[i] + x[i + half], difference = x[i] - x[i + half];

                x[i] = sum;
                x[i + half] = difference;
            }
    for (uint32_t i = 0; i < dim; i++)
        x[i] *= 1.0f / sqrtf((float)dim);
}

float kr_e4m3_quantise(const float *x, uint32_t dim, uint8_t *code)
{
    float amax = amax_floor;
    bool finite = true;
    int exponent;

    for (uint32_t i = 0; i < dim; i++) {
        finite = finite && isfinite(x[i]);
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    }
    if (!finite) {
        memset(code, 0x7f, dim);
        return 1.0f;
    }
    /* amax/448 = m * 2^exponent with m in [0.5, 1): its ceiling power of two is 2^exponent, or half
     * of that where m is exactly 0.5. */
    const float m = frexpf(amax * e4m3_largest_inverse, &exponent);
    const float scale = ldexpf(1.0f, m == 0.5f ? exponent - 1 : exponent);

    for (uint32_t i = 0; i < dim; i++)
        code[i] = kr_e4m3_from_f32(x[i] / scale);
    return scale;
}
