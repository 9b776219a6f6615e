/* libFuzzer target: a trace of any format. What is read can be written in run-length form. The first
 * byte chooses the name: CSV tables are told by theirs. */
#include <stdint.h>

#include "tests/fuzz/memory_file.h"
#include "workload/read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const kr_trace *trace)
{
    uint64_t turns = 0;
    FILE *out = fopen("/dev/null", "w");

    KR_CHECK(out != NULL);
    for (uint32_t s = 0; s < trace->sessions; s++) {
        KR_CHECK(trace->session[s].turns > 0 && trace->session[s].first_turn == turns);
        turns += trace->session[s].turns;
    }
    KR_CHECK(turns == trace->turns);
    for (uint32_t t = 0; t < trace->turns; t++) {
        KR_CHECK(trace->turn[t].cached_tokens <= trace->turn[t].input_tokens);
        KR_CHECK(trace->turn[t].first_run + trace->turn[t].runs <= trace->runs);
    }
    KR_CHECK(kr_trace_write_runs(trace, out, NULL) == KR_OK);
    fclose(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kr_trace trace = {0};
    const char *path;
    kr_status status;

    if (size < 2)
        return 0;
    path = memory_file(data + 1, size - 1);
    if (data[0] == 'c') {
        status = kr_read_csv(path, &trace, NULL);
        if (status == KR_OK)
            check(&trace);
    } else {
        status = kr_trace_read(&trace, path, 0, NULL);
        if (status == KR_OK)
            check(&trace);
    }
    kr_trace_free(&trace);
    return 0;
}
