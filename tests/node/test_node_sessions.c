/* The life of sessions on a node: sharing of prefixes, eviction, copy before write, promises and
 * refusals, trimming, and nothing leaked by any of it. */
#include "node_harness.h"

static const harness_shape small = {.layers = 2,
                                    .heads = 2,
                                    .kv_heads = 1,
                                    .dim = 16,
                                    .tokens_max = 256,
                                    .context_max = 1024,
                                    .type = KR_BF16,
                                    .sessions_max = 4};
/* 128 tokens * 16 dims * (key + value) * 2 bytes * 2 layers */
enum { SMALL_PAGE = 128 * 16 * 2 * 2 * 2 };

static void chain(kr_hash128 *hash, uint32_t pages, uint64_t seed)
{
    kr_hash128 previous = {0, 0};

    for (uint32_t p = 0; p < pages; p++, previous = hash[p - 1]) {
        const uint64_t page[2] = {seed, p};
        hash[p] = kr_hash128_link(previous, page, sizeof page);
    }
}

/* Tokens [from, to) of c in every layer, checked against the oracle. */
static void feed(harness *h, const harness_shape *s, client_session *c, uint64_t from, uint64_t to,
                 bool prefill)
{
    kr_message reply;

    for (uint64_t t = from; t < to; t += 200) {
        const client_run r = {c, t, (uint32_t)(to - t < 200 ? to - t : 200), prefill};
        for (uint32_t l = 0; l < s->layers; l++) {
            if (client_attend(h, s, &r, 1, l, 0, NULL, 0, &reply) != KR_OK)
                fail_msg("attend at %llu: %s", (unsigned long long)t, h->error.text);
            check_output(s, &r, 1, l, &reply);
            h->client->release(h->client, &reply);
        }
    }
    c->tokens = to;
}

static void draw(client_session *c, const harness_shape *s, uint64_t seed, uint64_t from, uint64_t to)
{
    for (uint64_t t = from; t < to; t++)
        client_draw(c, s, seed, t);
}

static void begin(harness *h, const harness_shape *s, uint64_t pages, client_session *c, uint32_t sessions)
{
    harness_shape sized = *s;

    sized.pool_bytes = pages * SMALL_PAGE;
    harness_start(h, &sized);
    if (harness_configure(h) != KR_OK)
        fail_msg("configure: %s", h->error.text);
    for (uint32_t i = 0; i < sessions; i++)
        client_init(&c[i], s);
}

static void finish(harness *h, client_session *c, uint32_t sessions)
{
    harness_stop(h);
    for (uint32_t i = 0; i < sessions; i++)
        client_free(&c[i]);
}

static void prefixes_are_shared(void **state)
{
    client_session c[3];
    kr_msg_device_stats device[KR_MSG_DEVICES_MAX];
    kr_hash128 hash[8];
    harness h;

    (void)state;
    begin(&h, &small, 24, c, 3);
    chain(hash, 8, 1);
    for (uint32_t i = 0; i < 3; i++) {
        draw(&c[i], &small, 1, 0, 500);        /* the same tokens ... */
        draw(&c[i], &small, 10 + i, 500, 700); /* ... then each its own */
    }
    assert_int_equal(harness_open(&h, 1024, hash, 3, &c[0].opened), KR_OK);
    assert_int_equal(c[0].opened.tokens, 0);
    feed(&h, &small, &c[0], 0, 500, true);
    assert_int_equal(harness_session(&h, KR_MSG_END_PREFILL, c[0].opened.session, 500, hash, 3), KR_OK);
    assert_int_equal(harness_open(&h, 1024, hash, 8, &c[1].opened), KR_OK); /* while 0 is open */
    assert_int_equal(c[1].opened.tokens, 384);
    (void)harness_stats(&h, device);
    assert_int_equal(device[0].pages_used[0], 4);
    feed(&h, &small, &c[1], 384, 700, true);
    feed(&h, &small, &c[0], 500, 700, false); /* neither sees the other's tokens */
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, c[0].opened.session, 0, NULL, 0), KR_OK);
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, c[1].opened.session, 0, NULL, 0), KR_OK);
    (void)harness_stats(&h, device);
    assert_int_equal(device[0].pages_used[0], 0);
    assert_int_equal(device[0].pages_cached[0], 3);
    assert_int_equal(harness_open(&h, 1024, hash, 2, &c[2].opened), KR_OK); /* from the cache */
    assert_int_equal(c[2].opened.tokens, 256);
    feed(&h, &small, &c[2], 256, 700, true);
    assert_int_equal(harness_stats(&h, device).prefix_hits_tokens, 384 + 256);
    hash[1].low ^= 1; /* another second page: only the first is common */
    assert_int_equal(harness_open(&h, 1024, hash, 3, &c[0].opened), KR_OK);
    assert_int_equal(c[0].opened.tokens, 128);
    finish(&h, c, 3);
}

/* A session cut back into a shared page writes a copy: the other sharer must not notice. */
static void shared_pages_are_copied_before_a_write(void **state)
{
    client_session c[2];
    kr_hash128 hash[3];
    harness h;

    (void)state;
    begin(&h, &small, 24, c, 2);
    chain(hash, 3, 2);
    draw(&c[0], &small, 2, 0, 400);
    draw(&c[1], &small, 2, 0, 300);
    assert_int_equal(harness_open(&h, 800, NULL, 0, &c[0].opened), KR_OK);
    feed(&h, &small, &c[0], 0, 400, true);
    assert_int_equal(harness_session(&h, KR_MSG_END_PREFILL, c[0].opened.session, 400, hash, 3), KR_OK);
    assert_int_equal(harness_open(&h, 800, hash, 3, &c[1].opened), KR_OK);
    assert_int_equal(c[1].opened.tokens, 384);
    assert_int_equal(harness_session(&h, KR_MSG_TRIM, c[1].opened.session, 300, NULL, 0), KR_OK);
    draw(&c[1], &small, 3, 300, 500);
    feed(&h, &small, &c[1], 300, 500, true);
    draw(&c[0], &small, 4, 400, 420);
    feed(&h, &small, &c[0], 400, 420, false);
    assert_int_equal(harness_session(&h, KR_MSG_TRIM, c[0].opened.session, 200, NULL, 0),
                     KR_OK); /* its own, published */
    draw(&c[0], &small, 5, 200, 300);
    feed(&h, &small, &c[0], 200, 300, true);
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, c[1].opened.session, 0, NULL, 0), KR_OK);
    draw(&c[1], &small, 2, 0, 400);
    assert_int_equal(harness_open(&h, 800, hash, 3, &c[1].opened),
                     KR_OK); /* the published pages are as they were */
    assert_int_equal(c[1].opened.tokens, 384);
    feed(&h, &small, &c[1], 384, 400, true);
    finish(&h, c, 2);
}

/* Pitfalls M-01, M-08: growth is promised at open, a refusal names the numbers, and the next one is
 * served. */
static void promises_are_kept(void **state)
{
    client_session c[3];
    kr_msg_device_stats device[KR_MSG_DEVICES_MAX];
    kr_hash128 hash[8];
    harness h;

    (void)state;
    begin(&h, &small, 12, c, 3);
    chain(hash, 8, 3);
    assert_int_equal(harness_open(&h, 1024, NULL, 0, &c[0].opened), KR_OK); /* 8 of 12 pages */
    assert_int_equal(harness_open(&h, 5 * 128, NULL, 0, &c[1].opened), KR_E_FULL);
    assert_non_null(strstr(h.error.text, "5 more pages"));
    assert_non_null(strstr(h.error.text, "4 of 12"));
    assert_int_equal(harness_open(&h, 1025, NULL, 0, &c[1].opened), KR_E_LIMIT);
    assert_int_equal(harness_open(&h, 4 * 128, NULL, 0, &c[1].opened), KR_OK);
    draw(&c[0], &small, 1, 0, 1024);
    draw(&c[1], &small, 2, 0, 513);
    feed(&h, &small, &c[1], 0, 512, true);
    feed(&h, &small, &c[0], 0, 1024, true); /* all it was promised, though the pool is full */
    const client_run over = {&c[1], 512, 1, false};
    kr_message reply;
    assert_int_equal(client_attend(&h, &small, &over, 1, 0, 0, NULL, 0, &reply), KR_E_LIMIT);
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, c[0].opened.session, 0, hash, 8), KR_OK);
    (void)harness_stats(&h, device);
    assert_int_equal(device[0].pages_cached[0], 8);
    /* Cached pages give way, the end of the chain first. */
    assert_int_equal(harness_open(&h, 6 * 128, NULL, 0, &c[2].opened), KR_OK);
    draw(&c[2], &small, 9, 0, 700);
    feed(&h, &small, &c[2], 0, 700, true);
    (void)harness_stats(&h, device);
    assert_int_equal(device[0].pages_cached[0], 2);
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, c[2].opened.session, 0, NULL, 0), KR_OK);
    assert_int_equal(harness_open(&h, 1024, hash, 8, &c[0].opened), KR_OK);
    assert_int_equal(c[0].opened.tokens, 256);
    feed(&h, &small, &c[0], 256, 300, true);
    finish(&h, c, 3);
}

/* Cached pages that were promised away cannot be adopted: the open is refused, nothing leaks. */
static void adoption_respects_promises(void **state)
{
    client_session c[2];
    kr_msg_device_stats device[KR_MSG_DEVICES_MAX];
    kr_hash128 hash[8];
    harness h;

    (void)state;
    begin(&h, &small, 8, c, 2);
    chain(hash, 8, 4);
    draw(&c[0], &small, 1, 0, 512);
    assert_int_equal(harness_open(&h, 512, NULL, 0, &c[0].opened), KR_OK);
    feed(&h, &small, &c[0], 0, 512, true);
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, c[0].opened.session, 0, hash, 4), KR_OK);
    assert_int_equal(harness_open(&h, 1024, NULL, 0, &c[1].opened), KR_OK); /* promises all 8 */
    assert_int_equal(harness_open(&h, 512, hash, 4, &c[0].opened), KR_E_FULL);
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, c[1].opened.session, 0, NULL, 0), KR_OK);
    assert_int_equal(harness_open(&h, 512, hash, 4, &c[0].opened), KR_OK);
    assert_int_equal(c[0].opened.tokens, 512);
    (void)harness_stats(&h, device);
    assert_int_equal(device[0].pages_used[0], 4);
    finish(&h, c, 2);
}

/* Pitfall D-05: a thousand sessions that came and went, in every state, leave nothing behind. */
static void nothing_leaks(void **state)
{
    client_session c;
    kr_msg_device_stats device[KR_MSG_DEVICES_MAX];
    kr_hash128 hash[4];
    kr_rng rng = kr_rng_make(17, 0);
    harness h;

    (void)state;
    begin(&h, &small, 9, &c, 1);
    chain(hash, 4, 5);
    draw(&c, &small, 1, 0, 512);
    for (uint32_t n = 0; n < 1000; n++) {
        const uint64_t tokens = kr_rng_below(&rng, 513);
        const uint32_t pages = (uint32_t)kr_rng_below(&rng, tokens / 128 + 1);
        kr_message reply;

        assert_int_equal(harness_open(&h, 512, hash, (uint32_t)kr_rng_below(&rng, 5), &c.opened), KR_OK);
        const client_run r = {&c, c.opened.tokens,
                              (uint32_t)(tokens > c.opened.tokens ? tokens - c.opened.tokens : 0), true};
        for (uint32_t l = 0; l < small.layers && r.count > 0 && r.count <= 256; l++) {
            if (n % 3 == 0 && l == 1)
                break; /* given up in the middle of a step */
            assert_int_equal(client_attend(&h, &small, &r, 1, l, 0, NULL, 0, &reply), KR_OK);
            h.client->release(h.client, &reply);
        }
        if (n % 5 == 0)
            (void)harness_session(&h, KR_MSG_TRIM, c.opened.session, kr_rng_below(&rng, tokens + 1), NULL, 0);
        assert_int_equal(
            harness_session(&h, KR_MSG_CLOSE, c.opened.session, 0, n % 5 ? hash : NULL, n % 5 ? pages : 0),
            KR_OK);
    }
    assert_int_equal(harness_stats(&h, device).sessions, 0);
    assert_int_equal(device[0].pages_used[0], 0);
    assert_true(device[0].pages_cached[0] <= 4);
    assert_int_equal(harness_open(&h, 1024, NULL, 0, &c.opened), KR_OK); /* 8 of the 9 can be promised */
    finish(&h, &c, 1);
}

/* Windows: pages behind the window come back to the session, and a prefix is found with its window. */
static void windows_recycle_pages(void **state)
{
    harness_shape s = small;
    client_session c[2];
    kr_msg_device_stats device[KR_MSG_DEVICES_MAX];
    kr_hash128 hash[8];
    harness h;

    (void)state;
    s.window[1] = 150;
    s.context_max = 1024;
    s.tokens_max = 200;
    begin(&h, &s, 16, c, 2);
    chain(hash, 8, 6);
    draw(&c[0], &s, 1, 0, 1024);
    draw(&c[1], &s, 1, 0, 1024);
    assert_int_equal(harness_open(&h, 1024, NULL, 0, &c[0].opened), KR_OK);
    feed(&h, &s, &c[0], 0, 900, true);
    (void)harness_stats(&h, device);
    assert_int_equal(device[0].pages_used[0], 8);
    assert_true(device[0].pages_used[1] <= 4); /* ceil((149 + 200) / 128) + 1 */
    assert_int_equal(harness_session(&h, KR_MSG_TRIM, c[0].opened.session, 300, NULL, 0), KR_E_UNSUPPORTED);
    feed(&h, &s, &c[0], 900, 901, false);
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, c[0].opened.session, 0, hash, 7), KR_OK);
    assert_int_equal(harness_open(&h, 1024, hash, 7, &c[1].opened), KR_OK);
    assert_int_equal(c[1].opened.tokens, 7 * 128);
    feed(&h, &s, &c[1], 7 * 128, 1024, true);
    assert_int_equal(harness_open(&h, 1024, hash, 3, &c[0].opened), KR_OK); /* its window is gone */
    assert_int_equal(c[0].opened.tokens, 0);
    finish(&h, c, 2);
}

/* The devices share the windows of sessions_max sessions. Those with the first one's prefix go to its
 * device until its windows are used up; the next one's window lies on the other device, although that one
 * is fuller. */
static void devices_share_windows(void **state)
{
    enum { SESSIONS = 9, PREFIX = 2, FED = 300 };
    static const uint64_t size[SESSIONS] = {1024, 4096, 1024, 1024, 1024, 4096, 1024, 1024, 1024};
    harness_shape s = small;
    client_session c[SESSIONS];
    kr_msg_device_stats device[KR_MSG_DEVICES_MAX];
    kr_hash128 hash[PREFIX];
    harness h;

    (void)state;
    s.window[1] = 150;
    s.context_max = 4096;
    s.tokens_max = 200;
    s.devices = 2;
    s.sessions_max = SESSIONS;
    begin(&h, &s, 80, c, SESSIONS);
    chain(hash, PREFIX, 6);
    (void)harness_stats(&h, device);
    for (uint32_t d = 0; d < 2;
         d++) { /* a session's window is at most 6 pages: ceil((149 + 400) / 128) + 1 */
        assert_int_equal(device[d].pages_total[1], 5 * 6);
        assert_int_equal(device[d].pages_total[0], 2 * 80 - 5 * 6);
    }
    for (uint32_t i = 0; i < SESSIONS; i++) {
        const uint32_t shared = size[i] == 1024 && i > 0 ? PREFIX : 0;

        if (harness_open(&h, size[i], hash, shared, &c[i].opened) != KR_OK)
            fail_msg("session %u of %llu tokens: %s", i, (unsigned long long)size[i], h.error.text);
        assert_int_equal(c[i].opened.device, size[i] == 4096);
        c[i].tokens = c[i].opened.tokens;
        assert_int_equal(c[i].tokens, shared * 128);
        draw(&c[i], &s, 1, 0, FED);
        feed(&h, &s, &c[i], c[i].tokens, FED, true);
        if (i == 0)
            assert_int_equal(harness_session(&h, KR_MSG_END_PREFILL, c[i].opened.session, FED, hash, PREFIX),
                             KR_OK);
    }
    (void)harness_stats(&h, device);
    assert_true(device[1].spilled_pages > 0);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        draw(&c[i], &s, 2 + i, FED, FED + 150); /* past the window, on either device */
        feed(&h, &s, &c[i], FED, FED + 150, false);
    }
    finish(&h, c, SESSIONS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefixes_are_shared),   cmocka_unit_test(shared_pages_are_copied_before_a_write),
        cmocka_unit_test(promises_are_kept),     cmocka_unit_test(adoption_respects_promises),
        cmocka_unit_test(nothing_leaks),         cmocka_unit_test(windows_recycle_pages),
        cmocka_unit_test(devices_share_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
