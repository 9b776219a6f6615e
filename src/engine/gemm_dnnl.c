/* Plans, packed chunks and calls of oneDNN. A plan owns one primitive per tile height and, for each
 * worker, memory objects around that worker's own buffers, so that workers share nothing they write. */
#include "engine/gemm_dnnl.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"

/* Of libgomp, which Debian's libdnnl is built on; its own header belongs to one compiler. The
 * setting belongs to the calling thread, so each worker makes it before it enters the library. */
void omp_set_num_threads(int threads);

enum { TILES = 7, PLANS_MAX = 64, TILE_ROWS_MAX = 1 << (TILES - 1) };

/* One tile height of a plan: the kernel, and each worker's view of its operands. */
typedef struct {
    dnnl_primitive_t run;
    dnnl_memory_t *x, *out, *scratch; /* [workers] */
} gemm_tile;

struct kr_gemm_plan {
    kr_dtype type;
    uint32_t columns, outputs;
    uint32_t tiles;                   /* TILES, or 1 where results would depend on the tile */
    dnnl_memory_desc_t plain, packed; /* of a chunk: rows [outputs][columns], oneDNN's own order */
    uint8_t *scratch;                 /* [workers][largest scratchpad] */
    gemm_tile tile[TILES];            /* tile[t] has 1 << t rows */
};

struct kr_gemm {
    uint32_t workers;
    dnnl_engine_t engine;
    dnnl_stream_t *stream;                          /* [workers] */
    float (*tile)[TILE_ROWS_MAX * KR_GEMM_OUTPUTS]; /* [workers] */
    kr_gemm_plan *plan[PLANS_MAX];
    uint32_t plans;
    uint64_t allocated; /* bytes from kr_alloc */
    bool has_bf16;
    char library[32];
};

static kr_status failed(kr_err *err, const char *what, dnnl_status_t status)
{
    return kr_fail(err, status == dnnl_out_of_memory ? KR_E_MEMORY : KR_E_UNSUPPORTED,
                   "oneDNN cannot %s (its status %d)", what, (int)status);
}

static void *take(kr_gemm *gemm, uint64_t bytes)
{
    gemm->allocated += bytes;
    return kr_alloc(bytes);
}

/* A product's primitive descriptor; packed->ndims == 0 asks the library for its packed layout. */
static dnnl_status_t describe(const kr_gemm *gemm, const kr_gemm_plan *plan, uint32_t rows,
                              dnnl_primitive_desc_t *desc)
{
    const dnnl_data_type_t type = plan->type == KR_BF16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_dims_t x_dims = {rows, plan->columns}, w_dims = {plan->columns, plan->outputs};
    const dnnl_dims_t out_dims = {rows, plan->outputs};
    dnnl_memory_desc_t x, w, out;
    dnnl_matmul_desc_t product;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t s = dnnl_memory_desc_init_by_tag(&x, 2, x_dims, type, dnnl_ab);

    if (s == dnnl_success)
        s = dnnl_memory_desc_init_by_tag(&out, 2, out_dims, dnnl_f32, dnnl_ab);
    if (s == dnnl_success)
        s = dnnl_memory_desc_init_by_tag(&w, 2, w_dims, type, dnnl_format_tag_any);
    if (s == dnnl_success)
        s = dnnl_matmul_desc_init(&product, &x, plan->packed.ndims != 0 ? &plan->packed : &w, NULL, &out);
    if (s == dnnl_success)
        s = dnnl_primitive_attr_create(&attr);
    if (s == dnnl_success)
        s = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (s == dnnl_success)
        s = dnnl_primitive_desc_create(desc, &product, attr, gemm->engine, NULL);
    dnnl_primitive_attr_destroy(attr);
    return s;
}

static bool is_brgemm(const_dnnl_primitive_desc_t desc)
{
    const char *name = NULL;
    return dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name) == dnnl_success &&
           strncmp(name, "brg", 3) == 0;
}

static size_t bytes_of(const_dnnl_primitive_desc_t desc, dnnl_query_t what)
{
    const dnnl_memory_desc_t *md = dnnl_primitive_desc_query_md(desc, what, 0);
    return md != NULL ? dnnl_memory_desc_get_size(md) : 0;
}

/* Every worker's operands: x and scratch get their place later, out is the worker's tile. */
static dnnl_status_t make_operands(kr_gemm *gemm, kr_gemm_plan *plan, gemm_tile *tile,
                                   const_dnnl_primitive_desc_t desc, uint64_t scratch_bytes)
{
    const dnnl_memory_desc_t *x = dnnl_primitive_desc_query_md(desc, dnnl_query_src_md, 0);
    const dnnl_memory_desc_t *out = dnnl_primitive_desc_query_md(desc, dnnl_query_dst_md, 0);
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    dnnl_memory_t *all = take(gemm, 3 * gemm->workers * sizeof(dnnl_memory_t));
    dnnl_status_t s = all != NULL ? dnnl_success : dnnl_out_of_memory;

    tile->x = all;
    tile->out = all != NULL ? all + gemm->workers : NULL;
    tile->scratch = all != NULL ? all + 2 * gemm->workers : NULL;
    for (uint32_t i = 0; i < gemm->workers && s == dnnl_success; i++) {
        s = dnnl_memory_create(&tile->x[i], x, gemm->engine, DNNL_MEMORY_NONE);
        if (s == dnnl_success)
            s = dnnl_memory_create(&tile->out[i], out, gemm->engine, gemm->tile[i]);
        if (s == dnnl_success)
            s = dnnl_memory_create(&tile->scratch[i], scratch, gemm->engine,
                                   plan->scratch + i * scratch_bytes);
    }
    return s;
}

static void drop_plan(const kr_gemm *gemm, kr_gemm_plan *plan)
{
    for (uint32_t t = 0; t < TILES; t++) {
        gemm_tile *tile = &plan->tile[t];
        for (uint32_t i = 0; tile->x != NULL && i < 3 * gemm->workers; i++)
            dnnl_memory_destroy(tile->x[i]); /* x, out and scratch lie in one array */
        kr_free(tile->x);
        dnnl_primitive_destroy(tile->run);
    }
    kr_free(plan->scratch);
    kr_free(plan);
}

/* Fills a zeroed plan: the packed layout is the one the tallest tile likes best. */
static dnnl_status_t make_plan(kr_gemm *gemm, kr_gemm_plan *plan)
{
    const dnnl_dims_t dims = {plan->columns, plan->outputs};
    dnnl_primitive_desc_t desc[TILES] = {NULL};
    uint64_t scratch_bytes = 64;
    dnnl_status_t s = dnnl_memory_desc_init_by_tag(&plan->plain, 2, dims,
                                                   plan->type == KR_BF16 ? dnnl_bf16 : dnnl_f32, dnnl_ba);

    if (s == dnnl_success)
        s = describe(gemm, plan, TILE_ROWS_MAX, &desc[TILES - 1]);
    if (s == dnnl_success)
        plan->packed = *dnnl_primitive_desc_query_md(desc[TILES - 1], dnnl_query_weights_md, 0);
    bool same_sum = s == dnnl_success && is_brgemm(desc[TILES - 1]);
    for (uint32_t t = 0; t < TILES - 1 && s == dnnl_success; t++) {
        s = describe(gemm, plan, 1u << t, &desc[t]);
        same_sum = same_sum && s == dnnl_success && is_brgemm(desc[t]);
    }
    plan->tiles = same_sum ? TILES : 1;
    for (uint32_t t = 0; t < plan->tiles && s == dnnl_success; t++) {
        const uint64_t bytes = kr_align_up(bytes_of(desc[t], dnnl_query_scratchpad_md), 64);
        scratch_bytes = bytes > scratch_bytes ? bytes : scratch_bytes;
    }
    if (s == dnnl_success && (plan->scratch = take(gemm, gemm->workers * scratch_bytes)) == NULL)
        s = dnnl_out_of_memory;
    for (uint32_t t = 0; t < plan->tiles && s == dnnl_success; t++) {
        s = dnnl_primitive_create(&plan->tile[t].run, desc[t]);
        if (s == dnnl_success)
            s = make_operands(gemm, plan, &plan->tile[t], desc[t], scratch_bytes);
    }
    for (uint32_t t = 0; t < TILES; t++)
        dnnl_primitive_desc_destroy(desc[t]);
    return s;
}

kr_status kr_gemm_plan_for(kr_gemm *gemm, kr_dtype type, uint32_t columns, uint32_t outputs,
                           const kr_gemm_plan **plan, kr_err *err)
{
    KR_CHECK((type == KR_F32 || type == KR_BF16) && outputs >= 1 && outputs <= KR_GEMM_OUTPUTS);
    for (uint32_t i = 0; i < gemm->plans; i++) {
        const kr_gemm_plan *p = gemm->plan[i];
        if (p->type == type && p->columns == columns && p->outputs == outputs) {
            *plan = p;
            return KR_OK;
        }
    }
    if (gemm->plans == PLANS_MAX)
        return kr_fail(err, KR_E_LIMIT, "more than %d different shapes of F32 and BF16 weights", PLANS_MAX);
    omp_set_num_threads(1);
    kr_gemm_plan *p = take(gemm, sizeof *p);
    if (p == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a matrix plan");
    p->type = type;
    p->columns = columns;
    p->outputs = outputs;
    const dnnl_status_t s = make_plan(gemm, p);
    if (s != dnnl_success) {
        drop_plan(gemm, p);
        return failed(err, type == KR_BF16 ? "multiply BF16 here" : "multiply F32 here", s);
    }
    gemm->plan[gemm->plans++] = p;
    *plan = p;
    return KR_OK;
}

uint64_t kr_gemm_plan_bytes(const kr_gemm_plan *plan)
{
    return kr_align_up(dnnl_memory_desc_get_size(&plan->packed), 64);
}

uint64_t kr_gemm_scratch_bytes(const kr_gemm *gemm) { return gemm->allocated; }

bool kr_gemm_has_bf16(const kr_gemm *gemm) { return gemm->has_bf16; }

const char *kr_gemm_library(const kr_gemm *gemm) { return gemm->library; }

kr_status kr_gemm_create(kr_gemm **gemm, uint32_t workers, kr_err *err)
{
    const dnnl_version_t *version = dnnl_version();
    kr_gemm *g = kr_alloc(sizeof *g);

    if (g == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for the matrix library");
    omp_set_num_threads(1);
    g->allocated = sizeof *g;
    g->workers = workers;
    g->stream = take(g, workers * sizeof(dnnl_stream_t));
    g->tile = take(g, workers * sizeof *g->tile);
    dnnl_status_t s = g->stream != NULL && g->tile != NULL ? dnnl_success : dnnl_out_of_memory;
    if (s == dnnl_success)
        s = dnnl_engine_create(&g->engine, dnnl_cpu, 0);
    for (uint32_t i = 0; i < workers && s == dnnl_success; i++)
        s = dnnl_stream_create(&g->stream[i], g->engine, dnnl_stream_default_flags);
    if (s != dnnl_success) {
        kr_gemm_destroy(g);
        return failed(err, "start", s);
    }
    snprintf(g->library, sizeof g->library, "oneDNN %d.%d.%d", version->major, version->minor,
             version->patch);

    /* Asked by trying; BF16 that is not the packed kernel is emulation, slower than F32. */
    kr_gemm_plan probe = {.type = KR_BF16, .columns = KR_GEMM_OUTPUTS, .outputs = KR_GEMM_OUTPUTS};
    dnnl_primitive_desc_t desc = NULL;
    g->has_bf16 = describe(g, &probe, TILE_ROWS_MAX, &desc) == dnnl_success && is_brgemm(desc);
    dnnl_primitive_desc_destroy(desc);
    *gemm = g;
    return KR_OK;
}

void kr_gemm_destroy(kr_gemm *gemm)
{
    if (gemm == NULL)
        return;
    for (uint32_t i = 0; i < gemm->plans; i++)
        drop_plan(gemm, gemm->plan[i]);
    for (uint32_t i = 0; gemm->stream != NULL && i < gemm->workers; i++)
        dnnl_stream_destroy(gemm->stream[i]);
    dnnl_engine_destroy(gemm->engine);
    kr_free(gemm->stream);
    kr_free(gemm->tile);
    kr_free(gemm);
}

kr_status kr_gemm_pack(kr_gemm *gemm, const kr_gemm_plan *plan, uint32_t worker, const void *rows,
                       void *packed, kr_gemm_weights **weights, kr_err *err)
{
    dnnl_memory_t from = NULL, to = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_primitive_t reorder = NULL;

    omp_set_num_threads(1);
    /* The library takes no pointer to const; it only reads this one. */
    dnnl_status_t s = dnnl_memory_create(&from, &plan->plain, gemm->engine, (void *)(uintptr_t)rows);
    if (s == dnnl_success)
        s = dnnl_memory_create(&to, &plan->packed, gemm->engine, packed);
    if (s == dnnl_success)
        s = dnnl_reorder_primitive_desc_create(&desc, &plan->plain, gemm->engine, &plan->packed, gemm->engine,
                                               NULL);
    if (s == dnnl_success)
        s = dnnl_primitive_create(&reorder, desc);
    if (s == dnnl_success) {
        const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
        s = dnnl_primitive_execute(reorder, gemm->stream[worker], 2, args);
    }
    dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(desc);
    dnnl_memory_destroy(from);
    if (s != dnnl_success) {
        dnnl_memory_destroy(to);
        return failed(err, "pack weights", s);
    }
    *weights = (kr_gemm_weights *)to;
    return KR_OK;
}

void kr_gemm_weights_destroy(kr_gemm_weights *weights) { dnnl_memory_destroy((dnnl_memory_t)weights); }

/* Tallest tile that fits into rows. */
static uint32_t tile_for(const kr_gemm_plan *plan, uint32_t rows)
{
    uint32_t t = plan->tiles - 1;

    while (1u << t > rows)
        t--;
    return t;
}

void kr_gemm_run(kr_gemm *gemm, const kr_gemm_plan *plan, const kr_gemm_weights *weights, uint32_t worker,
                 const void *x, uint32_t rows, float *out, uint64_t out_stride)
{
    const uint64_t row_bytes = (uint64_t)plan->columns * kr_dtype_bytes(plan->type);

    omp_set_num_threads(1);
    for (uint32_t row = 0, count; row < rows; row += count) {
        const uint32_t t = tile_for(plan, rows - row);
        const gemm_tile *tile = &plan->tile[t];
        const float *sum = gemm->tile[worker];
        const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, tile->x[worker]},
                                        {DNNL_ARG_WEIGHTS, (dnnl_memory_t)(uintptr_t)weights},
                                        {DNNL_ARG_DST, tile->out[worker]},
                                        {DNNL_ARG_SCRATCHPAD, tile->scratch[worker]}};
        count = 1u << t;
        const void *from = (const uint8_t *)x + row * row_bytes;
        /* Shapes were fixed by the plan: only a broken library could refuse now. */
        KR_CHECK(dnnl_memory_set_data_handle(tile->x[worker], (void *)(uintptr_t)from) == dnnl_success);
        KR_CHECK(dnnl_primitive_execute(tile->run, gemm->stream[worker], 4, args) == dnnl_success);
        for (uint32_t r = 0; r < count; r++)
            memcpy(out + (row + r) * out_stride, sum + r * plan->outputs, plan->outputs * sizeof *out);
    }
}
