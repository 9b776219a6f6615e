/* What the tests of program/ share: the descriptors of data/models built into programs in one arena. */
#ifndef TESTS_PROGRAM_FIXTURE_H
#define TESTS_PROGRAM_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "program/program.h"

static kr_arena arena;
static kr_method_config native[KR_LAYERS_MAX];

static kr_model load(const char *name)
{
    kr_model model;
    kr_err err;
    char path[128];

    snprintf(path, sizeof path, "data/models/%s.json", name);
    if (kr_model_load(path, &model, &err) != KR_OK)
        fail_msg("%s", err.text);
    return model;
}

static kr_program build_with(const kr_model *model, const kr_method_config *configs,
                             const kr_parallel *parallel)
{
    kr_program program;
    kr_err err;

    if (kr_program_build(&program, &arena, model, configs, parallel, 1 << 20, &err) != KR_OK)
        fail_msg("%s", err.text);
    return program;
}

static kr_program build(const kr_model *model, const kr_parallel *parallel)
{
    return build_with(model, native, parallel);
}

static int setup(void **state)
{
    kr_err err;

    (void)state;
    for (int l = 0; l < KR_LAYERS_MAX; l++)
        memcpy(native[l].name, "native", 7);
    return kr_arena_init(&arena, 64 << 20, &err) == KR_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    kr_arena_free(&arena);
    return 0;
}

#endif
