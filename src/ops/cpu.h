/* Which instruction sets this CPU has, as the variants of ops/ need them. A variant's file is
 * compiled for a whole set of extensions (Makefile), so each question asks for all of that set. */
#ifndef KR_OPS_CPU_H
#define KR_OPS_CPU_H

#include <stdbool.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static inline bool kr_cpu_always(void) { return true; }

#if defined(__x86_64__)
static inline bool kr_cpu_avx2(void)
{
    /* Every AVX2 CPU has F16C; clang 14 does not know its name here. */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static inline bool kr_cpu_avx512(void)
{
    return kr_cpu_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}

static inline bool kr_cpu_avx512bf16(void) { return kr_cpu_avx512() && __builtin_cpu_supports("avx512bf16"); }

/* Not every compiler's __builtin_cpu_supports knows the name: CPUID leaf 7, EDX bit 23. */
static inline bool kr_cpu_avx512fp16(void)
{
    unsigned a, b, c, d;
    return kr_cpu_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 23 & 1) != 0;
}
#endif

#endif
