/* Verdicts on made-up claims, the paper's figures rederived, batches that threads cannot change, and a
 * search whose answer is checked against its own points. Runs from the root of the tree, for data/. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <math.h>
#include <sqlite3.h>
#include <cmocka.h>

#include "plan/rederive.h"
#include "plan/reproduce.h"
#include "plan/search.h"
#include "workload/generate.h"

static kr_verdict of(double low, double high, double pivot, double a, double b)
{
    const kr_claim c = {.low = low, .high = high, .pivot = pivot, .value = {a, b}, .values = 2};

    return kr_claim_verdict(&c);
}

static void verdicts(void **state)
{
    const kr_claim empty = {.low = 1, .high = 2};
    const kr_claim no_figure = {.low = NAN, .high = NAN, .value = {1}, .values = 1};
    (void)state;

    assert_int_equal(of(2, 6, 1, 1.81, 6.59), KR_CLAIM_HOLDS);
    assert_int_equal(of(2, 6, 1, 1.79, 5), KR_CLAIM_SIGN);
    assert_int_equal(of(2, 6, 1, 0.99, 5), KR_CLAIM_MISSED);
    assert_int_equal(of(0.1, 0.6, 1, 0.7, 0.2), KR_CLAIM_SIGN);
    assert_int_equal(of(0.1, 0.6, 1, 1.1, 0.2), KR_CLAIM_MISSED);
    assert_int_equal(of(-32, -8, 0, -35, -7.3), KR_CLAIM_HOLDS);
    assert_int_equal(of(-32, -8, 0, -1, -9), KR_CLAIM_SIGN);
    assert_int_equal(of(-32, -8, 0, 1, -9), KR_CLAIM_MISSED);
    assert_int_equal(of(-1, 2, 0, 3, 1), KR_CLAIM_SIGN);
    assert_int_equal(of(-1, 2, 0, 3, 4), KR_CLAIM_MISSED);
    assert_int_equal(of(250, 340, NAN, 412, 256), KR_CLAIM_MISSED); /* counts have no sign */
    assert_int_equal(of(250, 340, NAN, 300, 256), KR_CLAIM_HOLDS);
    assert_int_equal(kr_claim_verdict(&empty), KR_CLAIM_CANNOT_SAY);
    assert_int_equal(kr_claim_verdict(&no_figure), KR_CLAIM_CANNOT_SAY);
}

static void figures_of_the_paper(void **state)
{
    kr_rederived list[KR_REDERIVED_MAX];
    unsigned count = 0;
    kr_err err;
    (void)state;

    if (kr_rederive("data", list, &count, &err) != KR_OK)
        fail_msg("%s", err.text);
    assert_true(count >= 37);
    for (unsigned i = 0; i < count; i++)
        if (!(fabs(list[i].ours / list[i].paper - 1) <= list[i].tolerance))
            fail_msg("%s: %g, the paper has %g", list[i].what, list[i].ours, list[i].paper);
}

static kr_plan_workload small_workload(void)
{
    kr_plan_workload w;
    kr_trace trace;
    kr_err err;

    assert_int_equal(kr_trace_generate(&trace, kr_trace_recipe_find("swe-pro"), 60, 5, &err), KR_OK);
    assert_int_equal(kr_plan_workload_of(&trace, &(kr_plan_load){0}, &w, &err), KR_OK);
    kr_trace_free(&trace);
    return w;
}

static kr_scenario_options base_options(void)
{
    return (kr_scenario_options){.data = "data",
                                 .model = "minimax-m3",
                                 .system = KR_SYSTEM_KARAT,
                                 .method = "native",
                                 .gpus = 8,
                                 .devices = 32,
                                 .ep = 8,
                                 .tp = 1,
                                 .micro_batches = 2,
                                 .factors = KR_PLAN_NO_FACTORS};
}

static const kr_study_options quick = {
    .policy = KR_POLICY_OFMS, .rebalance = true, .steps_max = 12, .seed = 1, .seeds = 1, .slo_s = 0.1};

static void threads_do_not_change_results(void **state)
{
    kr_plan_workload w = small_workload();
    kr_study_job a[6], b[6];
    kr_err err;
    (void)state;

    for (int i = 0; i < 6; i++) {
        a[i] = (kr_study_job){.scenario = base_options(), .study = quick, .workload = &w, .sessions = 40};
        a[i].study.seed = (uint64_t)i;
        a[i].skew = i >= 3 ? 0.7 : 0.0;
        a[i].breakdown = i % 2 == 1;
    }
    memcpy(b, a, sizeof a);
    assert_int_equal(kr_study_batch(a, 6, 1, NULL, &err), KR_OK);
    assert_int_equal(kr_study_batch(b, 6, 2, NULL, &err), KR_OK);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(a[i].status, KR_OK);
        assert_true(a[i].result.first.digest == b[i].result.first.digest);
        assert_memory_equal(a[i].share, b[i].share, sizeof a[i].share);
    }
    assert_true(a[0].result.first.digest != a[1].result.first.digest);
    assert_true(a[1].share[KR_OP_EXPERTS] > 0.0 && a[1].share[KR_OP_EXPERTS] < 1.0);
    kr_plan_workload_free(&w);
}

static void a_search_and_its_store(void **state)
{
    kr_plan_workload w = small_workload();
    const kr_search_options options = {.base = base_options(),
                                       .study = quick,
                                       .workload = &w,
                                       .watts = 17000,
                                       .tp_max = 1,
                                       .threads = 1,
                                       .swing = 0.5};
    char path[] = "/tmp/karat-plan-XXXXXX";
    sqlite3_stmt *query;
    sqlite3 *db;
    kr_search s;
    kr_err err;
    (void)state;

    if (kr_search_run(&options, &s, &err) != KR_OK)
        fail_msg("%s", err.text);
    assert_true(s.points >= 4 && s.best < s.points && s.pareto[s.best]);
    for (uint32_t i = 0; i < s.points; i++) {
        assert_true(s.pareto[i] == (s.why[i][0] == '\0')); /* a reason for each that lost */
        if (s.job[i].status == KR_OK && s.job[i].tdp_w <= options.watts)
            assert_true(s.job[i].result.tokens_per_s_per_w <= s.job[s.best].result.tokens_per_s_per_w);
    }
    close(mkstemp(path));
    if (kr_search_store(&s, path, "swe-pro", &err) != KR_OK)
        fail_msg("%s", err.text);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_prepare_v2(db, "SELECT count(*) FROM runs WHERE model = 'minimax-m3'", -1, &query, NULL),
        SQLITE_OK);
    assert_int_equal(sqlite3_step(query), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int64(query, 0), s.points);
    sqlite3_finalize(query);
    sqlite3_close(db);
    unlink(path);
    kr_search_free(&s);
    kr_plan_workload_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdicts),
        cmocka_unit_test(figures_of_the_paper),
        cmocka_unit_test(threads_do_not_change_results),
        cmocka_unit_test(a_search_and_its_store),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
