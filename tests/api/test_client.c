/* The client API against a `karat node` process: over shared memory and TCP it gives the bits of a node
 * inside the process; several clients share a node; and what goes wrong ends in a status, in time. */
#include "tests/api/client_rig.h"

enum { PROMPT = 600, DECODE = 5, TOKENS = PROMPT + DECODE };

/* Layers that stay dense, select, and have a window; keys and values in BF16 unless said. */
static const harness_shape mixed = {.layers = 3,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .dim = 32,
                                    .tokens_max = 200,
                                    .context_max = 1024,
                                    .type = KR_BF16,
                                    .budget = 128,
                                    .method = {"dense", "quest", "dense"},
                                    .window = {0, 0, 100}};

static const char *const one_device[] = {"--listen", "127.0.0.1:0", NULL};
static const char *const two_devices[] = {"--listen", "127.0.0.1:0", "--devices", "2", NULL};

static void ended(daemon_process *d)
{
    kill(d->pid, SIGTERM);
    assert_int_equal(daemon_wait(d, 3000), 0);
}

/* Prompt and decode of one session through the API, in the harness's own arrays. */
static void outside(karat_client *client, const harness_shape *s, client_session *c, float *out)
{
    karat_session *session;
    karat_error error;

    api_ok(karat_session_open(client, TOKENS, 1, &session, &error), &error);
    for (uint64_t t = 0, n; t < TOKENS; t += n) {
        n = t >= PROMPT ? 1 : PROMPT - t < s->tokens_max ? PROMPT - t : s->tokens_max;
        if (t == PROMPT)
            api_ok(karat_session_end_prefill(session, &error), &error);
        for (uint32_t l = 0; l < s->layers; l++) {
            const karat_attend_item item = api_item(s, c, session, l, t, (uint32_t)n, t < PROMPT, out);
            api_ok(karat_client_attend(client, l, &item, 1, &error), &error);
            assert_int_equal(karat_session_tokens(session, l), t + n);
        }
    }
    api_ok(karat_session_close(session, &error), &error);
}

static void same_bits(const harness_shape *s, const float *want, const float *got, uint64_t tokens)
{
    const size_t row = (size_t)s->layers * s->heads * s->dim;

    for (size_t i = 0; i < tokens * row; i++)
        if (kr_f32_bits(want[i]) != kr_f32_bits(got[i]))
            fail_msg("token %zu, element %zu: %a inside the process, %a over the link", i / row, i % row,
                     (double)want[i], (double)got[i]);
}

static void the_bits_are_those_of_a_node_inside(void **state)
{
    static const kr_dtype types[] = {KR_BF16, KR_F16, KR_F32};
    daemon_process d = daemon_start(one_device);
    harness_shape s = mixed;
    (void)state;

    for (uint32_t i = 0; i < 6; i++) {
        karat_client *client = api_connect(&d, i % 2 == 0 ? KARAT_TRANSPORT_SHM : KARAT_TRANSPORT_TCP);
        client_session c;

        s.type = types[i / 2];
        const size_t elements = (size_t)TOKENS * s.layers * s.heads * s.dim;
        float *want = calloc(elements, sizeof *want), *got = calloc(elements, sizeof *got);
        drawn(&c, &s, 70 + i, TOKENS);
        inside(&s, &c, PROMPT, DECODE, want);
        api_configure(client, &s);
        outside(client, &s, &c, got);
        same_bits(&s, want, got, TOKENS);
        karat_client_disconnect(client);
        client_free(&c);
        free(want);
        free(got);
    }
    ended(&d);
}

/* Arrays as engines have them: heads outside tokens, other element types, outputs with gaps. */
static void strides_and_types_are_the_callers(void **state)
{
    enum { N = 7 };
    daemon_process d = daemon_start(one_device);
    karat_client *client = api_connect(&d, 0);
    const harness_shape s = mixed;
    karat_session *plain, *strided;
    float q[4][N][32], out[N][4][40], want[N][4][32];
    uint16_t k[2][N + 1][32], v[2][N + 1][32];
    client_session c;
    karat_error error;
    (void)state;

    drawn(&c, &s, 3, N);
    api_configure(client, &s);
    api_ok(karat_session_open(client, N, 1, &plain, &error), &error);
    api_ok(karat_session_open(client, N, 1, &strided, &error), &error);
    for (uint32_t t = 0; t < N; t++)
        for (uint32_t h = 0; h < 4; h++)
            memcpy(q[h][t], client_row(c.query, &s, 4, 0, t) + h * 32, sizeof q[h][t]);
    for (uint32_t t = 0; t < N; t++)
        for (uint32_t h = 0; h < 2; h++) { /* the drawn values are BF16 already */
            kr_from_f32(KR_BF16, client_row(c.key, &s, 2, 0, t) + h * 32, k[h][t], 32);
            kr_from_f32(KR_BF16, client_row(c.value, &s, 2, 0, t) + h * 32, v[h][t], 32);
        }
    karat_attend_item item[2] = {api_item(&s, &c, plain, 0, 0, N, true, &want[0][0][0]),
                                 {.session = strided, .tokens = N, .prefill = 1}};
    item[0].output_token_stride = 0;
    item[1].query = (karat_client_array){q, 32, sizeof q[0] / 4, KARAT_F32, 0};
    item[1].key = (karat_client_array){k, 32, sizeof k[0] / 2, KARAT_BF16, 0};
    item[1].value = (karat_client_array){v, 32, sizeof v[0] / 2, KARAT_BF16, 0};
    item[1].output = &out[0][0][0];
    item[1].output_token_stride = sizeof out[0] / 4;
    item[1].output_head_stride = 40;
    api_ok(karat_client_attend(client, 0, item, 2, &error), &error);
    for (uint32_t t = 0; t < N; t++)
        for (uint32_t h = 0; h < 4; h++)
            assert_memory_equal(out[t][h], want[t][h], sizeof want[t][h]);
    karat_client_disconnect(client);
    client_free(&c);
    ended(&d);
}

/* Selections come back per item, whatever devices the sessions are on. */
static void selections_come_back(void **state)
{
    enum { SESSIONS = 3 };
    daemon_process d = daemon_start(two_devices);
    karat_client *client = api_connect(&d, 0);
    const harness_shape s = mixed;
    client_session c;
    karat_session *session[SESSIONS];
    karat_client_plan plan = {.struct_size = sizeof plan};
    karat_attend_item item[SESSIONS];
    karat_error error;
    (void)state;

    drawn(&c, &s, 9, TOKENS);
    api_configure(client, &s);
    api_ok(karat_client_plan_of(client, 0, &plan, &error), &error);
    assert_int_equal(plan.lists, 0);
    api_ok(karat_client_plan_of(client, 1, &plan, &error), &error);
    const uint32_t lists = plan.lists, units = plan.units_max, unit_tokens = plan.unit_tokens;
    assert_int_equal(plan.index_owner, 1);
    assert_int_equal(plan.index_query_bytes, 0);
    assert_true(lists >= 1 && lists <= s.heads && units * unit_tokens >= s.budget);
    uint32_t *count = calloc(SESSIONS * lists, sizeof *count), *unit = calloc(SESSIONS * lists * units, 4);
    float *out = calloc((size_t)TOKENS * s.layers * s.heads * s.dim * SESSIONS, sizeof *out);
    for (uint32_t i = 0; i < SESSIONS; i++) {
        api_ok(karat_session_open(client, TOKENS, 1, &session[i], &error), &error);
        for (uint64_t t = 0; t < PROMPT; t += 200) {
            item[0] = api_item(&s, &c, session[i], 1, t, 200, true, out);
            api_ok(karat_client_attend(client, 1, item, 1, &error), &error);
        }
    }
    for (uint32_t i = 0; i < SESSIONS; i++) {
        item[i] = api_item(&s, &c, session[i], 1, PROMPT, 1, false, out + i * s.heads * s.dim);
        if (i != 1) { /* one of them does not ask */
            item[i].selected_count = count + i * lists;
            item[i].selected = unit + (size_t)i * lists * units;
        }
    }
    api_ok(karat_client_attend(client, 1, item, SESSIONS, &error), &error);
    uint64_t selected = 0;
    for (uint32_t l = 0; l < lists; l++) {
        assert_int_equal(count[l], count[2 * lists + l]); /* equal sessions select alike */
        assert_memory_equal(unit + l * units, unit + (2 * lists + l) * units, 4 * count[l]);
        for (uint32_t u = 0; u < count[l]; u++) {
            assert_true(unit[l * units + u] * unit_tokens <= PROMPT);
            assert_true(u == 0 || unit[l * units + u] > unit[l * units + u - 1]);
        }
        selected += count[l];
    }
    assert_true(selected * unit_tokens >= lists * s.budget / 2 && selected * unit_tokens < lists * PROMPT);
    assert_int_equal(count[lists], 0);
    karat_client_disconnect(client);
    client_free(&c);
    free(count);
    free(unit);
    free(out);
    ended(&d);
}

/* ---- several clients ---- */

typedef struct {
    const daemon_process *d;
    harness_shape shape;
    client_session *session;
    const float *want;
    uint32_t number;
} tenant;

static void *tenant_main(void *argument)
{
    const tenant *t = argument;
    const size_t elements = (size_t)TOKENS * t->shape.layers * t->shape.heads * t->shape.dim;
    karat_client *client = api_connect(t->d, t->number % 2 == 0 ? KARAT_TRANSPORT_SHM : KARAT_TRANSPORT_TCP);
    float *got = calloc(elements, sizeof *got);

    api_configure(client, &t->shape);
    for (uint32_t round = 0; round < 3; round++) {
        memset(got, 0, elements * sizeof *got);
        outside(client, &t->shape, t->session, got);
        same_bits(&t->shape, t->want, got, TOKENS);
    }
    karat_client_disconnect(client);
    free(got);
    return NULL;
}

/* At the same time, with contexts and messages of their own that fit the first one's. */
static void clients_share_a_node(void **state)
{
    enum { TENANTS = 3 };
    const size_t elements = (size_t)TOKENS * mixed.layers * mixed.heads * mixed.dim;
    (void)state;

    for (uint32_t devices = 1; devices <= 2; devices++) {
        daemon_process d = daemon_start(devices == 1 ? one_device : two_devices);
        karat_client *first = api_connect(&d, 0);
        client_session c[TENANTS];
        tenant t[TENANTS];
        pthread_t thread[TENANTS];
        karat_session *held;
        karat_error error;

        api_configure(first, &mixed);
        api_ok(karat_session_open(first, 128, 1, &held, &error), &error);
        for (uint32_t i = 0; i < TENANTS; i++) {
            float *want = calloc(elements, sizeof *want);
            drawn(&c[i], &mixed, 100 + i, TOKENS);
            t[i] = (tenant){&d, mixed, &c[i], want, i};
            t[i].shape.context_max -= 128 * i;
            t[i].shape.tokens_max -= 50 * i;
            inside(&t[i].shape, &c[i], PROMPT, DECODE, want);
        }
        for (uint32_t i = 0; i < TENANTS; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, tenant_main, &t[i]), 0);
        for (uint32_t i = 0; i < TENANTS; i++) {
            pthread_join(thread[i], NULL);
            client_free(&c[i]);
            free((float *)(uintptr_t)t[i].want);
        }
        karat_client_disconnect(first);
        ended(&d);
    }
}

static void refused(karat_client *client, const harness_shape *s, const char *says)
{
    karat_client_layer layer[H_LAYERS_MAX];
    const karat_client_model model = api_model(s, layer);
    karat_error error = {0};

    assert_int_equal(karat_client_configure(client, &model, &error), KARAT_E_BUSY);
    if (strstr(error.text, says) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", error.text, says);
}

/* What does not fit is refused with what the node holds, while sessions are open; an idle node changes,
 * and the client that knew it otherwise asks again. */
static void another_configuration_waits_for_the_last_session(void **state)
{
    daemon_process d = daemon_start(one_device);
    karat_client *one = api_connect(&d, 0), *other = api_connect(&d, 0);
    karat_session *session, *second;
    harness_shape s = mixed;
    karat_error error = {0};
    (void)state;

    api_configure(one, &mixed);
    api_ok(karat_session_open(one, 300, 1, &session, &error), &error);
    s.context_max = 2048;
    refused(other, &s, "contexts of 1024 tokens, not 2048");
    s = mixed;
    s.tokens_max = 201;
    refused(other, &s, "messages of 200 tokens, not 201");
    s = mixed;
    s.type = KR_F32;
    refused(other, &s, "bf16 keys and values, not f32");
    s = mixed;
    s.budget = 256;
    refused(other, &s, "with other options in layer 0");
    s = mixed;
    s.method[1] = "streamingllm";
    refused(other, &s, "quest, not streamingllm, in layer 1");
    s = mixed;
    s.window[2] = 99;
    refused(other, &s, "a window of 100 in layer 2");
    s = mixed;
    s.layers = 2;
    refused(other, &s, "another model, of 3 layers");
    assert_int_equal(karat_session_open(other, 10, 1, &second, &error), KARAT_E_ARG); /* not configured */

    api_ok(karat_session_close(session, &error), &error);
    s = mixed;
    s.heads = 2;
    api_configure(other, &s);
    api_ok(karat_session_open(other, 10, 1, &second, &error), &error);
    assert_int_equal(karat_session_open(one, 10, 1, &session, &error), KARAT_E_BUSY);
    api_ok(karat_session_close(second, &error), &error);
    api_ok(karat_session_open(one, 10, 1, &session, &error), &error); /* the node is one's again */
    assert_int_equal(karat_session_open(other, 10, 1, &second, &error), KARAT_E_BUSY);
    karat_client_disconnect(one);
    karat_client_disconnect(other);
    ended(&d);
}

/* ---- sessions ---- */

static void sessions_come_and_go(void **state)
{
    static const char *const options[] = {"--listen", "127.0.0.1:0", "--sessions-max", "2", NULL};
    daemon_process d = daemon_start(options);
    karat_client *client = api_connect(&d, 0);
    const size_t elements = (size_t)TOKENS * mixed.layers * mixed.heads * mixed.dim;
    float *want = calloc(elements, sizeof *want), *got = calloc(elements, sizeof *got);
    float *junk = calloc(elements, sizeof *junk);
    karat_client_stats stats = {.struct_size = sizeof stats};
    karat_session *session[3];
    harness_shape s = mixed;
    client_session c;
    karat_error error;
    (void)state;

    s.window[2] = 0; /* a session whose window has passed cannot be cut */
    drawn(&c, &s, 5, TOKENS);
    inside(&s, &c, PROMPT, DECODE, want);
    api_configure(client, &s);
    for (uint32_t i = 0; i < 40; i++) {
        api_ok(karat_session_open(client, 1024, 1, &session[0], &error), &error);
        api_ok(karat_session_close(session[0], &error), &error);
    }
    for (uint32_t i = 0; i < 2; i++)
        api_ok(karat_session_open(client, TOKENS, 1, &session[i], &error), &error);
    assert_int_equal(karat_session_open(client, TOKENS, 1, &session[2], &error), KARAT_E_FULL);
    assert_non_null(strstr(error.text, "all 2 sessions"));
    /* Tokens that were wrong are cut off, and the right ones give the right bits. */
    for (uint32_t l = 0; l < s.layers; l++) {
        karat_attend_item item = api_item(&s, &c, session[1], l, 0, 200, true, got);
        api_ok(karat_client_attend(client, l, &item, 1, &error), &error);
        item = api_item(&s, &c, session[1], l, 0, 50, true, junk);
        api_ok(karat_client_attend(client, l, &item, 1, &error), &error);
    }
    assert_int_equal(karat_session_trim(session[1], 251, &error), KARAT_E_LIMIT);
    assert_int_equal(karat_session_tokens(session[1], 2), 250);
    api_ok(karat_session_trim(session[1], 200, &error), &error);
    assert_int_equal(karat_session_tokens(session[1], 2), 200);
    for (uint64_t t = 200; t < TOKENS; t += t < PROMPT ? 200 : 1) {
        if (t == PROMPT)
            api_ok(karat_session_end_prefill(session[1], &error), &error);
        for (uint32_t l = 0; l < s.layers; l++) {
            const karat_attend_item item = api_item(&s, &c, session[1], l, t, t < PROMPT ? 200 : 1,
                                                    t < PROMPT, got);
            api_ok(karat_client_attend(client, l, &item, 1, &error), &error);
        }
    }
    same_bits(&s, want, got, TOKENS);
    api_ok(karat_client_ask_stats(client, &stats, &error), &error);
    assert_int_equal(stats.sessions, 2);
    assert_int_equal(stats.devices, 1);
    assert_true(stats.memory_bytes == 16 << 20 && stats.used_bytes > 0 && stats.sent_bytes > 0);
    karat_client_disconnect(client);
    client_free(&c);
    free(want);
    free(got);
    free(junk);
    ended(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_a_node_inside),
        cmocka_unit_test(strides_and_types_are_the_callers),
        cmocka_unit_test(selections_come_back),
        cmocka_unit_test(clients_share_a_node),
        cmocka_unit_test(another_configuration_waits_for_the_last_session),
        cmocka_unit_test(sessions_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
