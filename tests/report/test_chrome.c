/* Traces parse as JSON, hold every span once with exact times, and join a micro-batch's spans
 * across tracks; sums and overlaps equal a count nanosecond by nanosecond. */
#include "base/json.h"
#include "report/chrome.h"
#include "report/stages.h"
#include "tests/test.h"

static const char *const kinds[] = {"qkv", "attend \"fast\""};

static kr_span span(uint64_t begin, uint64_t end, uint16_t kind, uint16_t micro_batch)
{
    return (kr_span){
        .begin_ns = begin, .end_ns = end, .op = UINT32_MAX, .kind = kind, .micro_batch = micro_batch};
}

static json_t *write_and_parse(const kr_chrome_trace *trace)
{
    kr_err err;
    FILE *out = tmpfile();

    assert_int_equal(kr_chrome_write(trace, out, &err), KR_OK);
    rewind(out);
    json_t *root = json_loadf(out, JSON_REJECT_DUPLICATES, NULL);
    fclose(out);
    assert_non_null(root);
    return root;
}

static const char *text_of(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text != NULL ? text : "";
}

static void spans_and_arrows(void **state)
{
    kr_span rank[4], device[4];
    kr_spans a = {.ring = rank, .capacity = 4}, b = {.ring = device, .capacity = 4};
    const kr_chrome_track tracks[] = {
        {"compute", "rank 0", &a}, {"memory node", "device 0", &b}, {"compute", "rank 1", &(kr_spans){0}}};
    const kr_chrome_trace trace = {tracks, 3, kinds, 2};
    unsigned spans = 0, starts = 0, ends = 0, names = 0;
    (void)state;

    for (uint64_t i = 0; i < 6; i++) /* the ring keeps the newest four: begins 3000 .. 6000 */
        kr_span_add(&a, span(1000 * (i + 1), 1000 * (i + 1) + 500, 0, (uint16_t)(i % 2)));
    assert_int_equal(kr_spans_count(&a), 4);
    assert_int_equal(kr_spans_at(&a, 0)->begin_ns, 3000);
    assert_int_equal(kr_spans_at(&a, 3)->begin_ns, 6000);
    kr_span_add(&b, span(3600, 4321, 1, 0));
    kr_span_add(&b, span(6600, 7000, 9, 1));

    json_t *root = write_and_parse(&trace), *events = json_object_get(root, "traceEvents");
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        const char *phase = text_of(e, "ph");
        spans += strcmp(phase, "X") == 0;
        starts += strcmp(phase, "s") == 0;
        ends += strcmp(phase, "f") == 0;
        names += strcmp(phase, "M") == 0;
        if (strcmp(text_of(e, "name"), kinds[1]) == 0) {
            assert_true(json_number_value(json_object_get(e, "ts")) == 0.6);
            assert_true(json_number_value(json_object_get(e, "dur")) == 0.721);
            assert_int_equal(json_integer_value(json_object_get(e, "pid")), 1);
            assert_int_equal(json_integer_value(json_object_get(e, "tid")), 1);
        }
    }
    assert_int_equal(names, 3 + 2); /* three tracks, two processes */
    assert_int_equal(spans, 6);
    /* Micro-batch 0: rank 3000, device 3600, rank 5000; micro-batch 1: rank 4000, 6000, device 6600. */
    assert_int_equal(starts, 3);
    assert_int_equal(ends, 3);
    json_decref(root);

    const kr_chrome_trace empty = {tracks + 2, 1, kinds, 2};
    json_decref(write_and_parse(&empty));
}

static void sums_and_overlaps(void **state)
{
    enum { SPANS = 16, TIME = 400 };
    kr_rng rng = test_rng("chrome");
    (void)state;

    for (int round = 0; round < 300; round++) {
        kr_span ring[2][SPANS];
        kr_spans sides[2] = {{.ring = ring[0], .capacity = SPANS}, {.ring = ring[1], .capacity = SPANS}};
        bool busy[2][TIME] = {{false}};
        kr_stage_sum sums[2] = {{0}}, want_sums[2] = {{0}};
        kr_overlap want = {0}, got;

        for (int s = 0; s < 2; s++) {
            const uint64_t count = kr_rng_below(&rng, SPANS + 1);
            for (uint64_t i = 0; i < count; i++) {
                const uint64_t begin = kr_rng_below(&rng, TIME / 2),
                               end = begin + kr_rng_below(&rng, TIME / 8);
                const uint16_t kind = (uint16_t)kr_rng_below(&rng, 3);
                kr_span_add(&sides[s], span(begin, end, kind, 0));
                for (uint64_t t = begin; t < end; t++)
                    busy[s][t] = true;
                if (kind < 2) {
                    want_sums[kind].busy_ns += end - begin;
                    want_sums[kind].spans++;
                }
            }
            kr_stages_add(&sides[s], sums, 2);
        }
        for (int t = 0; t < TIME; t++) {
            want.a_ns += busy[0][t];
            want.b_ns += busy[1][t];
            want.both_ns += busy[0][t] && busy[1][t];
        }
        assert_int_equal(kr_stages_overlap(&sides[0], &sides[1], &got, NULL), KR_OK);
        assert_memory_equal(&got, &want, sizeof got);
        assert_memory_equal(sums, want_sums, sizeof sums);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_and_arrows),
        cmocka_unit_test(sums_and_overlaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
