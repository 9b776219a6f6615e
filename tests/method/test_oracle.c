/* Methods against the authors' own code, run by tools/oracle_methods.py on the same inputs: SparQ, STARC,
 * MoBA, SnapKV, H2O, Quest's mask, and the indexers of DeepSeek-V3.2, GLM-5.x and MiniMax-M3 as in
 * transformers. The fixture holds outputs only; inputs come from the generator below. */
#include "method/quest.h"
#include "method/trained.h"
#include "method/training_free.h"
#include "ops/index_key.h"
#include "session.h"

enum { ENTRIES_MAX = 64, VALUES_MAX = 4096 };

typedef struct {
    char name[32];
    uint32_t count;
    double value[VALUES_MAX];
} entry;

static entry entries[ENTRIES_MAX];

static void load_fixture(void)
{
    FILE *file = fopen("tests/fixtures/oracle_methods.txt", "r");
    int c, n = 0;

    assert_non_null(file);
    while ((c = fgetc(file)) == '#')
        while (fgetc(file) != '\n')
            ;
    ungetc(c, file);
    while (n < ENTRIES_MAX && fscanf(file, "%31s %u", entries[n].name, &entries[n].count) == 2) {
        assert_true(entries[n].count <= VALUES_MAX);
        for (uint32_t i = 0; i < entries[n].count; i++)
            assert_int_equal(fscanf(file, "%lf", &entries[n].value[i]), 1);
        n++;
    }
    fclose(file);
}

static const entry *find(const char *format, uint32_t i)
{
    char name[64];

    snprintf(name, sizeof name, format, i);
    for (int n = 0; n < ENTRIES_MAX; n++)
        if (strcmp(entries[n].name, name) == 0)
            return &entries[n];
    fail_msg("the fixture has no %s", name);
    return NULL;
}

/* Element i of array `number`, as in the tool. */
static float gen_at(uint64_t i, uint64_t number)
{
    uint64_t z = (i + (number << 32) + 1) * 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (float)((int64_t)(z >> 51) - 4096) / 2048.0f;
}

static float *gen(uint64_t count, uint64_t number)
{
    float *x = session_memory(count * sizeof *x, 0);

    for (uint64_t i = 0; i < count; i++)
        x[i] = gen_at(i, number);
    return x;
}

static kr_attention_shape shape_of(uint32_t heads, uint32_t kv_heads, uint32_t dim)
{
    return (kr_attention_shape){.heads = heads,
                                .kv_heads = kv_heads,
                                .key_dim = dim,
                                .value_dim = dim,
                                .kv_dtype = KR_F32,
                                .softmax_scale = 1.0f / sqrtf((float)dim),
                                .layers = 1};
}

static void assert_list(const session *s, uint32_t list, const entry *want)
{
    assert_int_equal(s->selected_count[list], want->count);
    for (uint32_t i = 0; i < want->count; i++)
        if (s->selected[(size_t)list * s->stride + i] != (uint32_t)want->value[i])
            fail_msg("%s: position %u is %u", want->name, i, s->selected[(size_t)list * s->stride + i]);
}

static void assert_close(const float *got, const entry *want)
{
    for (uint32_t i = 0; i < want->count; i++)
        if (!(fabs((double)got[i] - want->value[i]) < 5e-6))
            fail_msg("%s: element %u is %.8g, the reference gives %.8g", want->name, i, (double)got[i],
                     want->value[i]);
}

/* Prefills n - 1 tokens of arrays number + 1, number + 2 with zero queries, then decodes token n - 1 with
 * the query of array number. */
static session *run_last(const kr_method *method, kr_method_config config, kr_attention_shape shape,
                         uint32_t n, uint64_t number, float *output)
{
    session *s = session_open(method, config, shape, n, n);
    const size_t row = (size_t)shape.kv_heads * shape.key_dim;
    float *k = gen(n * row, number + 1), *v = gen(n * row, number + 2);
    float *query = gen((size_t)shape.heads * shape.key_dim, number);
    float *zero = session_memory(sizeof(float) * n * shape.heads * shape.key_dim, 0);
    float *ignored = session_memory(sizeof(float) * n * shape.heads * shape.value_dim, 0);

    session_run(s, (chunk){n - 1, true, zero, k, v, NULL, NULL, ignored});
    session_end_prefill(s);
    session_run(s, (chunk){1, false, query, k + (n - 1) * row, v + (n - 1) * row, NULL, NULL, output});
    free(k), free(v), free(query), free(zero), free(ignored);
    return s;
}

static void sparq(void **state)
{
    (void)state;
    const kr_method_config config = {.budget = 24, .parameter = {8, 4}};
    float out[4 * 32];
    session *s = run_last(&kr_method_sparq, config, shape_of(4, 2, 32), 200, 1, out);

    for (uint32_t g = 0; g < 2; g++)
        assert_list(s, g, find("sparq_selected_%u", g));
    assert_close(out, find("sparq_output", 0));
    session_close(s);
}

static void starc(void **state)
{
    (void)state;
    const kr_method_config config = {.budget = 64};
    float out[4 * 32];
    session *s = run_last(&kr_method_starc, config, shape_of(4, 2, 32), 201, 11, out);

    for (uint32_t h = 0; h < 4; h++)
        assert_list(s, h, find("starc_selected_%u", h));
    assert_close(out, find("starc_output", 0));
    session_close(s);
}

static void moba(void **state)
{
    (void)state;
    enum { N = 150, ROW = 4 * 16 };
    const kr_method_config config = {.unit = 16, .budget = 48};
    float *q = gen(N * ROW, 21), *k = gen(N * ROW, 22), *v = gen(N * ROW, 23), out[N * ROW];
    session *s = session_open(&kr_method_moba, config, shape_of(4, 4, 16), N, N);

    session_run(s, (chunk){N - 20, true, q, k, v, NULL, NULL, out});
    for (uint32_t t = N - 20; t < N; t++) /* half of the compared rows by decode */
        session_run(s, (chunk){1, false, q + t * ROW, k + t * ROW, v + t * ROW, NULL, NULL, out + t * ROW});
    assert_close(out + (N - 40) * ROW, find("moba_output", 0));
    free(q), free(k), free(v);
    session_close(s);
}

/* The kept tokens before the window score like the best of all: with ties at the cut the set may differ. */
static void assert_best_scores(const session *s, uint32_t list, const entry *score, uint32_t kept)
{
    double least = HUGE_VAL;
    uint32_t better = 0;

    for (uint32_t i = 0; i < kept; i++)
        least = fmin(least, score->value[s->selected[(size_t)list * s->stride + i]]);
    for (uint32_t t = 0; t < score->count; t++)
        better += score->value[t] > least + 1e-7;
    assert_true(better < kept);
    for (uint32_t i = 0, found = 0; i < kept; i++) {
        found += score->value[s->selected[(size_t)list * s->stride + i]] > least + 1e-7;
        if (i + 1 == kept)
            assert_int_equal(found, better);
    }
}

static void snapkv(void **state)
{
    (void)state;
    enum { N = 120, ROW = 4 * 16 };
    float *q = gen(N * ROW, 31), *k = gen(N * ROW, 32),
          *out = session_memory(sizeof(float) * (N + 1) * ROW, 0);

    for (uint32_t mode = 1; mode <= 2; mode++) {
        const kr_method_config config = {.budget = 40, .mode = mode, .parameter = {8, 5}};
        session *s = session_open(&kr_method_snapkv, config, shape_of(4, 4, 16), N + 1, N);

        session_run(s, (chunk){50, true, q, k, k, NULL, NULL, out});
        session_run(s, (chunk){N - 50, true, q + 50 * ROW, k + 50 * ROW, k + 50 * ROW, NULL, NULL, out});
        session_end_prefill(s);
        session_run(s, (chunk){1, false, q, k, k, NULL, NULL, out});
        for (uint32_t h = 0; h < 4; h++) {
            assert_int_equal(s->selected_count[h], 40 + 1); /* and the generated token */
            s->selected_count[h] = 40;
            if (mode == 1)
                assert_list(s, h, find("snapkv_avgpool_%u", h));
            else
                assert_best_scores(s, h, find("snapkv_maxpool_score_%u", h), 32);
        }
        session_close(s);
    }
    free(q), free(k), free(out);
}

static void h2o(void **state)
{
    (void)state;
    enum { N = 100, STEPS = 20, ROW = 4 * 16 };
    const kr_method_config config = {0};
    float *q = gen((N + STEPS) * ROW, 41), *k = gen((N + STEPS) * ROW, 42), *v = gen((N + STEPS) * ROW, 43);
    float *out = session_memory(sizeof(float) * (N + STEPS) * ROW, 0);
    session *s = session_open(&kr_method_h2o, config, shape_of(4, 4, 16), N + STEPS, N);

    session_run(s, (chunk){30, true, q, k, v, NULL, NULL, out});
    session_run(s, (chunk){N - 30, true, q + 30 * ROW, k + 30 * ROW, v + 30 * ROW, NULL, NULL, out});
    session_end_prefill(s);
    for (uint32_t t = N; t < N + STEPS; t++)
        session_run(s, (chunk){1, false, q + t * ROW, k + t * ROW, v + t * ROW, NULL, NULL, out + t * ROW});
    assert_int_equal(s->selected_count[0], 20);
    assert_close(out + N * ROW, find("h2o_output", 0));
    free(q), free(k), free(v), free(out);
    session_close(s);
}

static void quest(void **state)
{
    (void)state;
    const kr_method_config config = {.budget = 96, .unit = 16, .mode = 1};
    float out[4 * 32];
    session *s = run_last(&kr_method_quest, config, shape_of(4, 4, 32), 210, 51, out);

    for (uint32_t h = 0; h < 4; h++)
        assert_list(s, h, find("quest_pages_%u", h));
    session_close(s);
}

/* ---- indexers ---- */

/* out[rows][to] = x[rows][from] W^T, W [to][from] = scale * array number. */
static float *project(const float *x, uint32_t rows, uint32_t from, uint32_t to, uint64_t number)
{
    float *w = gen((uint64_t)to * from, number), *out = session_memory(sizeof(float) * rows * to, 0);

    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t o = 0; o < to; o++) {
            double sum = 0.0;

            for (uint32_t i = 0; i < from; i++)
                sum += (double)x[r * from + i] * (double)(w[o * from + i] * 0.2f);
            out[r * to + o] = (float)sum;
        }
    free(w);
    return out;
}

static void dsa_indexer(const char *name, bool interleaved)
{
    enum { N = 40, HIDDEN = 64, LORA = 32, HEADS = 4, D = 16, ROPE = 8, K = 8 };
    float *hidden = gen(N * HIDDEN, 66), *lora = gen(N * LORA, 67);
    float *q = project(lora, N, LORA, HEADS * D, 61), *k = project(hidden, N, HIDDEN, D, 62);
    float *w = project(hidden, N, HIDDEN, HEADS, 65), norm[D], bias[D], inv_freq[ROPE / 2], score[N];
    char key[2][32];
    _Alignas(64) static uint8_t topk[1 << 16];
    uint32_t position[K];
    uint64_t nan = 0;

    for (uint32_t i = 0; i < D; i++)
        norm[i] = gen_at(i, 63) * 0.2f + 1.0f, bias[i] = gen_at(i, 64) * 0.2f;
    for (uint32_t i = 0; i < ROPE / 2; i++)
        inv_freq[i] = (float)pow(10000.0, -2.0 * i / ROPE);
    for (uint32_t t = 0; t < N; t++) {
        kr_layer_norm(k + t * D, norm, bias, D, 1e-6);
        kr_rope_first(k + t * D, inv_freq, ROPE, t, interleaved);
    }
    for (uint32_t h = 0; h < HEADS; h++)
        kr_rope_first(q + ((N - 1) * HEADS + h) * D, inv_freq, ROPE, N - 1, interleaved);
    for (uint32_t t = 0; t < N; t++) {
        score[t] = 0.0f;
        for (uint32_t h = 0; h < HEADS; h++) {
            double dot = 0.0;

            for (uint32_t c = 0; c < D; c++)
                dot += (double)q[((N - 1) * HEADS + h) * D + c] * (double)k[t * D + c];
            score[t] += (float)(fmax(dot, 0.0) * (double)w[(N - 1) * HEADS + h] / sqrt(HEADS) / sqrt(D));
        }
    }
    snprintf(key[0], sizeof key[0], "%s_score", name);
    snprintf(key[1], sizeof key[1], "%s_selected", name);
    assert_close(score, find(key[0], 0));
    assert_true(kr_select_scratch_bytes(N, K) <= sizeof topk);
    assert_int_equal(kr_ops_scalar.select_topk(&(kr_select_topk_args){score, N, K, position, topk, &nan}), K);
    for (uint32_t i = 0; i < K; i++)
        assert_int_equal(position[i], (uint32_t)find(key[1], 0)->value[i]);
    free(hidden), free(lora), free(q), free(k), free(w);
}

static void deepseek(void **state)
{
    (void)state;
    dsa_indexer("deepseek", false);
}

static void glm(void **state)
{
    (void)state;
    dsa_indexer("glm", true);
}

/* Gemma's RMSNorm: x / rms(x) * (1 + w), w = 0.2 * array number. */
static void gemma_norm(float *x, uint32_t dim, uint64_t number)
{
    double square = 0.0;

    for (uint32_t i = 0; i < dim; i++)
        square += (double)x[i] * (double)x[i];
    for (uint32_t i = 0; i < dim; i++)
        x[i] = (float)((double)x[i] / sqrt(square / dim + 1e-6)) * (1.0f + gen_at(i, number) * 0.2f);
}

/* Block scores through the op, whose keys are BF16 and so a little off the reference's F32 ones; blocks
 * whose reference scores are further apart than that must rank alike. */
static void m3(void **state)
{
    (void)state;
    enum { N = 100, HIDDEN = 64, HEADS = 2, D = 32, ROPE = 16, BLOCK = 16, BLOCKS = 7 };
    float *hidden = gen(N * HIDDEN, 75), *q = project(hidden, N, HIDDEN, HEADS * D, 71);
    float *k = project(hidden, N, HIDDEN, D, 72), inv_freq[ROPE / 2], score[HEADS * BLOCKS];
    static uint16_t pool[BLOCKS * BLOCK * D];
    const uint16_t *block[BLOCKS];

    for (uint32_t i = 0; i < ROPE / 2; i++)
        inv_freq[i] = (float)pow(5e6, -2.0 * i / ROPE);
    for (uint32_t t = 0; t < N; t++) {
        gemma_norm(k + t * D, D, 74);
        kr_rope_first(k + t * D, inv_freq, ROPE, t, false);
        for (uint32_t c = 0; c < D; c++)
            pool[t / BLOCK * BLOCK * D + kr_block_key_at(t % BLOCK, c, D)] = kr_bf16_from_f32(k[t * D + c]);
    }
    for (uint32_t b = 0; b < BLOCKS; b++)
        block[b] = pool + b * BLOCK * D;
    for (uint32_t h = 0; h < HEADS; h++) {
        gemma_norm(q + ((N - 1) * HEADS + h) * D, D, 73);
        kr_rope_first(q + ((N - 1) * HEADS + h) * D, inv_freq, ROPE, N - 1, false);
    }
    kr_ops_scalar.block_score(&(kr_block_score_args){
        .query = q + (N - 1) * HEADS * D,
        .key = block,
        .heads = HEADS,
        .dim = D,
        .block_tokens = BLOCK,
        .blocks = BLOCKS,
        .tokens = N,
        .score = score,
        .score_stride = BLOCKS,
    });
    for (uint32_t h = 0; h < HEADS; h++) {
        const entry *want = find("m3_score_%u", h), *selected = find("m3_selected_%u", h);

        for (uint32_t b = 0; b + 1 < BLOCKS; b++) { /* the last is the query's own: forced in the reference */
            assert_true(fabs((double)score[h * BLOCKS + b] - want->value[b]) < 0.06);
            for (uint32_t c = 0; c + 1 < BLOCKS; c++)
                if (want->value[b] > want->value[c] + 0.12)
                    assert_true(score[h * BLOCKS + b] > score[h * BLOCKS + c]);
        }
        assert_int_equal((int)selected->value[2], BLOCKS - 1);
    }
    free(hidden), free(q), free(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sparq),    cmocka_unit_test(starc), cmocka_unit_test(moba),
        cmocka_unit_test(snapkv),   cmocka_unit_test(h2o),   cmocka_unit_test(quest),
        cmocka_unit_test(deepseek), cmocka_unit_test(glm),   cmocka_unit_test(m3),
    };
    load_fixture();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
