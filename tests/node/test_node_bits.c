/* The same session gives the same output bits whatever its surroundings: threads, batch, chunk size,
 * devices, spill, a node on its own thread; and selections that travel out and back, or queries over
 * stored tokens, give what a plain step gives. */
#include "method/trained.h"
#include "node_harness.h"

enum { PROMPT = 1500, DECODE = 4, COMPANY = 3 };

typedef struct {
    uint32_t chunk;       /* tokens of a prefill message */
    uint32_t company;     /* other sessions decoded in the same messages */
    bool many_tokens;     /* decode tokens in one row */
    bool indices;         /* ask for indices first, then attend with them over stored tokens */
    uint64_t spilled_min; /* pages that must lie on another device */
} way;

/* Prefill and decode of session 0; its decode outputs go to out [DECODE][layers][heads][dim]. */
static void run(const harness_shape *s, const way *w, float *out)
{
    const size_t row = (size_t)s->heads * s->dim;
    client_session c[1 + COMPANY];
    kr_msg_device_stats device[KR_MSG_DEVICES_MAX];
    kr_message reply;
    harness h;

    harness_start(&h, s);
    assert_int_equal(harness_configure(&h), KR_OK);
    for (uint32_t i = 0; i <= w->company; i++) {
        client_init(&c[i], s);
        const uint64_t most = i == 0 ? PROMPT + DECODE : 200;
        if (harness_open(&h, most, NULL, 0, &c[i].opened) != KR_OK)
            fail_msg("open: %s", h.error.text);
        c[i].tokens = i == 0 ? PROMPT : 100 + 7 * i;
        for (uint64_t t = 0; t < most; t++)
            client_draw(&c[i], s, 40 + i, t);
        for (uint64_t t = 0; t < c[i].tokens; t += w->chunk) {
            const client_run r = {&c[i], t,
                                  (uint32_t)(c[i].tokens - t < w->chunk ? c[i].tokens - t : w->chunk), true};
            for (uint32_t l = 0; l < s->layers; l++) {
                assert_int_equal(client_attend(&h, s, &r, 1, l, 0, NULL, 0, &reply), KR_OK);
                h.client->release(h.client, &reply);
            }
        }
        assert_int_equal(harness_session(&h, KR_MSG_END_PREFILL, c[i].opened.session, c[i].tokens, NULL, 0),
                         KR_OK);
    }
    for (uint32_t n = 0; n < DECODE; n += w->many_tokens ? DECODE : 1) {
        const uint32_t count = w->many_tokens ? DECODE : 1;
        client_run r[1 + COMPANY];
        uint32_t runs = 0;

        for (uint32_t i = w->company + 1; i-- > 0;) /* session 0 is the last row */
            if (c[i].opened.device == c[0].opened.device)
                r[runs++] = (client_run){&c[i], c[i].tokens + n, count, false};
        for (uint32_t l = 0; l < s->layers; l++) {
            uint32_t flags = 0;
            size_t extra_bytes = 0;
            uint8_t *extra = NULL;

            if (w->indices && strcmp(s->method[l], "quest") == 0) {
                assert_int_equal(client_attend(&h, s, r, runs, l, KR_MSG_INDICES_ONLY, NULL, 0, &reply),
                                 KR_OK);
                assert_int_equal(reply.header.kind, KR_MSG_INDICES);
                extra_bytes = reply.header.payload_bytes;
                extra = malloc(extra_bytes);
                memcpy(extra, reply.payload, extra_bytes);
                h.client->release(h.client, &reply);
                flags = KR_MSG_WITH_INDICES | KR_MSG_NO_APPEND | KR_MSG_WANT_SELECTION;
            }
            if (client_attend(&h, s, r, runs, l, flags, extra, extra_bytes, &reply) != KR_OK)
                fail_msg("attend: %s", h.error.text);
            const float *got = (const float *)(const void *)reply.payload + (size_t)(runs - 1) * count * row;
            for (uint32_t t = 0; t < count; t++)
                memcpy(out + ((size_t)(n + t) * s->layers + l) * row, got + t * row, row * sizeof *out);
            if (extra != NULL) /* the selection comes back as it went */
                assert_memory_equal(reply.payload + 4 * runs * count * row, extra, extra_bytes);
            free(extra);
            h.client->release(h.client, &reply);
        }
    }
    (void)harness_stats(&h, device);
    const uint64_t spilled = device[0].spilled_pages + (s->devices > 1 ? device[1].spilled_pages : 0);
    assert_true(w->spilled_min == 0 ? spilled == 0 : spilled >= w->spilled_min);
    harness_stop(&h);
    for (uint32_t i = 0; i <= w->company; i++)
        client_free(&c[i]);
}

static harness_shape shape_of(const char *method, kr_dtype type)
{
    return (harness_shape){.layers = 2,
                           .heads = 6,
                           .kv_heads = 2,
                           .dim = 32,
                           .tokens_max = PROMPT,
                           .context_max = 2000,
                           .type = type,
                           .method = {method, method},
                           .budget = 1040,
                           .threads = 1};
}

static void compare(const char *method, kr_dtype type)
{
    static float want[DECODE * 2 * 6 * 32], got[DECODE * 2 * 6 * 32];
    const harness_shape plain = shape_of(method, type);
    harness_shape s = plain;

    run(&plain, &(way){.chunk = PROMPT}, want);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        assert_true(isfinite(want[i]));
#define SAME(...)                                                                      \
    do {                                                                               \
        memset(got, 0, sizeof got);                                                    \
        run(&s, &(way){__VA_ARGS__}, got);                                             \
        if (memcmp(want, got, sizeof want) != 0)                                       \
            fail_msg("%s, type %d: differs with %s", method, (int)type, #__VA_ARGS__); \
    } while (0)
    SAME(.chunk = 64);
    SAME(.chunk = 1);
    SAME(.chunk = 100, .company = COMPANY);
    SAME(.chunk = PROMPT, .many_tokens = true);
    SAME(.chunk = PROMPT, .indices = true);
    s.threads = 2;
    SAME(.chunk = 128, .company = COMPANY);
    s.threaded = true;
    SAME(.chunk = 300);
    s.devices = 2;
    SAME(.chunk = 300, .company = COMPANY);
    /* 1,504 tokens are 12 pages; 7 fit on a device, so that 5 spill and one segment is split. */
    s.pool_bytes = 7 * (strcmp(method, "quest") == 0 ? 17 : 16) * 2048u * kr_dtype_bytes(type);
    SAME(.chunk = 300, .spilled_min = 5);
    SAME(.chunk = 64, .indices = true, .spilled_min = 5);
    s.threaded = false;
    s.threads = 1;
    SAME(.chunk = PROMPT, .spilled_min = 5);
#undef SAME
}

static void dense_is_invariant(void **state)
{
    (void)state;
    compare("dense", KR_BF16);
}

static void quest_is_invariant(void **state)
{
    (void)state;
    compare("quest", KR_F16);
}

/* Every method of the table that needs no index query from the compute side: the same bits with other
 * chunks, threads, company and several tokens a row. */
static void every_method_is_invariant(void **state)
{
    static float want[DECODE * 2 * 6 * 32], got[DECODE * 2 * 6 * 32];
    uint32_t tested = 0;

    (void)state;
    for (const kr_method *const *m = kr_methods; *m != NULL; m++) {
        harness_shape s = shape_of((*m)->name, KR_BF16);
        kr_status status;
        harness h;

        if (*m == &kr_method_seer) {
            printf("SKIP seer: its queries come from gate weights on the compute side\n");
            continue;
        }
        s.budget = 256;
        s.devices = 1;
        harness_start(&h, &s);
        status = harness_configure(&h);
        harness_stop(&h);
        if (status != KR_OK) {
            printf("SKIP %s: %s\n", (*m)->name, h.error.text);
            continue;
        }
        run(&s, &(way){.chunk = PROMPT}, want);
        for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
            assert_true(isfinite(want[i]));
        const way ways[] = {{.chunk = 100, .company = COMPANY}, {.chunk = 333, .many_tokens = true}};
        for (uint32_t w = 0; w < 2; w++) {
            s.threads = 2;
            run(&s, &ways[w], got);
            if (memcmp(want, got, sizeof want) != 0)
                fail_msg("%s differs in way %u", (*m)->name, w);
        }
        printf("tested %s\n", (*m)->name);
        tested++;
    }
    assert_true(tested >= 10);
}

/* Two sessions, each at home on one device with pages on the other, decoded at the same time: each
 * device asks the other for help while it is asked itself. */
static void devices_help_each_other(void **state)
{
    enum { PAGE_BYTES = 16 * 2048 * 2 };
    static const uint32_t pages[] = {9, 5};
    harness_shape s = shape_of("dense", KR_BF16);
    kr_msg_device_stats device[KR_MSG_DEVICES_MAX];
    client_session c[2];
    kr_msg_opened first, second;
    kr_message reply;
    harness h;

    (void)state;
    s.devices = 2;
    s.threaded = true;
    s.pool_bytes = 8 * PAGE_BYTES;
    harness_start(&h, &s);
    assert_int_equal(harness_configure(&h), KR_OK);
    /* Two passing sessions leave 1 page on device 0 and 4 on device 1; session 1 takes these 5. When
     * they are gone, session 0 finds 7 and 4. */
    assert_int_equal(harness_open(&h, 7 * KR_PAGE_TOKENS, NULL, 0, &first), KR_OK);
    assert_int_equal(harness_open(&h, 4 * KR_PAGE_TOKENS, NULL, 0, &second), KR_OK);
    client_init(&c[0], &s);
    client_init(&c[1], &s);
    assert_int_equal(harness_open(&h, pages[1] * KR_PAGE_TOKENS, NULL, 0, &c[1].opened), KR_OK);
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, first.session, 0, NULL, 0), KR_OK);
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, second.session, 0, NULL, 0), KR_OK);
    assert_int_equal(harness_open(&h, pages[0] * KR_PAGE_TOKENS, NULL, 0, &c[0].opened), KR_OK);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(c[i].opened.device, i);
        for (uint64_t t = 0; t < pages[i] * KR_PAGE_TOKENS; t++)
            client_draw(&c[i], &s, 40 + i, t);
        c[i].tokens = pages[i] * KR_PAGE_TOKENS - 20;
    }
    for (uint32_t n = 0; n < 20; n++)
        for (uint32_t l = 0; l < 2; l++) {
            client_run r[2];

            for (uint32_t i = 0; i < 2; i++) { /* both in flight */
                const uint32_t count = n == 0 ? (uint32_t)c[i].tokens : 1;
                size_t bytes;

                r[i] = (client_run){&c[i], n == 0 ? 0 : c[i].tokens + n - 1, count, n == 0};
                uint8_t *p = client_payload(&s, &r[i], 1, l, 0, NULL, 0, &bytes);
                harness_send(
                    &h, (kr_msg_header){.kind = KR_MSG_ATTEND, .layer = (uint16_t)l, .rows = 1, .device = i},
                    &(kr_piece){p, bytes}, 1);
                free(p);
            }
            for (uint32_t i = 0; i < 2; i++) {
                reply = harness_receive(&h);
                if (n > 0)
                    check_output(&s, &r[reply.header.device], 1, l, &reply);
                h.client->release(h.client, &reply);
            }
        }
    (void)harness_stats(&h, device);
    assert_int_equal(device[0].spilled_pages, 1);
    assert_int_equal(device[1].spilled_pages, 2);
    harness_stop(&h);
    client_free(&c[0]);
    client_free(&c[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_is_invariant),
        cmocka_unit_test(quest_is_invariant),
        cmocka_unit_test(every_method_is_invariant),
        cmocka_unit_test(devices_help_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
