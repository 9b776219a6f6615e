/* Device descriptors load with every figure, the roofline and the curves give hand-computed times,
 * and files with an unsourced figure, an unknown op or an impossible rate are refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/device.h"

static kr_device_model load(const char *name)
{
    kr_device_model device;
    kr_err err;
    char path[128];

    snprintf(path, sizeof path, "data/devices/%s.json", name);
    if (kr_device_model_load(path, &device, &err) != KR_OK)
        fail_msg("%s", err.text);
    return device;
}

/* KARAT paper, Tables V and VI and section III-D. */
static void paper_devices(void **state)
{
    const kr_device_model h200 = load("h200"), karat = load("karat"), spnm = load("spnm");

    (void)state;
    assert_true(32 * karat.tdp_w == 8 * h200.tdp_w);
    assert_true(32 * karat.memory_bytes_per_s == 8 * h200.memory_bytes_per_s);
    assert_true(fabs(32 * karat.memory_bytes / (8 * h200.memory_bytes) - 14.5) < 0.1);
    assert_true(fabs(karat.flops_fp8 / karat.memory_bytes_per_s - 208.0) < 0.5);
    assert_true(fabs(h200.flops_fp8 * karat.cores / h200.cores * karat.clock_hz / h200.clock_hz - 250e12) <
                1e12);
    assert_true(64 * h200.tdp_w == 16 * h200.tdp_w + 192 * karat.tdp_w);
    assert_true(karat.can[KR_OP_SCORE] && karat.can[KR_OP_ATTEND] && !karat.can[KR_OP_EXPERTS]);
    assert_true(h200.can[KR_OP_EXPERTS] && spnm.flops_fp8 == 2 * spnm.flops_bf16);
}

static void every_file_loads(void **state)
{
    static const char *const names[] = {"attacc", "duplex", "h100", "h200", "karat", "mi210", "spnm", "u55c"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_true(load(names[i]).tdp_w > 0.0);
}

/* Where the whole of a time is from. */
static kr_provenance trust(kr_device_time t)
{
    for (int i = 0; i < KR_PROVENANCE_COUNT; i++)
        if (t.by_ns[i] == t.ns)
            return (kr_provenance)i;
    fail_msg("a time of mixed origin");
    return KR_MODELLED;
}

static void roofline_by_hand(void **state)
{
    kr_device_model d = {.flops_f32 = 1e12,
                         .flops_bf16 = 4e12,
                         .memory_bytes_per_s = 1e11,
                         .fixed_s = 1e-6,
                         .flops_efficiency = 0.5,
                         .memory_efficiency = 0.8};
    kr_device_job job = {.op = KR_OP_QKV, .math = KR_BF16, .model = "m", .work = {.flops = 2000000}};

    (void)state;
    assert_int_equal(kr_device_op_time(&d, &job).ns, 1000 + 1000); /* 2e6 / 2e12 */
    job.math = KR_E4M3;                                            /* no FP8 units: BF16's rate */
    assert_int_equal(kr_device_op_time(&d, &job).ns, 2000);
    job.math = KR_F32;
    assert_int_equal(kr_device_op_time(&d, &job).ns, 1000 + 4000);
    job.work.read_bytes = 700000, job.work.write_bytes = 100000; /* 8e5 / 8e10 = 10 us */
    assert_int_equal(kr_device_op_time(&d, &job).ns, 11000);
    assert_int_equal(trust(kr_device_op_time(&d, &job)), KR_MODELLED);
    job.work.flops = UINT64_MAX, d.flops_f32 = 1e-9;
    assert_int_equal(kr_device_op_time(&d, &job).ns, 1ull << 62);
}

static void curves_by_hand(void **state)
{
    const kr_device_model h200 = load("h200");
    kr_device_job scan = {.op = KR_OP_SCORE,
                          .math = KR_E4M3,
                          .model = "DeepSeek-V3.2",
                          .rows = 64,
                          .context_tokens = 64 * 100000};
    kr_device_job a2a = {.op = KR_OP_DISPATCH, .model = "GLM-5.2", .rows = 128, .ranks = 8};
    kr_device_time t = kr_device_op_time(&h200, &scan);

    (void)state;
    assert_int_equal(t.ns, 3000 + 245504);
    assert_int_equal(trust(t), KR_INTERPOLATED);
    scan.context_tokens = 64 * 1000000;
    assert_int_equal(trust(kr_device_op_time(&h200, &scan)), KR_EXTRAPOLATED);
    scan.model = "SmolLM2-135M"; /* no curve of its own */
    assert_int_equal(trust(kr_device_op_time(&h200, &scan)), KR_MODELLED);
    /* 128 tokens a rank: measured 40, 102, 143, 167 us on 1, 2, 4, 8 nodes. */
    assert_int_equal(kr_device_op_time(&h200, &a2a).ns, 41222);
    a2a.ranks = 9;
    assert_int_equal(kr_device_op_time(&h200, &a2a).ns, 99702);
    a2a.ranks = 64;
    assert_int_equal(kr_device_op_time(&h200, &a2a).ns, 164830);
    assert_int_equal(trust(kr_device_op_time(&h200, &a2a)), KR_INTERPOLATED);
    a2a.ranks = 128;
    assert_int_equal(kr_device_op_time(&h200, &a2a).ns, 164830);
    assert_int_equal(trust(kr_device_op_time(&h200, &a2a)), KR_EXTRAPOLATED);
}

/* Measured at 1, 2 and 4 rows, per method; between 2 and 4 rows lies the line through them. */
static void curves_make_a_table(void **state)
{
    kr_device_model d = {
        .flops_f32 = 1e12,
        .memory_bytes_per_s = 1e11,
        .flops_efficiency = 1,
        .memory_efficiency = 1,
        .curves = 5,
        .curve = {{.op = KR_OP_QKV, .start_s = 10e-6, .rows_max = 1, .provenance = KR_MEASURED},
                  {.op = KR_OP_QKV, .start_s = 11e-6, .rows_max = 2, .provenance = KR_MEASURED},
                  {.op = KR_OP_QKV,
                   .start_s = -5e-6,
                   .per_row_s = 8e-6,
                   .rows_max = 4,
                   .provenance = KR_INTERPOLATED},
                  {.op = KR_OP_ATTEND, .method = "dense", .start_s = 1e-6},
                  {.op = KR_OP_ATTEND, .method = "quest", .start_s = 2e-6}},
    };
    static const uint64_t want_us[] = {10, 11, 19, 27, 35};
    static const kr_provenance want[] = {KR_MEASURED, KR_MEASURED, KR_INTERPOLATED, KR_INTERPOLATED,
                                         KR_EXTRAPOLATED};
    kr_device_job job = {.op = KR_OP_QKV, .model = "m"};

    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        job.rows = i + 1;
        assert_int_equal(kr_device_op_time(&d, &job).ns, want_us[i] * 1000);
        assert_int_equal(trust(kr_device_op_time(&d, &job)), want[i]);
    }
    job = (kr_device_job){.op = KR_OP_ATTEND, .model = "m", .method = "quest", .work.flops = 1000000};
    assert_int_equal(kr_device_op_time(&d, &job).ns, 2000);
    job.method = "dense";
    assert_int_equal(kr_device_op_time(&d, &job).ns, 1000);
    job.method = "starc";
    assert_int_equal(trust(kr_device_op_time(&d, &job)), KR_MODELLED);
}

#define FIG(v) "{\"value\":" #v ",\"source\":\"s\"}"
#define HEAD "\"karat_device\":1,\"name\":\"x\",\"source\":\"s\",\"power\":{\"tdp_w\":" FIG(100) "}"
#define RATES \
    "\"flops\":{\"bf16\":" FIG(1e12) "},\"memory\":{\"bytes\":" FIG(1e9) ",\"bytes_per_s\":" FIG(1e11) "}"
#define CURVE(op, provenance) \
    ",\"curves\":[{\"op\":\"" op "\",\"t0_us\":1,\"source\":\"s\",\"provenance\":\"" provenance "\"}]}"

static void check_text(const char *text, const char *words)
{
    char path[] = "/tmp/karat-device-XXXXXX";
    const int fd = mkstemp(path);
    kr_device_model device, untouched;
    kr_err err = {0};
    kr_status status;

    memset(&device, 0x5a, sizeof device);
    memcpy(&untouched, &device, sizeof device);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    status = kr_device_model_load(path, &device, &err);
    unlink(path);
    if (words == NULL) {
        assert_int_equal(status, KR_OK);
        return;
    }
    assert_int_not_equal(status, KR_OK);
    assert_memory_equal(&device, &untouched, sizeof device);
    if (strstr(err.text, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

static void broken_files(void **state)
{
    (void)state;
    check_text("{" HEAD "," RATES "}", NULL);
    check_text("{" HEAD "}", "flops");
    check_text("{" HEAD "," RATES ",\"speed\":1}", "speed");
    check_text("{" HEAD "," RATES ",\"fixed_s\":{\"value\":1}}", "source");
    check_text("{" HEAD "," RATES ",\"fixed_s\":{\"value\":1,\"source\":\"\"}}", "source is empty");
    check_text("{" HEAD "," RATES ",\"flops_efficiency\":" FIG(0) "}", "above 0");
    check_text("{" HEAD "," RATES ",\"can\":[\"fly\"]}", "can[0]");
    check_text("{" HEAD "," RATES CURVE("score", "measured"), NULL);
    check_text("{" HEAD "," RATES CURVE("fly", "measured"), "fly");
    check_text("{" HEAD "," RATES CURVE("score", "guessed"), "guessed");
    check_text("{" HEAD "," RATES ",\"link\":{\"bytes_per_s\":" FIG(0) ",\"latency_s\":" FIG(0) "}}",
               "above 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paper_devices),       cmocka_unit_test(every_file_loads),
        cmocka_unit_test(roofline_by_hand),    cmocka_unit_test(curves_by_hand),
        cmocka_unit_test(curves_make_a_table), cmocka_unit_test(broken_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
