/* Reading stored keys, values and bounds as F32. Included after an ISA's lanes header; type is a
 * constant at every call, so the choice costs nothing. */
#ifndef KR_OPS_LANES_LOAD_H
#define KR_OPS_LANES_LOAD_H

#include <stddef.h>

#include "base/num.h"

#define KR_UNROLL _Pragma("GCC unroll 16")
#define KR_INLINE static inline __attribute__((always_inline))

/* Into the second-level cache: prefetches into the first wait for its few line-fill buffers, which
 * held a scan at 60 % of the read bandwidth that it gets at 90 % this way (EPYC Zen 4). */
#define KR_PREFETCH(address) __builtin_prefetch(address, 0, 2)

/* Vector of elements [element, element + KR_LANES) of an array of type. */
KR_INLINE kr_lanes lanes_load_as(kr_dtype type, const void *array, size_t element)
{
    if (type == KR_F32)
        return lanes_load((const float *)array + element);
    if (type == KR_F16)
        return lanes_from_f16((const uint16_t *)array + element);
    return lanes_from_bf16((const uint16_t *)array + element);
}

KR_INLINE float lanes_load_one(kr_dtype type, const void *array, size_t element)
{
    if (type == KR_F32)
        return ((const float *)array)[element];
    if (type == KR_F16)
        return kr_f32_from_f16(((const uint16_t *)array)[element]);
    return kr_f32_from_bf16(((const uint16_t *)array)[element]);
}

#endif
