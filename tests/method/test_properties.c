/* What holds for every method with keys as rows: the output does not depend on prompt chunks, on the
 * order in which parts run, on threads, or on the variants of the ops (learned methods get random index
 * rows); a budget that covers the context gives dense attention; a second turn is deterministic; plans
 * refuse what they cannot do. */
#include "method/native.h"
#include "method/trained.h"
#include "method/training_free.h"
#include "ops/variants.h"
#include "session.h"

enum { HEADS = 4, KV = 2, D = 32, TOKENS = 460, PROMPT = 420 };

static const kr_attention_shape shape = {.heads = HEADS,
                                         .kv_heads = KV,
                                         .key_dim = D,
                                         .value_dim = D,
                                         .kv_dtype = KR_BF16,
                                         .softmax_scale = 0.17677669f,
                                         .layers = 1};

/* Configurations that drop tokens at 460 tokens, and ones that cover them. dense tolerance: methods that
 * attend to everything when covering. */
typedef struct {
    const kr_method *method;
    kr_method_config sparse, covering;
    bool covers; /* covering gives dense attention */
} subject;

static const subject subjects[] = {
    {&kr_method_streamingllm, {.budget = 60}, {.budget = 600}, true},
    {&kr_method_snapkv, {.budget = 64}, {.budget = 600}, true},
    {&kr_method_h2o, {.budget = 64}, {.budget = 1200}, true},
    {&kr_method_sparq, {.budget = 40, .parameter = {8, 4}}, {.budget = 600, .parameter = {8, 4}}, true},
    {&kr_method_starc, {.budget = 100}, {.budget = 600}, true},
    {&kr_method_retroinfer,
     {.parameter = {4, 20, 128, 100, 200, 4, 64}},
     {.parameter = {4, 20, 128, 100, 200, 4, 2048}},
     true},
    {&kr_method_magicpig, {.parameter = {4, 20, 4, 20}}, {.parameter = {4, 20, 4, 500}}, true},
    {&kr_method_lserve, {.budget = 128}, {.budget = 600}, true},
    {&kr_method_moba, {.unit = 64, .budget = 192}, {.unit = 64, .budget = 640}, true},
    {&kr_method_infllm2,
     {.budget = 64, .parameter = {32, 1, 64, 1}},
     {.budget = 640, .parameter = {32, 1, 64, 1}},
     true},
};

enum { SUBJECTS = sizeof subjects / sizeof *subjects };

static kr_ops fastest(void)
{
    kr_ops ops = kr_ops_scalar;

/* The first that keeps the bits: the BF16 dots of dsa_score and block_score do not. */
#define TAKE(op)                                                          \
    for (int v = 0; kr_##op##_variants[v].run != NULL; v++)               \
        if (kr_##op##_variants[v].variant.usable() &&                     \
            strstr(kr_##op##_variants[v].variant.name, "bf16") == NULL) { \
            ops.op = kr_##op##_variants[v].run;                           \
            break;                                                        \
        }
    TAKE(attend_rows)
    TAKE(dsa_score)
    TAKE(block_score)
    TAKE(row_dot)
    TAKE(channel_dot)
    TAKE(softmax)
    TAKE(argmax)
    TAKE(page_score)
    TAKE(select_topk)
#undef TAKE
    return ops;
}

static size_t output_bytes(void) { return sizeof(float) * TOKENS * HEADS * D; }

/* Five runs over the same inputs: chunks, reversed parts, the fastest ops, threads. */
static void same_bits(const kr_method *method, kr_method_config config, kr_attention_shape of, const feed *f)
{
    static const uint32_t chunks[] = {PROMPT, 1, 64, 129, 200};
    const size_t bytes = sizeof(float) * TOKENS * of.heads * of.value_dim;
    const kr_ops fast = fastest();
    float *want = session_memory(bytes, 0), *got = session_memory(bytes, 0);
    kr_team *team;
    kr_err err;

    assert_int_equal(kr_team_create(&team, 4, NULL, &err), KR_OK);
    for (int k = 0; k < 5; k++) {
        session *s = session_open(method, config, of, TOKENS, PROMPT);

        s->reverse = k % 2;
        s->team = k == 4 ? team : NULL;
        s->ops = k < 2 ? &kr_ops_scalar : &fast;
        feed_run(s, f, PROMPT, chunks[k], k == 0 ? want : got);
        if (k > 0 && memcmp(want, got, bytes) != 0)
            fail_msg("%s: run %d differs from run 0", method->name, k);
        assert_int_equal(s->nan_count, 0);
        session_close(s);
    }
    kr_team_destroy(team);
    free(want), free(got);
}

static void same_bits_whatever_the_order(void **state)
{
    (void)state;
    kr_rng rng = test_rng("properties");
    feed f = feed_random(&rng, &shape, TOKENS);

    for (int m = 0; m < SUBJECTS; m++)
        same_bits(subjects[m].method, subjects[m].sparse, shape, &f);
    feed_free(&f);
}

enum { INDEX_HEADS = 4, INDEX_DIM = 32 };

/* Rows of bytes: E4M3 codes without the NaN ones, or BF16 normals, then F32 normals. */
static uint8_t *index_rows(kr_rng *rng, uint32_t codes, uint32_t halves, uint32_t floats, uint32_t bytes)
{
    uint8_t *rows = session_memory((size_t)TOKENS * bytes, 0);

    assert_int_equal(codes + 2 * halves + 4 * floats, bytes);
    for (uint8_t *at = rows; at < rows + (size_t)TOKENS * bytes;) {
        for (uint32_t i = 0; i < codes; i++)
            *at++ = kr_e4m3_from_f32((float)kr_rng_normal(rng));
        for (uint32_t i = 0; i < halves; i++, at += 2) {
            const uint16_t half = kr_bf16_from_f32((float)kr_rng_normal(rng));
            memcpy(at, &half, 2);
        }
        for (uint32_t i = 0; i < floats; i++, at += 4) {
            const float x = (float)kr_rng_normal(rng);
            memcpy(at, &x, 4);
        }
    }
    return rows;
}

static void same_bits_of_learned_methods(void **state)
{
    (void)state;
    kr_rng rng = test_rng("learned");
    const kr_attention_shape latent = {.heads = HEADS,
                                       .kv_heads = 1,
                                       .key_dim = 48,
                                       .value_dim = 32,
                                       .latent = true,
                                       .kv_dtype = KR_BF16,
                                       .softmax_scale = 0.2f,
                                       .layers = 1};
    kr_method_config dsa = {.budget = 60, .unit = 1}, msa = {.budget = 64, .unit = 16};
    feed f = feed_random(&rng, &latent, TOKENS);

    dsa.parameter[KR_NATIVE_HEADS] = INDEX_HEADS, msa.parameter[KR_NATIVE_HEADS] = KV;
    dsa.parameter[KR_NATIVE_DIM] = msa.parameter[KR_NATIVE_DIM] = INDEX_DIM;
    f.index_query = index_rows(&rng, INDEX_HEADS * INDEX_DIM, 0, INDEX_HEADS, INDEX_HEADS * (INDEX_DIM + 4));
    f.index_key = index_rows(&rng, INDEX_DIM, 0, 1, INDEX_DIM + 4);
    same_bits(&kr_method_dsa, dsa, latent, &f);
    feed_free(&f);

    f = feed_random(&rng, &shape, TOKENS);
    f.index_query = index_rows(&rng, 0, KV * INDEX_DIM, 0, 2 * KV * INDEX_DIM);
    f.index_key = index_rows(&rng, 0, INDEX_DIM, 0, 2 * INDEX_DIM);
    same_bits(&kr_method_msa, msa, shape, &f);
    free(f.index_key);
    f.index_key = index_rows(&rng, 0, KV * INDEX_DIM, 0, 2 * KV * INDEX_DIM);
    for (uint32_t mode = KR_SEER_TOPK; mode <= KR_SEER_THRESHOLD; mode++)
        same_bits(&kr_method_seer,
                  (kr_method_config){
                      .budget = 64, .unit = 16, .mode = mode, .threshold = 0.05f, .parameter = {INDEX_DIM}},
                  shape, &f);
    feed_free(&f);
}

/* Decode rows against a float64 softmax over all tokens. */
static void covering_budget_is_dense(void **state)
{
    (void)state;
    kr_rng rng = test_rng("coverage");
    kr_attention_shape exact = shape;
    double want[D];

    exact.kv_dtype = KR_F32;
    feed f = feed_random(&rng, &exact, TOKENS);
    float *out = session_memory(output_bytes(), 0);

    for (int m = 0; m < SUBJECTS; m++) {
        session *s = session_open(subjects[m].method, subjects[m].covering, exact, TOKENS, PROMPT);

        feed_run(s, &f, PROMPT, 100, out);
        for (uint32_t t = PROMPT - 1; t < TOKENS; t += 13)
            for (uint32_t h = 0; h < HEADS; h++) {
                oracle_attend(f.query + (t * HEADS + h) * D, f.key, f.value, KV, D, D, h / 2, NULL, t + 1,
                              (double)exact.softmax_scale, want);
                for (uint32_t d = 0; d < D; d++)
                    if (fabs((double)out[(t * HEADS + h) * D + d] - want[d]) > 1e-5)
                        fail_msg("%s: token %u head %u dim %u: %.8g, dense %.8g", subjects[m].method->name, t,
                                 h, d, (double)out[(t * HEADS + h) * D + d], want[d]);
            }
        session_close(s);
    }
    free(out);
    feed_free(&f);
}

/* Sparse configurations really drop tokens, and every listed token exists once. */
static void lists_are_ascending_and_sparse(void **state)
{
    (void)state;
    kr_rng rng = test_rng("lists");
    feed f = feed_random(&rng, &shape, TOKENS);
    float *out = session_memory(output_bytes(), 0);

    for (int m = 0; m < SUBJECTS; m++) {
        session *s = session_open(subjects[m].method, subjects[m].sparse, shape, TOKENS, PROMPT);
        const uint32_t unit = s->plan.unit_tokens;
        uint64_t attended = 0;

        feed_run(s, &f, PROMPT, PROMPT, out);
        for (uint32_t l = 0; l < s->lists; l++)
            for (uint32_t i = 0; i < s->selected_count[l]; i++) {
                const uint32_t *list = s->selected + (size_t)l * s->stride;

                if ((i > 0 && list[i] <= list[i - 1]) || (uint64_t)list[i] * unit >= TOKENS)
                    fail_msg("%s: list %u position %u is %u", subjects[m].method->name, l, i, list[i]);
                attended += unit;
            }
        if (attended * 10 > 9 * (uint64_t)TOKENS * s->lists)
            fail_msg("%s attends to %llu of %u tokens", subjects[m].method->name,
                     (unsigned long long)(attended / s->lists), TOKENS);
        session_close(s);
    }
    free(out);
    feed_free(&f);
}

/* prompt, decode, prompt, decode: the same bits for two chunkings of both prompts. */
static void second_turn_is_deterministic(void **state)
{
    (void)state;
    kr_rng rng = test_rng("turns");
    feed f = feed_random(&rng, &shape, TOKENS);
    float *out[2] = {session_memory(output_bytes(), 0), session_memory(output_bytes(), 0)};
    static const uint32_t boundary[] = {200, 230, 400, TOKENS};

    for (int m = 0; m < SUBJECTS; m++) {
        for (int k = 0; k < 2; k++) {
            session *s = session_open(subjects[m].method, subjects[m].sparse, shape, TOKENS, PROMPT);

            for (uint32_t turn = 0, t = 0; turn < 4; turn++) {
                const uint32_t most = turn % 2 ? 1 : k ? 37 : 200;

                for (uint32_t n; t < boundary[turn]; t += n) {
                    n = boundary[turn] - t < most ? boundary[turn] - t : most;
                    session_run(s, feed_chunk(&f, s, t, n, turn % 2 == 0, out[k]));
                }
                if (turn % 2 == 0)
                    session_end_prefill(s);
            }
            session_close(s);
        }
        for (size_t i = 0; i < output_bytes() / 4; i++)
            assert_false(isnan(out[0][i]));
        if (memcmp(out[0], out[1], output_bytes()) != 0)
            fail_msg("%s: chunks of the second prompt matter", subjects[m].method->name);
    }
    free(out[0]), free(out[1]);
    feed_free(&f);
}

static void plans_refuse_mla(void **state)
{
    (void)state;
    const kr_attention_shape latent = {.heads = 4,
                                       .kv_heads = 1,
                                       .key_dim = 48,
                                       .value_dim = 32,
                                       .latent = true,
                                       .kv_dtype = KR_BF16,
                                       .layers = 1};
    kr_method_plan plan;
    kr_err err;

    for (int m = 0; m < SUBJECTS; m++) {
        assert_int_equal(subjects[m].method->plan(&subjects[m].sparse, &latent, 1000, &plan, &err),
                         KR_E_UNSUPPORTED);
        assert_non_null(strstr(err.text, subjects[m].method->name));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_whatever_the_order), cmocka_unit_test(same_bits_of_learned_methods),
        cmocka_unit_test(covering_budget_is_dense),     cmocka_unit_test(lists_are_ascending_and_sparse),
        cmocka_unit_test(second_turn_is_deterministic), cmocka_unit_test(plans_refuse_mla),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
