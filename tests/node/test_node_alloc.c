/* After warm-up a node serves decode steps without allocating: dense and quest, single and batched,
 * with and without selections in the reply. */
#include "node_harness.h"

enum { SESSIONS = 3, PROMPT = 500, STEPS = 300 };

static void serves_without_allocating(void **state)
{
    const harness_shape s = {.layers = 2,
                             .heads = 4,
                             .kv_heads = 2,
                             .dim = 16,
                             .tokens_max = 512,
                             .context_max = 1024,
                             .type = KR_BF16,
                             .method = {"dense", "quest"},
                             .budget = 128,
                             .threads = 2};
    client_session c[SESSIONS];
    kr_message reply;
    harness h;
    uint64_t calls = 0;

    (void)state;
    harness_start(&h, &s);
    assert_int_equal(harness_configure(&h), KR_OK);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        const client_run r = {&c[i], 0, PROMPT, true};

        client_init(&c[i], &s);
        for (uint64_t t = 0; t < PROMPT + STEPS; t++)
            client_draw(&c[i], &s, i, t);
        assert_int_equal(harness_open(&h, PROMPT + STEPS, NULL, 0, &c[i].opened), KR_OK);
        for (uint32_t l = 0; l < 2; l++) {
            assert_int_equal(client_attend(&h, &s, &r, 1, l, 0, NULL, 0, &reply), KR_OK);
            h.client->release(h.client, &reply);
        }
    }
    for (uint32_t n = 0; n < STEPS; n++) {
        if (n == 10) /* warm: pages, however, go on being taken every 128 tokens */
            calls = kr_alloc_calls();
        for (uint32_t l = 0; l < 2; l++) {
            client_run r[SESSIONS];

            for (uint32_t i = 0; i < SESSIONS; i++)
                r[i] = (client_run){&c[i], PROMPT + n, 1, false};
            assert_int_equal(
                client_attend(&h, &s, r, SESSIONS, l, n % 2 ? KR_MSG_WANT_SELECTION : 0, NULL, 0, &reply),
                KR_OK);
            h.client->release(h.client, &reply);
        }
    }
    assert_int_equal(kr_alloc_calls(), calls);
    harness_stop(&h);
    for (uint32_t i = 0; i < SESSIONS; i++)
        client_free(&c[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(serves_without_allocating)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
