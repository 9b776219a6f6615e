/* A method outside the tree: examples/my_method.c is compiled against the public headers, loaded, and does
 * through the API what its first comment says, in float64; chunks, threads, cuts change no bit; files
 * and tables that are wrong are refused with one line. */
#include <unistd.h>

#include "tests/api/sequence.h"

enum { HEADS = 4, KV = 2, D = 32, TOKENS = 700, PROMPT = 660, UNIT = 32, BUDGET = 192 };

static const kr_attention_shape shape = {.heads = HEADS,
                                         .kv_heads = KV,
                                         .key_dim = D,
                                         .value_dim = D,
                                         .kv_dtype = KR_BF16,
                                         .softmax_scale = 0.17677669f,
                                         .layers = 1};

static char folder[] = "/tmp/karat-outside-XXXXXX";

/* Compiles source (a path, or "-" and text) to folder/name. */
static const char *compile(const char *name, const char *path, const char *text)
{
    static char object[256];
    char source[256], command[1024];

    snprintf(object, sizeof object, "%s/%s.so", folder, name);
    snprintf(source, sizeof source, "%s/%s.c", folder, name);
    if (text != NULL) {
        FILE *f = fopen(source, "w");
        assert_non_null(f);
        fprintf(f, "#include <karat/method.h>\n#include <stddef.h>\n%s\n", text);
        fclose(f);
    }
    snprintf(command, sizeof command,
             "${CC:-cc} -std=c11 -shared -fPIC -O2 -Wall -Wextra -Werror -Iinclude %s -o %s",
             path != NULL ? path : source, object);
    fflush(stdout);
    assert_int_equal(system(command), 0);
    return object;
}

static void load_once(void)
{
    static bool loaded;
    const char *name = NULL;

    if (loaded)
        return;
    assert_karat(karat_method_load(compile("my_method", "examples/my_method.c", NULL), &name, error));
    assert_string_equal(name, "meankey");
    loaded = true;
}

static karat_selector *selector_of(uint32_t budget, uint32_t threads, karat_selector_plan *plan)
{
    const kr_method_config config = {.budget = budget, .unit = UNIT};
    karat_selector_options o = options_of("meankey", &config, &shape, TOKENS);
    karat_selector *selector;

    load_once();
    o.threads = threads;
    assert_karat(karat_selector_create(&o, &selector, error));
    *plan = (karat_selector_plan){.struct_size = sizeof *plan};
    assert_karat(karat_selector_plan_of(selector, 0, plan, error));
    return selector;
}

/* What the example's comment promises, by sorting in float64. */
static void oracle(const uint16_t *key, const float *query, uint32_t kv_head, uint32_t tokens, bool taken[])
{
    const uint32_t blocks = (tokens + UNIT - 1) / UNIT, recent = 64 / UNIT;
    double score[TOKENS / UNIT + 1];

    for (uint32_t b = 0; b < blocks; b++) {
        const uint32_t end = (b + 1) * UNIT < tokens ? (b + 1) * UNIT : tokens;
        score[b] = -HUGE_VAL;
        taken[b] = b == 0 || b + recent >= blocks;
        for (uint32_t h = 0; h < HEADS / KV; h++) {
            double dot = 0;

            for (uint32_t t = b * UNIT; t < end; t++)
                for (uint32_t c = 0; c < D; c++) {
                    float k;
                    kr_to_f32(KR_BF16, key + (t * KV + kv_head) * D + c, &k, 1);
                    dot += (double)k * (double)query[(kv_head * (HEADS / KV) + h) * D + c] / (end - b * UNIT);
                }
            score[b] = fmax(score[b], dot);
        }
    }
    for (uint32_t n = 1 + recent; n < BUDGET / UNIT; n++) {
        uint32_t best = 0;
        while (taken[best])
            best++;
        for (uint32_t b = best; b < blocks; b++)
            if (!taken[b] && score[b] > score[best])
                best = b;
        taken[best] = true;
    }
}

static void the_example_does_what_it_says(void **state)
{
    (void)state;
    kr_rng rng = test_rng("meankey");
    karat_selector_plan plan;
    karat_selector *selector = selector_of(BUDGET, 2, &plan);
    feed f = feed_random(&rng, &shape, TOKENS);
    kv_arrays a = kv_of(&f, &shape);
    karat_sequence *q;
    uint32_t count[KV], unit[KV * 8];
    karat_lists lists = {.struct_size = sizeof lists, .lists = KV, .stride = 8, .count = count, .unit = unit};

    assert_int_equal(plan.lists, KV);
    assert_int_equal(plan.unit_tokens, UNIT);
    assert_int_equal(plan.units_max, BUDGET / UNIT);
    assert_int_equal(plan.page_index_bytes, KV * (128 / UNIT) * 4 * D);
    assert_int_equal(plan.record_bytes, 0);
    assert_karat(karat_sequence_open(selector, 0, &q, error));
    karat_rows rows = rows_of(&f, &a, &shape, &plan, 0, PROMPT, true, NULL);
    rows.query = NULL;
    assert_karat(karat_sequence_append(q, 0, &rows, error));
    assert_karat(karat_sequence_end_prompt(q, error));
    for (uint32_t t = PROMPT; t < TOKENS; t++) {
        rows = rows_of(&f, &a, &shape, &plan, t, 1, false, NULL);
        assert_karat(karat_sequence_append(q, 0, &rows, error));
        assert_karat(karat_sequence_select(q, 0, rows.query, NULL, &lists, error));
        for (uint32_t h = 0; h < KV; h++) {
            bool want[TOKENS / UNIT + 1], got[TOKENS / UNIT + 1] = {false};

            oracle((const uint16_t *)(const void *)a.key, rows.query, h, t + 1, want);
            assert_int_equal(count[h], BUDGET / UNIT);
            for (uint32_t i = 0; i < count[h]; i++)
                got[unit[h * 8 + i]] = true;
            assert_memory_equal(got, want, (t + UNIT) / UNIT);
        }
    }
    karat_selector_destroy(selector);
    kv_free(&a);
    feed_free(&f);
}

/* Prompt in chunks, 30 rows more and a cut inside a block, decode: all outputs of the decode rows. */
static void run_once(const feed *f, const kv_arrays *a, uint32_t budget, uint32_t most, uint32_t threads,
                     bool cut, float *out)
{
    karat_selector_plan plan;
    karat_selector *selector = selector_of(budget, threads, &plan);
    karat_sequence *q;

    assert_karat(karat_sequence_open(selector, 0, &q, error));
    for (uint32_t t = 0, n; t < PROMPT; t += n) {
        n = PROMPT - t < most ? PROMPT - t : most;
        const karat_rows rows = rows_of(f, a, &shape, &plan, t, n, true, NULL);
        assert_karat(karat_sequence_append(q, 0, &rows, error));
    }
    if (cut) {
        const karat_rows rows = rows_of(f, a, &shape, &plan, 100, 30, true, NULL);
        assert_karat(karat_sequence_append(q, 0, &rows, error));
        assert_karat(karat_sequence_trim(q, PROMPT, error));
    }
    assert_karat(karat_sequence_end_prompt(q, error));
    for (uint32_t t = PROMPT; t < TOKENS; t++) {
        const karat_rows rows = rows_of(f, a, &shape, &plan, t, 1, false, NULL);

        if (t != PROMPT || !cut) /* the first query after a cut sees the index as the cut left it */
            assert_karat(karat_sequence_append(q, 0, &rows, error));
        assert_karat(
            karat_sequence_attend(q, 0, rows.query, NULL, NULL, out + (t - PROMPT) * HEADS * D, error));
        if (t == PROMPT && cut)
            assert_karat(karat_sequence_append(q, 0, &rows, error));
    }
    karat_selector_destroy(selector);
}

static void chunks_threads_and_cuts_change_nothing(void **state)
{
    (void)state;
    enum { OUT = (TOKENS - PROMPT) * HEADS * D };
    kr_rng rng = test_rng("outside");
    feed f = feed_random(&rng, &shape, TOKENS);
    kv_arrays a = kv_of(&f, &shape);
    static float want[OUT], got[OUT];

    run_once(&f, &a, BUDGET, PROMPT, 1, false, want);
    run_once(&f, &a, BUDGET, 1, 1, false, got);
    assert_memory_equal(want, got, sizeof want);
    run_once(&f, &a, BUDGET, 97, 3, false, got);
    assert_memory_equal(want, got, sizeof want);
    run_once(&f, &a, BUDGET, 97, 1, true, got);
    assert_memory_equal(want + HEADS * D, got + HEADS * D, sizeof want - sizeof(float) * HEADS * D);
    run_once(&f, &a, 1024, 300, 2, false, got); /* covers: dense */
    for (uint32_t t = PROMPT; t < TOKENS; t += 7)
        for (uint32_t h = 0; h < HEADS; h++) {
            double dense[D];
            float *k = session_memory(4ull * TOKENS * KV * D, 0),
                  *v = session_memory(4ull * TOKENS * KV * D, 0);
            kr_to_f32(KR_BF16, a.key, k, TOKENS * KV * D);
            kr_to_f32(KR_BF16, a.value, v, TOKENS * KV * D);
            oracle_attend(f.query + (t * HEADS + h) * D, k, v, KV, D, D, h / 2, NULL, t + 1,
                          (double)shape.softmax_scale, dense);
            for (uint32_t d = 0; d < D; d++)
                assert_true(fabs((double)got[((t - PROMPT) * HEADS + h) * D + d] - dense[d]) < 1e-5);
            free(k), free(v);
        }
    kv_free(&a);
    feed_free(&f);
}

/* A method with state, an end of the prompt and needs_queries; select answers out of order, twice, beyond. */
static const char careless[] =
    "static karat_status plan(const karat_method_shape *s, const karat_method_options *o, uint64_t context,\n"
    "                         karat_method_plan *p, karat_error *e)\n"
    "{ (void)s; (void)o; (void)context; (void)e; p->unit_tokens = 64; p->state_bytes = 12; return KARAT_OK; "
    "}\n"
    "static void append(const karat_method_call *c, uint32_t h)\n"
    "{ if (c->query != NULL) ((uint32_t *)karat_state(c, h))[0] += (uint32_t)(c->tokens - c->first); }\n"
    "static void end_prompt(const karat_method_call *c, uint32_t h)\n"
    "{ ((uint32_t *)karat_state(c, h))[1] = (uint32_t)c->tokens + c->plan->unit_tokens; }\n"
    "static uint32_t choose(const karat_method_call *c, uint32_t list, uint32_t *unit)\n"
    "{ const uint32_t *s = karat_state(c, list * c->shape->kv_heads / c->shape->heads);\n"
    "  unit[0] = s[0] == c->tokens && s[1] > c->plan->unit_tokens ? 3 : 9; unit[1] = 1; unit[2] = 3;\n"
    "  unit[3] = 4000000000u; return 4; }\n"
    "KARAT_METHOD_EXPORT const karat_method_table karat_method = {.abi = KARAT_METHOD_ABI, .version = 1,\n"
    "    .name = \"careless\", .summary = \"s\", .lists = KARAT_LIST_PER_HEAD, .needs_queries = 1, .plan = "
    "plan,\n"
    "    .append = append, .end_prompt = end_prompt, .select = choose};\n";

static void state_and_tidy_lists(void **state)
{
    (void)state;
    kr_rng rng = test_rng("careless");
    const kr_method_config config = {.budget = 0};
    karat_selector_options o = options_of("careless", &config, &shape, TOKENS);
    karat_selector_plan plan = {.struct_size = sizeof plan};
    feed f = feed_random(&rng, &shape, TOKENS);
    kv_arrays a = kv_of(&f, &shape);
    uint32_t count[HEADS], unit[HEADS * 11];
    karat_lists lists = {
        .struct_size = sizeof lists, .lists = HEADS, .stride = 11, .count = count, .unit = unit};
    karat_selector *selector;
    karat_sequence *q;

    assert_karat(karat_method_load(compile("careless", NULL, careless), NULL, error));
    assert_karat(karat_selector_create(&o, &selector, error));
    assert_karat(karat_selector_plan_of(selector, 0, &plan, error));
    assert_int_equal(plan.needs_queries, 1);
    assert_karat(karat_sequence_open(selector, 0, &q, error));
    karat_rows rows = rows_of(&f, &a, &shape, &plan, 0, 500, true, NULL);
    rows.query = NULL;
    assert_int_equal(karat_sequence_append(q, 0, &rows, NULL), KARAT_E_ARG);
    rows.query = f.query;
    assert_karat(karat_sequence_append(q, 0, &rows, error));
    assert_karat(karat_sequence_end_prompt(q, error));
    assert_karat(karat_sequence_select(q, 0, f.query, NULL, &lists, error));
    for (uint32_t l = 0; l < HEADS; l++) {
        assert_int_equal(count[l], 2);
        assert_int_equal(unit[l * 11], 1);
        assert_int_equal(unit[l * 11 + 1], 3);
    }
    assert_int_equal(karat_sequence_trim(q, 400, NULL), KARAT_E_UNSUPPORTED); /* state cannot be cut */
    karat_selector_destroy(selector);
    kv_free(&a);
    feed_free(&f);
}

static void refused(karat_status want, const char *says, const char *path)
{
    karat_error error = {0};
    const char *name = "untouched";

    const karat_status got = karat_method_load(path, &name, &error);
    if (got != want || strstr(error.text, says) == NULL || strchr(error.text, '\n') != NULL)
        fail_msg("%s: %s \"%s\", wanted %s \"%s\"", path, karat_status_name(got), error.text,
                 karat_status_name(want), says);
    assert_string_equal(name, "untouched");
}

static void wrong_files_are_refused(void **state)
{
    (void)state;
    static const char table[] =
        "static karat_status plan(const karat_method_shape *s, const karat_method_options *o, uint64_t c,\n"
        "    karat_method_plan *p, karat_error *e) { (void)s; (void)o; (void)c; (void)p; (void)e; return "
        "KARAT_OK; }\n"
        "static uint32_t choose(const karat_method_call *c, uint32_t l, uint32_t *u)\n"
        "{ (void)c; (void)l; (void)u; return 0; }\n"
        "KARAT_METHOD_EXPORT const karat_method_table karat_method = {.abi = %s, .version = 1, .name = %s,\n"
        "    .summary = \"s\", .plan = plan, .select = %s};\n";
    static const struct {
        const char *abi, *name, *select, *says;
        karat_status status;
    } wrong[] = {
        {"KARAT_METHOD_ABI + 1", "\"x\"", "choose", "method ABI 2", KARAT_E_VERSION},
        {"0", "\"x\"", "choose", "method ABI 0", KARAT_E_VERSION},
        {"KARAT_METHOD_ABI", "NULL", "choose", "lacks a name", KARAT_E_FORMAT},
        {"KARAT_METHOD_ABI", "\"x\"", "0 ? choose : NULL", "lacks a name", KARAT_E_FORMAT},
        {"KARAT_METHOD_ABI", "\"\"", "choose", "method name", KARAT_E_FORMAT},
        {"KARAT_METHOD_ABI", "\"sixteen-letters-\"", "choose", "method name", KARAT_E_FORMAT},
        {"KARAT_METHOD_ABI", "\"a/b\"", "choose", "method name", KARAT_E_FORMAT},
        {"KARAT_METHOD_ABI", "\"quest\"", "choose", "already", KARAT_E_EXISTS},
        {"KARAT_METHOD_ABI", "\"native\"", "choose", "already", KARAT_E_EXISTS},
        {"KARAT_METHOD_ABI", "\"meankey\"", "choose", "already", KARAT_E_EXISTS},
    };
    char name[32], text[2048];

    load_once();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(text, sizeof text, table, wrong[i].abi, wrong[i].name, wrong[i].select);
        snprintf(name, sizeof name, "wrong%zu", i);
        refused(wrong[i].status, wrong[i].says, compile(name, NULL, text));
    }
    refused(KARAT_E_NOT_FOUND, "no symbol karat_method", compile("empty", NULL, "extern int nothing;"));
    refused(KARAT_E_NOT_FOUND, "No such file", "/nowhere/method.so");
    refused(KARAT_E_NOT_FOUND, "cannot load a method", "Makefile");
    assert_int_equal(karat_method_load(NULL, NULL, NULL), KARAT_E_ARG);
}

/* What a method asks for in its plan is bounded; what it refuses reaches the user with its own line. */
static void wrong_plans_are_refused(void **state)
{
    (void)state;
    static const char answers[] =
        "#include <string.h>\n"
        "static karat_status plan(const karat_method_shape *s, const karat_method_options *o, uint64_t c,\n"
        "    karat_method_plan *p, karat_error *e)\n"
        "{ (void)s; (void)c; (void)e; p->unit_tokens = o->unit; p->unit_bytes = o->parameter[0];\n"
        "  p->state_bytes = (uint64_t)o->parameter[1] << 32; p->tokens_max = o->budget;\n"
        "  p->unit_flops = o->parameter[2]; memcpy(e->text, \"two\\nlines\", 10);\n"
        "  return (karat_status)-(int)o->mode; }\n"
        "static uint64_t scratch(const karat_method_shape *s, const karat_method_plan *p, uint64_t c)\n"
        "{ (void)s; (void)c; return -p->unit_flops; }\n"
        "static uint32_t choose(const karat_method_call *c, uint32_t l, uint32_t *u)\n"
        "{ (void)c; (void)l; (void)u; return 0; }\n"
        "KARAT_METHOD_EXPORT const karat_method_table karat_method = {.abi = KARAT_METHOD_ABI, .version = "
        "1,\n"
        "    .name = \"answers\", .summary = \"s\", .plan = plan, .select = choose,\n"
        "    .scratch_bytes = scratch};\n";
    static const struct {
        kr_method_config config;
        karat_status status;
    } wrong[] = {{{.unit = 3}, KARAT_E_SHAPE},
                 {{.unit = 256}, KARAT_E_SHAPE},
                 {{.unit = 0}, KARAT_E_SHAPE},
                 {{.unit = 16, .budget = 24}, KARAT_E_LIMIT},
                 {{.unit = 16, .parameter = {UINT32_MAX}}, KARAT_E_LIMIT},
                 {{.unit = 16, .parameter = {0, UINT32_MAX}}, KARAT_E_LIMIT},
                 {{.unit = 16, .parameter = {0, 0, 1}}, KARAT_E_LIMIT}, /* scratch of 2^64 - 1 bytes */
                 {{.unit = 16, .mode = 3}, KARAT_E_UNSUPPORTED},
                 {{.unit = 16, .mode = (uint32_t)-7}, KARAT_E_INTERNAL}};
    karat_selector *selector = NULL;

    assert_karat(karat_method_load(compile("answers", NULL, answers), NULL, error));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        karat_selector_options o = options_of("answers", &wrong[i].config, &shape, TOKENS);
        karat_error error = {0};

        assert_int_equal(karat_selector_create(&o, &selector, &error), wrong[i].status);
        assert_non_null(strstr(error.text, "answers: "));
        assert_null(strchr(error.text, '\n'));
        assert_null(selector);
    }
    karat_selector_options o = options_of("meankey", &(kr_method_config){.budget = 32, .unit = 32}, &shape,
                                          TOKENS);
    karat_error error = {0};
    load_once();
    assert_int_equal(karat_selector_create(&o, &selector, &error), KARAT_E_LIMIT);
    assert_string_equal(error.text, "meankey: layer 0: budget 32, must be 96 to 262144 tokens");
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    char command[256];
    (void)state;

    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_does_what_it_says),
        cmocka_unit_test(chunks_threads_and_cuts_change_nothing),
        cmocka_unit_test(state_and_tidy_lists),
        cmocka_unit_test(wrong_files_are_refused),
        cmocka_unit_test(wrong_plans_are_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
