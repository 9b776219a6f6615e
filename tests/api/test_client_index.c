/* Methods with index queries of the model's own, through the client API: DSA over MLA rows, its selection in
 * a second layer, a dense layer. What comes back is the best tokens by a float64 score; and clients that
 * run side by side, whose INDEX and ATTEND messages mix on the node, get what each gets alone. */
#include "tests/api/client_rig.h"

enum { HEADS = 4, KEY = 48, VALUE = 32, INDEX_HEADS = 2, INDEX_DIM = 16, BUDGET = 24 };
enum { PROMPT = 200, TOKENS = 230, LAYERS = 3, CHUNK = 64, TENANTS = 3 };
enum { QUERY_BYTES = INDEX_HEADS * (INDEX_DIM + 4), KEY_BYTES = INDEX_DIM + 4 };

typedef struct {
    uint8_t index_query[TOKENS][QUERY_BYTES], index_key[TOKENS][KEY_BYTES];
    float query[LAYERS][TOKENS][HEADS][KEY], key[LAYERS][TOKENS][KEY];
    float output[LAYERS][TOKENS][HEADS][VALUE];
    uint32_t count[2][TOKENS], selected[2][TOKENS][BUDGET]; /* of the layers 0 and 1 */
} story;

static void draw_story(story *s, uint64_t seed)
{
    kr_rng rng = kr_rng_make(seed, 0);

    for (uint32_t t = 0; t < TOKENS; t++) {
        for (uint32_t i = 0; i < INDEX_HEADS * INDEX_DIM; i++)
            s->index_query[t][i] = kr_e4m3_from_f32((float)kr_rng_normal(&rng));
        for (uint32_t i = 0; i < INDEX_HEADS; i++) {
            const float weight = (float)kr_rng_normal(&rng);
            memcpy(s->index_query[t] + INDEX_HEADS * INDEX_DIM + 4 * i, &weight, 4);
        }
        const float scale = 0.5f + (float)kr_rng_unit(&rng);
        for (uint32_t i = 0; i < INDEX_DIM; i++)
            s->index_key[t][i] = kr_e4m3_from_f32((float)kr_rng_normal(&rng));
        memcpy(s->index_key[t] + INDEX_DIM, &scale, 4);
    }
    for (size_t i = 0; i < sizeof s->query / sizeof(float); i++)
        (&s->query[0][0][0][0])[i] = (float)kr_rng_normal(&rng);
    for (size_t i = 0; i < sizeof s->key / sizeof(float); i++)
        (&s->key[0][0][0])[i] = (float)kr_rng_normal(&rng);
}

static karat_client *arrive(const daemon_process *d, uint32_t transports)
{
    const karat_client_layer layer[LAYERS] = {
        {.method = "dsa", .budget = BUDGET, .unit = 1, .parameter = {INDEX_HEADS, INDEX_DIM}},
        {.method = "dsa",
         .budget = BUDGET,
         .unit = 1,
         .parameter = {INDEX_HEADS, INDEX_DIM},
         .shares_index = 1},
        {.method = NULL},
    };
    const karat_client_model model = {.struct_size = sizeof model,
                                      .layers = LAYERS,
                                      .query_heads = HEADS,
                                      .kv_heads = 1,
                                      .key_dim = KEY,
                                      .value_dim = VALUE,
                                      .latent = 1,
                                      .kv_dtype = KARAT_BF16,
                                      .context_max = 512,
                                      .tokens_max = CHUNK,
                                      .layer = layer};
    karat_client *client = api_connect(d, transports);
    karat_client_plan plan = {.struct_size = sizeof plan};
    karat_error error;

    api_ok(karat_client_configure(client, &model, &error), &error);
    for (uint32_t l = 0; l < LAYERS; l++) {
        api_ok(karat_client_plan_of(client, l, &plan, &error), &error);
        assert_int_equal(plan.lists, l < 2 ? 1 : 0);
        assert_int_equal(plan.index_owner, l < 2 ? 0 : 2);
        assert_int_equal(plan.index_query_bytes, l == 0 ? QUERY_BYTES : 0);
        assert_int_equal(plan.index_key_bytes, l == 0 ? KEY_BYTES : 0);
        assert_true(l == 2 || (plan.units_max == BUDGET && plan.unit_tokens == 1));
    }
    return client;
}

/* Prompt in chunks, then token by token; outputs and selections stay in s. */
static void tell_story(karat_client *client, story *s)
{
    karat_session *session;
    karat_error error;

    api_ok(karat_session_open(client, TOKENS, 1, &session, &error), &error);
    for (uint32_t t = 0, n; t < TOKENS; t += n) {
        n = t >= PROMPT ? 1 : PROMPT - t < CHUNK ? PROMPT - t : CHUNK;
        if (t == PROMPT)
            api_ok(karat_session_end_prefill(session, &error), &error);
        for (uint32_t l = 0; l < LAYERS; l++) {
            const karat_attend_item item = {
                .session = session,
                .tokens = n,
                .prefill = t < PROMPT,
                .query = {.data = s->query[l][t]},
                .key = {.data = s->key[l][t]},
                .output = &s->output[l][t][0][0],
                .selected_count = l < 2 ? &s->count[l][t] : NULL,
                .selected = l < 2 ? s->selected[l][t] : NULL,
                .index_query = s->index_query[t],
                .index_key = s->index_key[t],
            };
            api_ok(karat_client_attend(client, l, &item, 1, &error), &error);
        }
    }
    api_ok(karat_session_close(session, &error), &error);
}

/* Every listed token scores at least as well as every other one, in float64. */
static void is_best(const story *s, uint32_t query)
{
    double score[TOKENS], least = INFINITY, missed = -INFINITY;
    bool listed[TOKENS] = {false};
    float weight[INDEX_HEADS], scale;

    memcpy(weight, s->index_query[query] + INDEX_HEADS * INDEX_DIM, sizeof weight);
    assert_int_equal(s->count[0][query], query + 1 < BUDGET ? query + 1 : BUDGET);
    for (uint32_t i = 0; i < s->count[0][query]; i++)
        listed[s->selected[0][query][i]] = true;
    for (uint32_t t = 0; t <= query; t++) {
        memcpy(&scale, s->index_key[t] + INDEX_DIM, 4);
        score[t] = 0;
        for (uint32_t h = 0; h < INDEX_HEADS; h++) {
            double dot = 0;
            for (uint32_t d = 0; d < INDEX_DIM; d++)
                dot += (double)kr_f32_from_e4m3(s->index_query[query][h * INDEX_DIM + d]) *
                       (double)kr_f32_from_e4m3(s->index_key[t][d]);
            score[t] += (double)weight[h] * fmax(dot, 0);
        }
        score[t] *= (double)scale;
        least = listed[t] ? fmin(least, score[t]) : least;
        missed = listed[t] ? missed : fmax(missed, score[t]);
    }
    assert_true(missed <= least + 1e-4);
}

static void selections_are_the_indexers(void **state)
{
    static const char *const options[] = {"--listen", "127.0.0.1:0", NULL};
    static story s;
    daemon_process d = daemon_start(options);
    karat_client *client = arrive(&d, 0);
    (void)state;

    draw_story(&s, 5);
    tell_story(client, &s);
    for (uint32_t t = PROMPT; t < TOKENS; t++)
        is_best(&s, t);
    assert_memory_equal(s.count[0], s.count[1], sizeof s.count[0]);
    assert_memory_equal(s.selected[0], s.selected[1], sizeof s.selected[0]);
    karat_client_disconnect(client);
    kill(d.pid, SIGTERM);
    assert_int_equal(daemon_wait(&d, 3000), 0);
}

typedef struct {
    const daemon_process *d;
    story *alone, together;
    uint32_t number;
} tenant;

static void *tenant_main(void *argument)
{
    tenant *t = argument;
    karat_client *client = arrive(t->d, t->number % 2 == 0 ? KARAT_TRANSPORT_SHM : KARAT_TRANSPORT_TCP);

    draw_story(&t->together, t->number);
    for (uint32_t round = 0; round < 3; round++)
        tell_story(client, &t->together);
    karat_client_disconnect(client);
    return NULL;
}

static void clients_with_indexers_share_a_node(void **state)
{
    static const char *const options[] = {"--listen", "127.0.0.1:0", NULL};
    static story alone[TENANTS];
    static tenant t[TENANTS];
    pthread_t thread[TENANTS];
    daemon_process d = daemon_start(options);
    karat_client *client = arrive(&d, 0);
    (void)state;

    for (uint32_t i = 0; i < TENANTS; i++) {
        draw_story(&alone[i], i);
        tell_story(client, &alone[i]);
        t[i].d = &d;
        t[i].alone = &alone[i];
        t[i].number = i;
    }
    for (uint32_t i = 0; i < TENANTS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, tenant_main, &t[i]), 0);
    for (uint32_t i = 0; i < TENANTS; i++) {
        pthread_join(thread[i], NULL);
        assert_memory_equal(&t[i].together, t[i].alone, sizeof *t[i].alone);
    }
    karat_client_disconnect(client);
    kill(d.pid, SIGTERM);
    assert_int_equal(daemon_wait(&d, 3000), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selections_are_the_indexers),
        cmocka_unit_test(clients_with_indexers_share_a_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
