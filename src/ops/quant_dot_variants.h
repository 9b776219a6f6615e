/* Implementations of quant_dot.h, best first, for its chooser, tests and benches. */
#ifndef KR_OPS_QUANT_DOT_VARIANTS_H
#define KR_OPS_QUANT_DOT_VARIANTS_H

#include "ops/quant_dot.h"

typedef struct {
    const char *name;
    bool (*usable)(void);
    kr_quant_dot_fn run;
} kr_quant_dot_variant;

extern const kr_quant_dot_variant kr_quant_dot_variants[];
extern const uint32_t kr_quant_dot_variant_count; /* the last one is scalar */

#if defined(__x86_64__)
void kr_quant_dot_avx2(const kr_quant_dot_args *args);
void kr_quant_dot_avx512(const kr_quant_dot_args *args);
#endif

#endif
