/* What the caller's arrays must be like, wherever they are taken. */
#include "api/inside.h"

kr_status kr_api_strides(const char *name, uint64_t count, uint32_t heads, uint32_t dim,
                         uint64_t *token_stride, uint64_t *head_stride, kr_err *err)
{
    const uint64_t reach_max = (uint64_t)1 << 56; /* elements; addresses have fewer bytes */
    uint64_t tokens, all;

    *head_stride = *head_stride != 0 ? *head_stride : dim;
    *token_stride = *token_stride != 0 ? *token_stride : (uint64_t)heads * dim;
    if (*head_stride < dim || *token_stride < dim)
        return kr_fail(err, KR_E_ARG, "%s: strides of %llu (token) and %llu (head) overlap rows of %u", name,
                       (unsigned long long)*token_stride, (unsigned long long)*head_stride, dim);
    if (!kr_mul_u64(count - 1, *token_stride, &tokens) || !kr_mul_u64(heads - 1, *head_stride, &all) ||
        !kr_add_u64(tokens, all, &all) || all > reach_max)
        return kr_fail(err, KR_E_LIMIT, "%s: strides of %llu (token) and %llu (head) reach beyond memory",
                       name, (unsigned long long)*token_stride, (unsigned long long)*head_stride);
    return KR_OK;
}

kr_status kr_api_units(const uint32_t *count, const uint32_t *unit, uint32_t lists, uint32_t stride,
                       uint64_t units, kr_err *err)
{
    for (uint32_t l = 0; l < lists; l++) {
        const uint32_t *own = unit + (uint64_t)l * stride;

        if (count[l] > stride)
            return kr_fail(err, KR_E_ARG, "list %u has %u units in a stride of %u", l, count[l], stride);
        for (uint32_t i = 0; i < count[l]; i++)
            if (own[i] >= units || (i > 0 && own[i] <= own[i - 1]))
                return kr_fail(err, KR_E_ARG, "list %u, entry %u: unit %u; ascending below %llu", l, i,
                               own[i], (unsigned long long)units);
    }
    return KR_OK;
}
