/* SmolLM2-135M's logits against llama.cpp's on a text of 192 tokens, teacher-forced, F32 keys and
 * values on both sides (tools/llama_fixtures.sh made the oracle).
 *
 * F32 weights (the Q4_1 file expanded): the same top token wherever the oracle's two best logits
 * are further apart than twice the largest difference of any compared logit, which is bounded too.
 * The Q4_1 file as it is: both programs round activations to 8 bits, in different ways, so what is
 * bounded is the divergence of the distributions and how often the top token differs. */
#include <stdbool.h>

#include "base/arena.h"
#include "tests/engine/plain_model.h"
#include "tests/test.h"

enum { TOKENS_MAX = 256, KEEP_MAX = 64 };

/* llama.cpp's best logits of each position, in descending order. */
typedef struct {
    uint32_t tokens, vocab, keep, ids[TOKENS_MAX];
    struct {
        float log_sum;
        struct {
            uint32_t id;
            float logit;
        } best[KEEP_MAX];
    } at[TOKENS_MAX];
} oracle;

static oracle want;

static void load_oracle(const char *path)
{
    FILE *f = fopen(path, "rb");

    assert_non_null(f);
    assert_int_equal(fread(&want, 3 * sizeof(uint32_t), 1, f), 1);
    assert_true(want.tokens <= TOKENS_MAX && want.keep <= KEEP_MAX);
    assert_int_equal(fread(want.ids, sizeof want.ids[0], want.tokens, f), want.tokens);
    for (uint32_t i = 0; i < want.tokens; i++) {
        assert_int_equal(fread(&want.at[i].log_sum, sizeof(float), 1, f), 1);
        assert_int_equal(fread(want.at[i].best, sizeof want.at[i].best[0], want.keep, f), want.keep);
    }
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

static double log_sum_of(const float *logits, uint32_t n)
{
    double maximum = -INFINITY, sum = 0.0;

    for (uint32_t i = 0; i < n; i++)
        maximum = fmax(maximum, (double)logits[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - maximum);
    return maximum + log(sum);
}

static uint32_t top_of(const float *logits, uint32_t n)
{
    uint32_t top = 0;

    for (uint32_t i = 1; i < n; i++)
        top = logits[i] > logits[top] ? i : top;
    return top;
}

/* What one comparison found. */
typedef struct {
    double worst;         /* largest difference of a kept logit */
    double divergence;    /* mean KL(oracle || karat): kept tokens, and all others as one class */
    uint32_t tops;        /* positions whose top tokens differ */
    double gap;           /* largest gap of the oracle's two best among those */
    double perplexity[2]; /* of the text: oracle where it kept the next token, karat at the same places */
    uint32_t scored;
} finding;

static finding compare(const float *logits)
{
    finding found = {0};

    for (uint32_t i = 0; i < want.tokens; i++) {
        const float *got = logits + (size_t)i * want.vocab;
        const double log_sum = log_sum_of(got, want.vocab);
        double rest_want = 1.0, rest_got = 1.0, kl = 0.0;
        for (uint32_t k = 0; k < want.keep; k++) {
            const uint32_t id = want.at[i].best[k].id;
            const double p = (double)want.at[i].best[k].logit - (double)want.at[i].log_sum;
            const double q = (double)got[id] - log_sum;
            found.worst = fmax(found.worst, fabs((double)want.at[i].best[k].logit - (double)got[id]));
            kl += exp(p) * (p - q);
            rest_want -= exp(p);
            rest_got -= exp(q);
            if (i + 1 < want.tokens && id == want.ids[i + 1]) {
                found.perplexity[0] -= p;
                found.perplexity[1] -= q;
                found.scored++;
            }
        }
        if (rest_want > 1e-9 && rest_got > 1e-9)
            kl += rest_want * log(rest_want / rest_got);
        found.divergence += kl / want.tokens;
        if (top_of(got, want.vocab) != want.at[i].best[0].id) {
            found.tops++;
            found.gap = fmax(found.gap, (double)want.at[i].best[0].logit - (double)want.at[i].best[1].logit);
        }
    }
    for (int k = 0; k < 2; k++)
        found.perplexity[k] = exp(found.perplexity[k] / found.scored);
    return found;
}

/* Reads the text with the real model; the caller frees the logits [tokens][vocab]. */
static float *run(const char *path, bool f32)
{
    kr_err err = {.text = ""};
    kr_model_file *file;
    kr_team *team;
    kr_forward *forward;
    plain_model p;

    if (kr_model_file_open(path, &file, &err) != KR_OK)
        fail_msg("%s", err.text);
    assert_int_equal(kr_team_create(&team, 2, NULL, &err), KR_OK);
    const kr_forward_config config = {
        .file = file, .team = team, .rows_max = TOKENS_MAX, .kv_dtype = KR_F32, .weights_f32 = f32};
    assert_int_equal(kr_forward_create(&forward, &config, NULL, NULL, &err), KR_OK);
    const kr_model *m = kr_model_file_model(file);
    assert_int_equal(m->vocab, want.vocab);
    float *logits = kr_alloc((size_t)want.tokens * want.vocab * sizeof *logits);
    plain_init(&p, forward, m, want.tokens, want.tokens);
    plain_read(&p, want.ids, want.tokens, want.tokens, logits, true);
    plain_free(&p);
    kr_forward_destroy(forward);
    kr_team_destroy(team);
    kr_model_file_close(file);
    return logits;
}

static finding check(const char *oracle_path, bool f32, const char *what)
{
    load_oracle(oracle_path);
    float *logits = run(getenv("KARAT_TEST_MODEL"), f32);
    const finding found = compare(logits);

    print_message(
        "%s: largest difference of a logit %.2e; KL %.2e; %u of %u top tokens differ (largest gap %.2e); "
        "perplexity of %u tokens %.4f, llama.cpp %.4f\n",
        what, found.worst, found.divergence, found.tops, want.tokens, found.gap, found.scored,
        found.perplexity[1], found.perplexity[0]);
    kr_free(logits);
    return found;
}

static void f32_weights(void **state)
{
    (void)state;
    const finding found = check("tests/fixtures/smollm2/f32.top", true, "F32 weights");
    assert_true(found.worst < 1e-3); /* measured 1.1e-4: F32 sums of 30 layers in two orders */
    assert_true(found.gap <= 2 * found.worst);
}

static void quantised_file(void **state)
{
    (void)state;
    const finding found = check("tests/fixtures/smollm2/q4_1.top", false, "Q4_1 against llama.cpp's Q4_1");
    assert_true(found.divergence < 0.01);
    assert_true(found.tops < want.tokens / 20);
    const finding exact = check("tests/fixtures/smollm2/f32.top", false, "Q4_1 against its weights in F32");
    assert_true(exact.divergence < 0.01);
    assert_true(exact.tops < want.tokens / 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_weights),
        cmocka_unit_test(quantised_file),
    };
    if (getenv("KARAT_TEST_MODEL") == NULL) {
        printf("SKIP: KARAT_TEST_MODEL is not set\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
