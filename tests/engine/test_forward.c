/* The compute ops against transformers: tiny random models of every family, read as GGUF
 * files and as Hugging Face folders, give the logits transformers computed in F32 from the same weights.
 * Rows have the same bits in any batch and with any number of threads; nothing is allocated in a
 * step; the bytes predicted are the bytes taken. */
#include <jansson.h>
#include <stdbool.h>

#include "base/arena.h"
#include "base/json.h"
#include "engine/forward_state.h"
#include "tests/engine/plain_model.h"
#include "tests/test.h"

enum { IDS_MAX = 128 };

/* One fixture: the ids of its prompt and transformers' logits [count][vocab]. */
typedef struct {
    uint32_t ids[IDS_MAX], count;
    float *logits;
} oracle;

static void load_oracle(oracle *o, const char *family, uint32_t vocab)
{
    char path[128];
    json_t *root;
    kr_err err;

    snprintf(path, sizeof path, "tests/fixtures/tiny/%s/prompt.json", family);
    assert_int_equal(kr_json_load(path, &root, &err), KR_OK);
    const json_t *ids = json_object_get(root, "ids");
    o->count = (uint32_t)json_array_size(ids);
    assert_true(o->count > 16 && o->count <= IDS_MAX);
    for (uint32_t i = 0; i < o->count; i++)
        o->ids[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    json_decref(root);

    snprintf(path, sizeof path, "tests/fixtures/tiny/%s/logits.f32", family);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    o->logits = kr_alloc((size_t)o->count * vocab * sizeof *o->logits);
    assert_int_equal(fread(o->logits, vocab * sizeof *o->logits, o->count, f), o->count);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

/* A model file with a forward pass over it. */
typedef struct {
    kr_model_file *file;
    const kr_model *model;
    kr_team *team;
    kr_forward *forward;
    kr_forward_config config;
} opened;

static void open_forward(opened *o, const char *path, uint32_t threads, uint32_t rows_max, kr_dtype kv,
                         bool f32)
{
    kr_err err = {.text = ""};

    if (kr_model_file_open(path, &o->file, &err) != KR_OK)
        fail_msg("%s: %s", path, err.text);
    o->model = kr_model_file_model(o->file);
    assert_int_equal(kr_team_create(&o->team, threads, NULL, &err), KR_OK);
    o->config = (kr_forward_config){
        .file = o->file, .team = o->team, .rows_max = rows_max, .kv_dtype = kv, .weights_f32 = f32};
    if (kr_forward_create(&o->forward, &o->config, NULL, NULL, &err) != KR_OK)
        fail_msg("%s: %s", path, err.text);
}

static void close_forward(opened *o)
{
    kr_forward_destroy(o->forward);
    kr_team_destroy(o->team);
    kr_model_file_close(o->file);
}

/* Largest |difference| over the logits' own spread (their standard deviation), all positions. */
static double read_and_compare(opened *o, const oracle *want, uint32_t chunk, uint32_t *wrong_tops)
{
    const uint32_t vocab = o->model->vocab;
    float *got = kr_alloc((size_t)want->count * vocab * sizeof *got);
    plain_model p;
    double worst = 0.0, squares = 0.0;

    plain_init(&p, o->forward, o->model, want->count, chunk);
    for (uint32_t from = 0; from < want->count; from += chunk) {
        const uint32_t n = want->count - from < chunk ? want->count - from : chunk;
        plain_read(&p, want->ids + from, n, n, got + (size_t)from * vocab, true);
    }
    *wrong_tops = 0;
    for (uint32_t r = 0; r < want->count; r++) {
        const float *g = got + (size_t)r * vocab, *w = want->logits + (size_t)r * vocab;
        uint32_t top_got = 0, top_want = 0;
        for (uint32_t i = 0; i < vocab; i++) {
            worst = fmax(worst, fabs((double)g[i] - (double)w[i]));
            squares += (double)w[i] * (double)w[i];
            top_got = g[i] > g[top_got] ? i : top_got;
            top_want = w[i] > w[top_want] ? i : top_want;
        }
        *wrong_tops += top_got != top_want;
    }
    plain_free(&p);
    kr_free(got);
    return worst / sqrt(squares / want->count / vocab);
}

static const struct {
    const char *family, *path;
} models[] = {
    {"llama", "tests/fixtures/tiny/llama.gguf"}, {"llama3", "tests/fixtures/tiny/llama3.gguf"},
    {"qwen2", "tests/fixtures/tiny/qwen2.gguf"}, {"qwen3", "tests/fixtures/tiny/qwen3.gguf"},
    {"llama", "tests/fixtures/tiny/llama"},      {"llama3", "tests/fixtures/tiny/llama3"},
    {"qwen2", "tests/fixtures/tiny/qwen2"},      {"qwen3", "tests/fixtures/tiny/qwen3"},
    {"gemma3", "tests/fixtures/tiny/gemma3"},
};

static void logits_are_those_of_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        for (int f32 = 1; f32 >= 0; f32--) {
            opened o;
            oracle want;
            uint32_t wrong;
            open_forward(&o, models[i].path, 2, 64, KR_F32, f32);
            load_oracle(&want, models[i].family, o.model->vocab);
            const double worst = read_and_compare(&o, &want, 64, &wrong);
            print_message(
                "%s (%s): worst difference %.1e of the logits' spread, %u of %u top tokens differ\n",
                models[i].path, kr_forward_path(o.forward), worst, wrong, want.count);
            /* F32 sums of some hundred terms through a few layers: 100 roundings of 2^-24 and the
             * oracle's own. Stored BF16 is multiplied by BF16 activations, 2^-9 each. */
            const bool exact = strstr(kr_forward_path(o.forward), "BF16 oneDNN") == NULL;
            assert_true(exact || !f32);
            assert_true(worst < (exact ? 2e-5 : 0.1));
            assert_true(!exact || wrong == 0);
            kr_free(want.logits);
            close_forward(&o);
        }
    }
}

/* ---- the same bits whatever the batch and the threads ---- */

enum { SESSIONS = 8, LENGTH = 24 };

/* What one way of running makes of SESSIONS sessions of LENGTH tokens: the logits of the last
 * position, and the keys of the last layer. */
typedef struct {
    float *logits; /* [SESSIONS][vocab] */
    float *keys;   /* [SESSIONS][LENGTH][kv_heads * head_dim] */
} outcome;

static uint32_t token_of(uint32_t session, uint32_t position, uint32_t vocab)
{
    return (session * 7919 + position * 104729 + 13) % vocab;
}

static outcome run_by_chunks(const char *path, uint32_t threads, uint32_t chunk, bool f32)
{
    opened o;
    open_forward(&o, path, threads, LENGTH, KR_F32, f32);
    const kr_model *m = o.model;
    const size_t keys = (size_t)m->kv_heads * m->head_dim;
    outcome out = {kr_alloc((size_t)SESSIONS * m->vocab * sizeof(float)),
                   kr_alloc(SESSIONS * LENGTH * keys * sizeof(float))};

    for (uint32_t s = 0; s < SESSIONS; s++) {
        plain_model p;
        uint32_t tokens[LENGTH];
        plain_init(&p, o.forward, m, LENGTH, LENGTH);
        for (uint32_t i = 0; i < LENGTH; i++)
            tokens[i] = token_of(s, i, m->vocab);
        for (uint32_t from = 0; from < LENGTH; from += chunk) {
            const uint32_t n = LENGTH - from < chunk ? LENGTH - from : chunk;
            plain_read(&p, tokens + from, n, from + n == LENGTH, out.logits + (size_t)s * m->vocab, true);
        }
        memcpy(out.keys + s * LENGTH * keys, p.key + (m->layers - 1) * LENGTH * keys,
               LENGTH * keys * sizeof(float));
        plain_free(&p);
    }
    close_forward(&o);
    return out;
}

/* All sessions in one batch of decode rows, one position a step. */
static outcome run_by_batch(const char *path, uint32_t threads, bool f32)
{
    opened o;
    open_forward(&o, path, threads, LENGTH, KR_F32, f32);
    const kr_model *m = o.model;
    const size_t keys = (size_t)m->kv_heads * m->head_dim;
    outcome out = {kr_alloc((size_t)SESSIONS * m->vocab * sizeof(float)),
                   kr_alloc(SESSIONS * LENGTH * keys * sizeof(float))};
    plain_model all, one[SESSIONS];
    uint64_t calls = 0;

    plain_init(&all, o.forward, m, 1, SESSIONS);
    for (uint32_t s = 0; s < SESSIONS; s++)
        plain_init(&one[s], o.forward, m, LENGTH, 1);
    for (uint32_t i = 0; i < LENGTH; i++) {
        plain_step_together(&all, one, SESSIONS, i, token_of, out.logits);
        if (i == 1)
            calls = kr_alloc_calls();
    }
    assert_true(kr_alloc_calls() == calls); /* nothing is allocated in a step after the first two */
    for (uint32_t s = 0; s < SESSIONS; s++) {
        memcpy(out.keys + s * LENGTH * keys, one[s].key + (m->layers - 1) * LENGTH * keys,
               LENGTH * keys * sizeof(float));
        plain_free(&one[s]);
    }
    plain_free(&all);
    close_forward(&o);
    return out;
}

static void same_outcome(const char *path, const kr_model *m, outcome want, outcome got, const char *how)
{
    const size_t logits = (size_t)SESSIONS * m->vocab * sizeof(float);
    const size_t keys = (size_t)SESSIONS * LENGTH * m->kv_heads * m->head_dim * sizeof(float);

    if (memcmp(want.logits, got.logits, logits) != 0)
        fail_msg("%s, %s: logits differ", path, how);
    if (memcmp(want.keys, got.keys, keys) != 0)
        fail_msg("%s, %s: keys of the last layer differ", path, how);
    kr_free(got.logits);
    kr_free(got.keys);
}

static void check_invariance(const char *path, bool f32)
{
    kr_model_file *file;
    kr_err err;
    assert_int_equal(kr_model_file_open(path, &file, &err), KR_OK);
    const kr_model *m = kr_model_file_model(file);
    const outcome want = run_by_chunks(path, 1, LENGTH, f32);

    same_outcome(path, m, want, run_by_chunks(path, 1, 1, f32), "one token at a time");
    same_outcome(path, m, want, run_by_chunks(path, 3, 5, f32), "chunks of 5 on 3 threads");
    same_outcome(path, m, want, run_by_batch(path, 1, f32), "batch of 8");
    same_outcome(path, m, want, run_by_batch(path, 2, f32), "batch of 8 on 2 threads");
    kr_free(want.logits);
    kr_free(want.keys);
    kr_model_file_close(file);
}

static void rows_are_independent(void **state)
{
    const char *real = getenv("KARAT_TEST_MODEL");
    (void)state;

    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        for (int f32 = 0; f32 < 2; f32++)
            check_invariance(models[i].path, f32);
    if (real != NULL)
        check_invariance(real, false);
    else
        print_message("SKIP the real model: KARAT_TEST_MODEL is not set\n");
}

/* ---- memory and refusals ---- */

/* Matrices by head and by expert lie in arrays of their own. */
static uint64_t array_bytes(const kr_forward *f)
{
    const kr_model *m = f->model;
    uint64_t matrices = 0;

    for (uint32_t l = 0; l < m->layers; l++) {
        matrices += m->attention == KR_ATTENTION_MLA ? 2 * m->heads : 0;
        matrices += m->layer[l].ffn == KR_FFN_MOE ? 3 * m->moe.experts : 0;
    }
    return matrices * sizeof(kr_matrix);
}

static void check_bytes(const char *path, bool f32)
{
    opened o;
    uint64_t weights, scratch;
    kr_err err;

    open_forward(&o, path, 2, 33, KR_BF16, f32);
    assert_int_equal(kr_forward_bytes(&o.config, &weights, &scratch, &err), KR_OK);
    const kr_forward *f = o.forward;
    const uint64_t taken = f->arena.used + sizeof *f + o.model->layers * sizeof *f->layer + array_bytes(f) +
                           kr_gemm_scratch_bytes(f->gemm);
    assert_int_equal(weights + scratch, taken);
    assert_int_equal(f->arena.used, f->arena.capacity);
    close_forward(&o);
}

static void bytes_are_those_predicted(void **state)
{
    static const char *const learned[] = {"tests/fixtures/learned/deepseek", "tests/fixtures/learned/glm",
                                          "tests/fixtures/learned/minimax"};
    (void)state;

    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        check_bytes(models[i].path, i % 2);
    for (size_t i = 0; i < sizeof learned / sizeof learned[0]; i++)
        for (int f32 = 0; f32 < 2; f32++)
            check_bytes(learned[i], f32);
}

/* Keys and values leave in the type asked for: the F32 ones rounded. */
static void keys_have_the_kv_type(void **state)
{
    static const kr_dtype types[] = {KR_BF16, KR_F16};
    (void)state;

    for (size_t t = 0; t < 2; t++) {
        opened exact, rounded;
        plain_model a, b;
        const uint32_t tokens[3] = {5, 9, 200};
        uint16_t half[2][3 * 64];
        open_forward(&exact, models[0].path, 1, 4, KR_F32, false);
        open_forward(&rounded, models[0].path, 1, 4, types[t], false);
        const uint32_t n = exact.model->kv_heads * exact.model->head_dim * 3;
        assert_true(n <= 3 * 64);
        plain_init(&a, exact.forward, exact.model, 3, 3);
        plain_init(&b, rounded.forward, rounded.model, 3, 3);
        for (int i = 0; i < 2; i++) {
            plain_model *p = i == 0 ? &a : &b;
            plain_place(p, tokens, 3);
            kr_forward_embed(p->forward, &p->rows);
            kr_forward_qkv(p->forward, &p->rows, 0);
        }
        kr_from_f32(types[t], a.rows.key, half[0], n);
        kr_from_f32(types[t], a.rows.value, half[1], n);
        assert_memory_equal(half[0], b.rows.key, n * sizeof(uint16_t));
        assert_memory_equal(half[1], b.rows.value, n * sizeof(uint16_t));
        plain_free(&a);
        plain_free(&b);
        close_forward(&exact);
        close_forward(&rounded);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_transformers),
        cmocka_unit_test(rows_are_independent),
        cmocka_unit_test(bytes_are_those_predicted),
        cmocka_unit_test(keys_have_the_kv_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
