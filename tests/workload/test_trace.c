/* Readers of traces: what they take from each format, and what they refuse. */
#include "files.h"

#include "workload/read.h"

#define KVCT_HEAD "{\"id\":\"s\",\"models\":[],\"block_size\":64,\"tool_tokens\":100,\"system_tokens\":28,"

static void kvct_turns_and_reuse(void **state)
{
    kr_trace t;
    (void)state;

    must_read(&t, ".json",
              KVCT_HEAD
              "\"requests\":["
              "{\"t\":0.0,\"type\":\"n\",\"in\":200,\"out\":7,\"hash_ids\":[1,2,3],\"api_time\":1.5},"
              "{\"t\":2.25,\"in\":330,\"out\":9,\"hash_ids\":[1,2,3,4,5],\"think_time\":0.75},"
              "{\"t\":9,\"in\":192,\"out\":1,\"hash_ids\":[1,2,9]}],\"totals\":{\"x\":[1,{\"y\":2}]}}");
    assert_int_equal(t.format, KR_TRACE_KVCT);
    assert_int_equal(t.sessions, 1);
    assert_int_equal(t.turns, 3);
    assert_string_equal(t.session[0].id, "s");
    assert_int_equal(t.session[0].block_tokens, 64);
    assert_int_equal(t.session[0].prefix_tokens, 128);
    assert_int_equal(t.turn[0].api_us, 1500000);
    assert_true(t.turn[0].think_us == KR_TRACE_NONE);
    assert_int_equal(t.turn[1].arrival_us, 2250000);
    assert_int_equal(t.turn[1].think_us, 750000);
    assert_int_equal(t.turn[0].cached_tokens, 0);
    assert_int_equal(t.turn[1].cached_tokens, 192);
    assert_int_equal(t.turn[2].cached_tokens, 128); /* the prefix, though three ids are left of four */
    assert_int_equal(t.turn[1].kept_blocks, 3);
    assert_int_equal(t.turn[1].runs, 1);
    assert_int_equal(t.run[t.turn[1].first_run].first, 4);
    assert_int_equal(t.run[t.turn[1].first_run].count, 2);
    kr_trace_free(&t);
}

static void kvct_sub_agents_follow_their_parent(void **state)
{
    kr_trace t;
    (void)state;

    must_read(&t, ".json",
              KVCT_HEAD
              "\"requests\":[{\"t\":0,\"in\":64,\"out\":1,\"hash_ids\":[1]},"
              "{\"t\":5.5,\"type\":\"subagent\",\"agent_id\":\"a1\",\"tool_tokens\":3,\"requests\":["
              "{\"t\":0.0,\"in\":128,\"out\":2,\"hash_ids\":[7,8]},"
              "{\"t\":1.0,\"in\":192,\"out\":3,\"hash_ids\":[7,8,9]}]},"
              "{\"t\":8,\"in\":128,\"out\":4,\"hash_ids\":[1,2]}]}");
    assert_int_equal(t.sessions, 2);
    assert_int_equal(t.session[0].turns, 2);
    assert_true(t.session[0].parent == KR_TRACE_NO_PARENT);
    assert_int_equal(t.turn[1].cached_tokens, 64); /* the agent's turns lie between, but not in it */
    assert_string_equal(t.session[1].id, "s/a1");
    assert_int_equal(t.session[1].parent, 0);
    assert_int_equal(t.session[1].start_us, 5500000);
    assert_int_equal(t.session[1].prefix_tokens, 3);
    assert_int_equal(t.turn[t.session[1].first_turn].arrival_us, 0);
    assert_int_equal(t.turn[t.session[1].first_turn + 1].cached_tokens, 128);
    kr_trace_free(&t);
}

static void ids_have_64_bits(void **state)
{
    kr_trace t;
    (void)state;

    must_read(&t, ".json",
              KVCT_HEAD
              "\"requests\":["
              "{\"t\":0,\"in\":64,\"out\":1,\"hash_ids\":[4294967297]},"
              "{\"t\":1,\"in\":64,\"out\":1,\"hash_ids\":[1]},"
              "{\"t\":2,\"in\":128,\"out\":1,\"hash_ids\":[9223372036854775808,18446744073709551615]},"
              "{\"t\":3,\"in\":192,\"out\":1,"
              "\"hash_ids\":[9223372036854775808,18446744073709551615,0]}]}");
    assert_int_equal(t.turn[1].cached_tokens, 0); /* 2^32 + 1 is not 1 */
    assert_true(t.run[t.turn[2].first_run].first == UINT64_C(1) << 63);
    assert_true(t.run[t.turn[2].first_run + 1].first == UINT64_MAX);
    assert_int_equal(t.turn[3].kept_blocks, 2);
    assert_true(t.run[t.turn[3].first_run].first == 0); /* no run wraps past the largest id */
    kr_trace_free(&t);
}

static void kvct_refusals(void **state)
{
    (void)state;
    must_refuse(".json", "", KR_E_FORMAT, "empty");
    must_refuse(".json", KVCT_HEAD "\"requests\":[{\"t\":0,\"in\":64,\"out\":1,\"hash_ids\":[1", KR_E_FORMAT,
                "cut off");
    must_refuse(".json", KVCT_HEAD "\"requests\":[{\"t\":0,\"in\":64,\"out\":1,\n\"hash_ids\":[1,2]}]}",
                KR_E_FORMAT, ":2: 2 ids for 64 input tokens");
    must_refuse(".json", KVCT_HEAD "\"requests\":[{\"t\":0,\"in\":128,\"out\":1,\"hash_ids\":[5,5]}]}",
                KR_E_FORMAT, "twice");
    must_refuse(".json",
                KVCT_HEAD "\"requests\":[{\"t\":3,\"in\":1,\"out\":1},{\"t\":2,\"in\":1,\"out\":1}]}",
                KR_E_FORMAT, "sort them by time");
    must_refuse(".json",
                KVCT_HEAD "\"requests\":[{\"t\":0,\"in\":64,\"out\":1,\"hash_ids\":[18446744073709551616]}]}",
                KR_E_FORMAT, "below 2^64");
    must_refuse(".json", KVCT_HEAD "\"requests\":[{\"t\":0,\"in\":64,\"out\":1,\"hash_ids\":[-1]}]}",
                KR_E_FORMAT, "below 2^64");
    must_refuse(".json", KVCT_HEAD "\"requests\":[{\"t\":0,\"in\":-5,\"out\":1}]}", KR_E_FORMAT,
                "in must be");
    must_refuse(".json", KVCT_HEAD "\"requests\":[{\"t\":0,\"in\":300000000,\"out\":1}]}", KR_E_FORMAT,
                "in must be");
    must_refuse(".json", KVCT_HEAD "\"requests\":[]}", KR_E_FORMAT, "no turn");
    must_refuse(".json", "{\"id\":\"s\",\"block_size\":0,\"requests\":[]}", KR_E_FORMAT, "above 0");
    must_refuse(".json", "{\"id\":\"s\",\"requests\":[{\"t\":0,\"in\":1,\"out\":1}]}", KR_E_FORMAT,
                "block_size must come before");
    must_refuse(".json", "{\"a\":1}", KR_E_FORMAT, "none of the keys");
    must_refuse(".json", "\x1f\x8b\x08", KR_E_FORMAT, "cut off");
    must_refuse(".csv", "\x1f\x8b\x08", KR_E_UNSUPPORTED, "gunzip");
}

static void deep_nesting_is_refused(void **state)
{
    char text[4096] = "{\"a\":";
    (void)state;

    memset(text + 5, '[', 4000);
    must_refuse(".json", text, KR_E_LIMIT, "nested deeper");
}

static void run_length_form_loses_nothing(void **state)
{
    kr_trace a, b;
    char path[64], *first = NULL, *second = NULL;
    size_t bytes[2];
    FILE *out;
    kr_err err;
    (void)state;

    must_read(
        &a, ".json",
        KVCT_HEAD
        "\"requests\":[{\"t\":0.123456,\"in\":200,\"out\":7,\"hash_ids\":[1,2,3]},"
        "{\"t\":1,\"type\":\"subagent\",\"requests\":[{\"t\":0,\"in\":70,\"out\":1,\"hash_ids\":[50]}]},"
        "{\"t\":2,\"in\":320,\"out\":0,\"hash_ids\":[1,2,18446744073709551615,0,77]}]}");
    out = open_memstream(&first, &bytes[0]);
    assert_int_equal(kr_trace_write_runs(&a, out, &err), KR_OK);
    fclose(out);
    put_file(path, ".jsonl", first);
    if (kr_trace_read(&b, path, 0, &err) != KR_OK)
        fail_msg("%s", err.text);
    unlink(path);
    out = open_memstream(&second, &bytes[1]);
    assert_int_equal(kr_trace_write_runs(&b, out, &err), KR_OK);
    fclose(out);
    assert_string_equal(first, second);
    assert_true(a.digest == b.digest);
    assert_int_equal(a.runs, b.runs);
    assert_memory_equal(a.turn, b.turn, a.turns * sizeof *a.turn);
    assert_memory_equal(a.run, b.run, a.runs * sizeof *a.run);
    assert_memory_equal(a.session, b.session, a.sessions * sizeof *a.session);
    free(first);
    free(second);
    kr_trace_free(&a);
    kr_trace_free(&b);
    must_refuse(".jsonl", "{\"karat_trace\":2}\n", KR_E_VERSION, "version 2");
    must_refuse(".jsonl", "{\"karat_trace\":1}\n", KR_E_FORMAT, "no session");
    must_refuse(".jsonl",
                "{\"karat_trace\":1}\n{\"id\":\"a\",\"block\":64,\"turns\":[[0,64,1,null,null,0,1,[]]]}\n",
                KR_E_FORMAT, "keeps more blocks");
}

static void mooncake(void **state)
{
    kr_trace t;
    (void)state;

    must_read(&t, ".jsonl",
              "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [3, 4]}\n"
              "{\"timestamp\": 27000, \"input_length\": 512, \"output_length\": 6, \"hash_ids\": [3]}\n");
    assert_int_equal(t.format, KR_TRACE_MOONCAKE);
    assert_int_equal(t.sessions, 2);
    assert_int_equal(t.session[1].start_us, 27000000);
    assert_int_equal(t.turn[1].cached_tokens, 0);
    kr_trace_free(&t);
    must_refuse(".jsonl",
                "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [3]}\n",
                KR_E_FORMAT, "is the block size another?");
    must_refuse(".jsonl",
                "{\"timestamp\": 9, \"input_length\": 1, \"output_length\": 5, \"hash_ids\": [3]}\n"
                "{\"timestamp\": 8, \"input_length\": 1, \"output_length\": 5, \"hash_ids\": [3]}\n",
                KR_E_FORMAT, ":2: a request comes before");
    must_refuse(".jsonl", "{\"timestamp\": 9, \"input_length\": 1}\n", KR_E_FORMAT, "needs timestamp");
}

static void llmservingsim(void **state)
{
    kr_trace t;
    (void)state;

    must_read(
        &t, ".jsonl",
        "{\"input_toks\": 3, \"output_toks\": 1, \"arrival_time_ns\": 4000, \"input_tok_ids\": [1, 2, 3]}\n"
        "{\"session_id\": \"x\", \"arrival_time_ns\": 1000, \"sub_requests\": ["
        "{\"input_toks\": 10, \"output_toks\": 2, \"tool_duration_ns\": 5000},"
        "{\"input_toks\": 15, \"output_toks\": 4, \"tool_duration_ns\": 0}]}\n");
    assert_int_equal(t.format, KR_TRACE_LSS);
    assert_int_equal(t.sessions, 2);
    assert_string_equal(t.session[1].id, "x");
    assert_int_equal(t.turn[2].think_us, 5);
    assert_int_equal(t.turn[2].cached_tokens, 10);
    kr_trace_free(&t);
    must_refuse(".jsonl",
                "{\"input_toks\": 3, \"output_toks\": 1, \"arrival_time_ns\": 4, \"input_tok_ids\": [1]}\n",
                KR_E_FORMAT, "not as many");
    must_refuse(".jsonl", "{\"session_id\": \"x\", \"arrival_time_ns\": 1, \"sub_requests\": []}\n",
                KR_E_FORMAT, "no turn");
    must_refuse(".jsonl",
                "{\"session_id\": \"x\", \"arrival_time_ns\": 1, \"sub_requests\": "
                "[{\"input_toks\":1,\"output_toks\":1}]}\n"
                "{\"session_id\": \"x\", \"arrival_time_ns\": 1, \"sub_requests\": "
                "[{\"input_toks\":1,\"output_toks\":1}]}\n",
                KR_E_EXISTS, "same id x");
}

static void copilot(void **state)
{
    kr_trace t;
    (void)state;

    must_read(&t, ".jsonl",
              "{\"session_id\":\"c\",\"date\":\"2026-01-02\",\"turns\":[{\"llm_calls\":["
              "{\"timestamp\":\"2026-01-02T03:04:05.500Z\",\"duration_ms\":2000,\"model\":\"m\","
              "\"tokens\":{\"prompt\":100,\"completion\":10,\"cached\":40}}],\"tool_batches\":[]},"
              "{\"llm_calls\":[{\"timestamp\":\"2026-01-02T03:04:10Z\",\"duration_ms\":1,"
              "\"tokens\":{\"prompt\":150,\"completion\":11,\"cached\":99}}]}]}\n");
    assert_int_equal(t.format, KR_TRACE_COPILOT);
    assert_int_equal(t.turns, 2);
    assert_int_equal(t.turn[0].cached_tokens, 40);
    assert_int_equal(t.turn[1].arrival_us, 4500000);
    assert_int_equal(t.turn[1].think_us, 2500000);
    kr_trace_free(&t);
    must_refuse(".jsonl",
                "{\"session_id\":\"c\",\"turns\":[{\"llm_calls\":[{\"timestamp\":\"yesterday\","
                "\"tokens\":{\"prompt\":1,\"completion\":1}}]}]}\n",
                KR_E_FORMAT, "timestamp");
}

static void tables(void **state)
{
    kr_trace t;
    (void)state;

    must_read(&t, ".csv",
              "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
              "2024-05-10 00:00:01.017335+00:00,2399,6\r\n");
    assert_int_equal(t.format, KR_TRACE_AZURE);
    assert_int_equal(t.turns, 2);
    assert_int_equal(t.session[1].start_us, 1007405);
    assert_int_equal(t.turn[1].input_tokens, 2399);
    kr_trace_free(&t);
    must_read(&t, ".csv",
              "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,x\n"
              "45,GPT-4,300,0,300,x\n45.5,GPT-4,417,276,693,x\n");
    assert_int_equal(t.format, KR_TRACE_BURSTGPT);
    assert_int_equal(t.turns, 2);
    assert_int_equal(t.failed_requests, 1);
    assert_int_equal(t.session[1].start_us, 40500000);
    kr_trace_free(&t);
    must_refuse(".csv", "a,b\n1,2\n", KR_E_FORMAT, "needs columns");
    must_refuse(".csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n9,1,1\n8,1,1\n", KR_E_FORMAT, ":3:");
    must_refuse(".csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n9,1\n", KR_E_FORMAT, "column 3");
    must_refuse(".csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", KR_E_FORMAT, "no session");
}

/* Seconds since 1970 of dates that `date -u -d ... +%s` gave. */
static void timestamps(void **state)
{
    uint64_t us = 0;
    (void)state;

    assert_true(kr_read_timestamp("2024-02-29 12:00:00", &us) && us == UINT64_C(1709208000) * 1000000);
    assert_true(kr_read_timestamp("2023-11-16T18:15:46.6805900Z", &us) && us == UINT64_C(1700158546680590));
    assert_true(kr_read_timestamp("2024-02-29T12:00:00+02:00", &us) && us == UINT64_C(1709200800) * 1000000);
    assert_true(kr_read_timestamp("12.5", &us) && us == 12500000);
    assert_false(kr_read_timestamp("2024-13-01 00:00:00", &us));
    assert_false(kr_read_timestamp("nan", &us));
    assert_false(kr_read_timestamp("", &us));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kvct_turns_and_reuse),
        cmocka_unit_test(kvct_sub_agents_follow_their_parent),
        cmocka_unit_test(ids_have_64_bits),
        cmocka_unit_test(kvct_refusals),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(run_length_form_loses_nothing),
        cmocka_unit_test(mooncake),
        cmocka_unit_test(llmservingsim),
        cmocka_unit_test(copilot),
        cmocka_unit_test(tables),
        cmocka_unit_test(timestamps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
