/* The body of row_ops.h, included by one file per instruction set; the compiler lowers the vectors
 * of 16 lanes to what that set has. An including file builds its table from KR_ROW_OPS_ENTRIES. */
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "ops/row_ops.h"

#define KR_INLINE static inline __attribute__((always_inline))

enum { LANES = 16 };
typedef float f32v __attribute__((vector_size(64)));
typedef int32_t i32v __attribute__((vector_size(64)));
typedef uint32_t u32v __attribute__((vector_size(64)));
typedef int8_t i8v __attribute__((vector_size(16)));
typedef uint16_t u16v __attribute__((vector_size(32)));

KR_INLINE f32v load(const float *p)
{
    f32v v;
    memcpy(&v, p, sizeof v);
    return v;
}

KR_INLINE void store(float *p, f32v v) { memcpy(p, &v, sizeof v); }

KR_INLINE f32v splat(float x) { return x - (f32v){0}; }

/* mask lanes are all ones or all zeros. */
KR_INLINE f32v choose(i32v mask, f32v yes, f32v no)
{
    return (f32v)(((i32v)yes & mask) | ((i32v)no & ~mask));
}

/* The last n % 16 elements of a row, padded with zeros, so that every element takes one path. */
KR_INLINE f32v load_part(const float *p, uint32_t count)
{
    float padded[LANES] = {0};
    memcpy(padded, p, count * sizeof *p);
    return load(padded);
}

KR_INLINE void store_part(float *p, f32v v, uint32_t count)
{
    float padded[LANES];
    store(padded, v);
    memcpy(p, padded, count * sizeof *p);
}

static void rms_norm(const float *x, const float *weight, float eps, float *y, uint32_t n)
{
    const uint32_t whole = n / LANES * LANES;
    f32v squares = {0};
    double sum = 0.0;

    for (uint32_t i = 0; i < whole; i += LANES)
        squares += load(x + i) * load(x + i);
    if (whole < n) {
        const f32v last = load_part(x + whole, n - whole);
        squares += last * last;
    }
    for (uint32_t lane = 0; lane < LANES; lane++)
        sum += (double)squares[lane];
    const float scale = (float)(1.0 / sqrt(sum / n + (double)eps));

    for (uint32_t i = 0; i < whole; i += LANES)
        store(y + i, load(x + i) * scale * load(weight + i));
    for (uint32_t i = whole; i < n; i++)
        y[i] = x[i] * scale * weight[i];
}

KR_INLINE f32v swap_pairs(f32v v)
{
    return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
}

static void rope(float *x, const float *table, uint32_t dims, bool interleaved)
{
    const float *own = table, *partner = table + dims;
    const uint32_t half = dims / 2;
    uint32_t i = 0;

    if (interleaved) {
        for (; i + LANES <= dims; i += LANES) {
            const f32v v = load(x + i);
            store(x + i, v * load(own + i) + swap_pairs(v) * load(partner + i));
        }
        for (; i < dims; i += 2) {
            const float a = x[i], b = x[i + 1];
            x[i] = a * own[i] + b * partner[i];
            x[i + 1] = b * own[i + 1] + a * partner[i + 1];
        }
        return;
    }
    for (; i + LANES <= half; i += LANES) {
        const f32v a = load(x + i), b = load(x + half + i);
        store(x + i, a * load(own + i) + b * load(partner + i));
        store(x + half + i, b * load(own + half + i) + a * load(partner + half + i));
    }
    for (; i < half; i++) {
        const float a = x[i], b = x[half + i];
        x[i] = a * own[i] + b * partner[i];
        x[half + i] = b * own[half + i] + a * partner[half + i];
    }
}

/* Adding 1.5 * 2^23 leaves the nearest integer (ties to even) in a float's low mantissa bits. */
static const float round_magic = 12582912.0f;

/* e^x = 2^k * e^r with k = round(x / ln 2), |r| <= ln 2 / 2, e^r by its series to r^7 / 7!, whose
 * rest is below 6e-9. x is held inside [-87, 88], where e^x is a normal number. */
KR_INLINE f32v exponential(f32v x)
{
    x = choose(x < splat(-87.0f), splat(-87.0f), x);
    x = choose(x > splat(88.0f), splat(88.0f), x);
    const f32v shifted = x * 1.44269504f + round_magic; /* 1 / ln 2 */
    const f32v k = shifted - round_magic;
    const f32v r = x - k * 0.693359375f - k * -2.12194440e-4f; /* ln 2 in two parts, the first exact */
    f32v e = splat(1.0f / 5040.0f);

    e = e * r + 1.0f / 720.0f;
    e = e * r + 1.0f / 120.0f;
    e = e * r + 1.0f / 24.0f;
    e = e * r + 1.0f / 6.0f;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    const i32v exponent = (i32v)shifted - (i32v)splat(round_magic);
    return (f32v)((u32v)e + ((u32v)exponent << 23));
}

KR_INLINE f32v silu(f32v x) { return x / (1.0f + exponential(-x)); }

/* 0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3). */
KR_INLINE f32v gelu_tanh(f32v x)
{
    return x / (1.0f + exponential(-1.59576912f * (x + 0.044715f * (x * x * x))));
}

#define KR_DEFINE_GATE(name, activation)                                              \
    static void name(const float *gate, const float *up, float *y, uint32_t n)        \
    {                                                                                 \
        const uint32_t whole = n / LANES * LANES, left = n - whole;                   \
        for (uint32_t i = 0; i < whole; i += LANES)                                   \
            store(y + i, activation(load(gate + i)) * load(up + i));                  \
        if (left != 0) {                                                              \
            const f32v g = load_part(gate + whole, left);                             \
            store_part(y + whole, activation(g) * load_part(up + whole, left), left); \
        }                                                                             \
    }

KR_DEFINE_GATE(silu_mul, silu)
KR_DEFINE_GATE(gelu_mul, gelu_tanh)

KR_INLINE i32v larger(i32v a, i32v b)
{
    const i32v mask = a > b;
    return (a & mask) | (b & ~mask);
}

/* The largest lane: halves folded onto each other. */
KR_INLINE int32_t largest(i32v v)
{
    v = larger(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    v = larger(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3));
    v = larger(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1));
    return v[0] > v[1] ? v[0] : v[1];
}

KR_INLINE int32_t total(i32v v)
{
    int32_t sum = 0;
    for (uint32_t lane = 0; lane < LANES; lane++)
        sum += v[lane];
    return sum;
}

KR_INLINE i32v nearest(f32v x) { return (i32v)(x + round_magic) - (i32v)splat(round_magic); }

/* Bits of |x|: as integers they order like the magnitudes, infinity and NaN above all numbers. */
KR_INLINE i32v magnitude(f32v x) { return (i32v)x & 0x7fffffff; }

KR_INLINE void quantise_block(const float *x, int8_t *q, kr_quant_meta *meta)
{
    f32v x0 = load(x), x1 = load(x + LANES);
    const float maximum = kr_f32_from_bits((uint32_t)largest(larger(magnitude(x0), magnitude(x1))));
    float inverse = 0.0f, scale = 0.0f;

    if (!(maximum < INFINITY)) {
        x0 = x1 = (f32v){0};
        scale = NAN;
    } else if (maximum >= 0x1p-118f) {
        inverse = 127.0f / maximum;
        scale = maximum / 127.0f;
    }
    const i32v q0 = nearest(x0 * inverse), q1 = nearest(x1 * inverse);
    const i8v low = __builtin_convertvector(q0, i8v), high = __builtin_convertvector(q1, i8v);
    const int32_t first = total(q0), sum = first + total(q1);

    memcpy(q, &low, sizeof low);
    memcpy(q + LANES, &high, sizeof high);
    *meta = (kr_quant_meta){.scale = scale, .scaled_sum = scale * (float)sum, .sum = sum, .sum_first = first};
}

static void quantise(const float *x, uint32_t n, int8_t *q, kr_quant_meta *meta)
{
    for (uint32_t b = 0; b < n / KR_QUANT_BLOCK; b++)
        quantise_block(x + b * KR_QUANT_BLOCK, q + b * KR_QUANT_BLOCK, &meta[b]);
}

static void to_bf16(const float *x, uint32_t n, uint16_t *y)
{
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        const u32v u = (u32v)load(x + i);
        const u32v is_nan = (u32v)((u & 0x7fffffffu) > 0x7f800000u);
        const u32v rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
        const u16v bits = __builtin_convertvector((quiet & is_nan) | (rounded & ~is_nan), u16v);
        memcpy(y + i, &bits, sizeof bits);
    }
    for (; i < n; i++)
        y[i] = kr_bf16_from_f32(x[i]);
}

static void add(float *y, const float *x, uint32_t n)
{
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES)
        store(y + i, load(y + i) + load(x + i));
    for (; i < n; i++)
        y[i] += x[i];
}

/* min(gate, 7) * sigmoid(1.702 min(gate, 7)) * (clamp(up, -7, 7) + 1). */
KR_INLINE f32v gated_oai(f32v gate, f32v up)
{
    const f32v limit = splat(7.0f);

    gate = choose(gate > limit, limit, gate);
    up = choose(up > limit, limit, up);
    up = choose(up < -limit, -limit, up);
    return (up + 1.0f) * (gate / (1.0f + exponential(-1.702f * gate)));
}

static void swiglu_oai(const float *gate, const float *up, float *y, uint32_t n)
{
    const uint32_t whole = n / LANES * LANES, left = n - whole;

    for (uint32_t i = 0; i < whole; i += LANES)
        store(y + i, gated_oai(load(gate + i), load(up + i)));
    if (left != 0)
        store_part(y + whole, gated_oai(load_part(gate + whole, left), load_part(up + whole, left)), left);
}

#define KR_ROW_OPS_ENTRIES                                                          \
    .rms_norm = rms_norm, .rope = rope, .silu_mul = silu_mul, .gelu_mul = gelu_mul, \
    .swiglu_oai = swiglu_oai, .quantise = quantise, .to_bf16 = to_bf16, .add = add
