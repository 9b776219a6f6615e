/* The memory device: the paper's requirements and sweeps, and the access trace, whose bytes are those of the
 * cost module. Runs from the root of the tree, for data/. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/access_trace.h"
#include "plan/device_study.h"
#include "workload/generate.h"

static kr_scenario_options base_of(const char *model)
{
    return (kr_scenario_options){.data = "data",
                                 .model = model,
                                 .method = "native",
                                 .gpus = 16,
                                 .devices = 192,
                                 .ep = 16,
                                 .tp = 1,
                                 .micro_batches = 2,
                                 .factors = KR_PLAN_NO_FACTORS};
}

/* KARAT paper, III-D: of the classes only KARAT meets all four; Table V; Fig. 7: the scan stops getting
 * faster between 10 and 18 cores for DeepSeek-V3.2 (128 FLOP/B), and below for the others; IV-F: 286 mm2. */
static void the_paper_device(void **state)
{
    const kr_study_options study = {
        .policy = KR_POLICY_OFMS, .rebalance = true, .seed = 1, .seeds = 1, .steps_max = 5, .slo_s = 0.1};
    const kr_scenario_options base = base_of("minimax-m3");
    kr_device_study *s = malloc(sizeof *s);
    kr_plan_workload w;
    kr_trace trace;
    kr_err err;

    (void)state;
    assert_int_equal(kr_trace_generate(&trace, kr_trace_recipe_find("swe-pro"), 60, 5, &err), KR_OK);
    assert_int_equal(kr_plan_workload_of(&trace, &(kr_plan_load){0}, &w, &err), KR_OK);
    kr_trace_free(&trace);
    if (kr_device_study_run(&base, &study, &w, 1, s, &err) != KR_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < KR_DEVICE_CLASSES; i++) {
        const kr_device_verdict *v = &s->verdict[i];

        assert_true((v->capacity && v->bandwidth && v->compute && v->general) == (i == 4));
    }
    assert_true(s->node.devices == 32 && fabs(s->node.power_kw - 5.6) < 1e-9);
    assert_true(fabs(s->node.memory_tb - 16.384) < 1e-9 && fabs(s->node.bandwidth_tb_s - 38.4) < 1e-9);
    assert_true(fabs(s->node.bf16_tflops - 4000) < 1e-6);
    for (int i = 0; i < KR_DEVICE_SWEEP; i++) {
        const kr_device_point *p = &s->cores[i], *least = &s->cores[0];

        assert_true(i == 0 || p->scan_s[0] <= s->cores[i - 1].scan_s[0]);
        assert_true(p->scan_s[2] == least->scan_s[2]); /* 4 FLOP/B: any number of cores is enough */
        if (p->at == 18)
            assert_true(fabs(p->area_mm2 - 286.25) < 0.3 && p->power_w < 175);
        if (p->at > 18)
            assert_true(p->scan_s[0] == s->cores[4].scan_s[0]);
        if (p->at == 10)
            assert_true(p->scan_s[0] > s->cores[4].scan_s[0]);
    }
    assert_true(s->memory[3].job.status == KR_OK && s->memory[0].job.scenario.devices > 192);
    for (int i = 0; i < 3; i++) /* LPDDR5X is the paper's choice */
        assert_true(s->memory[i].job.status != KR_OK ||
                    s->memory[i].job.result.tokens_per_s_per_w < s->memory[3].job.result.tokens_per_s_per_w);
    kr_plan_workload_free(&w);
    free(s);
}

/* Every line is a load of an aligned address, and bytes are those that the program charges. */
static void access_trace(void **state)
{
    static const char *const models[] = {"deepseek-v3.2", "glm-5.2", "minimax-m3"};
    enum { TOKENS = 64 * KR_PAGE_TOKENS, ACCESS = 64 };
    (void)state;

    for (int i = 0; i < 3; i++) {
        const kr_scenario_options o = base_of(models[i]);
        char *text = NULL, *line;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        kr_access_sums sums;
        uint64_t lines = 0;
        kr_scenario s;
        kr_load load;
        kr_err err;

        assert_int_equal(kr_scenario_init(&s, &o, TOKENS, &err), KR_OK);
        assert_int_equal(kr_access_trace_write(&s, TOKENS, ACCESS, 1, out, &sums, &err), KR_OK);
        fclose(out);
        load = kr_row_load(&s.program.plan[sums.layer], TOKENS);
        for (uint32_t k = 0; k < s.program.count; k++) {
            const kr_op *op = &s.program.ops[k];

            if (op->layer != sums.layer || op->micro_batch != 0)
                continue;
            if (op->kind == KR_OP_SCORE)
                assert_int_equal(sums.score_bytes, kr_op_work(&s.program, op, &load).read_bytes);
            if (op->kind == KR_OP_ATTEND)
                assert_int_equal(sums.gather_bytes, kr_op_work(&s.program, op, &load).read_bytes);
        }
        for (line = text; line != NULL && *line != '\0'; line = strchr(line, '\n') + 1, lines++) {
            char *end;
            const unsigned long long at = strtoull(line + 3, &end, 16);

            assert_memory_equal(line, "LD 0x", 5);
            assert_true(*end == '\n' && at % ACCESS == 0);
        }
        assert_int_equal(lines, sums.lines);
        assert_int_equal(lines * ACCESS, sums.score_bytes + sums.gather_bytes);
        free(text);
        kr_scenario_free(&s);
    }
}

static void refusals(void **state)
{
    kr_scenario_options o = base_of("llama-3-70b");
    kr_access_sums sums;
    kr_scenario s;
    kr_err err;

    (void)state;
    o.method = "dense";
    assert_int_equal(kr_scenario_init(&s, &o, 4096, &err), KR_OK);
    assert_int_equal(kr_access_trace_write(&s, 4096, 48, 1, stdout, &sums, &err), KR_E_ARG);
    assert_int_equal(kr_access_trace_write(&s, 4096, 64, 1, stdout, &sums, &err), KR_E_UNSUPPORTED);
    kr_scenario_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_paper_device),
        cmocka_unit_test(access_trace),
        cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
