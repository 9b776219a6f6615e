/* Loops of nothing but independent multiply-adds, or of reads, to find what this CPU can do. */
#ifndef KR_OPS_PROBE_H
#define KR_OPS_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    KR_PROBE_F32_FMA,
    KR_PROBE_BF16_DOT,
    KR_PROBE_F16_FMA,
    KR_PROBE_I8_DOT,
    KR_PROBE_UNITS
} kr_probe_unit;

typedef struct {
    const char *name;
    kr_probe_unit unit;
    bool (*usable)(void);
    /* Runs iterations of the loop and returns the operations done (a multiply-add counts 2). *sink
     * gets a value that depends on all of them. */
    double (*run)(uint32_t iterations, float *sink);
} kr_probe;

/* Ends with a NULL name. */
extern const kr_probe kr_probes[];

/* Reads bytes (a multiple of 64) once, in order, as fast as plain C can: four sums that the compiler keeps
 * in registers. Returns a value that depends on all of them. */
uint64_t kr_probe_read(const void *memory, size_t bytes);

#if defined(__x86_64__)
double kr_probe_f32_avx2(uint32_t iterations, float *sink);
double kr_probe_f32_avx512(uint32_t iterations, float *sink);
double kr_probe_i8_avx512(uint32_t iterations, float *sink);
double kr_probe_bf16_avx512(uint32_t iterations, float *sink);
double kr_probe_f16_avx512(uint32_t iterations, float *sink);
#endif

#endif
