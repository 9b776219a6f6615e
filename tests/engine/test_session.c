/* Sessions on the real memory node: prefixes that are shared, turns, files, two nodes, full pools, and
 * what is occupied against what was planned. */
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/embedded.h"
#include "tests/engine/rig.h"
#include "wire/queue.h"

enum { NODES_MAX = 2, PROMPT = 300, NEW = 6, VOCAB_MAX = 512 };

typedef struct {
    kr_model_file *file;
    kr_embedded node[NODES_MAX];
    kr_engine_node view[NODES_MAX];
    kr_method_config methods[KR_LAYERS_MAX];
    kr_engine_config config;
    kr_engine_needs needs;
    kr_engine *engine;
    uint32_t prompt[PROMPT];
    char folder[64];
} rig;

/* nodes with pools for sessions of the whole context each. */
static void begin(rig *r, uint32_t nodes, uint32_t sessions)
{
    kr_err err = {0};
    *r = (rig){.file = rig_open(RIG_TINY), .folder = "/tmp/karat-sessions-XXXXXX"};
    assert_non_null(mkdtemp(r->folder));
    r->config = rig_config(r->file, r->view, r->methods);
    for (uint32_t l = 1; l < kr_model_file_model(r->file)->layers; l++) {
        memcpy(r->methods[l].name, "quest", 6);
        r->methods[l].budget = 64;
    }
    r->config.node_count = nodes;
    r->config.rows_max = 128;
    rig_ok(kr_engine_plan(&r->config, &r->needs, &err), &err);
    const kr_node_config node = {.devices = 1,
                                 .threads_per_device = 1,
                                 .pool_bytes = sessions * r->needs.session_page_bytes,
                                 .sessions_max = 8,
                                 .save_folder = r->folder,
                                 .clock = &kr_clock_system};
    for (uint32_t i = 0; i < nodes; i++) {
        rig_ok(kr_embedded_start(&r->node[i], &node, true, &err), &err);
        r->view[i] = (kr_engine_node){.link = r->node[i].client,
                                      .welcome = r->node[i].welcome,
                                      .drive = kr_embedded_drive,
                                      .drive_context = &r->node[i]};
    }
    rig_ok(kr_engine_create(&r->engine, &r->config, &err), &err);
    rig_prompt(r->file, 3, r->prompt, PROMPT);
}

static void end(rig *r)
{
    char command[128];
    kr_engine_destroy(r->engine);
    for (uint32_t i = 0; i < r->config.node_count; i++)
        kr_embedded_stop(&r->node[i]);
    kr_model_file_close(r->file);
    snprintf(command, sizeof command, "rm -rf %s", r->folder);
    assert_int_equal(system(command), 0);
}

/* New tokens of a session whose prompt is pending. */
static void generate(rig *r, kr_session *session, uint32_t token[NEW])
{
    kr_err err = {0};
    kr_request request = {.session = session, .tokens_max = NEW, .ignore_end = true};
    kr_generation generation = {.chunk = 64};
    uint64_t count;
    rig_ok(kr_generate(r->engine, &request, 1, &generation, &err), &err);
    const uint32_t *log = kr_session_tokens(session, &count);
    memcpy(token, log + count - NEW, NEW * sizeof *token);
}

/* Whole pages of an equal prefix are found, the rest is run, and the answer is the same; a prompt
 * that differs in its first page shares nothing. */
static void equal_prefixes_are_shared(void **state)
{
    (void)state;
    rig r;
    uint32_t first[NEW], second[NEW];
    begin(&r, 1, 4);
    kr_session *a = rig_session(r.engine, r.prompt, PROMPT, NEW);
    assert_int_equal(kr_session_reused_tokens(a), 0);
    generate(&r, a, first);
    const uint64_t rows = kr_engine_get_stats(r.engine).rows;
    kr_session *b = rig_session(r.engine, r.prompt, PROMPT, NEW);
    assert_int_equal(kr_session_reused_tokens(b), 2 * KR_PAGE_TOKENS);
    generate(&r, b, second);
    assert_int_equal(kr_engine_get_stats(r.engine).rows - rows, PROMPT - 2 * KR_PAGE_TOKENS + NEW - 1);
    assert_memory_equal(first, second, sizeof first);
    r.prompt[0] ^= 1;
    kr_session *c = rig_session(r.engine, r.prompt, PROMPT, NEW);
    assert_int_equal(kr_session_reused_tokens(c), 0);
    /* A prompt of whole shared pages still runs its last token. */
    r.prompt[0] ^= 1;
    kr_session *d = rig_session(r.engine, r.prompt, 2 * KR_PAGE_TOKENS, NEW);
    assert_int_equal(kr_session_reused_tokens(d), KR_PAGE_TOKENS);
    end(&r);
}

static void a_saved_session_goes_on_as_if_never_closed(void **state)
{
    (void)state;
    rig r;
    kr_err err = {0};
    uint32_t token[NEW];
    float here[VOCAB_MAX] = {0}, restored[VOCAB_MAX] = {0};
    const kr_sampling greedy = {0, 1, 0};
    begin(&r, 1, 3);
    kr_session *a = rig_session(r.engine, r.prompt, PROMPT, 2 * NEW);
    generate(&r, a, token);
    rig_ok(kr_session_save(a, "turn-1", &err), &err);
    kr_step_item item = {.session = a, .tokens = 1, .want = KR_WANT_LAST_LOGITS, .logits = here};
    rig_ok(kr_engine_step(r.engine, &item, 1, &err), &err);
    kr_session_close(a);

    kr_session *b;
    rig_ok(kr_session_restore(r.engine, "turn-1", PROMPT + 112, &greedy, &b, &err), &err);
    assert_int_equal(kr_session_reused_tokens(b), PROMPT + NEW - 1);
    item = (kr_step_item){.session = b, .tokens = 1, .want = KR_WANT_LAST_LOGITS, .logits = restored};
    rig_ok(kr_engine_step(r.engine, &item, 1, &err), &err);
    assert_memory_equal(here, restored, sizeof here);
    rig_ok(kr_session_append(b, r.prompt, 90, &err), &err); /* past what the saved session was promised */
    generate(&r, b, token);
    assert_int_equal(kr_session_restore(r.engine, "turn-2", 512, &greedy, &b, &err), KR_E_NOT_FOUND);
    assert_int_equal(kr_session_restore(r.engine, "turn-1", 300, &greedy, &b, &err), KR_E_LIMIT);
    assert_int_equal(kr_session_save(b, "../up", &err), KR_E_FORMAT);
    end(&r);
}

/* Sessions go to the least-occupied node and answer as they do on one. */
static void sessions_spread_over_nodes(void **state)
{
    (void)state;
    rig r;
    kr_err err = {0};
    uint32_t want[3][NEW];
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        kr_request request[3];
        begin(&r, nodes, 3);
        for (uint32_t s = 0; s < 3; s++)
            request[s] = (kr_request){.session = rig_session(r.engine, r.prompt + 20 * s, 200, NEW),
                                      .tokens_max = NEW,
                                      .ignore_end = true};
        kr_generation generation = {.chunk = 100};
        rig_ok(kr_generate(r.engine, request, 3, &generation, &err), &err);
        for (uint32_t s = 0; s < 3; s++) {
            uint64_t count;
            const uint32_t *log = kr_session_tokens(request[s].session, &count);
            if (nodes == 1)
                memcpy(want[s], log + 200, sizeof want[s]);
            assert_memory_equal(want[s], log + 200, sizeof want[s]);
        }
        rig_ok(kr_engine_ask_stats(r.engine, &err), &err);
        for (uint32_t i = 0; i < nodes; i++)
            assert_int_equal(kr_engine_peer(r.engine, i)->stats.sessions, nodes == 1 ? 3 : 2 - i);
        end(&r);
    }
}

/* With two nodes a prompt goes to the one that holds its prefix, though the other is emptier. */
static void a_prefix_draws_its_session(void **state)
{
    (void)state;
    rig r;
    uint32_t token[NEW];
    begin(&r, 2, 3);
    kr_session *a = rig_session(r.engine, r.prompt, PROMPT, NEW);
    generate(&r, a, token);
    kr_session *b = rig_session(r.engine, r.prompt, PROMPT, NEW);
    assert_int_equal(kr_session_reused_tokens(b), 2 * KR_PAGE_TOKENS);
    kr_session *c = rig_session(r.engine, r.prompt + 1, PROMPT - 1, NEW);
    assert_int_equal(kr_session_reused_tokens(c), 0);
    kr_err err = {0};
    rig_ok(kr_engine_ask_stats(r.engine, &err), &err);
    assert_int_equal(kr_engine_peer(r.engine, 0)->stats.sessions, 2);
    assert_int_equal(kr_engine_peer(r.engine, 1)->stats.sessions, 1);
    end(&r);
}

static void a_full_node_refuses_with_counts(void **state)
{
    (void)state;
    rig r;
    kr_err err = {0};
    kr_session *session;
    begin(&r, 1, 1);
    kr_session *a = rig_session(r.engine, r.prompt, PROMPT, 100);
    const kr_session_request second = {
        .tokens = r.prompt + 1, .count = 200, .growth = 100, .sampling = {0, 1, 0}};
    assert_int_equal(kr_session_open(r.engine, &second, &session, &err), KR_E_FULL);
    assert_non_null(strstr(err.text, "page"));
    kr_session_close(a);
    rig_ok(kr_session_open(r.engine, &second, &session, &err), &err);
    end(&r);
}

/* What the node reserves and what the plan said: pools exactly, workspaces within 2 %. */
static void memory_is_as_planned(void **state)
{
    (void)state;
    rig r;
    kr_err err = {0};
    begin(&r, 1, 2);
    rig_ok(kr_engine_ask_stats(r.engine, &err), &err);
    const kr_msg_device_stats *device = &kr_engine_peer(r.engine, 0)->device[0];
    uint64_t pool = 0;
    for (uint32_t g = 0; g < 2; g++)
        pool += device->pages_total[g] * device->page_bytes[g];
    assert_int_equal(pool, 2 * r.needs.session_page_bytes);
    end(&r);
}

/* ---- two engines on one node ---- */

typedef struct {
    kr_node *node;
    kr_link *client, *server;
    pthread_t thread;
    kr_engine *engine;
    kr_engine_config config;
    kr_engine_node view;
} tenant;

static void *serve(void *context)
{
    tenant *t = context;
    kr_err err;
    assert_int_equal(kr_node_serve(t->node, t->server, &err), KR_OK);
    return NULL;
}

static void arrive(tenant *t, rig *r, kr_node *node, kr_dtype kv_dtype)
{
    kr_err err = {0};
    t->node = node;
    t->config = r->config;
    t->config.kv_dtype = kv_dtype;
    t->config.nodes = &t->view;
    rig_ok(kr_queue_pair(&t->client, &t->server, 64, &kr_clock_system, &err), &err);
    t->view = (kr_engine_node){
        .link = t->client, .welcome = {.epoch = kr_node_epoch(node), .devices = 1, .payload_max = 1 << 30}};
    assert_int_equal(pthread_create(&t->thread, NULL, serve, t), 0);
}

static void leave(tenant *t)
{
    kr_engine_destroy(t->engine);
    pthread_join(t->thread, NULL);
    t->client->close(t->client);
    t->server->close(t->server);
}

/* While the first is idle, the node is the second's; then it is the first's again. */
static void an_idle_engine_finds_its_node_configured_otherwise(void **state)
{
    (void)state;
    rig r;
    tenant one = {0}, other = {0};
    kr_node *node;
    kr_err err = {0};
    kr_session *session;
    uint32_t alone[NEW], before[NEW], after[NEW];
    begin(&r, 1, 2);
    const kr_node_config config = {.devices = 1,
                                   .threads_per_device = 1,
                                   .pool_bytes = 2 * r.needs.session_page_bytes,
                                   .sessions_max = 8,
                                   .clock = &kr_clock_system};
    const kr_session_request request = {
        .tokens = r.prompt, .count = PROMPT, .growth = NEW, .sampling = {0, 1, 0}};
    session = rig_session(r.engine, r.prompt, PROMPT, NEW);
    generate(&r, session, alone);
    kr_engine *own = r.engine;
    rig_ok(kr_node_create(&node, &config, &err), &err);
    arrive(&one, &r, node, KR_F32);
    arrive(&other, &r, node, KR_BF16);
    rig_ok(kr_engine_create(&one.engine, &one.config, &err), &err);
    r.engine = one.engine;
    session = rig_session(one.engine, r.prompt, PROMPT, NEW);
    generate(&r, session, before);
    assert_int_equal(kr_engine_create(&other.engine, &other.config, &err), KR_E_BUSY);
    assert_non_null(strstr(err.text, "f32 keys and values, not bf16"));
    kr_session_close(session);
    rig_ok(kr_engine_create(&other.engine, &other.config, &err), &err);
    session = rig_session(other.engine, r.prompt, PROMPT, NEW);
    kr_session *none;
    assert_int_equal(kr_session_open(one.engine, &request, &none, &err), KR_E_BUSY);
    kr_session_close(session);
    session = rig_session(one.engine, r.prompt, PROMPT, NEW);
    generate(&r, session, after);
    assert_memory_equal(before, alone, sizeof alone);
    assert_memory_equal(after, alone, sizeof alone);
    leave(&one);
    leave(&other);
    kr_node_destroy(node);
    r.engine = own;
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_prefixes_are_shared),
        cmocka_unit_test(a_saved_session_goes_on_as_if_never_closed),
        cmocka_unit_test(sessions_spread_over_nodes),
        cmocka_unit_test(a_full_node_refuses_with_counts),
        cmocka_unit_test(a_prefix_draws_its_session),
        cmocka_unit_test(memory_is_as_planned),
        cmocka_unit_test(an_idle_engine_finds_its_node_configured_otherwise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
