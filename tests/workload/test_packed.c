/* Traces packed with gzip read as the plain ones do, damaged ones are told; and what a trace can do wrong,
 * in every format: cut anywhere, out of order, another block size, one id twice, ids past 63 bits, empty.
 *
 * With KR_TEST_LONG=1 in the environment also a trace of 4 GB, made on the fly, in bounded memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <zlib.h>
#include <cmocka.h>

#include "files.h"

#define COPILOT                                                                                         \
    "{\"session_id\":\"c%d\",\"turns\":[{\"llm_calls\":[{\"timestamp\":\"2026-01-02T03:04:05Z\","       \
    "\"duration_ms\":2000,\"tokens\":{\"prompt\":100,\"completion\":10,\"cached\":40}},{\"timestamp\":" \
    "\"2026-01-02T03:04:11Z\",\"tokens\":{\"prompt\":150,\"completion\":9,\"cached\":99}}]}]}\n"
#define KVCT                                                                                        \
    "{\"id\":\"s\",\"block_size\":64,\"requests\":[{\"t\":0,\"in\":64,\"out\":1,\"hash_ids\":[1]}," \
    "{\"t\":2,\"in\":128,\"out\":1,\"hash_ids\":[1,2]}]}\n"
#define MOONCAKE                                                                      \
    "{\"timestamp\":0,\"input_length\":600,\"output_length\":5,\"hash_ids\":[3,4]}\n" \
    "{\"timestamp\":9,\"input_length\":512,\"output_length\":6,\"hash_ids\":[18446744073709551615]}\n"
#define LSS                                                             \
    "{\"session_id\":\"x\",\"arrival_time_ns\":1000,\"sub_requests\":[" \
    "{\"input_toks\":10,\"output_toks\":2,\"tool_duration_ns\":5000}]}\n"
#define AZURE "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,2162,5\n"

static void pack(const char *path, const char *text, size_t bytes)
{
    gzFile out = gzopen(path, "wb");

    assert_non_null(out);
    assert_int_equal(gzwrite(out, text, (unsigned)bytes), (int)bytes);
    assert_int_equal(gzclose(out), Z_OK);
}

static void packed_reads_as_plain(void **state)
{
    static char text[1 << 20];
    char path[64];
    kr_trace plain, packed;
    size_t used = 0;
    kr_err err;

    (void)state;
    for (int i = 0; i < 1000; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, COPILOT, i);
    must_read(&plain, ".jsonl", text);
    put_file(path, ".jsonl.gz", "");
    pack(path, text, used);
    if (kr_trace_read(&packed, path, 0, &err) != KR_OK)
        fail_msg("%s", err.text);
    unlink(path);
    assert_int_equal(packed.sessions, 1000);
    assert_true(packed.digest == plain.digest);
    kr_trace_free(&plain);
    kr_trace_free(&packed);
}

/* Any cut of the packed file is an error; a changed bit is one too, or changes nothing (the last byte has
 * bits that mean nothing). */
static void damaged_is_told(void **state)
{
    unsigned char bytes[512];
    char path[64];
    kr_trace whole;
    size_t size;
    FILE *file;

    (void)state;
    must_read(&whole, ".json", KVCT);
    put_file(path, ".json.gz", "");
    pack(path, KVCT, strlen(KVCT));
    file = fopen(path, "rb");
    size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    for (size_t cut = 1; cut < size; cut++) {
        kr_trace t;
        kr_err err;

        file = fopen(path, "wb");
        assert_int_equal(fwrite(bytes, 1, cut, file), cut);
        fclose(file);
        assert_int_equal(kr_trace_read(&t, path, 0, &err), KR_E_FORMAT);
    }
    for (size_t at = 10; at < size; at++) { /* past the header, whose flags and time may be any */
        kr_trace t;
        kr_err err;

        bytes[at] ^= 0x10;
        file = fopen(path, "wb");
        assert_int_equal(fwrite(bytes, 1, size, file), size);
        fclose(file);
        bytes[at] ^= 0x10;
        if (kr_trace_read(&t, path, 0, &err) == KR_OK && (at + 9 != size || t.digest != whole.digest))
            fail_msg("byte %zu of %zu was changed and nothing said", at, size);
        kr_trace_free(&t);
    }
    unlink(path);
    kr_trace_free(&whole);
}

static void cut_anywhere(void **state)
{
    static const struct {
        const char *suffix, *text;
    } all[] = {{".json", KVCT}, {".jsonl", MOONCAKE}, {".jsonl", LSS}, {".csv", AZURE}};

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (size_t cut = 0; cut + 1 < strlen(all[i].text); cut++) {
            char text[512];
            kr_trace t;
            kr_err err = {0};
            kr_status status;

            memcpy(text, all[i].text, cut);
            text[cut] = '\0';
            status = read_text(&t, all[i].suffix, text, &err);
            /* JSON lines and tables may end after any whole line, and a table inside a last number. */
            if (status == KR_OK && all[i].text[cut - 1] != '\n' && text[cut - 1] != '}' &&
                all[i].suffix[1] == 'j')
                fail_msg("%zu bytes of %s were taken for a trace", cut, all[i].text);
            if (status != KR_OK)
                assert_true(err.text[0] != '\0');
            kr_trace_free(&t);
        }
}

static void out_of_rule(void **state)
{
    char path[64];
    kr_trace t;
    kr_err err;

    (void)state;
    must_read(&t, ".jsonl", MOONCAKE);
    assert_true(t.run[t.turn[1].first_run].first == UINT64_MAX);
    kr_trace_free(&t);
    put_file(path, ".jsonl", MOONCAKE);
    assert_int_equal(kr_trace_read(&t, path, 256, &err), KR_E_FORMAT); /* another block size */
    assert_non_null(strstr(err.text, "block size"));
    unlink(path);
    must_refuse(".jsonl", "{\"timestamp\":0,\"input_length\":600,\"output_length\":5,\"hash_ids\":[3,3]}\n",
                KR_E_FORMAT, "twice");
    must_refuse(".jsonl",
                "{\"session_id\":\"c\",\"turns\":[{\"llm_calls\":[{\"timestamp\":9,\"tokens\":"
                "{\"prompt\":1,\"completion\":1}},{\"timestamp\":8,\"tokens\":{\"prompt\":1,"
                "\"completion\":1}}]}]}\n",
                KR_E_FORMAT, "begins before");
    must_refuse(".csv", "", KR_E_FORMAT, "empty");
    must_refuse(".jsonl", "", KR_E_FORMAT, "empty");
    must_refuse(".jsonl", "\n\n", KR_E_FORMAT, "object");
}

/* ---- the long one ---- */

static uint64_t peak_bytes(void)
{
    struct rusage use;

    assert_int_equal(getrusage(RUSAGE_SELF, &use), 0);
    return (uint64_t)use.ru_maxrss * 1024;
}

/* Sessions of four calls each with model names and message metadata as the published traces carry. */
static uint64_t write_big(const char *path, uint64_t bytes)
{
    static char filler[3000];
    FILE *out = fopen(path, "wb");
    uint64_t sessions = 0, written = 0;

    assert_non_null(out);
    memset(filler, 'm', sizeof filler - 1);
    for (; written < bytes; sessions++) {
        const int n = fprintf(out,
                              "{\"session_id\":\"c%llu\",\"turns\":[{\"llm_calls\":[{\"timestamp\":%llu,"
                              "\"model\":\"%s\",\"tokens\":{\"prompt\":%llu,\"completion\":10,\"cached\":7}}"
                              "]}]}\n",
                              (unsigned long long)sessions, (unsigned long long)sessions, filler,
                              (unsigned long long)(100 + sessions % 1000));

        assert_true(n > 0);
        written += (uint64_t)n;
    }
    assert_int_equal(fclose(out), 0);
    return sessions;
}

static void four_gigabytes(void **state)
{
    char path[64];
    uint64_t sessions, before, tokens = 0;
    kr_trace t;
    kr_err err;

    (void)state;
    if (getenv("KR_TEST_LONG") == NULL) {
        printf("SKIP: KR_TEST_LONG is not set\n");
        return;
    }
    put_file(path, ".jsonl", "");
    sessions = write_big(path, UINT64_C(4) << 30);
    before = peak_bytes();
    if (kr_trace_read(&t, path, 0, &err) != KR_OK) {
        unlink(path);
        fail_msg("%s", err.text);
    }
    unlink(path);
    assert_int_equal(t.sessions, sessions);
    for (uint32_t i = 0; i < t.turns; i++)
        tokens += t.turn[i].input_tokens - 100;
    assert_true(tokens > 0);
    printf("%llu sessions, %.0f MB\n", (unsigned long long)sessions, (double)(peak_bytes() - before) / 1e6);
    /* A session and its turn take some 250 bytes, doubled while an array grows. */
    assert_true(peak_bytes() - before < sessions * 1000);
    kr_trace_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_reads_as_plain), cmocka_unit_test(damaged_is_told),
        cmocka_unit_test(cut_anywhere),          cmocka_unit_test(out_of_rule),
        cmocka_unit_test(four_gigabytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
