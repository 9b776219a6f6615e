/* Small models, programs and devices for the tests of sim/: random, but drawn from (seed, stream). */
#ifndef TESTS_SIM_TINY_H
#define TESTS_SIM_TINY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "sim/sim.h"
#include "tests/tiny_model.h"

typedef struct {
    kr_model model;
    kr_arena arena;
    kr_program program;
} tiny;

/* GQA with block selection in some layers, dense in others, and experts in some. */
static inline kr_model tiny_model(kr_rng *rng)
{
    kr_model m = tiny_base_model(1 + (uint32_t)kr_rng_below(rng, 4));

    for (uint32_t l = 0; l < m.layers; l++)
        m.layer[l] = (kr_layer){.ffn = kr_rng_below(rng, 3) == 0 ? KR_FFN_DENSE : KR_FFN_MOE,
                                .indexed = kr_rng_below(rng, 3) != 0,
                                .index_owner = (uint16_t)l};
    return m;
}

static inline void tiny_build(tiny *t, const kr_model *model, const kr_parallel *parallel)
{
    static kr_method_config configs[KR_LAYERS_MAX];
    kr_err err;

    for (uint32_t l = 0; l < KR_LAYERS_MAX; l++)
        memcpy(configs[l].name, "native", 7);
    t->model = *model;
    if (kr_model_check(&t->model, &err) != KR_OK || kr_arena_init(&t->arena, 1 << 20, &err) != KR_OK ||
        kr_program_build(&t->program, &t->arena, &t->model, configs, parallel, 1 << 20, &err) != KR_OK)
        fail_msg("%s", err.text);
}

static inline void tiny_free(tiny *t) { kr_arena_free(&t->arena); }

static inline kr_parallel tiny_parallel(kr_rng *rng, uint32_t ranks)
{
    return (kr_parallel){
        .tp = 1,
        .ep = kr_rng_below(rng, 2) ? 2 : 1,
        .dp = ranks,
        .micro_batches = 1 + (uint32_t)kr_rng_below(rng, 3),
        .placement = (kr_placement)kr_rng_below(rng, 3),
        .activation = KR_BF16,
        .dispatch = KR_E4M3,
        .combine = KR_BF16,
    };
}

static inline kr_device_model tiny_device(const char *name)
{
    kr_device_model d = {
        .flops_f32 = 1e12,
        .flops_bf16 = 4e12,
        .memory_bytes_per_s = 1e11,
        .memory_bytes = 1e9,
        .link_bytes_per_s = 1e9,
        .link_latency_s = 1e-6,
        .fixed_s = 1e-6,
        .flops_efficiency = 1.0,
        .memory_efficiency = 1.0,
        .tdp_w = 100.0,
    };

    snprintf(d.name, sizeof d.name, "%s", name);
    for (unsigned k = 0; k < KR_OP_KINDS; k++)
        d.can[k] = true;
    return d;
}

#endif
