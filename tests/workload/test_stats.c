/* Statistics by hand on a small trace; generators against the published figures they are made from. */
#include <math.h>

#include "files.h"

#include "workload/generate.h"
#include "workload/stats.h"

static void by_hand(void **state)
{
    kr_trace t;
    kr_trace_stats s;
    kr_err err;
    (void)state;

    must_read(&t, ".jsonl",
              "{\"session_id\":\"a\",\"arrival_time_ns\":0,\"sub_requests\":["
              "{\"input_toks\":100,\"output_toks\":10},{\"input_toks\":300,\"output_toks\":30},"
              "{\"input_toks\":200,\"output_toks\":0}]}\n"
              "{\"session_id\":\"b\",\"arrival_time_ns\":0,\"sub_requests\":[{\"input_toks\":1000,\"output_"
              "toks\":20}]}\n");
    assert_int_equal(kr_trace_stats_of(&t, &s, &err), KR_OK);
    assert_int_equal(s.sessions, 2);
    assert_int_equal(s.turns, 4);
    assert_true(s.turns_per_session.mean == 2.0 && s.turns_per_session.p50 == 2.0);
    assert_true(s.context.mean == 400.0 && s.context.p50 == 250.0);
    assert_true(s.session_context.mean == 600.0);
    assert_true(s.peak.mean == 650.0 && s.peak.max == 1000.0);
    assert_true(s.prefill_length.min == -100.0 && s.prefill_length.max == 200.0);
    assert_true(s.shrinking == 0.5 && s.without_output == 1);
    /* a: (min(100,300) + min(300,200)) / 600 = 0.5; b: 0 */
    assert_true(fabs(s.reuse_length_session - 0.25) < 1e-12);
    assert_true(fabs(s.reuse_cached_tokens - 300.0 / 1600.0) < 1e-12);
    assert_true(fabs(s.context_by_decode - (1000.0 + 9000.0 + 20000.0) / 60.0) < 1e-9);
    kr_trace_free(&t);
}

static void generators_match_the_table(void **state)
{
    static const char *const names[] = {"swe-pro", "swe-chat", "kvct-like"};
    (void)state;

    for (int i = 0; i < 3; i++) {
        const kr_trace_recipe *r = kr_trace_recipe_find(names[i]);
        kr_trace a, b;
        kr_trace_stats s;
        kr_err err;

        assert_non_null(r);
        assert_int_equal(kr_trace_generate(&a, r, 700, 3, &err), KR_OK);
        assert_int_equal(kr_trace_generate(&b, r, 700, 3, &err), KR_OK);
        assert_true(a.digest == b.digest);
        kr_trace_free(&b);
        assert_int_equal(kr_trace_generate(&b, r, 700, 4, &err), KR_OK);
        assert_true(a.digest != b.digest);
        assert_int_equal(kr_trace_stats_of(&a, &s, &err), KR_OK);
        assert_true(fabs(s.turns_per_session.p50 / r->turns - 1.0) < 0.10);
        assert_true(fabs(s.session_context.mean / r->session_context - 1.0) < 0.01);
        assert_true(s.peak.max <= r->peak);
        assert_true(fabs(s.prefill_length.p50 / r->prefill - 1.0) < 0.05);
        assert_true(fabs(s.decode.p50 / r->decode - 1.0) < 0.05);
        assert_true(fabs(s.reuse_length_session - r->reuse) < 0.05);
        assert_int_equal(a.format, KR_TRACE_SYNTHETIC);
        kr_trace_free(&a);
        kr_trace_free(&b);
    }
    assert_null(kr_trace_recipe_find("kvct"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(generators_match_the_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
