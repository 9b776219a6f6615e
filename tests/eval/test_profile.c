/* The fit of a profile on samples made from a known machine gives that machine back; its file reads as
 * it was written, and files that cannot be are refused; real points add up. */
#include <math.h>
#include <unistd.h>

#include "base/arena.h"
#include "eval/profile_study.h"
#include "tests/test.h"

enum { LAYERS = 10, SAMPLES_MAX = 64 };

#define MODEL "made up"
#define SEND(rows) (2e-6 + 0.5e-6 * (rows))
#define MESSAGE(rows) (6e-6 + 1e-6 * (rows))
#define SIGNAL 4e-6
#define LATENCY 11e-6

/* A kink at 4 rows: what a line through all rows would miss. */
static double compute_s(double rows) { return 50e-6 + 10e-6 * rows + (rows > 4 ? 20e-6 * (rows - 4) : 0); }
static double attend_s(const kr_load *l)
{
    return 5e-6 + 2e-6 * (double)l->rows + 9e-9 * (double)l->attended_tokens;
}
static double quest_s(const kr_load *l) { return attend_s(l) + 1e-9 * (double)l->context_tokens; }
static double append_s(const kr_load *l) { return 3e-6 + 1e-6 * (double)l->rows; }
static double score_s(const kr_load *l)
{
    return 1e-6 + 1e-6 * (double)l->rows + 2e-9 * (double)l->context_tokens;
}

/* Every second layer of a quest sample stays dense. */
static kr_profile_sample sample_of(uint32_t micro_batches, uint32_t rows, uint64_t context, uint64_t budget)
{
    kr_profile_sample s = {.layers = LAYERS, .micro_batches = micro_batches};
    const bool quest = budget != 0;

    snprintf(s.method, sizeof s.method, "%s", quest ? "quest" : "dense");
    s.dense.layers = quest ? LAYERS / 2 : LAYERS;
    s.selecting.layers = LAYERS - s.dense.layers;
    for (uint32_t mb = 0; mb < micro_batches; mb++) {
        s.rows[mb] = rows / micro_batches;
        s.dense.load[mb] = (kr_load){.rows = s.rows[mb],
                                     .context_tokens = s.rows[mb] * context,
                                     .attended_tokens = s.rows[mb] * context};
        s.selecting.load[mb] = s.dense.load[mb];
        s.selecting.load[mb].attended_tokens = s.rows[mb] * (budget < context ? budget : context);
    }
    return s;
}

/* Times of the sample; ops and stages factor times as long. */
static void fill_times(kr_profile_sample *s, double compute_factor, double device_factor)
{
    for (uint32_t mb = 0; mb < s->micro_batches; mb++) {
        const kr_load *dense = &s->dense.load[mb], *selecting = &s->selecting.load[mb];
        double *op = s->times.op, *stage = s->times.stage;

        op[KR_OP_EMBED] += compute_factor * 2e-6;
        op[KR_OP_HEAD] += compute_factor * compute_s(s->rows[mb]);
        op[KR_OP_SAMPLE] += compute_factor * 1e-6;
        for (int k = 0; k < 3; k++)
            op[(kr_op_kind[]){KR_OP_QKV, KR_OP_O_PROJ, KR_OP_FFN}[k]] += compute_factor * LAYERS *
                                                                         compute_s(s->rows[mb]);
        stage[KR_STAGE_APPEND] += device_factor * LAYERS * append_s(dense);
        stage[KR_STAGE_ATTEND] += device_factor * (s->dense.layers * attend_s(dense) +
                                                   s->selecting.layers * quest_s(selecting));
        stage[KR_STAGE_SCORE] += device_factor * s->selecting.layers * score_s(selecting);
    }
    for (int k = 0; k < KR_STAGES; k++)
        s->times.busy += s->times.stage[k];
}

static double sum_ops(const kr_profile_sample *s)
{
    double sum = 0;

    for (int k = 0; k < KR_OP_KINDS; k++)
        sum += s->times.op[k];
    return sum;
}

/* One side after the other, with or without sleepers. */
static kr_profile_sample serial(uint32_t rows, uint64_t context, uint64_t budget, bool sleeping)
{
    kr_profile_sample s = sample_of(1, rows, context, budget);

    fill_times(&s, 1, 1);
    s.times.op[KR_OP_SEND_QKV] = LAYERS * (SEND(rows) + (sleeping ? SIGNAL : 0));
    s.times.wait = s.times.busy + LAYERS * (MESSAGE(rows) + (sleeping ? SIGNAL + 2 * LATENCY : 0));
    s.times.step = sum_ops(&s) + s.times.wait + 7e-6;
    return s;
}

/* Both at once: ops take longer, messages found nobody asleep. */
static kr_profile_sample overlapped(uint32_t rows, uint64_t context, uint64_t budget)
{
    kr_profile_sample s = sample_of(2, rows, context, budget);

    fill_times(&s, 1.3, 1.6);
    s.times.op[KR_OP_SEND_QKV] = 2 * LAYERS * SEND(s.rows[0]);
    s.times.wait = 1e-3;
    s.times.step = sum_ops(&s) + s.times.wait + 7e-6;
    return s;
}

/* kind 0: in turn, 1: one side waiting for the other, 2: both at once. */
static uint32_t make_samples(kr_profile_sample *samples, int kind)
{
    static const uint64_t budgets[] = {0, 256, 512};
    uint32_t n = 0;

    for (uint32_t rows = 1; rows <= 8; rows *= 2)
        for (uint64_t context = 256; context <= 4096; context *= 4)
            for (int b = 0; b < 3; b++)
                samples[n++] = kind == 2 ? overlapped(2 * rows, context, budgets[b])
                                         : serial(rows, context, budgets[b], kind == 1);
    return n;
}

static void expect(const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got / want - 1) <= tolerance))
        fail_msg("%s: %g, not %g", what, got, want);
}

static double time_of(const kr_device_model *d, kr_op_kind op, const char *method, const kr_load *l)
{
    const kr_device_job job = {.op = op,
                               .model = MODEL,
                               .method = method,
                               .rows = l->rows,
                               .context_tokens = l->context_tokens,
                               .attended_tokens = l->attended_tokens};

    assert_true(kr_device_measured(d, &job));
    return (double)kr_device_op_time(d, &job).ns * 1e-9;
}

static void fit_known(kr_machine_mode_kind kind, kr_machine_mode *mode)
{
    static kr_profile_sample in_turn[SAMPLES_MAX], alone[SAMPLES_MAX], at_once[SAMPLES_MAX];
    kr_profile_samples samples = {.in_turn = in_turn, .alone = alone, .at_once = at_once};
    kr_err err;

    samples.in_turns = make_samples(in_turn, 0);
    if (kind == KR_MODE_AT_ONCE) {
        samples.alones = make_samples(alone, 1);
        samples.at_onces = make_samples(at_once, 2);
    }
    *mode = (kr_machine_mode){.kind = kind, .model = MODEL, .weights = "made up"};
    if (kr_profile_fit(&samples, mode, &err) != KR_OK)
        fail_msg("%s", err.text);
}

/* compute, device: how many times longer ops take than those of the samples in turn. */
static void compare_ops(const kr_machine_mode *mode, double compute, double device)
{
    for (uint64_t rows = 1; rows <= 8; rows++) {
        const kr_load l = {.rows = rows, .context_tokens = rows * 777, .attended_tokens = rows * 300};
        const double r = (double)rows, half = MESSAGE(r) / 2, c = compute * compute_s(r);

        expect("ffn", time_of(&mode->compute, KR_OP_FFN, NULL, &l), c, 1e-3);
        expect("qkv", time_of(&mode->compute, KR_OP_QKV, NULL, &l), c + SEND(r), 1e-3);
        expect("o_proj", time_of(&mode->compute, KR_OP_O_PROJ, NULL, &l), c + half, 1e-3);
        expect("attend", time_of(&mode->memory, KR_OP_ATTEND, "dense", &l), device * attend_s(&l) + half,
               1e-3);
        expect("quest", time_of(&mode->memory, KR_OP_ATTEND, "quest", &l), device * quest_s(&l) + half, 1e-3);
        expect("append", time_of(&mode->memory, KR_OP_APPEND, "quest", &l), device * append_s(&l), 1e-3);
        expect("score", time_of(&mode->memory, KR_OP_SCORE, "quest", &l), device * score_s(&l), 1e-3);
    }
}

static void a_known_machine_is_found(void **state)
{
    static kr_machine_mode mode;
    const kr_load one = {.rows = 1};
    (void)state;

    fit_known(KR_MODE_IN_TURN, &mode);
    compare_ops(&mode, 1, 1);
    expect("embed", time_of(&mode.compute, KR_OP_EMBED, NULL, &one), 2e-6 + 7e-6, 1e-3);
    assert_true(mode.signal_s == 0 && mode.memory.link_latency_s == 0);

    fit_known(KR_MODE_AT_ONCE, &mode);
    compare_ops(&mode, 1.3, 1.6);
    expect("embed", time_of(&mode.compute, KR_OP_EMBED, NULL, &one), 1.3 * 2e-6 + 7e-6 / 2, 1e-3);
    expect("signal", mode.signal_s, SIGNAL, 1e-6);
    expect("latency", mode.memory.link_latency_s, LATENCY, 1e-6);
}

/* ---- the file ---- */

static void write_text(char path[], const char *text)
{
    const int fd = mkstemp(path);

    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static void the_file_reads_as_written(void **state)
{
    char path[] = "/tmp/karat-machine-XXXXXX";
    static kr_machine m = {.cpu = "a CPU", .cores = 2, .modes = 1}, back;
    json_t *root;
    kr_err err;
    (void)state;

    fit_known(KR_MODE_AT_ONCE, &m.mode[0]);
    m.mode[0].compute_threads = m.mode[0].device_threads = 1;
    kr_device_model *side[] = {&m.mode[0].compute, &m.mode[0].memory};
    for (int i = 0; i < 2; i++) {
        snprintf(side[i]->name, sizeof side[i]->name, "side %d", i);
        side[i]->flops_f32 = 1e11;
        side[i]->flops_efficiency = side[i]->memory_efficiency = 1;
        side[i]->memory_bytes = 1e10;
        side[i]->memory_bytes_per_s = 1e10;
        side[i]->link_bytes_per_s = 1e12;
    }
    assert_int_equal(kr_machine_json(&m, &root, &err), KR_OK);
    char *text = json_dumps(root, JSON_REAL_PRECISION(17));
    json_decref(root);
    write_text(path, text);
    if (kr_machine_load(path, &back, &err) != KR_OK)
        fail_msg("%s", err.text);
    unlink(path);
    assert_string_equal(back.cpu, "a CPU");
    assert_int_equal(back.modes, 1);
    const kr_machine_mode *a = &m.mode[0], *b = kr_machine_find(&back, KR_MODE_AT_ONCE, MODEL);
    assert_non_null(b);
    assert_null(kr_machine_find(&back, KR_MODE_AT_ONCE, "another"));
    assert_null(kr_machine_find(&back, KR_MODE_IN_TURN, NULL));
    assert_true(a->signal_s == b->signal_s && a->remainder == b->remainder);
    assert_int_equal(a->compute.curves, b->compute.curves);
    assert_int_equal(a->memory.curves, b->memory.curves);
    for (uint64_t rows = 1; rows <= 12; rows++) {
        const kr_load l = {.rows = rows, .context_tokens = rows * 500, .attended_tokens = rows * 256};
        expect("qkv", time_of(&b->compute, KR_OP_QKV, NULL, &l), time_of(&a->compute, KR_OP_QKV, NULL, &l),
               1e-4);
        expect("quest", time_of(&b->memory, KR_OP_ATTEND, "quest", &l),
               time_of(&a->memory, KR_OP_ATTEND, "quest", &l), 1e-4);
    }

    /* Every cut of it, and some values, are refused with a line and leave what was there. */
    static const char *const breaks[][2] = {{"\"karat_machine\": 1", "\"karat_machine\": 2"},
                                            {"\"at-once\"", "\"at-twice\""},
                                            {"\"remainder\": 1", "\"remainder\": 0"},
                                            {"\"cores\": 2", "\"cores\": 0"},
                                            {"\"memory\": {\"karat_device\"", "\"memory\": {\"karat\""}};
    for (size_t i = 0; i < sizeof breaks / sizeof breaks[0]; i++) {
        char broken[] = "/tmp/karat-machine-XXXXXX";
        char *at = strstr(text, breaks[i][0]);

        assert_non_null(at);
        memcpy(at, breaks[i][1], strlen(breaks[i][1]));
        write_text(broken, text);
        assert_int_equal(kr_machine_load(broken, &back, &err), KR_E_FORMAT);
        assert_int_equal(back.modes, 1);
        unlink(broken);
        memcpy(at, breaks[i][0], strlen(breaks[i][0]));
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_known_machine_is_found),
        cmocka_unit_test(the_file_reads_as_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
