/* What plans say a method keeps and does: index bytes a token and FLOPs per index byte of the papers'
 * Table II and of the methods' own publications, with and without FP8 scales. */
#include "method/dense.h"
#include "method/native.h"
#include "method/quest.h"
#include "method/trained.h"
#include "method/training_free.h"
#include "session.h"

enum { CONTEXT = 1 << 20 };

static kr_method_plan plan_of(const kr_method *method, kr_method_config config, kr_attention_shape shape,
                              uint64_t context)
{
    kr_method_plan plan;
    kr_err err;

    if (method->plan(&config, &shape, context, &plan, &err) != KR_OK)
        fail_msg("%s: %s", method->name, err.text);
    return plan;
}

static double intensity(kr_work w) { return (double)w.flops / (double)w.read_bytes; }

static kr_method_config native(uint32_t heads, uint32_t budget, uint32_t unit, bool paper)
{
    kr_method_config c = {.budget = budget, .unit = unit};

    c.parameter[KR_NATIVE_HEADS] = heads;
    c.parameter[KR_NATIVE_DIM] = 128;
    c.parameter[KR_NATIVE_PAPER] = paper;
    return c;
}

/* DeepSeek-V3.2: 128 B (132 with the scale), scan 128, attend 228. GLM-5.2: 64 and 114. */
static void dsa(void **state)
{
    (void)state;
    for (uint32_t glm = 0; glm < 2; glm++) {
        const uint32_t heads = glm ? 64 : 128;
        const kr_attention_shape shape = {.heads = heads,
                                          .kv_heads = 1,
                                          .key_dim = 576,
                                          .value_dim = 512,
                                          .latent = true,
                                          .kv_dtype = KR_BF16,
                                          .layers = 1};
        const kr_method_plan paper = plan_of(&kr_method_dsa, native(heads / 2, 2048, 1, true), shape,
                                             CONTEXT);
        const kr_method_plan exact = plan_of(&kr_method_dsa, native(heads / 2, 2048, 1, false), shape,
                                             CONTEXT);

        assert_int_equal(paper.page_index_bytes, 128 * KR_PAGE_TOKENS);
        assert_int_equal(exact.page_index_bytes, 132 * KR_PAGE_TOKENS);
        assert_true(intensity(paper.cost[KR_STAGE_SCORE].per_context_token) == heads);
        assert_true(fabs(intensity(paper.cost[KR_STAGE_ATTEND].per_attended_token) - heads * 2048.0 / 1152) <
                    1e-9);
        assert_true(intensity(exact.cost[KR_STAGE_SCORE].per_context_token) < heads);
        assert_int_equal(exact.index_key_bytes, 132);
        assert_int_equal(exact.index_query_bytes, heads / 2 * 132);
        assert_int_equal(paper.index_query_bytes + paper.index_key_bytes, glm ? 4352 : 8576);
        assert_int_equal(exact.selected_max, 2048);
    }
}

/* MiniMax-M3: 256 B, scan 4, attend 16; 16 blocks of 128, the own one among them. */
static void msa(void **state)
{
    (void)state;
    const kr_attention_shape shape = {
        .heads = 64, .kv_heads = 4, .key_dim = 128, .value_dim = 128, .kv_dtype = KR_BF16, .layers = 1};
    const kr_method_plan p = plan_of(&kr_method_msa, native(4, 2048, 128, true), shape, CONTEXT);

    assert_int_equal(p.page_index_bytes, 256 * KR_PAGE_TOKENS);
    assert_true(intensity(p.cost[KR_STAGE_SCORE].per_context_token) == 4);
    assert_true(intensity(p.cost[KR_STAGE_ATTEND].per_attended_token) == 16);
    assert_int_equal(p.index_query_bytes + p.index_key_bytes, 1280);
    assert_int_equal(p.selected_max, 2048);
}

/* LLaMA-3-70B: 8 KV heads of 128, group 8. Bytes a token and KV head: in pages exactly, in records with the
 * stated room for short windows and rounding. */
static const kr_attention_shape llama = {.heads = 64,
                                         .kv_heads = 8,
                                         .key_dim = 128,
                                         .value_dim = 128,
                                         .kv_dtype = KR_BF16,
                                         .layer = 17,
                                         .layers = 80};

typedef struct {
    const kr_method *method;
    kr_method_config config;
    uint64_t context;
    double page_bytes, record_low, record_high; /* a token and KV head */
    double intensity;                           /* of the scan; 0: not one */
} expectation;

static void training_free(void **state)
{
    (void)state;
    static const expectation list[] = {
        {&kr_method_quest, {.budget = 1024}, CONTEXT, 32, 0, 0, 0},
        {&kr_method_sparq, {.unit = 0}, CONTEXT, 256, 0, 0.01, 8},
        {&kr_method_starc,
         {.unit = 0},
         CONTEXT,
         0,
         20,
         25,
         8}, /* 16 of centroids, 4 of members, first, room */
        {&kr_method_retroinfer,
         {.unit = 0},
         131072,
         0,
         36,
         41,
         8}, /* 32 of centroids and sums, 4 of members */
        {&kr_method_magicpig, {.unit = 0}, CONTEXT, 0, 600, 603, 0},
        {&kr_method_lserve, {.unit = 0}, CONTEXT, 32, 0, 0.1, 8},
        {&kr_method_moba, {.unit = 0}, CONTEXT, 0, 0.2, 0.3, 0},
        {&kr_method_infllm2, {.unit = 0}, CONTEXT, 16, 0, 0, 8},
        {&kr_method_seer, {.unit = 0}, CONTEXT, 4, 0, 0, 0},
        {&kr_method_streamingllm, {.unit = 0}, CONTEXT, 0, 0, 0, 0},
        {&kr_method_dense, {.unit = 0}, CONTEXT, 0, 0, 0, 0},
    };

    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const expectation *e = &list[i];
        const kr_method_plan p = plan_of(e->method, e->config, llama, e->context);
        const double page = (double)p.page_index_bytes / KR_PAGE_TOKENS / llama.kv_heads;
        const double record = (double)p.record_body_bytes / (double)e->context / llama.kv_heads;

        if (page != e->page_bytes || record < e->record_low || record > e->record_high)
            fail_msg("%s keeps %g B in pages and %g B in the record a token and KV head", e->method->name,
                     page, record);
        if (e->intensity != 0 && intensity(p.cost[KR_STAGE_SCORE].per_context_token) != e->intensity)
            fail_msg("%s scans at %g FLOP/B", e->method->name,
                     intensity(p.cost[KR_STAGE_SCORE].per_context_token));
    }
}

/* SeerAttention-R scans at 1 FLOP/B, MoBA's mean keys at g / 2 (F32). */
static void gates(void **state)
{
    (void)state;
    const kr_method_plan seer = plan_of(&kr_method_seer, (kr_method_config){0}, llama, CONTEXT);
    const kr_method_plan moba = plan_of(&kr_method_moba, (kr_method_config){0}, llama, CONTEXT);

    assert_true(intensity(seer.cost[KR_STAGE_SCORE].per_unit) == 1);
    assert_true(intensity(moba.cost[KR_STAGE_SCORE].per_unit) == 4);
}

/* Layers that stay dense keep nothing. */
static void dense_layers(void **state)
{
    (void)state;
    static const kr_method *const methods[] = {&kr_method_sparq, &kr_method_starc, &kr_method_lserve,
                                               &kr_method_seer,  &kr_method_h2o,   &kr_method_snapkv,
                                               &kr_method_moba};
    kr_attention_shape first = llama;
    const kr_method_config config = {.dense_layers = 3};

    first.layer = 2;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        const kr_method_plan p = plan_of(methods[i], config, first, CONTEXT);

        assert_true(p.dense && p.page_index_bytes == 0 && p.record_body_bytes == 0 &&
                    !p.separate_index_query);
    }
    first.layer = 16; /* MagicPIG: every 16th */
    assert_true(
        plan_of(&kr_method_magicpig, (kr_method_config){.dense_layers = UINT32_MAX}, first, CONTEXT).dense);
    assert_false(
        plan_of(&kr_method_magicpig, (kr_method_config){.dense_layers = UINT32_MAX}, llama, CONTEXT).dense);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dsa),   cmocka_unit_test(msa),          cmocka_unit_test(training_free),
        cmocka_unit_test(gates), cmocka_unit_test(dense_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
