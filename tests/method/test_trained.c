/* Golden vectors of the trained block methods (MoBA, InfLLM-v2, SeerAttention-R) and their edges. */
#include "method/attend_list.h"
#include "method/trained.h"
#include "session.h"

enum { D = 8, N = 38 };

static const kr_attention_shape one_head = {.heads = 1,
                                            .kv_heads = 1,
                                            .key_dim = D,
                                            .value_dim = D,
                                            .kv_dtype = KR_F32,
                                            .softmax_scale = 0.35355339f,
                                            .layers = 1};

static feed golden_feed(uint32_t q, uint32_t k, uint32_t v, bool same_query)
{
    feed f = {
        N,   session_memory(4 * N * D, 0), session_memory(4 * N * D, 0), session_memory(4 * N * D, 0), NULL,
        NULL};

    golden_fill(f.key, N * D, k);
    golden_fill(f.value, N * D, v);
    golden_fill(f.query, N * D, q);
    for (uint32_t t = 1; same_query && t < N; t++)
        golden_fill(f.query + t * D, D, q);
    return f;
}

static void moba(void **state)
{
    (void)state;
    static const uint32_t chunks[3] = {1, 3, 4};
    static const double y[8] = {.269865, -.161545, .089538, -.008751, -.259199, .261706, -.273672, -.108132};
    kr_method_config config = {.name = "moba", .unit = 8, .budget = 24};
    float out[2][N * D];
    feed f = golden_feed(21, 22, 23, false);

    for (int k = 0; k < 2; k++) { /* the last row by decode, then by prefill */
        session *s = session_open(&kr_method_moba, config, one_head, N, N);

        feed_run(s, &f, N - 1 + (uint32_t)k, k ? N : 5, out[k]);
        assert_golden(out[k] + (N - 1) * D, y, 8, "moba");
        if (k == 0) {
            assert_int_equal(s->selected_count[0], 3);
            assert_memory_equal(s->selected, chunks, sizeof chunks);
        }
        session_close(s);
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    feed_free(&f);
}

static void infllm2(void **state)
{
    (void)state;
    static const double rank[3] = {.147457, .159424, .159424};
    static const uint32_t blocks[3] = {0, 1, 2};
    kr_method_config config = {.name = "infllm2", .unit = 16, .budget = 16, .parameter = {8, 1, 1, 1}};
    session *s = session_open(&kr_method_infllm2, config, one_head, N, N);
    feed f = golden_feed(1, 2, 3, true);
    float out[N * D];

    feed_run(s, &f, N - 1, 9, out);
    const uint64_t most = s->plan.selected_max < N ? s->plan.selected_max : N;
    const float *behind = (const float *)((uint8_t *)s->workspace +
                                          kr_attend_list_workspace(&one_head, kr_segments(most)));
    assert_golden(behind + 8, rank, 3, "infllm2 block scores");
    assert_int_equal(s->selected_count[0], 3);
    assert_memory_equal(s->selected, blocks, sizeof blocks);
    feed_free(&f);
    session_close(s);
}

/* Initial block, best blocks, local window: against a list made by hand. */
static void infllm2_picks_the_best_block(void **state)
{
    (void)state;
    kr_rng rng = test_rng("infllm2");
    kr_method_config config = {.name = "infllm2", .unit = 16, .budget = 16, .parameter = {8, 1, 20, 1}};
    session *s = session_open(&kr_method_infllm2, config, one_head, 300, 300);
    feed f = feed_random(&rng, &one_head, 200);
    float *out = session_memory(4 * 200 * D, 0);

    for (uint32_t t = 80; t < 96; t++) /* block 5 looks like the last query */
        for (uint32_t d = 0; d < D; d++)
            f.key[t * D + d] = 2.0f * f.query[199 * D + d];
    feed_run(s, &f, 199, 64, out);
    const uint32_t want[] = {0, 5, 11, 12}; /* window of 20 tokens touches blocks 11 and 12 */
    assert_int_equal(s->selected_count[0], 4);
    assert_memory_equal(s->selected, want, sizeof want);
    free(out);
    feed_free(&f);
    session_close(s);
}

/* ---- SeerAttention-R ---- */

enum { TOKENS = 32, BLOCK = 4 };

static void seer_inputs(float key[TOKENS * D], float query[2 * D], float wk[24 * D], float wq[16 * D])
{
    golden_fill(key, TOKENS * D, 61);
    golden_fill(query, 2 * D, 62);
    golden_fill(wk, 24 * D, 63);
    golden_fill(wq, 16 * D, 64);
    for (int i = 0; i < 24 * D; i++)
        wk[i] *= 0.2f;
    for (int i = 0; i < 16 * D; i++)
        wq[i] *= 0.2f;
}

/* The gate key of a block whose keys are rows of dim. */
static void gate_of_block(const kr_seer_gate *gate, const float *key, uint32_t tokens, uint64_t position,
                          float *out)
{
    float pool[3 * D];

    for (uint32_t t = 0; t < tokens; t++)
        kr_seer_pool(pool, key + t * gate->head_dim, gate->head_dim, t == 0);
    kr_seer_gate_key(gate, pool, tokens, position, out);
}

static void seer_gate(void **state)
{
    (void)state;
    static const double want[8] = {.1266, .121207, .131784, .127639, .117306, .121309, .129462, .124692};
    float key[TOKENS * D], query[2 * D], wk[24 * D], wq[16 * D], q[D], k[D], s[8], sum = 0.0f;
    const kr_seer_gate gate = {
        .head_dim = D, .group = 2, .gate_dim = D, .key_weight = wk, .query_weight = wq};

    seer_inputs(key, query, wk, wq);
    kr_seer_gate_query(&gate, query, 31, q);
    for (uint32_t b = 0; b < 8; b++) {
        float dot = 0.0f;

        gate_of_block(&gate, key + b * BLOCK * D, BLOCK, b * BLOCK, k);
        for (int d = 0; d < D; d++)
            dot += q[d] * k[d];
        s[b] = expf(dot / sqrtf((float)D));
        sum += s[b];
    }
    for (int b = 0; b < 8; b++)
        s[b] /= sum;
    assert_golden(s, want, 8, "seer gate");
}

/* Norm and RoPE of the gate, by their formulas. */
static void seer_gate_norm_and_rope(void **state)
{
    (void)state;
    float weight[2 * 3 * 2] = {1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}, norm[2] = {2, 1}, inv_freq[1] = {0.5f},
                         k[2];
    const float key[2] = {3, 4}; /* max row picks dim 0 into 0, min row picks dim 1 into 1 */
    const kr_seer_gate gate = {.head_dim = 2,
                               .group = 1,
                               .gate_dim = 2,
                               .key_weight = weight,
                               .key_norm = norm,
                               .inv_freq = inv_freq};

    gate_of_block(&gate, key, 1, 6, k);
    const double rms = sqrt(12.5 + 1e-6), a = 2 * 3 / rms, b = 4 / rms;
    assert_true(fabs((double)k[0] - (a * cos(3) - b * sin(3))) < 1e-6);
    assert_true(fabs((double)k[1] - (a * sin(3) + b * cos(3))) < 1e-6);
}

static feed seer_feed(const session *s)
{
    float key[TOKENS * D], query[2 * D], wk[24 * D], wq[16 * D], gated[D];
    const kr_seer_gate gate = {
        .head_dim = D, .group = 2, .gate_dim = D, .key_weight = wk, .query_weight = wq};
    feed f = {TOKENS + 2,
              session_memory(4 * (TOKENS + 2) * 2 * D, 0),
              session_memory(4 * (TOKENS + 2) * D, 0),
              session_memory(4 * (TOKENS + 2) * D, 0),
              session_memory((TOKENS + 2) * 2 * D, 0),
              session_memory((TOKENS + 2) * 2 * D, 0x7f)};

    assert_int_equal(s->plan.index_key_bytes, 2 * D);
    seer_inputs(key, query, wk, wq);
    memcpy(f.key, key, sizeof key);
    golden_fill(f.value, TOKENS * D, 3);
    kr_seer_gate_query(&gate, query, 31, gated);
    for (uint32_t t = 0; t < TOKENS + 2; t++) {
        memcpy(f.query + t * 2 * D, query, sizeof query);
        kr_from_f32(KR_BF16, gated, f.index_query + t * 2 * D, D);
    }
    for (uint32_t b = 0; b < 8; b++) {
        gate_of_block(&gate, key + b * BLOCK * D, BLOCK, b * BLOCK, gated);
        kr_from_f32(KR_BF16, gated, f.index_key + (b * BLOCK + BLOCK - 1) * 2 * D, D);
    }
    return f;
}

static void seer(void **state)
{
    (void)state;
    static const uint32_t best[4] = {2, 3, 6, 8}, over[5] = {0, 2, 3, 6, 8};
    kr_attention_shape shape = one_head;
    kr_method_config config = {.name = "seer", .unit = BLOCK, .budget = 3 * BLOCK, .parameter = {D}};
    float out[(TOKENS + 2) * 2 * D];

    shape.heads = 2;
    for (int k = 0; k < 2; k++) {
        config.mode = k == 0 ? KR_SEER_TOPK : KR_SEER_THRESHOLD;
        /* 9 blocks with the incomplete one, whose gate key is zero: S is 8/9 of the golden one or so. */
        config.threshold = 0.1115f;
        session *s = session_open(&kr_method_seer, config, shape, TOKENS + 2, TOKENS);
        feed f = seer_feed(s);

        feed_run(s, &f, TOKENS, 7, out);
        assert_int_equal(s->selected_count[0], k == 0 ? 4 : 5);
        assert_memory_equal(s->selected, k == 0 ? best : over, s->selected_count[0] * sizeof *best);
        feed_free(&f);
        session_close(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moba),
        cmocka_unit_test(infllm2),
        cmocka_unit_test(infllm2_picks_the_best_block),
        cmocka_unit_test(seer_gate),
        cmocka_unit_test(seer_gate_norm_and_rope),
        cmocka_unit_test(seer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
