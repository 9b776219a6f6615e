/* The engine against transformers' logits, against itself cut in every way, and against a memory
 * node that misbehaves. The node is the naive one of fake_node.h. */
#include <jansson.h>

#include "base/json.h"
#include "sim/sim.h"
#include "tests/engine/fake_node.h"
#include "tests/engine/rig.h"

enum { PROMPT = 128, VOCAB_MAX = 512 };

typedef struct {
    fake_node node;
    kr_engine_node view;
    kr_model_file *file;
    kr_method_config methods[KR_LAYERS_MAX];
    kr_engine_config config;
    kr_engine *engine;
} rig;

static void begin_with(rig *r, const char *path)
{
    r->file = rig_open(path);
    r->view = fake_start(&r->node);
    r->config = rig_config(r->file, &r->view, r->methods);
}

static void begin(rig *r) { begin_with(r, RIG_TINY); }

static void create(rig *r)
{
    kr_err err = {0};
    rig_ok(kr_engine_create(&r->engine, &r->config, &err), &err);
}

static void end(rig *r)
{
    kr_engine_destroy(r->engine);
    fake_stop(&r->node);
    kr_model_file_close(r->file);
}

/* ---- the oracle ---- */

typedef struct {
    float logits[PROMPT][VOCAB_MAX];
    uint32_t vocab;
    uint64_t rows;
} collected;

static void collect(void *context, uint64_t position, const float *logits)
{
    collected *c = context;
    assert_int_equal(position, c->rows);
    memcpy(c->logits[c->rows++], logits, c->vocab * sizeof *logits);
}

static uint32_t read_prompt(const char *folder, uint32_t ids[PROMPT])
{
    json_t *root;
    char path[128];
    kr_err err = {0};
    snprintf(path, sizeof path, "%s/prompt.json", folder);
    rig_ok(kr_json_load(path, &root, &err), &err);
    const json_t *list = json_object_get(root, "ids");
    const uint32_t count = (uint32_t)json_array_size(list);
    assert_true(count <= PROMPT);
    for (uint32_t i = 0; i < count; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    json_decref(root);
    return count;
}

/* Teacher-forced, one token a step and then in chunks of 32: transformers computes in F32 too, in
 * another order. Logits have a spread of order 1; 1e-4 is some hundred roundings of that. */
static void compare_with_transformers(const char *folder)
{
    uint32_t ids[PROMPT];
    char path[128];
    const uint32_t count = read_prompt(folder, ids);
    collected *got = calloc(1, sizeof *got);
    snprintf(path, sizeof path, "%s/logits.f32", folder);
    FILE *oracle = fopen(path, "rb");
    assert_non_null(oracle);
    rig r;
    begin_with(&r, folder);
    r.config.weights_f32 = true; /* BF16 products would round the rows, too */
    create(&r);
    got->vocab = kr_engine_model(r.engine)->vocab;
    float *scratch = calloc(64, got->vocab * sizeof *scratch), *want = calloc(got->vocab, sizeof *want);
    for (uint32_t chunk = 0; chunk <= 32; chunk += 32) {
        kr_err err = {0};
        kr_session *session = rig_session(r.engine, ids, count, 0);
        got->rows = 0;
        rig_ok(kr_force(r.engine, session, chunk, scratch, collect, got, &err), &err);
        assert_int_equal(got->rows, count);
        rewind(oracle);
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(fread(want, sizeof *want, got->vocab, oracle), got->vocab);
            for (uint32_t v = 0; v < got->vocab; v++)
                if (!(fabsf(want[v] - got->logits[i][v]) <= 1e-4f))
                    fail_msg("%s, chunk %u, row %u, token %u: %g, transformers %g", folder, chunk, i, v,
                             (double)got->logits[i][v], (double)want[v]);
        }
        kr_session_close(session);
    }
    assert_int_equal(fgetc(oracle), EOF);
    fclose(oracle);
    free(scratch);
    free(want);
    free(got);
    end(&r);
}

static void logits_are_transformers(void **state)
{
    (void)state;
    static const char *const families[] = {"llama", "llama3", "qwen2", "qwen3", "gemma3"};
    char folder[64];
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        snprintf(folder, sizeof folder, "tests/fixtures/tiny/%s", families[i]);
        compare_with_transformers(folder);
    }
}

/* ---- invariance ---- */

enum { SESSIONS = 8, NEW = 6 };

typedef struct {
    uint32_t threads, micro_batches, chunk, sessions;
} cut;

/* Tokens and last logits of session 0, in the company and in the pieces that the cut asks for. */
static void run_cut(const cut *c, uint32_t token[NEW], float *logits)
{
    rig r;
    kr_err err = {0};
    uint32_t prompt[200];
    kr_session *session[SESSIONS];
    kr_request request[SESSIONS];
    begin(&r);
    r.config.threads = c->threads;
    r.config.micro_batches = c->micro_batches;
    r.config.rows_max = 256;
    create(&r);
    for (uint32_t s = 0; s < c->sessions; s++) {
        const uint32_t count = s == 0 ? 150 : 20 + 23 * s;
        rig_prompt(r.file, s, prompt, count);
        session[s] = rig_session(r.engine, prompt, count, NEW + 1);
        request[s] = (kr_request){.session = session[s], .tokens_max = NEW, .ignore_end = true};
    }
    kr_generation generation = {.chunk = c->chunk};
    rig_ok(kr_generate(r.engine, request, c->sessions, &generation, &err), &err);
    kr_step_item item = {.session = session[0], .tokens = 1, .want = KR_WANT_LAST_LOGITS, .logits = logits};
    rig_ok(kr_engine_step(r.engine, &item, 1, &err), &err);
    uint64_t count;
    const uint32_t *log = kr_session_tokens(session[0], &count);
    assert_int_equal(count, 150 + NEW);
    assert_int_equal(kr_session_kv_tokens(session[0]), count);
    memcpy(token, log + 150, NEW * sizeof *token);
    assert_int_equal(r.node.ends, c->sessions);
    end(&r);
    assert_int_equal(r.node.closes, c->sessions);
}

static void any_cut_gives_the_same_bits(void **state)
{
    (void)state;
    static const cut cuts[] = {{1, 1, 256, 1}, {2, 1, 256, 1}, {1, 1, 1, 1},   {1, 1, 64, 8}, {1, 2, 64, 1},
                               {2, 2, 7, 8},   {1, 2, 64, 8},  {2, 2, 256, 8}, {1, 2, 1, 2}};
    uint32_t token[NEW], want_token[NEW];
    float logits[VOCAB_MAX] = {0}, want[VOCAB_MAX] = {0};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        run_cut(&cuts[i], token, logits);
        if (i == 0) {
            memcpy(want_token, token, sizeof token);
            memcpy(want, logits, sizeof want);
        }
        print_message("threads %u, micro-batches %u, chunk %u, sessions %u\n", cuts[i].threads,
                      cuts[i].micro_batches, cuts[i].chunk, cuts[i].sessions);
        assert_memory_equal(token, want_token, sizeof token);
        assert_memory_equal(logits, want, sizeof want);
    }
}

static void next_turn_runs_new_tokens_only(void **state)
{
    (void)state;
    rig r;
    kr_err err = {0};
    uint32_t prompt[60];
    begin(&r);
    create(&r);
    rig_prompt(r.file, 1, prompt, 60);
    float whole[VOCAB_MAX], turns[VOCAB_MAX];
    kr_session *a = rig_session(r.engine, prompt, 60, 0);
    kr_step_item item = {
        .session = a, .tokens = 60, .prefill = true, .want = KR_WANT_LAST_LOGITS, .logits = whole};
    rig_ok(kr_engine_step(r.engine, &item, 1, &err), &err);
    kr_session *b = rig_session(r.engine, prompt, 40, 20);
    item = (kr_step_item){.session = b, .tokens = 40, .prefill = true};
    rig_ok(kr_engine_step(r.engine, &item, 1, &err), &err);
    rig_ok(kr_session_append(b, prompt + 40, 20, &err), &err);
    const uint64_t rows = kr_engine_get_stats(r.engine).rows;
    item = (kr_step_item){
        .session = b, .tokens = 20, .prefill = true, .want = KR_WANT_LAST_LOGITS, .logits = turns};
    rig_ok(kr_engine_step(r.engine, &item, 1, &err), &err);
    assert_int_equal(kr_engine_get_stats(r.engine).rows - rows, 20);
    assert_memory_equal(whole, turns, kr_engine_model(r.engine)->vocab * sizeof(float));
    end(&r);
}

/* ---- the step ---- */

static void decode_steps_allocate_nothing(void **state)
{
    (void)state;
    rig r;
    kr_err err = {0};
    uint32_t prompt[30];
    kr_step_item item[2];
    begin(&r);
    r.config.micro_batches = 2;
    create(&r);
    for (uint32_t s = 0; s < 2; s++) {
        rig_prompt(r.file, s, prompt, 30);
        kr_session *session = rig_session(r.engine, prompt, 30, 40);
        item[s] = (kr_step_item){
            .session = session, .tokens = 30, .micro_batch = s, .prefill = true, .want = KR_WANT_TOKEN};
    }
    rig_ok(kr_engine_step(r.engine, item, 2, &err), &err);
    uint64_t calls = 0;
    for (uint32_t step = 0; step < 30; step++) {
        if (step == 5)
            calls = kr_alloc_calls();
        for (uint32_t s = 0; s < 2; s++)
            item[s] = (kr_step_item){
                .session = item[s].session, .tokens = 1, .micro_batch = s, .want = KR_WANT_TOKEN};
        rig_ok(kr_engine_step(r.engine, item, 2, &err), &err);
    }
    assert_int_equal(kr_alloc_calls(), calls);
    end(&r);
}

/* With two micro-batches the compute rank starts its ops in the program's static order, and no op
 * before the replies it needs; the record replays. */
static void starts_follow_the_static_order(void **state)
{
    (void)state;
    rig r;
    kr_err err = {0};
    uint32_t prompt[10];
    kr_step_item item[2];
    begin(&r);
    r.config.micro_batches = 2;
    r.config.events_max = 4096;
    create(&r);
    for (uint32_t s = 0; s < 2; s++) {
        rig_prompt(r.file, s, prompt, 10);
        item[s] = (kr_step_item){.session = rig_session(r.engine, prompt, 10, 1),
                                 .tokens = 10,
                                 .micro_batch = s,
                                 .prefill = true,
                                 .want = KR_WANT_TOKEN};
    }
    rig_ok(kr_engine_step(r.engine, item, 2, &err), &err);
    const kr_program *p = kr_engine_program(r.engine);
    kr_run_header header;
    const kr_run_event *event;
    uint64_t events;
    uint32_t started = 0, arrivals = 0;
    bool arrived[4096] = {false};
    kr_engine_record(r.engine, &header, &event, &events);
    assert_int_equal(header.micro_batches, 2);
    assert_true(p->count <= 4096);
    for (uint64_t i = 0; i < events; i++) {
        const kr_op *op = &p->ops[event[i].op];
        if (event[i].what == KR_RUN_ARRIVED) {
            arrived[event[i].op] = true;
            arrivals++;
        }
        if (event[i].what != KR_RUN_STARTED)
            continue;
        assert_int_equal(event[i].op, p->order[KR_ON_COMPUTE][started++]);
        for (uint32_t d = 0; d < op->dep_count; d++)
            if (p->ops[op->dep[d]].kind == KR_OP_RETURN_OUT)
                assert_true(arrived[op->dep[d]]);
    }
    assert_int_equal(started, p->order_count[KR_ON_COMPUTE]);
    assert_int_equal(arrivals, 2 * kr_engine_model(r.engine)->layers);

    /* The simulator, asked again with the same arrivals, comes to the same decisions. */
    uint64_t decisions = 0;
    item[0] = (kr_step_item){.session = item[0].session, .tokens = 1, .want = KR_WANT_NOTHING};
    rig_ok(kr_engine_step(r.engine, item, 1, &err), &err);
    kr_engine_record(r.engine, &header, &event, &events);
    assert_int_equal(header.steps, 2);
    rig_ok(kr_sim_replay(p, &header, event, events, &decisions, &err), &err);
    assert_int_equal(decisions, 2 * p->order_count[KR_ON_COMPUTE]);
    end(&r);
}

/* ---- refusals and failures ---- */

static void too_long_is_refused_with_counts(void **state)
{
    (void)state;
    rig r;
    kr_err err = {0};
    uint32_t prompt[129] = {0};
    kr_session *session = NULL;
    begin(&r);
    r.config.context_max = 128;
    create(&r);
    const kr_session_request over = {.tokens = prompt, .count = 129, .sampling = {0, 1, 0}};
    const kr_session_request grows = {.tokens = prompt, .count = 100, .growth = 29, .sampling = {0, 1, 0}};
    const kr_session_request empty = {.tokens = prompt, .sampling = {0, 1, 0}};
    assert_int_equal(kr_session_open(r.engine, &over, &session, &err), KR_E_LIMIT);
    assert_non_null(strstr(err.text, "129"));
    assert_non_null(strstr(err.text, "128"));
    assert_int_equal(kr_session_open(r.engine, &grows, &session, &err), KR_E_LIMIT);
    assert_non_null(strstr(err.text, "100"));
    assert_int_equal(kr_session_open(r.engine, &empty, &session, &err), KR_E_ARG);
    prompt[3] = kr_engine_model(r.engine)->vocab;
    const kr_session_request foreign = {.tokens = prompt, .count = 4, .sampling = {0, 1, 0}};
    assert_int_equal(kr_session_open(r.engine, &foreign, &session, &err), KR_E_ARG);
    assert_null(session);
    prompt[3] = 0;
    session = rig_session(r.engine, prompt, 100, 10);
    assert_int_equal(kr_session_append(session, prompt, 11, &err), KR_E_LIMIT);
    assert_int_equal(kr_session_append(session, prompt, 10, &err), KR_OK);
    assert_int_equal(r.node.attends, 0);
    end(&r);
}

static void configs_are_checked(void **state)
{
    (void)state;
    rig r;
    kr_err err = {0};
    begin(&r);
    const kr_engine_config good = r.config;
    r.config.context_max = 1 << 20;
    assert_int_equal(kr_engine_create(&r.engine, &r.config, &err), KR_E_LIMIT);
    r.config = good;
    r.config.micro_batches = 3;
    assert_int_equal(kr_engine_create(&r.engine, &r.config, &err), KR_E_LIMIT);
    r.config = good;
    r.config.kv_dtype = KR_E4M3;
    assert_int_equal(kr_engine_create(&r.engine, &r.config, &err), KR_E_UNSUPPORTED);
    r.config = good;
    r.config.placement = KR_PLACE_INDICES_ONLY;
    assert_int_equal(kr_engine_create(&r.engine, &r.config, &err), KR_E_ARG);
    r.config = good;
    memcpy(r.methods[1].name, "no-such", 8);
    assert_int_equal(kr_engine_create(&r.engine, &r.config, &err), KR_E_NOT_FOUND);
    memcpy(r.methods[1].name, "dense\0\0", 8);
    create(&r);
    end(&r);
}

/* At every layer boundary of a decode step: one status, one line, no token, and the session stays
 * failed; the log holds what it held before. */
static void a_failing_node_fails_the_session(void **state)
{
    (void)state;
    static const struct {
        fake_fault fault;
        kr_status status;
        const char *text;
    } cases[] = {{FAKE_SILENT, KR_E_DEADLINE, "did not answer within 0.1 s"},
                 {FAKE_OTHER_EPOCH, KR_E_STALE, "epoch 1235"},
                 {FAKE_FULL, KR_E_FULL, "pool full"},
                 {FAKE_WRONG_KIND, KR_E_FORMAT, "DONE"},
                 {FAKE_SHORT, KR_E_FORMAT, "bytes of output"}};
    uint32_t prompt[10];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint32_t layer = 0; layer < 2; layer++) {
            rig r;
            kr_err err = {0}, again = {0};
            begin(&r);
            r.config.timeout_ns = 100000000;
            create(&r);
            const uint32_t layers = kr_engine_model(r.engine)->layers;
            rig_prompt(r.file, 0, prompt, 10);
            kr_session *session = rig_session(r.engine, prompt, 10, 10);
            kr_step_item item = {.session = session, .tokens = 10, .prefill = true, .want = KR_WANT_TOKEN};
            rig_ok(kr_engine_step(r.engine, &item, 1, &err), &err);
            r.node.fault_after = layers + layer;
            r.node.fault = cases[i].fault;
            item = (kr_step_item){.session = session, .tokens = 1, .want = KR_WANT_TOKEN, .token = 4711};
            const uint64_t begun = kr_now_ns(&kr_clock_system);
            assert_int_equal(kr_engine_step(r.engine, &item, 1, &err), cases[i].status);
            assert_true(kr_now_ns(&kr_clock_system) - begun < 3000000000);
            if (strstr(err.text, cases[i].text) == NULL)
                fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].text);
            assert_null(strchr(err.text, '\n'));
            assert_int_equal(kr_engine_step(r.engine, &item, 1, &again), cases[i].status);
            assert_string_equal(err.text, again.text);
            uint64_t count;
            kr_session_tokens(session, &count);
            assert_int_equal(count, 11);
            assert_int_equal(kr_session_kv_tokens(session), 10);
            r.node.fault = FAKE_GOOD;
            end(&r);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_transformers),
        cmocka_unit_test(any_cut_gives_the_same_bits),
        cmocka_unit_test(next_turn_runs_new_tokens_only),
        cmocka_unit_test(decode_steps_allocate_nothing),
        cmocka_unit_test(starts_follow_the_static_order),
        cmocka_unit_test(too_long_is_refused_with_counts),
        cmocka_unit_test(configs_are_checked),
        cmocka_unit_test(a_failing_node_fails_the_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
