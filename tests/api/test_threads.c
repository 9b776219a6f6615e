/* Different handles on different threads at once: the first calls race for the choice of kernels, then each
 * thread runs selectors and plain kernels of its own; all get the same bits. */
#include <pthread.h>

#include "karat/kernels.h"
#include "tests/api/sequence.h"

enum { THREADS = 4, HEADS = 4, KV = 2, D = 32, TOKENS = 400 };

static const kr_attention_shape shape = {
    .heads = HEADS, .kv_heads = KV, .key_dim = D, .value_dim = D, .kv_dtype = KR_F32, .softmax_scale = 0.25f};

typedef struct {
    const feed *f;
    const kv_arrays *a;
    const char *method;
    float output[HEADS * D];
    uint32_t best[64];
    karat_error error;
    karat_status status;
} work;

/* The first failure ends a thread's work: assertions belong to the main thread. */
static void *run(void *context)
{
    work *w = context;
    const kr_method_config config = {.budget = 128};
    karat_selector_options o = options_of(w->method, &config, &shape, TOKENS);
    const karat_selector_plan plan = {.struct_size = sizeof plan};
    karat_selector *selector = NULL;
    karat_sequence *q;
    uint32_t count;

    o.threads = 2;
    const karat_rows rows = rows_of(w->f, w->a, &shape, &plan, 0, TOKENS, true, NULL);
    w->status = karat_topk(w->f->key, TOKENS * KV * D, 64, w->best, &count, NULL, NULL, &w->error);
    if (w->status == KARAT_OK)
        w->status = karat_selector_create(&o, &selector, &w->error);
    if (w->status == KARAT_OK)
        w->status = karat_sequence_open(selector, 0, &q, &w->error);
    if (w->status == KARAT_OK)
        w->status = karat_sequence_append(q, 0, &rows, &w->error);
    if (w->status == KARAT_OK)
        w->status = karat_sequence_end_prompt(q, &w->error);
    if (w->status == KARAT_OK)
        w->status = karat_sequence_attend(q, 0, w->f->query, NULL, NULL, w->output, &w->error);
    karat_selector_destroy(selector);
    return NULL;
}

static void handles_are_independent(void **state)
{
    (void)state;
    kr_rng rng = test_rng("threads");
    feed f = feed_random(&rng, &shape, TOKENS);
    kv_arrays a = kv_of(&f, &shape);
    static work w[THREADS];
    pthread_t thread[THREADS];

    for (int i = 0; i < THREADS; i++) {
        w[i].f = &f, w[i].a = &a, w[i].method = i % 2 ? "quest" : "sparq";
        assert_int_equal(pthread_create(&thread[i], NULL, run, &w[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
        if (w[i].status != KARAT_OK)
            fail_msg("thread %d: %s", i, w[i].error.text);
        assert_memory_equal(w[i].output, w[i % 2].output, sizeof w[i].output);
        assert_memory_equal(w[i].best, w[0].best, sizeof w[i].best);
    }
    kv_free(&a);
    feed_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(handles_are_independent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
