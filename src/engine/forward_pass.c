/* Passes over rows and over outputs, of which the compute ops are made; see forward_pass.h. */
#include "engine/forward_pass.h"

#include <string.h>

#include "base/check.h"

enum { PARTS_PER_THREAD = 4, OUTPUTS_PER_PART_MIN = 64, ELEMENTS_PER_PART_MIN = 8192 };

/* ---- passes over rows ---- */

static void run_rows(void *context, uint32_t part, uint32_t worker)
{
    const kr_row_job *job = context;
    const uint32_t from = part * job->rows_per_part, left = job->rows - from;
    const uint32_t count = left < job->rows_per_part ? left : job->rows_per_part;

    (void)worker;
    for (uint32_t row = from; row < from + count; row++)
        job->run(job, row);
}

void kr_pass_rows(kr_row_job *job, uint32_t columns)
{
    const uint32_t most = kr_team_threads(job->f->team) * PARTS_PER_THREAD;
    const uint64_t worth = (uint64_t)job->rows * columns / ELEMENTS_PER_PART_MIN;
    const uint32_t parts = worth < 1 ? 1 : worth < most ? (uint32_t)worth : most;

    job->rows_per_part = (uint32_t)kr_ceil_div(job->rows, parts);
    kr_team_run(job->f->team, run_rows, job, (uint32_t)kr_ceil_div(job->rows, job->rows_per_part));
}

void kr_pass_round(const kr_row_job *job, const float *x, uint32_t row)
{
    kr_forward *f = job->f;

    if (job->forms & KR_FORM_BF16)
        f->ops->to_bf16(x, job->columns, f->bf16 + (uint64_t)row * job->columns);
    if (job->forms & KR_FORM_INT8)
        f->ops->quantise(x, job->columns, f->q + (uint64_t)row * job->columns,
                         f->meta + (uint64_t)row * (job->columns / KR_QUANT_BLOCK));
}

static void prepare_row(const kr_row_job *job, uint32_t row)
{
    const uint32_t from = job->index != NULL ? job->index[row] : row;
    const float *x = job->source + (uint64_t)from * job->columns;

    if (job->norm != NULL) {
        float *normed = job->f->normed + (uint64_t)row * job->columns;
        job->f->ops->rms_norm(x, job->norm, (float)job->f->model->norm_eps, normed, job->columns);
        x = normed;
    }
    kr_pass_round(job, x, row);
}

kr_inputs kr_pass_prepare(kr_forward *f, const float *source, const uint32_t *index, const float *norm,
                          uint32_t rows, uint32_t columns, uint32_t forms)
{
    kr_row_job job = {.f = f,
                      .run = prepare_row,
                      .rows = rows,
                      .source = source,
                      .index = index,
                      .norm = norm,
                      .columns = columns,
                      .forms = forms};

    KR_CHECK(norm != NULL || index == NULL);
    if (norm != NULL || (forms & ~(uint32_t)KR_FORM_F32) != 0)
        kr_pass_rows(&job, columns);
    return (kr_inputs){.columns = columns,
                       .f32 = norm != NULL ? f->normed : source,
                       .bf16 = f->bf16,
                       .q = f->q,
                       .meta = f->meta};
}

/* ---- passes over outputs ---- */

typedef struct {
    kr_forward *f;
    const kr_inputs *inputs;
    uint32_t rows, products;
    kr_product product[KR_PRODUCTS_MAX];
    uint32_t units_per_part[KR_PRODUCTS_MAX], parts[KR_PRODUCTS_MAX];
} product_job;

static void run_product(void *context, uint32_t part, uint32_t worker)
{
    const product_job *job = context;
    uint32_t i = 0;

    while (part >= job->parts[i])
        part -= job->parts[i++];
    const kr_product *p = &job->product[i];
    const uint32_t first = part * job->units_per_part[i], left = p->matrix->units - first;
    kr_matrix_multiply(p->matrix, job->f->gemm, worker, first,
                       left < job->units_per_part[i] ? left : job->units_per_part[i], job->inputs, job->rows,
                       p->out, p->out_stride);
}

/* Several products of the same inputs in one pass, cut into parts of about equally many outputs. */
void kr_pass_multiply(kr_forward *f, const kr_inputs *inputs, uint32_t rows, const kr_product *products,
                      uint32_t count)
{
    product_job job = {.f = f, .inputs = inputs, .rows = rows, .products = count};
    const uint32_t threads = kr_team_threads(f->team);
    uint64_t outputs = 0;
    uint32_t parts = 0;

    for (uint32_t i = 0; i < count; i++)
        outputs += products[i].matrix->outputs;
    uint64_t per_part = threads == 1 ? outputs : kr_ceil_div(outputs, threads * PARTS_PER_THREAD);
    per_part = per_part < OUTPUTS_PER_PART_MIN ? OUTPUTS_PER_PART_MIN : per_part;
    for (uint32_t i = 0; i < count; i++) {
        const kr_matrix *m = products[i].matrix;
        job.product[i] = products[i];
        job.units_per_part[i] = (uint32_t)kr_ceil_div(per_part, m->unit_outputs);
        job.parts[i] = (uint32_t)kr_ceil_div(m->units, job.units_per_part[i]);
        parts += job.parts[i];
    }
    kr_team_run(f->team, run_product, &job, parts);
}

/* ---- rotary tables ---- */

static void angles_row(const kr_row_job *job, uint32_t row)
{
    const kr_forward *f = job->f;

    for (uint32_t i = 0; i < KR_FORWARD_ROPES; i++) {
        const kr_rope *rope = f->rope[i];
        if (rope->dims != 0)
            kr_rope_table(job->in->position[row], f->inv_freq[i], rope->dims, f->rope_factor[i],
                          rope->layout == KR_ROPE_INTERLEAVED,
                          job->angles->table[i] + (uint64_t)row * 2 * rope->dims);
    }
}

/* What is not found goes into the set whose last use is longest ago. */
kr_forward_angles *kr_pass_angles(kr_forward *f, const kr_rows *rows)
{
    kr_forward_angles *oldest = &f->angles[0];
    const size_t bytes = rows->rows * sizeof *rows->position;

    f->tick++;
    for (uint32_t i = 0; i < KR_FORWARD_ANGLES; i++) {
        kr_forward_angles *a = &f->angles[i];
        if (a->rows == rows->rows && memcmp(a->position, rows->position, bytes) == 0) {
            a->used = f->tick;
            return a;
        }
        oldest = a->used < oldest->used ? a : oldest;
    }
    kr_row_job job = {.f = f, .run = angles_row, .rows = rows->rows, .in = rows, .angles = oldest};
    memcpy(oldest->position, rows->position, bytes);
    oldest->rows = rows->rows;
    oldest->used = f->tick;
    /* A sine costs about as much as ten elements of other work. */
    kr_pass_rows(&job, 10 * (f->rope[0]->dims + f->rope[1]->dims + f->rope[2]->dims));
    return oldest;
}

/* ---- pieces of several ops ---- */

void kr_pass_check(const kr_forward *f, const kr_rows *rows)
{
    KR_CHECK(rows->rows >= 1 && rows->rows <= f->rows_max);
}

void kr_pass_store_kv(const kr_forward *f, const float *x, void *rows, uint32_t row, uint32_t n)
{
    uint8_t *to = (uint8_t *)rows + (uint64_t)row * n * kr_dtype_bytes(f->kv_dtype);

    if (f->kv_dtype == KR_BF16)
        f->ops->to_bf16(x, n, (uint16_t *)(void *)to);
    else
        kr_from_f32(f->kv_dtype, x, to, n);
}

static void add_row(const kr_row_job *job, uint32_t row)
{
    const kr_forward *f = job->f;
    const uint32_t hidden = f->model->hidden;
    float *x = f->product + (uint64_t)row * hidden;

    if (job->norm != NULL)
        f->ops->rms_norm(x, job->norm, (float)f->model->norm_eps, x, hidden);
    f->ops->add(job->in->hidden + (uint64_t)row * hidden, x, hidden);
}

void kr_pass_add(kr_forward *f, const kr_rows *rows, const float *post_norm)
{
    kr_row_job job = {.f = f, .run = add_row, .rows = rows->rows, .in = rows, .norm = post_norm};

    kr_pass_rows(&job, f->model->hidden);
}

/* The gated activation of one row, straight into the input forms of the last matrix. */
static void activate_row(const kr_row_job *job, uint32_t row)
{
    const kr_forward *f = job->f;
    const uint64_t at = (uint64_t)row * job->columns;
    float *y = f->normed + at;

    switch (f->model->activation) {
    case KR_ACT_GELU_TANH:
        f->ops->gelu_mul(f->gate + at, f->up + at, y, job->columns);
        break;
    case KR_ACT_SWIGLU_OAI:
        f->ops->swiglu_oai(f->gate + at, f->up + at, y, job->columns);
        break;
    default:
        f->ops->silu_mul(f->gate + at, f->up + at, y, job->columns);
    }
    kr_pass_round(job, y, row);
}

void kr_pass_gated(kr_forward *f, const kr_inputs *inputs, uint32_t rows, const kr_matrix *gate,
                   const kr_matrix *up, const kr_matrix *down, float *out)
{
    const uint32_t width = gate->outputs;
    const kr_product products[] = {{gate, f->gate, width}, {up, f->up, width}};
    kr_row_job job = {.f = f, .run = activate_row, .rows = rows, .columns = width, .forms = down->form};
    kr_inputs in = *inputs;

    kr_pass_multiply(f, inputs, rows, products, 2);
    kr_pass_rows(&job, 4 * width);
    in.columns = width;
    in.f32 = f->normed;
    kr_pass_multiply(f, &in, rows, &(kr_product){down, out, f->model->hidden}, 1);
}
