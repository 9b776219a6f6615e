/* The definition of the softmax of a row. Read, never tuned: the variants answer to it. */
#include "ops/softmax.h"

#include <float.h>

#include "ops/attend_exp.h"
#include "ops/fold16.h"
#include "ops/variants.h"

enum { CHAINS = 16 };

void kr_softmax_scalar(const kr_softmax_args *a)
{
    /* The largest finite-or-infinite score; the lowest finite one keeps -inf - (-inf) out. */
    float maximum = -FLT_MAX, chain[CHAINS] = {0};

    for (uint64_t i = 0; i < a->n; i++)
        maximum = a->score[i] > maximum ? a->score[i] : maximum;
    for (uint64_t i = 0; i < a->n; i++) {
        a->score[i] = kr_exp_f32((a->score[i] - maximum) * a->scale);
        chain[i % CHAINS] += a->score[i];
    }
    const float total = kr_fold16(chain), inverse = total == 0.0f ? 0.0f : 1.0f / total;

    for (uint64_t i = 0; i < a->n; i++) {
        const float share = a->score[i] * inverse;

        a->out[i] = a->add ? a->out[i] + share : share;
    }
}
