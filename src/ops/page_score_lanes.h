/* Body of the vector variants of page_score: lane = dim mod 16. Included once per ISA after its
 * lanes header, with KR_PAGE_SCORE_NAME the function to define.
 *
 * A tile is up to QUERIES queries with UNITS units, all sums in registers: bounds are widened once for the
 * queries of a tile, and on AVX-512 the sums are folded together. */
#include "ops/lanes_load.h"
#include "ops/page_bounds.h"
#include "ops/variants.h"

enum { TILE = 16, H = TILE / KR_LANES, QUERIES = 4, UNITS = KR_LANES == 16 ? 4 : 1, UNITS_AHEAD = 24 };

/* Sums of n queries with `units` units from u on. n, units and type are constants at every call. */
KR_INLINE void sum_tile(const kr_page_score_args *a, uint32_t q, uint64_t u, const uint32_t n,
                        const uint32_t units, const kr_dtype type, kr_lanes sum[QUERIES * UNITS][H])
{
    const float *query = a->query + (size_t)q * a->query_stride;

    KR_UNROLL for (uint32_t i = 0; i < QUERIES * UNITS; i++) KR_UNROLL for (uint32_t h = 0; h < H; h++)
        sum[i][h] = lanes_set(0.0f);
    for (uint32_t c = 0; c < a->dim; c += TILE)
        KR_UNROLL for (uint32_t h = 0; h < H; h++) KR_UNROLL for (uint32_t i = 0; i < units; i++)
        {
            const kr_lanes max = lanes_load_as(type, a->bounds[u + i], c + h * KR_LANES);
            const kr_lanes min = lanes_load_as(type, a->bounds[u + i], a->dim + c + h * KR_LANES);

            KR_UNROLL for (uint32_t r = 0; r < n; r++)
            {
                const kr_lanes x = lanes_load(query + (size_t)r * a->query_stride + c + h * KR_LANES);

                sum[r * UNITS + i][h] = lanes_add(sum[r * UNITS + i][h],
                                                  lanes_max(lanes_mul(max, x), lanes_mul(min, x)));
            }
        }
}

KR_INLINE void score_tile(const kr_page_score_args *a, uint32_t q, uint64_t u, const uint32_t n,
                          const uint32_t units, const kr_dtype type)
{
    float *score = a->score + q * a->score_stride + u;
    kr_lanes sum[QUERIES * UNITS][H];

    sum_tile(a, q, u, n, units, type, sum);
#if KR_LANES == 16
    float folded[QUERIES * UNITS];
    kr_lanes flat[QUERIES * UNITS];

    KR_UNROLL for (uint32_t i = 0; i < QUERIES * UNITS; i++) flat[i] = sum[i][0];
    lanes_store(folded, lanes_fold16(flat));
    KR_UNROLL for (uint32_t r = 0; r < n; r++)
        __builtin_memcpy(score + r * a->score_stride, folded + r * UNITS, sizeof(float) * units);
#else
    KR_UNROLL for (uint32_t r = 0; r < n; r++) KR_UNROLL for (uint32_t i = 0; i < units; i++)
        score[r * a->score_stride + i] = lanes_sum16(sum[r * UNITS + i]);
#endif
}

/* All queries with the units of a tile, whose bounds then stay in the first-level cache. */
KR_INLINE void score_units(const kr_page_score_args *a, uint64_t u, const uint32_t units, const kr_dtype type)
{
    const size_t bytes = 2 * (size_t)a->dim * kr_dtype_bytes(type);
    uint32_t q = 0;

    for (uint64_t i = u + UNITS_AHEAD; i < u + UNITS_AHEAD + units && i < a->units; i++)
        for (size_t b = 0; b < bytes; b += 64)
            KR_PREFETCH((const char *)a->bounds[i] + b);
    for (; q + QUERIES <= a->queries; q += QUERIES)
        score_tile(a, q, u, QUERIES, units, type);
    if (q + 3 == a->queries)
        score_tile(a, q, u, 3, units, type);
    else if (q + 2 == a->queries)
        score_tile(a, q, u, 2, units, type);
    else if (q < a->queries)
        score_tile(a, q, u, 1, units, type);
}

KR_INLINE void all_units(const kr_page_score_args *a, const kr_dtype type)
{
    uint64_t u = 0;

    for (; u + UNITS <= a->units; u += UNITS)
        score_units(a, u, UNITS, type);
    for (; u < a->units; u++)
        score_units(a, u, 1, type);
}

void KR_PAGE_SCORE_NAME(const kr_page_score_args *a)
{
    if (a->dim % TILE != 0)
        kr_page_score_scalar(a); /* no model's head */
    else if (a->type == KR_F32)
        all_units(a, KR_F32);
    else if (a->type == KR_F16)
        all_units(a, KR_F16);
    else
        all_units(a, KR_BF16);
}
