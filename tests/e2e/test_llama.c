/* karat against llama.cpp, teacher-forced: F32 weights and an F32 KV cache on both sides, five
 * prompts (two short, two of 2,048 tokens, one of 6,144), 128 steps each, with every key and value
 * on a memory node.
 *
 * Property: at every step whose gap between llama.cpp's best and second logit exceeds TOLERANCE
 * both name the same best token; all other steps are listed.
 *
 * Why this tolerance. Both sides compute the same function of the same F32 weights in another
 * order of additions, so a logit differs by rounding alone. If every compared logit of a step
 * differs by at most d, an exchange of first and second needs a gap of at most 2 d. The test holds
 * d (over the four best of each step) under LOGIT_DIFFERENCE_MAX, and the tolerance is twice that.
 * The limit is twice what was seen when it was set: 4e-5 at 14 tokens, 1e-3 at 2K and 4e-3 at 6K.
 * That it grows with position speaks for the rotary angles, which llama.cpp multiplies up in F32.
 *
 * The second test runs the quantised file itself along the same tokens, where both programs round
 * activations to 8 bits in ways of their own. It compares distributions: the KL divergence of
 * karat's from llama.cpp's over llama.cpp's 16 best tokens and the rest as one (so a lower bound),
 * beside the divergence of llama.cpp's own quantised run from its F32 run, and the agreement of the
 * best token.
 *
 * Fixtures: tests/fixtures/llama, made by tools/oracle/make_llama_fixture.py. */
#include <math.h>

#include "base/json.h"
#include "node/embedded.h"
#include "tests/engine/rig.h"

#define LOGIT_DIFFERENCE_MAX 0.008
#define TOLERANCE (2 * LOGIT_DIFFERENCE_MAX)
/* Quantised: mean divergence and share of equal best tokens over all 640 steps. */
#define DIVERGENCE_MAX 0.004
#define AGREEMENT_MIN 0.97

enum { STEPS = 128, TOPS = 4, CHUNK = 256, PROMPT_MAX = 8192, THREADS = 2 };

typedef struct {
    const char *name;
    json_t *root;
    uint32_t prompt[PROMPT_MAX + STEPS]; /* prompt ids, then the decoded ids as forced tokens */
    size_t prompt_tokens;
    uint32_t vocab;
    size_t step; /* of the next logits of interest */
    uint32_t same, close, compared;
    double difference; /* largest of the compared logits */
    double divergence; /* sum over steps, quantised */
} reference;

typedef void (*on_logits)(void *context, uint64_t position, const float *logits);

static void load(reference *r, const char *name)
{
    char path[256];
    kr_err err = {0};
    *r = (reference){.name = name};
    snprintf(path, sizeof path, "tests/fixtures/llama/%s.json", name);
    rig_ok(kr_json_load(path, &r->root, &err), &err);
    const json_t *prompt = json_object_get(r->root, "prompt");
    const json_t *decoded = json_object_get(r->root, "decoded");
    r->vocab = (uint32_t)json_integer_value(json_object_get(r->root, "vocab"));
    r->prompt_tokens = json_array_size(prompt);
    assert_true(r->prompt_tokens > 0 && r->prompt_tokens <= PROMPT_MAX);
    assert_int_equal(json_array_size(decoded), STEPS);
    for (size_t i = 0; i < r->prompt_tokens; i++)
        r->prompt[i] = (uint32_t)json_integer_value(json_array_get(prompt, i));
    for (size_t i = 0; i < STEPS; i++)
        r->prompt[r->prompt_tokens + i] = (uint32_t)json_integer_value(json_array_get(decoded, i));
}

static uint32_t best_of(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static void compare(void *context, uint64_t position, const float *logits)
{
    reference *r = context;
    if (position + 1 < r->prompt_tokens || r->step >= STEPS)
        return;
    const json_t *top = json_object_get(json_array_get(json_object_get(r->root, "steps"), r->step), "top");
    double value[TOPS];
    for (size_t i = 0; i < TOPS; i++) {
        const json_t *pair = json_array_get(top, i);
        const json_int_t id = json_integer_value(json_array_get(pair, 0));
        assert_true(id >= 0 && id < r->vocab);
        value[i] = json_number_value(json_array_get(pair, 1));
        r->difference = fmax(r->difference, fabs(value[i] - (double)logits[id]));
    }
    const uint32_t theirs = (uint32_t)json_integer_value(json_array_get(json_array_get(top, 0), 0));
    const uint32_t ours = best_of(logits, r->vocab);
    const double gap = value[0] - value[1];
    r->compared++;
    r->same += ours == theirs;
    if (gap <= TOLERANCE) {
        r->close++;
        print_message("%s step %zu: gap %.2e is within the tolerance (llama.cpp %u, karat %u)\n", r->name,
                      r->step, gap, theirs, ours);
    } else if (ours != theirs) {
        fail_msg("%s step %zu: llama.cpp's best is %u, karat's %u, gap %.6f", r->name, r->step, theirs, ours,
                 gap);
    }
    r->step++;
}

static double log_sum(const float *logits, uint32_t vocab)
{
    double best = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        best = fmax(best, (double)logits[i]);
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - best);
    return best + log(sum);
}

static void diverge(void *context, uint64_t position, const float *logits)
{
    reference *r = context;
    if (position + 1 < r->prompt_tokens || r->step >= STEPS)
        return;
    const json_t *step = json_array_get(json_object_get(r->root, "quantised"), r->step);
    const json_t *top = json_object_get(step, "top");
    const double theirs = json_number_value(json_object_get(step, "logsumexp"));
    const double ours = log_sum(logits, r->vocab);
    double p_left = 1, q_left = 1, sum = 0;
    for (size_t i = 0; i < json_array_size(top); i++) {
        const json_t *pair = json_array_get(top, i);
        const json_int_t id = json_integer_value(json_array_get(pair, 0));
        assert_true(id >= 0 && id < r->vocab);
        const double log_p = json_number_value(json_array_get(pair, 1)) - theirs;
        const double log_q = (double)logits[id] - ours;
        sum += exp(log_p) * (log_p - log_q);
        p_left -= exp(log_p);
        q_left -= exp(log_q);
    }
    if (p_left > 1e-9 && q_left > 1e-9)
        sum += p_left * log(p_left / q_left);
    r->divergence += sum;
    r->same += best_of(logits, r->vocab) ==
               (uint32_t)json_integer_value(json_array_get(json_array_get(top, 0), 0));
    r->compared++;
    r->step++;
}

static void force(kr_engine *engine, reference *r, const char *name, on_logits look, float *scratch)
{
    kr_err err = {0};
    load(r, name);
    assert_int_equal(r->vocab, kr_engine_model(engine)->vocab);
    kr_session *session = rig_session(engine, r->prompt, r->prompt_tokens, STEPS);
    rig_ok(kr_force(engine, session, CHUNK, scratch, look, r, &err), &err);
    rig_ok(kr_session_end_prefill(session, &err), &err);
    rig_ok(kr_session_append(session, r->prompt + r->prompt_tokens, STEPS - 1, &err), &err);
    rig_ok(kr_force(engine, session, 0, scratch, look, r, &err), &err);
    kr_session_close(session);
    assert_int_equal(r->compared, STEPS);
}

static void exact(kr_engine *engine, const char *name, float *scratch, reference *all)
{
    static reference r;
    force(engine, &r, name, compare, scratch);
    json_decref(r.root);
    print_message(
        "%s: %zu prompt tokens, %u of %u best tokens equal, %u close calls, largest logit difference %.2e\n",
        name, r.prompt_tokens, r.same, r.compared, r.close, r.difference);
    assert_true(r.difference <= LOGIT_DIFFERENCE_MAX);
    all->compared += r.compared;
}

static void quantised(kr_engine *engine, const char *name, float *scratch, reference *all)
{
    static reference r;
    force(engine, &r, name, diverge, scratch);
    print_message("%s: KL %.5f (llama.cpp's own from its F32 run: %.5f), %u of %u best tokens equal\n", name,
                  r.divergence / STEPS, json_number_value(json_object_get(r.root, "kl_f32_quantised")),
                  r.same, r.compared);
    json_decref(r.root);
    all->divergence += r.divergence;
    all->same += r.same;
    all->compared += r.compared;
}

/* Runs all prompts through an engine whose node lies in this process; sums go to *all. */
static void run_all(bool weights_f32, void (*one)(kr_engine *, const char *, float *, reference *),
                    reference *all)
{
    static const char *const names[] = {"short_story", "short_list", "mpl_2k", "gfdl_2k", "gpl_6k"};
    static kr_method_config methods[KR_LAYERS_MAX];
    const char *path = getenv("KARAT_TEST_MODEL");
    kr_embedded embedded;
    kr_engine *engine;
    kr_err err = {0};

    if (path == NULL) {
        print_message("SKIP: KARAT_TEST_MODEL names no model\n");
        skip();
    }
    kr_model_file *file = rig_open(path);
    const kr_node_config node = {.devices = 1,
                                 .threads_per_device = THREADS,
                                 .pool_bytes = (uint64_t)1 << 30,
                                 .sessions_max = 2,
                                 .clock = &kr_clock_system};
    rig_ok(kr_embedded_start(&embedded, &node, true, &err), &err);
    const kr_engine_node view = {.link = embedded.client,
                                 .welcome = embedded.welcome,
                                 .drive = kr_embedded_drive,
                                 .drive_context = &embedded};
    kr_engine_config config = rig_config(file, &view, methods);
    config.rows_max = CHUNK;
    config.threads = THREADS;
    config.weights_f32 = weights_f32;
    config.timeout_ns = 120000000000ull;
    rig_ok(kr_engine_create(&engine, &config, &err), &err);
    float *scratch = kr_alloc((size_t)CHUNK * kr_engine_model(engine)->vocab * sizeof *scratch);
    assert_non_null(scratch);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        one(engine, names[i], scratch, all);
    kr_free(scratch);
    kr_engine_destroy(engine);
    kr_embedded_stop(&embedded);
    kr_model_file_close(file);
}

static void same_best_token(void **state)
{
    static reference all;

    (void)state;
    run_all(true, exact, &all);
    assert_int_equal(all.compared, 5 * STEPS);
}

static void quantised_file(void **state)
{
    static reference all;

    (void)state;
    run_all(false, quantised, &all);
    print_message("all: KL %.5f, best tokens equal at %u of %u steps\n", all.divergence / all.compared,
                  all.same, all.compared);
    assert_true(all.divergence / all.compared <= DIVERGENCE_MAX);
    assert_true(all.same >= AGREEMENT_MIN * all.compared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_best_token),
        cmocka_unit_test(quantised_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
