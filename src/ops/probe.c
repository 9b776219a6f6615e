/* The list of probe loops, and the one that every CPU can run. */
#include "ops/probe.h"

#include <math.h>
#include <stddef.h>

#include "ops/cpu.h"

/* What plain C reaches: four chains of multiply and add. */
static double f32_scalar(uint32_t iterations, float *sink)
{
    float a = 1.0f, b = 1.0f, c = 1.0f, d = 1.0f;

    for (uint32_t i = 0; i < iterations; i++) {
        a = a * 0.999f + 0.001f;
        b = b * 0.998f + 0.001f;
        c = c * 0.997f + 0.001f;
        d = d * 0.996f + 0.001f;
    }
    *sink = a + b + c + d;
    return 8.0 * iterations;
}

typedef uint64_t pair __attribute__((vector_size(16)));

uint64_t kr_probe_read(const void *memory, size_t bytes)
{
    const pair *at = memory, *end = at + bytes / sizeof *at;
    pair a = {0}, b = {0}, c = {0}, d = {0};

    for (; at < end; at += 4) {
        a += at[0];
        b += at[1];
        c += at[2];
        d += at[3];
    }
    a += b + c + d;
    return a[0] + a[1];
}

const kr_probe kr_probes[] = {
#if defined(__x86_64__)
    {"avx512", KR_PROBE_F32_FMA, kr_cpu_avx512, kr_probe_f32_avx512},
    {"avx2", KR_PROBE_F32_FMA, kr_cpu_avx2, kr_probe_f32_avx2},
    {"avx512bf16", KR_PROBE_BF16_DOT, kr_cpu_avx512bf16, kr_probe_bf16_avx512},
    {"avx512fp16", KR_PROBE_F16_FMA, kr_cpu_avx512fp16, kr_probe_f16_avx512},
    {"avx512", KR_PROBE_I8_DOT, kr_cpu_avx512, kr_probe_i8_avx512},
#endif
    {"scalar", KR_PROBE_F32_FMA, kr_cpu_always, f32_scalar},
    {NULL, KR_PROBE_UNITS, NULL, NULL},
};
