/* INDEX before ATTEND: DSA over MLA rows on a node. The lists that come back are the best tokens by a
 * float64 score over the FP8 values sent; a layer that shares the index attends to the same tokens;
 * every output is the float64 attention over its list; an ATTEND without its INDEX is refused. */
#include "method/native.h"
#include "node_harness.h"

enum {
    HEADS = 4,
    KEY = 48,
    VALUE = 32,
    INDEX_HEADS = 2,
    INDEX_DIM = 16,
    BUDGET = 24,
    TOKENS = 300,
    LAYERS = 3
};
enum { INDEX_QUERY_BYTES = INDEX_HEADS * (INDEX_DIM + 4), INDEX_KEY_BYTES = INDEX_DIM + 4 };

typedef struct {
    uint8_t index_query[INDEX_QUERY_BYTES], index_key[INDEX_KEY_BYTES];
    float query[LAYERS][HEADS][KEY], key[LAYERS][KEY];
} token_data;

static token_data data[TOKENS];
static harness h;
static kr_msg_opened opened;

static void draw_token(kr_rng *rng, token_data *t)
{
    for (uint32_t i = 0; i < INDEX_HEADS * INDEX_DIM; i++)
        t->index_query[i] = kr_e4m3_from_f32((float)kr_rng_normal(rng));
    for (uint32_t i = 0; i < INDEX_HEADS; i++) {
        const float weight = (float)kr_rng_normal(rng);
        memcpy(t->index_query + INDEX_HEADS * INDEX_DIM + 4 * i, &weight, 4);
    }
    const float scale = 0.5f + (float)kr_rng_unit(rng);
    for (uint32_t i = 0; i < INDEX_DIM; i++)
        t->index_key[i] = kr_e4m3_from_f32((float)kr_rng_normal(rng));
    memcpy(t->index_key + INDEX_DIM, &scale, 4);
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t i = 0; i < KEY; i++)
            t->key[l][i] = kr_f32_from_bf16(kr_bf16_from_f32((float)kr_rng_normal(rng)));
        for (uint32_t i = 0; i < HEADS * KEY; i++)
            t->query[l][i / KEY][i % KEY] = (float)kr_rng_normal(rng);
    }
}

static int begin(void **state)
{
    const harness_shape shape = {.layers = LAYERS,
                                 .heads = HEADS,
                                 .kv_heads = 1,
                                 .dim = KEY,
                                 .tokens_max = 64,
                                 .context_max = 512,
                                 .type = KR_BF16,
                                 .method = {"dsa", "dsa", "dense"},
                                 .threads = 2};
    kr_rng rng = kr_rng_make(31, 0);

    (void)state;
    printf("seed 31\n");
    harness_start(&h, &shape);
    h.configure.latent = 1;
    h.configure.value_dim = VALUE;
    for (uint32_t l = 0; l < 2; l++) {
        kr_method_config m = {.name = "dsa", .budget = BUDGET, .unit = 1};
        m.parameter[KR_NATIVE_HEADS] = INDEX_HEADS;
        m.parameter[KR_NATIVE_DIM] = INDEX_DIM;
        m.parameter[KR_NATIVE_OWNER] = 0;
        memcpy(h.layer[l].method, &m, sizeof m);
        h.layer[l].index_owner = 0;
    }
    if (harness_configure(&h) != KR_OK)
        fail_msg("configure: %s", h.error.text);
    for (uint32_t t = 0; t < TOKENS; t++)
        draw_token(&rng, &data[t]);
    assert_int_equal(harness_open(&h, TOKENS, NULL, 0, &opened), KR_OK);
    return 0;
}

static int end(void **state)
{
    (void)state;
    harness_stop(&h);
    return 0;
}

/* Payload of INDEX (layer UINT32_MAX) or ATTEND for tokens [first, first + count). */
static size_t payload(uint8_t *p, uint32_t layer, uint32_t first, uint32_t count, bool prefill)
{
    const kr_msg_row row = {
        .session = opened.session, .position = first, .tokens = count, .is_prefill = prefill};
    size_t at = sizeof row;

    memset(p, 0, 64 * 1024);
    memcpy(p, &row, sizeof row);
    for (uint32_t t = first; t < first + count;
         t++, at += layer == UINT32_MAX ? INDEX_QUERY_BYTES : 4 * HEADS * KEY)
        memcpy(p + at, layer == UINT32_MAX ? (const void *)data[t].index_query : data[t].query[layer],
               layer == UINT32_MAX ? INDEX_QUERY_BYTES : 4 * HEADS * KEY);
    at = kr_align_up(at, 8);
    for (uint32_t t = first; t < first + count; t++, at += layer == UINT32_MAX ? INDEX_KEY_BYTES : 2 * KEY) {
        if (layer == UINT32_MAX)
            memcpy(p + at, data[t].index_key, INDEX_KEY_BYTES);
        else
            kr_from_f32(KR_BF16, data[t].key[layer], p + at, KEY);
    }
    return kr_align_up(at, 8);
}

static kr_status send(kr_msg_kind kind, uint32_t layer, uint32_t flags, uint32_t first, uint32_t count,
                      bool prefill, kr_message *reply)
{
    static uint8_t bytes[64 * 1024];
    const kr_piece piece = {bytes,
                            payload(bytes, kind == KR_MSG_INDEX ? UINT32_MAX : layer, first, count, prefill)};
    const kr_msg_header header = {
        .kind = (uint16_t)kind, .layer = (uint16_t)layer, .rows = 1, .flags = flags};

    if (kind == KR_MSG_INDEX && flags == 0) { /* no reply of its own */
        kr_err err;
        harness_send(&h, header, &piece, 1);
        assert_int_equal(kr_node_step(h.node, h.server, kr_deadline_after(&kr_clock_system, H_WAIT_NS), &err),
                         KR_OK);
        return KR_OK;
    }
    return harness_call(&h, header, &piece, 1, reply);
}

/* Index scores of the tokens up to the query's own, in float64. */
static void oracle_scores(uint32_t query, double *score)
{
    float weight[INDEX_HEADS], scale;

    memcpy(weight, data[query].index_query + INDEX_HEADS * INDEX_DIM, sizeof weight);
    for (uint32_t t = 0; t <= query; t++) {
        memcpy(&scale, data[t].index_key + INDEX_DIM, 4);
        score[t] = 0;
        for (uint32_t i = 0; i < INDEX_HEADS; i++) {
            double dot = 0;
            for (uint32_t c = 0; c < INDEX_DIM; c++)
                dot += (double)kr_f32_from_e4m3(data[query].index_query[i * INDEX_DIM + c]) *
                       (double)kr_f32_from_e4m3(data[t].index_key[c]);
            score[t] += (double)weight[i] * fmax(dot, 0);
        }
        score[t] *= (double)scale;
    }
}

static void check_list(uint32_t query, const uint32_t *unit, uint32_t count)
{
    double score[TOKENS], worst = INFINITY, best_left = -INFINITY;
    bool taken[TOKENS] = {false};

    oracle_scores(query, score);
    assert_int_equal(count, query + 1 < BUDGET ? query + 1 : BUDGET);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(unit[i] <= query && (i == 0 || unit[i] > unit[i - 1]));
        taken[unit[i]] = true;
        worst = fmin(worst, score[unit[i]]);
    }
    for (uint32_t t = 0; t <= query; t++)
        best_left = taken[t] ? best_left : fmax(best_left, score[t]);
    assert_true(worst >= best_left - 1e-4); /* FP32 against float64 may swap near ties only */
}

static void check_attention(uint32_t layer, uint32_t query, const uint32_t *unit, uint32_t count,
                            const float *got)
{
    const double scale = (double)(1.0f / sqrtf((float)KEY));

    for (uint32_t hd = 0; hd < HEADS; hd++) {
        double out[VALUE] = {0}, l = 0, p[TOKENS], m = -INFINITY;

        for (uint32_t i = 0; i < count; i++) {
            p[i] = 0;
            for (uint32_t c = 0; c < KEY; c++)
                p[i] += (double)data[query].query[layer][hd][c] *
                        (double)data[unit ? unit[i] : i].key[layer][c];
            p[i] *= scale;
            m = fmax(m, p[i]);
        }
        for (uint32_t i = 0; i < count; i++) {
            l += p[i] = exp(p[i] - m);
            for (uint32_t d = 0; d < VALUE; d++)
                out[d] += p[i] * (double)data[unit ? unit[i] : i].key[layer][d];
        }
        for (uint32_t d = 0; d < VALUE; d++)
            assert_true(fabs((double)got[hd * VALUE + d] - out[d] / l) < 2e-5);
    }
}

/* One step of all layers; lists come with layer 0's output. */
static void step(uint32_t first, uint32_t count, bool prefill)
{
    uint32_t counts[64], units[64 * BUDGET], kept = 0;
    kr_message reply;
    uint64_t used;

    assert_int_equal(send(KR_MSG_INDEX, 0, 0, first, count, prefill, &reply), KR_OK);
    for (uint32_t l = 0; l < LAYERS; l++) {
        if (send(KR_MSG_ATTEND, l, l == 0 ? KR_MSG_WANT_SELECTION : 0, first, count, prefill, &reply) !=
            KR_OK)
            fail_msg("layer %u: %s", l, h.error.text);
        assert_int_equal(reply.header.kind, KR_MSG_OUTPUT);
        const float *got = (const float *)(const void *)reply.payload;
        const size_t bytes = 4ull * count * HEADS * VALUE;
        if (l == 0)
            assert_int_equal(kr_msg_lists_read(reply.payload + bytes, reply.header.payload_bytes - bytes,
                                               count, TOKENS, counts, units, 64 * BUDGET, &used, NULL),
                             KR_OK);
        kept = 0;
        for (uint32_t t = 0; t < count; t++) {
            if (l == 0)
                check_list(first + t, units + kept, counts[t]);
            check_attention(l, first + t, l < 2 ? units + kept : NULL, l < 2 ? counts[t] : first + t + 1,
                            got + (size_t)t * HEADS * VALUE);
            kept += counts[t];
        }
        h.client->release(h.client, &reply);
    }
}

static void selects_and_shares(void **state)
{
    uint32_t at = 0;

    (void)state;
    for (; at < 150; at += 50)
        step(at, 50, true);
    for (; at < 160; at++)
        step(at, 1, false);
    step(at, 3, false); /* several decode tokens in a row: each selects after the one before it */
    at += 3;

    kr_message reply;
    uint32_t counts[1], units[BUDGET];
    uint64_t used;
    /* No INDEX for these rows. */
    assert_int_equal(send(KR_MSG_ATTEND, 0, 0, at, 1, false, &reply), KR_E_ARG);
    assert_non_null(strstr(h.error.text, "INDEX"));
    assert_int_equal(send(KR_MSG_INDEX, 1, KR_MSG_INDICES_ONLY, at, 1, false, &reply), KR_E_UNSUPPORTED);
    assert_int_equal(send(KR_MSG_INDEX, 2, KR_MSG_INDICES_ONLY, at, 1, false, &reply), KR_E_UNSUPPORTED);
    assert_int_equal(send(KR_MSG_INDEX, 0, KR_MSG_WANT_SELECTION, at, 1, false, &reply), KR_E_ARG);
    assert_int_equal(send(KR_MSG_INDEX, 0, KR_MSG_INDICES_ONLY, at + 1, 1, false, &reply), KR_E_ARG);
    /* The lists alone. */
    assert_int_equal(send(KR_MSG_INDEX, 0, KR_MSG_INDICES_ONLY, at, 1, false, &reply), KR_OK);
    assert_int_equal(reply.header.kind, KR_MSG_INDICES);
    assert_int_equal(kr_msg_lists_read(reply.payload, reply.header.payload_bytes, 1, TOKENS, counts, units,
                                       BUDGET, &used, NULL),
                     KR_OK);
    check_list(at, units, counts[0]);
    h.client->release(h.client, &reply);
    step(at, 1, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(selects_and_shares)};
    return cmocka_run_group_tests(tests, begin, end);
}
