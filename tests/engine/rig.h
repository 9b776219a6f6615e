/* An engine over one node view, with the committed tiny model or the file that KARAT_TEST_MODEL
 * names, and the few calls that its tests repeat. */
#ifndef KR_TESTS_ENGINE_RIG_H
#define KR_TESTS_ENGINE_RIG_H

#include "engine/generate.h"
#include "tests/test.h"

#define RIG_TINY "tests/fixtures/tiny/llama.gguf"

static inline void rig_ok(kr_status status, const kr_err *err)
{
    if (status != KR_OK)
        fail_msg("%s: %s", kr_status_name(status), err->text);
}

static inline kr_model_file *rig_open(const char *path)
{
    kr_model_file *file;
    kr_err err = {0};
    rig_ok(kr_model_file_open(path, &file, &err), &err);
    return file;
}

/* Everything small and single; tests change what they are about. methods [layers] of the caller. */
static inline kr_engine_config rig_config(const kr_model_file *file, const kr_engine_node *node,
                                          kr_method_config *methods)
{
    memset(methods, 0, KR_LAYERS_MAX * sizeof *methods);
    for (uint32_t l = 0; l < kr_model_file_model(file)->layers; l++)
        memcpy(methods[l].name, "dense", 6);
    return (kr_engine_config){.file = file,
                              .nodes = node,
                              .node_count = 1,
                              .methods = methods,
                              .placement = KR_PLACE_ALL_ON_NODE,
                              .kv_dtype = KR_F32,
                              .context_max = kr_model_file_model(file)->context,
                              .rows_max = 64,
                              .sessions_max = 8,
                              .micro_batches = 1,
                              .threads = 1,
                              .policy = KR_POLICY_SCMS,
                              .timeout_ns = 5000000000,
                              .clock = &kr_clock_system};
}

static inline kr_session *rig_session(kr_engine *engine, const uint32_t *tokens, uint64_t count,
                                      uint64_t growth)
{
    const kr_session_request request = {
        .tokens = tokens, .count = count, .growth = growth, .sampling = {0, 1, 0}};
    kr_session *session;
    kr_err err = {0};
    rig_ok(kr_session_open(engine, &request, &session, &err), &err);
    return session;
}

/* Random ids of the model's vocabulary. */
static inline void rig_prompt(const kr_model_file *file, uint64_t stream, uint32_t *tokens, uint64_t count)
{
    kr_rng rng = kr_rng_make(11, stream);
    for (uint64_t i = 0; i < count; i++)
        tokens[i] = (uint32_t)kr_rng_below(&rng, kr_model_file_model(file)->vocab);
}

#endif
