/* One window of each kernel, and the shapes it is run at. A window touches new memory when its thread is
 * cold and the same memory when it is warm. */
#include "eval/bench_cases.h"

#include <string.h>

enum { KV_ROWS_MAX = 4096 };

/* A thread's memory inside its scratch. */
typedef struct {
    const void *key[KV_ROWS_MAX], *value[KV_ROWS_MAX];
    const float *query[KR_ATTEND_ROWS_MAX];
    uint32_t from[KR_ATTEND_ROWS_MAX], to[KR_ATTEND_ROWS_MAX];
    float maximum[KR_ATTEND_ROWS_MAX], sum[KR_ATTEND_ROWS_MAX];
    float out[1 << 17];
    _Alignas(64) uint8_t op[4 << 20];
} memory;

size_t bench_scratch_bytes(void) { return sizeof(memory); }

/* Start of the thread's next stretch of bytes: cold walks its share of the pool, warm stays. */
static const uint8_t *next_stretch(bench_thread *t, uint64_t bytes)
{
    const uint64_t share = t->pool_bytes / t->threads, stretches = share / bytes;

    return t->pool + t->number * share + (t->cold ? t->cursor++ % stretches : 0) * bytes;
}

/* A number below n that depends on the thread's window and on i: scattered rows, cheaply. */
static uint64_t scattered(const bench_thread *t, uint64_t i, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)((i + t->cursor * 1000003u) * 0x9e3779b97f4a7c15u) * n) >> 64);
}

static void run_dsa_score(bench_thread *t, const void *context)
{
    const bench_case *c = context;
    memory *m = t->scratch;
    const uint64_t key_bytes = (uint64_t)c->tokens * c->dim, page = (uint64_t)c->run_tokens * (c->dim + 4);
    const uint8_t *at = next_stretch(t, key_bytes + c->tokens * 4);
    const uint32_t pages = c->tokens / c->run_tokens;

    for (uint32_t p = 0; p < pages; p++) {
        m->key[p] = at + p * page;
        m->value[p] = at + p * page + (uint64_t)c->run_tokens * c->dim; /* scales */
    }
    c->fn.dsa_score(&(kr_dsa_score_args){
        .query = t->pool + t->pool_bytes / 2,
        .weight = t->queries,
        .key = (const uint8_t *const *)m->key,
        .scale = (const float *const *)m->value,
        .run_tokens = c->run_tokens,
        .heads = c->heads,
        .dim = c->dim,
        .tokens = c->tokens,
        .score = m->out,
    });
}

static void run_block_score(bench_thread *t, const void *context)
{
    const bench_case *c = context;
    memory *m = t->scratch;
    const uint64_t block = 2ull * c->run_tokens * c->dim;
    const uint32_t blocks = c->tokens / c->run_tokens;
    const uint8_t *at = next_stretch(t, blocks * block);

    for (uint32_t b = 0; b < blocks; b++)
        m->key[b] = at + b * block;
    c->fn.block_score(&(kr_block_score_args){
        .query = t->queries,
        .key = (const uint16_t *const *)m->key,
        .heads = c->heads,
        .dim = c->dim,
        .block_tokens = c->run_tokens,
        .blocks = blocks,
        .tokens = c->tokens,
        .score = m->out,
        .score_stride = blocks,
    });
}

/* Gathered rows: runs of run_tokens tokens scattered over the pool (cold) or over 8 MiB of it (warm). MLA
 * rows hold their values; otherwise keys lie in the first half of the pool and values in the second. */
static void run_attend_rows(bench_thread *t, const void *context)
{
    const bench_case *c = context;
    memory *m = t->scratch;
    const uint64_t row = 2ull * c->dim, pool = t->cold ? t->pool_bytes : 8u << 20;
    const uint64_t half = t->pool_bytes / 2 / row * row;
    const bool latent = c->value_dim != c->dim;
    const uint64_t runs = (latent ? pool : pool / 2) / row / c->run_tokens;

    t->cursor += t->cold;
    for (uint32_t i = 0; i < c->tokens; i++) {
        const uint64_t run = scattered(t, i / c->run_tokens * 2 + t->number, runs);
        const uint64_t at = (run * c->run_tokens + i % c->run_tokens) * row;

        m->key[i] = t->pool + at;
        m->value[i] = latent ? m->key[i] : t->pool + half + at;
    }
    for (uint32_t r = 0; r < c->heads; r++) {
        m->query[r] = t->queries + (size_t)r * c->dim;
        m->from[r] = 0;
        m->to[r] = KR_ATTEND_POSITIONS_MAX;
    }
    for (uint32_t i = 0; i < c->tokens; i += KR_ATTEND_POSITIONS_MAX)
        c->fn.attend_rows(&(kr_attend_rows_args){
            .query = m->query,
            .from = m->from,
            .to = m->to,
            .key_row = m->key + i,
            .value_row = m->value + i,
            .rows = c->heads,
            .positions = KR_ATTEND_POSITIONS_MAX,
            .key_dim = c->dim,
            .value_dim = c->value_dim,
            .type = c->fill == BENCH_FILL_F16 ? KR_F16 : KR_BF16,
            .scale = 0.05f,
            .scratch = m->op,
            .maximum = m->maximum,
            .sum = m->sum,
            .accumulator = m->out,
        });
}

static void run_attend_tiled(bench_thread *t, const void *context)
{
    const bench_case *c = context;
    memory *m = t->scratch;
    const uint64_t tile = 2ull * KR_BLOCK_TILE * c->dim;
    const uint32_t tiles = c->tokens / KR_BLOCK_TILE;
    const uint8_t *at = next_stretch(t, 2 * tile * tiles);

    for (uint32_t i = 0; i < tiles; i++) {
        m->key[i] = at + i * tile;
        m->value[i] = at + (tiles + i) * tile;
    }
    for (uint32_t r = 0; r < c->heads; r++) {
        m->query[r] = t->queries + (size_t)r * c->dim;
        m->from[r] = 0;
        m->to[r] = c->tokens;
    }
    c->fn.attend_tiled(&(kr_attend_tiled_args){
        .query = m->query,
        .from = m->from,
        .to = m->to,
        .rows = c->heads,
        .key_tile = m->key,
        .value_row = m->value,
        .positions = c->tokens,
        .key_dim = c->dim,
        .value_dim = c->dim,
        .type = KR_BF16,
        .scale = 0.05f,
        .scores = (float *)(void *)m->op,
        .maximum = m->maximum,
        .sum = m->sum,
        .accumulator = m->out,
    });
}

static void run_row_dot(bench_thread *t, const void *context)
{
    const bench_case *c = context;
    memory *m = t->scratch;

    c->fn.row_dot(&(kr_row_dot_args){
        .query = t->queries,
        .queries = c->heads,
        .query_stride = c->dim,
        .dim = c->dim,
        .type = KR_BF16,
        .row = next_stretch(t, 2ull * c->tokens * c->dim),
        .rows = c->tokens,
        .row_stride = c->dim,
        .out = m->out,
        .out_stride = c->tokens,
    });
}

static void run_channel_dot(bench_thread *t, const void *context)
{
    const bench_case *c = context;
    memory *m = t->scratch;
    const uint64_t page = 2ull * c->run_tokens * c->value_dim;
    const uint8_t *at = next_stretch(t, page * (c->tokens / c->run_tokens));
    uint32_t channel[KR_CHANNELS_MAX];

    for (uint32_t j = 0; j < c->dim; j++)
        channel[j] = j * (c->value_dim / c->dim);
    for (uint32_t i = 0; i < c->tokens; i += c->run_tokens)
        c->fn.channel_dot(&(kr_channel_dot_args){
            .query = t->queries,
            .channel = channel,
            .queries = c->heads,
            .channels = c->dim,
            .type = KR_BF16,
            .key = at + i / c->run_tokens * page,
            .key_stride = c->run_tokens,
            .tokens = c->run_tokens,
            .score = m->out + i,
            .score_stride = c->tokens,
        });
}

static void run_page_score(bench_thread *t, const void *context)
{
    const bench_case *c = context;
    memory *m = t->scratch;
    const uint64_t bounds = 4ull * c->dim;
    const uint32_t units = c->tokens / c->run_tokens;
    const uint8_t *at = next_stretch(t, bounds * units);

    for (uint32_t u = 0; u < units; u++)
        m->key[u] = at + u * bounds;
    c->fn.page_score(&(kr_page_score_args){
        .query = t->queries,
        .bounds = m->key,
        .units = units,
        .dim = c->dim,
        .type = KR_BF16,
        .score = m->out,
        .queries = c->heads,
        .query_stride = c->dim,
        .score_stride = units,
    });
}

/* ---- the list ---- */

/* FLOPs and bytes a token; the variant decides which unit is the limit. */
static bench_case with_work(bench_case c)
{
    const double tokens = c.tokens, pairs = tokens * c.heads;

    if (c.run == run_dsa_score) {
        c.flops = 2.0 * pairs * c.dim, c.bytes = tokens * (c.dim + 4);
        c.limit = strstr(c.variant, "bf16") != NULL ? KR_LIMIT_BF16 : KR_LIMIT_F32;
    } else if (c.run == run_block_score || c.run == run_row_dot) {
        c.flops = 2.0 * pairs * c.dim, c.bytes = 2.0 * tokens * c.dim;
        c.limit = strstr(c.variant, "bf16") != NULL ? KR_LIMIT_ROOFLINE_BF16 : KR_LIMIT_ROOFLINE;
    } else if (c.run == run_attend_rows || c.run == run_attend_tiled) {
        const bool latent = c.value_dim != c.dim;

        c.flops = 2.0 * pairs * (c.dim + c.value_dim), c.bytes = 2.0 * tokens * (latent ? c.dim : 2 * c.dim);
        c.limit = latent ? KR_LIMIT_F32 : KR_LIMIT_ROOFLINE;
    } else if (c.run == run_channel_dot) {
        c.flops = 2.0 * pairs * c.dim, c.bytes = 2.0 * tokens * c.dim;
        c.limit = KR_LIMIT_ROOFLINE;
    } else { /* page_score: two products, a maximum, an addition a channel */
        c.flops = 4.0 * pairs / c.run_tokens * c.dim, c.bytes = 4.0 * tokens / c.run_tokens * c.dim;
        c.limit = KR_LIMIT_ROOFLINE;
    }
    return c;
}

#define VISIT(OP, SHAPES)                                                          \
    for (size_t s = 0; s < sizeof SHAPES / sizeof *SHAPES; s++)                    \
        for (size_t v = 0; kr_##OP##_variants[v].run != NULL; v++) {               \
            bench_case c = SHAPES[s];                                              \
                                                                                   \
            c.kernel = #OP, c.run = run_##OP, c.fn.OP = kr_##OP##_variants[v].run; \
            c.variant = kr_##OP##_variants[v].variant.name;                        \
            if (strcmp(c.variant, "scalar") != 0) {                                \
                c = with_work(c);                                                  \
                visit(&c, kr_##OP##_variants[v].variant.usable(), context);        \
            }                                                                      \
        }

#define E4M3 BENCH_FILL_E4M3
#define F16 BENCH_FILL_F16
#define BF16 BENCH_FILL_BF16
#define SHAPE(text, content, h, d, vd, t, run)                                              \
    {                                                                                       \
        .shape = text, .fill = content, .heads = h, .dim = d, .value_dim = vd, .tokens = t, \
        .run_tokens = run                                                                   \
    }

/* Text, pool content, heads, dim, value dim, tokens of a window, contiguous tokens. */
static const bench_case dsa_shapes[] = {
    SHAPE("DeepSeek-V3.2, 64 x 128", E4M3, 64, 128, 0, 8192, 128),
    SHAPE("GLM-5.2, 32 x 128", E4M3, 32, 128, 0, 8192, 128),
};
static const bench_case block_shapes[] = {SHAPE("MiniMax-M3, 4 x 128", BF16, 4, 128, 0, 32768, 128)};
static const bench_case rows_shapes[] = {
    SHAPE("DeepSeek-V3.2 MLA, 128 heads", BF16, 128, 576, 512, 1024, 1),
    SHAPE("GLM-5.2 MLA, 64 heads", BF16, 64, 576, 512, 1024, 1),
    SHAPE("MiniMax-M3 group of 16, blocks of 128", BF16, 16, 128, 128, 2048, 128),
    SHAPE("DeepSeek-V3.2 MLA, 128 heads, F16 cache", F16, 128, 576, 512, 1024, 1),
    SHAPE("MiniMax-M3 group of 16, F16 cache", F16, 16, 128, 128, 2048, 128),
    SHAPE("LLaMA-3-70B group of 8, single tokens", BF16, 8, 128, 128, 2048, 1),
    SHAPE("LLaMA-3-70B one head, pages of 16", BF16, 1, 128, 128, 2048, 16),
};
static const bench_case tiled_shapes[] = {
    SHAPE("LLaMA-3-70B group of 8, dense", BF16, 8, 128, 128, 1024, 16)};
static const bench_case centroid_shapes[] = {
    SHAPE("LLaMA-3-70B centroids, group of 8", BF16, 8, 128, 0, 8192, 1)};
static const bench_case channel_shapes[] = {
    SHAPE("LLaMA-3-70B SparQ, 32 of 128 channels", BF16, 8, 32, 128, 8192, 128)};
static const bench_case page_shapes[] = {SHAPE("LLaMA-3-70B Quest, group of 8", BF16, 8, 128, 0, 32768, 16)};

void bench_each_case(void (*visit)(const bench_case *c, bool usable, void *context), void *context)
{
    VISIT(dsa_score, dsa_shapes)
    VISIT(block_score, block_shapes)
    VISIT(attend_rows, rows_shapes)
    VISIT(attend_tiled, tiled_shapes)
    VISIT(row_dot, centroid_shapes)
    VISIT(channel_dot, channel_shapes)
    VISIT(page_score, page_shapes)
}
