/* The static order of each resource class: the coarse-grained schedule (SCMS) of the KARAT paper's
 * section III-E.
 *
 * Compute ops fall into blocks that end where the rank waits for attention: block l + 1 of a
 * micro-batch is output projection to QKV projection. Blocks of the micro-batches alternate. Inside
 * a block the rank waits for its own all-to-alls; filling that wait is what OFMS does.
 * Without a memory node there is no such wait, and blocks end at the all-to-alls instead, so that
 * one micro-batch's messages travel under the other's computation. */
#include "base/check.h"
#include "program/terms.h"

/* Number of the block that each op falls into; block[i] for a dep is known before op i. */
static uint32_t number_blocks(const kr_program *p, uint32_t *block)
{
    const kr_resource ends = p->parallel.placement == KR_PLACE_ALL_ON_COMPUTE ? KR_ON_A2A : KR_ON_LINK;
    uint32_t blocks = 0;

    for (uint32_t i = 0; i < p->count; i++) {
        const kr_op *op = &p->ops[i];
        bool waits = false;

        block[i] = 0;
        for (uint32_t d = 0; d < op->dep_count; d++) {
            const uint32_t dep = op->dep[d];

            if (block[dep] > block[i])
                block[i] = block[dep];
            waits |= p->ops[dep].resource == ends;
        }
        block[i] += waits && op->resource == KR_ON_COMPUTE;
        if (block[i] >= blocks)
            blocks = block[i] + 1;
    }
    return blocks;
}

/* Within a micro-batch the ops of one class are in block order already, so this is a merge. */
static void merge(kr_program *p, kr_resource resource, const uint32_t *block, uint32_t blocks)
{
    const uint32_t *first = p->first_of_micro_batch;
    uint32_t next[KR_MICRO_BATCHES_MAX], n = 0;

    for (uint32_t m = 0; m < p->parallel.micro_batches; m++)
        next[m] = first[m];
    for (uint32_t b = 0; b < blocks; b++) {
        for (uint32_t m = 0; m < p->parallel.micro_batches; m++) {
            for (; next[m] < first[m + 1]; next[m]++) {
                if (p->ops[next[m]].resource != resource)
                    continue;
                if (block[next[m]] > b)
                    break;
                KR_CHECK(block[next[m]] == b);
                p->order[resource][n++] = next[m];
            }
        }
    }
    KR_CHECK(n == p->order_count[resource]);
}

kr_status kr_program_order(kr_program *p, kr_arena *arena, kr_err *err)
{
    uint32_t *block = kr_arena_take(arena, p->count * sizeof *block);
    uint32_t blocks;

    for (uint32_t i = 0; i < p->count; i++)
        p->order_count[p->ops[i].resource]++;
    for (uint32_t r = 0; r < KR_RESOURCE_COUNT; r++) {
        p->order[r] = kr_arena_take(arena, p->order_count[r] * sizeof(uint32_t));
        if (block == NULL || (p->order_count[r] != 0 && p->order[r] == NULL))
            return kr_fail(err, KR_E_MEMORY, "program: the arena is full");
    }
    blocks = number_blocks(p, block);
    for (uint32_t r = 0; r < KR_RESOURCE_COUNT; r++)
        merge(p, (kr_resource)r, block, blocks);
    return KR_OK;
}
