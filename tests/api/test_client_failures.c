/* What goes wrong between a client and a node ends in a clear status, in time: another key, nobody there,
 * a node that is killed, stopped or full, one that lies, and callers' mistakes. */
#include "tests/api/client_rig.h"

#include <signal.h>

static const char *const plain_node[] = {"--listen", "127.0.0.1:0", NULL};

static const harness_shape small = {.layers = 2,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .dim = 32,
                                    .tokens_max = 64,
                                    .context_max = 512,
                                    .type = KR_BF16,
                                    .budget = 64,
                                    .method = {"dense", "quest"}};

/* A session with the rows of one token in every layer, over and over. */
typedef struct {
    daemon_process d;
    karat_client *client;
    karat_session *session;
    float query[64 * 4 * 32], key[64 * 2 * 32], value[64 * 2 * 32], output[64 * 4 * 32];
} rig;

static karat_attend_item rig_item(rig *r, uint32_t tokens)
{
    return (karat_attend_item){.session = r->session,
                               .tokens = tokens,
                               .prefill = tokens > 1,
                               .query = {.data = r->query},
                               .key = {.data = r->key},
                               .value = {.data = r->value},
                               .output = r->output};
}

static void rig_start(rig *r, uint32_t timeout_ms, uint32_t transports)
{
    const karat_client_options options = {
        .struct_size = sizeof options, .timeout_ms = timeout_ms, .transports = transports};
    karat_error error;

    memset(r, 0, sizeof *r);
    r->d = daemon_start(plain_node);
    api_ok(karat_client_connect("127.0.0.1", r->d.port, &options, &r->client, &error), &error);
    api_configure(r->client, &small);
    api_ok(karat_session_open(r->client, 512, 1, &r->session, &error), &error);
}

static void rig_attend(rig *r)
{
    const karat_attend_item item = rig_item(r, 1);
    karat_error error;

    for (uint32_t l = 0; l < small.layers; l++)
        api_ok(karat_client_attend(r->client, l, &item, 1, &error), &error);
}

static void rig_stop(rig *r)
{
    karat_client_disconnect(r->client);
    kill(r->d.pid, SIGTERM);
    assert_int_equal(daemon_wait(&r->d, 3000), 0);
}

/* ---- connecting ---- */

static karat_status try(const char *host, uint16_t port, const void *key, size_t key_bytes, const char *says)
{
    const karat_client_options options = {
        .struct_size = sizeof options, .key = key, .key_bytes = key_bytes, .timeout_ms = 2000};
    karat_client *client = NULL;
    karat_error error = {0};
    const karat_status status = karat_client_connect(host, port, &options, &client, &error);

    if (status == KARAT_OK)
        karat_client_disconnect(client);
    else
        assert_null(client);
    if (says != NULL && strstr(error.text, says) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", error.text, says);
    return status;
}

static void only_the_right_key_opens(void **state)
{
    static const char key[] = "0123456789abcdef0123456789abcdef";
    char path[] = "/tmp/karat-test-key-XXXXXX";
    const int fd = mkstemp(path);
    (void)state;

    assert_int_equal(write(fd, key, 32), 32);
    close(fd);
    const char *const options[] = {"--listen", "127.0.0.1:0", "--key-file", path, NULL};
    daemon_process d = daemon_start(options);
    assert_int_equal(try("127.0.0.1", d.port, key, 32, NULL), KARAT_OK);
    assert_int_equal(try("localhost", d.port, key, 32, NULL), KARAT_OK);
    assert_int_equal(try("127.0.0.1", d.port, key, 31, "key"), KARAT_E_AUTH);
    assert_int_equal(try("127.0.0.1", d.port, NULL, 0, "key"), KARAT_E_AUTH);
    unlink(path);
    kill(d.pid, SIGTERM);
    assert_int_equal(daemon_wait(&d, 3000), 0);
    assert_int_equal(try("127.0.0.1", d.port, key, 32, "127.0.0.1"), KARAT_E_LOST); /* nobody any more */
    assert_int_equal(try("no.such.host.invalid", 7420, NULL, 0, "no.such.host"), KARAT_E_NOT_FOUND);
    assert_int_equal(try(NULL, 7420, NULL, 0, NULL), KARAT_E_ARG);
    assert_int_equal(try("127.0.0.1", 0, NULL, 0, NULL), KARAT_E_ARG);
    assert_int_equal(try("127.0.0.1", 7420, NULL, 5, "key is null"), KARAT_E_ARG);
}

static void a_full_node_says_so(void **state)
{
    enum { MOST = 64 };
    daemon_process d = daemon_start(plain_node);
    kr_link *link[MOST];
    kr_msg_welcome welcome;
    kr_ucx_config config = echo_config(d.port, KR_UCX_TCP);
    (void)state;

    config.key = NULL;
    config.key_bytes = 0;
    for (int i = 0; i < MOST; i++)
        assert_int_equal(kr_ucx_connect(&config, &welcome, &link[i], NULL), KR_OK);
    assert_int_equal(try("127.0.0.1", d.port, NULL, 0, "serves no more clients"), KARAT_E_FULL);
    for (int i = 0; i < MOST; i++)
        link[i]->close(link[i]);
    kill(d.pid, SIGTERM);
    assert_int_equal(daemon_wait(&d, 3000), 0);
}

/* ---- losing the node ---- */

typedef struct {
    pid_t pid;
    uint32_t after_ms;
} killing;

static void *kill_later(void *argument)
{
    const killing *k = argument;

    sleep_ms(k->after_ms);
    kill(k->pid, SIGKILL);
    return NULL;
}

/* Returns when every thread of the node has stopped. */
static void stop_node(const daemon_process *d)
{
    int status;

    kill(d->pid, SIGSTOP);
    assert_int_equal(waitpid(d->pid, &status, WUNTRACED), d->pid);
    assert_true(WIFSTOPPED(status));
}

/* Whatever is called on a lost client returns the first cause at once. */
static void is_lost(rig *r, karat_status cause)
{
    const uint64_t begin = now_ms();
    const karat_attend_item item = rig_item(r, 1);
    karat_client_stats stats = {.struct_size = sizeof stats};
    karat_client_layer layer[H_LAYERS_MAX];
    const karat_client_model model = api_model(&small, layer);
    karat_session *session = NULL;
    karat_error error;

    assert_int_equal(karat_client_attend(r->client, 0, &item, 1, &error), cause);
    assert_int_equal(karat_session_open(r->client, 10, 1, &session, &error), cause);
    assert_null(session);
    assert_int_equal(karat_session_end_prefill(r->session, &error), cause);
    assert_int_equal(karat_session_trim(r->session, 0, &error), cause);
    assert_int_equal(karat_client_ask_stats(r->client, &stats, &error), cause);
    assert_int_equal(karat_client_configure(r->client, &model, &error), cause);
    assert_int_equal(karat_session_close(r->session, &error), cause);
    karat_client_disconnect(r->client);
    assert_true(now_ms() - begin < 500);
}

static void a_node_killed_during_a_call_is_lost_at_once(void **state)
{
    static const uint32_t transports[] = {KARAT_TRANSPORT_SHM, KARAT_TRANSPORT_TCP};
    static rig r;
    (void)state;

    for (int i = 0; i < 2; i++) {
        rig_start(&r, 10000, transports[i]);
        rig_attend(&r);
        killing k = {r.d.pid, 300};
        pthread_t thread;
        const karat_attend_item item = rig_item(&r, 1);
        karat_error error = {0};
        stop_node(&r.d); /* so that the call is under way when it is killed */
        assert_int_equal(pthread_create(&thread, NULL, kill_later, &k), 0);
        const uint64_t begin = now_ms();
        assert_int_equal(karat_client_attend(r.client, 0, &item, 1, &error), KARAT_E_LOST);
        const uint64_t took = now_ms() - begin;
        if (took < 200 || took > 1500)
            fail_msg("lost after %llu ms: %s", (unsigned long long)took, error.text);
        assert_non_null(strstr(error.text, "127.0.0.1"));
        pthread_join(thread, NULL);
        assert_int_equal(karat_session_tokens(r.session, 0), 1);
        is_lost(&r, KARAT_E_LOST);
        assert_int_equal(daemon_wait(&r.d, 1000), -SIGKILL);
    }
}

static void a_stopped_node_is_lost_in_time(void **state)
{
    /* The heart notices after 2 s; a shorter deadline comes first. */
    static const struct {
        uint32_t timeout_ms, least, most;
        karat_status status;
    } way[] = {{500, 450, 1200, KARAT_E_DEADLINE}, {10000, 1500, 4000, KARAT_E_LOST}};
    static rig r;
    (void)state;

    for (int i = 0; i < 2; i++) {
        rig_start(&r, way[i].timeout_ms, 0);
        rig_attend(&r);
        const karat_attend_item item = rig_item(&r, 1);
        karat_error error = {0};
        stop_node(&r.d);
        const uint64_t begin = now_ms();
        assert_int_equal(karat_client_attend(r.client, 0, &item, 1, &error), way[i].status);
        const uint64_t took = now_ms() - begin;
        if (took < way[i].least || took > way[i].most)
            fail_msg("after %llu ms: %s", (unsigned long long)took, error.text);
        is_lost(&r, way[i].status);
        kill(r.d.pid, SIGKILL);
        assert_int_equal(daemon_wait(&r.d, 1000), -SIGKILL);
    }
}

/* ---- mistakes of the caller ---- */

static void bad_models_are_refused(const rig *r)
{
    karat_client_layer layer[H_LAYERS_MAX];
    karat_client_model m = api_model(&small, layer);
    karat_error error;

#define REFUSED(expected, change)                                               \
    do {                                                                        \
        change;                                                                 \
        const karat_status got = karat_client_configure(r->client, &m, &error); \
        if (got != (expected))                                                  \
            fail_msg("%s: %s", #change, karat_status_name(got));                \
        m = api_model(&small, layer);                                           \
    } while (0)
    REFUSED(KARAT_E_ARG, m.struct_size = 0);
    REFUSED(KARAT_E_ARG, m.struct_size = 1u << 31);
    REFUSED(KARAT_E_LIMIT, m.layers = 0);
    REFUSED(KARAT_E_LIMIT, m.layers = 257);
    REFUSED(KARAT_E_SHAPE, m.kv_heads = 3);
    REFUSED(KARAT_E_SHAPE, m.key_dim = 0);
    REFUSED(KARAT_E_SHAPE, m.key_dim = 1025);
    REFUSED(KARAT_E_SHAPE, (m.query_heads = m.kv_heads = m.key_dim = 1u << 31, m.value_dim = 1u << 25));
    REFUSED(KARAT_E_ARG, m.kv_dtype = KARAT_E4M3);
    REFUSED(KARAT_E_ARG, m.kv_dtype = (karat_dtype)-1);
    REFUSED(KARAT_E_ARG, m.softmax_scale = NAN);
    REFUSED(KARAT_E_ARG, m.softmax_scale = -1.0f);
    REFUSED(KARAT_E_LIMIT, m.context_max = 0);
    REFUSED(KARAT_E_LIMIT, m.context_max = UINT64_MAX);
    REFUSED(KARAT_E_LIMIT, m.tokens_max = 0);
    REFUSED(KARAT_E_LIMIT, m.tokens_max = UINT32_MAX);
    REFUSED(KARAT_E_LIMIT, (m.key_dim = 1024, m.query_heads = 512, m.tokens_max = 65536)); /* a message */
    REFUSED(KARAT_E_NOT_FOUND, layer[1].method = "quests");
    REFUSED(KARAT_E_ARG, layer[1].method = "a name that no method of karat has");
    REFUSED(KARAT_E_UNSUPPORTED, layer[1].method = "dsa"); /* over KV heads */
    REFUSED(KARAT_E_ARG, layer[1].shares_index = 1);
    REFUSED(KARAT_E_ARG, (layer[0].method = "dsa", layer[0].shares_index = 1));
    REFUSED(KARAT_E_ARG, layer[0].reserved[1] = 1);
}

static void models_are_checked(void **state)
{
    static rig r;
    karat_client_layer layer[H_LAYERS_MAX];
    const karat_client_model good = api_model(&small, layer);
    karat_error error;
    (void)state;

    rig_start(&r, 10000, 0);
    assert_int_equal(karat_client_configure(r.client, &good, &error), KARAT_E_BUSY); /* a session is open */
    api_ok(karat_session_close(r.session, &error), &error);
    bad_models_are_refused(&r);
    assert_int_equal(karat_client_configure(r.client, NULL, &error), KARAT_E_ARG);
    assert_int_equal(karat_client_configure(NULL, &good, &error), KARAT_E_ARG);
    api_ok(karat_client_configure(r.client, &good, &error), &error); /* and none of it did harm */
    api_ok(karat_session_open(r.client, 512, 1, &r.session, &error), &error);
    rig_attend(&r);
    rig_stop(&r);
}

static void bad_handles_are_refused(const rig *r)
{
    karat_client_plan plan = {.struct_size = sizeof plan};
    karat_session *session;
    karat_error error;

    assert_int_equal(karat_session_open(r->client, 0, 1, &session, &error), KARAT_E_LIMIT);
    assert_int_equal(karat_session_open(r->client, 513, 1, &session, &error), KARAT_E_LIMIT);
    assert_int_equal(karat_session_open(r->client, 1, 1, NULL, &error), KARAT_E_ARG);
    assert_int_equal(karat_session_open(NULL, 1, 1, &session, &error), KARAT_E_ARG);
    assert_int_equal(karat_session_trim(NULL, 1, &error), KARAT_E_ARG);
    assert_int_equal(karat_session_end_prefill(NULL, &error), KARAT_E_ARG);
    assert_int_equal(karat_session_close(NULL, &error), KARAT_OK);
    assert_int_equal(karat_session_tokens(NULL, 0), 0);
    assert_int_equal(karat_session_tokens(r->session, 2), 0);
    assert_int_equal(karat_client_ask_stats(r->client, NULL, &error), KARAT_E_ARG);
    assert_int_equal(karat_client_plan_of(r->client, 2, &plan, &error), KARAT_E_ARG);
    assert_int_equal(karat_client_plan_of(r->client, 0, NULL, &error), KARAT_E_ARG);
    assert_int_equal(karat_client_plan_of(NULL, 0, &plan, &error), KARAT_E_ARG);
}

static void calls_are_checked(void **state)
{
    static rig r, other;
    uint32_t count[64];
    karat_attend_item item[2];
    karat_session *session;
    karat_error error;
    (void)state;

    rig_start(&r, 10000, 0);
    rig_start(&other, 10000, 0);
#define BAD(expected, change)                                                       \
    do {                                                                            \
        item[0] = rig_item(&r, 1);                                                  \
        change;                                                                     \
        const karat_status got = karat_client_attend(r.client, 0, item, 1, &error); \
        if (got != (expected))                                                      \
            fail_msg("%s: %s", #change, karat_status_name(got));                    \
    } while (0)
    BAD(KARAT_E_ARG, item[0].session = NULL);
    BAD(KARAT_E_ARG, item[0].session = other.session);
    BAD(KARAT_E_ARG, item[0].tokens = 0);
    BAD(KARAT_E_LIMIT, item[0].tokens = 65);
    BAD(KARAT_E_LIMIT, item[0].tokens = UINT32_MAX);
    BAD(KARAT_E_ARG, item[0].prefill = 2);
    BAD(KARAT_E_ARG, item[0].query.data = NULL);
    BAD(KARAT_E_ARG, item[0].key.data = NULL);
    BAD(KARAT_E_ARG, item[0].value.data = NULL);
    BAD(KARAT_E_ARG, item[0].key.data = (const uint8_t *)r.key + 1);
    BAD(KARAT_E_ARG, item[0].value.dtype = KARAT_E4M3);
    BAD(KARAT_E_ARG, item[0].query.dtype = (karat_dtype)-7);
    BAD(KARAT_E_ARG, item[0].query.reserved = 1);
    BAD(KARAT_E_ARG, item[0].output = NULL);
    BAD(KARAT_E_ARG, item[0].query.token_stride = 1); /* rows overlap */
    BAD(KARAT_E_LIMIT, (item[0].tokens = 3, item[0].key.token_stride = UINT64_MAX / 2));
    BAD(KARAT_E_ARG, item[0].output_head_stride = 1);
    BAD(KARAT_E_ARG, item[0].selected_count = count);
    item[0] = item[1] = rig_item(&r, 1);
    assert_int_equal(karat_client_attend(r.client, 0, item, 2, &error), KARAT_E_ARG); /* the same session */
    assert_int_equal(karat_client_attend(r.client, 2, item, 1, &error), KARAT_E_ARG);
    assert_int_equal(karat_client_attend(r.client, 0, item, 0, &error), KARAT_E_ARG);
    assert_int_equal(karat_client_attend(r.client, 0, NULL, 1, &error), KARAT_E_ARG);
    assert_int_equal(karat_client_attend(r.client, 0, item, 65, &error), KARAT_E_ARG);
    assert_int_equal(karat_client_attend(NULL, 0, item, 1, &error), KARAT_E_ARG);
    assert_int_equal(karat_client_attend(NULL, 0, item, 1, NULL), KARAT_E_ARG);
    bad_handles_are_refused(&r);
    karat_client_disconnect(NULL);

    item[0] = rig_item(&r, 1);
    api_ok(karat_client_attend(r.client, 0, item, 1, &error), &error);
    assert_int_equal(karat_session_end_prefill(r.session, &error), KARAT_E_ARG); /* layer 1 lacks it */
    api_ok(karat_client_attend(r.client, 1, item, 1, &error), &error);
    api_ok(karat_session_end_prefill(r.session, &error), &error);
    api_ok(karat_session_open(r.client, 2, 1, &session, &error), &error);
    item[0].session = session;
    item[0].tokens = 3;
    assert_int_equal(karat_client_attend(r.client, 0, item, 1, &error), KARAT_E_LIMIT);
    rig_stop(&other);
    rig_stop(&r);
}

/* ---- a node that lies ---- */

typedef enum {
    HONEST,
    STATS_OF_TWO_DEVICES,
    OPEN_ON_DEVICE_9,
    OPEN_WITH_TOKENS,
    OPEN_CUT_OFF,
    OUTPUT_SHORT,
    OUTPUT_LONG,
    OUTPUT_OF_ANOTHER_LAYER,
    DONE_INSTEAD,
    COUNT_TOO_LARGE,
    UNIT_BEHIND_THE_END,
    UNITS_DESCENDING,
    SELECTION_WITH_A_TAIL,
    SELECTION_MISSING,
    ERROR_OF_SUCCESS,
    ERROR_WITHOUT_TEXT,
    TOO_LARGE,
    LIES
} lie;

typedef struct {
    kr_ucx_listener *listener;
    lie lie;
    _Atomic uint32_t lists; /* of a decode token, as the client has told the test */
    _Atomic bool stop;
    pthread_t thread;
} liar;

static void say(kr_link *link, const kr_message *to, kr_msg_kind kind, const void *data, size_t bytes)
{
    const kr_piece piece = {data, bytes};
    const kr_msg_header header = {
        .kind = (uint16_t)kind, .epoch = 77, .layer = to->header.layer, .sequence = to->header.sequence};
    (void)link->send(link, header, &piece, 1, in_ms(3000), NULL);
}

/* An OUTPUT for one token of `small` in layer 1, which selects one unit a list. */
static void answer_attend(const liar *n, kr_link *link, kr_message *m)
{
    static uint8_t large[2 << 20];
    uint8_t bytes[4096] = {0};
    const size_t output = 4 * 4 * 32;
    const bool selects = (m->header.flags & KR_MSG_WANT_SELECTION) != 0;
    const uint32_t lists = n->lists;
    size_t used = output + (selects ? 8 * lists : 0);
    uint32_t *count = (uint32_t *)(void *)(bytes + output), *unit = count + lists;

    for (uint32_t l = 0; l < lists && selects; l++) {
        count[l] = 1;
        unit[l] = 0;
    }
    if (n->lie == OUTPUT_SHORT)
        used = output - 8;
    if (n->lie == OUTPUT_LONG)
        used += 8;
    if (n->lie == OUTPUT_OF_ANOTHER_LAYER)
        m->header.layer ^= 1;
    if (n->lie == COUNT_TOO_LARGE)
        count[0] = 1u << 30;
    if (n->lie == UNIT_BEHIND_THE_END)
        unit[0] = 7;
    if (n->lie == UNITS_DESCENDING) {
        count[0] = 2;
        unit[0] = 1;
        unit[1] = 0;
        used += 4;
    }
    if (n->lie == SELECTION_WITH_A_TAIL)
        used += 4;
    if (n->lie == SELECTION_MISSING)
        used = output;
    if (n->lie == DONE_INSTEAD)
        say(link, m, KR_MSG_DONE, NULL, 0);
    else if (n->lie == ERROR_OF_SUCCESS)
        say(link, m, KR_MSG_ERROR, "\0\0\0\0\0\0\0", 8);
    else if (n->lie == ERROR_WITHOUT_TEXT)
        say(link, m, KR_MSG_ERROR, "\xff\xff\xff\xff\x64\0\0", 8);
    else if (n->lie == TOO_LARGE)
        say(link, m, KR_MSG_OUTPUT, large, sizeof large);
    else
        say(link, m, KR_MSG_OUTPUT, bytes, used);
}

static void answer(const liar *n, kr_link *link, kr_message *m)
{
    struct {
        kr_msg_stats all;
        kr_msg_device_stats device[2];
    } stats = {.all.devices = n->lie == STATS_OF_TWO_DEVICES ? 2 : 1};
    kr_msg_opened opened = {.session = 1ull << 32 | 1,
                            .device = n->lie == OPEN_ON_DEVICE_9 ? 9 : 0,
                            .tokens = n->lie == OPEN_WITH_TOKENS ? 5 : 0};

    if (m->header.kind == KR_MSG_STATS)
        say(link, m, KR_MSG_STATS, &stats, sizeof stats.all + stats.all.devices * sizeof stats.device[0]);
    else if (m->header.kind == KR_MSG_OPEN)
        say(link, m, KR_MSG_OPEN, &opened, n->lie == OPEN_CUT_OFF ? 7 : sizeof opened);
    else if (m->header.kind == KR_MSG_ATTEND)
        answer_attend(n, link, m);
    else
        say(link, m, KR_MSG_DONE, NULL, 0);
}

static void *lie_main(void *argument)
{
    liar *n = argument;
    const kr_msg_welcome welcome = {.epoch = 77,
                                    .devices = 1,
                                    .beat_interval_ms = ECHO_BEAT_MS,
                                    .dead_after_ms = ECHO_DEAD_MS,
                                    .payload_max = KR_MSG_PAYLOAD_MAX};
    kr_link *link = NULL;
    kr_message m;

    while (!n->stop && kr_ucx_accept(n->listener, &welcome, &link, in_ms(50), NULL) != KR_OK)
        continue;
    while (!n->stop && link != NULL) {
        const kr_status status = link->receive(link, &m, in_ms(50), NULL);
        if (status == KR_E_DEADLINE)
            continue;
        if (status != KR_OK)
            break;
        answer(n, link, &m);
        link->release(link, &m);
    }
    if (link != NULL)
        link->close(link);
    return NULL;
}

/* What a client sees of the first call that the lie is about. */
static karat_status meet(liar *n, karat_error *error)
{
    static rig r;
    const karat_client_options options = {.struct_size = sizeof options,
                                          .key = ECHO_KEY,
                                          .key_bytes = sizeof ECHO_KEY - 1,
                                          .timeout_ms = 3000,
                                          .message_bytes_max = 1 << 20};
    karat_client_plan plan = {.struct_size = sizeof plan};
    uint32_t count[64], unit[4096];
    karat_status status = karat_client_connect("127.0.0.1", kr_ucx_port(n->listener), &options, &r.client,
                                               error);

    if (status != KARAT_OK)
        return status;
    api_configure(r.client, &small);
    api_ok(karat_client_plan_of(r.client, 1, &plan, error), error);
    n->lists = plan.lists;
    assert_true(plan.lists <= 64 && plan.lists * plan.units_max <= 4096);
    status = karat_session_open(r.client, 100, 1, &r.session, error);
    if (status == KARAT_OK) {
        karat_attend_item item = rig_item(&r, 1);
        item.selected_count = count;
        item.selected = unit;
        status = karat_client_attend(r.client, 1, &item, 1, error);
        if (status == KARAT_OK)
            assert_int_equal(count[0], 1);
        else /* it did not advance */
            assert_int_equal(karat_session_tokens(r.session, 1), 0);
    }
    karat_client_disconnect(r.client);
    return status;
}

static void what_a_node_sends_is_checked(void **state)
{
    (void)state;
    for (lie l = HONEST; l < LIES; l++) {
        const kr_ucx_config config = echo_config(0, KR_UCX_AUTO);
        const karat_status expected = l == HONEST      ? KARAT_OK
                                      : l == TOO_LARGE ? KARAT_E_LIMIT
                                                       : KARAT_E_FORMAT;
        liar n = {.lie = l};
        karat_error error = {0};

        assert_int_equal(kr_ucx_listen(&n.listener, &config, NULL), KR_OK);
        assert_int_equal(pthread_create(&n.thread, NULL, lie_main, &n), 0);
        const karat_status got = meet(&n, &error);
        n.stop = true;
        pthread_join(n.thread, NULL);
        kr_ucx_listener_close(n.listener);
        if (got != expected && !(l == COUNT_TOO_LARGE && got == KARAT_E_LIMIT))
            fail_msg("lie %d: %s: %s", (int)l, karat_status_name(got), error.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_right_key_opens),
        cmocka_unit_test(a_full_node_says_so),
        cmocka_unit_test(a_node_killed_during_a_call_is_lost_at_once),
        cmocka_unit_test(a_stopped_node_is_lost_in_time),
        cmocka_unit_test(models_are_checked),
        cmocka_unit_test(calls_are_checked),
        cmocka_unit_test(what_a_node_sends_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
