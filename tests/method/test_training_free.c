/* Golden vectors of the training-free methods (closed-form inputs; float64 results worked out
 * independently of this code), through the stages a memory node runs. */
#include "method/magicpig.h"
#include "method/training_free.h"
#include "session.h"

enum { D = 8, N = 38 };

static const kr_attention_shape one_head = {.heads = 1,
                                            .kv_heads = 1,
                                            .key_dim = D,
                                            .value_dim = D,
                                            .kv_dtype = KR_F32,
                                            .softmax_scale = 0.35355339f,
                                            .layers = 1};

static kr_method_config named(const char *name)
{
    kr_method_config c = {0};

    strncpy(c.name, name, sizeof c.name - 1);
    return c;
}

/* Common inputs: K, V; every query row is q with `heads` rows of number s. */
static feed golden_feed(uint32_t heads, uint32_t q_number)
{
    feed f = {N,
              session_memory(4 * N * heads * D, 0),
              session_memory(4 * N * D, 0),
              session_memory(4 * N * D, 0),
              NULL,
              NULL};

    golden_fill(f.key, N * D, 2);
    golden_fill(f.value, N * D, 3);
    for (uint32_t t = 0; t < N; t++)
        golden_fill(f.query + (size_t)t * heads * D, heads * D, q_number);
    return f;
}

static void assert_list(const session *s, uint32_t list, const uint32_t *want, uint32_t n)
{
    assert_int_equal(s->selected_count[list], n);
    assert_memory_equal(s->selected + (size_t)list * s->stride, want, n * sizeof *want);
}

static void sparq(void **state)
{
    (void)state;
    static const uint32_t list[7] = {11, 12, 13, 28, 35, 36, 37};
    static const double y[16] = {.071736, .101681, -.101342, -.059979, .090095, -.013837, -.065611, -.109241,
                                 .061604, .126732, -.124296, -.046109, .183201, -.033418, -.044632, -.142699};
    kr_attention_shape shape = one_head;
    kr_method_config config = named("sparq");
    float out[N * 2 * D];

    shape.heads = 2;
    config.budget = 6, config.parameter[0] = 3, config.parameter[1] = 2;
    session *s = session_open(&kr_method_sparq, config, shape, N, N);
    feed f = golden_feed(2, 4);

    feed_run(s, &f, N - 1, 10, out);
    assert_list(s, 0, list, 7);
    assert_golden(out + (N - 1) * 2 * D, y, 16, "sparq");
    feed_free(&f);
    session_close(s);
}

/* The hand case of spec F.2 with a tie: lower index first. */
static void sparq_by_hand(void **state)
{
    (void)state;
    static const float q[4] = {2, -1, .5f, .1f};
    static const float k[20] = {1, 0, 0, 0, 0, -2, 1, 0, .5f, .5f, 0, 1, -1, 1, 0, 0, .2f, -.1f, .3f, .4f};
    static const uint32_t list[3] = {0, 3, 4};
    static const double y[4] = {.687815, .787815, .887815, .987815};
    kr_attention_shape shape = one_head;
    kr_method_config config = named("sparq");
    float v[20], out[4];

    for (int i = 0; i < 20; i++)
        v[i] = 0.1f * (float)i;
    shape.key_dim = shape.value_dim = 4, shape.softmax_scale = 0.5f;
    config.budget = 2, config.parameter[0] = 2, config.parameter[1] = 1;
    session *s = session_open(&kr_method_sparq, config, shape, N, 4);
    float dummy[4 * 4], queries[4 * 4] = {0};

    session_run(s, (chunk){4, true, queries, k, v, NULL, NULL, dummy});
    session_run(s, (chunk){1, false, q, k + 16, v + 16, NULL, NULL, out});
    assert_list(s, 0, list, 3);
    assert_golden(out, y, 4, "sparq by hand");
    session_close(s);
}

static void starc(void **state)
{
    (void)state;
    static const uint32_t list[16] = {0, 2, 12, 13, 14, 15, 16, 25, 26, 27, 32, 33, 34, 35, 36, 37};
    static const double y[8] = {-.164913, .251902, -.162985, -.099011, .385357, -.181862, .011448, .269246};
    kr_method_config config = named("starc");
    float out[N * D];

    config.budget = 16, config.unit = 4, config.parameter[0] = 16;
    session *s = session_open(&kr_method_starc, config, one_head, N, N);
    feed f = golden_feed(1, 1);

    /* Tokens 0..31 clustered; the first decode step at 32 would cluster 32 alone, so the prompt ends at
     * 31 and step 31 closes the second window: 32..37 stay recent. */
    feed_run(s, &f, 31, 7, out);
    assert_list(s, 0, list, 16);
    assert_golden(out + (N - 1) * D, y, 8, "starc");
    feed_free(&f);
    session_close(s);
}

/* Equal centroids: the first takes every key, the second is empty, scores as nothing and gives no tokens. */
static void starc_ties_go_to_the_first_cluster(void **state)
{
    (void)state;
    kr_method_config config = named("starc");
    float out[17 * D], key[17 * D], query[17 * D];

    for (uint32_t i = 0; i < 17 * D; i++) {
        key[i] = golden_at(i % D, 5);
        query[i] = -key[i]; /* an empty cluster's score of 0 would be the best */
    }
    config.budget = 9, config.unit = 8, config.parameter[0] = 16;
    session *s = session_open(&kr_method_starc, config, one_head, 17, 16);

    session_run(s, (chunk){16, true, query, key, key, NULL, NULL, out});
    session_run(s, (chunk){1, false, query, key, key, NULL, NULL, out});
    /* Four counters, then each cluster's first member; the step's own token is a short window. */
    const uint32_t *first = (const uint32_t *)((const uint64_t *)kr_view_record_body(&s->view) + 4);
    assert_int_equal(first[0], 0);
    assert_int_equal(first[1], 16);
    assert_int_equal(first[2], 16);
    assert_int_equal(s->selected_count[0], 9);
    session_close(s);
}

/* Even tokens point one way and odd ones another, the query a third: all clusters score 0, the step's own
 * too. The first is taken, and of the second what still fits. */
static void starc_equal_clusters_in_order(void **state)
{
    (void)state;
    static const uint32_t want[9] = {0, 1, 2, 4, 6, 8, 10, 12, 14};
    kr_method_config config = named("starc");
    float out[17 * D], key[17 * D] = {0}, query[17 * D] = {0};

    for (uint32_t i = 0; i < 17; i++)
        key[i * D + i % 2] = query[i * D + 2] = 1.0f;
    config.budget = 9, config.unit = 8, config.parameter[0] = 16;
    session *s = session_open(&kr_method_starc, config, one_head, 17, 16);

    session_run(s, (chunk){16, true, query, key, key, NULL, NULL, out});
    session_run(s, (chunk){1, false, query, key, key, NULL, NULL, out});
    assert_int_equal(s->selected_count[0], 9);
    assert_memory_equal(s->selected, want, sizeof want);
    session_close(s);
}

static void snapkv(void **state)
{
    (void)state;
    static const uint32_t kept[10] = {1, 2, 3, 4, 5, 6, 16, 17, 18, 19};
    kr_method_config config = named("snapkv");
    float out[(N + 1) * D], row[D] = {0};

    config.budget = 16, config.parameter[0] = 6, config.parameter[1] = 5;
    session *s = session_open(&kr_method_snapkv, config, one_head, N + 1, N);
    feed f = golden_feed(1, 1);

    golden_fill(f.query, N * D, 31);
    feed_run(s, &f, N, 11, out);
    session_run(s, (chunk){1, false, row, row, row, NULL, NULL, out + N * D});
    assert_int_equal(s->selected_count[0], 10 + 6 + 1);
    assert_memory_equal(s->selected, kept, sizeof kept);
    for (uint32_t i = 0; i < 7; i++)
        assert_int_equal(s->selected[10 + i], 32 + i);
    feed_free(&f);
    session_close(s);
}

static void h2o(void **state)
{
    (void)state;
    static const double sums[6] = {4.001302, 2.808032, 2.396041, 2.218672, 2.020217, 1.984784};
    kr_method_config config = named("h2o");
    float out[N * D];

    session *s = session_open(&kr_method_h2o, config, one_head, N, N);
    feed f = golden_feed(1, 1);

    golden_fill(f.query, N * D, 31);
    feed_run(s, &f, N, 9, out);
    /* Three counters, then the sums of head 0. */
    assert_golden((const float *)((const uint64_t *)kr_view_record_body(&s->view) + 3), sums, 6, "h2o");
    feed_free(&f);
    session_close(s);
}

static void streamingllm(void **state)
{
    (void)state;
    static const uint32_t list[10] = {0, 1, 2, 3, 32, 33, 34, 35, 36, 37};
    kr_method_config config = named("streamingllm");
    float out[N * D];
    double want[D];

    config.budget = 10;
    session *s = session_open(&kr_method_streamingllm, config, one_head, N, N);
    feed f = golden_feed(1, 1);

    feed_run(s, &f, N - 1, 5, out);
    assert_list(s, 0, list, 10);
    oracle_attend(f.query, f.key, f.value, 1, D, D, 0, list, 10, (double)one_head.softmax_scale, want);
    assert_golden(out + (N - 1) * D, want, D, "streamingllm");
    feed_free(&f);
    session_close(s);
}

static void retroinfer(void **state)
{
    (void)state;
    static const double y[8] = {-.260681, .241419, -.226325, -.261062, .471806, -.288931, -.09888, .27794};
    static const uint32_t sizes[8] = {4, 7, 0, 3, 1, 5, 6, 4};
    kr_method_config config = named("retroinfer");
    float out[N * D];

    config.unit = 4;
    config.parameter[0] = 4, config.parameter[1] = 4, config.parameter[2] = 15;
    config.parameter[3] = 250, config.parameter[4] = 375, config.parameter[6] = 16;
    session *s = session_open(&kr_method_retroinfer, config, one_head, 2 * N, N);
    feed f = golden_feed(1, 1);

    /* The vector's query stands at the last stored token: prefill all, then ask again without storing. */
    feed_run(s, &f, N, 13, out);
    s->view.tokens--; /* the decode step below stores token 37 again, bit for bit */
    session_run(s, feed_chunk(&f, s, N - 1, 1, false, out));
    const uint32_t *first = (const uint32_t *)((const uint64_t *)kr_view_record_body(&s->view) + 4);
    for (int c = 0; c < 8; c++)
        assert_int_equal(first[c + 1] - first[c], sizes[c]);
    assert_golden(out + (N - 1) * D, y, 8, "retroinfer");
    feed_free(&f);
    session_close(s);
}

static void magicpig(void **state)
{
    (void)state;
    static const uint32_t list[20] = {0,  1,  2,  3,  4,  13, 15, 16, 17, 27,
                                      28, 29, 30, 31, 32, 33, 34, 35, 36, 37};
    static const double y[8] = {-.305352, .290466, -.335259, -.204194, .530071, -.331446, -.053914, .167694};
    kr_method_config config = named("magicpig");
    float out[N * D], h[D * 18];

    config.parameter[0] = 3, config.parameter[1] = 6, config.parameter[2] = 4, config.parameter[3] = 8;
    session *s = session_open(&kr_method_magicpig, config, one_head, 2 * N, N);
    feed f = golden_feed(1, 1);

    golden_fill(h, D * 18, 9);
    for (int column = 0; column < 18; column++)
        for (int d = 0; d < D; d++)
            kr_magicpig_planes(&s->view)[column * D + d] = h[d * 18 + column];
    ((kr_magicpig_state *)kr_view_record_body(&s->view))->planes_drawn = 1;
    feed_run(s, &f, N, 13, out);
    s->view.tokens--; /* the query stands at the last stored token */
    session_run(s, feed_chunk(&f, s, N - 1, 1, false, out));
    assert_list(s, 0, list, 20);
    assert_golden(out + (N - 1) * D, y, 8, "magicpig");
    feed_free(&f);
    session_close(s);
}

/* Over fresh hyperplanes, the sampled sum of exp(l) / w is on average the exact sum: w is the true
 * inclusion probability. */
static void magicpig_is_unbiased(void **state)
{
    (void)state;
    enum { ROUNDS = 3000, BEGIN = 4, END = N - 8 };
    kr_method_config config = named("magicpig");
    feed f = golden_feed(1, 1);
    float out[N * D];
    double mu[D] = {0}, exact = 0.0, mean = 0.0, square = 0.0, weight[N], value[N];

    config.parameter[0] = 4, config.parameter[1] = 12, config.parameter[2] = BEGIN,
    config.parameter[3] = N - END;
    for (uint32_t t = BEGIN; t < END; t++)
        for (uint32_t d = 0; d < D; d++)
            mu[d] += (double)f.key[t * D + d] / (END - BEGIN);
    for (uint32_t t = BEGIN; t < END; t++) {
        double dot = 0.0, qq = 0.0, kk = 0.0;

        for (uint32_t d = 0; d < D; d++) {
            const double k = (double)f.key[t * D + d] - mu[d], q = (double)f.query[d];
            dot += q * k, qq += q * q, kk += k * k;
        }
        weight[t] = kr_magicpig_weight(dot / sqrt(qq * kk), 4, 12);
        value[t] = exp(dot * (double)one_head.softmax_scale);
        exact += value[t];
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        session *s = session_open(&kr_method_magicpig, config, one_head, N + 1, N);
        double sum = 0.0;

        s->record->seed = 1000 + round;
        feed_run(s, &f, N, N, out);
        s->view.tokens--;
        session_run(s, feed_chunk(&f, s, N - 1, 1, false, out));
        for (uint32_t i = 0; i < s->selected_count[0]; i++)
            if (s->selected[i] >= BEGIN && s->selected[i] < END)
                sum += value[s->selected[i]] / weight[s->selected[i]];
        mean += sum / ROUNDS;
        square += sum * sum / ROUNDS;
        session_close(s);
    }
    const double error = sqrt((square - mean * mean) / ROUNDS);

    print_message("mean %.4f, exact %.4f, standard error %.4f\n", mean, exact, error);
    assert_true(fabs(mean - exact) < 4.0 * error);
    assert_true(error < 0.02 * exact);
    feed_free(&f);
}

static void magicpig_weights(void **state)
{
    (void)state;
    static const double cosines[7] = {0, .1, .2, .3, .5, .7, .9};
    static const double want[3][7] = {{.009684, .030745, .086737, .213667, .735551, .997676, 1},
                                      {.012289, .0386, .106952, .255922, .795586, .999142, 1},
                                      {.00971, .03448, .106252, .275203, .86227, .999941, 1}};
    static const uint32_t tables[3][2] = {{10, 150}, {10, 170}, {11, 300}};

    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 7; i++)
            assert_true(fabs(kr_magicpig_weight(cosines[i], tables[k][0], tables[k][1]) - want[k][i]) < 1e-6);
    assert_true(kr_magicpig_weight(1.5, 10, 150) == kr_magicpig_weight(1.0, 10, 150));
}

static void lserve(void **state)
{
    (void)state;
    static const uint32_t pages[3] = {0, 3, 4};
    kr_method_config config = named("lserve");
    float out[N * D];
    uint32_t count = 0;

    config.budget = 16, config.unit = 8, config.parameter[0] = 4;
    session *s = session_open(&kr_method_lserve, config, one_head, N, N);
    feed f = golden_feed(1, 1);

    feed_run(s, &f, N - 1, 13, out);
    for (uint32_t p = 0; p < 3; p++)
        for (uint32_t t = pages[p] * 8; t < (pages[p] + 1) * 8 && t < N; t++)
            assert_int_equal(s->selected[count++], t);
    assert_int_equal(s->selected_count[0], count);
    feed_free(&f);
    session_close(s);
}

/* The choice is kept between intervals; streaming heads see sink and window. */
static void lserve_reuses_and_streams(void **state)
{
    (void)state;
    kr_rng rng = test_rng("lserve");
    kr_attention_shape shape = one_head;
    kr_method_config config = named("lserve");
    static float out[400 * 4 * D];
    uint32_t kept[24];

    shape.heads = 4, shape.kv_heads = 2;
    config.budget = 24, config.unit = 8, config.parameter[0] = 4;
    config.parameter[2] = 2, config.parameter[4] = 5, config.parameter[5] = 7; /* KV head 1 streams */
    session *s = session_open(&kr_method_lserve, config, shape, 400, 301);
    feed f = feed_random(&rng, &shape, 310);

    feed_run(s, &(feed){301, f.query, f.key, f.value, NULL, NULL}, 301, 301, out);
    for (uint32_t t = 301; t < 310; t++) {
        const uint64_t before = s->record->tokens_covered;

        session_run(s, feed_chunk(&f, s, t, 1, false, out));
        assert_int_equal(before, t);
        if (t != 301 && t % 4 != 0) /* the first two pages are the chosen ones */
            assert_memory_equal(kept, s->selected, 16 * sizeof *kept);
        memcpy(kept, s->selected, 16 * sizeof *kept);
        assert_int_equal(s->selected_count[2], 12);
        assert_int_equal(s->selected[2 * s->stride + 4], 4);
        assert_int_equal(s->selected[2 * s->stride + 5], t + 1 - 7);
        assert_int_equal(s->selected[s->selected_count[0] - 1], t);
    }
    feed_free(&f);
    session_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sparq),
        cmocka_unit_test(sparq_by_hand),
        cmocka_unit_test(starc),
        cmocka_unit_test(starc_ties_go_to_the_first_cluster),
        cmocka_unit_test(starc_equal_clusters_in_order),
        cmocka_unit_test(snapkv),
        cmocka_unit_test(h2o),
        cmocka_unit_test(streamingllm),
        cmocka_unit_test(retroinfer),
        cmocka_unit_test(magicpig),
        cmocka_unit_test(magicpig_weights),
        cmocka_unit_test(magicpig_is_unbiased),
        cmocka_unit_test(lserve),
        cmocka_unit_test(lserve_reuses_and_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
