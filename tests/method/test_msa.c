/* msa: blocks against a float64 oracle, the own block as one of them, partial tail blocks, coverage,
 * chunk invariance. */
#include "method/native.h"
#include "session.h"

enum { HEADS = 8, KV = 2, DIM = 32, INDEX_DIM = 16, UNIT = 16, TOKENS = 400, BUDGET = 3 * UNIT };

static const kr_attention_shape shape = {.heads = HEADS,
                                         .kv_heads = KV,
                                         .key_dim = DIM,
                                         .value_dim = DIM,
                                         .kv_dtype = KR_F32,
                                         .softmax_scale = 0.17677669f,
                                         .layers = 1};

static kr_method_config config_of(uint32_t budget)
{
    kr_method_config c = {.name = "msa", .budget = budget, .unit = UNIT};

    c.parameter[KR_NATIVE_HEADS] = KV;
    c.parameter[KR_NATIVE_DIM] = INDEX_DIM;
    return c;
}

static void add_index(kr_rng *rng, feed *f)
{
    f->index_query = session_memory(f->tokens * 2 * KV * INDEX_DIM, 0);
    f->index_key = session_memory(f->tokens * 2 * INDEX_DIM, 0);
    for (uint64_t i = 0; i < f->tokens * KV * INDEX_DIM; i++)
        ((uint16_t *)f->index_query)[i] = kr_bf16_from_f32((float)kr_rng_normal(rng));
    for (uint64_t i = 0; i < f->tokens * INDEX_DIM; i++)
        ((uint16_t *)f->index_key)[i] = kr_bf16_from_f32((float)kr_rng_normal(rng));
}

static double block_score(const feed *f, uint64_t row, uint32_t head, uint32_t block)
{
    const uint16_t *q = (const uint16_t *)f->index_query + (row * KV + head) * INDEX_DIM;
    double best = -HUGE_VAL;

    for (uint64_t t = (uint64_t)block * UNIT; t <= row && t < (block + 1ull) * UNIT; t++) {
        double dot = 0.0;

        for (uint32_t c = 0; c < INDEX_DIM; c++)
            dot += (double)kr_f32_from_bf16(q[c]) *
                   (double)kr_f32_from_bf16(((const uint16_t *)f->index_key)[t * INDEX_DIM + c]);
        best = fmax(best, dot);
    }
    return best;
}

/* The newest row's lists, at lengths around a block edge (pitfall S-23). */
static void blocks_match_the_oracle(void **state)
{
    (void)state;
    kr_rng rng = test_rng("msa blocks");
    static const uint32_t lengths[] = {17 * UNIT - 1, 17 * UNIT, 17 * UNIT + 1, TOKENS};

    for (int k = 0; k < 4; k++) {
        const uint32_t n = lengths[k], own = (n - 1) / UNIT;
        session *s = session_open(&kr_method_msa, config_of(BUDGET), shape, TOKENS, n);
        feed f = feed_random(&rng, &shape, n);
        float *out = session_memory(4ull * n * HEADS * DIM, 0);

        add_index(&rng, &f);
        feed_run(s, &f, n - 1, 100, out);
        for (uint32_t g = 0; g < KV; g++) {
            const uint32_t *list = s->selected + g * s->stride;
            uint32_t token[BUDGET], count = 0, chosen = 0;
            double want[DIM], least = HUGE_VAL;

            assert_int_equal(s->selected_count[g], 3);
            assert_int_equal(list[2], own);
            for (uint32_t i = 0; i < 2; i++)
                least = fmin(least, block_score(&f, n - 1, g, list[i]));
            for (uint32_t b = 0; b < own; b++)
                if (b == list[chosen])
                    chosen++;
                else
                    assert_true(block_score(&f, n - 1, g, b) <= least + 1e-6);
            assert_int_equal(chosen, 2);
            for (uint32_t i = 0; i < 3; i++)
                for (uint32_t t = list[i] * UNIT; t < (list[i] + 1) * UNIT && t < n; t++)
                    token[count++] = t;
            for (uint32_t h = g * 4; h < (g + 1) * 4; h++) {
                oracle_attend(f.query + ((n - 1) * HEADS + h) * DIM, f.key, f.value, KV, DIM, DIM, g, token,
                              count, (double)shape.softmax_scale, want);
                for (uint32_t d = 0; d < DIM; d++)
                    assert_true(fabs((double)out[((n - 1) * HEADS + h) * DIM + d] - want[d]) < 1e-5);
            }
        }
        free(out);
        feed_free(&f);
        session_close(s);
    }
}

static void chunks_give_the_same_bits(void **state)
{
    (void)state;
    kr_rng rng = test_rng("msa chunks");
    static const uint32_t chunk_tokens[] = {1, 64, 129, 300};
    feed f = feed_random(&rng, &shape, 320);
    float *out[2] = {session_memory(4ull * 320 * HEADS * DIM, 0),
                     session_memory(4ull * 320 * HEADS * DIM, 0)};

    add_index(&rng, &f);
    for (int k = 0; k < 4; k++) {
        session *s = session_open(&kr_method_msa, config_of(BUDGET), shape, TOKENS, 300);

        s->reverse = k % 2;
        feed_run(s, &f, k == 3 ? 290 : 310, chunk_tokens[k], out[k > 0]);
        if (k > 0)
            assert_memory_equal(out[0], out[1], 4ull * 320 * HEADS * DIM);
        session_close(s);
    }
    free(out[0]), free(out[1]);
    feed_free(&f);
}

/* Budget >= context gives dense attention; NaN keys drop their block but never the own one. */
static void edges(void **state)
{
    (void)state;
    kr_rng rng = test_rng("msa edges");
    session *s = session_open(&kr_method_msa, config_of(256), shape, TOKENS, 200);
    feed f = feed_random(&rng, &shape, 200);
    float *out = session_memory(4ull * 200 * HEADS * DIM, 0);
    double want[DIM];

    add_index(&rng, &f);
    feed_run(s, &f, 199, 50, out);
    assert_int_equal(s->selected_count[0], 13);
    oracle_attend(f.query + 199 * HEADS * DIM, f.key, f.value, KV, DIM, DIM, 0, NULL, 200,
                  (double)shape.softmax_scale, want);
    for (uint32_t d = 0; d < DIM; d++)
        assert_true(fabs((double)out[199 * HEADS * DIM + d] - want[d]) < 1e-5);
    session_close(s);

    s = session_open(&kr_method_msa, config_of(BUDGET), shape, TOKENS, 200);
    for (uint32_t t = 0; t < 200; t += UNIT)
        ((uint16_t *)f.index_key)[t * INDEX_DIM] = 0x7fc0;
    feed_run(s, &f, 199, 200, out);
    assert_int_equal(s->selected_count[0], 1);
    assert_int_equal(s->selected[0], 12);
    assert_true(s->nan_count > 0);
    free(out);
    feed_free(&f);
    session_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_match_the_oracle),
        cmocka_unit_test(chunks_give_the_same_bits),
        cmocka_unit_test(edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
