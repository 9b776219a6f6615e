/* What a node refuses: every malformed, stale, foreign or impossible message gets one line of error
 * and leaves the session as it was. */
#include "node_harness.h"

static const harness_shape shape = {.layers = 3,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .dim = 16,
                                    .tokens_max = 64,
                                    .context_max = 1024,
                                    .type = KR_BF16,
                                    .sessions_max = 2,
                                    .method = {"dense", "quest", "quest"},
                                    .dense_layers = 2,
                                    .budget = 64};

static harness h;
static client_session c;

static int begin(void **state)
{
    (void)state;
    harness_start(&h, &shape);
    assert_int_equal(harness_configure(&h), KR_OK);
    client_init(&c, &shape);
    for (uint64_t t = 0; t < 400; t++)
        client_draw(&c, &shape, 3, t);
    assert_int_equal(harness_open(&h, 512, NULL, 0, &c.opened), KR_OK);
    return 0;
}

static int end(void **state)
{
    (void)state;
    harness_stop(&h);
    client_free(&c);
    return 0;
}

/* The next tokens of the session in every layer are accepted and right. */
static void goes_on(uint32_t count)
{
    const client_run r = {&c, c.tokens, count, true};
    kr_message reply;

    for (uint32_t l = 0; l < shape.layers; l++) {
        if (client_attend(&h, &shape, &r, 1, l, 0, NULL, 0, &reply) != KR_OK)
            fail_msg("attend: %s", h.error.text);
        check_output(&shape, &r, 1, l, &reply);
        h.client->release(h.client, &reply);
    }
    c.tokens += count;
}

/* One ATTEND of a hand-made payload. */
static kr_status send_raw(kr_msg_header header, const uint8_t *payload, size_t bytes)
{
    const kr_piece piece = {payload, bytes};

    header.kind = KR_MSG_ATTEND;
    return harness_do(&h, header, &piece, 1);
}

static void rows_are_checked(void **state)
{
    const client_run r = {&c, 10, 1, false};
    const kr_msg_header header = {.rows = 1};
    size_t bytes;
    uint8_t *p, *q;

    (void)state;
    goes_on(10);
    p = client_payload(&shape, &r, 1, 0, 0, NULL, 0, &bytes);
    kr_msg_row *row = (kr_msg_row *)(void *)p;
    const kr_msg_row good = *row;

#define REFUSED(status, change)                                     \
    do {                                                            \
        *row = good;                                                \
        change;                                                     \
        const kr_status got = send_raw(header, p, bytes);           \
        if (got != (status))                                        \
            fail_msg("%s: %d %s", #change, (int)got, h.error.text); \
        assert_true(h.error.text[0] != 0);                          \
    } while (0)
    REFUSED(KR_E_FORMAT, row->session = 0);                                     /* pitfall R-01 */
    REFUSED(KR_E_NOT_FOUND, row->session = good.session + 1);                   /* no such slot in use */
    REFUSED(KR_E_NOT_FOUND, row->session = good.session + ((uint64_t)1 << 32)); /* another life */
    REFUSED(KR_E_NOT_FOUND, row->session = good.session | 0xffffff);
    REFUSED(KR_E_ARG, row->position = 9);
    REFUSED(KR_E_ARG, row->position = 11);
    REFUSED(KR_E_FORMAT, row->position = UINT64_MAX);
    REFUSED(KR_E_FORMAT, row->tokens = 0);
    REFUSED(KR_E_FORMAT, row->tokens = 2); /* more than the payload holds */
    REFUSED(KR_E_LIMIT, row->tokens = 65);
    REFUSED(KR_E_FORMAT, row->is_prefill = 2);
    REFUSED(KR_E_FORMAT, row->reserved = 1);
#undef REFUSED
    *row = good;
    for (size_t cut = 0; cut < bytes; cut += 8)
        assert_int_equal(send_raw(header, p, cut), KR_E_FORMAT);
    q = realloc(p, bytes + 8);
    assert_non_null(q);
    memset(q + bytes, 0, 8);
    assert_int_equal(send_raw(header, q, bytes + 8), KR_E_FORMAT); /* bytes left over */
    free(q);
    goes_on(3);
}

static void headers_are_checked(void **state)
{
    const client_run r = {&c, c.tokens, 1, false};
    size_t bytes;
    uint8_t *p = client_payload(&shape, &r, 1, 0, 0, NULL, 0, &bytes);

    (void)state;
    assert_int_equal(send_raw((kr_msg_header){.rows = 1, .epoch = 78}, p, bytes), KR_E_STALE);
    assert_int_equal(send_raw((kr_msg_header){.rows = 1, .layer = 3}, p, bytes), KR_E_ARG);
    assert_int_equal(send_raw((kr_msg_header){.rows = 1, .device = 1}, p, bytes), KR_E_ARG);
    assert_int_equal(send_raw((kr_msg_header){.rows = 2}, p, bytes), KR_E_FORMAT);
    assert_int_equal(send_raw((kr_msg_header){.rows = 65}, p, bytes), KR_E_LIMIT);
    assert_int_equal(
        send_raw((kr_msg_header){.rows = 1, .flags = KR_MSG_WITH_INDICES | KR_MSG_INDICES_ONLY}, p, bytes),
        KR_E_ARG);
    assert_int_equal(send_raw((kr_msg_header){.rows = 1, .flags = KR_MSG_WITH_INDICES}, p, bytes),
                     KR_E_ARG); /* dense */
    assert_int_equal(harness_do(&h, (kr_msg_header){.kind = KR_MSG_OUTPUT}, NULL, 0), KR_E_ARG);
    assert_int_equal(harness_do(&h, (kr_msg_header){.kind = KR_MSG_INDEX}, NULL, 0),
                     KR_E_UNSUPPORTED); /* dense */
    assert_int_equal(harness_do(&h, (kr_msg_header){.kind = KR_MSG_STATS}, &(kr_piece){"x", 1}, 1),
                     KR_E_FORMAT);
    assert_int_equal(harness_do(&h, (kr_msg_header){.kind = KR_MSG_SAVE}, NULL, 0), KR_E_FORMAT);
    free(p);
    /* An empty message is legal. */
    kr_message reply;
    assert_int_equal(harness_call(&h, (kr_msg_header){.kind = KR_MSG_ATTEND}, NULL, 0, &reply), KR_OK);
    assert_int_equal(reply.header.kind, KR_MSG_OUTPUT);
    assert_int_equal(reply.header.payload_bytes, 0);
    h.client->release(h.client, &reply);
    goes_on(2);
}

static void a_session_has_one_row(void **state)
{
    const client_run twice[] = {{&c, c.tokens, 1, false}, {&c, c.tokens, 1, false}};
    kr_message reply;

    (void)state;
    assert_int_equal(client_attend(&h, &shape, twice, 2, 0, 0, NULL, 0, &reply), KR_E_ARG);
    goes_on(1);
}

/* Selections that come from outside: bounded, ascending, within the session. */
static void selections_are_checked(void **state)
{
    static const uint32_t good[] = {2, 1, 1, 1, /* counts */ 0, 5, 1, 2, 3 /* units */};
    uint32_t lists[16];
    kr_message reply;

    (void)state;
    while (c.tokens < 90)
        goes_on(30); /* 6 units of 16 */
    const client_run r = {&c, c.tokens - 1, 1, false};
    const uint32_t flags = KR_MSG_WITH_INDICES | KR_MSG_NO_APPEND;
#define LISTS(status, ...)                                                                            \
    do {                                                                                              \
        memcpy(lists, good, sizeof good);                                                             \
        __VA_ARGS__;                                                                                  \
        const kr_status got = client_attend(&h, &shape, &r, 1, 2, flags, lists, sizeof good, &reply); \
        if (got != (status))                                                                          \
            fail_msg("%s: %d %s", #__VA_ARGS__, (int)got, h.error.text);                              \
        if (got == KR_OK)                                                                             \
            h.client->release(h.client, &reply);                                                      \
    } while (0)
    LISTS(KR_OK, (void)0);
    LISTS(KR_E_ARG, lists[5] = (uint32_t)((c.tokens + 15) / 16)); /* past the end */
    LISTS(KR_E_FORMAT, lists[5] = 0);                             /* not ascending */
    LISTS(KR_E_FORMAT, lists[0] = 3);                             /* counts go past the payload */
    LISTS(KR_E_LIMIT, lists[0] = 1000000);
    LISTS(KR_E_FORMAT, lists[0] = 0); /* units left over */
#undef LISTS
    goes_on(1);
}

static void stored_queries_are_checked(void **state)
{
    kr_message reply;
    const client_run late = {&c, c.tokens, 1, false}, middle = {&c, 5, 1, false}, old = {&c, 5, 3, true};

    (void)state;
    goes_on(20);
    assert_int_equal(client_attend(&h, &shape, &(client_run){&c, c.tokens, 1, false}, 1, 0, KR_MSG_NO_APPEND,
                                   NULL, 0, &reply),
                     KR_E_ARG);
    (void)late;
    /* A layer that selects has bounds of all its tokens: only the newest query is answered. */
    assert_int_equal(client_attend(&h, &shape, &middle, 1, 2, KR_MSG_NO_APPEND, NULL, 0, &reply), KR_E_ARG);
    assert_int_equal(client_attend(&h, &shape, &old, 1, 2, KR_MSG_NO_APPEND, NULL, 0, &reply), KR_OK);
    check_output(&shape, &old, 1, 2, &reply);
    h.client->release(h.client, &reply);
    assert_int_equal(client_attend(&h, &shape, &middle, 1, 0, KR_MSG_NO_APPEND, NULL, 0, &reply), KR_OK);
    check_output(&shape, &middle, 1, 0, &reply);
    h.client->release(h.client, &reply);
    goes_on(1);
}

static void control_is_checked(void **state)
{
    kr_msg_opened other, third;

    (void)state;
    assert_int_equal(harness_session(&h, KR_MSG_TRIM, c.opened.session, c.tokens + 1, NULL, 0), KR_E_LIMIT);
    assert_int_equal(harness_session(&h, KR_MSG_END_PREFILL, c.opened.session, c.tokens + 1, NULL, 0),
                     KR_E_ARG);
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, c.opened.session + 7, 0, NULL, 0), KR_E_NOT_FOUND);
    assert_int_equal(harness_open(&h, 128, NULL, 0, &other), KR_OK);
    assert_int_equal(harness_open(&h, 128, NULL, 0, &third), KR_E_FULL); /* two sessions at most */
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, other.session, 0, NULL, 0), KR_OK);
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, other.session, 0, NULL, 0), KR_E_NOT_FOUND);
    assert_int_equal(harness_open(&h, 128, NULL, 0, &third), KR_OK);
    assert_true(third.session != other.session); /* the slot's next life has another handle */
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, third.session, 0, NULL, 0), KR_OK);
    goes_on(1);
}

static void configurations_are_checked(void **state)
{
    const kr_msg_configure good = h.configure;
    const kr_msg_layer layer = h.layer[1];
    kr_method_config m;

    (void)state;
    assert_int_equal(harness_configure(&h), KR_OK); /* the same again */
    h.configure.fingerprint++;
    assert_int_equal(harness_configure(&h), KR_E_BUSY);
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, c.opened.session, 0, NULL, 0), KR_OK);
#define REFUSED(status, change)                                     \
    do {                                                            \
        change;                                                     \
        const kr_status got = harness_configure(&h);                \
        if (got != (status))                                        \
            fail_msg("%s: %d %s", #change, (int)got, h.error.text); \
        h.configure = good;                                         \
        h.layer[1] = layer;                                         \
    } while (0)
    REFUSED(KR_E_FORMAT, h.configure.kv_dtype = 3);
    REFUSED(KR_E_FORMAT, h.configure.kv_dtype = 0xffff); /* pitfall R-04 */
    REFUSED(KR_E_FORMAT, h.configure.softmax_scale = -1.0f);
    REFUSED(KR_E_FORMAT, h.configure.softmax_scale = NAN);
    REFUSED(KR_E_SHAPE, h.configure.kv_heads = 3);
    REFUSED(KR_E_SHAPE, h.configure.heads = 1024);
    REFUSED(KR_E_SHAPE, h.configure.key_dim = 1025); /* wider than the kernels' rows */
    REFUSED(KR_E_SHAPE, h.configure.value_dim = 1025);
    REFUSED(KR_E_SHAPE, h.configure.groups = 2); /* a group without a layer */
    REFUSED(KR_E_FORMAT, h.layer[1].group = 1);
    REFUSED(KR_E_SHAPE, h.layer[1].window = 100); /* differs inside a group */
    memcpy(&m, layer.method, sizeof m);
    memset(m.name, 'x', sizeof m.name);
    REFUSED(KR_E_FORMAT, memcpy(h.layer[1].method, &m, sizeof m));
    snprintf(m.name, sizeof m.name, "nothing");
    REFUSED(KR_E_NOT_FOUND, memcpy(h.layer[1].method, &m, sizeof m));
    h.configure.fingerprint++; /* another one, with no session open */
    h.configure.context_max = 512;
    assert_int_equal(harness_configure(&h), KR_OK);
    /* Handles of the former configuration stay dead. */
    const uint64_t old = c.opened.session;
    assert_int_equal(harness_open(&h, 513, NULL, 0, &c.opened), KR_E_LIMIT);
    assert_int_equal(harness_open(&h, 512, NULL, 0, &c.opened), KR_OK);
    assert_int_equal(harness_session(&h, KR_MSG_CLOSE, old, 0, NULL, 0), KR_E_NOT_FOUND);
    c.tokens = 0;
    goes_on(5);
}

/* Nothing but CONFIGURE and STATS is answered before CONFIGURE; one page must fit. */
static void fresh_node(void **state)
{
    harness fresh;
    kr_msg_opened opened;
    kr_msg_device_stats device[KR_MSG_DEVICES_MAX];
    harness_shape s = shape;

    (void)state;
    s.pool_bytes = 1000;
    harness_start(&fresh, &s);
    assert_int_equal(harness_open(&fresh, 10, NULL, 0, &opened), KR_E_ARG);
    assert_int_equal(harness_do(&fresh, (kr_msg_header){.kind = KR_MSG_ATTEND}, NULL, 0), KR_E_ARG);
    assert_int_equal(harness_session(&fresh, KR_MSG_CLOSE, 1, 0, NULL, 0), KR_E_ARG);
    assert_int_equal(harness_stats(&fresh, device).sessions, 0);
    assert_int_equal(harness_configure(&fresh), KR_E_LIMIT);
    assert_int_equal(harness_open(&fresh, 10, NULL, 0, &opened), KR_E_ARG);
    harness_stop(&fresh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_checked),           cmocka_unit_test(headers_are_checked),
        cmocka_unit_test(a_session_has_one_row),      cmocka_unit_test(selections_are_checked),
        cmocka_unit_test(stored_queries_are_checked), cmocka_unit_test(control_is_checked),
        cmocka_unit_test(configurations_are_checked), cmocka_unit_test(fresh_node),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
