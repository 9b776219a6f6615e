/* Structure of step programs: every dep comes earlier, the static orders are complete and respect
 * the deps, placements put each stage where they say, impossible configurations are refused by
 * name, and two builds agree. */
#include <stdlib.h>
#include <string.h>

#include "method/native.h"
#include "tests/program/fixture.h"

static const kr_parallel one_rank = {
    .tp = 1,
    .ep = 1,
    .dp = 1,
    .micro_batches = 1,
    .placement = KR_PLACE_ALL_ON_NODE,
    .activation = KR_BF16,
    .dispatch = KR_E4M3,
    .combine = KR_BF16,
};

static uint32_t count_kind(const kr_program *p, kr_op_kind kind)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->count; i++)
        n += p->ops[i].kind == kind;
    return n;
}

static const kr_op *find(const kr_program *p, kr_op_kind kind, uint32_t layer, uint32_t micro_batch)
{
    for (uint32_t i = 0; i < p->count; i++)
        if (p->ops[i].kind == kind && p->ops[i].layer == layer && p->ops[i].micro_batch == micro_batch)
            return &p->ops[i];
    return NULL;
}

static bool depends(const kr_program *p, const kr_op *op, const kr_op *on)
{
    for (uint32_t d = 0; op != NULL && d < op->dep_count; d++)
        if (op->dep[d] == (uint32_t)(on - p->ops))
            return true;
    return false;
}

/* Deps are earlier and in the same micro-batch; each class's order holds each of its ops once, and
 * running the four orders side by side never gets stuck. */
static void check_structure(const kr_program *p)
{
    uint8_t *done = calloc(p->count, 1);
    uint32_t next[KR_RESOURCE_COUNT] = {0}, all = 0;
    bool progress = true;

    for (uint32_t i = 0; i < p->count; i++) {
        assert_true(p->ops[i].cost < p->costs);
        for (uint32_t d = 0; d < p->ops[i].dep_count; d++) {
            assert_true(p->ops[i].dep[d] < i);
            assert_int_equal(p->ops[p->ops[i].dep[d]].micro_batch, p->ops[i].micro_batch);
        }
    }
    for (uint32_t m = 0; m < p->parallel.micro_batches; m++)
        for (uint32_t i = p->first_of_micro_batch[m]; i < p->first_of_micro_batch[m + 1]; i++)
            assert_int_equal(p->ops[i].micro_batch, m);
    assert_int_equal(p->first_of_micro_batch[p->parallel.micro_batches], p->count);
    while (progress) {
        progress = false;
        for (uint32_t r = 0; r < KR_RESOURCE_COUNT; r++) {
            while (next[r] < p->order_count[r]) {
                const uint32_t op = p->order[r][next[r]];
                bool ready = true;

                assert_int_equal(p->ops[op].resource, r);
                for (uint32_t d = 0; d < p->ops[op].dep_count; d++)
                    ready &= done[p->ops[op].dep[d]];
                if (!ready)
                    break;
                assert_false(done[op]);
                done[op] = 1;
                next[r]++;
                all++;
                progress = true;
            }
        }
    }
    assert_int_equal(all, p->count);
    free(done);
}

static void every_combination_is_sound(void **state)
{
    static const char *const models[] = {"deepseek-v3.2", "glm-5.2", "minimax-m3", "smollm2-135m",
                                         "gemma-3-270m"};
    uint32_t built = 0;

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        const kr_model m = load(models[i]);

        for (uint32_t c = 0; c < 3 * 3 * 2 * 2 * 2; c++) {
            kr_parallel p = one_rank;

            p.placement = (kr_placement)(c % 3);
            p.micro_batches = (uint32_t[]){1, 2, 5}[c / 3 % 3];
            p.ep = c / 9 % 2 && m.moe.experts != 0 ? 16 : 1;
            p.tp = c / 18 % 2 && m.heads % 2 == 0 ? 2 : 1;
            p.absorb_on_memory = c / 36 % 2;
            assert_int_equal(teardown(NULL) + setup(NULL), 0);
            const kr_program a = build(&m, &p), b = build(&m, &p);

            check_structure(&a);
            assert_int_equal(kr_program_digest(&a), kr_program_digest(&b));
            assert_int_equal(count_kind(&a, KR_OP_ATTEND), m.layers * p.micro_batches);
            built++;
        }
    }
    assert_int_equal(built, 5 * 72);
}

static void index_goes_first(void **state)
{
    const kr_model m = load("glm-5.2");
    const kr_program p = build(&m, &one_rank);
    const kr_op *score = find(&p, KR_OP_SCORE, 2, 0), *attend = find(&p, KR_OP_ATTEND, 2, 0);

    (void)state;
    assert_true(find(&p, KR_OP_SEND_INDEX, 2, 0) < find(&p, KR_OP_SEND_QKV, 2, 0));
    assert_true(depends(&p, score, find(&p, KR_OP_SEND_INDEX, 2, 0)));
    assert_int_equal(score->dep_count, 1); /* Score does not wait for keys and values */
    assert_true(depends(&p, attend, find(&p, KR_OP_SELECT, 2, 0)));
    assert_true(depends(&p, attend, find(&p, KR_OP_APPEND, 2, 0)));
    /* Layers 3 to 5 attend by the selection of layer 2 and score nothing. */
    assert_int_equal(count_kind(&p, KR_OP_SCORE), 21);
    for (uint32_t l = 3; l < 6; l++) {
        assert_null(find(&p, KR_OP_SCORE, l, 0));
        assert_true(depends(&p, find(&p, KR_OP_ATTEND, l, 0), find(&p, KR_OP_SELECT, 2, 0)));
    }
}

static void placements(void **state)
{
    const kr_model m = load("minimax-m3");
    kr_parallel parallel = one_rank;
    kr_program p;
    kr_work work;

    (void)state;
    parallel.placement = KR_PLACE_ALL_ON_COMPUTE;
    p = build(&m, &parallel);
    assert_int_equal(p.order_count[KR_ON_DEVICE] + p.order_count[KR_ON_LINK], 0);
    parallel.placement = KR_PLACE_INDICES_ONLY;
    p = build(&m, &parallel);
    assert_int_equal(find(&p, KR_OP_SCORE, 3, 0)->resource, KR_ON_DEVICE);
    assert_int_equal(find(&p, KR_OP_SELECT, 3, 0)->resource, KR_ON_DEVICE);
    assert_int_equal(find(&p, KR_OP_GATHER, 3, 0)->resource, KR_ON_COMPUTE);
    assert_int_equal(find(&p, KR_OP_ATTEND, 3, 0)->resource, KR_ON_COMPUTE);
    assert_int_equal(find(&p, KR_OP_ATTEND, 0, 0)->resource, KR_ON_COMPUTE);
    assert_null(find(&p, KR_OP_SEND_QKV, 3, 0));
    assert_int_equal(count_kind(&p, KR_OP_RETURN_INDICES), 57);
    /* 16 block numbers for each of 4 KV heads. */
    work = kr_op_work(&p, find(&p, KR_OP_RETURN_INDICES, 3, 0), &(kr_load){.rows = 1});
    assert_int_equal(work.move_bytes, 256);
}

/* SCMS: output projection to QKV projection of the next layer is one block, blocks alternate. */
static void coarse_blocks_alternate(void **state)
{
    const kr_model m = load("glm-5.2");
    kr_parallel parallel = one_rank;
    static const struct {
        kr_op_kind kind;
        uint32_t layer, micro_batch;
    } want[] = {
        {KR_OP_EMBED, 0, 0},  {KR_OP_QKV, 0, 0},    {KR_OP_INDEX_PROJECT, 0, 0}, {KR_OP_Q_UP, 0, 0},
        {KR_OP_ABSORB, 0, 0}, {KR_OP_EMBED, 0, 1},  {KR_OP_QKV, 0, 1},           {KR_OP_INDEX_PROJECT, 0, 1},
        {KR_OP_Q_UP, 0, 1},   {KR_OP_ABSORB, 0, 1}, {KR_OP_V_UP, 0, 0},          {KR_OP_O_PROJ, 0, 0},
        {KR_OP_FFN, 0, 0},    {KR_OP_QKV, 1, 0},    {KR_OP_INDEX_PROJECT, 1, 0}, {KR_OP_Q_UP, 1, 0},
        {KR_OP_ABSORB, 1, 0}, {KR_OP_V_UP, 0, 1},
    };
    kr_program p;

    (void)state;
    parallel.micro_batches = 2;
    parallel.ep = 16;
    p = build(&m, &parallel);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const kr_op *op = &p.ops[p.order[KR_ON_COMPUTE][i]];

        assert_int_equal(op->kind, want[i].kind);
        assert_int_equal(op->layer, want[i].layer);
        assert_int_equal(op->micro_batch, want[i].micro_batch);
    }
}

static void refuse(const kr_model *m, const kr_parallel *p, const kr_method_config *configs, uint64_t context,
                   kr_status status, const char *words)
{
    kr_program program;
    kr_err err = {0};

    assert_int_equal(kr_program_build(&program, &arena, m, configs, p, context, &err), status);
    if (strstr(err.text, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

static void impossible_configurations(void **state)
{
    const kr_model m = load("glm-5.2");
    kr_method_config configs[KR_LAYERS_MAX];
    kr_parallel p = one_rank;
    kr_arena small = {0}, whole = arena;
    kr_err err;

    (void)state;
    p.micro_batches = 9;
    refuse(&m, &p, native, 1024, KR_E_ARG, "micro-batches");
    p = one_rank, p.tp = 3;
    refuse(&m, &p, native, 1024, KR_E_ARG, "tp 3");
    p = one_rank, p.ep = 257;
    refuse(&m, &p, native, 1024, KR_E_ARG, "ep 257");
    p = one_rank;
    refuse(&m, &p, native, 0, KR_E_LIMIT, "context 0");
    memcpy(configs, native, sizeof configs);
    memcpy(configs[5].name, "nothing", 8);
    refuse(&m, &p, configs, 1024, KR_E_NOT_FOUND, "nothing");
    /* Layer 2 made dense: layer 3 would use a selection that nobody makes. */
    memcpy(configs, native, sizeof configs);
    memcpy(configs[2].name, "dense", 6);
    refuse(&m, &p, configs, 1024, KR_E_UNSUPPORTED, "layer 3");
    assert_int_equal(kr_arena_init(&small, 16384, &err), KR_OK);
    arena = small;
    refuse(&m, &p, native, 1024, KR_E_MEMORY, "arena");
    kr_arena_free(&arena);
    arena = whole;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_is_sound),
        cmocka_unit_test(index_goes_first),
        cmocka_unit_test(placements),
        cmocka_unit_test(coarse_blocks_alternate),
        cmocka_unit_test(impossible_configurations),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
