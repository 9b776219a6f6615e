/* What a study is given: think times that belong to (seed, session, turn), and shares of experts from
 * files, good and hostile. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "plan/shares.h"
#include "plan/study.h"
#include "workload/generate.h"

/* ---- think times ---- */

static void generate(kr_trace *trace)
{
    kr_err err;

    if (kr_trace_generate(trace, kr_trace_recipe_find("kvct-like"), 200, 1, &err) != KR_OK)
        fail_msg("%s", err.text);
}

static kr_plan_workload with(const kr_trace *trace, kr_plan_load load)
{
    kr_plan_workload w;
    kr_err err;

    if (kr_plan_workload_of(trace, &load, &w, &err) != KR_OK)
        fail_msg("%s", err.text);
    return w;
}

static void think_times_have_the_mean(void **state)
{
    kr_trace trace;
    kr_plan_workload a, b, c;
    uint64_t turns = 0, same = 0;
    double sum = 0.0, squares = 0.0;

    (void)state;
    generate(&trace);
    a = with(&trace, (kr_plan_load){.think = KR_THINK_MEAN, .think_s = 10, .seed = 3});
    b = with(&trace, (kr_plan_load){.think = KR_THINK_MEAN, .think_s = 20, .seed = 3});
    c = with(&trace, (kr_plan_load){.think = KR_THINK_MEAN, .think_s = 10, .seed = 4});
    for (uint32_t s = 0; s < a.view.sessions; s++)
        for (uint32_t t = 0; t < a.view.session[s].turns; t++) {
            const double x = (double)a.view.session[s].turn[t].think_ns * 1e-9;

            /* Common random numbers: another mean scales the same draws. */
            assert_true(fabs((double)b.view.session[s].turn[t].think_ns * 1e-9 - 2 * x) < 1e-6);
            same += c.view.session[s].turn[t].think_ns == a.view.session[s].turn[t].think_ns;
            sum += x;
            squares += x * x;
            turns++;
        }
    /* Exponential: the variance is the square of the mean. Six standard errors. */
    assert_true(turns > 1000 && same < turns / 100);
    assert_true(fabs(sum / (double)turns - 10) < 6 * 10 / sqrt((double)turns));
    assert_true(fabs(squares / (double)turns / 200 - 1) < 0.25);
    kr_plan_workload_free(&a);
    kr_plan_workload_free(&b);
    kr_plan_workload_free(&c);
    kr_trace_free(&trace);
}

static void bounds_of_thinking(void **state)
{
    kr_trace trace;
    kr_plan_workload w;
    kr_err err;

    (void)state;
    generate(&trace);
    assert_int_equal(
        kr_plan_workload_of(&trace, &(kr_plan_load){.think = KR_THINK_MEAN, .think_s = NAN}, &w, &err),
        KR_E_ARG);
    assert_int_equal(
        kr_plan_workload_of(&trace, &(kr_plan_load){.think = KR_THINK_MEAN, .think_s = -1}, &w, &err),
        KR_E_ARG);
    w = with(&trace, (kr_plan_load){.think = KR_THINK_MEAN, .think_s = 3600, .seed = 1});
    for (uint32_t s = 0; s < w.view.sessions; s++)
        for (uint32_t t = 0; t < w.view.session[s].turns; t++)
            assert_true(w.view.session[s].turn[t].think_ns <= UINT64_C(3600000000000));
    kr_plan_workload_free(&w);
    kr_trace_free(&trace);
}

/* ---- shares ---- */

/* Layers 0 and 2 are dense, 1 and 3 have 4 experts. */
static kr_model small_model(void)
{
    kr_model m = {.name = "small", .layers = 4, .moe = {.experts = 4, .active = 2}};

    m.layer[1].ffn = m.layer[3].ffn = KR_FFN_MOE;
    return m;
}

static kr_status load(const char *text, kr_expert_shares *shares, kr_err *err)
{
    const kr_model m = small_model();
    char path[] = "/tmp/karat-shares-XXXXXX";
    const int fd = mkstemp(path);
    kr_status status;

    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    status = kr_expert_shares_load(path, &m, shares, err);
    unlink(path);
    return status;
}

static void good(const char *text, bool by_layer, uint32_t row, const double want[4])
{
    kr_expert_shares s;
    kr_err err;

    if (load(text, &s, &err) != KR_OK)
        fail_msg("\"%s\": %s", text, err.text);
    assert_int_equal(s.by_layer, by_layer);
    for (int i = 0; i < 4; i++)
        assert_true(fabs(s.share[4 * row + i] - want[i]) < 1e-15);
    kr_expert_shares_free(&s);
}

static void bad(const char *text, const char *words)
{
    kr_expert_shares s;
    kr_err err = {0};

    assert_int_equal(load(text, &s, &err), KR_E_FORMAT);
    if (strstr(err.text, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

static void shares_from_files(void **state)
{
    static const double a[] = {0.1, 0.2, 0.3, 0.4}, b[] = {0.25, 0.25, 0.5, 0.0};

    (void)state;
    good("1,2,3,4\n", false, 0, a);
    good("10 , 20, 30,40", false, 0, a); /* counts, and no line end */
    good("[1, 2, 3, 4]", false, 0, a);
    good("1,2,3,4\r\n\n1,1,2,0\n", true, 1, a); /* two rows: the layers with experts */
    good("1,2,3,4\n1,1,2,0\n", true, 3, b);
    good("[[1,2,3,4],[1,1,2,0]]", true, 3, b);
    good("1,1,1,1\n1,2,3,4\n1,1,1,1\n1,1,2,0\n", true, 1, a); /* all layers */
}

static void hostile_files(void **state)
{
    (void)state;
    bad("", "0 rows");
    bad("1,2,3\n", "3 numbers");
    bad("1,2,3,4,5\n", "more than the 4 experts");
    bad("1,2,x,4\n", "number 3");
    bad("1,2,3 4\n", "number 3");
    bad("1,-2,3,4\n", "number 2");
    bad("1,nan,3,4\n", "number 2");
    bad("1,inf,3,4\n", "number 2");
    bad("0,0,0,0\n", "all 0");
    bad("1,1,1,1\n1,1,1,1\n1,1,1,1\n", "3 rows");
    bad("1,1,1,1\n1,1,1,1\n1,1,1,1\n1,1,1,1\n1,1,1,1\n", "more rows");
    bad("[1,2,\"x\",4]", "number 3");
    bad("[[1,2,3,4],5]", "numbers");
    bad("[]", "0 numbers");
    bad("[1,2", "");
}

/* A skewed layer costs more than an even one, in that layer alone, and EPLB takes most of it back. */
static void shares_change_the_step(void **state)
{
    const kr_scenario_options o = {.data = "data",
                                   .model = "deepseek-v3.2",
                                   .system = KR_SYSTEM_KARAT,
                                   .method = "native",
                                   .gpus = 16,
                                   .devices = 192,
                                   .ep = 16,
                                   .tp = 1,
                                   .micro_batches = 1,
                                   .factors = KR_PLAN_NO_FACTORS};
    kr_study_options study = {.steps_max = 5, .seed = 1, .seeds = 1};
    static double shares[61 * 256];
    kr_study_result even, one_layer, all, balanced, by_bytes;
    kr_plan_workload w;
    kr_scenario s;
    kr_trace trace;
    kr_err err;

    (void)state;
    generate(&trace);
    w = with(&trace, (kr_plan_load){0});
    assert_int_equal(kr_scenario_init(&s, &o, w.context_max, &err), KR_OK);
    for (int l = 0; l < 61; l++)
        for (int e = 0; e < 256; e++)
            shares[256 * l + e] = l != 10 ? 1 / 256.0 : e == 0 ? 0.125 : 0.875 / 255;
    study.expert_share = shares; /* of layer 0: even */
    assert_int_equal(kr_study_run(&s, &w, &study, 2000, &even, &err), KR_OK);
    study.share_by_layer = true;
    assert_int_equal(kr_study_run(&s, &w, &study, 2000, &one_layer, &err), KR_OK);
    study.expert_share = shares + 256 * 10;
    study.share_by_layer = false;
    assert_int_equal(kr_study_run(&s, &w, &study, 2000, &all, &err), KR_OK);
    study.balance_experts = true;
    assert_int_equal(kr_study_run(&s, &w, &study, 2000, &balanced, &err), KR_OK);
    {
        const double lost_one = (double)one_layer.first.elapsed_ns - (double)even.first.elapsed_ns;
        const double lost_all = (double)all.first.elapsed_ns - (double)even.first.elapsed_ns;

        if (!(lost_one > 0 && fabs(lost_all / lost_one - 58) < 0.1))
            fail_msg("one layer loses %.0f ns, all %.0f ns", lost_one, lost_all);
        assert_true((double)balanced.first.elapsed_ns < (double)all.first.elapsed_ns);
        s.hardware.all_to_all_by_bytes = true; /* which knows of no loaded rank */
        study.balance_experts = false;
        assert_int_equal(kr_study_run(&s, &w, &study, 2000, &by_bytes, &err), KR_OK);
        study.expert_share = shares;
        assert_int_equal(kr_study_run(&s, &w, &study, 2000, &even, &err), KR_OK);
        assert_true((double)by_bytes.first.elapsed_ns - (double)even.first.elapsed_ns < lost_all);
    }
    kr_scenario_free(&s);
    kr_plan_workload_free(&w);
    kr_trace_free(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(think_times_have_the_mean), cmocka_unit_test(bounds_of_thinking),
        cmocka_unit_test(shares_from_files),         cmocka_unit_test(hostile_files),
        cmocka_unit_test(shares_change_the_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
