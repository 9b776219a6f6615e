/* The compute ops against transformers: tiny random models of every family, read from
 * GGUF files, give the logits transformers computed in F32 from the same weights.
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

static void open_forward(opened *o, const char *path, uint32_t threads, uint32_t rows_max, kr_dtype kv, bool f32)
{
    kr_err err = {.text = ""};

    if (kr_model_file_open(path, &o->file, &err) != KR_OK)
        fail_msg("%s: %s", path, err.text);
    o->model = kr_model_file_model(o->file);
    assert_int_equal(kr_team_create(&o->team, threads, NULL, &err), KR_OK);
    o->config = (kr_forward_config){.file = o->file, .team = o->team, .rows_max = rows_max, .kv_dtype = kv,
                                    .weights_f32 = f32};
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
    {"llama", "tests/fixtures/tiny/llama.gguf"},   {"llama3", "tests/fixtures/tiny/llama3.gguf"},
    {"qwen2", "tests/fixtures/tiny/qwen2.gguf"},   {"qwen3", "tests/fixtures/tiny/qwen3.gguf"},
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
            print_message("%s (%s): worst difference %.1e of the logits' spread, %u of %u top tokens differ\n",
                          models[i].path, kr_forward_path(o.forward), worst, wrong, want.count);
            /* F32 sums of some hundred terms through a few layers: 100 roundings of 2^-24 and the
             * oracle's own. Stored BF16 is multiplied by BF16 activations, 2^-9 each. */
            const bool exact = strstr(kr_forward_path(o.forward), "BF16") == NULL || f32;
            assert_true(worst < (exact ? 2e-5 : 0.1));
            assert_true(!exact || wrong == 0);
            kr_free(want.logits);
            close_forward(&o);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
