/* The engine over the real memory node: embedded, served by a thread, over shared memory and over TCP;
 * one device and several, with and without spill; dense and quest; both placements. Every way gives
 * the same tokens and the same bits of the logits.
 *
 * Model: the committed tiny one; KARAT_TEST_MODEL adds the real one. */
#include <pthread.h>

#include "node/embedded.h"
#include "tests/engine/rig.h"
#include "wire/ucx.h"

enum { NEW = 8, VOCAB_MAX = 1 << 18, SESSIONS_MAX = 8 };

typedef enum { DRIVEN, SERVED, OVER_SHM, OVER_TCP } how;

typedef struct {
    how how;
    uint32_t threads, device_threads, devices, pool_pages; /* 0: plenty */
    uint32_t micro_batches, chunk, sessions;
    const char *method;
    uint32_t budget;
    kr_placement placement;
} setup;

static const char *const how_names[] = {"driven", "served", "shm", "tcp"};

/* ---- a node at the other end of each kind of link ---- */

typedef struct {
    kr_embedded embedded, gather;
    kr_node *remote;
    kr_ucx_listener *listener;
    kr_link *client, *server;
    pthread_t thread;
    kr_engine_node view, gather_view;
} nodes;

static kr_engine_node view_of(kr_embedded *embedded)
{
    return (kr_engine_node){.link = embedded->client,
                            .welcome = embedded->welcome,
                            .drive = embedded->driven ? kr_embedded_drive : NULL,
                            .drive_context = embedded};
}

static void *serve(void *context)
{
    nodes *n = context;
    kr_err err = {0};
    const kr_msg_welcome welcome = {.epoch = kr_node_epoch(n->remote),
                                    .devices = n->view.welcome.devices,
                                    .beat_interval_ms = 200,
                                    .dead_after_ms = 5000,
                                    .payload_max = KR_MSG_PAYLOAD_MAX};
    rig_ok(kr_ucx_accept(n->listener, &welcome, &n->server,
                         kr_deadline_after(&kr_clock_system, 10000000000ull), &err),
           &err);
    rig_ok(kr_node_serve(n->remote, n->server, &err), &err);
    return NULL;
}

static void start_remote(nodes *n, const setup *s, const kr_node_config *config)
{
    kr_err err = {0};
    kr_ucx_config ucx = {.host = "127.0.0.1",
                         .transport = s->how == OVER_SHM ? KR_UCX_SHM : KR_UCX_TCP,
                         .payload_max = KR_MSG_PAYLOAD_MAX,
                         .timeout_ns = 10000000000ull,
                         .spin_us = 20,
                         .clock = &kr_clock_system};
    rig_ok(kr_node_create(&n->remote, config, &err), &err);
    rig_ok(kr_ucx_listen(&n->listener, &ucx, &err), &err);
    n->view.welcome.devices = config->devices;
    assert_int_equal(pthread_create(&n->thread, NULL, serve, n), 0);
    ucx.port = kr_ucx_port(n->listener);
    rig_ok(kr_ucx_connect(&ucx, &n->view.welcome, &n->client, &err), &err);
    n->view.link = n->client;
}

static void start_nodes(nodes *n, const setup *s, uint64_t pool_bytes)
{
    kr_err err = {0};
    kr_node_config config = {.devices = s->devices,
                             .threads_per_device = s->device_threads,
                             .pool_bytes = pool_bytes,
                             .sessions_max = SESSIONS_MAX,
                             .clock = &kr_clock_system};
    *n = (nodes){0};
    if (s->how == OVER_SHM || s->how == OVER_TCP) {
        start_remote(n, s, &config);
    } else {
        rig_ok(kr_embedded_start(&n->embedded, &config, s->how == DRIVEN, &err), &err);
        n->view = view_of(&n->embedded);
    }
    config.devices = 1;
    if (s->placement == KR_PLACE_INDICES_ONLY) {
        rig_ok(kr_embedded_start(&n->gather, &config, true, &err), &err);
        n->gather_view = view_of(&n->gather);
    }
}

static void stop_nodes(nodes *n)
{
    if (n->remote != NULL) {
        pthread_join(n->thread, NULL);
        n->client->close(n->client);
        n->server->close(n->server);
        kr_ucx_listener_close(n->listener);
        kr_node_destroy(n->remote);
    }
    kr_embedded_stop(&n->embedded);
    kr_embedded_stop(&n->gather);
}

/* ---- one run ---- */

typedef struct {
    uint32_t token[NEW];
    float *logits; /* [vocab] after the last token */
    uint64_t spilled;
} answer;

static void configure(const setup *s, kr_method_config *methods, uint32_t layers)
{
    memset(methods, 0, KR_LAYERS_MAX * sizeof *methods);
    for (uint32_t l = 0; l < layers; l++) {
        memcpy(methods[l].name, s->method, strlen(s->method));
        methods[l].budget = s->budget;
        methods[l].dense_layers = 1;
    }
}

/* Session 0 has tokens of prompt; the others are shorter. */
static void run(const kr_model_file *file, const setup *s, uint32_t tokens, answer *out)
{
    static kr_method_config methods[KR_LAYERS_MAX];
    nodes n;
    kr_err err = {0};
    kr_engine *engine;
    kr_engine_needs needs;
    kr_request request[SESSIONS_MAX];
    uint32_t *prompt = calloc(tokens, sizeof *prompt);
    kr_engine_config c = rig_config(file, &n.view, methods);
    configure(s, methods, kr_model_file_model(file)->layers);
    c.kv_dtype = KR_BF16;
    c.context_max = tokens + NEW + 1;
    c.rows_max = s->chunk > 8 ? s->chunk : 8;
    c.micro_batches = s->micro_batches;
    c.threads = s->threads;
    c.placement = s->placement;
    c.timeout_ns = 60000000000ull;
    rig_ok(kr_engine_plan(&c, &needs, &err), &err);
    const uint64_t page = needs.node.page_bytes[0] + needs.node.page_bytes[1];
    start_nodes(&n, s, s->pool_pages != 0 ? s->pool_pages * page : SESSIONS_MAX * needs.session_page_bytes);
    c.gather_node = s->placement == KR_PLACE_INDICES_ONLY ? &n.gather_view : NULL;
    rig_ok(kr_engine_create(&engine, &c, &err), &err);
    for (uint32_t i = 0; i < s->sessions; i++) {
        const uint32_t count = i == 0 ? tokens : 10 + 7 * i;
        rig_prompt(file, 100 + i, prompt, count);
        request[i] = (kr_request){
            .session = rig_session(engine, prompt, count, NEW + 1), .tokens_max = NEW, .ignore_end = true};
    }
    kr_generation generation = {.chunk = s->chunk};
    rig_ok(kr_generate(engine, request, s->sessions, &generation, &err), &err);
    kr_step_item item = {
        .session = request[0].session, .tokens = 1, .want = KR_WANT_LAST_LOGITS, .logits = out->logits};
    rig_ok(kr_engine_step(engine, &item, 1, &err), &err);
    uint64_t count;
    const uint32_t *log = kr_session_tokens(request[0].session, &count);
    assert_int_equal(count, tokens + NEW);
    memcpy(out->token, log + tokens, sizeof out->token);
    rig_ok(kr_engine_ask_stats(engine, &err), &err);
    out->spilled = 0;
    for (uint32_t d = 0; d < s->devices; d++)
        out->spilled += kr_engine_peer(engine, 0)->device[d].spilled_pages;
    kr_engine_destroy(engine);
    stop_nodes(&n);
    free(prompt);
}

static void same_as(const kr_model_file *file, const answer *want, const setup *s, uint32_t tokens)
{
    const uint32_t vocab = kr_model_file_model(file)->vocab;
    answer got = {.logits = calloc(vocab, sizeof(float))};
    run(file, s, tokens, &got);
    print_message(
        "%s, %s %u, threads %u+%u, devices %u x %u pages, micro-batches %u, chunk %u, sessions %u\n",
        how_names[s->how], s->method, s->budget, s->threads, s->device_threads, s->devices, s->pool_pages,
        s->micro_batches, s->chunk, s->sessions);
    assert_memory_equal(got.token, want->token, sizeof got.token);
    assert_memory_equal(got.logits, want->logits, vocab * sizeof(float));
    assert_int_equal(got.spilled != 0, s->pool_pages != 0);
    free(got.logits);
}

static const setup base = {.how = DRIVEN,
                           .threads = 1,
                           .device_threads = 1,
                           .devices = 1,
                           .micro_batches = 1,
                           .chunk = 64,
                           .sessions = 1,
                           .method = "dense",
                           .placement = KR_PLACE_ALL_ON_NODE};

/* The ways that must agree; spill needs two devices that hold the context only together. */
static void all_ways_agree(const kr_model_file *file, uint32_t tokens, const char *method, uint32_t budget)
{
    const uint32_t vocab = kr_model_file_model(file)->vocab;
    const uint32_t pages = (tokens + NEW + 1 + KR_PAGE_TOKENS - 1) / KR_PAGE_TOKENS;
    answer want = {.logits = calloc(vocab, sizeof(float))};
    setup s = base;
    s.method = method;
    s.budget = budget;
    run(file, &s, tokens, &want);
    const setup reference = s;
#define WAY(...)                                          \
    do {                                                  \
        const setup other = {__VA_ARGS__};                \
        s = reference;                                    \
        if (other.threads != 0)                           \
            s.threads = s.device_threads = other.threads; \
        if (other.chunk != 0)                             \
            s.chunk = other.chunk;                        \
        if (other.sessions != 0)                          \
            s.sessions = other.sessions;                  \
        if (other.micro_batches != 0)                     \
            s.micro_batches = other.micro_batches;        \
        if (other.devices != 0)                           \
            s.devices = other.devices;                    \
        s.how = other.how;                                \
        s.pool_pages = other.pool_pages;                  \
        s.placement = other.placement;                    \
        same_as(file, &want, &s, tokens);                 \
    } while (0)
    WAY(.threads = 2);
    WAY(.chunk = tokens);
    WAY(.how = SERVED, .micro_batches = 2, .sessions = 8);
    WAY(.how = SERVED, .micro_batches = 2, .sessions = 8, .devices = 2, .threads = 2);
    WAY(.how = SERVED, .devices = 2, .pool_pages = pages - 1);
    WAY(.how = OVER_SHM, .micro_batches = 2);
    WAY(.how = OVER_TCP, .micro_batches = 2, .sessions = 3);
    if (strcmp(method, "quest") == 0) /* methods with index queries of their own are not split */
        WAY(.placement = KR_PLACE_INDICES_ONLY, .micro_batches = 2, .how = SERVED);
    if (tokens < 1000)
        WAY(.chunk = 1);
#undef WAY
    free(want.logits);
}

static void tiny_model_every_way(void **state)
{
    (void)state;
    kr_model_file *file = rig_open(RIG_TINY);
    all_ways_agree(file, 300, "dense", 0);
    all_ways_agree(file, 300, "quest", 64);
    kr_model_file_close(file);
}

static void learned_every_way(void **state)
{
    (void)state;
    kr_model_file *file = rig_open("tests/fixtures/learned/seer");
    all_ways_agree(file, 300, "seer", 48);
    kr_model_file_close(file);
    static const char *const native[] = {"tests/fixtures/learned/deepseek", "tests/fixtures/learned/glm",
                                         "tests/fixtures/learned/minimax"};
    for (size_t i = 0; i < sizeof native / sizeof native[0]; i++) {
        file = rig_open(native[i]);
        all_ways_agree(file, 300, "native", 0);
        all_ways_agree(file, 300, "dense", 0);
        kr_model_file_close(file);
    }
}

/* Two layer groups: layers that see a window of 16 tokens drop their pages on the way. */
static void windows_every_way(void **state)
{
    (void)state;
    kr_model_file *file = rig_open("tests/fixtures/tiny/gemma3");
    all_ways_agree(file, 300, "dense", 0);
    kr_model_file_close(file);
}

/* Selection matters at this budget, and a budget that covers the context selects everything. */
static void quest_is_dense_when_the_budget_covers(void **state)
{
    (void)state;
    kr_model_file *file = rig_open(RIG_TINY);
    const size_t bytes = kr_model_file_model(file)->vocab * sizeof(float);
    answer dense = {.logits = malloc(bytes)}, narrow = {.logits = malloc(bytes)},
           wide = {.logits = malloc(bytes)};
    static const uint32_t lengths[] = {15, 16, 17, 127, 128, 129, 255, 256, 300};
    setup s = base;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        s.method = "dense";
        s.budget = 0;
        run(file, &s, lengths[i], &dense);
        s.method = "quest";
        s.budget = 512;
        run(file, &s, lengths[i], &wide);
        assert_memory_equal(wide.token, dense.token, sizeof dense.token);
        assert_memory_equal(wide.logits, dense.logits, bytes);
    }
    s.budget = 64;
    run(file, &s, 300, &narrow);
    assert_memory_not_equal(narrow.logits, dense.logits, bytes);
    free(dense.logits);
    free(narrow.logits);
    free(wide.logits);
    kr_model_file_close(file);
}

static void real_model_every_way(void **state)
{
    (void)state;
    const char *path = getenv("KARAT_TEST_MODEL");
    if (path == NULL || path[0] == '\0' || getenv("KARAT_TEST_SANITIZED") != NULL) {
        print_message("SKIP: KARAT_TEST_MODEL names no model, or the build is sanitized\n");
        skip();
    }
    kr_model_file *file = rig_open(path);
    all_ways_agree(file, 1030, "quest", 256);
    kr_model_file_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_model_every_way), cmocka_unit_test(learned_every_way),
        cmocka_unit_test(windows_every_way),    cmocka_unit_test(quest_is_dense_when_the_budget_covers),
        cmocka_unit_test(real_model_every_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
