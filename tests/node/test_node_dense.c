/* A node driven through the in-process link with random sessions: every output of every row, head
 * and layer is within a derived bound of a float64 attention over what the client sent; windows,
 * chunked prefill, batched decode, trim and reopening included. */
#include "node_harness.h"

enum { SESSIONS = 3, TOKENS_MAX = 64, CONTEXT = 900 };

static void step(harness *h, const harness_shape *s, client_session *c, kr_rng *rng)
{
    client_run run[SESSIONS];
    uint32_t runs = 0;
    const bool prefill = kr_rng_below(rng, 3) == 0;
    kr_message reply;

    for (uint32_t i = 0; i < SESSIONS; i++) {
        if (c[i].opened.session == 0 || (prefill && runs > 0) || kr_rng_below(rng, 4) == 0)
            continue;
        const uint32_t most = prefill ? TOKENS_MAX : 1 + (uint32_t)kr_rng_below(rng, 3);
        const uint32_t left = (uint32_t)(CONTEXT - c[i].tokens);
        const uint32_t count = 1 + (uint32_t)kr_rng_below(rng, most < left ? most : left);
        run[runs++] = (client_run){&c[i], c[i].tokens, count, prefill};
        for (uint32_t t = 0; t < count; t++)
            client_draw(&c[i], s, 100 + i, c[i].tokens + t);
    }
    for (uint32_t l = 0; l < s->layers; l++) {
        if (client_attend(h, s, run, runs, l, 0, NULL, 0, &reply) != KR_OK)
            fail_msg("attend: %s", h->error.text);
        check_output(s, run, runs, l, &reply);
        h->client->release(h->client, &reply);
    }
    for (uint32_t i = 0; i < runs; i++)
        run[i].session->tokens += run[i].count;
}

static void drive(const harness_shape *s, uint64_t seed)
{
    kr_rng rng = kr_rng_make(seed, 0);
    client_session c[SESSIONS];
    harness h;

    harness_start(&h, s);
    assert_int_equal(harness_configure(&h), KR_OK);
    for (uint32_t i = 0; i < SESSIONS; i++)
        client_init(&c[i], s);
    for (uint32_t n = 0; n < 60; n++) {
        client_session *any = &c[kr_rng_below(&rng, SESSIONS)];

        for (uint32_t i = 0; i < SESSIONS; i++)
            if (c[i].opened.session == 0 || c[i].tokens + TOKENS_MAX > CONTEXT) {
                if (c[i].opened.session != 0)
                    assert_int_equal(
                        harness_session(&h, KR_MSG_CLOSE, c[i].opened.session, c[i].tokens, NULL, 0), KR_OK);
                if (harness_open(&h, CONTEXT, NULL, 0, &c[i].opened) != KR_OK)
                    fail_msg("open: %s", h.error.text);
                c[i].tokens = 0;
            }
        if (n % 7 == 6) {
            const uint64_t cut = any->tokens - kr_rng_below(&rng, any->tokens < 40 ? any->tokens + 1 : 40);
            const kr_status status = harness_session(&h, KR_MSG_TRIM, any->opened.session, cut, NULL, 0);
            assert_true(status == KR_OK || (status == KR_E_UNSUPPORTED && h.configure.groups == 2));
            any->tokens = status == KR_OK ? cut : any->tokens;
        }
        step(&h, s, c, &rng);
    }
    harness_stop(&h);
    for (uint32_t i = 0; i < SESSIONS; i++)
        client_free(&c[i]);
}

static void bf16_one_group(void **state)
{
    (void)state;
    drive(&(harness_shape){.layers = 2,
                           .heads = 6,
                           .kv_heads = 2,
                           .dim = 32,
                           .tokens_max = TOKENS_MAX * 2,
                           .context_max = CONTEXT,
                           .type = KR_BF16,
                           .threads = 2},
          1);
}

static void f32_odd_dim(void **state)
{
    (void)state;
    drive(&(harness_shape){.layers = 1,
                           .heads = 3,
                           .kv_heads = 3,
                           .dim = 20,
                           .tokens_max = TOKENS_MAX * 2,
                           .context_max = CONTEXT,
                           .type = KR_F32},
          2);
}

static void f16_windows(void **state)
{
    (void)state;
    drive(&(harness_shape){.layers = 3,
                           .heads = 4,
                           .kv_heads = 1,
                           .dim = 64,
                           .tokens_max = TOKENS_MAX * 2,
                           .context_max = CONTEXT,
                           .type = KR_F16,
                           .window = {200, 0, 200}},
          3);
}

static void served_by_a_thread(void **state)
{
    (void)state;
    drive(&(harness_shape){.layers = 2,
                           .heads = 6,
                           .kv_heads = 2,
                           .dim = 32,
                           .tokens_max = TOKENS_MAX * 2,
                           .context_max = CONTEXT,
                           .type = KR_BF16,
                           .threads = 2,
                           .threaded = true},
          4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_one_group),
        cmocka_unit_test(f32_odd_dim),
        cmocka_unit_test(f16_windows),
        cmocka_unit_test(served_by_a_thread),
    };
    printf("seeds 1 to 4\n");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
