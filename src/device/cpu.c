/* The probe of this CPU: what its units do, how fast it reads, which variant of each op to take. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "device/device.h"
#include "ops/probe.h"
#include "ops/variants.h"

enum {
    RUNS = 3,                /* of each timing; the shortest counts */
    PROBE_ITERATIONS = 2000, /* some 10 us at full rate */
    READ_BYTES = 64 << 20,   /* past the last-level cache of most */
    DIM = 64,
    ROWS = 3,
    GROUP = 16,
    POSITIONS = 128,
    TILE = 16,
    SCORES = 4096,
    TOP = 64,
    UNITS = 256,
    PAGE_TOKENS = 128
};

/* Inputs of the ops, small enough for the second-level cache. */
typedef struct {
    _Alignas(64) float scratch[96 * 1024];
    float query[GROUP * DIM], score[SCORES], out[SCORES], small[64];
    uint16_t key[SCORES * DIM];
    const void *tile[POSITIONS / TILE], *unit[UNITS], *row[POSITIONS];
    const float *rows[GROUP];
    uint32_t from[GROUP], to[GROUP], position[TOP], channel[16];
} sample;

/* The thread's own time, so that a crowded machine neither spends the budget nor spoils a choice. */
static uint64_t now(void) { return kr_now_ns(&kr_clock_thread); }

static void fill(sample *s)
{
    for (uint32_t i = 0; i < SCORES; i++)
        s->score[i] = sinf((float)(i * i % 9973));
    for (uint32_t i = 0; i < SCORES * DIM; i++)
        s->key[i] = kr_bf16_from_f32(s->score[i % SCORES]);
    for (uint32_t i = 0; i < GROUP * DIM; i++)
        s->query[i] = s->score[i];
    for (uint32_t t = 0; t < POSITIONS / TILE; t++)
        s->tile[t] = s->key + t * TILE * DIM;
    for (uint32_t u = 0; u < UNITS; u++)
        s->unit[u] = s->key + u * 2 * DIM;
    for (uint32_t i = 0; i < POSITIONS; i++)
        s->row[i] = s->key + i * DIM;
    for (uint32_t r = 0; r < GROUP; r++) {
        s->rows[r] = s->query + r * DIM;
        s->to[r] = POSITIONS;
    }
    for (uint32_t c = 0; c < 16; c++)
        s->channel[c] = 3 * c;
}

/* ---- one call of each op on the sample ---- */

static void call_attend_tiled(sample *s, kr_attend_tiled_fn run)
{
    run(&(kr_attend_tiled_args){
        .query = s->rows,
        .from = s->from,
        .to = s->to,
        .rows = ROWS,
        .key_tile = s->tile,
        .value_row = s->tile,
        .positions = POSITIONS,
        .key_dim = DIM,
        .value_dim = DIM,
        .type = KR_BF16,
        .scale = 0.125f,
        .scores = s->scratch,
        .maximum = s->small,
        .sum = s->small + ROWS,
        .accumulator = s->out,
    });
}

static void call_page_bounds(sample *s, kr_page_bounds_fn run)
{
    run(&(kr_page_bounds_args){
        .key_tile = s->key, .count = TILE, .reset = true, .dim = DIM, .type = KR_BF16, .bounds = s->scratch});
}

static void call_page_score(sample *s, kr_page_score_fn run)
{
    run(&(kr_page_score_args){.query = s->query,
                              .bounds = s->unit,
                              .units = UNITS,
                              .dim = DIM,
                              .type = KR_BF16,
                              .score = s->out,
                              .queries = ROWS,
                              .query_stride = DIM,
                              .score_stride = UNITS});
}

static void call_select_topk(sample *s, kr_select_topk_fn run)
{
    uint64_t nan = 0;

    run(&(kr_select_topk_args){.score = s->score,
                               .n = SCORES,
                               .k = TOP,
                               .position = s->position,
                               .scratch = s->scratch,
                               .nan_count = &nan});
}

static void call_attend_rows(sample *s, kr_attend_rows_fn run)
{
    run(&(kr_attend_rows_args){
        .query = s->rows,
        .from = s->from,
        .to = s->to,
        .key_row = s->row,
        .value_row = s->row,
        .rows = GROUP,
        .positions = POSITIONS,
        .key_dim = DIM,
        .value_dim = DIM,
        .type = KR_BF16,
        .scale = 0.125f,
        .scratch = s->scratch,
        .maximum = s->small,
        .sum = s->small + GROUP,
        .accumulator = s->out,
    });
}

static void call_dsa_score(sample *s, kr_dsa_score_fn run)
{
    const uint8_t *key = (const uint8_t *)s->key;
    const float *scale = s->score;

    run(&(kr_dsa_score_args){.query = key,
                             .weight = s->query,
                             .key = &key,
                             .scale = &scale,
                             .run_tokens = PAGE_TOKENS,
                             .heads = 16,
                             .dim = DIM,
                             .tokens = PAGE_TOKENS,
                             .score = s->out});
}

static void call_block_score(sample *s, kr_block_score_fn run)
{
    const uint16_t *key = s->key;

    run(&(kr_block_score_args){.query = s->query,
                               .key = &key,
                               .heads = ROWS,
                               .dim = DIM,
                               .block_tokens = PAGE_TOKENS,
                               .blocks = 1,
                               .tokens = PAGE_TOKENS,
                               .score = s->out,
                               .score_stride = 1});
}

static void call_row_dot(sample *s, kr_row_dot_fn run)
{
    run(&(kr_row_dot_args){.query = s->query,
                           .queries = ROWS,
                           .query_stride = DIM,
                           .dim = DIM,
                           .type = KR_BF16,
                           .row = s->key,
                           .rows = POSITIONS,
                           .row_stride = DIM,
                           .out = s->out,
                           .out_stride = POSITIONS});
}

static void call_channel_dot(sample *s, kr_channel_dot_fn run)
{
    run(&(kr_channel_dot_args){.query = s->query,
                               .queries = ROWS,
                               .channels = 16,
                               .channel = s->channel,
                               .type = KR_BF16,
                               .key = s->key,
                               .key_stride = 512,
                               .tokens = 512,
                               .score = s->out,
                               .score_stride = 512});
}

static void call_softmax(sample *s, kr_softmax_fn run)
{
    memcpy(s->out, s->score, sizeof s->out);
    run(&(kr_softmax_args){.score = s->out, .n = SCORES, .scale = 1.0f, .out = s->out});
}

static void call_argmax(sample *s, kr_argmax_fn run)
{
    for (uint32_t i = 0; i < TOP; i++)
        s->position[i] = (uint32_t)run(s->score, SCORES);
}

/* ---- choosing ---- */

/* A variant that rounds its inputs, or sums in another order, is a person's choice, never the probe's. */
static bool keeps_the_bits(const char *name) { return strstr(name, "bf16") == NULL; }

static void note(kr_cpu_probe *probe, const char *op, const char *variant)
{
    const size_t used = strlen(probe->chosen);

    snprintf(probe->chosen + used, sizeof probe->chosen - used, "%s%s %s", used > 0 ? ", " : "", op, variant);
}

/* Sets ops->FIELD to the fastest variant. The list is best first, so that its first usable entry is
 * the choice when time is up. */
#define CHOOSE(FIELD, CALL, LIST)                                                       \
    do {                                                                                \
        const char *best_name = NULL;                                                   \
        uint64_t best = UINT64_MAX;                                                     \
                                                                                        \
        for (size_t v = 0; LIST[v].run != NULL; v++) {                                  \
            uint64_t shortest = UINT64_MAX;                                             \
                                                                                        \
            if (!LIST[v].variant.usable() || !keeps_the_bits(LIST[v].variant.name))     \
                continue;                                                               \
            for (int r = 0; r < RUNS && (best_name == NULL || now() < deadline); r++) { \
                const uint64_t begin = now();                                           \
                CALL(s, LIST[v].run);                                                   \
                const uint64_t taken = now() - begin;                                   \
                shortest = taken < shortest ? taken : shortest;                         \
            }                                                                           \
            if (best_name == NULL || shortest < best) {                                 \
                best = shortest;                                                        \
                best_name = LIST[v].variant.name;                                       \
                ops->FIELD = LIST[v].run;                                               \
            }                                                                           \
        }                                                                               \
        note(probe, #FIELD, best_name);                                                 \
    } while (0)

static void choose(sample *s, kr_ops *ops, kr_cpu_probe *probe, uint64_t deadline)
{
    CHOOSE(attend_tiled, call_attend_tiled, kr_attend_tiled_variants);
    CHOOSE(page_bounds_append, call_page_bounds, kr_page_bounds_variants);
    CHOOSE(page_score, call_page_score, kr_page_score_variants);
    CHOOSE(select_topk, call_select_topk, kr_select_topk_variants);
    CHOOSE(attend_rows, call_attend_rows, kr_attend_rows_variants);
    CHOOSE(dsa_score, call_dsa_score, kr_dsa_score_variants);
    CHOOSE(block_score, call_block_score, kr_block_score_variants);
    CHOOSE(row_dot, call_row_dot, kr_row_dot_variants);
    CHOOSE(channel_dot, call_channel_dot, kr_channel_dot_variants);
    CHOOSE(softmax, call_softmax, kr_softmax_variants);
    CHOOSE(argmax, call_argmax, kr_argmax_variants);
}

/* ---- rates ---- */

static void measure_units(kr_cpu_probe *probe, uint64_t deadline)
{
    double *const rate[KR_PROBE_UNITS] = {&probe->f32_fma_flops, &probe->bf16_dot_flops,
                                          &probe->fp16_fma_flops, &probe->int8_dot_ops};

    for (const kr_probe *p = kr_probes; p->name != NULL; p++)
        for (int r = 0; r < RUNS && p->usable() && now() < deadline; r++) {
            volatile float kept;
            float sink;
            const uint64_t begin = now();
            const double ops = p->run(PROBE_ITERATIONS, &sink), seconds = (double)(now() - begin) * 1e-9;

            kept = sink;
            (void)kept;
            if (seconds > 0 && ops / seconds > *rate[p->unit])
                *rate[p->unit] = ops / seconds;
        }
}

static void measure_read(kr_cpu_probe *probe, uint64_t deadline)
{
    kr_arena arena;
    volatile uint64_t kept;

    if (now() >= deadline || kr_arena_init(&arena, READ_BYTES, NULL) != KR_OK)
        return;
    memset(arena.base, 1, READ_BYTES);
    const uint64_t begin = now();
    kept = kr_probe_read(arena.base, READ_BYTES);
    const uint64_t taken = now() - begin;
    (void)kept;
    probe->read_bytes_per_s = taken > 0 ? READ_BYTES / ((double)taken * 1e-9) : 0;
    kr_arena_free(&arena);
}

static void name_cpu(kr_cpu_probe *probe)
{
    char line[256];
    FILE *info = fopen("/proc/cpuinfo", "r");

    snprintf(probe->cpu, sizeof probe->cpu, "unknown CPU");
    while (info != NULL && fgets(line, sizeof line, info) != NULL) {
        const char *value = strstr(line, ": ");
        if (strncmp(line, "model name", 10) != 0 || value == NULL)
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(probe->cpu, sizeof probe->cpu, "%.*s", (int)sizeof probe->cpu - 1, value + 2);
        break;
    }
    if (info != NULL)
        fclose(info);
}

void kr_cpu_choose(uint32_t budget_ms, kr_ops *ops, kr_cpu_probe *probe)
{
    const uint64_t begin = now(), budget = (uint64_t)budget_ms * 1000000;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    kr_arena memory;

    *ops = kr_ops_scalar;
    *probe = (kr_cpu_probe){.cores = cores > 0 ? (uint32_t)cores : 1};
    name_cpu(probe);
    if (kr_arena_init(&memory, sizeof(sample), NULL) != KR_OK) {
        note(probe, "all ops", "scalar (no memory to probe)");
        return;
    }
    sample *s = kr_arena_take(&memory, sizeof *s);
    fill(s);
    choose(s, ops, probe, begin + budget / 2);
    measure_units(probe, begin + budget * 3 / 4);
    measure_read(probe, begin + budget);
    kr_arena_free(&memory);
}
