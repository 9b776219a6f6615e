/* What a caller can get wrong is one status with one line, never a crash, and changes nothing. */
#include <math.h>

#include "tests/api/sequence.h"

enum { HEADS = 4, KV = 2, D = 16, TOKENS = 300 };

static const kr_attention_shape shape = {
    .heads = HEADS, .kv_heads = KV, .key_dim = D, .value_dim = D, .kv_dtype = KR_F32, .softmax_scale = 0.25f};

static karat_selector_options options(const char *method, uint32_t budget)
{
    const kr_method_config config = {.budget = budget};
    return options_of(method, &config, &shape, TOKENS);
}

#define REFUSED(wanted, call)                                                          \
    do {                                                                               \
        karat_error problem = {0};                                                     \
        karat_error *error = &problem;                                                 \
        const karat_status got = (call);                                               \
        if (got != (wanted))                                                           \
            fail_msg("%s: %s %s, not %s", #call, karat_status_name(got), problem.text, \
                     karat_status_name(wanted));                                       \
        assert_int_equal(problem.status, got);                                         \
        assert_true(strlen(problem.text) > 0 && strchr(problem.text, '\n') == NULL);   \
    } while (0)

static void options_are_refused(void **state)
{
    (void)state;
    karat_selector *selector = NULL;

#define WRONG(status, change)                                         \
    do {                                                              \
        karat_selector_options o = options("quest", 64);              \
        change;                                                       \
        REFUSED(status, karat_selector_create(&o, &selector, error)); \
        assert_null(selector);                                        \
    } while (0)
    WRONG(KARAT_E_ARG, o.struct_size = 0);
    WRONG(KARAT_E_ARG, o.struct_size = 8);
    WRONG(KARAT_E_ARG, o.struct_size = UINT32_MAX);
    WRONG(KARAT_E_ARG, o.method = NULL);
    WRONG(KARAT_E_NOT_FOUND, o.method = "");
    WRONG(KARAT_E_NOT_FOUND, o.method = "a name that is longer than any method's name can be");
    WRONG(KARAT_E_UNSUPPORTED, o.dtype = KARAT_E4M3);
    WRONG(KARAT_E_UNSUPPORTED, o.dtype = (karat_dtype)-1);
    WRONG(KARAT_E_SHAPE, o.heads = 0);
    WRONG(KARAT_E_SHAPE, o.heads = 5);
    WRONG(KARAT_E_SHAPE, o.heads = UINT32_MAX);
    WRONG(KARAT_E_SHAPE, o.kv_heads = 0);
    WRONG(KARAT_E_SHAPE, o.key_dim = 0);
    WRONG(KARAT_E_SHAPE, o.key_dim = 1025);
    WRONG(KARAT_E_SHAPE, o.value_dim = UINT32_MAX);
    WRONG(KARAT_E_SHAPE, o.latent = 1);
    WRONG(KARAT_E_SHAPE, o.latent = 2);
    WRONG(KARAT_E_ARG, o.softmax_scale = NAN);
    WRONG(KARAT_E_ARG, o.softmax_scale = -1);
    WRONG(KARAT_E_ARG, o.threshold = INFINITY);
    WRONG(KARAT_E_LIMIT, o.layers = 257);
    WRONG(KARAT_E_LIMIT, o.threads = 257);
    WRONG(KARAT_E_LIMIT, o.sequences_max = UINT32_MAX);
    WRONG(KARAT_E_LIMIT, o.tokens_max = 0);
    WRONG(KARAT_E_LIMIT, o.tokens_max = UINT64_MAX);
    WRONG(KARAT_E_LIMIT, o.memory_bytes = 1);
    WRONG(KARAT_E_LIMIT, o.budget = UINT32_MAX);
    WRONG(KARAT_E_SHAPE, o.unit = 5);
    WRONG(KARAT_E_UNSUPPORTED, o.mode = 9);
    const uint32_t later[] = {1};
    const uint32_t shared[] = {0, 0};
    WRONG(KARAT_E_ARG, o.index_owner = later);
    WRONG(KARAT_E_UNSUPPORTED, (o.layers = 2, o.index_owner = shared));
    WRONG(KARAT_E_MEMORY, (o.tokens_max = 1 << 28, o.sequences_max = 1 << 20));
    WRONG(KARAT_E_MEMORY, o.memory_bytes = (uint64_t)1 << 46);
    karat_selector_options o = options("dsa", 64);
    o.latent = o.kv_heads = 1;
    o.parameter[0] = 2, o.parameter[1] = 16;
    assert_karat(karat_selector_create(&o, &selector, error));
    karat_selector_destroy(selector);
    o.parameter[3] = 1; /* a row without its scale: append would read and write past it */
    REFUSED(KARAT_E_UNSUPPORTED, karat_selector_create(&o, &selector, error));
    o = options("quest", 64);
    REFUSED(KARAT_E_ARG, karat_selector_create(NULL, &selector, error));
    REFUSED(KARAT_E_ARG, karat_selector_create(&o, NULL, error));
    assert_int_equal(karat_selector_create(NULL, NULL, NULL), KARAT_E_ARG);
    karat_selector_destroy(NULL);
    karat_sequence_close(NULL);
    assert_int_equal(karat_sequence_tokens(NULL, 0), 0);
}

/* An open sequence with 200 prompt rows, and rows that fit behind them. */
typedef struct {
    karat_selector *selector;
    karat_sequence *sequence;
    karat_selector_plan plan;
    feed f;
    kv_arrays a;
} opened;

static opened open_one(const char *method, uint32_t budget)
{
    opened x = {.plan = {.struct_size = sizeof x.plan}};
    kr_rng rng = test_rng(method);
    karat_selector_options o = options(method, budget);

    x.f = feed_random(&rng, &shape, TOKENS);
    x.a = kv_of(&x.f, &shape);
    assert_karat(karat_selector_create(&o, &x.selector, error));
    assert_karat(karat_selector_plan_of(x.selector, 0, &x.plan, error));
    assert_karat(karat_sequence_open(x.selector, 0, &x.sequence, error));
    const karat_rows rows = rows_of(&x.f, &x.a, &shape, &x.plan, 0, 200, true, NULL);
    assert_karat(karat_sequence_append(x.sequence, 0, &rows, error));
    return x;
}

static void close_one(opened *x)
{
    karat_selector_destroy(x->selector);
    kv_free(&x->a);
    feed_free(&x->f);
}

static void rows_are_refused(void **state)
{
    (void)state;
    opened x = open_one("snapkv", 64);
    float out[D * HEADS];

#define WRONG_ROWS(status, change)                                                \
    do {                                                                          \
        karat_rows r = rows_of(&x.f, &x.a, &shape, &x.plan, 200, 10, true, NULL); \
        change;                                                                   \
        REFUSED(status, karat_sequence_append(x.sequence, 0, &r, error));         \
        assert_int_equal(karat_sequence_tokens(x.sequence, 0), 200);              \
    } while (0)
    WRONG_ROWS(KARAT_E_ARG, r.struct_size = 4);
    WRONG_ROWS(KARAT_E_ARG, r.count = 0);
    WRONG_ROWS(KARAT_E_LIMIT, r.count = 101);
    WRONG_ROWS(KARAT_E_LIMIT, r.count = UINT64_MAX);
    WRONG_ROWS(KARAT_E_ARG, r.key = NULL);
    WRONG_ROWS(KARAT_E_ARG, r.value = NULL);
    WRONG_ROWS(KARAT_E_ARG, r.prompt = 2);
    WRONG_ROWS(KARAT_E_ARG, r.prompt = 0);
    WRONG_ROWS(KARAT_E_ARG, r.query = NULL);
    WRONG_ROWS(KARAT_E_ARG, r.key_token_stride = 1);
    WRONG_ROWS(KARAT_E_ARG, r.key_head_stride = D - 1);
    WRONG_ROWS(KARAT_E_LIMIT, r.key_token_stride = UINT64_MAX);
    WRONG_ROWS(KARAT_E_LIMIT, r.key_head_stride = UINT64_MAX - 1);
    WRONG_ROWS(KARAT_E_LIMIT, r.value_token_stride = (uint64_t)1 << 60);
    WRONG_ROWS(KARAT_E_ARG, (r.prompt = 0, r.output = out));
    const karat_rows r = rows_of(&x.f, &x.a, &shape, &x.plan, 200, 10, true, NULL);
    REFUSED(KARAT_E_ARG, karat_sequence_append(x.sequence, 1, &r, error));
    REFUSED(KARAT_E_ARG, karat_sequence_append(NULL, 0, &r, error));
    REFUSED(KARAT_E_ARG, karat_sequence_append(x.sequence, 0, NULL, error));
    close_one(&x);
}

static void calls_out_of_order_are_refused(void **state)
{
    (void)state;
    opened x = open_one("quest", 64);
    static uint32_t count[HEADS], unit[HEADS * TOKENS];
    karat_lists lists = {
        .struct_size = sizeof lists, .lists = HEADS, .stride = TOKENS, .count = count, .unit = unit};
    float out[HEADS * D];
    karat_sequence *empty;
    karat_selector_plan plan = {.struct_size = 3};

    REFUSED(KARAT_E_ARG, karat_sequence_select(x.sequence, 0, x.f.query, NULL, &lists, error));
    REFUSED(KARAT_E_ARG, karat_sequence_attend(x.sequence, 0, x.f.query, NULL, NULL, out, error));
    REFUSED(KARAT_E_FULL, karat_sequence_open(x.selector, 0, &empty, error));
    REFUSED(KARAT_E_LIMIT, karat_sequence_open(x.selector, TOKENS + 1, &empty, error));
    REFUSED(KARAT_E_ARG, karat_sequence_open(NULL, 0, &empty, error));
    REFUSED(KARAT_E_ARG, karat_sequence_open(x.selector, 0, NULL, error));
    REFUSED(KARAT_E_ARG, karat_selector_plan_of(x.selector, 0, &plan, error));
    REFUSED(KARAT_E_ARG, karat_selector_plan_of(x.selector, 0, NULL, error));
    REFUSED(KARAT_E_ARG, karat_selector_plan_of(x.selector, 1, &x.plan, error));
    REFUSED(KARAT_E_ARG, karat_selector_plan_of(NULL, 0, &x.plan, error));
    REFUSED(KARAT_E_ARG, karat_sequence_end_prompt(NULL, error));
    assert_karat(karat_sequence_end_prompt(x.sequence, error));
    assert_karat(karat_sequence_end_prompt(x.sequence, error)); /* ended already: nothing to do */

    REFUSED(KARAT_E_ARG, karat_sequence_select(x.sequence, 0, NULL, NULL, &lists, error));
    REFUSED(KARAT_E_ARG, karat_sequence_select(x.sequence, 7, x.f.query, NULL, &lists, error));
    REFUSED(KARAT_E_ARG, karat_sequence_select(x.sequence, 0, x.f.query, NULL, NULL, error));
    REFUSED(KARAT_E_ARG, karat_sequence_attend(x.sequence, 0, NULL, NULL, NULL, out, error));
    REFUSED(KARAT_E_ARG, karat_sequence_attend(x.sequence, 0, x.f.query, NULL, NULL, NULL, error));
    REFUSED(KARAT_E_LIMIT, karat_sequence_trim(x.sequence, TOKENS, error));
    lists.stride = 1;
    REFUSED(KARAT_E_LIMIT, karat_sequence_select(x.sequence, 0, x.f.query, NULL, &lists, error));
    lists.stride = TOKENS;
    assert_karat(karat_sequence_select(x.sequence, 0, x.f.query, NULL, &lists, error));
    assert_karat(karat_sequence_attend(x.sequence, 0, x.f.query, NULL, &lists, out, error));
#define WRONG_LISTS(change)                                                                          \
    do {                                                                                             \
        karat_lists l = lists;                                                                       \
        change;                                                                                      \
        REFUSED(KARAT_E_ARG, karat_sequence_attend(x.sequence, 0, x.f.query, NULL, &l, out, error)); \
    } while (0)
    WRONG_LISTS(l.struct_size = 0);
    WRONG_LISTS(l.lists = 1);
    WRONG_LISTS(l.reserved = 1);
    WRONG_LISTS(l.count = NULL);
    WRONG_LISTS(l.unit = NULL);
    WRONG_LISTS(l.stride = 1);
    unit[1] = unit[0];
    WRONG_LISTS((void)l);
    unit[0] = UINT32_MAX;
    WRONG_LISTS((void)l);
    close_one(&x);
}

static void nan_rows_are_counted(void **state)
{
    (void)state;
    opened x = open_one("dense", 0);
    close_one(&x);
    x = open_one("quest", 64);
    static uint32_t count[HEADS], unit[HEADS * TOKENS];
    karat_lists lists = {
        .struct_size = sizeof lists, .lists = HEADS, .stride = TOKENS, .count = count, .unit = unit};
    karat_rows r = rows_of(&x.f, &x.a, &shape, &x.plan, 200, 1, false, NULL);
    float key[KV * D], query[HEADS * D], out[HEADS * D];

    for (int i = 0; i < KV * D; i++)
        key[i] = NAN;
    for (int i = 0; i < HEADS * D; i++)
        query[i] = NAN;
    assert_karat(karat_sequence_end_prompt(x.sequence, error));
    r.key = key;
    assert_karat(karat_sequence_append(x.sequence, 0, &r, error));
    assert_karat(karat_sequence_select(x.sequence, 0, x.f.query, NULL, &lists, error));
    assert_true(lists.nan_scores > 0);
    for (uint32_t l = 0; l < HEADS; l++)
        for (uint32_t i = 0; i < count[l]; i++)
            assert_int_not_equal(unit[l * TOKENS + i], 200 / 16);
    assert_karat(karat_sequence_select(x.sequence, 0, query, NULL, &lists, error));
    assert_karat(karat_sequence_attend(x.sequence, 0, query, NULL, NULL, out, error));
    close_one(&x);
}

static void a_dense_layer_has_no_lists(void **state)
{
    (void)state;
    opened x = open_one("dense", 0);
    uint32_t count[1], unit[1];
    karat_lists lists = {.struct_size = sizeof lists, .lists = 1, .stride = 1, .count = count, .unit = unit};
    float out[HEADS * D];

    assert_int_equal(x.plan.lists, 0);
    assert_karat(karat_sequence_end_prompt(x.sequence, error));
    REFUSED(KARAT_E_UNSUPPORTED, karat_sequence_select(x.sequence, 0, x.f.query, NULL, &lists, error));
    assert_karat(karat_sequence_attend(x.sequence, 0, x.f.query, NULL, NULL, out, error));
    assert_karat(karat_sequence_trim(x.sequence, 0, error));
    REFUSED(KARAT_E_ARG, karat_sequence_end_prompt(x.sequence, error));
    REFUSED(KARAT_E_ARG, karat_sequence_attend(x.sequence, 0, x.f.query, NULL, NULL, out, error));
    close_one(&x);
}

/* Layers of a method that stay dense have neither index nor state, and give dense attention's output. */
static void methods_can_stay_dense(void **state)
{
    static const char *const name[] = {"dense", "h2o", "snapkv", "quest", "streamingllm", "retroinfer"};
    float out[2][HEADS * D];
    opened x = open_one("dense", 0);
    (void)state;

    for (size_t m = 0; m < sizeof name / sizeof *name; m++) {
        karat_selector_options o = options(name[m], 0);
        const karat_rows rows = rows_of(&x.f, &x.a, &shape, &x.plan, 0, 200, true, NULL);
        karat_selector *selector;
        karat_sequence *sequence;

        o.dense_layers = 1;
        assert_karat(karat_selector_create(&o, &selector, error));
        assert_karat(karat_sequence_open(selector, 0, &sequence, error));
        assert_karat(karat_sequence_append(sequence, 0, &rows, error));
        assert_karat(karat_sequence_end_prompt(sequence, error));
        assert_karat(karat_sequence_attend(sequence, 0, x.f.query, NULL, NULL, out[m != 0], error));
        karat_selector_destroy(selector);
        for (int i = 0; m != 0 && i < HEADS * D; i++)
            if (!(fabsf(out[0][i] - out[1][i]) <= 1e-5f))
                fail_msg("%s: element %d: %g, dense %g", name[m], i, (double)out[1][i], (double)out[0][i]);
    }
    close_one(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_refused),
        cmocka_unit_test(rows_are_refused),
        cmocka_unit_test(calls_out_of_order_are_refused),
        cmocka_unit_test(nan_rows_are_counted),
        cmocka_unit_test(a_dense_layer_has_no_lists),
        cmocka_unit_test(methods_can_stay_dense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
