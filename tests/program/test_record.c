/* A recorded run reads back as it was written; files that are cut off, out of order, of another
 * version or too long are refused with the line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/rng.h"
#include "program/record.h"

#define HEAD                                                                               \
    "{\"karat_run\":1,\"policy\":1,\"program_digest\":\"00000000000000ff\",\"workers\":3," \
    "\"steps\":2,\"micro_batches\":2}\n"
#define EVENT "{\"t\":5,\"step\":0,\"op\":7,\"worker\":2,\"what\":2}\n"

static void round_trip(void **state)
{
    enum { EVENTS = 3000 };
    static kr_run_event written[EVENTS];
    static kr_run_header header = {
        .policy = 1, .workers = 5, .steps = 9, .micro_batches = 2, .program_digest = 0xfedcba9876543210u};
    static kr_run_header got;
    kr_rng rng = kr_rng_make(1, 3);
    char path[] = "/tmp/karat-run-XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    kr_run_event *read = NULL;
    uint64_t count = 0;
    kr_err err;

    (void)state;
    header.program = (kr_run_program){
        .model = "a \"model\"", .context_max = 1 << 20, .kv_dtype = KR_F16, .layers = KR_LAYERS_MAX};
    for (uint32_t l = 0; l < KR_LAYERS_MAX; l++)
        header.program.method[l] = (kr_method_config){
            .name = "quest", .budget = l / 3, .threshold = 0.5f, .parameter = {7, l / 3}, .seed = UINT64_MAX};
    for (uint32_t i = 0; i < EVENTS; i++)
        written[i] = (kr_run_event){.time_ns = (i == 0 ? 0 : written[i - 1].time_ns) + kr_rng_below(&rng, 9),
                                    .step = i / 400,
                                    .op = (uint32_t)kr_rng_below(&rng, UINT32_MAX - 1),
                                    .worker = (uint16_t)kr_rng_below(&rng, 5),
                                    .what = (uint16_t)(1 + kr_rng_below(&rng, 3))};
    assert_non_null(file);
    assert_int_equal(kr_run_write(file, &header, written, EVENTS, &err), KR_OK);
    fclose(file);
    assert_int_equal(kr_run_read(path, &got, &read, &count, EVENTS, &err), KR_OK);
    assert_int_equal(count, EVENTS);
    assert_memory_equal(read, written, sizeof written);
    assert_int_equal(got.program_digest, header.program_digest);
    assert_int_equal(got.workers, 5);
    assert_int_equal(got.steps, 9);
    assert_string_equal(got.program.model, header.program.model);
    assert_int_equal(got.program.context_max, 1 << 20);
    assert_int_equal(got.program.kv_dtype, KR_F16);
    assert_int_equal(got.program.layers, KR_LAYERS_MAX);
    assert_memory_equal(got.program.method, header.program.method, sizeof got.program.method);
    kr_free(read);
    assert_int_equal(kr_run_read(path, &got, &read, &count, EVENTS - 1, &err), KR_E_LIMIT);
    unlink(path);
    assert_int_equal(kr_run_read(path, &got, &read, &count, EVENTS, &err), KR_E_IO);
}

static void refused(const char *text, const char *words)
{
    char path[] = "/tmp/karat-run-XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    kr_run_event *events = NULL;
    kr_run_header header;
    uint64_t count = 77;
    kr_err err = {0};

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_int_equal(kr_run_read(path, &header, &events, &count, 100, &err), KR_E_FORMAT);
    unlink(path);
    assert_null(events);
    assert_int_equal(count, 77);
    if (strstr(err.text, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

#define PROGRAM(methods)                                                                               \
    "{\"karat_run\":1,\"policy\":1,\"program_digest\":\"00000000000000ff\",\"workers\":3,\"steps\":2," \
    "\"micro_batches\":2,\"program\":{\"model\":\"m\",\"context_max\":9,\"kv_dtype\":\"bf16\","        \
    "\"placement\":\"all-on-node\",\"methods\":" methods "}}\n"

static void broken_files(void **state)
{
    (void)state;
    refused("", "empty");
    refused("[1]\n", "line 1");
    refused("{\"karat_run\":2}\n", "karat_run");
    refused(PROGRAM("[]"), "must name layers");
    refused(PROGRAM("[{\"layers\":1,\"method\":\"00\"}]"), "hexadecimal");
    refused(PROGRAM("[{\"layers\":300,\"method\":\"00\"}]"), "layers");
    refused(PROGRAM("[7]"), "methods");
    refused(PROGRAM("[],\"more\":1"), "more");
    refused(HEAD EVENT "{\"t\":5", "cut off");
    refused(HEAD "\n", "line 2");
    refused(HEAD EVENT "{\"t\":4,\"step\":0,\"op\":7,\"worker\":2,\"what\":3}\n", "line 3: time goes back");
    refused(HEAD "{\"t\":5,\"step\":0,\"op\":7,\"worker\":3,\"what\":2}\n", "worker");
    refused(HEAD "{\"t\":5,\"step\":0,\"op\":7,\"worker\":0,\"what\":4}\n", "what");
    refused(HEAD "{\"t\":-1,\"step\":0,\"op\":7,\"worker\":0,\"what\":2}\n", "t");
    refused(HEAD "{\"t\":5,\"step\":0,\"op\":7,\"worker\":0,\"what\":2,\"why\":1}\n", "why");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(broken_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
