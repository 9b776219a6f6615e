/* The cost module rederives the KARAT paper's own figures (Table II, sections I, II-B, II-D, III-B)
 * and the published sizes of the three frontier models, to the digit where they are exact. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "method/layout.h"
#include "tests/program/fixture.h"

/* The paper's accounting: un-absorbed queries over the link, no scales, no RoPE FLOPs. */
static const kr_parallel as_paper = {
    .tp = 1,
    .ep = 64,
    .dp = 64,
    .micro_batches = 1,
    .placement = KR_PLACE_ALL_ON_NODE,
    .absorb_on_memory = true,
    .paper_accounting = true,
    .activation = KR_BF16,
    .dispatch = KR_E4M3,
    .combine = KR_BF16,
};
static const kr_parallel as_served = {
    .tp = 1,
    .ep = 64,
    .dp = 64,
    .micro_batches = 1,
    .placement = KR_PLACE_ALL_ON_NODE,
    .activation = KR_BF16,
    .dispatch = KR_E4M3,
    .combine = KR_BF16,
};

/* Work of all ops of a class for one decode row at a context. */
static kr_work row_work(const kr_program *p, kr_resource resource, uint64_t context, int kind)
{
    kr_work sum = {0};

    for (uint32_t i = 0; i < p->count; i++) {
        const kr_op *op = &p->ops[i];
        kr_load load = {.rows = 1};

        if (op->resource != resource || (kind >= 0 && op->kind != kind))
            continue;
        if (op->layer < p->model->layers)
            load = kr_row_load(&p->plan[op->layer], context);
        load.experts = load.expert_rows = p->model->moe.active;
        sum = kr_work_add(sum, kr_op_work(p, op, &load));
    }
    return sum;
}

static kr_work layer_work(const kr_program *p, kr_op_kind kind, uint32_t layer, uint64_t context)
{
    const kr_load load = kr_row_load(&p->plan[layer], context);

    for (uint32_t i = 0; i < p->count; i++)
        if (p->ops[i].kind == kind && p->ops[i].layer == layer)
            return kr_op_work(p, &p->ops[i], &load);
    fail_msg("no %s in layer %u", kr_op_name(kind), layer);
    return (kr_work){0};
}

static void close_to(double got, double want, double half_step)
{
    if (fabs(got - want) > half_step * 1.0000001)
        fail_msg("%.6g is not %.6g within %.2g", got, want, half_step);
}

/* Sections II-D and III-B: payloads a layer and a step; 50 GB/s is a node's 400 GB/s over 8 GPUs. */
static void paper_transfers(void **state)
{
    static const struct {
        const char *name;
        uint64_t index, query, kv, out, step;
        double us;
    } want[] = {
        {"deepseek-v3.2", 8576, 49152, 1152, 131072, 11587072, 231.74},
        {"glm-5.2", 4352, 32768, 1152, 65536, 7848960, 156.98},
        {"minimax-m3", 1280, 16384, 2048, 16384, 2161920, 43.24},
    };

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const kr_model m = load(want[i].name);
        const kr_program p = build(&m, &as_paper);
        const uint32_t l = 6; /* owns an index in all three */

        assert_int_equal(layer_work(&p, KR_OP_SEND_INDEX, l, 1000).move_bytes, want[i].index);
        assert_int_equal(layer_work(&p, KR_OP_SEND_QKV, l, 1000).move_bytes, want[i].query + want[i].kv);
        assert_int_equal(layer_work(&p, KR_OP_RETURN_OUT, l, 1000).move_bytes, want[i].out);
        assert_int_equal(row_work(&p, KR_ON_LINK, 1000, -1).move_bytes, want[i].step);
        close_to((double)want[i].step / 50e9 * 1e6, want[i].us, 0.005);
    }
}

/* Compute absorbs: what karat itself moves. */
static void absorbed_transfers(void **state)
{
    const kr_model m = load("deepseek-v3.2");
    const kr_program p = build(&m, &as_served);

    (void)state;
    assert_int_equal(layer_work(&p, KR_OP_SEND_QKV, 6, 1000).move_bytes, 128 * 576 * 2 + 1152);
    /* spec: 17.58 MB = 351.7 us a step; here 4 more bytes a layer for the key's scale. */
    assert_int_equal(row_work(&p, KR_ON_LINK, 1000, -1).move_bytes,
                     61ull * (8576 + 4 + 147456 + 1152 + 131072));
}

static void paper_intensities(void **state)
{
    static const struct {
        const char *name;
        double scan, attend, attend_exact;
        uint64_t gather;
    } want[] = {
        {"deepseek-v3.2", 128.0, 227.6, 241.8, 2359296},
        {"glm-5.2", 64.0, 113.8, 120.9, 2359296},
        {"minimax-m3", 4.0, 16.0, 16.0, 4194304},
    };

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const kr_model m = load(want[i].name);
        const kr_program p = build(&m, &as_paper), exact = build(&m, &as_served);
        const kr_work scan = layer_work(&p, KR_OP_SCORE, 6, 100000);
        const kr_work attend = layer_work(&p, KR_OP_ATTEND, 6, 100000);
        const kr_work full = layer_work(&exact, KR_OP_ATTEND, 6, 100000);

        assert_true((double)scan.flops / (double)scan.read_bytes == want[i].scan);
        close_to((double)attend.flops / (double)attend.read_bytes, want[i].attend, 0.05);
        assert_int_equal(attend.read_bytes, want[i].gather);
        if (i == 2) /* absorbing nothing: the exact count is the same */
            assert_int_equal(full.flops, attend.flops);
        close_to((double)full.flops / (double)full.read_bytes, want[i].attend_exact, 0.05);
    }
}

/* Sections I and II-D: GB of KV and index for a million tokens, and how much smaller the index is. */
static void paper_capacities(void **state)
{
    static const struct {
        const char *name;
        double gb_per_million, kv_over_index;
    } want[] = {{"deepseek-v3.2", 78.1, 9.0}, {"glm-5.2", 92.5, 33.4}, {"minimax-m3", 137.5, 8.4}};

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const kr_model m = load(want[i].name);
        const double kv = (double)kr_model_kv_token_bytes(&m);
        const double index = (double)kr_model_index_token_bytes(&m, false);

        close_to((kv + index) / 1e3, want[i].gb_per_million, 0.05);
        close_to(kv / index, want[i].kv_over_index, 0.05);
    }
}

/* Milliseconds of one request's scan at 144K tokens: by bandwidth at KARAT's 1.2 TB/s, by arithmetic
 * at SPNM's 8 TFLOPS. Their order by itself gives the sign of SPNM's result on each model. */
static void paper_scan_times(void **state)
{
    static const struct {
        const char *name;
        double by_bandwidth_ms, by_spnm_ms;
    } want[] = {{"deepseek-v3.2", 0.94, 18.0}, {"glm-5.2", 0.32, 3.1}, {"minimax-m3", 1.75, 1.05}};

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const kr_model m = load(want[i].name);
        const kr_program p = build(&m, &as_paper);
        const kr_work scan = row_work(&p, KR_ON_DEVICE, 144000, KR_OP_SCORE);

        close_to((double)scan.read_bytes / 1.2e12 * 1e3, want[i].by_bandwidth_ms, 0.005);
        close_to((double)scan.flops / 8e12 * 1e3, want[i].by_spnm_ms, 0.05);
    }
}

/* Bytes a memory device reads per request and step (all layers), in whole MB. */
static void device_reads(void **state)
{
    static const struct {
        const char *name;
        uint64_t context;
        double scan_mb, attend_mb;
    } want[] = {
        {"deepseek-v3.2", 81000, 632, 144},
        {"deepseek-v3.2", 144000, 1124, 144},
        {"deepseek-v3.2", 1000000, 7808, 144},
        {"glm-5.2", 81000, 218, 184},
        {"glm-5.2", 144000, 387, 184},
        {"glm-5.2", 1000000, 2688, 184},
        {"minimax-m3", 81000, 1182, 239 + 498},
        {"minimax-m3", 144000, 2101, 239 + 885},
        {"minimax-m3", 1000000, 14592, 239 + 6144},
    };

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const kr_model m = load(want[i].name);
        const kr_program p = build(&m, &as_paper);
        const kr_work scan = row_work(&p, KR_ON_DEVICE, want[i].context, KR_OP_SCORE);
        const kr_work attend = row_work(&p, KR_ON_DEVICE, want[i].context, KR_OP_ATTEND);

        close_to((double)scan.read_bytes / 1e6, want[i].scan_mb, 0.51);
        close_to((double)attend.read_bytes / 1e6, want[i].attend_mb, 0.75);
    }
}

/* 2 FLOPs per active parameter: whole model, one token, head included. */
static void flops_per_token(void **state)
{
    static const struct {
        const char *name;
        double gflop;
    } want[] = {{"deepseek-v3.2", 74.95}, {"glm-5.2", 80.60}, {"minimax-m3", 49.46}};

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const kr_model m = load(want[i].name);
        const kr_program p = build(&m, &as_served);
        const uint64_t weights = row_work(&p, KR_ON_COMPUTE, 1000, -1).flops -
                                 row_work(&p, KR_ON_COMPUTE, 1000, KR_OP_SAMPLE).flops;

        close_to((double)weights / 1e9, want[i].gflop, 0.006);
    }
}

static void weight_bytes(void **state)
{
    static const struct {
        const char *name;
        double total_gb, replicated_gb, experts_gb;
    } want[] = {
        {"deepseek-v3.2", 674.03, 19.96, 653.91 + 0.16}, /* 0.16: the F32 scales of FP8 tiles */
        {"glm-5.2", 1486.75, 37.20, 1449.55},
        {"minimax-m3", 852.35, 26.11, 826.24}, /* BF16 router; the file's F32 adds 0.09 */
    };

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const kr_model m = load(want[i].name);
        kr_parallel whole = as_served;
        kr_memory_plan one, spread;
        kr_err err;
        kr_program p;

        whole.ep = 1;
        p = build(&m, &whole);
        assert_int_equal(kr_program_memory(&p, 1000, 1, &one, &err), KR_OK);
        p = build(&m, &as_served);
        assert_int_equal(kr_program_memory(&p, 1000, 1, &spread, &err), KR_OK);
        close_to((double)one.weight_bytes / 1e9, want[i].total_gb, 0.0101);
        close_to((double)(one.weight_bytes - spread.weight_bytes) / 1e9 / 63 * 64, want[i].experts_gb,
                 0.0101);
        close_to((double)(one.weight_bytes) / 1e9 - want[i].experts_gb, want[i].replicated_gb, 0.0101);
    }
}

/* Pages: what the node stores a token is what the model says, plus alignment of nothing here. */
static void page_bytes(void **state)
{
    static const char *const names[] = {"deepseek-v3.2", "glm-5.2", "minimax-m3", "smollm2-135m"};
    kr_memory_plan memory;
    kr_err err;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const kr_model m = load(names[i]);
        kr_parallel parallel = as_served;
        kr_program p;

        parallel.ep = 1;
        p = build(&m, &parallel);
        assert_int_equal(kr_program_memory(&p, 1 << 20, 64, &memory, &err), KR_OK);
        assert_int_equal(memory.kv_token_bytes, kr_model_kv_token_bytes(&m));
        assert_int_equal(memory.index_token_bytes, kr_model_index_token_bytes(&m, true));
        assert_int_equal(memory.page_bytes[0], 128 * (memory.kv_token_bytes + memory.index_token_bytes));
        assert_int_equal(memory.page_bytes[1], 0);
    }
}

static void pages_of_windows(void **state)
{
    const kr_model m = load("gemma-3-270m");
    kr_parallel parallel = as_served;
    kr_memory_plan memory;
    uint64_t pages[2];
    kr_program p;
    kr_err err;

    (void)state;
    parallel.ep = 1;
    p = build(&m, &parallel);
    assert_int_equal(kr_program_memory(&p, 32768, 8, &memory, &err), KR_OK);
    assert_int_equal(memory.page_bytes[0], 3 * 128 * 1024);
    assert_int_equal(memory.page_bytes[1], 15 * 128 * 1024);
    assert_int_equal(kr_row_load(&p.plan[0], 20000).attended_tokens, 512);
    assert_int_equal(kr_row_load(&p.plan[5], 20000).attended_tokens, 20000);
    assert_int_equal(kr_row_load(&p.plan[0], 100).attended_tokens, 100);
    kr_program_pages(&p, 1, 1, pages);
    assert_int_equal(pages[0] + pages[1], 2);
    kr_program_pages(&p, 512, 1, pages);
    assert_int_equal(pages[1], 4);
    kr_program_pages(&p, 32768, 1, pages);
    assert_int_equal(pages[0], 256);
    assert_int_equal(pages[1], 5); /* 512 tokens may begin inside a page */
    kr_program_pages(&p, 32768, 256, pages);
    assert_int_equal(pages[1], 7); /* 511 before a message of 256, as the node promises */
}

static kr_program build_method(const kr_model *model, const char *method, uint32_t tp, kr_placement placement)
{
    kr_method_config configs[KR_LAYERS_MAX] = {0};
    kr_parallel parallel = as_served;

    parallel.tp = tp;
    parallel.placement = placement;
    if (model->moe.experts == 0)
        parallel.ep = 1;
    for (uint32_t l = 0; l < model->layers; l++) {
        memcpy(configs[l].name, method, strlen(method));
        configs[l].dense_layers = UINT32_MAX;
    }
    return build_with(model, configs, &parallel);
}

/* Tensor parallelism splits KV heads, and with them what one accelerator keeps and reads; of MLA it splits
 * the products alone, since all heads share the latent row. A memory device has all heads. */
static void tensor_parallel_attention(void **state)
{
    const kr_model llama = load("llama-3-70b"), deepseek = load("deepseek-v3.2");
    const kr_program one = build_method(&llama, "dense", 1, KR_PLACE_ALL_ON_COMPUTE);
    const kr_program eight = build_method(&llama, "dense", 8, KR_PLACE_ALL_ON_COMPUTE);
    const kr_program node = build_method(&llama, "dense", 8, KR_PLACE_ALL_ON_NODE);
    const kr_program latent = build_method(&deepseek, "native", 1, KR_PLACE_ALL_ON_COMPUTE);
    const kr_program latents = build_method(&deepseek, "native", 8, KR_PLACE_ALL_ON_COMPUTE);
    const kr_work whole = layer_work(&one, KR_OP_ATTEND, 5, 1 << 16);
    const kr_work part = layer_work(&eight, KR_OP_ATTEND, 5, 1 << 16);
    const kr_work remote = layer_work(&node, KR_OP_ATTEND, 5, 1 << 16);
    const kr_work mla = layer_work(&latent, KR_OP_ATTEND, 5, 1 << 16);
    const kr_work mla_part = layer_work(&latents, KR_OP_ATTEND, 5, 1 << 16);
    kr_memory_plan memory, memory_part;
    kr_err err;

    (void)state;
    assert_int_equal(whole.read_bytes, 8 * part.read_bytes);
    assert_int_equal(whole.flops, 8 * part.flops);
    assert_int_equal(remote.read_bytes, whole.read_bytes);
    assert_int_equal(mla.read_bytes, mla_part.read_bytes);
    assert_int_equal(mla.flops, 8 * mla_part.flops);
    assert_int_equal(layer_work(&latent, KR_OP_SCORE, 5, 1 << 16).read_bytes,
                     layer_work(&latents, KR_OP_SCORE, 5, 1 << 16).read_bytes);
    assert_int_equal(kr_program_memory(&one, 1 << 16, 1, &memory, &err), KR_OK);
    assert_int_equal(kr_program_memory(&eight, 1 << 16, 1, &memory_part, &err), KR_OK);
    assert_int_equal(memory.kv_token_bytes, 8 * memory_part.kv_token_bytes);
}

/* Methods without a bound are priced by what they attend on average: MagicPIG's default 10 bits and 150
 * tables sample 1.57 % of random keys of 128 elements (their weight over all angles), and 68 tokens
 * exactly; SnapKV its cap; RetroInfer 1.8 % and what is not clustered yet. */
static void varying_numbers(void **state)
{
    static const struct {
        const char *method;
        uint64_t low, high;
    } want[] = {{"magicpig", 68 + 1560 * 100, 68 + 1580 * 100},
                {"snapkv", 2048, 2048},
                {"retroinfer", 68 + 512 + 7200, 68 + 512 + 7200}};

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        kr_method_config config = {.dense_layers = 0};
        const kr_attention_shape shape = {.heads = 64,
                                          .kv_heads = 8,
                                          .key_dim = 128,
                                          .value_dim = 128,
                                          .kv_dtype = KR_BF16,
                                          .layer = 5,
                                          .layers = 80};
        const uint64_t context = i == 2 ? 400000 : 10000000;
        const kr_method *method;
        kr_method_plan plan;
        kr_load load;
        kr_err err;

        assert_int_equal(kr_method_find(want[i].method, &method, &err), KR_OK);
        if (method->plan(&config, &shape, context, &plan, &err) != KR_OK)
            fail_msg("%s", err.text);
        load = kr_row_load(&plan, context);
        if (load.attended_tokens < want[i].low || load.attended_tokens > want[i].high)
            fail_msg("%s attends %llu tokens", want[i].method, (unsigned long long)load.attended_tokens);
        assert_int_equal(kr_row_load(&plan, 50).attended_tokens, 50);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paper_transfers),
        cmocka_unit_test(absorbed_transfers),
        cmocka_unit_test(paper_intensities),
        cmocka_unit_test(device_reads),
        cmocka_unit_test(paper_capacities),
        cmocka_unit_test(paper_scan_times),
        cmocka_unit_test(flops_per_token),
        cmocka_unit_test(weight_bytes),
        cmocka_unit_test(page_bytes),
        cmocka_unit_test(pages_of_windows),
        cmocka_unit_test(tensor_parallel_attention),
        cmocka_unit_test(varying_numbers),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
